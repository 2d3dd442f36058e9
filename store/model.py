"""Values that the store's callers pass and receive: trims, changes, settings of a stream."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

Row = tuple[bytes, bytes]


class Strategy(enum.Enum):
    """The kind of a trim's threshold."""

    MAXLEN = b"MAXLEN"
    MINID = b"MINID"


class References(enum.Enum):
    """How a removal of entries treats the references of consumer groups to them."""

    KEEPREF = b"KEEPREF"
    DELREF = b"DELREF"
    ACKED = b"ACKED"


@dataclass(frozen=True, slots=True)
class Trim:
    """A trim as the client requested it.  `limit` counts entries, of whole nodes only; 0 is unlimited."""

    strategy: Strategy
    threshold: int
    approximate: bool = False
    limit: int = 0
    references: References = References.KEEPREF


class Trimmed(NamedTuple):
    """The result of a trim: the number of removed entries, and of dropped nodes that had no entries left."""

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
    """A group's rules for entries that are delivered too often, and for inactive consumers.

    An entry that was delivered `max_deliveries` times is moved to the stream `dead_letter` of the same database instead
    of being delivered again.  A consumer that was not seen for `consumer_ttl_ms` and has no pending entries is deleted.
    0 is off, and `dead_letter` is None exactly when `max_deliveries` is 0.
    """

    max_deliveries: int = 0
    dead_letter: bytes | None = None
    consumer_ttl_ms: int = 0


NO_POLICY: Final = DeliveryPolicy()


class Change(enum.Enum):
    """What a mutator did to a key that a client waits for or watches."""

    APPENDED = enum.auto()
    CREATED = enum.auto()  # another command than XADD made the key: RENAME, COPY, SWAPDB, MKSTREAM ...
    MODIFIED = enum.auto()  # entries were removed, or the deadline changed
    REMOVED = enum.auto()
    GROUP_REMOVED = enum.auto()
    RELEASED = enum.auto()  # pending entries lost their owner (XNACK)
