"""Makes tables from a log: for a check, a repair, a replay, and the end of the log in a compaction.

Memory is flat, as in recovery: the transaction is committed every 32 MB of log, and dead rows are purged, so that LMDB
uses their pages again.
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
from riverbed.store.recovery import replay
from riverbed.store.recovery.draft_tables import DraftTables
from riverbed.store.recovery.replay import Execute, RecoveryReport
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.purge import purge, purge_all

_PURGE_BYTES: Final = 16 << 20
# Of rows that wait in memory to reach the tables together, so that those of one of many streams are neighbours there:
# a thousand streams take a tenth less time than with as many rows as a server lets wait.
WAITING_BYTES: Final = 16 << 20
# How many bytes of pages a byte of log may make, and how many bytes there are besides.
_PAGES_A_LOGGED_BYTE: Final = 3
_CHURN_BYTES: Final = 64 << 20
# Left for other users of the disk.
_MIN_FREE_BYTES: Final = 32 << 20


def room_for_tables(log_bytes: int) -> int:
    """How many bytes of disk the tables of a log of `log_bytes` may take."""
    return _PAGES_A_LOGGED_BYTE * log_bytes + _CHURN_BYTES


class TablesFromLog:
    """The tables in `directory`/state, new or not, on which a log is executed.

    A context manager; the caller keeps or deletes what is in `directory`.
    """

    def __init__(
        self,
        directory: Path,
        execute: Execute,
        files: Files,
        *,
        map_bytes: int = DEFAULT_MAP_BYTES,
        is_draft: bool = True,
    ) -> None:
        """With `is_draft` the tables are used only when `commit` or `make_durable` has returned: see `DraftTables`."""
        self.directory = directory
        self.tables = DraftTables(directory, map_bytes) if is_draft else Tables(directory, map_bytes)
        self.txn = WriteTxn(self.tables)
        for db in self.txn.databases:
            db.let_rows_wait(WAITING_BYTES)
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
        """How many commands were executed so far."""
        return self._report.commands

    def replay(self, batches: Iterable[Batch], executed: Callable[[int], None] = ignore) -> None:
        """Execute `batches`; `executed` is called with the bytes of each.

        Raises ReplayError when a command does not fit, StoreError when the disk gets full, lmdb.Error, OSError, what a
        handler with a bug raises, and what reading raises.
        """
        replay.replay(self._purged(batches, executed), self.txn, self._execute, self._report)

    def try_replay(self, batches: Iterable[Batch], executed: Callable[[int], None]) -> None:
        """As `replay`, but any error of a handler becomes a ReplayError."""
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
                    raise StoreError(f"the disk of {self.directory.absolute()} is nearly full")

    def commit(self, position: LogPosition) -> None:
        """Commit the tables at `position`, durably and without dead rows."""
        purge_all(self.txn, position)
        self.make_durable()

    def make_durable(self) -> None:
        """Have the disk hold all commits.  Raises lmdb.Error."""
        self.tables.make_durable()
