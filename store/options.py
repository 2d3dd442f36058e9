"""The settings of a store, and its clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol

DEFAULT_MAP_BYTES: Final = 1 << 40


class Clock(Protocol):
    """The source of time, which tests may replace."""

    def time(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds that only grow."""


class Fsync(enum.Enum):
    """When the log is made durable: before every reply, at least once a second, or when the system decides."""

    ALWAYS = "always"
    EVERYSEC = "everysec"
    NO = "no"


@dataclass
class Options:
    """The settings of an engine.  Sizes are in bytes."""

    fsync: Fsync = Fsync.ALWAYS
    map_bytes: int = DEFAULT_MAP_BYTES
    segment_bytes: int = 1 << 30
    load_truncated: bool = True
    reserve_bytes: int = 64 << 20
    node_max_entries: int = 100
    node_max_bytes: int = 4096
    # The log continues the log of another server, also after a start.
    is_replica: bool = False
