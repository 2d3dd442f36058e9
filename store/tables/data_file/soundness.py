"""Refuses a data file whose pages are broken, before a read of them kills the process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.disk.real_files import is_there
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import LAST_WORDS_NAME
from riverbed.store.tables.data_file.pages import walk_pages
from riverbed.store.tables.data_file.power_loss import has_magic

# Walks over pages, if the walk before has found damage, and the time between two.
_WALKS: Final = 4
_WALK_AGAIN_S: Final = 0.05


def has_ended_a_server(directory: Path) -> bool:
    """Whether the server of `directory` was ended by a fatal error, as a read of a broken page is one.

    Raises OSError.
    """
    try:
        return (directory / LAST_WORDS_NAME).stat().st_size > 0
    except FileNotFoundError:
        return False


def refuse_broken_pages(data: Path, most_bytes: int) -> None:
    """Raise CorruptionError if pages are broken, before LMDB reads them: that may kill the process.

    A file of more than `most_bytes` is believed.  LMDB itself refuses a file that is none of its own.
    """
    size = data.stat().st_size if is_there(data) else 0
    if 0 < size <= most_bytes and has_magic(data):
        damage = _first_damage(data)
        if damage is not None:
            raise CorruptionError(str(data), None, f"{damage}; `riverbed check --repair` makes the tables again")


def refuse_broken_pages_in_use(env: lmdb.Environment, data: Path, most_bytes: int) -> None:
    """As `refuse_broken_pages`, of a file that a server may be writing, before any row is read."""
    if data.stat().st_size <= most_bytes and (damage := _lasting_damage(env, data)) is not None:
        raise CorruptionError(str(data), None, f"{damage}; `riverbed check` says more")


def require_whole(env: lmdb.Environment, data: Path) -> None:
    """Raise CorruptionError when pages are beyond the end of the file: reading such a page kills the process.

    Only a walk over all pages shows whether these pages are in use, or were allocated and not needed.  The walk
    takes a second for a million entries, so it is skipped if the file has room for every page.
    """
    if _lacking(env, data) is None:
        return
    damage = _lasting_damage(env, data)
    lacking = _lacking(env, data)
    if damage is not None and lacking is not None:
        size, needed = lacking
        reason = f"it has {size} bytes, and its meta page counts {needed}: it is cut off, or damaged ({damage})"
        raise CorruptionError(str(data), size, reason)


def _lacking(env: lmdb.Environment, data: Path) -> tuple[int, int] | None:
    """-> the file's length, and the longer one that its pages need; None when it has room for every page."""
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    size = data.stat().st_size
    return None if size >= needed else (size, needed)


def _lasting_damage(env: lmdb.Environment, data: Path) -> str | None:
    """As `_first_damage`, of a file that a server may be writing.

    While a reader is open, the server uses no page again that the walk may reach, but the walk may meet a file that is
    about to grow, or half of a new meta page.
    """
    damage = None
    with env.begin():
        for tries_left in reversed(range(_WALKS)):
            damage = _first_damage(data)
            if damage is None or not tries_left:
                break
            time.sleep(_WALK_AGAIN_S)
    return damage


def _first_damage(data: Path) -> str | None:
    """The first damage of the pages that are in use, None when there is none."""
    return next(iter(walk_pages(data)), None)
