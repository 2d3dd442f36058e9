"""Why writes are refused: the disk is full, or it has failed.  Reads go on.

A refusal ends when there is space again.  When it is not known what the disk holds, it is for as long as the files that
failed are in use: until a restart, or until a repair or a full sync has replaced them.
"""

from __future__ import annotations

import errno
import os

import lmdb

from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.errors import DISK_HAS_FAILED, LogWriteError, Refusal
from riverbed.store.running.space import Space


def reason_of(error: lmdb.Error) -> Refusal:
    """Why LMDB could not commit.  Its errors of the system end with the system's text."""
    if isinstance(error, lmdb.MapFullError):
        return Refusal.MAP_FULL
    is_full = str(error).endswith((os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)))
    return Refusal.DISK_FULL if is_full else Refusal.TABLES_UNWRITTEN


class Refusals:
    """Why one store refuses writes: `reason` is None while it takes them."""

    def __init__(self, space: Space, txn: WriteTxn) -> None:
        self.reason: Refusal | None = None
        self.is_log_written = True  # the last batch is in the log; else the next one may meet the same error
        self._space = space
        self._txn = txn

    def check_space(self) -> None:
        """Refuse writes while less than the reserve is free, so that deleting and trimming still have room."""
        self.reason = self._space.judge(self._txn, self.reason)

    def log_failed(self, error: LogWriteError, *, is_broken: bool) -> None:
        """Refuse writes, for good if the log is broken; a write that was cut off again may be retried.

        That one ends no refusal of files that have failed before.
        """
        self.is_log_written = False
        cause = error.__cause__
        if is_broken:
            self.reason = Refusal.LOG_FAILED
        elif self.reason in DISK_HAS_FAILED:
            return
        elif isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            self.reason = Refusal.DISK_FULL
        else:
            self.reason = Refusal.LOG_UNWRITTEN

    def tables_failed(self, reason: Refusal) -> None:
        """Refuse writes, for good if the tables could not be synced; an earlier one stays, a failed log always."""
        if self._txn.tables.failure is not None and self.reason is not Refusal.LOG_FAILED:
            self.reason = Refusal.TABLES_FAILED
        elif self.reason is None:
            self.reason = reason

    def files_replaced(self, *, is_log_broken: bool) -> None:
        """End a refusal for files that are no longer in use, unless the log that is in use has failed."""
        self.is_log_written = not is_log_broken
        if self.reason in DISK_HAS_FAILED and not is_log_broken and self._txn.tables.failure is None:
            self.reason = None

    def commit_failed(self, error: lmdb.Error) -> lmdb.Error:
        """Refuse writes because LMDB could not commit; -> the error to raise in place of `error`.

        LMDB reports a disk that takes only a part of a write as one that has failed.  Free space tells them apart.
        """
        reason = reason_of(error)
        if str(error).endswith(os.strerror(errno.EIO)):
            free = self._space.free_if_short(self._txn.copied_bytes)
            if free is not None:
                reason = Refusal.DISK_FULL
                error = type(error)(f"{error}; the disk may be full: {free} bytes are free")
        self.tables_failed(reason)
        return error

    def checkpoint_blocked(self) -> None:
        """Refuse writes if damage keeps too much of the log out of the tables: most damage is mended long before."""
        if self._space.is_overdue:
            self.tables_failed(Refusal.TABLES_UNWRITTEN)
