"""The figures that `riverbed stat` and `riverbed top` show for a stream and its groups, on disk or in a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from riverbed.tools.console.keytext import key_values

# The step that is shown while streams are read.
READING: Final = "reading"


@dataclass(frozen=True, slots=True)
class GroupStat:
    """The figures of a group.

    `oldest_ms` is the time since the last delivery of the pending entry that has waited longest, None when no consumer
    has one.  `tries` is how often the most delivered of the pending entries was delivered, 0 when none is pending.
    `lag` and `entries_read` are None when they are unknown.
    """

    name: bytes
    consumers: int
    pending: int
    oldest_ms: int | None
    tries: int
    lag: int | None
    last_id: str
    entries_read: int | None


@dataclass(frozen=True, slots=True)
class StreamStat:
    """The figures of a stream.  `byte_count` is about the size of its entries; of a server, MEMORY USAGE or None.

    `entries_added` is None for a Redis before 7.
    """

    db: int
    key: bytes
    length: int
    entries_added: int | None
    byte_count: int | None
    groups: tuple[GroupStat, ...]

    @property
    def pending(self) -> int:
        return sum(group.pending for group in self.groups)

    @property
    def oldest_ms(self) -> int | None:
        """The largest `oldest_ms` of all groups."""
        return max((group.oldest_ms for group in self.groups if group.oldest_ms is not None), default=None)

    @property
    def tries(self) -> int:
        """The largest `tries` of all groups."""
        return max((group.tries for group in self.groups), default=0)

    @property
    def known_lag(self) -> int:
        """The largest lag of the groups whose lag is known: what streams are sorted by."""
        return max((group.lag for group in self.groups if group.lag is not None), default=0)

    @property
    def lag(self) -> int | None:
        """The largest lag of all groups; None when a group's lag is unknown."""
        lags = [group.lag for group in self.groups]
        return None if None in lags else max((lag for lag in lags if lag is not None), default=0)

    def as_json(self) -> dict[str, Any]:
        return {
            "db": self.db,
            **key_values("key", self.key),
            "length": self.length,
            "bytes": self.byte_count,
            "pending": self.pending,
            "oldest_pending_ms": self.oldest_ms,
            "most_deliveries": self.tries,
            "lag": self.lag if self.groups else None,
            "groups": [
                {
                    **key_values("name", group.name),
                    "consumers": group.consumers,
                    "pending": group.pending,
                    "oldest_pending_ms": group.oldest_ms,
                    "most_deliveries": group.tries,
                    "lag": group.lag,
                    "last_delivered_id": group.last_id,
                }
                for group in self.groups
            ],
        }
