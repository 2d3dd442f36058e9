"""Directories to work in: locked as long as a process works there, and gone afterwards.

A kill leaves one behind.  The next process that works in the same folder clears it away, and knows by the lock
whether another is still at work; the lock goes with the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from riverbed.store.disk.flock import hold_directory


@contextlib.contextmanager
def working_directory(folder: Path, prefix: str) -> Iterator[Path]:
    """A new directory in `folder`; it may be given another name, and stays then.  Raises OSError.

    Those with this prefix in which no process works any more are cleared away first.
    """
    clear_leftovers(folder, prefix)
    path, fd = _make(folder, prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _make(folder: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = name_for(folder, prefix)
        path.mkdir()
        fd = _lock(path)
        # A process that clears leftovers away may have seen it before it was locked.
        if fd is not None and path.exists():
            return path, fd
        if fd is not None:
            os.close(fd)


def name_for(folder: Path, prefix: str) -> Path:
    """A name that nothing has, and that is cleared away with the others."""
    return folder / f"{prefix}{secrets.token_hex(4)}"


def clear_leftovers(folder: Path, prefix: str) -> int:
    """Delete what killed processes have left in `folder`; -> how much that was.  Raises OSError."""
    cleared = 0
    for name in os.listdir(folder):
        if not name.startswith(prefix):
            continue
        try:
            fd = _lock(folder / name)
        except OSError:  # another user's, or no directory at all
            continue
        if fd is not None:
            shutil.rmtree(folder / name, ignore_errors=True)
            os.close(fd)
            cleared += 1
    return cleared


def _lock(path: Path) -> int | None:
    """As `hold_directory`; also None when the directory is gone."""
    try:
        return hold_directory(path, may_be_link=False)
    except FileNotFoundError:
        return None
