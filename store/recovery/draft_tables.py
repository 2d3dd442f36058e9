"""Tables that are made from nothing, in a place where no server or tool looks before they are complete.

Their commits need not be durable one by one: what a kill or a power cut leaves of them is deleted.  So a commit does
not wait for the disk, and a thread syncs it while the next one is made.  Only one commit is ever unsynced, as otherwise
gigabytes would wait for the disk at the end, and the syncs of a server beside would wait with them.
"""

from __future__ import annotations

from pathlib import Path

from riverbed.store.disk.beside import WorkBeside
from riverbed.store.tables.environment import Tables


class DraftTables(Tables):
    """The tables in `directory`/state, which count for nothing before `make_durable`."""

    def __init__(self, directory: Path, map_bytes: int) -> None:
        """Raises as `Tables` does."""
        super().__init__(directory, map_bytes, is_draft=True)
        self._syncing = WorkBeside("tables to disk")

    def sync(self) -> None:
        """Begin to make the last commit durable.  Raises lmdb.Error when that failed for the one before."""
        self._syncing.begin(self._sync)

    def make_durable(self) -> None:
        """Make all commits durable.  Raises lmdb.Error, also when an earlier sync failed: the next would not tell."""
        self._syncing.wait()
        self._sync()

    def _sync(self) -> None:
        self.env.sync(True)

    def close(self, *, is_log_durable: bool = True) -> None:
        self._syncing.end()  # a thread must not use what is closed
        super().close(is_log_durable=is_log_durable)
