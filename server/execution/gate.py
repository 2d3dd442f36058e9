"""Knows why the server refuses commands of all clients just now, or runs none of them on the fast path.

    replication         a replica takes no writes, one without a link no reads; a primary may lack replicas
    the store           a disk that is nearly full, a log or tables that could not be written
    the start           what needs the state is refused until the log is loaded
    pauses, monitors    refuse nothing, but every command is checked for them

Each of these sets its own part, and calls `refresh`.  `admission.py` checks what a single client may not do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.table import Flag
from riverbed.server.errors import CommandError
from riverbed.store.errors import DISK_HAS_FAILED, LOGS_NOTHING, Refusal

if TYPE_CHECKING:
    from riverbed.store.engine import Engine

MISCONF: Final = {
    Refusal.DISK_NEARLY_FULL: "MISCONF The disk is nearly full. Commands that need space are refused until there is "
    "some again; reading, deleting and trimming go on.",
    Refusal.MAP_NEARLY_FULL: "MISCONF The tables have nearly reached lmdb-map-size. Commands that need space are "
    "refused until there is some again, or a restart with a larger one; reading, deleting and trimming go on.",
    Refusal.DISK_FULL: "MISCONF The disk is full. Writes are refused until there is space again; reads go on.",
    Refusal.MAP_FULL: "MISCONF The file of the tables can grow no more, see lmdb-map-size. Writes are refused until "
    "there is room again, or a restart with a larger one; reads go on.",
    Refusal.LOG_UNWRITTEN: "MISCONF Errors writing to the AOF file: the last write failed and was undone. Writes are "
    "refused until the next attempt; reads go on.",
    Refusal.TABLES_UNWRITTEN: "MISCONF Errors writing to the disk: the last checkpoint failed, see the server's log. "
    "Writes are refused until the next attempt; reads go on.",
    Refusal.TABLES_FAILED: "MISCONF Errors writing to the disk: the tables could not be synced. Writes are refused "
    "until a restart, or until RIVERBED REPAIR has made the tables again; reads go on.",
    Refusal.LOG_FAILED: "MISCONF Errors writing to the AOF file: the log could not be written or synced. Writes are "
    "refused until a restart; reads go on.",
}


LOADING: Final = "LOADING Redis is loading the dataset in memory"


class Gate:
    """The gate of one server."""

    def __init__(self, engine: Engine) -> None:
        self.no_writes = ""  # replication's error for writes, empty while writes are taken
        self.no_reads = ""  # replication's error for everything that needs the state
        self.is_loading = not engine.is_loaded
        self.is_monitored = False  # every command is shown to a client
        self.is_paused = False  # commands wait, or only writes
        self.levels_replicas = False  # they wait so that replicas come level
        self.stalls_writes = False  # commands under way in slices wait as well, those that write
        self.on_change: Callable[[], None] = lambda: None
        self._refusals = engine.refusals
        self._txn = engine.txn

    def replicate(self, *, no_writes: str, no_reads: str) -> None:
        """Set what replication refuses from now on."""
        self.no_writes, self.no_reads = no_writes, no_reads
        self.refresh()

    def loaded(self) -> None:
        """The state is complete."""
        self.is_loading = False
        self.refresh()

    def refresh(self) -> None:
        """Apply a reason that may have changed."""
        self._txn.is_short_of_space = self._refusals.reason is not None
        self._txn.holds_expired = self._holds_expired
        self.on_change()

    @property
    def _holds_expired(self) -> bool:
        return self.is_paused or self._refusals.reason in LOGS_NOTHING

    @property
    def is_outdated(self) -> bool:
        """Whether the store refuses writes, or takes them again, and `refresh` was not called since."""
        is_short = self._refusals.reason is not None
        return is_short is not self._txn.is_short_of_space or self._holds_expired is not self._txn.holds_expired

    @property
    def closes_fast_path(self) -> bool:
        """Whether even reads need every check."""
        is_refusing = self.is_loading or bool(self.no_reads) or self._refusals.reason is not None
        return is_refusing or self.is_monitored or self.is_paused

    @property
    def refuses_writes(self) -> bool:
        return self.is_loading or bool(self.no_writes) or self._refusals.reason is not None

    def check(self, flags: Flag) -> None:
        """Raise CommandError when a command with these flags is refused."""
        refusal = self._refusals.reason
        if refusal is None and not self.no_writes and not self.no_reads and not self.is_loading:
            return
        is_write = bool(flags & Flag.WRITE)
        if refusal is not None and is_write and (flags & Flag.DENYOOM or refusal in DISK_HAS_FAILED):
            raise CommandError(MISCONF[refusal])
        if self.no_writes and is_write:
            raise CommandError(self.no_writes)
        if self.no_reads and not flags & Flag.STALE:
            raise CommandError(self.no_reads)
        # DEBUG may read, or replace, what is being loaded
        if self.is_loading and (not flags & Flag.LOADING or flags & Flag.GUARDED):
            raise CommandError(LOADING)
