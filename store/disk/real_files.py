"""Refuses links, pipes and devices in a data directory.

A data directory may come from a stranger, in an archive or on a disk.  With a symbolic link in it we would write or
delete files elsewhere, and with a pipe we would wait for ever.  So the two directories that are opened for writing,
`state/` and that of the log, are searched before anything in them is opened, and files that are opened later are opened
without following links.  The data directory itself may be named by a link, and a disk may be mounted anywhere.

Hard links are not refused: a user who can make one may write the file anyway, and backups of a Redis's log are made of
hard links.

It also asks the system what Python does not: whether all of a file is durable, and lies where it can be read again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from struct import Struct
from typing import Final

from riverbed.store.disk.ownership import hand_over
from riverbed.store.errors import UnsafeFileError

# What a server and the tools make in a data directory is for the user that runs them alone.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

# Linux's request for the places of a file on the disk.  The head: the first byte that is asked for, how many, flags,
# the number of extents that are told, and of those that fit behind it.  An extent: its first byte, its length, flags.
_FS_IOC_FIEMAP: Final = 0xC020660B
_PLACES_HEAD: Final = Struct("=QQIII4x")
_EXTENT: Final = Struct("=Q8xQ16xI12x")
_MAX_EXTENTS: Final = 64
_LAST: Final = 0x1
_UNWRITTEN: Final = 0x800
_PIECE_BYTES: Final = 1 << 20

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link, which is never followed here; a directory may be a mount point instead",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_there(path: Path, *, follows: bool = True) -> bool:
    """Whether there is anything at `path`; of a link, what it leads to, unless `follows` is false.

    Raises OSError when the system cannot tell.  `os.path.lexists`, and `Path.exists` since Python 3.14, would say no
    then, and what cannot be looked at must not be taken for missing.
    """
    try:
        os.stat(path, follow_symlinks=follows)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_directory(path: Path) -> bool:
    """Whether `path` is, or leads to, a directory.  Raises OSError as `is_there` does."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def require_plain(directory: Path) -> None:
    """Raise UnsafeFileError unless `directory` is missing, or holds nothing but files and directories.

    A file may go meanwhile: the process of a rewrite that has outlived its server deletes what it wrote.
    """
    if not _is_of_kind(directory, stat.S_IFDIR):
        return
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                kind = stat.S_IFMT(path.lstat().st_mode)
                if kind not in (stat.S_IFDIR, stat.S_IFREG):
                    raise _unsafe(path, kind)


def require_directory(path: Path) -> None:
    """Raise UnsafeFileError when anything but a directory is at `path`."""
    _is_of_kind(path, stat.S_IFDIR)


def require_only(path: Path, names: Collection[str]) -> None:
    """Raise UnsafeFileError when anything but a directory is at `path`, or one in which there is more than `names`.

    For a directory that is about to be deleted.
    """
    with contextlib.suppress(FileNotFoundError):  # a thread may be about to delete it
        for name in os.listdir(path) if _is_of_kind(path, stat.S_IFDIR) else ():
            if name not in names:
                raise UnsafeFileError(f"{path / name} is none of Riverbed's files: move it away")


def require_file(path: Path) -> None:
    """Raise UnsafeFileError when anything but a file is at `path`."""
    _is_of_kind(path, stat.S_IFREG)


def make_directory(path: Path) -> None:
    """Make `path` and what is missing above it, each for the user in whose folder it is; nothing when it exists."""
    if is_directory(path):
        return
    missing = [each for each in (path, *path.parents) if not is_there(each)]
    path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    for made in reversed(missing):
        fd = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            hand_over(fd, made.parent)
        finally:
            os.close(fd)


def open_file(path: Path, flags: int) -> int:
    """`os.open` for a file: follows no link, does not wait for the other end of a pipe, and is not inherited.

    What root makes in the folder of another user belongs to that user.  Raises UnsafeFileError for anything but a file,
    OSError.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EMLINK):
            require_file(path)
        raise
    _only_file(fd, path)
    if flags & os.O_CREAT:
        try:
            hand_over(fd, path.parent)
        except OSError:
            os.close(fd)
            raise
    return fd


def _only_file(fd: int, path: Path) -> int:
    """`fd`, if a file is open there; else it is closed.  Raises UnsafeFileError."""
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise _unsafe(path, kind)
    return fd


def read_file(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of a file.  Raises UnsafeFileError for anything but a file, OSError."""
    with open(open_file(path, os.O_RDONLY), "rb") as file, naming(path):
        return file.read(most_bytes)


def read_named_file(path: Path, most_bytes: int) -> bytes:
    """As `read_file`, for a file that a person has named: links to it are followed."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(_only_file(fd, path), "rb") as file, naming(path):
        return file.read(most_bytes)


def sync_whole(fd: int) -> None:
    """Make a file or a directory durable, with all that the system knows of it.  Raises OSError."""
    # On macOS fsync() stops at the drive's own cache; F_FULLFSYNC, which not all file systems know, is what survives a
    # power cut.
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
        else:
            return
    os.fsync(fd)


def has_refused_places(fd: int, begin: int, end: int) -> bool:
    """Whether bytes from `begin` to `end` of a synced file will be zeros, as the disk has once refused to write them.

    ext4 gives new bytes their places on the disk, and marks these as never written until they are.  After the disk has
    refused them, it writes them to the same places as often as they are written again, and the mark stays: they can be
    read for as long as the system has them in memory.  Places that are read as zeros lose nothing: xfs marks those that
    LMDB has passed over, as it does not write a page that is free again.

    The file is open for reading.  False where the system cannot tell.  Raises OSError.

    Source: `fiemap` in the documentation of Linux's file systems.
    """
    while begin < end:
        request = bytearray(_PLACES_HEAD.size + _MAX_EXTENTS * _EXTENT.size)
        _PLACES_HEAD.pack_into(request, 0, begin, end - begin, 0, 0, _MAX_EXTENTS)
        try:
            fcntl.ioctl(fd, _FS_IOC_FIEMAP, request)
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return False
            raise
        told = _PLACES_HEAD.size + _PLACES_HEAD.unpack_from(request)[3] * _EXTENT.size
        extents = list(_EXTENT.iter_unpack(memoryview(request)[_PLACES_HEAD.size : told]))
        for first, length, flags in extents:
            if flags & _UNWRITTEN and not _are_zeros(fd, max(first, begin), min(first + length, end)):
                return True
        if not extents or extents[-1][2] & _LAST:
            break
        begin = max(begin + 1, extents[-1][0] + extents[-1][1])
    return False


def _are_zeros(fd: int, begin: int, end: int) -> bool:
    """Whether all bytes that a file has from `begin` to `end` are zeros.  Raises OSError."""
    while begin < end and (data := os.pread(fd, min(_PIECE_BYTES, end - begin), begin)):
        if data != bytes(len(data)):
            return False
        begin += len(data)
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError of a call on a descriptor name its file, as those of calls on paths do."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def _is_of_kind(path: Path, wanted: int) -> bool:
    """False when nothing is there.  Raises UnsafeFileError for another kind."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if kind != wanted:
        raise _unsafe(path, kind)
    return True


def _unsafe(path: Path, kind: int) -> UnsafeFileError:
    return UnsafeFileError(f"{path} is {_KINDS.get(kind, 'no file')}")
