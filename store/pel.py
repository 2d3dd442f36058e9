"""The rows of one group's pending entries list, in three tables that always say the same.

    pel               group_no, id                   -> consumer_no, delivery_time_ms, delivery_count
    pel_by_consumer   group_no, consumer_no, id      -> nothing
    pel_by_time       group_no, time + 1, id         -> nothing         an owned entry, if the group keeps this order
                      group_no, 0, release_no        -> id              an entry that nobody owns, in order of release

A group's `pel` alone says who owns what: DELCONSUMER of a consumer with a million pending entries only forgets the
consumer's number, so a row under a number that no consumer has is dead, is skipped by every reader, and waits for the
purge (`trash.py`).  Nothing of all this is mirrored in memory.

The order by time is what CLAIM asks for and nobody else, and keeping it costs a put and a delete for each entry.  It is
therefore kept from the first CLAIM of a group on: `PelOrder` says how far it has been built, in ID order, a slice at
each CLAIM.  Entries of one millisecond stand in ID order; Redis has them in the order of delivery until it restarts.

Knows rows and numbers.  Names, counters, positions and the log are `groups.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from store import format as fmt
from store.ids import ID_BYTES, MAX_ID, StreamID, pack_id, unpack_id

if TYPE_CHECKING:
    from store.keyspace import WriteTxn

NOBODY: Final = 0
EVER: Final = 1 << 64
# Rows read in one go: a slice of this size takes a tenth of a millisecond.
_CHUNK: Final = 512
# After so many dead rows in a row the next living one is looked up in the consumers' own lists.
_DEAD_RUN: Final = 64
# Rows that one CLAIM adds to an order by time that is not complete; about 5 ms.
_BUILD_SLICE: Final = 4096


class PelRow(NamedTuple):
    """One row of `pel`.  For an entry without an owner `time_ms` is the number of its release."""

    entry_id: StreamID
    consumer_no: int
    time_ms: int
    delivery_count: int


class Pel:
    """The rows of group `group_no`.  `consumer_nos` yields the numbers in use, NOBODY not among them."""

    def __init__(self, txn: WriteTxn, group_no: int, is_alive: Callable[[int], bool]) -> None:
        self._txn = txn
        self._group_no = group_no
        self._prefix = fmt.group_prefix(group_no)
        self._is_alive = is_alive
        self.ordered_to: StreamID | None = None  # owned entries up to this ID stand in `pel_by_time`; None: unused

    # -- questions -----------------------------------------------------------------------------------------------------

    def get(self, entry_id: StreamID) -> PelRow | None:
        """The row of one entry, unless it is dead."""
        row = self._txn.lmdb.get(self._prefix + pack_id(entry_id), db=self._txn.handles["pel"])
        if row is None:
            return None
        pending = PelRow(entry_id, *fmt.decode_pending(row))
        return pending if self._lives(pending.consumer_no) else None

    def _lives(self, consumer_no: int) -> bool:
        return consumer_no == NOBODY or self._is_alive(consumer_no)

    def holds_any_from(self, start: StreamID) -> bool:
        """Whether there is any row, dead or alive, with id >= start."""
        cursor = self._txn.cursor("pel")
        return bool(cursor.set_range(self._prefix + pack_id(start))) and cursor.key().startswith(self._prefix)

    def rows(self, start: StreamID, end: StreamID, owners: Iterable[int], until_ms: int = EVER) -> Iterator[PelRow]:
        """Rows with start <= id <= end, delivered by `until_ms`, in ID order.  They may be changed under way.

        `owners` are the numbers of the consumers that have any, needed when there are many dead rows to jump over.
        """
        cursor = self._txn.cursor("pel")
        low, high = self._prefix + pack_id(start), self._prefix + pack_id(end)
        decode = fmt.decode_pending
        dead = 0
        size = 32  # most questions are for a few
        while cursor.set_range(low):
            chunk = list(islice(cursor.iternext(), size))
            for key, row in chunk:
                if key > high:
                    return
                consumer_no, time_ms, count = decode(row)
                if time_ms > until_ms and consumer_no != NOBODY:
                    continue
                if self._lives(consumer_no):
                    dead = 0
                    yield PelRow(unpack_id(key[8:]), consumer_no, time_ms, count)
                else:
                    dead += 1
            if len(chunk) < size:
                return
            size = _CHUNK
            # the cursor is anybody's while a consumer of this generator has its turn
            after = StreamID(unpack_id(chunk[-1][0][8:]) + 1)
            if after > MAX_ID:
                return
            if dead > _DEAD_RUN:
                next_id = self._next_living(after, owners)
                if next_id is None:
                    return
                after, dead = next_id, 0
            low = self._prefix + pack_id(after)

    def _next_living(self, start: StreamID, owners: Iterable[int]) -> StreamID | None:
        """The first ID >= start that somebody alive, or nobody, owns."""
        firsts = [self.first_owned(consumer_no, start) for consumer_no in (NOBODY, *owners)]
        return min((entry_id for entry_id in firsts if entry_id is not None), default=None)

    def last_row(self, owners: Iterable[int]) -> StreamID | None:
        """The highest pending ID."""
        cursor = self._txn.cursor("pel")
        past = fmt.group_prefix(self._group_no + 1)
        found = cursor.prev() if cursor.set_range(past) else cursor.last()
        for _ in range(_DEAD_RUN):
            if not found or not cursor.key().startswith(self._prefix):
                return None
            if self._lives(fmt.decode_pending(cursor.value())[0]):
                return unpack_id(cursor.key()[8:])
            found = cursor.prev()
        lasts = [self._last_owned(consumer_no) for consumer_no in (NOBODY, *owners)]
        return max((entry_id for entry_id in lasts if entry_id is not None), default=None)

    def first_owned(self, consumer_no: int, start: StreamID) -> StreamID | None:
        """The first ID >= start of one consumer."""
        prefix = fmt.owner_prefix(self._group_no, consumer_no)
        cursor = self._txn.cursor("pel_by_consumer")
        if cursor.set_range(prefix + pack_id(start)) and cursor.key().startswith(prefix):
            return unpack_id(cursor.key()[12:])
        return None

    def _last_owned(self, consumer_no: int) -> StreamID | None:
        prefix = fmt.owner_prefix(self._group_no, consumer_no)
        cursor = self._txn.cursor("pel_by_consumer")
        found = cursor.set_range(fmt.owner_prefix(self._group_no, consumer_no + 1))
        found = cursor.prev() if found else cursor.last()
        return unpack_id(cursor.key()[12:]) if found and cursor.key().startswith(prefix) else None

    def owned(self, consumer_no: int, start: StreamID, end: StreamID, until_ms: int = EVER) -> Iterator[PelRow]:
        """The rows of one living consumer with start <= id <= end, delivered by `until_ms`, in ID order.

        They may be changed under way.
        """
        prefix = fmt.owner_prefix(self._group_no, consumer_no)
        low, high = prefix + pack_id(start), prefix + pack_id(end)
        cursor = self._txn.cursor("pel_by_consumer")
        get, pel = self._txn.lmdb.get, self._txn.handles["pel"]
        decode = fmt.decode_pending
        size = 32
        while cursor.set_range(low):
            chunk = list(islice(cursor.iternext(values=False), size))
            for key in chunk:
                if key > high:
                    return
                row = get(self._prefix + key[12:], db=pel)
                assert row is not None, "a consumer's list holds what the group's does not"
                _, time_ms, count = decode(row)
                if time_ms <= until_ms:
                    yield PelRow(unpack_id(key[12:]), consumer_no, time_ms, count)
            if len(chunk) < size or chunk[-1] == high:
                return
            size = _CHUNK
            low = chunk[-1] + b"\0"

    # -- by time -------------------------------------------------------------------------------------------------------

    def build_order(self, owners: Iterable[int]) -> None:
        """Begin the order by time, or add the next slice to it."""
        if self.ordered_to == MAX_ID:
            return
        start = StreamID(0) if self.ordered_to is None else StreamID(self.ordered_to + 1)
        rows = list(islice(self.rows(start, MAX_ID, owners), _BUILD_SLICE))
        self.ordered_to = rows[-1].entry_id if len(rows) == _BUILD_SLICE else MAX_ID
        put = self._txn.cursor("pel_by_time").put
        for entry_id, consumer_no, time_ms, _ in rows:
            if consumer_no != NOBODY:
                put(fmt.moment_prefix(self._group_no, time_ms + 1) + pack_id(entry_id), b"")

    def by_time(self, after: bytes) -> Iterator[tuple[bytes, PelRow]]:
        """(place, row) of released entries in order of release, then of owned ones, longest idle first.

        `after` is a place to continue behind, empty for the beginning.
        """
        cursor = self._txn.cursor("pel_by_time")
        low = after + b"\0" if after else self._prefix
        while cursor.set_range(low):
            chunk = list(islice(cursor.iternext(), 64))
            for key, value in chunk:
                if not key.startswith(self._prefix):
                    return
                row = self.get(unpack_id(value or key[16:]))
                # what DELCONSUMER left behind stands here until it is purged
                if row is not None and self._place(row) == key:
                    yield key, row
            if len(chunk) < 64:
                return
            low = chunk[-1][0] + b"\0"

    def _place(self, row: PelRow) -> bytes:
        """The key of a row's place in the order by time."""
        if row.consumer_no == NOBODY:
            return fmt.moment_prefix(self._group_no, 0) + row.time_ms.to_bytes(ID_BYTES, "big")
        return fmt.moment_prefix(self._group_no, row.time_ms + 1) + pack_id(row.entry_id)

    def _is_ordered(self, row: PelRow) -> bool:
        return row.consumer_no == NOBODY or (self.ordered_to is not None and row.entry_id <= self.ordered_to)

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_new(self, packed_ids: list[bytes], consumer_no: int, time_ms: int) -> None:
        """Rows with count 1 for ascending IDs above every row there is."""
        txn = self._txn
        row = fmt.encode_pending(consumer_no, time_ms, 1)
        prefix = self._prefix
        txn.cursor("pel").putmulti([(prefix + packed, row) for packed in packed_ids])
        prefix = fmt.owner_prefix(self._group_no, consumer_no)
        txn.cursor("pel_by_consumer").putmulti([(prefix + packed, b"") for packed in packed_ids])
        if self.ordered_to is not None and packed_ids[0] <= pack_id(self.ordered_to):
            prefix = fmt.moment_prefix(self._group_no, time_ms + 1)
            ordered_to = pack_id(self.ordered_to)
            items = [(prefix + packed, b"") for packed in packed_ids if packed <= ordered_to]
            txn.cursor("pel_by_time").putmulti(items)

    def assign(self, counts: Iterable[tuple[StreamID, int]], consumer_no: int, time_ms: int) -> dict[int | None, int]:
        """Store rows of one owner and time; -> how many each former owner had of them, None for the new ones.

        3 us an entry that changes hands.
        """
        txn = self._txn
        cursor, lists = txn.cursor("pel"), txn.cursor("pel_by_consumer")
        find, value, put = cursor.set_key, cursor.value, cursor.put
        encode, decode, prefix = fmt.encode_pending, fmt.decode_pending, self._prefix
        list_prefix = fmt.owner_prefix(self._group_no, consumer_no)
        is_ordered = self.ordered_to is not None or consumer_no == NOBODY
        former: dict[int | None, int] = {}
        for entry_id, count in counts:
            packed = entry_id.to_bytes(ID_BYTES, "big")
            key = prefix + packed
            owner_no: int | None = None
            if find(key):
                owner_no, old_time_ms, _ = decode(value())
                if is_ordered or owner_no == NOBODY:
                    self._forget_place(PelRow(entry_id, owner_no, old_time_ms, 0))
                if not self._lives(owner_no):
                    owner_no = None  # its place in its consumer's list goes with the purge
            put(key, encode(consumer_no, time_ms, count))
            if owner_no != consumer_no:
                if owner_no is not None and lists.set_key(fmt.owner_prefix(self._group_no, owner_no) + packed):
                    lists.delete()
                lists.put(list_prefix + packed, b"")
            if is_ordered:
                self._enter_place(PelRow(entry_id, consumer_no, time_ms, count))
            former[owner_no] = former.get(owner_no, 0) + 1
        return former

    def copy_row(self, row: PelRow) -> None:
        """Store a row of another group's list as it is."""
        self.assign([(row.entry_id, row.delivery_count)], row.consumer_no, row.time_ms)

    def remove(self, packed_ids: list[bytes]) -> tuple[list[bytes], dict[int, int]]:
        """Delete rows; -> the IDs of those that were there and alive, and how many each owner had of them.

        0.9 us an entry, two thirds of it LMDB's.
        """
        removed: list[bytes] = []
        by_owner: dict[int, int] = {}
        txn = self._txn
        pop = txn.cursor("pel").pop
        lists = txn.cursor("pel_by_consumer")
        find_in_list, delete_from_list = lists.set_key, lists.delete
        decode, prefix = fmt.decode_pending, self._prefix
        is_ordered = self.ordered_to is not None
        owner_no, is_alive, owner_prefix, count = -1, False, b"", 0
        for packed in packed_ids:
            row = pop(prefix + packed)
            if row is None:
                continue
            consumer_no, time_ms, _ = decode(row)
            if consumer_no != owner_no:  # mostly the same one all along
                if is_alive:
                    by_owner[owner_no] = by_owner.get(owner_no, 0) + count
                owner_no, is_alive, count = consumer_no, self._lives(consumer_no), 0
                owner_prefix = fmt.owner_prefix(self._group_no, consumer_no)
            if is_ordered or consumer_no == NOBODY:
                self._forget_place(PelRow(unpack_id(packed), consumer_no, time_ms, 0))
            if is_alive:
                if find_in_list(owner_prefix + packed):
                    delete_from_list()
                removed.append(packed)
                count += 1
        if is_alive:
            by_owner[owner_no] = by_owner.get(owner_no, 0) + count
        return removed, by_owner

    def _enter_place(self, row: PelRow) -> None:
        if self._is_ordered(row):
            value = pack_id(row.entry_id) if row.consumer_no == NOBODY else b""
            self._txn.cursor("pel_by_time").put(self._place(row), value)

    def _forget_place(self, row: PelRow) -> None:
        if self._is_ordered(row):
            self._txn.lmdb.delete(self._place(row), db=self._txn.handles["pel_by_time"])
