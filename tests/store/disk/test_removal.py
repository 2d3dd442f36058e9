from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from riverbed.store.disk import removal
from riverbed.store.disk.locks import leases
from riverbed.store.disk.removal import PIECE_BYTES, remove_file, remove_tree

_SIZE = 2 * PIECE_BYTES + 1


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes to which files are shortened."""
    found: list[int] = []
    truncate = os.ftruncate

    def note(fd: int, size: int) -> None:
        found.append(size)
        truncate(fd, size)

    monkeypatch.setattr(removal.os, "ftruncate", note)
    return found


def _large(path: Path) -> Path:
    path.touch()
    os.truncate(path, _SIZE)
    return path


def test_a_large_file_is_freed_in_pieces_once_it_has_no_name(tmp_path: Path, sizes: list[int]) -> None:
    path = _large(tmp_path / "large")
    seen: list[tuple[float, bool]] = []
    remove_file(path, lambda seconds: seen.append((seconds, path.exists())))
    assert sizes == [PIECE_BYTES + 1, 1]
    assert seen == [(removal.PAUSE_S, False)] * 2
    assert not path.exists()


def test_a_small_file_is_deleted_at_once(tmp_path: Path, sizes: list[int]) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x")
    remove_file(path)
    assert not path.exists()
    assert sizes == []


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_file(tmp_path / "missing")


def test_a_reader_that_has_the_file_open_reads_all_of_it(tmp_path: Path, sizes: list[int]) -> None:
    path = _large(tmp_path / "large")
    with path.open("rb") as file:
        remove_file(path)
        assert not path.exists()
        assert file.seek(0, os.SEEK_END) == _SIZE
    assert sizes == []


def test_what_is_mapped_into_memory_stays_mapped(tmp_path: Path, sizes: list[int]) -> None:
    path = _large(tmp_path / "large")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with mapped:
        remove_file(path)
        assert mapped[_SIZE - 1] == 0  # a page that a shorter file has not got is a SIGBUS
    assert sizes == []


def test_a_file_with_another_name_keeps_its_bytes(tmp_path: Path, sizes: list[int]) -> None:
    path = _large(tmp_path / "large")
    backup = tmp_path / "backup"
    os.link(path, backup)
    remove_file(path)
    assert not path.exists()
    assert backup.stat().st_size == _SIZE
    assert sizes == []


def test_another_file_that_took_the_name_meanwhile_is_the_one_deleted(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _large(tmp_path / "large")
    moved = tmp_path / "moved"
    unlink = os.unlink

    def move_first(name: Path, *, dir_fd: int | None = None) -> None:
        path.rename(moved)
        path.touch()
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(removal.os, "unlink", move_first)
    remove_file(path)
    assert moved.stat().st_size == _SIZE
    assert sizes == []


def test_where_there_are_no_leases_a_file_is_deleted_at_once(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_SET_LEASE", None)
    path = _large(tmp_path / "large")
    remove_file(path)
    assert not path.exists()
    assert sizes == []


def test_links_are_deleted_and_not_followed(tmp_path: Path, sizes: list[int]) -> None:
    target, folder = _large(tmp_path / "target"), tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(target)
    (folder / "up").symlink_to(tmp_path)
    remove_tree(folder)
    assert not folder.exists()
    assert target.stat().st_size == _SIZE
    assert sizes == []


def test_a_directory_named_by_a_link_stays(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    link.symlink_to(folder)
    remove_tree(link)
    assert (folder / "file").exists()


def test_a_tree_is_deleted_with_its_large_files_in_pieces(tmp_path: Path, sizes: list[int]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for path in ("a/large", "a/b/large", "a/b/small"):
        (tmp_path / path).write_bytes(b"x")
    for path in ("a/large", "a/b/large"):
        _large(tmp_path / path)
    remove_tree(tmp_path / "a", lambda _: None)
    assert not (tmp_path / "a").exists()
    assert sizes == [PIECE_BYTES + 1, 1] * 2


def test_a_missing_tree_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "missing")
