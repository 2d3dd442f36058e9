"""A log file may be sparse, and longer than any disk: reading it, and starting on it, takes what it holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError
from riverbed.store.log.files import holes
from riverbed.store.position import LogPosition
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import FIRST, ROOT, SELECT, append, open_log, xadd

_READ_UP_TO = 8 << 20
_MOST = 128 << 20  # what may be read, or written, in all
_LENGTH = 5 << 40


class BoundedFiles(OsFiles):
    """Reads and writes no more than a part of a long file."""

    def __init__(self) -> None:
        self.read = self.written = 0

    def read_at(self, fd: int, size: int, position: int, /) -> bytes:
        self.read += size
        assert self.read < _MOST, "the hole is read"
        return super().read_at(fd, size, position)

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        self.written += len(data)
        assert self.written < _MOST, "the hole is written"
        return os.pwrite(fd, data, position)


@pytest.fixture(autouse=True)
def read_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holes, "LONGEST_READ", _READ_UP_TO)


def two_batches(directory: Path) -> tuple[Path, list[int]]:
    """The file of a log, and where its batches end."""
    log = open_log(directory, OsFiles())
    ends = []
    for number in (1, 2):
        append(log, [SELECT, xadd(number)])
        ends.append(log.end.position)
    log.close()
    [path] = (directory / "appendonlydir").glob("*.incr.aof")
    assert path.stat().st_size == ends[-1]
    return path, ends


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["from the front", "behind a checkpoint"])
def test_a_start_neither_reads_nor_fills_a_hole_and_cuts_it_off(tmp_path: Path, is_checkpointed: bool) -> None:
    path, ends = two_batches(tmp_path)
    os.truncate(path, _LENGTH)
    files = BoundedFiles()
    log = open_log(tmp_path, files)
    durable = LogPosition(int(path.name.split(".")[2]), ends[0], 0) if is_checkpointed else None
    assert len(list(log.read(durable=durable))) == 2
    assert log.torn_tail is not None
    assert (log.torn_tail.position, log.torn_tail.byte_count) == (ends[-1], _LENGTH - ends[-1])
    assert files.written < 2 << 20
    log.cut_tail()
    assert path.stat().st_size == ends[-1]
    log.close()


def test_a_sound_batch_behind_a_hole_is_found(tmp_path: Path) -> None:
    path, (first, second) = two_batches(tmp_path)
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(first)
        file.seek(_LENGTH // 2 + 77)
        file.write(data[first:second])
        file.truncate(_LENGTH)
    log = open_log(tmp_path, BoundedFiles())
    with pytest.raises(CorruptionError, match=f"the batch from byte {_LENGTH // 2 + 77} on is sound again"):
        list(log.read_only(None))
    with pytest.raises(CorruptionError, match="sound again"):
        list(log.read())


class MemoryFiles(FaultyFiles):
    """A disk that has no place for what memory has: a write to it failed, and was forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def next_data(self, fd: int, position: int, /) -> int:
        return self.size(fd)

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        self.written.update(range(position, position + len(data)))
        return super().write_at(fd, data, position)


def test_what_can_be_read_in_a_hole_is_written_again() -> None:
    files = MemoryFiles()
    log = open_log(ROOT, files)
    for number in range(1, 4):
        append(log, [SELECT, xadd(number)])
    log.close()
    files.written.clear()
    assert len(list(open_log(ROOT, files).read())) == 3
    assert files.written == set(range(len(files.data(FIRST))))
