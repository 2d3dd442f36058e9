"""Values that the store's callers see and give: trims, changes, settings of a stream."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

Row = tuple[bytes, bytes]


class Strategy(enum.Enum):
    """What a trim's threshold counts."""

    MAXLEN = b"MAXLEN"
    MINID = b"MINID"


class References(enum.Enum):
    """What happens to consumer groups' pending records of entries that are removed."""

    KEEPREF = b"KEEPREF"
    DELREF = b"DELREF"
    ACKED = b"ACKED"


@dataclass(frozen=True, slots=True)
class Trim:
    """A trim as the client asked for it.  `limit` 0 is unlimited; it counts entries and whole nodes only."""

    strategy: Strategy
    threshold: int
    approximate: bool = False
    limit: int = 0
    references: References = References.KEEPREF


class Trimmed(NamedTuple):
    """What a trim did: entries removed, and nodes dropped that held none any more."""

    removed: int
    dead_nodes: int


NOT_TRIMMED: Final = Trimmed(0, 0)


@dataclass(slots=True)
class IdempotenceSettings:
    """The idempotence part of a stream's row; None for `duration_s` and `max_records` means the server's default.

    The records themselves stand under `records_no`, 0 while there are none; see `idempotence.py`.
    """

    duration_s: int | None = None
    max_records: int | None = None
    records_no: int = 0
    records_added: int = 0
    duplicates: int = 0


class DeliveryPolicy(NamedTuple):
    """What the server does for a group about entries that are delivered again and again, and consumers that stay away.

    An entry that was delivered `max_deliveries` times goes to the stream `dead_letter` of the same database instead of
    being delivered once more; a consumer that was not seen for `consumer_ttl_ms` and has nothing pending is deleted.
    0 is off, and `dead_letter` is None exactly when `max_deliveries` is 0.
    """

    max_deliveries: int = 0
    dead_letter: bytes | None = None
    consumer_ttl_ms: int = 0


NO_POLICY: Final = DeliveryPolicy()


class Change(enum.Enum):
    """What a mutator did to a key that a client waits for or watches."""

    APPENDED = enum.auto()
    CREATED = enum.auto()  # the key came to be by another way than XADD: RENAME, COPY, SWAPDB, MKSTREAM ...
    MODIFIED = enum.auto()  # entries went
    REMOVED = enum.auto()
    GROUP_REMOVED = enum.auto()
    RELEASED = enum.auto()  # pending entries lost their owner (XNACK)
