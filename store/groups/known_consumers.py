"""The consumers of one group: all of them in memory if they are few, else those in use.

    few     name -> Consumer    number -> Consumer
    many    the same for those in use, and for all of them the numbers by name, in `name_index.py`

Very many consumers would take half a kilobyte each.  Of many, one is read from its row when a command names it or an
entry of it, and `WriteTxn.bound_caches` lets go of all whose rows are written when they take too much.  Keep no
reference to a consumer across ticks.

The rows are read once, at the first use.  Their keys are not in their checksums, so they are compared with what the
group's row says.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import UNOWNED, owner_of_run
from riverbed.store.format.resp import bulk
from riverbed.store.groups.name_index import EMPTY_BYTES, ENTRY_BYTES, NameIndex
from riverbed.store.tables.groups import consumer_row, consumer_rows

if TYPE_CHECKING:
    from riverbed.store.format.groups import ConsumerRow
    from riverbed.store.tables.transaction import Transaction

NEVER: Final = -1
# Consumers that take more are many: some nine thousand with short names.
FEW_BYTES = 4 << 20
# What a consumer takes in memory, and how often its name is in it.
_CONSUMER_BYTES: Final = 440
_NAME_COPIES: Final = 2
# So many are read again in no time.
_FEW_CONSUMERS: Final = 100
# Rows that `part` reads: below a millisecond.
PART = 500


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
        self._txn = txn
        self._stream_no = stream_no
        self._group_no = group_no
        self._is_whole = not count  # all of them are in memory
        self._index: NameIndex | None = None  # of all of them; None while they are few, or not read yet
        self._by_name: dict[bytes, Consumer] = {}
        self._by_no: dict[int, Consumer] = {}
        self._names: dict[int, bytes] = {UNOWNED: bulk(b"")}  # of those in memory, as bulk strings

    # -- questions -----------------------------------------------------------------------------------------------------

    def named(self, name: bytes) -> Consumer | None:
        self.used_at = self._txn.turn
        consumer = self._by_name.get(name)
        return consumer if consumer is not None or self._is_whole else self._find(name)

    def numbered(self, number: int) -> Consumer:
        """A consumer that is alive."""
        consumer = self._by_no.get(number)
        if consumer is None:
            consumer = self._get(number)
            if consumer is None:
                raise self._damage()
        return consumer

    def is_alive(self, number: int) -> bool:
        """Whether there is a consumer with this number."""
        self.used_at = self._txn.turn
        return number in self._by_no or (not self._is_whole and self._lives(number))

    def names_of(self, runs: list[bytes]) -> dict[int, bytes]:
        """The names of the living owners of these rows of `pel` by number, as bulk strings, and of others."""
        self.used_at = self._txn.turn
        if not self._is_whole:
            for number in set(map(owner_of_run, runs)):
                if number != UNOWNED:
                    self._get(number)
        return self._names

    def in_order(self) -> list[Consumer]:
        """All of them, in byte order of their names."""
        self._read()
        if self._index is not None:
            for number, row in self._rows(0):
                if number not in self._by_no:
                    self._keep(Consumer(number, *row))
        return [consumer for _, consumer in sorted(self._by_name.items())]

    def owner_nos(self) -> list[int]:
        """The numbers of those that have pending entries."""
        self._read()
        found = [consumer.consumer_no for consumer in self._by_no.values() if consumer.pel_count]
        if self._index is not None:
            found += [number for number, row in self._rows(0) if row.pel_count and number not in self._by_no]
        return found

    def part(self, first_no: int) -> tuple[list[tuple[int, Consumer | ConsumerRow]], int | None]:
        """Some of them with their numbers, from a number on; -> them, and where to go on, None if not.

        Those that are many must have their rows in the table.
        """
        self._read()
        if self._index is None:
            return [*self._by_no.items()], None
        rows = list(islice(self._rows(first_no), PART))
        found = [(number, self._by_no.get(number) or row) for number, row in rows]
        return found, rows[-1][0] + 1 if len(rows) == PART else None

    @property
    def are_many(self) -> bool:
        """Whether only those in use are in memory."""
        self._read()
        return self._index is not None

    @property
    def are_read_fast(self) -> bool:
        """Whether reading again what is in memory takes no time to speak of."""
        return self._index is None and len(self._by_no) <= _FEW_CONSUMERS

    # -- changes -------------------------------------------------------------------------------------------------------

    def create(self, name: bytes, now_ms: int) -> Consumer:
        """Add a consumer whose name `named` has not found."""
        consumer = Consumer(self.next_no, name, now_ms, NEVER, 0)
        consumer.is_logged = False
        consumer.logged_times = (NEVER, NEVER)
        self.next_no += 1
        self.count += 1
        self._keep(consumer)
        if self._index is not None:
            self._index.add(name, consumer.consumer_no)
            self._count(ENTRY_BYTES)
        elif self.byte_count > FEW_BYTES:
            self._index = self._new_index()
            self._is_whole = False
            self._count(_index_bytes(self.count))
        return consumer

    def remove(self, consumer: Consumer) -> None:
        """Forget a consumer that is deleted."""
        number = consumer.consumer_no
        del self._by_name[consumer.name]
        del self._by_no[number]
        del self._names[number]
        self.count -= 1
        self._count(-_size_of(consumer.name))
        if self._index is not None:
            self._index.remove(consumer.name, number)
            self._count(-ENTRY_BYTES)

    def let_go(self) -> int:
        """Let go of those in memory, whose rows are written, if they are many; -> about what they took."""
        if self._index is None:
            return 0
        before = self.byte_count
        self._forget()
        self._count(_index_bytes(self.count))
        return before - self.byte_count

    def leave(self) -> None:
        """Have what is in memory freed later: the group is gone."""
        self._forget()
        self._index = None

    def _forget(self) -> None:
        """Have those in memory freed later, and count nothing."""
        for objects in (self._by_name, self._by_no, self._names):
            self._txn.leave(objects)
        self._by_name, self._by_no, self._names = {}, {}, {UNOWNED: bulk(b"")}
        self._count(-self.byte_count)

    def _new_index(self) -> NameIndex:
        """An index of those in memory."""
        index = NameIndex()
        for consumer in self._by_no.values():
            index.add(consumer.name, consumer.consumer_no)
        return index

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, first_no: int) -> Iterator[tuple[int, ConsumerRow]]:
        return consumer_rows(self._txn.cursor("groups"), self._stream_no, self._group_no, first_no)

    def _read(self) -> None:
        """Read the rows of all of them, if they were not read yet.  Raises DamagedRowError, with none read."""
        if not self._is_whole and self._index is None:
            try:
                self._read_rows()
            except BaseException:
                self._forget()
                raise

    def _read_rows(self) -> None:
        index: NameIndex | None = None
        count = last_no = 0
        for number, row in self._rows(0):
            count, last_no = count + 1, number
            if index is not None:
                index.add(row.name, number)
                continue
            self._keep(Consumer(number, *row))
            if self.byte_count > FEW_BYTES:
                index = self._new_index()
                self._forget()
        if count != self.count or last_no >= self.next_no:
            raise self._damage()
        self._is_whole = index is None
        if index is not None:
            self._index = index
            self._count(_index_bytes(count))

    def _find(self, name: bytes) -> Consumer | None:
        """`named`, for a name that is not in memory."""
        self._read()
        if self._index is None:
            return self._by_name.get(name)
        for number in self._index.find(name):
            consumer = self.numbered(number)
            if consumer.name == name:
                return consumer
        return None

    def _get(self, number: int) -> Consumer | None:
        """The consumer with this number, None when there is none."""
        self._read()
        consumer = self._by_no.get(number)
        if consumer is None and self._index is not None:
            row = self._row(number)
            if row is not None:
                consumer = Consumer(number, *row)
                self._keep(consumer)
        return consumer

    def _lives(self, number: int) -> bool:
        """`is_alive`, for a number that is not in memory."""
        self._read()
        return number in self._by_no if self._index is None else self._row(number) is not None

    def _row(self, number: int) -> ConsumerRow | None:
        return consumer_row(self._txn.cursor("groups"), self._stream_no, self._group_no, number)

    def _keep(self, consumer: Consumer) -> None:
        self._by_name[consumer.name] = self._by_no[consumer.consumer_no] = consumer
        self._names[consumer.consumer_no] = bulk(consumer.name)
        self._count(_size_of(consumer.name))

    def _count(self, size: int) -> None:
        self.byte_count += size
        self._txn.consumer_bytes += size

    def _damage(self) -> DamagedRowError:
        return DamagedRowError("a consumer's row", self._stream_no)


def _size_of(name: bytes) -> int:
    """About what a consumer with this name takes in memory."""
    return _CONSUMER_BYTES + _NAME_COPIES * len(name)


def _index_bytes(count: int) -> int:
    return EMPTY_BYTES + count * ENTRY_BYTES
