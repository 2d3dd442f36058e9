"""Tables made from a log: for a check, a repair, a replay, and the end of the log in a compaction.

Memory is flat, as in recovery: what was executed is committed every 16 MB of log, and what it has deleted is purged, so
that LMDB uses the pages again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Self

import lmdb

from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import Files
from riverbed.store.errors import ReplayError, StoreError
from riverbed.store.log.reader import Batch
from riverbed.store.options import DEFAULT_MAP_BYTES
from riverbed.store.position import LogPosition
from riverbed.store.progress import ignore
from riverbed.store.recovery import replay as recovery
from riverbed.store.recovery.replay import Execute, RecoveryReport
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.purge import purge, purge_all

_PURGE_BYTES: Final = 16 << 20
# How many bytes of pages a byte of log may make, and what there is besides.
_PAGES_A_LOGGED_BYTE: Final = 3
_CHURN_BYTES: Final = 64 << 20
# Others need the disk too.
_MIN_FREE_BYTES: Final = 32 << 20


def room_for_tables(log_bytes: int) -> int:
    """How many bytes of disk the tables of such a log may take."""
    return _PAGES_A_LOGGED_BYTE * log_bytes + _CHURN_BYTES


class TablesFromLog:
    """The tables in `directory`/state, new or not, that a log is executed on.

    A context manager; what is in `directory` is the caller's to keep or delete.
    """

    def __init__(self, directory: Path, execute: Execute, files: Files) -> None:
        self.directory = directory
        self.tables = Tables(directory, DEFAULT_MAP_BYTES)
        self.txn = WriteTxn(self.tables)
        self.batch: Batch | None = None  # the one that is being executed
        self._execute = execute
        self._files = files
        self._report = RecoveryReport()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(lmdb.Error):  # a transaction that failed to commit is gone already
            self.txn.abort()
        self.tables.close()

    @property
    def commands(self) -> int:
        """Executed so far."""
        return self._report.commands

    def replay(self, batches: Iterable[Batch], executed: Callable[[int], None] = ignore) -> None:
        """Execute `batches`; `executed` is called with the bytes of each.

        Raises ReplayError when one does not fit, StoreError when the disk gets full, lmdb.Error, OSError, what a
        handler raises that has a bug, and what reading raises.
        """
        recovery.fold(self._purged(batches, executed), self.txn, self._execute, self._report)

    def try_replay(self, batches: Iterable[Batch], executed: Callable[[int], None]) -> None:
        """As `replay`, but whatever a handler raises is a ReplayError."""
        try:
            self.replay(batches, executed)
        except (StoreError, lmdb.Error, OSError):
            raise
        except Exception as error:  # a bug, or a log that no server of ours wrote: the place is what matters
            raise ReplayError(f"{type(error).__name__}: {error}") from error

    def _purged(self, batches: Iterable[Batch], executed: Callable[[int], None]) -> Iterator[Batch]:
        unpurged = 0
        for batch in batches:
            self.batch = batch
            yield batch
            executed(batch.size)
            unpurged += batch.size
            if unpurged >= _PURGE_BYTES:
                unpurged = 0
                purge(self.txn, lambda: False)
                if self._files.free_bytes(self.directory) < _MIN_FREE_BYTES:
                    raise StoreError(f"the disk of {self.directory} is nearly full")

    def commit(self, position: LogPosition) -> None:
        """Make the tables those of `position`, durably, without dead rows."""
        purge_all(self.txn, position)
        self.tables.env.sync(True)
