"""The lock that lets only one process serve a data directory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.locks.flock import hold_directory
from riverbed.store.disk.locks.serving import is_served
from riverbed.store.disk.real_files import is_there
from riverbed.store.errors import LockedError, StoreError
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME

# A tool that asks whether a server runs holds the lock for a moment, a tool that reads an archive for longer.
_PATIENCE_S: Final = 2.0
_WAIT_S: Final = 0.01


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Hold the directory for this process.  Raises LockedError, StoreError when it is a snapshot, OSError."""
    if all(is_there(directory / name) for name in (MANIFEST_NAME, DATA_NAME)):
        raise StoreError(
            f"{directory} is a snapshot, which never changes; `riverbed restore` makes a data directory of it"
        )
    fd = _hold(directory)
    try:
        yield
    finally:
        os.close(fd)


def _hold(directory: Path) -> int:
    """-> a descriptor that holds the lock.  Waits for readers only.  Raises LockedError."""
    deadline = time.monotonic() + _PATIENCE_S
    while (fd := hold_directory(directory)) is None:
        if is_served(directory):
            raise LockedError(f"{directory} is in use by another process")
        if time.monotonic() > deadline:
            raise LockedError(f"{directory} is being read by another process")
        time.sleep(_WAIT_S)
    return fd
