"""Whether a server holds a data directory, and how to read the tables of one that no server holds.

LMDB's readers register in `lock.mdb`, so that a server does not use the pages again that they read.  A reader that may
not write that file, or finds none, cannot register.  While no server runs, such a reader keeps servers from starting
instead, and leaves nothing behind.  Other readers register, and a server may start at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

from riverbed.store.disk.locks.flock import hold_directory
from riverbed.store.layout import LOCK_NAME


def is_served(directory: Path) -> bool:
    """Whether a server, or a tool that writes, holds the directory at this moment.  Raises OSError."""
    fd = hold_unserved(directory)
    if fd is None:
        return True
    os.close(fd)
    return False


def hold_unserved(directory: Path) -> int | None:
    """-> a descriptor that keeps servers from starting on the directory; None when one holds it.  Raises OSError."""
    return hold_directory(directory, is_shared=True)


def hold_instead_of_registering(directory: Path, state: Path) -> int | None:
    """As `hold_unserved`, for a reader of the tables in `state`; also None when it can register with LMDB."""
    as_effective_user = os.access in os.supports_effective_ids
    can_register = os.access(state / LOCK_NAME, os.W_OK, effective_ids=as_effective_user)
    return None if can_register else hold_unserved(directory)
