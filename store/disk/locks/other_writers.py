"""Finds the other process that has a file open for writing.

The lock on a data directory keeps two of our servers apart, but a Redis does not know it.  The kernel tells whether any
process writes the file (`leases.py`).  Only then does this module search the descriptors of all processes for the name
of the writer.  Where there are no leases it finds no process.  On a file system of another machine a lease that is
refused says nothing (`remote.py`), and only a process of this machine whose descriptor is found counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.locks.leases import Others, other_writers
from riverbed.store.disk.locks.remote import remote_type
from riverbed.store.disk.real_files import open_file

_PROC: Final = Path("/proc")
# A process that was killed closes its files one after the other, the lock on the directory before the log.
_PATIENCE_S: Final = 1.0
_WAIT_S: Final = 0.01
_MAX_DESCRIPTORS: Final = 200_000


def writer_of(path: Path) -> str | None:
    """The process that has the file open for writing, for people: `redis-server (pid 17)`.

    None when there is none, or when the system does not report it.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while _is_being_written(path):
        if time.monotonic() > deadline:
            return next(_writers(path), "another process" if remote_type(path) is None else None)
        time.sleep(_WAIT_S)
    return None


def _is_being_written(path: Path) -> bool:
    try:
        fd = open_file(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return other_writers(fd) is Others.SOME
    finally:
        os.close(fd)


def _writers(path: Path) -> Iterator[str]:
    """The processes that have `path` open for writing, as far as we may look."""
    wanted = path.stat()
    looked = 0
    for process in _PROC.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for fd in os.listdir(process / "fd"):
                looked += 1
                if looked > _MAX_DESCRIPTORS:
                    return
                with contextlib.suppress(OSError):
                    found = (process / "fd" / fd).stat()
                    if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino) and _writes(process, fd):
                        yield f"{_name(process)} (pid {process.name})"
                        break


def _writes(process: Path, fd: str) -> bool:
    for line in (process / "fdinfo" / fd).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "flags":
            return int(value, 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _name(process: Path) -> str:
    return (process / "comm").read_text(errors="replace").strip()
