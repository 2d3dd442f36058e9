"""What `riverbed stat` and `riverbed top` tell of a stream and its groups, on disk or in a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from riverbed.tools.console.keytext import key_values

# The step that is shown while streams are read.
READING: Final = "reading"


@dataclass(frozen=True, slots=True)
class GroupStat:
    """`oldest_ms` is how long ago the entry with the smallest ID of those pending was delivered.

    It is None when nothing is pending, or that entry has no owner; `lag` and `entries_read` are None when they
    cannot be told.
    """

    name: bytes
    consumers: int
    pending: int
    oldest_ms: int | None
    lag: int | None
    last_id: str
    entries_read: int | None


@dataclass(frozen=True, slots=True)
class StreamStat:
    """`byte_count` is the size of its entries, about; of a server, what MEMORY USAGE says, or None.

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
        """Of all groups."""
        return max((group.oldest_ms for group in self.groups if group.oldest_ms is not None), default=None)

    @property
    def lag(self) -> int | None:
        """Of the group that is behind most; None when one of them cannot tell."""
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
            "lag": self.lag if self.groups else None,
            "groups": [
                {
                    **key_values("name", group.name),
                    "consumers": group.consumers,
                    "pending": group.pending,
                    "oldest_pending_ms": group.oldest_ms,
                    "lag": group.lag,
                    "last_delivered_id": group.last_id,
                }
                for group in self.groups
            ],
        }
