"""Makes a checkpoint durable after LMDB has committed it: first the log that it covers, then the tables.

The next file of the log may begin where the checkpoint is.  It is listed in between.

A disk needs a few milliseconds, or tens of them, and clients need not wait for it: a thread may call `run` while the
next ticks change log and tables.  `settle` reports the result to log and tables, between ticks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import lmdb

from riverbed.store.errors import LogWriteError
from riverbed.store.progress import ignore
from riverbed.store.running.refusals import Refusals

if TYPE_CHECKING:
    from riverbed.store.log.append_log import Log
    from riverbed.store.log.appending.replacement import Replacement
    from riverbed.store.options import Clock
    from riverbed.store.tables.environment import Tables


class Durability:
    """The durability of one checkpoint.  `place` is its position in the log."""

    def __init__(self, log: Log, tables: Tables, clock: Clock) -> None:
        self.place = log.end
        self.next_file: Replacement | None = None  # syncs the log, and lists a file of it that begins there
        self.seconds = 0.0  # how long log and tables took
        self.log_s: float | None = None  # how long the log took; None when it was durable before
        self._writer = log.writer
        self._listing = log.listing
        self._condition = log.condition
        self._tables = tables
        self._clock = clock
        self._begun = clock.monotonic()
        self._unsynced = log.writer.unsynced
        self._once = threading.Lock()
        self.is_over = False  # `run` has ended; no caller waits for the disk any more
        self._log_error: OSError | None = None
        self._tables_error: lmdb.Error | None = None

    def run(self) -> None:
        """Sync log and tables.  A second caller waits for the first one.  `settle` raises the errors."""
        with self._once:
            if not self.is_over:
                self._sync()
                self.is_over = True

    def _sync(self) -> None:
        begun = self._clock.monotonic()
        try:
            if self.next_file is not None:
                self.next_file.sync()
                if self.next_file.sync_error is not None:
                    raise self.next_file.sync_error
            elif self._unsynced is not None:
                self._writer.sync_bytes(self._unsynced)
            if self._unsynced is not None:
                self.log_s = self._clock.monotonic() - begun
        except OSError as error:
            self._log_error = error
            self._tables.distrust(f"the log could not be made durable: {error}")
            return
        self._writer.forget_old(self.place)
        if self.next_file is not None:
            self.next_file.run()
        try:
            self._tables.sync()
        except lmdb.Error as error:
            self._tables_error = error
        self.seconds = self._clock.monotonic() - self._begun

    def require(self) -> None:
        """Raise LogWriteError or lmdb.Error if this has failed; both were reported before."""
        if self._log_error is not None:
            raise LogWriteError(f"syncing the log failed: {self._log_error}") from self._log_error
        if self._tables_error is not None:
            raise self._tables_error
        if not self.is_over:
            raise LogWriteError("the server is stopping")

    def settle(self) -> None:
        """Report to the log how far it is durable, and which file is the last one.

        Raises LogWriteError, which breaks the log, or lmdb.Error.
        """
        if self._unsynced is not None and self._condition.broken and self._log_error is None:
            # another sync of the log has failed meanwhile, and may have been told what was lost of this one
            self._tables.distrust(str(self._condition.refusal))
        try:
            if self._unsynced is not None:
                self._writer.was_synced(self._unsynced, self._log_error)
        finally:
            if self.next_file is not None:
                self._listing.settle()
        if self.next_file is not None and self._condition.broken:
            raise LogWriteError(self._condition.refusal)
        if self._tables_error is not None:
            raise self._tables_error


class Checkpoints:
    """The checkpoints of one store: the one that is not durable yet, and figures of the earlier ones."""

    def __init__(self, clock: Clock, refusals: Refusals) -> None:
        self.count = 0
        self.last_ms = int(clock.time() * 1000)
        self.last_ok = True
        self.last_s = 0.0
        # Called with the seconds that each checkpoint took.
        self.on_end: Callable[[float], None] = ignore
        self._clock = clock
        self._refusals = refusals
        self._durability: Durability | None = None

    @property
    def is_syncing(self) -> bool:
        """Whether a checkpoint was begun and has not ended."""
        return self._durability is not None

    @property
    def syncing(self) -> Durability | None:
        """The checkpoint that was begun and has not ended."""
        return self._durability

    def begun(self, durability: Durability) -> None:
        """Note that LMDB has committed a checkpoint."""
        self._durability = durability

    def refused(self, error: lmdb.Error) -> lmdb.Error:
        """Note that LMDB has not committed a checkpoint, or not durably, or could not be given the rows for one.

        -> the error to raise in place of `error`, which says more.
        """
        self.last_ok = False
        return self._refusals.commit_failed(error)

    def blocked(self) -> None:
        """Note that a damaged row is in the way of a checkpoint.  Nothing is lost, and writes are taken for a while."""
        self.last_ok = False
        self._refusals.checkpoint_blocked()

    def end(self) -> Durability | None:
        """Make the checkpoint that was begun durable; -> its durability.

        Raises as `Durability.settle` does, and writes are refused then.
        """
        durability = self._durability
        if durability is None:
            return None
        durability.run()  # where memory is short for that, the next call runs it again
        self._durability = None
        try:
            durability.settle()
        except LogWriteError as error:
            self.last_ok = False
            self._refusals.log_failed(error, is_broken=True)
            raise
        except lmdb.Error as error:
            raise self.refused(error) from None
        self.count += 1
        self.last_ok = True
        self.last_ms = int(self._clock.time() * 1000)
        self.last_s = durability.seconds
        self.on_end(durability.seconds)
        return durability
