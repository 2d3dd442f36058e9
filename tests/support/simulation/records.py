"""What clients asked for and were told, as far as `checker` judges it.

`tests/support/faults/ledger.py` has adds, deletes, trims and what readers were shown, and their fates; here are the
groups, WATCH, and where in a log each answer was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.faults.ledger import Account, Add, Delete, EntryID, Fate, Ledger, TrimBelow
from tests.support.simulation.machine import Stamp


@dataclass(slots=True, eq=False)
class Delivery:
    """One entry that XREADGROUP `>`, or XAUTOCLAIM, gave to a consumer."""

    group: bytes
    consumer: bytes
    entry_id: EntryID
    told_at: float
    stamp: Stamp | None


@dataclass(slots=True, eq=False)
class Ack:
    """One XACK of one entry."""

    group: bytes
    entry_id: EntryID
    asked_at: float
    fate: Fate = Fate.UNKNOWN
    told_at: float = 0.0


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
class Wait:
    """An XREAD that waited for `block_s` and was told that there is nothing behind `after`."""

    stream: bytes
    after: EntryID
    asked_at: float
    block_s: float
    stamp: Stamp | None


@dataclass
class Records:
    """All that the clients of one simulation know."""

    ledger: Ledger = field(default_factory=Ledger)
    deliveries: list[Delivery] = field(default_factory=list)
    lost_reads: dict[bytes, int] = field(default_factory=dict)  # XREADGROUPs without an answer, by group
    claims: list[Delivery] = field(default_factory=list)  # by XAUTOCLAIM
    acks: list[Ack] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    stamps: dict[int, Stamp | None] = field(default_factory=dict)  # by id() of what was told
    confirmed: list[tuple[Add, Stamp]] = field(default_factory=list)  # WAIT said that all replicas have it
    on_confirmed: Callable[[Stamp], None] = lambda stamp: None  # at once, with the place that all replicas have
    told: list[Add] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    def all_told(self) -> Iterator[Add | Delete | TrimBelow | Ack]:
        """Everything that was answered with success."""
        for account in self.ledger.accounts:
            for one in (*account.adds, *account.deletes, *account.trims):
                if one.fate is Fate.ACKNOWLEDGED:
                    yield one
        yield from (ack for ack in self.acks if ack.fate is Fate.ACKNOWLEDGED)

    def forget_lost(self, may_be_lost: Callable[[Stamp | None, float], bool]) -> None:
        """What was told may not hold: `may_be_lost` says so of the place and the time at which it was."""
        confirmed = {id(add) for add, _ in self.confirmed}
        for one in list(self.all_told()):
            if id(one) not in confirmed and may_be_lost(self.stamps.get(id(one)), one.told_at):
                one.fate = Fate.UNKNOWN
                if isinstance(one, Add):
                    one.entry_id = None
        for account in self.ledger.accounts:
            seen = account.seen
            account.seen = [sight for sight in seen if not may_be_lost(self.stamps.get(id(sight)), sight.told_at)]
        lost = [delivery for delivery in self.deliveries if may_be_lost(delivery.stamp, delivery.told_at)]
        for group, _, _ in {(delivery.group, delivery.consumer, delivery.told_at) for delivery in lost}:
            self.lost_reads[group] = self.lost_reads.get(group, 0) + 1
        self.deliveries = [one for one in self.deliveries if not may_be_lost(one.stamp, one.told_at)]
        self.claims = [one for one in self.claims if not may_be_lost(one.stamp, one.told_at)]
        self.counts = [count for count in self.counts if not may_be_lost(count.stamp, count.told_at)]
        self.told = [add for add in self.told if add.fate is Fate.ACKNOWLEDGED]

    def account(self, name: bytes) -> Account:
        return self.ledger.account(name)
