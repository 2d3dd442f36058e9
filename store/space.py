"""Room on the disk and in the tables: writes are refused in time, so that deleting and trimming still have some."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.store.errors import Refusal

if TYPE_CHECKING:
    from riverbed.store.disk.files import Files
    from riverbed.store.options import Options
    from riverbed.store.tables.transaction import Transaction

# How many bytes of pages a checkpoint may write for a byte of log: half-full pages, and copies of the pages above them.
_PAGES_A_LOGGED_BYTE: Final = 3
# Refusals that end when there is room again.
_FOR_SPACE: Final = (None, Refusal.DISK_NEARLY_FULL, Refusal.DISK_FULL)


class Space:
    """What is free, looked at whenever a part of the reserve was written."""

    def __init__(self, directory: Path, options: Options, files: Files) -> None:
        self._directory = directory
        self._options = options
        self._files = files
        self.uncommitted_bytes = 0  # of the log, since the last checkpoint
        self._unchecked_bytes = 0  # since free space was last looked at
        self._most_unchecked_bytes = 0

    @property
    def reserve_bytes(self) -> int:
        """Room that is kept free.  A small disk, or a small map, is not all reserve."""
        options = self._options
        return min(options.reserve_bytes, self._files.total_bytes(self._directory) >> 3, options.map_bytes >> 3)

    @property
    def is_due(self) -> bool:
        """So much was written that it is time to look again."""
        return self._unchecked_bytes > self._most_unchecked_bytes

    def take(self, size: int) -> None:
        """`size` bytes of log were written."""
        self.uncommitted_bytes += size
        self._unchecked_bytes += size

    def judge(self, txn: Transaction, refusal: Refusal | None) -> Refusal | None:
        """-> why writes are refused from now on, `refusal` so far.

        The disk may be short of space, or the tables of what `map_bytes` lets them grow to.  While the disk does not
        say how much it has, nothing changes, and the next batch asks again.
        """
        map_bytes = self._options.map_bytes
        try:
            room = min(self._files.free_bytes(self._directory), map_bytes - txn.tables.used_bytes(txn.lmdb))
            reserve = self.reserve_bytes
        except (OSError, lmdb.Error):
            return refusal
        self._unchecked_bytes = 0
        self._most_unchecked_bytes = reserve >> 4
        # what the next checkpoint will write counts as written
        free = room - _PAGES_A_LOGGED_BYTE * self.uncommitted_bytes
        if refusal not in _FOR_SPACE:
            return refusal
        if free < reserve:
            return refusal or Refusal.DISK_NEARLY_FULL
        return refusal if free < reserve + (reserve >> 2) else None
