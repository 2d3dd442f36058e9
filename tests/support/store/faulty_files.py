"""A file system in memory that fails on request and forgets at a crash what nobody synced.

    files = FaultyFiles()
    files.free = 100                 # the hundred-and-first byte meets ENOSPC, after a short write
    files.write_limit = 7            # no write takes more than seven bytes
    files.fail("sync", errno.EIO)    # the next one; fail("rename", errno.EIO, after=2) is the third from now
    after = files.crash()            # a new one, with what was durable

What is durable: what a file's successful `sync`s found written since the one before, and its length; the names of a
directory as of its last `sync_directory`.  A `sync` that fails writes nothing, and forgets what it had to write, as
Linux does: the bytes are still read, the next `sync` succeeds, and a crash takes them, also when they were written
again meanwhile: as on ext4, they have to be written to another file.
Names are a journal's affair: a failure is made up for by the next success.

A crash may keep more than what is durable: `crash(kept=n)` keeps up to n bytes beyond, `crash(names=True)` the names of
now.  All faults of the tests live here; the code under test has no hooks.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

TOTAL_BYTES = 1 << 40
# A batch of as much meets a full disk also where the log was padded before.
BEYOND_PADDING = 2 << 20


class Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self._dirty: list[tuple[int, int]] = []  # from, to
        self._refused: list[tuple[int, int]] = []  # by the disk, which takes nothing in these places any more

    def write(self, data: bytes | memoryview, at: int) -> None:
        self.data[at : at + len(data)] = data
        self._dirty.append((at, at + len(data)))

    def cut(self, size: int) -> None:
        del self.data[size:]
        for places in (self._dirty, self._refused):
            places[:] = [(start, min(end, size)) for start, end in places if start < size]

    def sync(self) -> None:
        size = len(self.data)
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))
        before = self.durable.copy()
        for start, end in self._dirty:
            self.durable[start:end] = self.data[start:end]
        for start, end in self._refused:
            self.durable[start:end] = before[start:end]
        self._dirty.clear()

    def after_crash(self, kept: int) -> bytearray:
        """What is durable, and the first `kept` bytes of what was written since."""
        disk = self.durable.copy()
        for start, end in self._dirty:
            end = min(end, start + kept, len(self.data))
            if start > len(disk) or start >= end:
                break
            disk[start:end] = self.data[start:end]
            kept -= end - start
        return disk

    def copy(self) -> Inode:
        other = Inode()
        other.data, other.durable = self.data.copy(), self.durable.copy()
        other._dirty, other._refused = self._dirty.copy(), self._refused.copy()
        return other

    def refuse(self) -> None:
        """The disk does not take what was written, and no sync tries again."""
        self._refused += self._dirty
        self._dirty.clear()

    def has_refused(self, begin: int, end: int) -> bool:
        return any(start < end and begin < stop for start, stop in self._refused)


class FaultyFiles:
    """`store.disk.files.Files` in memory."""

    def __init__(self) -> None:
        self.free: int | None = None
        self.write_limit: int | None = None
        self.operations: list[str] = []
        self._faults: dict[str, dict[int, int]] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._directories: set[Path] = {Path("/")}
        self._open: dict[int, tuple[Inode, bool]] = {}
        self._next_fd = 1000

    # -- what tests do -------------------------------------------------------------------------------------------------

    def fail(self, operation: str, number: int, after: int = 0) -> None:
        """Let `operation` fail with errno `number`, once, when `after` more of it have succeeded."""
        self._faults.setdefault(operation, {})[self._counts.get(operation, 0) + after] = number

    def crash(self, kept: int = 0, *, names: bool = False) -> FaultyFiles:
        after = FaultyFiles()
        after._directories = set(self._directories)
        for path, inode in (self._names if names else self._durable_names).items():
            copy = after._names[path] = after._durable_names[path] = Inode()
            copy.durable = inode.after_crash(kept)
            copy.data = copy.durable.copy()
        return after

    def kill(self) -> FaultyFiles:
        """A new one as the next process finds it: with the page cache as it is, and without the faults."""
        after = FaultyFiles()
        after._directories = set(self._directories)
        copies: dict[Inode, Inode] = {}
        for names, kept in ((self._names, after._names), (self._durable_names, after._durable_names)):
            kept |= {path: copies.setdefault(inode, inode.copy()) for path, inode in names.items()}
        return after

    def forgive(self) -> None:
        """No fault that was asked for and has not come yet will."""
        self._faults.clear()

    def paths(self) -> list[Path]:
        """Of all files."""
        return list(self._names)

    def data(self, path: Path) -> bytearray:
        """The contents of a file, to be looked at or damaged in place."""
        return self._names[path].data

    def put(self, path: Path, data: bytes | bytearray) -> None:
        """A file as if it had always been there."""
        inode = self._names[path] = self._durable_names[path] = Inode()
        inode.data, inode.durable = bytearray(data), bytearray(data)
        self._directories.update(path.parents)

    def remove(self, path: Path) -> None:
        del self._names[path]

    def copy(self) -> FaultyFiles:
        """Another one with the same contents, all of it durable."""
        other = FaultyFiles()
        for path, inode in self._names.items():
            other.put(path, inode.data)
        return other

    @property
    def open_count(self) -> int:
        return len(self._open)

    # -- Files ---------------------------------------------------------------------------------------------------------

    def create(self, path: Path, /) -> int:
        self._step("create")
        if path.parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        inode = self._names.get(path)
        if inode is None:
            inode = self._names[path] = Inode()
        inode.cut(0)
        return self._descriptor(inode, writes=True)

    def open_update(self, path: Path, /) -> int:
        self._step("open")
        return self._descriptor(self._inode(path), writes=True)

    def open_read(self, path: Path, /) -> int:
        self._step("open")
        return self._descriptor(self._inode(path), writes=False)

    def close(self, fd: int, /) -> None:
        del self._open[fd]  # also when it fails
        self._step("close")

    def close_deleted(self, fd: int, /) -> None:
        self.operations.append("close_deleted")
        self.close(fd)

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        self._step("write")
        inode = self._written(fd)
        assert position <= len(inode.data), "a file has no holes"
        size = len(data) if self.write_limit is None else min(len(data), self.write_limit)
        over = min(size, len(inode.data) - position)
        if self.free is not None:
            if self.free == 0 and size and not over:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            size = min(size, over + self.free)
            self.free -= size - over
        inode.write(data[:size], position)
        return size

    def read_at(self, fd: int, size: int, position: int, /) -> bytes:
        self._step("read_at")
        return bytes(self._open[fd][0].data[position : position + size])

    def next_data(self, fd: int, position: int, /) -> int:
        return position  # no file has holes

    def sync(self, fd: int, /) -> None:
        inode, _ = self._open[fd]
        try:
            self._step("sync")
        except OSError:
            inode.refuse()
            raise
        inode.sync()

    def sync_apart(self, fd: int, /) -> None:
        self.sync(fd)

    def truncate(self, fd: int, size: int, /) -> None:
        self._step("truncate")
        inode, _ = self._open[fd]
        if self.free is not None:
            self.free += len(inode.data) - size
        inode.cut(size)

    def size(self, fd: int, /) -> int:
        return len(self._open[fd][0].data)

    def exists(self, path: Path, /) -> bool:
        return path in self._names or path in self._directories

    def names(self, directory: Path, /) -> list[str]:
        return [path.name for path in self._names if path.parent == directory]

    def make_directory(self, path: Path, /) -> None:
        self._step("make_directory")
        self._directories.update((path, *path.parents))

    def remove_directory(self, path: Path, /) -> None:
        self._step("remove_directory")
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self._directories.remove(path)

    def rename(self, source: Path, target: Path, /) -> None:
        self._step("rename")
        self._names[target] = self._inode(source)
        del self._names[source]

    def has_refused_places(self, fd: int, begin: int, end: int, /) -> bool:
        inode, writes = self._open[fd]
        assert not writes, "a file that is open for writing alone cannot be read"
        return inode.has_refused(begin, end)

    def forget(self, fd: int, begin: int, size: int, /) -> None:
        assert begin + size <= len(self._open[fd][0].durable)

    def unlink(self, path: Path, /) -> None:
        self._step("unlink")
        self._inode(path)
        del self._names[path]

    def sync_directory(self, path: Path, /) -> None:
        self._step("sync_directory")
        for name in [name for name in self._durable_names if name.parent == path]:
            del self._durable_names[name]
        self._durable_names |= {name: inode for name, inode in self._names.items() if name.parent == path}

    def free_bytes(self, path: Path, /) -> int:
        self._step("free_bytes")
        return TOTAL_BYTES if self.free is None else self.free

    def total_bytes(self, path: Path, /) -> int:
        return TOTAL_BYTES

    # -- how it does that ----------------------------------------------------------------------------------------------

    def _step(self, operation: str) -> None:
        self.operations.append(operation)
        count = self._counts.get(operation, 0)
        self._counts[operation] = count + 1
        number = self._faults.get(operation, {}).pop(count, None)
        if number is not None:
            raise OSError(number, os.strerror(number))

    def _written(self, fd: int) -> Inode:
        inode, writes = self._open[fd]
        if not writes:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return inode

    def _inode(self, path: Path) -> Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _descriptor(self, inode: Inode, *, writes: bool) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = (inode, writes)
        return self._next_fd
