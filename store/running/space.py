"""Free space on the disk and in the tables: writes are refused in time, so that deleting and trimming have room."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.store.errors import DISK_HAS_FAILED, NEARLY_FULL, Refusal

if TYPE_CHECKING:
    from riverbed.store.disk.files import Files
    from riverbed.store.options import Options
    from riverbed.store.tables.writing.transaction import Transaction

# The bytes of pages that a checkpoint may write for a byte of log: half-full pages, and copies of the pages above them.
_PAGES_A_LOGGED_BYTE: Final = 3
# However little was logged, it writes a path of pages in most of the tables.
_LEAST_CHECKPOINT_BYTES: Final = 256 << 10
# So many bytes of the log may be in no table because damage, or a full map, is in the way of checkpoints; then writes
# are refused until there is one.
MAX_UNCOMMITTED_BYTES: Final = 32 << 20
_WAITS_FOR_CHECKPOINT: Final = (Refusal.TABLES_UNWRITTEN, Refusal.MAP_FULL)


class Space:
    """The free space, measured again whenever a part of the reserve was written."""

    def __init__(self, directory: Path, options: Options, files: Files) -> None:
        self._directory = directory
        self._options = options
        self._files = files
        self.uncommitted_bytes = 0  # log bytes since the last checkpoint
        self._unchecked_bytes = 0  # log bytes since free space was measured last
        self._most_unchecked_bytes = 0

    @property
    def reserve_bytes(self) -> int:
        """The bytes that are kept free: at most an eighth of the disk and of the quota.  Raises OSError."""
        options = self._options
        return min(options.reserve_bytes, self._files.total_bytes(self._directory) >> 3, options.quota_bytes >> 3)

    @property
    def is_due(self) -> bool:
        """Whether so much was written that free space must be measured again."""
        return self._unchecked_bytes > self._most_unchecked_bytes

    @property
    def is_overdue(self) -> bool:
        """Whether so much was logged since the last checkpoint that it must not become more without one."""
        return self.uncommitted_bytes >= MAX_UNCOMMITTED_BYTES

    def take(self, size: int) -> None:
        """Count `size` bytes that were written to the log."""
        self.uncommitted_bytes += size
        self._unchecked_bytes += size

    def may_keep(self, size: int) -> bool:
        """Whether `size` bytes that are of little use may stay: as much is free beyond the reserve.

        False if that cannot be measured.
        """
        try:
            reserve = self.reserve_bytes
            free = self._files.free_bytes(self._directory) - _PAGES_A_LOGGED_BYTE * self.uncommitted_bytes
        except OSError:
            return False
        return free - reserve - (reserve >> 2) >= size

    def free_if_short(self, copied_bytes: int) -> int | None:
        """The bytes that are free, if a checkpoint may need more; None if not, or if that cannot be measured.

        It writes `copied_bytes` beside what was logged.
        """
        needed = _LEAST_CHECKPOINT_BYTES + _PAGES_A_LOGGED_BYTE * (self.uncommitted_bytes + copied_bytes)
        try:
            free = self._files.free_bytes(self._directory)
        except OSError:
            return None
        return free if free < needed else None

    def is_won_by_rewrite(self, txn: Transaction, log_bytes: int) -> bool:
        """Whether a log of `log_bytes`, rewritten, would be shorter by what lets writes be accepted again.

        How long it would be is not known; about as long as the pages in use, unless keys are very long.
        """
        try:
            return log_bytes - txn.tables.used_bytes(txn.lmdb) > self.reserve_bytes >> 2
        except (OSError, lmdb.Error):
            return False

    def judge(self, txn: Transaction, refusal: Refusal | None) -> Refusal | None:
        """-> why writes are refused from now on; `refusal` is the present reason.

        After a write that failed and was undone, for any reason, writes are tried again when there is space, unless a
        checkpoint is overdue: of a full map it is not known what readers hold.  The disk may be short of space, or the
        tables may be near `quota_bytes`.  If free space cannot be measured, nothing changes, and the next batch
        measures again.
        """
        try:
            disk = self._files.free_bytes(self._directory)
            quota = self._options.quota_bytes - txn.tables.used_bytes(txn.lmdb)
            reserve = self.reserve_bytes
        except (OSError, lmdb.Error):
            return refusal
        self._unchecked_bytes = 0
        self._most_unchecked_bytes = reserve >> 4
        if refusal in DISK_HAS_FAILED or (refusal in _WAITS_FOR_CHECKPOINT and self.is_overdue):
            return refusal
        disk -= _PAGES_A_LOGGED_BYTE * self.uncommitted_bytes  # by the next checkpoint
        quota -= self.uncommitted_bytes
        least = reserve if refusal is None else reserve + (reserve >> 2)
        if min(disk, quota) >= least:
            return None
        if refusal is not None and refusal not in NEARLY_FULL:
            return refusal
        return Refusal.DISK_NEARLY_FULL if disk < least else Refusal.MAP_NEARLY_FULL
