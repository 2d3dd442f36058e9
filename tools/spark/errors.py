"""Errors of the data source.  Each text is one line that says what to do.  Spark shows it to the user unchanged.

Keys, and names of snapshots and folders, may be a stranger's, so that what a terminal would obey is escaped here.
"""

from __future__ import annotations

from typing import Final

import lmdb

from riverbed.store.errors import StoreError
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.tools.console.keytext import shown

# What a store or a snapshot raises that cannot be read, or has rows that no store writes.
UNREADABLE: Final = (StoreError, lmdb.Error, OSError, OverflowError, *DECODE_ERRORS)


class SourceError(Exception):
    """A read or write that cannot be done because of an option, a path, a schema or the data."""

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))


class OptionError(SourceError):
    """An option that is unknown, or has a value it cannot have."""


class DataLossError(SourceError):
    """Entries that the user asked for are gone: they were trimmed, or their snapshot was deleted."""


class MalformedValueError(SourceError):
    """A value that does not fit its column, in mode FAILFAST."""
