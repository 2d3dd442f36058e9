"""How a store is opened: its settings, and the clock it is given."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, Protocol

DEFAULT_MAP_BYTES: Final = 1 << 40


class Clock(Protocol):
    """Where time comes from, so that tests may make it up."""

    def time(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds that only grow."""


class Fsync(enum.Enum):
    """When the log is made durable: before every reply, at least once a second, or when the system pleases."""

    ALWAYS = "always"
    EVERYSEC = "everysec"
    NO = "no"


@dataclass
class Options:
    """How an engine is opened.  Sizes in bytes."""

    fsync: Fsync = Fsync.ALWAYS
    map_bytes: int = DEFAULT_MAP_BYTES
    segment_bytes: int = 1 << 30
    load_truncated: bool = True
    reserve_bytes: int = 64 << 20
    node_max_entries: int = 100
    node_max_bytes: int = 4096
    # The log continues another server's, and goes on doing so after a start.
    is_replica: bool = False
