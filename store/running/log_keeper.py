"""Keeps the log of a running store: when it is synced, when its next file begins, and what that file begins with.

    incr 5 (full)                           incr 6
    | batch #CK | batch #CK | batch #CK |   | SELECT 3 #CK | batch #CK |
                                        '---> begins with a checkpoint, or in a tick when none comes in time

`Log` writes bytes; this module knows the policy, which database is selected, and how far checkpoints have come.  It
knows no batch: the engine appends them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import lmdb

from riverbed.store.errors import LogWriteError
from riverbed.store.format.log_lines import encode_preface
from riverbed.store.format.meta import NO_DATABASE
from riverbed.store.log.search import KnownOffsets
from riverbed.store.options import Fsync
from riverbed.store.progress import ignore

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn
    from riverbed.store.log.append_log import Log
    from riverbed.store.log.appending.replacement import Replacement
    from riverbed.store.options import Clock, Options
    from riverbed.store.running.checkpoint import Checkpoints
    from riverbed.store.running.refusals import Refusals


class LogKeeper:
    """Keeps `log`.  After a full sync it is another one, so ask for it here each time."""

    def __init__(
        self, log: Log, txn: WriteTxn, options: Options, clock: Clock, checkpoints: Checkpoints, refusals: Refusals
    ) -> None:
        self.log = log
        self.known_offsets = KnownOffsets()  # of `log`
        # Called with the seconds that each sync of the log took.
        self.on_sync: Callable[[float], None] = ignore
        self._txn = txn
        self._options = options
        self._clock = clock
        self._checkpoints = checkpoints
        self._refusals = refusals

    # -- durable -------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make the log durable.  Raises LogWriteError, and writes are refused then."""
        is_due = self.log.unsynced_bytes > 0
        begun = self._clock.monotonic()
        try:
            self.log.writer.sync()
        except LogWriteError as error:
            if self.log.broken:
                self._refusals.log_failed(error, is_broken=True)
            raise
        if is_due:
            self.on_sync(self._clock.monotonic() - begun)

    def end_checkpoint(self) -> None:
        """Make the checkpoint that was begun durable, if there is one.  Raises LogWriteError, lmdb.Error."""
        durability = self._checkpoints.end()
        if durability is not None:
            if durability.log_s is not None:
                self.on_sync(durability.log_s)
            self.known_offsets.add(durability.place)

    def end_quietly(self) -> None:
        """As `end_checkpoint`, but a failure only shows in the refusal, and in the next checkpoint."""
        with contextlib.suppress(LogWriteError, lmdb.Error):
            self.end_checkpoint()

    # -- the next file -------------------------------------------------------------------------------------------------

    def begin_file_if_needed(self) -> None:
        """Begin the next file of the log when this one is full; a failure shows in the refusal."""
        try:
            self._rotate_if_needed()
        except LogWriteError as error:
            self._refusals.log_failed(error, is_broken=self.log.broken)

    def _rotate_if_needed(self) -> None:
        """Begin the next file when this one is much too long, or takes no appends.

        One that is full is left to the next checkpoint, whose thread lists the next file: no client waits for the disk.
        """
        if self.log.is_overdue and (self.log.is_far_too_long or not self._checkpoints.is_syncing):
            self.end_quietly()  # the checkpoint's thread may sync the file that is closed below, or begin the next one
            self.log.rotate_if_needed()
        if self.log.writer.position == 0:
            self.write_preface()

    def begin_next_file(self) -> Replacement:
        """Have a thread begin the next file of the log here.  Raises LogWriteError with nothing begun."""
        return self.log.begin_next_file(encode_preface(self._txn.log_db, self.log.offset, self._now_ms()))

    def next_file_if_full(self) -> Replacement | None:
        """Have a thread begin the next file of the log if this one is full; `rotate_error` says why that failed."""
        if not self.log.is_full or self.log.listing.is_replacing:
            return None
        try:
            return self.begin_next_file()
        except LogWriteError as error:
            self.log.rotate_later(error)
            return None

    def write_preface(self) -> None:
        """Write a SELECT, not counted in offsets, into an empty file of the log; if that fails, the next batch has it.

        A replica may not add it to a batch, which is the primary's.  It refuses the next batch then, see
        `Engine.apply`.

        It is durable before a batch comes behind it: a power cut that took the SELECT and left a whole batch would be
        damage, and no torn tail.
        """
        if self._txn.log_db == NO_DATABASE:
            return
        try:
            self.log.writer.write_preface(self._txn.log_db, self._now_ms())
            if self._options.fsync is Fsync.ALWAYS:
                self.sync()
        except LogWriteError as error:
            if self.log.broken:
                self._refusals.log_failed(error, is_broken=True)
            if not self._txn.follows:
                self._txn.log_db = NO_DATABASE

    def _now_ms(self) -> int:
        return int(self._clock.time() * 1000)
