"""The few file operations the store needs, as an interface, and the operating system behind it.

Everything that must survive a crash goes through `Files`, so that tests can use a file system that fills up, writes
half, fails to sync or forgets what was not synced.  This module knows no format and makes no decision: errors are
`OSError`, as the system raised them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Protocol

from riverbed.store.disk.real_files import (
    has_refused_places,
    is_there,
    make_directory,
    naming,
    open_file,
    sync_whole,
)
from riverbed.store.disk.removal import close_file


class Files(Protocol):
    """What the log and the manifest do to files.  Every method raises OSError and retries nothing.

    Descriptors are plain numbers: one tick of the server is one `write_at` and one `sync`, and an object around the
    descriptor would cost a Python call on each.
    """

    def create(self, path: Path, /) -> int:
        """Open an empty file as `open_update` does: made when missing, emptied when not."""

    def open_read(self, path: Path, /) -> int: ...

    def open_update(self, path: Path, /) -> int:
        """Open for `write_at`, `truncate` and `sync`; the file must exist."""

    def close(self, fd: int, /) -> None: ...

    def close_deleted(self, fd: int, /) -> None:
        """Close a file that may have been deleted: what the system frees then, however long, delays no other work."""

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        """Write from byte `position` on, over what is there; returns how many bytes were written.

        They may be fewer than given.  No file has holes: `position` is at most its length.
        """

    def read_at(self, fd: int, size: int, position: int, /) -> bytes:
        """At most `size` bytes from `position`; fewer only where the file ends."""

    def next_data(self, fd: int, position: int, /) -> int:
        """The first byte from `position` on that is in no hole of a sparse file; the file's size without one."""

    def sync(self, fd: int, /) -> None:
        """Make contents and length durable."""

    def sync_apart(self, fd: int, /) -> None:
        """As `sync`, of a file that another thread syncs as well: each of the two is told of a write that failed."""

    def has_refused_places(self, fd: int, begin: int, end: int, /) -> bool:
        """Whether synced bytes from `begin` to `end` will be zeros, as the disk has once refused to write them.

        The file is open for reading.
        """

    def forget(self, fd: int, begin: int, size: int, /) -> None:
        """Have the system drop its copy of these durable bytes in memory; a hint.  Raises nothing."""

    def truncate(self, fd: int, size: int, /) -> None: ...

    def size(self, fd: int, /) -> int: ...

    def exists(self, path: Path, /) -> bool:
        """Whether anything is at `path`, be it a link.  What cannot be told raises OSError too."""

    def names(self, directory: Path, /) -> list[str]:
        """The names in `directory`, in no order."""

    def make_directory(self, path: Path, /) -> None:
        """Make `path` and what is missing above it; nothing happens when it exists."""

    def remove_directory(self, path: Path, /) -> None:
        """Remove an empty directory."""

    def rename(self, source: Path, target: Path, /) -> None:
        """Move `source` to `target`, replacing it in one step."""

    def unlink(self, path: Path, /) -> None: ...

    def sync_directory(self, path: Path, /) -> None:
        """Make the names made, moved and removed in `path` durable."""

    def free_bytes(self, path: Path, /) -> int:
        """How many bytes an unprivileged process may still write on the file system of `path`."""

    def total_bytes(self, path: Path, /) -> int:
        """The size of the file system of `path`."""


def _sync(fd: int, /) -> None:
    try:
        if sys.platform == "darwin":
            sync_whole(fd)
        else:
            os.fdatasync(fd)
    except OSError as error:
        _name(error, fd)
        raise


def _name(error: OSError, fd: int) -> None:
    """Have the error name the file, where the system tells which one it is."""
    with contextlib.suppress(OSError):
        error.filename = os.readlink(f"/proc/self/fd/{fd}")


def _read_at(fd: int, size: int, position: int, /) -> bytes:
    try:
        data = os.pread(fd, size, position)
    except OSError as error:
        _name(error, fd)
        raise
    if not data or len(data) == size:
        return data
    # A signal or the 2 GiB limit of one call may shorten a read in the middle of a file.
    parts = [data]
    got = len(data)
    while got < size and (data := os.pread(fd, size - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def _next_data(fd: int, position: int, /) -> int:
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole is left
            return max(position, os.fstat(fd).st_size)
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that knows no holes
            return position
        raise


class OsFiles:
    """`Files` on the operating system.  `write_at` is `os.pwrite` itself: no Python frame on the hot path.

    Opens only files.  Raises UnsafeFileError, an OSError, for links, pipes and devices.
    """

    write_at = staticmethod(os.pwrite)
    close = staticmethod(os.close)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(_sync)
    read_at = staticmethod(_read_at)
    next_data = staticmethod(_next_data)
    has_refused_places = staticmethod(has_refused_places)

    def create(self, path: Path, /) -> int:
        return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def open_read(self, path: Path, /) -> int:
        return open_file(path, os.O_RDONLY)

    def open_update(self, path: Path, /) -> int:
        return open_file(path, os.O_WRONLY)

    def close_deleted(self, fd: int, /) -> None:
        close_file(fd)

    def sync_apart(self, fd: int, /) -> None:
        try:  # Linux tells once of it for each time that the file was opened
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # another system, or too many files are open
            self.sync(fd)
            return
        try:
            self.sync(own)
        finally:
            os.close(own)

    def forget(self, fd: int, begin: int, size: int, /) -> None:
        if sys.platform != "darwin":
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, begin, size, os.POSIX_FADV_DONTNEED)

    def size(self, fd: int, /) -> int:
        return os.fstat(fd).st_size

    def exists(self, path: Path, /) -> bool:
        return is_there(path, follows=False)

    def names(self, directory: Path, /) -> list[str]:
        return os.listdir(directory)

    def make_directory(self, path: Path, /) -> None:
        make_directory(path)

    def remove_directory(self, path: Path, /) -> None:
        os.rmdir(path)

    def rename(self, source: Path, target: Path, /) -> None:
        os.replace(source, target)

    def unlink(self, path: Path, /) -> None:
        os.unlink(path)

    def sync_directory(self, path: Path, /) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with naming(path):
                sync_whole(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path, /) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: Path, /) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize
