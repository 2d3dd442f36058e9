"""The consumers of a consumer group and its position in the stream: the rows of a group and of its consumers.

A group and its consumers are read when first needed, cached with their stream, and written back with it at the next
checkpoint.  Keep no reference to them across ticks.  Their rows hold counters, so that no query counts pending entries.

Mutators change rows and log canonical commands.  A read through a group is logged as its effects: XCLAIM for the
delivered entries, XGROUP SETID for the position.  The TIME of the XCLAIM is also when the consumer was seen and active.
Where these times differ (a read without a result, XCLAIM IDLE ...), an XSEEN line, hidden from Redis, holds them.
Changes of the position or of a consumer that no logged line contains are logged when the command ends.

Lag and entries_read follow the rules of Redis 8.  Pending entries are in `group.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.groups import (
    GROUP_KEY_BYTES,
    ConsumerRow,
    GroupRow,
    consumer_key,
    decode_consumer_no,
    group_key,
    look_key,
)
from riverbed.store.format.pending import UNOWNED
from riverbed.store.format.resp import bulk, encode_words
from riverbed.store.format.streams import id_in_key
from riverbed.store.groups.lag import estimate_read, is_tombstone_ahead, lag
from riverbed.store.groups.pending import Pel
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text
from riverbed.store.model import NO_POLICY, DeliveryPolicy
from riverbed.store.tables.ranges import seek

if TYPE_CHECKING:
    from riverbed.store.groups.recent_deliveries import RecentDeliveries
    from riverbed.store.model import Row
    from riverbed.store.streams.stream import Stream

NEVER: Final = -1
UNKNOWN: Final = -1  # how the log writes an entries_read that is not known
# DELCONSUMER deletes up to this many pending entries at once; it leaves more to the purge.
_INLINE_DELETES: Final = 256
_FEW_CONSUMERS: Final = 100
# What a consumer takes in memory, and how often its name is in it.
_CONSUMER_BYTES: Final = 440
_NAME_COPIES: Final = 2

_POSITION: Final = b"*7\r\n%b$%d\r\n%b\r\n$11\r\nENTRIESREAD\r\n$%d\r\n%b\r\n"


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
    ) -> None:
        self.stream = stream
        self.group_no = group_no
        self.name = name
        self.last_id = last_id
        self.entries_read = entries_read
        self.pel_count = 0
        self.released_count = 0  # pending entries that no consumer owns
        self.consumer_count = 0
        self.policy = NO_POLICY
        self.look_ms = 0  # the group's time in table `consumer_ttls`, if its policy has a CONSUMERTTL
        self._is_dirty = False
        self._recent_deliveries = recent_deliveries
        self.consumer_bytes = 0  # about what the consumers in memory take
        self.used_at = 0  # the turn of the last use of them
        self._next_consumer_no = 1
        self._next_release_no = 1
        self._consumers: dict[bytes, Consumer] | None = None
        self._by_no: dict[int, Consumer] = {}
        self._names: dict[int, bytes] = {UNOWNED: bulk(b"")}  # of those consumers, as bulk strings
        self.summary: bytes | None = None  # the answer of XPENDING without a range, until something changes
        self._dirty_consumers: set[Consumer] = set()
        self._unlogged: Consumer | None = None  # has changed; the logged lines may not contain all of it
        self._logged_position: tuple[StreamID, int | None] = (last_id, entries_read)
        self._position_head: tuple[bytes, bytes] | None = None  # (key, the first words of XGROUP SETID)
        self.pel = Pel(stream.txn, group_no, self._is_alive)

    # -- rows of groups and consumers ----------------------------------------------------------------------------------

    def row(self) -> GroupRow:
        return GroupRow(
            self.name,
            self.last_id,
            self.entries_read,
            self.pel_count,
            self.released_count,
            self.consumer_count,
            self._next_consumer_no,
            self._next_release_no,
            None if self.policy is NO_POLICY else self.policy,
            self.look_ms,
        )

    @classmethod
    def of_row(cls, stream: Stream, group_no: int, row: GroupRow, recent_deliveries: RecentDeliveries) -> Self:
        group = cls(stream, group_no, row.name, row.last_id, row.entries_read, recent_deliveries)
        group.pel_count = row.pel_count
        group.released_count = row.released_count
        group.consumer_count = row.consumer_count
        group._next_consumer_no = row.next_consumer_no
        group._next_release_no = row.next_release_no
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

    def leave_consumers(self) -> None:
        """Have the consumers in memory freed later: the group is gone."""
        txn = self.stream.txn
        for objects in (self._consumers or {}, self._by_no, self._names):
            txn.leave(objects)
        self._consumers, self._by_no, self._names = None, {}, {}

    def _load_consumers(self) -> dict[bytes, Consumer]:
        """Read the rows of all consumers, or of none.

        Their keys are not in their checksums, so they are compared with what the group's row says.  Raises
        DamagedRowError.
        """
        found = []
        cursor = self.stream.txn.cursor("groups")
        prefix = group_key(self.stream.stream_no, self.group_no)
        if self.consumer_count and seek(cursor, prefix):
            for key, row in cursor.iternext():
                if not key.startswith(prefix):
                    break
                if len(key) > GROUP_KEY_BYTES:
                    found.append(Consumer(decode_consumer_no(key), *ConsumerRow.unpack(key, row)))
        numbers = [consumer.consumer_no for consumer in found]
        if len(found) != self.consumer_count or max(numbers, default=0) >= self._next_consumer_no:
            raise DamagedRowError("a consumer's row", self.stream.stream_no)
        self._consumers = {}
        for consumer in found:
            self._add(self._consumers, consumer)
        return self._consumers

    def _add(self, consumers: dict[bytes, Consumer], consumer: Consumer) -> None:
        consumers[consumer.name] = self._by_no[consumer.consumer_no] = consumer
        self._names[consumer.consumer_no] = bulk(consumer.name)
        self._count_memory(consumer, 1)

    def _count_memory(self, consumer: Consumer, sign: int) -> None:
        size = sign * (_CONSUMER_BYTES + _NAME_COPIES * len(consumer.name))
        self.consumer_bytes += size
        self.stream.txn.consumer_bytes += size

    def _know_consumers(self) -> None:
        self.used_at = self.stream.txn.turn
        if self._consumers is None:
            self._load_consumers()

    def _is_alive(self, consumer_no: int) -> bool:
        self._know_consumers()
        return consumer_no in self._by_no

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
    def has_few_consumers(self) -> bool:
        """Whether few consumers are in memory."""
        return len(self._by_no) <= _FEW_CONSUMERS

    @property
    def consumers(self) -> dict[bytes, Consumer]:
        """The consumers by name, in no order."""
        self.used_at = self.stream.txn.turn
        return self._load_consumers() if self._consumers is None else self._consumers

    def sorted_consumers(self) -> list[Consumer]:
        """The consumers in byte order of their names."""
        return [consumer for _, consumer in sorted(self.consumers.items())]

    def _owner_nos(self) -> Iterator[int]:
        return (consumer.consumer_no for consumer in self.consumers.values() if consumer.pel_count)

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
        self.entries_read += left
        self.last_id = last_id

    # -- mutators: consumers -------------------------------------------------------------------------------------------

    def get_or_create(self, name: bytes, now_ms: int) -> Consumer:
        """-> the consumer `name`, created if it does not exist, and marked as seen at `now_ms`.

        Logs first what an earlier read of the same command has left unlogged.
        """
        if self.stream.txn.unlogged is not None:
            self.stream.txn.end_command()
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = Consumer(self._next_consumer_no, name, now_ms, NEVER, 0)
            consumer.is_logged = False
            consumer.logged_times = (NEVER, NEVER)
            self._next_consumer_no += 1
            self.consumer_count += 1
            self._add(self.consumers, consumer)
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

    def create_consumer(self, name: bytes, now_ms: int) -> Consumer:
        """Create a consumer; the name must be free.  Logs XGROUP CREATECONSUMER."""
        return self.get_or_create(name, now_ms)

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
        del self.consumers[consumer.name]
        del self._by_no[consumer.consumer_no]
        del self._names[consumer.consumer_no]
        self._count_memory(consumer, -1)
        self.pel.forget_recent()
        self._dirty_consumers.discard(consumer)
        if self._unlogged is consumer:
            self._unlogged = None
        self.consumer_count -= 1
        self.pel_count -= count
        self.touch()
        self._log([b"XGROUP", b"DELCONSUMER", self.stream.key, self.name, consumer.name])
        return count

    # -- mutators: policy ----------------------------------------------------------------------------------------------

    def set_policy(self, policy: DeliveryPolicy) -> None:
        """Replace the delivery policy; `NO_POLICY` removes it.  Logs XGROUP POLICY, hidden from Redis."""
        self.unlist()
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

    def raise_position(self, last_id: StreamID) -> None:
        """Apply XCLAIM LASTID, which never moves the position back.

        Logs XGROUP SETID when the command ends, unless its XCLAIM contains the position.
        """
        if last_id > self.last_id:
            self.last_id = last_id
            self.touch()
            self.stream.txn.log_later(self)

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
