"""Consumer groups: who was given which entry, when, how often, and how far a group has come.

    stream ── groups_of(stream) ── Group "workers"                     last_delivered_id, entries_read
                                     ├── Consumer "Alice"              seen, active, pel_count
                                     ├── Consumer "Bob"
                                     └── Pel                           the rows; see pel.py

A group and its consumers are read when first needed, cached with their stream, and written back with it at the next
checkpoint; hold none across ticks.  Counters live in these rows, so that no question counts pending entries.

Mutators change rows and log canonical commands, as everywhere.  A read through a group is logged as what it did:
XCLAIM of what was delivered, XGROUP SETID for the position.  Its TIME is also when the consumer was seen and active;
where that is not so (a read without a result, XCLAIM IDLE ...) an XSEEN line, hidden from Redis, says it.  `note` and
`note_position` log what no other line implied, so every handler calls them last.

Lag and entries_read follow the rules of Redis 8.  Source: the public pages of the group commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from store import format as fmt
from store.ids import MAX_ID, MIN_ID, StreamID, id_text, pack_id, unpack_id
from store.model import Change, Row
from store.pel import EVER, NOBODY, Pel, PelRow
from store.streams import Stream

NEVER: Final = -1
UNKNOWN: Final = -1  # how the log spells an entries_read that is not known
MAX_COUNT: Final = (1 << 63) - 1
# Pending entries of a consumer that DELCONSUMER deletes on the spot; more are left to the purge.
_INLINE_DELETES: Final = 256
# Entries that one CLAIM looks at; where most of a long list is of deleted entries the next one goes on from there.
_MOST_EXAMINED: Final = 10_000

_CLAIM_END: Final = (
    b"$4\r\nTIME\r\n$%d\r\n%b\r\n$10\r\nRETRYCOUNT\r\n%b$5\r\nFORCE\r\n$6\r\nJUSTID\r\n$6\r\nLASTID\r\n$%d\r\n%b\r\n"
)
_POSITION: Final = b"*7\r\n%b$%d\r\n%b\r\n$11\r\nENTRIESREAD\r\n$%d\r\n%b\r\n"


class Consumer:
    """A member of a group.  `active_ms` is NEVER until it has been given an entry."""

    __slots__ = (
        "active_ms",
        "claim_head",
        "consumer_no",
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
        # what a reader of the log knows
        self.is_logged = True
        self.logged_times = (seen_ms, active_ms)
        self.claim_head: tuple[bytes, bytes] | None = None  # (key, how its XCLAIMs begin)


class PendingEntry(NamedTuple):
    """An entry that was delivered and not acknowledged.  `owner` is None, and the time 0, after XNACK."""

    entry_id: StreamID
    owner: Consumer | None
    delivery_time_ms: int
    delivery_count: int


class Group:
    """A consumer group of a stream."""

    def __init__(self, stream: Stream, group_no: int, name: bytes, last_id: StreamID, entries_read: int | None) -> None:
        self.stream = stream
        self.group_no = group_no
        self.name = name
        self.last_id = last_id
        self.entries_read = entries_read
        self.pel_count = 0
        self.released_count = 0  # those of them that nobody owns
        self.consumer_count = 0
        self.is_dirty = True
        self._next_consumer_no = 1
        self._next_release_no = 1
        self._consumers: dict[bytes, Consumer] | None = None
        self._by_no: dict[int, Consumer] = {}
        self._dirty_consumers: set[Consumer] = set()
        self._logged_position: tuple[StreamID, int | None] = (last_id, entries_read)
        self._position_head: tuple[bytes, bytes] | None = None  # (key, how XGROUP SETID begins)
        self._pel_end: StreamID | None = None  # nothing is pending above, as far as is known
        self._claim_place = b""  # where the last CLAIM gave up, empty for the beginning
        self.pel = Pel(stream.txn, group_no, self._is_alive)

    # -- rows of groups and consumers ----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        return fmt.pack_row(
            [
                self.name,
                fmt.pack_ids(self.last_id),
                self.entries_read,
                self.pel_count,
                self.released_count,
                self.consumer_count,
                self._next_consumer_no,
                self._next_release_no,
            ]
        )

    @classmethod
    def decode(cls, stream: Stream, group_no: int, row: bytes) -> Group:
        name, last_id, entries_read, *counts = fmt.unpack_row(row)
        group = cls(stream, group_no, name, unpack_id(last_id), entries_read)
        group.pel_count, group.released_count, group.consumer_count = counts[:3]
        group._next_consumer_no, group._next_release_no = counts[3:]
        group.is_dirty = False
        return group

    def write_back(self) -> None:
        """Put the rows of what has changed into their table."""
        txn = self.stream.txn
        groups = txn.handles["groups"]
        if self.is_dirty:
            txn.lmdb.put(fmt.group_key(self.stream.stream_no, self.group_no), self.encode(), db=groups)
            self.is_dirty = False
        for consumer in self._dirty_consumers:
            key = fmt.consumer_key(self.stream.stream_no, self.group_no, consumer.consumer_no)
            row = fmt.pack_row([consumer.name, consumer.seen_ms, consumer.active_ms, consumer.pel_count])
            txn.lmdb.put(key, row, db=groups)
        self._dirty_consumers.clear()

    def _load_consumers(self) -> dict[bytes, Consumer]:
        self._consumers = {}
        cursor = self.stream.txn.cursor("groups")
        prefix = fmt.group_key(self.stream.stream_no, self.group_no)
        if self.consumer_count and cursor.set_range(prefix):
            for key, row in cursor.iternext():
                if not key.startswith(prefix):
                    break
                if len(key) > fmt.GROUP_KEY_BYTES:
                    consumer = Consumer(fmt.decode_consumer_no(key), *fmt.unpack_row(row))
                    self._consumers[consumer.name] = self._by_no[consumer.consumer_no] = consumer
        return self._consumers

    def _is_alive(self, consumer_no: int) -> bool:
        if self._consumers is None:
            self._load_consumers()
        return consumer_no in self._by_no

    def _touch(self, consumer: Consumer | None = None) -> None:
        self.is_dirty = True
        if consumer is not None:
            self._dirty_consumers.add(consumer)
        self.stream.touch()

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> dict[bytes, Consumer]:
        """By name, in no order."""
        return self._load_consumers() if self._consumers is None else self._consumers

    def sorted_consumers(self) -> list[Consumer]:
        """In byte order of their names."""
        return [consumer for _, consumer in sorted(self.consumers.items())]

    def _owner_nos(self) -> Iterator[int]:
        return (consumer.consumer_no for consumer in self.consumers.values() if consumer.pel_count)

    def find(self, entry_id: StreamID) -> PendingEntry | None:
        row = self.pel.get(entry_id)
        return None if row is None else self._entry_of(row)

    def _entry_of(self, row: PelRow) -> PendingEntry:
        if row.consumer_no == NOBODY:
            return PendingEntry(row.entry_id, None, 0, row.delivery_count)
        return PendingEntry(row.entry_id, self._by_no[row.consumer_no], row.time_ms, row.delivery_count)

    def pending(
        self, start: StreamID = MIN_ID, end: StreamID = MAX_ID, *, until_ms: int | None = None
    ) -> Iterator[PendingEntry]:
        """What is pending with start <= id <= end, in ID order.  It may be changed while this is under way.

        With `until_ms` only what was delivered by then, and what nobody owns.
        """
        if self.pel_count:
            for row in self.pel.rows(start, end, self._owner_nos(), EVER if until_ms is None else until_ms):
                yield self._entry_of(row)

    def pending_of(
        self, consumer: Consumer, start: StreamID = MIN_ID, end: StreamID = MAX_ID, *, until_ms: int | None = None
    ) -> Iterator[PendingEntry]:
        """As `pending`, of one consumer."""
        if consumer.pel_count:
            for row in self.pel.owned(consumer.consumer_no, start, end, EVER if until_ms is None else until_ms):
                yield PendingEntry(row.entry_id, consumer, row.time_ms, row.delivery_count)

    def edges(self) -> tuple[StreamID, StreamID] | None:
        """The lowest and the highest pending ID; None when nothing is pending."""
        if not self.pel_count:
            return None
        first = next(self.pending()).entry_id
        last = self.pel.last_id(self._owner_nos())
        assert last is not None, "a count of pending entries without one"
        return first, last

    def overdue(self, min_idle_ms: int, now_ms: int, most: int | None) -> list[tuple[PendingEntry, bytes]]:
        """What CLAIM may take: released entries, then those idle for `min_idle_ms`, longest first; with their fields.

        Entries that are gone from the stream are stepped over.  Idle time is unsigned, so a delivery in the future,
        after the clock was set back, is overdue too.
        """
        if not self.pel_count:
            return []
        found: list[tuple[PendingEntry, bytes]] = []
        examined = 0
        for place, run in self.pel.by_time(self._claim_place):
            if run.consumer_no != NOBODY and 0 <= now_ms - run.time_ms < min_idle_ms:
                break
            for row in run.rows():
                if len(found) == most:
                    self._claim_place = b""
                    return found
                entry_row = self.stream.entry(row.entry_id)
                if entry_row is not None:
                    found.append((self._entry_of(row), entry_row))
            examined += len(run)
            if examined >= _MOST_EXAMINED and not found:
                self._claim_place = place
                return found
        self._claim_place = b""
        return found

    def oldest_delivery_ms(self) -> int | None:
        """When the entry that CLAIM would take first was delivered; None when there is none."""
        oldest = self.overdue(0, MAX_COUNT, 1)
        return oldest[0][0].delivery_time_ms if oldest else None

    # -- entries_read and lag ------------------------------------------------------------------------------------------

    def lag(self) -> int | None:
        """How many entries are still to be delivered, None when that cannot be told."""
        stream = self.stream
        if not stream.entries_added or not stream.length:
            return 0
        if self.last_id < stream.first_id and stream.max_deleted_id < stream.first_id:
            return stream.length
        if self.entries_read is not None and not self._is_tombstone_ahead():
            return stream.entries_added - self.entries_read
        read = _estimate_read(stream, self.last_id)
        return None if read is None else stream.entries_added - read

    def _is_tombstone_ahead(self) -> bool:
        stream = self.stream
        return bool(stream.length) and bool(stream.max_deleted_id) and self.last_id <= stream.max_deleted_id

    def _advance(self, rows: list[Row]) -> None:
        """The entries in `rows`, which follow the group's position, are given out."""
        stream = self.stream
        last_id = unpack_id(rows[-1][0][8:])
        left = len(rows)
        while self.entries_read is None or self._is_tombstone_ahead() or self.last_id < stream.first_id:
            self.last_id = unpack_id(rows[-left][0][8:])
            self.entries_read = _estimate_read(stream, self.last_id)
            left -= 1
            if not left:
                return
        # from here on nothing can get in the way of counting
        self.entries_read += left
        self.last_id = last_id

    # -- mutators: consumers -------------------------------------------------------------------------------------------

    def meet(self, name: bytes, now_ms: int) -> Consumer:
        """The consumer `name`, made if there is none, seen now.  What it then does is logged; `note` must follow."""
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = Consumer(self._next_consumer_no, name, now_ms, NEVER, 0)
            consumer.is_logged = False
            consumer.logged_times = (NEVER, NEVER)
            self._next_consumer_no += 1
            self.consumer_count += 1
            self.consumers[name] = self._by_no[consumer.consumer_no] = consumer
            self._touch(consumer)
        elif consumer.seen_ms != now_ms:
            consumer.seen_ms = now_ms
            self._touch(consumer)
        return consumer

    def note(self, consumer: Consumer) -> None:
        """Log of the consumer what no line so far has implied: XGROUP CREATECONSUMER, and XSEEN, hidden from Redis."""
        if not consumer.is_logged:
            consumer.is_logged = True
            self._log([b"XGROUP", b"CREATECONSUMER", self.stream.key, self.name, consumer.name])
        times = (consumer.seen_ms, consumer.active_ms)
        if times != consumer.logged_times:
            consumer.logged_times = times
            words = [b"XSEEN", self.stream.key, self.name, consumer.name, b"%d" % times[0], b"%d" % times[1]]
            self.stream.txn.log_extension(self.stream.db.number, words)

    def set_times(self, consumer: Consumer, seen_ms: int, active_ms: int) -> None:
        """What an XSEEN line says."""
        consumer.seen_ms, consumer.active_ms = consumer.logged_times = seen_ms, active_ms
        self._touch(consumer)

    def create_consumer(self, name: bytes, now_ms: int) -> Consumer:
        """A new consumer; there is none of that name.  Logs XGROUP CREATECONSUMER."""
        consumer = self.meet(name, now_ms)
        self.note(consumer)
        return consumer

    def delete_consumer(self, consumer: Consumer) -> int:
        """Forget a consumer and what it has pending; -> how much that was.  Logs XGROUP DELCONSUMER.

        A long list is only made unreachable and left to the purge.
        """
        txn = self.stream.txn
        count = consumer.pel_count
        if count <= _INLINE_DELETES:
            self.pel.remove([pack_id(entry.entry_id) for entry in self.pending_of(consumer)])
        else:
            txn.trash.add_consumer(self.group_no, consumer.consumer_no)
        key = fmt.consumer_key(self.stream.stream_no, self.group_no, consumer.consumer_no)
        txn.lmdb.delete(key, db=txn.handles["groups"])
        del self.consumers[consumer.name]
        del self._by_no[consumer.consumer_no]
        self.pel.forget_recent()
        self._dirty_consumers.discard(consumer)
        self.consumer_count -= 1
        self.pel_count -= count
        self._touch()
        self._log([b"XGROUP", b"DELCONSUMER", self.stream.key, self.name, consumer.name])
        return count

    # -- mutators: position --------------------------------------------------------------------------------------------

    def set_position(self, last_id: StreamID, entries_read: int | None) -> None:
        """Put the group somewhere else.  Logs XGROUP SETID."""
        self.last_id = last_id
        self.entries_read = entries_read
        self._touch()
        self._log_position()

    def raise_position(self, last_id: StreamID) -> None:
        """XCLAIM LASTID: never back.  `note_position` must follow."""
        if last_id > self.last_id:
            self.last_id = last_id
            self._touch()

    def note_position(self) -> None:
        """Log the position unless what was logged already tells it."""
        if (self.last_id, self.entries_read) != self._logged_position:
            self._log_position()

    def _log_position(self) -> None:
        self._logged_position = (self.last_id, self.entries_read)
        key = self.stream.key
        if self._position_head is None or self._position_head[0] != key:
            self._position_head = (key, fmt.encode_words([b"XGROUP", b"SETID", key, self.name]))
        last_id = id_text(self.last_id)
        read = b"%d" % (UNKNOWN if self.entries_read is None else self.entries_read)
        self._log_wire(_POSITION % (self._position_head[1], len(last_id), last_id, len(read), read))

    # -- mutators: pending entries -------------------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, rows: list[Row], texts: list[bytes], now_ms: int, *, to_pel: bool) -> None:
        """Give the entries in `rows`, which follow the group's position, to a consumer; `texts` are their IDs.

        Logs one XCLAIM for them if they become pending, and the new position.
        """
        before = self.last_id
        self._advance(rows)
        self._touch(consumer)
        if to_pel:
            is_past_all = self._pel_end is not None and before >= self._pel_end
            if self.pel_count and not is_past_all and self.pel.holds_any_from(StreamID(before + 1)):
                # the position was set back: some may be pending already, and begin anew
                self._assign([(unpack_id(key[8:]), 1) for key, _ in rows], consumer, now_ms)
            else:
                self.pel.add_new([key[8:] for key, _ in rows], consumer.consumer_no, now_ms)
                self.pel_count += len(rows)
                consumer.pel_count += len(rows)
                self._pel_end = self.last_id
            consumer.active_ms = now_ms
            self._log_claims(consumer, {1: texts}, now_ms)
        self.note_position()

    def claim(self, consumer: Consumer, counts: dict[StreamID, int], time_ms: int, now_ms: int) -> None:
        """Make `consumer` the owner of entries, delivered at `time_ms` for the so-manieth time.

        Logs one XCLAIM for each count there is.
        """
        if counts:
            self._assign(counts.items(), consumer, time_ms)
            consumer.active_ms = now_ms
            self._touch(consumer)
            self._log_claims(consumer, _by_count(counts), time_ms)

    def take_over(self, consumer: Consumer, entries: list[PendingEntry], now_ms: int) -> None:
        """`claim` of what `overdue` found: each counts once more."""
        counts = {entry.entry_id: min(entry.delivery_count + 1, MAX_COUNT) for entry in entries}
        self.claim(consumer, counts, now_ms, now_ms)

    def redeliver(self, consumer: Consumer, entries: list[PendingEntry], now_ms: int) -> None:
        """A consumer reads again what it has: each counts once more, but this makes nobody active.  Logs XCLAIM."""
        counts = {entry.entry_id: min(entry.delivery_count + 1, MAX_COUNT) for entry in entries}
        if counts:
            self._assign(counts.items(), consumer, now_ms)
            self._touch(consumer)
            self._log_claims(consumer, _by_count(counts), now_ms)

    def ack(self, packed_ids: list[bytes], texts: list[bytes] | None = None) -> int:
        """Take entries off the list; -> how many were on it.  Logs XACK of those.

        `texts` are the IDs as the client spelt them, if it did.
        """
        if not self.pel_count:
            return 0
        removed, by_owner = self.pel.remove(packed_ids)
        if not removed:
            return 0
        for consumer_no, count in by_owner.items():
            if consumer_no == NOBODY:
                self.released_count -= count
            else:
                self._move_count(self._by_no[consumer_no], -count)
        self.pel_count -= len(removed)
        self._touch()
        if texts is None or len(removed) < len(packed_ids):
            texts = [id_text(unpack_id(packed)) for packed in removed]
        self._log([b"XACK", self.stream.key, self.name, *texts])
        return len(removed)

    def release(self, counts: list[tuple[StreamID, int]]) -> None:
        """Take entries, in this order, from their owners and give them to nobody; each with its count.

        Logs XNACK, hidden from Redis 7, one for each run of equal counts.
        """
        for released in counts:
            self._assign([released], None, self._next_release_no)
            self._next_release_no += 1
        if not counts:
            return
        self._touch()
        txn = self.stream.txn
        for count, entry_ids in _runs(counts):
            ids = [id_text(entry_id) for entry_id in entry_ids]
            words = [b"XNACK", self.stream.key, self.name, b"FAIL", b"IDS", b"%d" % len(ids), *ids]
            txn.log_extension(self.stream.db.number, [*words, b"RETRYCOUNT", b"%d" % count, b"FORCE"])
        txn.notify_interest(Change.RELEASED, self.stream.db, self.stream.key)

    def _assign(self, counts: Iterable[tuple[StreamID, int]], owner: Consumer | None, time_ms: int) -> None:
        """Make `owner` the owner of entries, each with its count, whoever had them before, if anybody."""
        self._pel_end = None
        former = self.pel.assign(counts, NOBODY if owner is None else owner.consumer_no, time_ms)
        total = 0
        for consumer_no, count in former.items():
            total += count
            if consumer_no is None:
                self.pel_count += count
            elif consumer_no == NOBODY:
                self.released_count -= count
            else:
                self._move_count(self._by_no[consumer_no], -count)
        if owner is None:
            self.released_count += total
        else:
            self._move_count(owner, total)

    def _move_count(self, consumer: Consumer, difference: int) -> None:
        consumer.pel_count += difference
        self._dirty_consumers.add(consumer)

    def _log_claims(self, consumer: Consumer, texts_by_count: dict[int, list[bytes]], time_ms: int) -> None:
        """One XCLAIM for each delivery count; Redis writes one for each entry."""
        key = self.stream.key
        if consumer.claim_head is None or consumer.claim_head[0] != key:
            consumer.claim_head = (key, fmt.encode_words([b"XCLAIM", key, self.name, consumer.name, b"0"]))
        head = consumer.claim_head[1]
        time_text, last_id = b"%d" % time_ms, id_text(self.last_id)
        for count, texts in texts_by_count.items():
            how = _CLAIM_END % (len(time_text), time_text, fmt.bulk(b"%d" % count), len(last_id), last_id)
            self._log_wire(b"*%d\r\n%b%b%b" % (13 + len(texts), head, fmt.encode_words(texts), how))
        self._logged_position = (max(self.last_id, self._logged_position[0]), self._logged_position[1])
        consumer.is_logged = True
        consumer.logged_times = (time_ms, time_ms)

    def _log_wire(self, wire: bytes) -> None:
        """As `_log`, of a command that is encoded already: the usual ones are worth a template, 2 us against 5."""
        txn, db = self.stream.txn, self.stream.db
        if txn.log_db != db.number:
            txn.log_select(db.number)
        txn.log.append(wire)

    def _log(self, words: list[bytes]) -> None:
        self.stream.txn.log_command(self.stream.db.number, words)


class Groups:
    """All groups of one stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.acked_trim_start = MIN_ID  # where the next approximate ACKED trim begins; see reference_trim.py
        self._by_name: dict[bytes, Group] = {}
        if stream.group_count:
            self._load()

    def _load(self) -> None:
        cursor = self.stream.txn.cursor("groups")
        prefix = fmt.stream_prefix(self.stream.stream_no)
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            key, row = cursor.item()
            group_no = fmt.decode_group_no(key)
            if len(key) == fmt.GROUP_KEY_BYTES:
                group = Group.decode(self.stream, group_no, row)
                self._by_name[group.name] = group
            # consumers stand below their group; those of a destroyed one are there until the purge
            found = cursor.set_range(fmt.group_key(self.stream.stream_no, group_no + 1))

    def get(self, name: bytes) -> Group | None:
        return self._by_name.get(name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Group]:
        """In byte order of their names."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def is_referenced(self, entry_id: StreamID) -> bool:
        """Whether some group has not come to the entry yet, or has it pending."""
        for group in self._by_name.values():
            if group.last_id < entry_id or (group.pel_count and group.find(entry_id) is not None):
                return True
        return False

    def write_back(self) -> None:
        for group in self._by_name.values():
            group.write_back()

    # -- mutators ------------------------------------------------------------------------------------------------------

    def create(self, name: bytes, last_id: StreamID, entries_read: int | None, *, is_first: bool) -> Group:
        """A new group; the name is free.  Logs XGROUP CREATE, with MKSTREAM when the stream is new (`is_first`)."""
        stream = self.stream
        txn = stream.txn
        group = Group(stream, txn.next_group_no, name, last_id, entries_read)
        txn.next_group_no += 1
        self._by_name[name] = group
        stream.group_count += 1
        stream.touch()
        read = UNKNOWN if entries_read is None else entries_read
        words = [b"XGROUP", b"CREATE", stream.key, name, id_text(last_id), b"ENTRIESREAD", b"%d" % read]
        if is_first:
            words.append(b"MKSTREAM")
        txn.log_command(stream.db.number, words)
        if is_first:
            txn.notify_interest(Change.CREATED, stream.db, stream.key)
        return group

    def destroy(self, group: Group) -> None:
        """Forget a group; its rows are left to the purge.  Logs XGROUP DESTROY."""
        stream = self.stream
        txn = stream.txn
        txn.lmdb.delete(fmt.group_key(stream.stream_no, group.group_no), db=txn.handles["groups"])
        txn.trash.add_group(group.group_no, stream.stream_no)
        del self._by_name[group.name]
        stream.group_count -= 1
        stream.touch()
        txn.log_command(stream.db.number, [b"XGROUP", b"DESTROY", stream.key, group.name])
        txn.notify_interest(Change.GROUP_REMOVED, stream.db, stream.key)

    def forget(self, entry_ids: list[StreamID]) -> None:
        """Take entries off every group's list (DELREF).  Logs XACK for each group that had any."""
        for group in self:
            if group.pel_count:
                group.ack([pack_id(entry_id) for entry_id in entry_ids])

    def copy_to(self, copy: Stream) -> None:
        """Give `copy`, a new stream, the same groups: consumers, times and pending entries included.  Logs nothing."""
        txn = self.stream.txn
        self.write_back()
        groups = Groups(copy)
        groups._by_name.clear()
        for group in self:
            new = Group.decode(copy, txn.next_group_no, group.encode())
            new.is_dirty = True
            new._consumers = {}
            txn.next_group_no += 1
            groups._by_name[new.name] = new
            for consumer in group.consumers.values():
                twin = Consumer(
                    consumer.consumer_no, consumer.name, consumer.seen_ms, consumer.active_ms, consumer.pel_count
                )
                new._consumers[twin.name] = new._by_no[twin.consumer_no] = twin
                new._dirty_consumers.add(twin)
            new.pel.copy_from(group.pel)
        copy.group_cache = groups
        copy.touch()


def groups_of(stream: Stream) -> Groups:
    """The groups of a stream, read at the first question."""
    groups = stream.group_cache
    if groups is None:
        groups = stream.group_cache = Groups(stream)
    assert isinstance(groups, Groups)
    return groups


def _estimate_read(stream: Stream, entry_id: StreamID) -> int | None:
    """How many entries had been added when `entry_id` was the newest; None when tombstones make that unknowable."""
    if not stream.entries_added:
        return 0
    if not stream.length and entry_id <= stream.last_id:
        return stream.entries_added
    if MIN_ID < entry_id < stream.max_deleted_id:
        return None
    if entry_id == stream.last_id:
        return stream.entries_added
    if entry_id > stream.last_id:
        return None
    if stream.max_deleted_id == MIN_ID or stream.max_deleted_id < stream.first_id:
        if entry_id < stream.first_id:
            return stream.entries_added - stream.length
        if entry_id == stream.first_id:
            return stream.entries_added - stream.length + 1
    return None


def _by_count(counts: dict[StreamID, int]) -> dict[int, list[bytes]]:
    """The texts of the IDs that have each count."""
    texts: dict[int, list[bytes]] = {}
    for entry_id, count in counts.items():
        texts.setdefault(count, []).append(id_text(entry_id))
    return texts


def _runs(counts: list[tuple[StreamID, int]]) -> Iterator[tuple[int, list[StreamID]]]:
    """(count, IDs) of the neighbours with equal counts."""
    run: list[StreamID] = []
    for index, (entry_id, count) in enumerate(counts):
        run.append(entry_id)
        if index + 1 == len(counts) or counts[index + 1][1] != count:
            yield count, run
            run = []
