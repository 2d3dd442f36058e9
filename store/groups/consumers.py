"""What changes the consumers of a consumer group and its position in the stream: the rows of both.

A group and its consumers are read when first needed, cached with their stream, and written back with it at the next
checkpoint.  Keep no reference to them across ticks.  Their rows hold counters, so that no query counts pending entries.
Which consumers are in memory is decided in `known_consumers.py`.

Mutators change rows and log canonical commands.  A read through a group is logged as its effects: XCLAIM for the
delivered entries, XGROUP SETID for the position.  The TIME of the XCLAIM is also when the consumer was seen and active.
Where these times differ (a read without a result, XCLAIM IDLE ...), an XSEEN line, hidden from Redis, holds them.
Changes of the position or of a consumer that no logged line contains are logged when the command ends.

Lag and entries_read follow the rules of Redis 8.  Pending entries are in `pending_reads.py`, `acks.py` and `group.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.groups import (
    ConsumerRow,
    GroupRow,
    consumer_key,
    group_key,
    look_key,
)
from riverbed.store.format.resp import encode_words
from riverbed.store.format.streams import add_counts, id_in_key
from riverbed.store.groups.known_consumers import Consumer, KnownConsumers
from riverbed.store.groups.lag import estimate_read, is_tombstone_ahead, lag
from riverbed.store.groups.pending.pel import Pel
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text
from riverbed.store.model import NO_POLICY, DeliveryPolicy

if TYPE_CHECKING:
    from riverbed.store.groups.recent_deliveries import RecentDeliveries
    from riverbed.store.model import Row
    from riverbed.store.streams.stream import Stream

UNKNOWN: Final = -1  # how the log writes an entries_read that is not known
# DELCONSUMER deletes up to this many pending entries at once; it leaves more to the purge.
_INLINE_DELETES: Final = 256

_POSITION: Final = b"*7\r\n%b$%d\r\n%b\r\n$11\r\nENTRIESREAD\r\n$%d\r\n%b\r\n"


class Members:
    """A group without its pending entries."""

    def __init__(
        self,
        stream: Stream,
        group_no: int,
        name: bytes,
        last_id: StreamID,
        entries_read: int | None,
        recent_deliveries: RecentDeliveries,
        consumer_count: int = 0,
        next_consumer_no: int = 1,
    ) -> None:
        self.stream = stream
        self.group_no = group_no
        self.name = name
        self.last_id = last_id
        self.entries_read = entries_read
        self.pel_count = 0
        self.released_count = 0  # pending entries that no consumer owns
        self.consumers = KnownConsumers(stream.txn, stream.stream_no, group_no, consumer_count, next_consumer_no)
        self.policy = NO_POLICY
        self.look_ms = 0  # the group's time in table `consumer_ttls`, if its policy has a CONSUMERTTL
        self._is_dirty = False
        self.sweep_place: tuple[int, int] | None = None  # how far a sweep of very many consumers has come
        self._recent_deliveries = recent_deliveries
        self.next_release_no = 1  # rises with each entry that loses its owner
        self.summary: bytes | None = None  # the answer of XPENDING without a range, until something changes
        self._dirty_consumers: set[Consumer] = set()
        self._unlogged: Consumer | None = None  # has changed; the logged lines may not contain all of it
        self._logged_position: tuple[StreamID, int | None] = (last_id, entries_read)
        self._position_head: tuple[bytes, bytes] | None = None  # (key, the first words of XGROUP SETID)
        self.pel = Pel(stream.txn, group_no, self.consumers.is_alive)

    # -- rows of groups and consumers ----------------------------------------------------------------------------------

    def row(self) -> GroupRow:
        return GroupRow(
            self.name,
            self.last_id,
            self.entries_read,
            self.pel_count,
            self.released_count,
            self.consumers.count,
            self.consumers.next_no,
            self.next_release_no,
            None if self.policy is NO_POLICY else self.policy,
            self.look_ms,
        )

    @classmethod
    def of_row(cls, stream: Stream, group_no: int, row: GroupRow, recent_deliveries: RecentDeliveries) -> Self:
        counts = row.consumer_count, row.next_consumer_no
        group = cls(stream, group_no, row.name, row.last_id, row.entries_read, recent_deliveries, *counts)
        group.pel_count = row.pel_count
        group.released_count = row.released_count
        group.next_release_no = row.next_release_no
        group.policy = row.policy or NO_POLICY
        group.look_ms = row.look_ms
        return group

    def write_back(self) -> None:
        """Put the changed rows into their tables."""
        self.pel.write_young()
        txn = self.stream.txn
        groups = txn.handles["groups"]
        if self._is_dirty:
            key = group_key(self.stream.stream_no, self.group_no)
            txn.lmdb.put(key, self.row().pack(key), db=groups)
            self._is_dirty = False
        self.write_consumers()

    def write_consumers(self) -> None:
        """Put the changed rows of consumers into their table."""
        txn = self.stream.txn
        groups = txn.handles["groups"]
        for consumer in self._dirty_consumers:
            key = consumer_key(self.stream.stream_no, self.group_no, consumer.consumer_no)
            row = ConsumerRow(consumer.name, consumer.seen_ms, consumer.active_ms, consumer.pel_count)
            txn.lmdb.put(key, row.pack(key), db=groups)
        self._dirty_consumers.clear()

    def write_part(self) -> bool:
        """Put some of the changed rows into their tables; -> whether these were all."""
        if not self.pel.write_part():
            return False
        self.write_back()
        return True

    def forget(self) -> None:
        """Drop all unwritten changes: the group was destroyed, and its rows must not be written back."""
        self.pel.forget_young()
        self._is_dirty = False
        self._dirty_consumers.clear()
        self._unlogged = None
        self._logged_position = (self.last_id, self.entries_read)

    def touch(self, consumer: Consumer | None = None) -> None:
        """Mark the rows of the group, and of `consumer`, to be written at the next checkpoint.

        Changes of the consumer and of the position that the command's lines do not contain are logged when it ends.
        """
        self.summary = None
        if consumer is not None:
            self._dirty_consumers.add(consumer)
            if self._unlogged is not consumer:
                self._log_later(consumer)
        if not self._is_dirty:
            self._is_dirty = True
            self.stream.txn.dirty.append(self)

    def _mark(self, consumer: Consumer) -> None:
        """As `touch`, for a change that the command's own lines contain."""
        self.summary = None
        self._dirty_consumers.add(consumer)
        if not self._is_dirty:
            self._is_dirty = True
            self.stream.txn.dirty.append(self)

    def _log_later(self, consumer: Consumer) -> None:
        if self._unlogged is not None:
            self.log_rest()
        self.stream.txn.log_later(self)
        self._unlogged = consumer

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def consumer_count(self) -> int:
        return self.consumers.count

    # -- entries_read and lag ------------------------------------------------------------------------------------------

    def lag(self) -> int | None:
        """The number of entries that are still to be delivered; None when it is not known."""
        return lag(self.stream, self.last_id, self.entries_read)

    def _advance(self, rows: list[Row]) -> None:
        """Advance the position and `entries_read` over the entries in `rows`, which follow the group's position."""
        stream = self.stream
        last_id = id_in_key(rows[-1][0])
        left = len(rows)
        while self.entries_read is None or is_tombstone_ahead(stream, self.last_id) or self.last_id < stream.first_id:
            self.last_id = id_in_key(rows[-left][0])
            self.entries_read = estimate_read(stream, self.last_id)
            left -= 1
            if not left:
                return
        # from here on no tombstone can disturb the count
        self.entries_read = add_counts(self.entries_read, left)
        self.last_id = last_id

    # -- mutators: consumers -------------------------------------------------------------------------------------------

    def get_or_create(self, name: bytes, now_ms: int) -> Consumer:
        """-> the consumer `name`, created if it does not exist, and marked as seen at `now_ms`.

        Logs first what an earlier read of the same command has left unlogged.
        """
        if self.stream.txn.unlogged is not None:
            self.stream.txn.end_command()
        consumer = self.consumers.named(name)
        if consumer is None:
            consumer = self.consumers.create(name, now_ms)
            self.stream.txn.changes += 1
            self.touch(consumer)
        elif consumer.seen_ms != now_ms:
            consumer.seen_ms = now_ms
            self.touch(consumer)
        return consumer

    def log_rest(self) -> None:
        """Log the changes that no line contains yet: XGROUP SETID, CREATECONSUMER, and XSEEN, hidden from Redis."""
        if (self.last_id, self.entries_read) != self._logged_position:
            self._log_position()
        consumer, self._unlogged = self._unlogged, None
        if consumer is None:
            return
        if not consumer.is_logged:
            consumer.is_logged = True
            self._log([b"XGROUP", b"CREATECONSUMER", self.stream.key, self.name, consumer.name])
        times = (consumer.seen_ms, consumer.active_ms)
        if times != consumer.logged_times:
            consumer.logged_times = times
            words = [b"XSEEN", self.stream.key, self.name, consumer.name, b"%d" % times[0], b"%d" % times[1]]
            self.stream.txn.log_extension(self.stream.namespace.number, words)

    def set_times(self, consumer: Consumer, seen_ms: int, active_ms: int) -> None:
        """Apply an XSEEN line.  Logs the line again: an import executes XSEEN lines too, and its log needs them."""
        consumer.seen_ms, consumer.active_ms = seen_ms, active_ms
        self.touch(consumer)

    def delete_consumer(self, consumer: Consumer) -> int:
        """Delete a consumer and its pending entries; -> how many these were.  Logs XGROUP DELCONSUMER.

        A long list of entries is only made unreachable; the purge deletes it.
        """
        txn = self.stream.txn
        count = consumer.pel_count
        if count <= _INLINE_DELETES:
            owned = list(self.pel.owned(consumer.consumer_no, MIN_ID, MAX_ID))
            removed, _ = self.pel.remove([packed for run in owned for packed in run.ids()])
            if len(removed) != count:
                raise DamagedRowError("a consumer's list of pending entries", self.stream.stream_no)
        else:
            self.pel.write_young()  # the purge looks for its rows once
            txn.dead_rows.add_consumer(self.group_no, consumer.consumer_no)
        key = consumer_key(self.stream.stream_no, self.group_no, consumer.consumer_no)
        txn.lmdb.delete(key, db=txn.handles["groups"])
        self.consumers.remove(consumer)
        self.pel.forget_recent()
        self._dirty_consumers.discard(consumer)
        if self._unlogged is consumer:
            self._unlogged = None
        self.pel_count -= count
        self.touch()
        self._log([b"XGROUP", b"DELCONSUMER", self.stream.key, self.name, consumer.name])
        return count

    # -- mutators: policy ----------------------------------------------------------------------------------------------

    def set_policy(self, policy: DeliveryPolicy) -> None:
        """Replace the delivery policy; `NO_POLICY` removes it.  Logs XGROUP POLICY, hidden from Redis."""
        self.unlist()
        self.sweep_place = None
        self.policy = NO_POLICY if policy == NO_POLICY else policy
        self.enlist(0)
        self.stream.txn.log_extension(self.stream.namespace.number, policy_words(self.stream.key, self.name, policy))

    def enlist(self, look_ms: int) -> None:
        """Schedule the sweep of the consumers for `look_ms`, at once for 0, if the policy has a CONSUMERTTL."""
        self.look_ms = look_ms
        if self.policy.consumer_ttl_ms:
            key = look_key(look_ms, self.stream.stream_no, self.group_no)
            self.stream.txn.cursor("consumer_ttls").put(key, self.name)
        self.touch()

    def unlist(self) -> None:
        """Cancel the scheduled sweep of the consumers."""
        if self.policy.consumer_ttl_ms:
            txn = self.stream.txn
            key = look_key(self.look_ms, self.stream.stream_no, self.group_no)
            txn.lmdb.delete(key, db=txn.handles["consumer_ttls"])

    # -- mutators: position --------------------------------------------------------------------------------------------

    def set_position(self, last_id: StreamID, entries_read: int | None) -> None:
        """Set the group's position.  Logs XGROUP SETID."""
        self.last_id = last_id
        self.entries_read = entries_read
        self.touch()
        self._log_position()

    def raise_position(self, last_id: StreamID) -> bool:
        """Apply XCLAIM LASTID, which never moves the position back; -> whether it moves it.

        Logs XGROUP SETID when the command ends, unless its XCLAIM contains the position.
        """
        if last_id <= self.last_id:
            return False
        self.last_id = last_id
        self.touch()
        self.stream.txn.log_later(self)
        return True

    def _log_position(self) -> None:
        self._logged_position = (self.last_id, self.entries_read)
        key = self.stream.key
        if self._position_head is None or self._position_head[0] != key:
            self._position_head = (key, encode_words([b"XGROUP", b"SETID", key, self.name]))
        last_id = id_text(self.last_id)
        read = b"%d" % (UNKNOWN if self.entries_read is None else self.entries_read)
        self._log_wire(_POSITION % (self._position_head[1], len(last_id), last_id, len(read), read))

    def _log_wire(self, wire: bytes) -> None:
        """As `_log`, for a command that is encoded already.  Frequent commands use a template: 2 us instead of 5."""
        txn, db = self.stream.txn, self.stream.namespace
        if txn.log_db != db.number:
            txn.log_select(db.number)
        txn.log.append(wire)

    def _log(self, words: list[bytes]) -> None:
        self.stream.txn.log_command(self.stream.namespace.number, words)


def policy_words(key: bytes, name: bytes, policy: DeliveryPolicy) -> list[bytes]:
    """The command that sets the policy of the group `name` of the stream `key`, and replaces any earlier policy."""
    words = [b"XGROUP", b"POLICY", key, name, b"MAXDELIVERIES", b"%d" % policy.max_deliveries]
    if policy.dead_letter is not None:
        words += [b"DEADLETTER", policy.dead_letter]
    return [*words, b"CONSUMERTTL", b"%d" % policy.consumer_ttl_ms]
