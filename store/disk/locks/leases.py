"""Asks the kernel whether any other descriptor has a file open, by a lease that is given back at once.

On Linux the kernel refuses a read lease on a file that is open for writing anywhere, and a write lease on a file that
is open anywhere else.  Other systems, and some file systems, have no leases.  Those of other machines refuse them for
reasons of their own, see `remote.py`.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import signal
from typing import Final

_SET_LEASE: Final[int | None] = getattr(fcntl, "F_SETLEASE", None)
_SET_SIGNAL: Final[int | None] = getattr(fcntl, "F_SETSIG", None)


class Others(enum.Enum):
    """What the kernel says of the other descriptors of a file."""

    NONE = enum.auto()
    SOME = enum.auto()
    UNKNOWN = enum.auto()  # the system or the file system has no leases, or the file is another user's


def other_writers(fd: int) -> Others:
    """Whether the file is open for writing somewhere; `fd` is open for reading only."""
    return _others(fd, fcntl.F_RDLCK)


def other_users(fd: int) -> Others:
    """Whether the file is open, or mapped into memory, by any other descriptor."""
    return _others(fd, fcntl.F_WRLCK)


def _others(fd: int, kind: int) -> Others:
    if _SET_LEASE is None or _SET_SIGNAL is None:
        return Others.UNKNOWN
    try:
        # a process that opens the file meanwhile waits until the lease is given back; the signal for that does nothing
        fcntl.fcntl(fd, _SET_SIGNAL, signal.SIGURG)
        fcntl.fcntl(fd, _SET_LEASE, kind)
        fcntl.fcntl(fd, _SET_LEASE, fcntl.F_UNLCK)
    except OSError as error:
        return Others.SOME if error.errno == errno.EAGAIN else Others.UNKNOWN
    return Others.NONE
