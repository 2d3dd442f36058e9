"""Whole files, written in pieces, on a system that writes short and on one that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.store.disk.durable_file import write_all_at, write_file
from riverbed.store.disk.files import OsFiles


class ShortWrites(OsFiles):
    """Takes at most three bytes a write, and notes what was durable when."""

    def __init__(self) -> None:
        self.synced: list[int] = []

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        return OsFiles.write_at(fd, data[:3], position)

    def sync(self, fd: int, /) -> None:
        OsFiles.sync(fd)
        self.synced.append(self.size(fd))


def test_all_of_a_buffer_is_written_however_short_the_writes_are(tmp_path: Path) -> None:
    files = ShortWrites()
    fd = files.create(tmp_path / "file")
    write_all_at(files, fd, b"ten bytes!", 0)
    write_all_at(files, fd, memoryview(b"and more"), 10)
    files.close(fd)
    assert (tmp_path / "file").read_bytes() == b"ten bytes!and more"


def test_a_file_is_synced_on_the_way_and_at_its_end(tmp_path: Path) -> None:
    files = ShortWrites()
    write_file(tmp_path / "file", [b"12345", b"67890", b"abc"], files, unsynced_bytes=8)
    assert (tmp_path / "file").read_bytes() == b"1234567890abc"
    assert files.synced == [10, 13]


def test_a_file_whose_pieces_fail_keeps_what_was_written_and_is_closed(tmp_path: Path) -> None:
    class Watched(ShortWrites):
        closed = 0

        def close(self, fd: int, /) -> None:
            self.closed += 1
            OsFiles.close(fd)

    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise KeyError("second")

    files = Watched()
    with pytest.raises(KeyError):
        write_file(tmp_path / "file", pieces(), files)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert files.closed == 1
