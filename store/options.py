"""The settings of a store, and its clock."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from typing import Final, Protocol

# What LMDB may map takes address space only.
DEFAULT_MAP_BYTES: Final = 1 << 40
_HEADROOM: Final = 1 << 28


class Clock(Protocol):
    """The source of time, which tests may replace."""

    def time(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds that only grow."""


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class Fsync(enum.Enum):
    """When the log is made durable: before every reply, at least once a second, or when the system decides."""

    ALWAYS = "always"
    EVERYSEC = "everysec"
    NO = "no"


@dataclass
class Options:
    """The settings of an engine.  Sizes are in bytes."""

    fsync: Fsync = Fsync.ALWAYS
    quota_bytes: int = DEFAULT_MAP_BYTES  # of pages with rows
    map_bytes: int = DEFAULT_MAP_BYTES  # of these and of all others in the tables' file
    segment_bytes: int = 1 << 30
    load_truncated: bool = True
    reserve_bytes: int = 64 << 20
    node_max_entries: int = 100
    node_max_bytes: int = 4096
    # The log continues the log of another server, also after a start.
    is_replica: bool = False


def map_for(quota_bytes: int, file_bytes: int = 0) -> int:
    """The bytes that LMDB is to map for tables with up to `quota_bytes` of pages with rows, and a file as it is.

    A commit writes each changed page to another place, and the old one is free two commits later: changes of very many
    streams take three times as much as their rows.  When the map is full not even a deletion can be committed.
    """
    return max(quota_bytes, min(4 * quota_bytes + _HEADROOM, DEFAULT_MAP_BYTES), map_for_file(file_bytes))


def map_for_file(file_bytes: int) -> int:
    """The bytes to map for one commit that changes every page of a file, and for new rows."""
    return 2 * file_bytes + _HEADROOM
