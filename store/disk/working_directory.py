"""Temporary directories: each is locked while a process works in it, and deleted afterwards.

A killed process leaves its directory behind.  The next process that works in the same folder deletes it.  The lock,
which ends with the process, shows whether a process is still at work.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from riverbed.store.disk.locks.flock import hold_directory
from riverbed.store.disk.real_files import DIRECTORY_MODE, is_there
from riverbed.store.disk.removal import Wait, remove_tree


@contextlib.contextmanager
def working_directory(folder: Path, prefix: str) -> Iterator[Path]:
    """A new directory in `folder`, deleted at the end unless it was renamed.  Raises OSError.

    First deletes the directories with this prefix in which no process works any more.
    """
    clear_leftovers(folder, prefix)
    path, fd = _make(folder, prefix)
    try:
        yield path
    finally:
        remove_tree(path)
        os.close(fd)


def _make(folder: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = name_for(folder, prefix)
        path.mkdir(DIRECTORY_MODE)
        fd = _lock(path)
        # A process that deletes leftovers may have seen the directory before it was locked.
        if fd is not None and is_there(path):
            return path, fd
        if fd is not None:
            os.close(fd)


def name_for(folder: Path, prefix: str) -> Path:
    """A new name in `folder`, which `clear_leftovers` finds too."""
    return folder / f"{prefix}{secrets.token_hex(4)}"


def clear_leftovers(folder: Path, prefix: str, wait: Wait = time.sleep) -> int:
    """Delete what killed processes have left in `folder`; -> how many directories that was.  Raises OSError.

    `wait` is called between two pieces of a large file, see `removal.py`.
    """
    cleared = 0
    for name in os.listdir(folder):
        if not name.startswith(prefix):
            continue
        try:
            fd = _lock(folder / name)
        except OSError:  # another user's, or no directory at all
            continue
        if fd is not None:
            remove_tree(folder / name, wait)
            os.close(fd)
            cleared += 1
    return cleared


def _lock(path: Path) -> int | None:
    """As `hold_directory`; also None when the directory is gone."""
    try:
        return hold_directory(path, may_be_link=False)
    except FileNotFoundError:
        return None
