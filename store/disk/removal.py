"""Deletes large files a piece at a time, so that the disk serves others in between.

While a file system frees all that a file has, what others write and sync there waits: clients of a busy server waited
30 to 100 ms for a gigabyte that was deleted at once, and 6 ms for pieces.

The name goes first, as always.  A file that has another name (a backup may be a hard link), or that anything else has
open, is left whole: the file system frees it when the last of its users closes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.locks.leases import Others, other_users

# Freeing a piece takes some 3 ms; with the pause that is about a gigabyte a second.
PIECE_BYTES: Final = 16 << 20
PAUSE_S: Final = 0.01

Wait = Callable[[float], object]


def remove_file(path: Path, wait: Wait = time.sleep) -> None:
    """Delete a file; `wait` is called between two pieces with the seconds to wait.  Raises OSError."""
    _remove(path, None, wait)


def remove_tree(path: Path, wait: Wait = time.sleep) -> None:
    """Delete a directory and all that is in it, following no links; what cannot be deleted stays."""
    with contextlib.suppress(OSError):
        for _, _, names, directory in os.fwalk(path):
            for name in names:
                with contextlib.suppress(OSError):
                    _remove(name, directory, wait)
    shutil.rmtree(path, ignore_errors=True)


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
        if stat.S_ISREG(status.st_mode) and status.st_size > PIECE_BYTES:
            fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _free(fd: int, wait: Wait) -> None:
    """Shorten a file that has no name any more, and no other user, to nothing."""
    with contextlib.suppress(OSError):  # closing it frees the rest
        status = os.fstat(fd)
        if status.st_nlink or other_users(fd) is not Others.NONE:
            return
        for size in range(status.st_size - PIECE_BYTES, 0, -PIECE_BYTES):
            os.ftruncate(fd, size)
            wait(PAUSE_S)
