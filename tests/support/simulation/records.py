"""What clients asked for and were told, as far as `checker` judges it.

`tests/support/faults/ledger.py` has adds, deletes, trims and what readers were shown, and their fates; here are the
groups, WATCH, and where in a log each answer was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.faults.ledger import Account, Add, EntryID, Fate, Ledger
from tests.support.simulation.machine import Stamp


@dataclass(slots=True, eq=False)
class Delivery:
    """One entry that XREADGROUP `>` gave to a consumer."""

    group: bytes
    consumer: bytes
    entry_id: EntryID
    told_at: float
    stamp: Stamp | None


@dataclass(slots=True, eq=False)
class Ack:
    """One XACK of one entry; `is_new` when it counted."""

    group: bytes
    entry_id: EntryID
    asked_at: float
    fate: Fate = Fate.UNKNOWN
    is_new: bool = False
    stamp: Stamp | None = None


@dataclass(slots=True, eq=False)
class Count:
    """The delivery count of a pending entry that XPENDING has shown."""

    group: bytes
    entry_id: EntryID
    count: int
    asked_at: float
    told_at: float
    stamp: Stamp | None


@dataclass(slots=True, eq=False)
class Links:
    """An entry that a transaction has added behind the entry that it had seen, and WATCHed."""

    entry_id: EntryID
    seen: bytes


@dataclass
class Records:
    """All that the clients of one simulation know."""

    ledger: Ledger = field(default_factory=Ledger)
    deliveries: list[Delivery] = field(default_factory=list)
    lost_reads: dict[bytes, int] = field(default_factory=dict)  # XREADGROUPs without an answer, by group
    lost_claims: dict[bytes, int] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    stamps: dict[int, Stamp | None] = field(default_factory=dict)  # by id() of an add, a delete, a trim
    confirmed: list[tuple[Add, Stamp]] = field(default_factory=list)  # WAIT said that all replicas have it
    told: list[Add] = field(default_factory=list)

    def account(self, name: bytes) -> Account:
        return self.ledger.account(name)
