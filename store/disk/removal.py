"""Deletes large files a piece at a time, so that the disk serves others in between.

While a file system frees all that a file has, what others write and sync there waits: clients of a busy server waited
30 to 100 ms for a gigabyte that was deleted at once, and 6 ms for pieces.

The name goes first, as always.  A file that has another name (a backup may be a hard link), or that anything else has
open, is left whole: the file system frees it when the last of its users closes it.  Our own users close such files with
`close_file`, which has a thread free them in pieces.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.locks.leases import Others, other_users
from riverbed.store.disk.real_files import is_there

# Freeing a piece takes some 3 ms; with the pause that is about a gigabyte a second.
PIECE_BYTES: Final = 16 << 20
PAUSE_S: Final = 0.01
# To delete a tree; each file that another process makes in it meanwhile costs one.
_TRIES: Final = 10

# Called with the seconds to wait; -> whether other work need not be spared any more: the rest is freed at once then.
Wait = Callable[[float], bool | None]


def remove_file(path: Path, wait: Wait = time.sleep) -> None:
    """Delete a file; `wait` is called between two pieces.  Raises OSError."""
    _remove(path, None, wait)


def remove_tree(path: Path, wait: Wait = time.sleep) -> None:
    """Delete a directory and all that is in it, following no links; what cannot be deleted stays.

    A process that has worked in it, and is about to end, may make a few more files meanwhile: they are deleted, too.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            for _, _, names, directory in os.fwalk(path):
                for name in names:
                    with contextlib.suppress(OSError):
                        _remove(name, directory, wait)
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            if not is_there(path):
                break


def close_file(fd: int) -> None:
    """Close a file that others may have deleted: a thread frees what only this descriptor keeps.  Raises OSError.

    The thread goes on until the process ends, and no end waits for it.
    """
    status = os.fstat(fd)
    if not status.st_nlink and _is_large(status):
        with contextlib.suppress(RuntimeError):  # the system has no thread for us
            _unused().put(fd)
            return
    os.close(fd)


def start_thread() -> None:
    """Start the thread of `close_file` now: where memory is short, starting one may take for ever."""
    with contextlib.suppress(RuntimeError, MemoryError):
        _unused()


@functools.cache
def _unused() -> queue.SimpleQueue[int]:
    """Descriptors of files without a name, for the thread that closes them."""
    descriptors = queue.SimpleQueue[int]()

    def run() -> None:
        while True:
            with contextlib.suppress(OSError):
                _close_unused(descriptors.get())

    threading.Thread(target=run, name="freeing files", daemon=True).start()
    return descriptors


def _close_unused(fd: int) -> None:
    """Raises OSError with the file closed: where it cannot be opened again, it is freed at once."""
    try:
        writing = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)
    try:
        _free(writing, time.sleep)
    finally:
        os.close(writing)


def _remove(name: str | Path, directory: int | None, wait: Wait) -> None:
    """Delete a file in the directory of that descriptor, or where its path says.  Raises OSError."""
    with _opened_if_large(name, directory) as fd:
        os.unlink(name, dir_fd=directory)
        if fd is not None:
            _free(fd, wait)


@contextlib.contextmanager
def _opened_if_large(name: str | Path, directory: int | None) -> Iterator[int | None]:
    """The descriptor of a file that is worth freeing in pieces; None for all that cannot be opened, too."""
    fd = None
    with contextlib.suppress(OSError):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if _is_large(status):
            fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _is_large(status: os.stat_result) -> bool:
    """Whether it is a file of more than a piece; holes do not count."""
    return stat.S_ISREG(status.st_mode) and _allocated(status) > PIECE_BYTES


def _allocated(status: os.stat_result) -> int:
    """How many bytes of the disk it has; POSIX counts them in blocks of 512."""
    return status.st_blocks * 512


def _free(fd: int, wait: Wait) -> None:
    """Shorten a file that has no name any more, and no other user, to nothing."""
    with contextlib.suppress(OSError):  # closing it frees the rest
        status = os.fstat(fd)
        if status.st_nlink or other_users(fd) is not Others.NONE:
            return
        # with its holes, a file may be far longer than any disk
        step = max(PIECE_BYTES, status.st_size * PIECE_BYTES // max(_allocated(status), 1))
        for size in range(status.st_size - step, 0, -step):
            os.ftruncate(fd, size)
            if wait(PAUSE_S):
                return
