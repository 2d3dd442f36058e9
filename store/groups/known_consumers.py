"""The consumers of one group: those in use are in memory, and all of them where they are few.

One that a command names, or an entry of it, is found by its rows, so neither a start nor memory feels how many there
are.  `WriteTxn.bound_caches` lets go of consumers whose rows are written when they take too much.  Keep no reference to
a consumer across ticks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError, NumbersSpentError
from riverbed.store.format.groups import NAMES_OF_CONSUMERS, consumer_name_key, consumer_name_prefix, name_row
from riverbed.store.format.pending import UNOWNED, owner_of_run
from riverbed.store.format.resp import bulk
from riverbed.store.tables.groups import consumer_row, consumer_rows, numbers_named

if TYPE_CHECKING:
    from riverbed.store.format.groups import ConsumerRow
    from riverbed.store.tables.writing.transaction import Transaction

NEVER: Final = -1
# More consumers, or such that take more memory, are many: what looks at all of them does so in pieces.
FEW = 1000
FEW_BYTES = 4 << 20
# What a consumer takes in memory, and how often its name is in it.
_CONSUMER_BYTES: Final = 440
_NAME_COPIES: Final = 2
# Rows that `part` reads, or the bytes of their names: below a millisecond.
PART = 500
_PART_BYTES: Final = 1 << 20


class Consumer:
    """A consumer of a group.  `active_ms` is NEVER until the consumer has received an entry."""

    __slots__ = (
        "active_ms",
        "claim_head",
        "consumer_no",
        "delivery_head",
        "is_logged",
        "logged_times",
        "name",
        "pel_count",
        "seen_ms",
    )

    def __init__(self, consumer_no: int, name: bytes, seen_ms: int, active_ms: int, pel_count: int) -> None:
        self.consumer_no = consumer_no
        self.name = name
        self.seen_ms = seen_ms
        self.active_ms = active_ms
        self.pel_count = pel_count
        # what the log already contains
        self.is_logged = True
        self.logged_times = (seen_ms, active_ms)
        self.claim_head: tuple[bytes, bytes] | None = None  # (key, the first words of its XCLAIMs)
        self.delivery_head: tuple[bytes | None, bytes] = (None, b"")  # (key, the words before the ID of a delivery)


class KnownConsumers:
    """The consumers of a group; `count` and `next_no` are those of the group's row."""

    def __init__(self, txn: Transaction, stream_no: int, group_no: int, count: int, next_no: int) -> None:
        self.count = count
        self.next_no = next_no
        self.byte_count = 0  # about what is in memory
        self.used_at = 0  # the turn of the last use
        self.longest = 0  # no name is, or was, longer of those in memory
        self._txn = txn
        self._stream_no = stream_no
        self._group_no = group_no
        self._by_name: dict[bytes, Consumer] = {}
        self._by_no: dict[int, Consumer] = {}
        self._names: dict[int, bytes] = {UNOWNED: bulk(b"")}  # of those in memory, as bulk strings

    # -- questions -----------------------------------------------------------------------------------------------------

    def named(self, name: bytes) -> Consumer | None:
        self.used_at = self._txn.turn
        consumer = self._by_name.get(name)
        return consumer if consumer is not None or len(self._by_no) == self.count else self._find(name)

    def _find(self, name: bytes) -> Consumer | None:
        """`named`, for a name that is not in memory."""
        prefix = consumer_name_prefix(self._stream_no, self._group_no, name)
        for number in numbers_named(self._txn.cursor("groups"), prefix):
            consumer = self.numbered(number)
            if consumer.name == name:
                return consumer
        return None

    def numbered(self, number: int) -> Consumer:
        """A consumer that is alive."""
        consumer = self._get(number)
        if consumer is None:
            raise self._damage()
        return consumer

    def _get(self, number: int) -> Consumer | None:
        """The consumer with this number, None when there is none."""
        consumer = self._by_no.get(number)
        if consumer is not None:
            return consumer
        if not self.are_many:
            return self._by_no.get(number)
        row = self._row(number)
        return None if row is None else self._keep(number, row)

    def is_alive(self, number: int) -> bool:
        """Whether there is a consumer with this number."""
        self.used_at = self._txn.turn
        if number in self._by_no:
            return True
        return self._row(number) is not None if self.are_many else number in self._by_no

    def names_of(self, runs: list[bytes]) -> dict[int, bytes]:
        """The names of the living owners of these rows of `pel` by number, as bulk strings, and of others."""
        self.used_at = self._txn.turn
        if len(self._by_no) < self.count:
            for number in set(map(owner_of_run, runs)):
                if number != UNOWNED:
                    self._get(number)
        return self._names

    @property
    def are_many(self) -> bool:
        """Whether they are too many to be looked at in one turn.  Few are in memory then, compared with their count."""
        if self.count > FEW or self.byte_count > FEW_BYTES:
            return True
        if len(self._by_no) < self.count:
            for number, row in self._rows(0):
                if number not in self._by_no:
                    self._keep(number, row)
                    if self.byte_count > FEW_BYTES:
                        return True
            self._require_all()
        return self.byte_count > FEW_BYTES

    def in_order(self) -> list[Consumer]:
        """All of them, in byte order of their names.  They are in memory then."""
        if len(self._by_no) < self.count:
            for number, row in self._rows(0):
                if number not in self._by_no:
                    self._keep(number, row)
            self._require_all()
        return [consumer for _, consumer in sorted(self._by_name.items())]

    def owner_nos(self) -> list[int]:
        """The numbers of those that have pending entries."""
        is_whole = not self.are_many or len(self._by_no) == self.count
        found = [consumer.consumer_no for consumer in self._by_no.values() if consumer.pel_count]
        if not is_whole:
            found += [number for number, row in self._rows(0) if row.pel_count and number not in self._by_no]
        return found

    def part(self, first_no: int) -> tuple[list[tuple[int, Consumer | ConsumerRow]], int | None]:
        """Some of them with their numbers, from a number on; -> them, and where to go on, None if not.

        Those that are many must have their rows in the table.
        """
        if not self.are_many:
            return [*self._by_no.items()], None
        found: list[tuple[int, Consumer | ConsumerRow]] = []
        size = 0
        for number, row in self._rows(first_no):
            if len(found) == PART or size > _PART_BYTES:
                return found, number
            found.append((number, self._by_no.get(number) or row))
            size += len(row.name)
        return found, None

    # -- changes -------------------------------------------------------------------------------------------------------

    def create(self, name: bytes, now_ms: int) -> Consumer:
        """Add a consumer whose name `named` has not found.  Raises NumbersSpentError."""
        if self.next_no == NAMES_OF_CONSUMERS:
            raise NumbersSpentError(f"the group has had {self.next_no - 1} consumers, which is as many as it can have")
        consumer = Consumer(self.next_no, name, now_ms, NEVER, 0)
        consumer.is_logged = False
        consumer.logged_times = (NEVER, NEVER)
        self.next_no += 1
        self.count += 1
        self._hold(consumer)
        key = consumer_name_key(self._stream_no, self._group_no, name, consumer.consumer_no)
        self._txn.cursor("groups").put(key, name_row(key))
        return consumer

    def remove(self, consumer: Consumer) -> None:
        """Forget a consumer that is deleted."""
        number = consumer.consumer_no
        del self._by_name[consumer.name]
        del self._by_no[number]
        del self._names[number]
        self.count -= 1
        self._count(-_size_of(consumer.name))
        key = consumer_name_key(self._stream_no, self._group_no, consumer.name, number)
        self._txn.lmdb.delete(key, db=self._txn.handles["groups"])

    def let_go(self) -> None:
        """Have those in memory, whose rows are written, freed later."""
        for objects in (self._by_name, self._by_no, self._names):
            self._txn.leave(objects)
        self._by_name, self._by_no, self._names = {}, {}, {UNOWNED: bulk(b"")}
        self._count(-self.byte_count)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, first_no: int) -> Iterator[tuple[int, ConsumerRow]]:
        return consumer_rows(self._txn.cursor("groups"), self._stream_no, self._group_no, first_no)

    def _row(self, number: int) -> ConsumerRow | None:
        """The row of a consumer that is not in memory, None when there is none."""
        return consumer_row(self._txn.cursor("groups"), self._stream_no, self._group_no, number)

    def _keep(self, number: int, row: ConsumerRow) -> Consumer:
        consumer = Consumer(number, *row)
        self._hold(consumer)
        return consumer

    def _hold(self, consumer: Consumer) -> None:
        self._by_name[consumer.name] = self._by_no[consumer.consumer_no] = consumer
        self._names[consumer.consumer_no] = bulk(consumer.name)
        self.longest = max(self.longest, len(consumer.name))
        self._count(_size_of(consumer.name))

    def _count(self, size: int) -> None:
        self.byte_count += size
        self._txn.consumer_bytes += size

    def _require_all(self) -> None:
        """Raise DamagedRowError if those in memory, all of whose rows were read, are not as many as are counted."""
        if len(self._by_no) != self.count or max(self._by_no, default=0) >= self.next_no:
            raise self._damage()

    def _damage(self) -> DamagedRowError:
        return DamagedRowError("a consumer's row", self._stream_no)


def _size_of(name: bytes) -> int:
    """About what a consumer with this name takes in memory."""
    return _CONSUMER_BYTES + _NAME_COPIES * len(name)
