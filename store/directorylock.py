"""One process serves a data directory, and a lock on it says so."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from store.errors import LockedError, StoreError
from store.snapshot import MANIFEST_NAME
from store.tables import DATA_NAME


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Hold the directory for this process.  Raises LockedError, StoreError when it is a snapshot, OSError."""
    if all((directory / name).exists() for name in (MANIFEST_NAME, DATA_NAME)):
        raise StoreError(
            f"{directory} is a snapshot, which never changes; `riverbed restore` makes a data directory of it"
        )
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{directory} is in use by another process") from None
        yield
    finally:
        os.close(fd)
