"""Locks on directories: a lock shows that a process works there, and ends with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from riverbed.store.disk.real_files import naming


def hold_directory(directory: Path, *, is_shared: bool = False, may_be_link: bool = True) -> int | None:
    """-> a descriptor that holds the lock until it is closed; None when another lock is in the way.  Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(directory, flags if may_be_link else flags | os.O_NOFOLLOW)
    try:
        with naming(directory):
            fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd
