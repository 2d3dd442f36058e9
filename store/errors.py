"""The errors that the store raises, grouped by what the caller can do, and the reasons for refusing writes."""

from __future__ import annotations

import enum
from typing import Final

import lmdb


class StoreError(Exception):
    """The base of the store's own errors.  `OSError` passes through unwrapped."""


# -- found while opening: the directory cannot be used as it is --------------------------------------------------------


class VersionError(StoreError):
    """The directory was written by a format version this program does not read."""


class UnsafeFileError(StoreError, OSError):
    """A path of the store is not a plain file or directory, but a symbolic link, a pipe or a device."""


class ForeignLogError(StoreError):
    """The directory belongs to Redis.  Nothing was changed; the text says how to copy its streams."""


class LockedError(StoreError):
    """Another process serves this directory."""


class NoLogError(StoreError):
    """The tables hold data, but the log that they were made from is missing."""


class NoSnapshotError(StoreError):
    """The given path has no snapshot: it is missing, is something else, or was never finished."""


# -- found while reading: bytes are not what was written ---------------------------------------------------------------


class CorruptionError(StoreError):
    """A file does not hold what its format promises.

    `offset` is a position in `file` in bytes, or None when the damage has no single position.
    """

    def __init__(self, file: str, offset: int | None, reason: str) -> None:
        place = file if offset is None else f"{file} at byte {offset}"
        super().__init__(f"{place}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class DamagedRowError(CorruptionError, ValueError):
    """A row of the tables is not what was written: its checksum does not fit, or it does not decode.

    `what` names it; `stream_no` is the number of its stream, 0 when that is not known.
    """

    def __init__(self, what: str, stream_no: int = 0) -> None:
        super().__init__("the tables", None, f"{what} is damaged: its checksum does not fit")
        self.what = what
        self.stream_no = stream_no


def text_of(error: BaseException) -> str:
    """What an error says, or what it is where it says nothing, as a MemoryError does."""
    return str(error) or type(error).__name__


def why_undecoded(error: Exception) -> str:
    """The reason for a text, of one of DECODE_ERRORS that the reader of a row has raised."""
    if isinstance(error, StoreError):
        return str(error)
    return f"a row does not decode: {type(error).__name__}: {error}"


# What reading the tables raises where they are damaged: a row, or a page of LMDB.
TABLE_DAMAGE: Final = (DamagedRowError, lmdb.CorruptedError, lmdb.PageNotFoundError)


class ReplayError(StoreError):
    """A logged command does not fit the state it is replayed on: a damaged log, or a bug."""


# -- found while writing -----------------------------------------------------------------------------------------------


class LogWriteError(StoreError):
    """A write or a sync of the log failed.  The data is not durable and must not be acknowledged."""


class LacksRoomError(StoreError, OSError):
    """The disk has not enough room beside its reserve."""


class NumbersSpentError(StoreError):
    """All numbers for things of a kind were given out, and none is given out twice.  The text says so to a client."""


class UnknownOutcomeError(LogWriteError):
    """A LogWriteError whose bytes may still be in the log: the next start may find them.  Send no reply at all."""


class SnapshotError(StoreError):
    """A snapshot could not be made.  Nothing was changed, and no file was left behind."""


class StateLostError(StoreError):
    """Undoing a failed write failed too.  The state in memory must not be sent to clients; restart the server."""


# -- why it takes no writes --------------------------------------------------------------------------------------------


class Refusal(enum.Enum):
    """Why writes are refused."""

    DISK_NEARLY_FULL = "the disk is nearly full"
    DISK_FULL = "the disk is full"
    MAP_NEARLY_FULL = "the tables have nearly reached lmdb-map-size"
    MAP_FULL = "the file of the tables can grow no more, see lmdb-map-size"
    LOG_UNWRITTEN = "the last write to the log failed"
    TABLES_UNWRITTEN = "the last write to the tables failed"
    LOG_FAILED = "the log could not be written or synced"
    TABLES_FAILED = "the tables could not be synced"


# The disk has failed, and it is not known which of the last writes it holds.
DISK_HAS_FAILED: Final = frozenset((Refusal.LOG_FAILED, Refusal.TABLES_FAILED))
# The log takes nothing: what expires is hidden, and not deleted, or each read of it would fail.
LOGS_NOTHING: Final = DISK_HAS_FAILED | {Refusal.LOG_UNWRITTEN, Refusal.DISK_FULL}
# Commands that make room go on, in what is kept free for them.
NEARLY_FULL: Final = frozenset((Refusal.DISK_NEARLY_FULL, Refusal.MAP_NEARLY_FULL))
# No more than what is kept free is left on the disk.
DISK_LACKS_ROOM: Final = frozenset((Refusal.DISK_NEARLY_FULL, Refusal.DISK_FULL))
# They end when there is room, on the disk or in the tables.
LACKS_ROOM: Final = DISK_LACKS_ROOM | {Refusal.MAP_NEARLY_FULL, Refusal.MAP_FULL}
