from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

import pytest

from riverbed.store.disk import removal
from riverbed.store.disk.locks import leases
from riverbed.store.disk.removal import PIECE_BYTES, close_file, remove_file, remove_tree
from tests.support.waiting import until

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
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _SIZE)
    return path


def _opened_and_deleted(path: Path) -> int:
    fd = os.open(_large(path), os.O_RDONLY)
    path.unlink()
    return fd


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_large_file_is_freed_in_pieces_once_it_has_no_name(tmp_path: Path, sizes: list[int]) -> None:
    path = _large(tmp_path / "large")
    seen: list[tuple[float, bool]] = []

    def wait(seconds: float) -> None:
        seen.append((seconds, path.exists()))

    remove_file(path, wait)
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
    remove_tree(tmp_path / "a", lambda _: False)
    assert not (tmp_path / "a").exists()
    assert sizes == [PIECE_BYTES + 1, 1] * 2


def test_what_another_process_makes_in_a_tree_meanwhile_is_deleted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, names = os.rmdir, iter(("first", "second"))

    def rmdir(path: str, *, dir_fd: int | None = None) -> None:
        for name in names:
            (tmp_path / "a" / "b" / name).touch()
            break
        remove(path, dir_fd=dir_fd)

    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(os, "rmdir", rmdir)
    remove_tree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert next(names, None) is None


def test_a_missing_tree_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "missing")


def test_once_nobody_need_be_spared_the_rest_is_freed_at_once(tmp_path: Path, sizes: list[int]) -> None:
    remove_file(_large(tmp_path / "large"), lambda _: True)
    assert sizes == [PIECE_BYTES + 1]


def test_holes_take_no_time(tmp_path: Path, sizes: list[int]) -> None:
    """A length is what somebody has written down; the pauses are for what the file system has to free."""
    hole, large = tmp_path / "hole", _large(tmp_path / "large")
    hole.touch()
    for path in (hole, large):
        os.truncate(path, 1 << 40)
        remove_file(path, lambda _: False)
    assert 1 <= len(sizes) <= _SIZE // PIECE_BYTES


# -- files that were open when they were deleted -----------------------------------------------------------------------


def test_the_last_user_has_a_thread_free_the_file_in_pieces(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may be the one that serves all clients."""
    may_go_on = threading.Event()
    real = time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            real(seconds)  # of `until`
        else:
            may_go_on.wait(60)

    monkeypatch.setattr(removal.time, "sleep", sleep)
    fds = [_opened_and_deleted(tmp_path / name) for name in ("first", "second")]
    for fd in fds:
        close_file(fd)
    until(lambda: sizes == [PIECE_BYTES + 1], "the first piece")
    may_go_on.set()
    until(lambda: len(sizes) == 4, "the end of both")
    assert sizes == [PIECE_BYTES + 1, 1] * 2
    until(lambda: not any(map(_is_open, fds)), "the descriptors' end")


@pytest.mark.parametrize("has_name", [True, False])
def test_what_is_in_use_keeps_its_bytes_when_another_closes_it(
    tmp_path: Path, sizes: list[int], has_name: bool
) -> None:
    path = _large(tmp_path / "large")
    with path.open("rb") as file:
        fd = os.open(path, os.O_RDONLY)
        if not has_name:
            path.unlink()
        close_file(fd)
        until(lambda: not _is_open(fd), "the end of the descriptor")
        assert os.fstat(file.fileno()).st_size == _SIZE
    assert sizes == []


def test_a_small_file_and_what_is_no_file_are_closed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x")
    reading, writing = os.pipe()
    for fd in (os.open(path, os.O_RDONLY), reading, writing):
        close_file(fd)
        assert not _is_open(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        close_file(reading)


def test_where_a_file_cannot_be_opened_again_it_is_closed(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = _opened_and_deleted(tmp_path / "large")

    def refuse(path: str, flags: int) -> int:
        raise FileNotFoundError(path)

    with monkeypatch.context() as patch:
        patch.setattr(removal.os, "open", refuse)
        close_file(fd)
        until(lambda: not _is_open(fd), "the end of the descriptor")
    assert sizes == []


def test_where_no_thread_can_be_started_it_is_closed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(removal, "_unused", refuse)
    fd = _opened_and_deleted(tmp_path / "large")
    close_file(fd)
    assert not _is_open(fd)
