"""The disk of one machine: real files, what is durable of them, and what a power cut leaves of the rest.

    disk = Disk(random, folder, wait)      folder is where the machine's data directory is
    disk.files                             `store.disk.files.Files` on it
    disk.fail("sync", errno.EIO)           the next sync of the log fails
    disk.cut_power_after(7, report)        the power fails in the seventh operation from now
    disk.after(target, power_cut=True)     the disk that the next start finds, a copy in another folder

The log's files go through `files`, which notes for each of them what the last successful sync has made durable, and for
each directory which names are not durable yet.  A power cut keeps any of the writes since then, whole, torn or not at
all, and undoes any number of the last names that were made, moved and removed.  A sync that fails has written nothing
and forgets what it had to write, as Linux does.

LMDB's file is written by LMDB.  `tables.py` reports when it was synced; a power cut mixes pages of that moment with
pages of now.  Everything else that the product writes itself (LMDB's mark, snapshots, what children write) is synced by
it in the same call, and counts as durable at once.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from riverbed.store.disk.files import OsFiles
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.tables.data_file.power_loss import MARK_NAME
from tests.support.simulation.loop import PowerCut

PAGE_BYTES: Final = 4096
_SECTOR_BYTES: Final = 512
_ANOTHER_BOOT: Final = "00000000-0000-0000-0000-000000000000"
TOTAL_BYTES: Final = 1 << 40


class _File:
    """A file of the log: what is durable, and what was written since."""

    def __init__(self, durable: bytes) -> None:
        self.durable = bytearray(durable)
        self.unsynced: list[tuple[int, bytes | None]] = []  # place and bytes; None: cut off there

    def sync(self) -> None:
        _apply(self.unsynced, self.durable)
        self.unsynced = []

    def forget(self) -> None:
        """A sync has failed: the disk has not got these, and no later sync tries again."""
        self.unsynced = []

    def after_power_cut(self, random: Random) -> bytearray:
        kept: list[tuple[int, bytes | None]] = []
        for at, data in self.unsynced:
            fate = random.random()
            if data is None:
                kept += [(at, None)] if fate < 0.5 else []
            elif fate < 0.4:
                kept.append((at, data))
            elif fate < 0.7:
                kept += _torn(at, data, random)
        data = self.durable.copy()
        _apply(kept, data)
        return data


def _torn(at: int, data: bytes, random: Random) -> list[tuple[int, bytes | None]]:
    """Some of the sectors of a write."""
    kept: list[tuple[int, bytes | None]] = []
    start = 0
    while start < len(data):
        end = min(start + _SECTOR_BYTES - (at + start) % _SECTOR_BYTES, len(data))
        if random.random() < 0.5:
            kept.append((at + start, data[start:end]))
        start = end
    return kept


def _apply(changes: list[tuple[int, bytes | None]], data: bytearray) -> None:
    for at, written in changes:
        if written is None:
            del data[at:]
        else:
            data.extend(bytes(max(at - len(data), 0)))
            data[at : at + len(written)] = written


class _Name(NamedTuple):
    """A change of names that is not durable.  `source` is None for a new name, `target` for a removed one."""

    source: Path | None
    target: Path | None
    replaced: Path | None  # where the file is kept that was replaced or removed


class Disk:
    """The disk of one machine; `folder` holds the data directory `data`."""

    def __init__(self, random: Random, folder: Path, wait: Callable[[], None]) -> None:
        """`wait` passes the time that a sync of a file takes."""
        self.folder = folder
        self.directory = folder / "data"
        self.files = _Files(self)
        self.free: int | None = None
        self.is_gone = False  # what happens to it does not count any more
        self.operations = 0
        self.faults: dict[str, list[int]] = {}  # errno, for the next operations of a name
        self.is_broken = False  # every sync and write fails
        self._random = random
        self._wait = wait
        self._files: dict[int, _File] = {}  # by inode
        self._descriptors: dict[int, int] = {}  # inode
        self._names: list[_Name] = []
        self._kept = 0
        self._kept_folder = folder / "removed"
        self._tables: dict[Path, bytes] = {}  # LMDB's files, as they were synced last
        self._cut_at: int | None = None
        self._cut: Callable[[], None] = lambda: None
        self._kept_folder.mkdir(parents=True, exist_ok=True)

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail(self, operation: str, number: int) -> None:
        self.faults.setdefault(operation, []).append(number)

    def cut_power_after(self, operations: int, cut: Callable[[], None]) -> None:
        """Call `cut`, which copies what is left, in so many operations, and end what is running."""
        self._cut_at, self._cut = self.operations + operations, cut

    def forgive(self) -> None:
        """No fault that was asked for and has not come yet will."""
        self.faults.clear()
        self.free = None
        self.is_broken = False
        self._cut_at = None

    def step(self, operation: str) -> None:
        if self.is_gone:
            return
        self.operations += 1
        if self._cut_at is not None and self.operations >= self._cut_at:
            self._cut_at = None
            self._cut()
            raise PowerCut
        numbers = self.faults.get(operation)
        if numbers:
            number = numbers.pop(0)
            raise OSError(number, os.strerror(number))
        if self.is_broken and operation in ("write", "sync", "create", "rename", "sync_directory", "sync_tables"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def wait(self) -> None:
        """Have a sync take its time."""
        if not self.is_gone:
            self._wait()

    # -- LMDB ----------------------------------------------------------------------------------------------------------

    def tables_synced(self, path: Path) -> None:
        """LMDB's file at `path` is durable as it is."""
        self._tables[path] = path.read_bytes()

    def tables_forgotten(self, path: Path) -> None:
        """LMDB syncs this file itself with each commit."""
        self._tables.pop(path, None)

    # -- what is left --------------------------------------------------------------------------------------------------

    def after(self, folder: Path, *, power_cut: bool) -> Disk:
        """The disk that the next start finds.

        After the end of a process it is the same, with all that is not durable yet: that may still be lost.
        """
        if power_cut:
            self._undo_names()
        disk = Disk(self._random, folder, self._wait)
        disk.directory.mkdir()
        for path in sorted(self.directory.rglob("*")):
            copy = disk.directory / path.relative_to(self.directory)
            if path.is_dir():
                copy.mkdir(exist_ok=True)
            elif power_cut:
                copy.write_bytes(self._left(path))
            else:
                disk._take_over(self, path, copy)
        if power_cut:
            for mark in disk.directory.rglob(MARK_NAME):
                if mark.read_text() != "failed":
                    mark.write_text(_ANOTHER_BOOT)
        else:
            moved = [tuple(self._moved_to(disk, path) for path in name[:2]) for name in self._names]
            disk._names = [_Name(*paths, name.replaced) for paths, name in zip(moved, self._names, strict=True)]
        return disk

    def _moved_to(self, disk: Disk, path: Path | None) -> Path | None:
        return None if path is None else disk.directory / path.relative_to(self.directory)

    def _take_over(self, old: Disk, path: Path, copy: Path) -> None:
        copy.write_bytes(path.read_bytes())
        known = old._files.get(path.stat().st_ino)
        if known is not None:
            self._files[copy.stat().st_ino] = known
        if path in old._tables:
            self._tables[copy] = old._tables[path]

    def _left(self, path: Path) -> bytes | bytearray:
        found = self._files.get(path.stat().st_ino)
        if found is not None:
            return found.after_power_cut(self._random)
        data = path.read_bytes()
        durable = self._tables.get(path)
        if path.name != DATA_NAME or durable is None:
            return data
        return self._mixed(durable, data)

    def _mixed(self, durable: bytes, now: bytes) -> bytes:
        """Pages of both; each has reached the disk, or not."""
        fate = self._random.random()
        if fate < 0.25:
            return durable
        if fate < 0.35:
            return now
        size = max(len(durable), len(now))
        old, new = durable.ljust(size, b"\0"), now.ljust(size, b"\0")
        pages = []
        for at in range(0, size, PAGE_BYTES):
            page = new[at : at + PAGE_BYTES]
            if page != old[at : at + PAGE_BYTES] and self._random.random() < 0.5:
                page = old[at : at + PAGE_BYTES]
            pages.append(page)
        return b"".join(pages)[: max(len(durable), len(now) if self._random.random() < 0.5 else 0)]

    def _undo_names(self) -> None:
        undone = self._random.randint(0, len(self._names))
        for name in reversed(self._names[len(self._names) - undone :]):
            if name.target is not None and name.target.exists():
                if name.source is None:
                    name.target.unlink()
                elif name.source.parent.exists():  # else a later removal is durable, and so is this
                    os.replace(name.target, name.source)
                    self._move_tables(name.target, name.source)
            if name.replaced is not None:
                place = name.target or name.source
                assert place is not None
                if place.parent.exists():
                    os.replace(name.replaced, place)

    # -- what `_Files` does --------------------------------------------------------------------------------------------

    def opened(self, fd: int, *, is_new: bool) -> int:
        status = os.fstat(fd)
        known = self._files.get(status.st_ino)
        if known is None:
            self._files[status.st_ino] = _File(b"" if is_new else os.pread(fd, status.st_size, 0))
        self._descriptors[fd] = status.st_ino
        return fd

    def file(self, fd: int) -> _File | None:
        return self._files.get(self._descriptors.get(fd, -1))

    def closed(self, fd: int) -> bool:
        """-> whether it was open: what a killed server leaves behind is closed here, and once."""
        return self._descriptors.pop(fd, None) is not None

    def close_all(self) -> None:
        """Close what a killed server has left open."""
        for fd in list(self._descriptors):
            os.close(fd)
        self._descriptors.clear()

    def made(self, path: Path) -> None:
        self._names.append(_Name(None, path, None))

    def keep(self, path: Path) -> Path | None:
        """Keep the file that is about to be replaced or removed."""
        if not path.is_file():
            return None
        self._kept += 1
        kept = self._kept_folder / str(self._kept)
        os.link(path, kept)
        return kept

    def moved(self, source: Path, target: Path, replaced: Path | None) -> None:
        self._names.append(_Name(source, target, replaced))
        self._move_tables(source, target)

    def _move_tables(self, source: Path, target: Path) -> None:
        """A folder with LMDB's file was renamed."""
        for path in [path for path in self._tables if path.is_relative_to(source)]:
            self._tables[target / path.relative_to(source)] = self._tables.pop(path)

    def removed(self, path: Path, kept: Path | None) -> None:
        self._names.append(_Name(path, None, kept))

    def synced_directory(self, path: Path) -> None:
        self._names = [name for name in self._names if path not in (_parent(name.source), _parent(name.target))]


def _parent(path: Path | None) -> Path | None:
    return None if path is None else path.parent


class _Files(OsFiles):
    """Real files, with what a `Disk` says about them."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def create(self, path: Path, /) -> int:
        disk = self._disk
        disk.step("create")
        was_there = path.exists()
        fd = disk.opened(super().create(path), is_new=not was_there)
        if was_there:
            file = disk.file(fd)
            assert file is not None
            file.unsynced.append((0, None))
        else:
            disk.made(path)
        return fd

    def open_update(self, path: Path, /) -> int:
        self._disk.step("open")
        return self._disk.opened(super().open_update(path), is_new=False)

    def open_read(self, path: Path, /) -> int:
        self._disk.step("open")
        return self._disk.opened(super().open_read(path), is_new=False)

    def close(self, fd: int, /) -> None:
        if self._disk.closed(fd):
            os.close(fd)

    def close_deleted(self, fd: int, /) -> None:
        self.close(fd)  # in no other thread: a simulation has one

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        disk = self._disk
        disk.step("write")
        if disk.free is not None:
            over = max(min(len(data), os.fstat(fd).st_size - position), 0)
            if disk.free <= 0 and not over:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: over + max(disk.free, 0)]
            disk.free -= len(data) - over
        size = os.pwrite(fd, data, position)
        self._note(fd, position, bytes(data[:size]))
        return size

    def _note(self, fd: int, at: int, data: bytes) -> None:
        file = self._disk.file(fd)
        if file is not None:
            file.unsynced.append((at, data))

    def sync_apart(self, fd: int, /) -> None:
        self.sync(fd)

    def sync(self, fd: int, /) -> None:
        file = self._disk.file(fd)
        self._disk.wait()
        try:
            self._disk.step("sync")
        except OSError:
            if file is not None:
                file.forget()
            raise
        if file is not None:
            file.sync()

    def truncate(self, fd: int, size: int, /) -> None:
        self._disk.step("truncate")
        os.ftruncate(fd, size)
        file = self._disk.file(fd)
        if file is not None:
            file.unsynced.append((size, None))

    def make_directory(self, path: Path, /) -> None:
        self._disk.step("make_directory")
        super().make_directory(path)

    def rename(self, source: Path, target: Path, /) -> None:
        disk = self._disk
        disk.step("rename")
        replaced = disk.keep(target)
        super().rename(source, target)
        disk.moved(source, target, replaced)

    def unlink(self, path: Path, /) -> None:
        disk = self._disk
        disk.step("unlink")
        kept = disk.keep(path)
        super().unlink(path)
        disk.removed(path, kept)

    def sync_directory(self, path: Path, /) -> None:
        self._disk.step("sync_directory")
        self._disk.synced_directory(path)

    def free_bytes(self, path: Path, /) -> int:
        return TOTAL_BYTES if self._disk.free is None else max(self._disk.free, 0)

    def total_bytes(self, path: Path, /) -> int:
        return TOTAL_BYTES


def state_file(directory: Path) -> Path:
    return directory / STATE_DIRECTORY / DATA_NAME
