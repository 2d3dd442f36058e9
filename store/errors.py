"""Everything the store raises on purpose, grouped by what the caller can do about it; and why it takes no writes."""

from __future__ import annotations

import enum
from typing import Final


class StoreError(Exception):
    """Base of the store's own errors.  `OSError` passes through unwrapped."""


# -- found while opening: the directory cannot be used as it is --------------------------------------------------------


class VersionError(StoreError):
    """The directory was written by a format version this program does not read."""


class UnsafeFileError(StoreError, OSError):
    """Where a file or a directory of ours should be is something else: a symbolic link, a pipe, a device."""


class ForeignLogError(StoreError):
    """The directory is a Redis's.  Nothing was changed; the text says how its streams are copied."""


class LockedError(StoreError):
    """Another process serves this directory."""


class NoLogError(StoreError):
    """The tables hold something, and the log that they are made of is gone."""


class NoSnapshotError(StoreError):
    """There is no snapshot where one was asked for: nothing at all, something else, or one that was never finished."""


# -- found while reading: bytes are not what was written ---------------------------------------------------------------


class CorruptionError(StoreError):
    """A file does not hold what its format promises.

    `offset` is a position in `file` in bytes, or None when the damage has no place of its own.
    """

    def __init__(self, file: str, offset: int | None, reason: str) -> None:
        place = file if offset is None else f"{file} at byte {offset}"
        super().__init__(f"{place}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class ReplayError(StoreError):
    """A logged command does not fit the state it is replayed on: a damaged log, or a bug."""


# -- found while writing -----------------------------------------------------------------------------------------------


class LogWriteError(StoreError):
    """The log refused bytes or a sync.  What was being written is not durable and must not be acknowledged."""


class UnknownOutcomeError(LogWriteError):
    """As above, and the bytes could not be taken back for certain: a start may find them.  Give no answer at all."""


class SnapshotError(StoreError):
    """No snapshot could be made.  Nothing was changed, and nothing was left behind."""


class StateLostError(StoreError):
    """Undoing a failed write failed as well: what is in memory may be answered to no client.  Start again."""


# -- why it takes no writes --------------------------------------------------------------------------------------------


class Refusal(enum.Enum):
    """Why writes are refused."""

    DISK_NEARLY_FULL = "the disk is nearly full"
    DISK_FULL = "the disk is full"
    LOG_FAILED = "the log could not be written or synced"
    TABLES_FAILED = "the tables could not be synced"


# The disk has failed, and what it holds of what was written last is not known.
UNTIL_A_RESTART: Final = frozenset((Refusal.LOG_FAILED, Refusal.TABLES_FAILED))
