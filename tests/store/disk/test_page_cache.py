from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from riverbed.store.disk import page_cache
from riverbed.store.disk.durable_file import write_file
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.page_cache import KEPT_BYTES, STEP_BYTES, CachedEnd
from riverbed.store.options import Fsync
from tests.support.store.stores import Store


class NotingFiles(OsFiles):
    """Notes what the system is to forget of each file, which has to be durable by then."""

    def __init__(self) -> None:
        self.forgotten: dict[str, list[tuple[int, int]]] = {}
        self._durable: dict[str, int] = {}

    def sync(self, fd: int, /) -> None:
        OsFiles.sync(fd)
        self._durable[_name(fd)] = self.size(fd)

    def forget(self, fd: int, begin: int, size: int, /) -> None:
        name = _name(fd)
        assert begin + size <= self._durable[name]
        self.forgotten.setdefault(name, []).append((begin, begin + size))
        super().forget(fd, begin, size)


def _name(fd: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{fd}")).name


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "KEPT_BYTES", 3000)
    monkeypatch.setattr(page_cache, "STEP_BYTES", 1000)


def test_whole_steps_are_forgotten_once_and_the_end_is_kept() -> None:
    forgotten: list[tuple[int, int, int]] = []

    class Files(OsFiles):
        def forget(self, fd: int, begin: int, size: int, /) -> None:
            forgotten.append((fd, begin, size))

    end = CachedEnd(Files())
    end.grew(7, KEPT_BYTES + STEP_BYTES - 1)
    assert forgotten == []
    end.grew(7, KEPT_BYTES + 2 * STEP_BYTES)
    end.grew(7, KEPT_BYTES + 3 * STEP_BYTES - 1)
    assert forgotten == [(7, 0, 2 * STEP_BYTES)]
    end.grew(7, KEPT_BYTES + 3 * STEP_BYTES)
    assert forgotten[1:] == [(7, 2 * STEP_BYTES, STEP_BYTES)]
    end.begin_file()
    end.grew(7, KEPT_BYTES + STEP_BYTES)
    assert forgotten[2:] == [(7, 0, STEP_BYTES)]


@pytest.mark.parametrize("fsync", Fsync)
@pytest.mark.usefixtures("small")
def test_the_system_caches_the_end_of_the_log_only(tmp_path: Path, fsync: Fsync) -> None:
    """Under every policy, in each file of the log; what was forgotten is read from the disk."""
    files = NotingFiles()
    store = Store(tmp_path, files=files, fsync=fsync, segment_bytes=20_000)
    for number in range(1, 41):
        store.add(b"s", f"{number}-0", words=(b"f", b"x" * 900))
        store.checkpoint()
    first, second = sorted(files.forgotten)
    for name in (first, second):
        forgotten = files.forgotten[name]
        size = next(tmp_path.rglob(name)).stat().st_size
        assert forgotten[0][0] == 0
        assert all(before[1] == after[0] for before, after in itertools.pairwise(forgotten))
        assert size - 5000 < forgotten[-1][1] <= size - 3000
    expected = store.dump()
    store.crash()
    assert store.dump() == expected
    store.engine.close()


@pytest.mark.usefixtures("small")
def test_a_file_that_is_not_read_soon_is_forgotten_while_it_is_written(tmp_path: Path) -> None:
    files = NotingFiles()
    for name, is_read_soon in (("read", True), ("unread", False)):
        write_file(tmp_path / name, [b"x" * 600] * 10, files, unsynced_bytes=1000, is_read_soon=is_read_soon)
        assert (tmp_path / name).read_bytes() == b"x" * 6000
    assert files.forgotten == {"unread": [(0, 1000), (1000, 3000)]}


def test_what_cannot_be_forgotten_is_no_error() -> None:
    reading, writing = os.pipe()
    OsFiles().forget(reading, 0, 1)
    os.close(reading)
    OsFiles().forget(reading, 0, 1)
    os.close(writing)
