"""Read the streams of a live Redis through its commands XINFO, XPENDING and XRANGE, a page at a time.

Works with 7 and later.  For values that 5 and 6 do not report, it assumes what a newer Redis assumes when it loads
their data.  Memory is bounded by a page, and by 40 bytes for each pending entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from riverbed.store.ids import MAX_ID, MIN_ID, SEQ_BITS, StreamID, id_ms, id_seq, id_text, make_id, parse_id
from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import LongReplyError, RedisClient, ReplyError, fields

_PENDING_PAGE: Final = 500
# A page is read again when the clock ticked meanwhile: the reply has idle times, from which we compute delivery times.
_CLOCK_TRIES: Final = 50
_ENTRY_PAGE_BYTES: Final = 1 << 20
_MAX_ENTRIES_A_PAGE: Final = 5000
# The idle time with which XPENDING shows that an entry belongs to no consumer (8.8).
_RELEASED_IDLE: Final = -1
UNOWNED: Final = -1


# Of a server that was not told otherwise, in seconds and records.
DEFAULT_IDEMPOTENCE: Final = (100, 100)


@dataclass(frozen=True, slots=True)
class LiveConsumer:
    name: bytes
    # Not compared: these times change when consumers only poll.
    seen_ms: int = field(compare=False)
    active_ms: int = field(compare=False)
    pending: int


@dataclass(frozen=True, slots=True)
class LiveGroup:
    name: bytes
    last_id: StreamID
    entries_read: int | None
    pending: int
    consumers: tuple[LiveConsumer, ...]


@dataclass(frozen=True, slots=True)
class LiveStream:
    """What XINFO reports about a stream besides its entries."""

    length: int
    last_id: StreamID
    max_deleted_id: StreamID
    entries_added: int
    groups: tuple[LiveGroup, ...]
    has_idempotence: bool = field(compare=False)  # records
    idempotence: tuple[int, int] = field(compare=False)  # the seconds that a record counts, and records of a producer

    @property
    def pending(self) -> int:
        return sum(group.pending for group in self.groups)

    def grew_to(self, later: LiveStream) -> bool:
        """Whether the stream only had appends between this moment and `later`."""
        appended = later.entries_added - self.entries_added
        same = replace(later, length=self.length, last_id=self.last_id, entries_added=self.entries_added)
        return later.length - self.length == appended and same == self


def describe(client: RedisClient, key: bytes) -> LiveStream | None:
    """The stream at `key` now; None when the key is gone or no longer a stream."""
    try:
        try:
            full = fields(client.call("XINFO", "STREAM", key, "FULL", "COUNT", 1))
            groups = tuple(_full_group(fields(group)) for group in full[b"groups"])
        except ReplyError as error:
            if error.code != "ERR" or "no such key" in str(error):
                raise
            # before 6.0
            full = fields(client.call("XINFO", "STREAM", key))
            groups = tuple(_old_groups(client, key))
        length = full[b"length"]
        return LiveStream(
            length,
            _id(full[b"last-generated-id"]),
            _id(full.get(b"max-deleted-entry-id", b"0-0")),
            full.get(b"entries-added", length),
            groups,
            bool(full.get(b"iids-tracked", 0)),
            (full.get(b"idmp-duration", DEFAULT_IDEMPOTENCE[0]), full.get(b"idmp-maxsize", DEFAULT_IDEMPOTENCE[1])),
        )
    except ReplyError as error:
        if error.code == "WRONGTYPE" or "no such key" in str(error):
            return None
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(f"{client.address}: XINFO of {key!r} has no known form: {error!r}") from error


def _id(text: bytes) -> StreamID:
    entry_id = parse_id(text)
    if entry_id is None:
        raise ValueError(f"{text!r} is not an ID")
    return entry_id


def _full_group(group: dict[bytes, Any]) -> LiveGroup:
    consumers = []
    for consumer in map(fields, group[b"consumers"]):
        seen_ms = consumer[b"seen-time"]
        # 7.0 and before report none; a later Redis that loads their data uses seen-time.
        active_ms = consumer.get(b"active-time", seen_ms)
        count = consumer.get(b"pel-count", consumer.get(b"pending", 0))
        consumers.append(LiveConsumer(consumer[b"name"], seen_ms, active_ms, count))
    pending = group.get(b"pel-count", 0)
    return LiveGroup(
        group[b"name"], _id(group[b"last-delivered-id"]), group.get(b"entries-read"), pending, tuple(consumers)
    )


def _old_groups(client: RedisClient, key: bytes) -> Iterator[LiveGroup]:
    for group in map(fields, client.call("XINFO", "GROUPS", key)):
        now_ms, replies = client.call_all([("TIME",), ("XINFO", "CONSUMERS", key, group[b"name"])])
        consumers = []
        for consumer in map(fields, replies):
            seen_ms = _milliseconds(now_ms) - consumer[b"idle"]
            consumers.append(LiveConsumer(consumer[b"name"], seen_ms, seen_ms, consumer[b"pending"]))
        yield LiveGroup(group[b"name"], _id(group[b"last-delivered-id"]), None, group[b"pending"], tuple(consumers))


def _milliseconds(time: Any) -> int:
    seconds, microseconds = time
    return int(seconds) * 1000 + int(microseconds) // 1000


# -- pending entries ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LivePending:
    """The pending entries of a group by ID: five numbers each, one of them an index of `consumers`."""

    consumers: list[bytes] = field(default_factory=list)
    _numbers: array[int] = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        return len(self._numbers) // 5

    def add(self, entry_id: StreamID, consumer: int, time_ms: int, count: int) -> None:
        """`consumer` is an index of `consumers`, or UNOWNED."""
        self._numbers.extend((id_ms(entry_id), id_seq(entry_id), consumer + 1, time_ms, count))

    @property
    def last_id(self) -> StreamID:
        """The highest ID, 0-0 when nothing is pending."""
        return make_id(*self._numbers[-5:-3]) if self._numbers else MIN_ID

    def ids(self) -> Iterator[StreamID]:
        numbers = self._numbers
        for at in range(0, len(numbers), 5):
            yield make_id(numbers[at], numbers[at + 1])

    def rows(self) -> Iterator[tuple[StreamID, int, int, int]]:
        """For each entry: ID, index of the consumer or UNOWNED, delivery time in unix ms, delivery count."""
        numbers = self._numbers
        for at in range(0, len(numbers), 5):
            ms, seq, consumer, time_ms, count = numbers[at : at + 5]
            yield make_id(ms, seq), consumer - 1, time_ms, count


def read_pending(client: RedisClient, key: bytes, group: bytes, end: StreamID = MAX_ID) -> LivePending:
    """The pending entries of `group` up to `end`; delivery times are exact if a page took less than a millisecond."""
    pending = LivePending()
    places: dict[bytes, int] = {}
    start = MIN_ID
    while True:
        now_ms, page = _pending_page(client, key, group, start, end)
        for entry_id, consumer, idle_ms, count in page:
            found = _id(entry_id)
            if found < start:  # a server that answers so might do it for ever
                raise ValueError(f"pending entry {entry_id!r} behind those from {id_text(start).decode()} on")
            start = found
            if idle_ms == _RELEASED_IDLE:
                pending.add(start, UNOWNED, 0, count)
                continue
            place = places.get(consumer)
            if place is None:
                place = places[consumer] = len(pending.consumers)
                pending.consumers.append(consumer)
            pending.add(start, place, max(now_ms - idle_ms, 0), count)
        if len(page) < _PENDING_PAGE or start >= end:
            return pending
        start = StreamID(start + 1)


def _pending_page(
    client: RedisClient, key: bytes, group: bytes, start: StreamID, end: StreamID
) -> tuple[int, list[Any]]:
    request = ("XPENDING", key, group, id_text(start), id_text(end), _PENDING_PAGE)
    for _ in range(_CLOCK_TRIES):
        before, page, after = client.call_all([("TIME",), request, ("TIME",)])
        if _milliseconds(before) == _milliseconds(after):
            break
    return _milliseconds(after), page


# -- entries -----------------------------------------------------------------------------------------------------------


def read_entries(client: RedisClient, key: bytes, end: StreamID) -> Iterator[tuple[StreamID, list[bytes]]]:
    """The entries up to `end`: ID, and fields and values in turn.  The next page is requested while one is used.

    A page that is longer than replies may be is asked for again with fewer entries.
    """
    count = 100
    asked = MIN_ID
    first, last = id_text(asked), id_text(end)
    client.send([("XRANGE", key, first, last, "COUNT", count)])
    while True:
        received = client.bytes_received
        try:
            page = client.receive()
        except LongReplyError:
            if count == 1:
                raise
            count = fewer(count)
            client.reconnect()
            client.send([("XRANGE", key, first, last, "COUNT", count)])
            continue
        page_bytes = max(client.bytes_received - received, 1)
        is_last = len(page) < count or _id(page[-1][0]) >= end
        if page and _id(page[-1][0]) < asked:  # a server that answers so might do it for ever
            raise ValueError(f"XRANGE from {id_text(asked).decode()} on ends with {page[-1][0]!r}")
        if not is_last:
            count = min(max(len(page) * _ENTRY_PAGE_BYTES // page_bytes, 1), 4 * count, _MAX_ENTRIES_A_PAGE)
            asked = StreamID(_id(page[-1][0]) + 1)
            first = id_text(asked)
            client.send([("XRANGE", key, first, last, "COUNT", count)])
        for entry_id, words in page:
            if words is not None:
                yield _id(entry_id), words
        if is_last:
            return


def fewer(count: int) -> int:
    """How many entries to ask for when `count` of them make too long a reply."""
    return max(count // 8, 1)


def delivery_policy(client: RedisClient, key: bytes, group: bytes) -> list[bytes]:
    """The words after `XGROUP POLICY key group` that set the group's policy; none when it has no policy."""
    if not client.is_riverbed:
        return []
    policy = fields(client.call("XGROUP", "POLICY", key, group))
    words: list[bytes] = []
    if policy[b"max-deliveries"]:
        words += [b"MAXDELIVERIES", b"%d" % policy[b"max-deliveries"], b"DEADLETTER", policy[b"dead-letter"]]
    if policy[b"consumer-ttl"]:
        words += [b"CONSUMERTTL", b"%d" % policy[b"consumer-ttl"]]
    return words


def deadline_ms(client: RedisClient, key: bytes) -> int | None:
    """When `key` expires, in unix milliseconds."""
    try:
        found = client.call("PEXPIRETIME", key)
    except ReplyError:  # before 7.0
        now, left = client.call_all([("TIME",), ("PTTL", key)])
        found = _milliseconds(now) + left if left >= 0 else left
    return found if found >= 0 else None


assert SEQ_BITS == 64  # LivePending keeps the halves of an ID in 64 bits each
