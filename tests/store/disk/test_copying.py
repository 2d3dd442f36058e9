"""Copying a stretch of a file: what was asked for, or an error that names the file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from riverbed.store.disk.copying import GrowingCopy, copy_stretch, move_to_new_places
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import StoreError


class Sparing(OsFiles):
    """Reads and writes less than it is asked to, as a system may."""

    @staticmethod
    def read_at(fd: int, size: int, position: int, /) -> bytes:
        return OsFiles.read_at(fd, min(size, 3), position)

    @staticmethod
    def write_at(fd: int, data: bytes | memoryview, position: int, /) -> int:
        return OsFiles.write_at(fd, data[:2], position)


@pytest.mark.parametrize(("begin", "end", "copied"), [(0, 10, b"0123456789"), (4, None, b"456789"), (3, 3, b"")])
def test_a_stretch_is_copied_in_whatever_pieces(tmp_path: Path, begin: int, end: int | None, copied: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")

    copy_stretch(source, tmp_path / "target", begin, end, Sparing())

    assert (tmp_path / "target").read_bytes() == copied


def test_a_source_that_ends_too_early_is_named(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")

    with pytest.raises(StoreError, match="source became shorter"):
        copy_stretch(source, tmp_path / "target", 0, 11, OsFiles())


def test_no_piece_is_longer_than_a_megabyte(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Watched(OsFiles):
        @staticmethod
        def write_at(fd: int, data: bytes | memoryview, position: int, /) -> int:
            sizes.append(len(data))
            return OsFiles.write_at(fd, data, position)

    source = tmp_path / "source"
    source.write_bytes(bytes(5 << 19))
    copy_stretch(source, tmp_path / "target", 0, None, Watched())
    assert sizes == [1 << 20, 1 << 20, 1 << 19]


def test_a_copy_that_grows_is_durable_as_far_as_it_goes(tmp_path: Path) -> None:
    synced: list[bytes] = []

    class Watched(OsFiles):
        @staticmethod
        def sync(fd: int, /) -> None:
            OsFiles.sync(fd)
            synced.append((tmp_path / "target").read_bytes())

    source = tmp_path / "source"
    source.write_bytes(b"01234")
    with GrowingCopy(source, tmp_path / "target", Watched(), 1) as copy:
        copy.extend(3)
        assert synced[-1] == b"12"
        with source.open("ab") as more:
            more.write(b"56789")
        copy.extend(copy.source_bytes)
        assert synced[-1] == b"123456789"


def test_a_copy_takes_the_place_of_a_file_and_a_failure_leaves_it(tmp_path: Path) -> None:
    path, temporary = tmp_path / "file", tmp_path / "temporary"
    path.write_bytes(b"0123456789")
    before = path.stat().st_ino

    class Refusing(OsFiles):
        @staticmethod
        def sync(fd: int, /) -> None:
            raise OSError(errno.EIO, "the disk fails")

    class ShortOfSpace(OsFiles):
        def free_bytes(self, path: Path, /) -> int:
            return 9

    with pytest.raises(OSError, match="the disk fails"):
        move_to_new_places(path, temporary, Refusing())
    with pytest.raises(StoreError, match="a copy needs 10 bytes, and 9 are free"):
        move_to_new_places(path, temporary, ShortOfSpace())
    assert path.stat().st_ino == before
    assert not temporary.exists()

    move_to_new_places(path, temporary, OsFiles())
    assert path.read_bytes() == b"0123456789"
    assert path.stat().st_ino != before
    assert not temporary.exists()
