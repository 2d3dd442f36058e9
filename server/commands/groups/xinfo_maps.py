"""The maps that XINFO answers with, on the wire.

To fill in a form takes a third of the time that `encode` takes for a map, and there may be thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.protocol.encode import encode
from riverbed.store.format.resp import array_head, bulk, id_bulk
from riverbed.store.groups.known_consumers import NEVER, Consumer
from riverbed.store.streams.idempotence import Idempotence

if TYPE_CHECKING:
    from riverbed.store.format.groups import ConsumerRow, GroupRow
    from riverbed.store.groups.group import Group
    from riverbed.store.streams.stream import Stream

# What a form has for a value: a number, or what is on the wire already.
_NUMBER: Final = b":%d\r\n"
_WIRE: Final = b"%b"


class _Form:
    """A map, or the first pairs of one; `pairs` are the keys in order, each with the kind of its value."""

    def __init__(self, pairs: dict[bytes, bytes]) -> None:
        self._count = len(pairs)
        self._text = b"".join([bulk(key) + kind for key, kind in pairs.items()])

    def filled(self, resp: int, values: tuple[object, ...], more: int = 0) -> bytes:
        """With these values; so many pairs `more` follow."""
        count = self._count + more
        return (b"%%%d\r\n" % count if resp == 3 else array_head(2 * count)) + self._text % values


_STREAM: Final = _Form(
    {
        b"length": _NUMBER,
        b"radix-tree-keys": _NUMBER,
        b"radix-tree-nodes": _NUMBER,
        b"last-generated-id": _WIRE,
        b"max-deleted-entry-id": _WIRE,
        b"entries-added": _NUMBER,
        b"recorded-first-entry-id": _WIRE,
        b"idmp-duration": _NUMBER,
        b"idmp-maxsize": _NUMBER,
        b"pids-tracked": _NUMBER,
        b"iids-tracked": _NUMBER,
        b"iids-added": _NUMBER,
        b"iids-duplicates": _NUMBER,
    }
)
_GROUP: Final = _Form(
    {
        b"name": _WIRE,
        b"consumers": _NUMBER,
        b"pending": _NUMBER,
        b"last-delivered-id": _WIRE,
        b"entries-read": _WIRE,
        b"lag": _WIRE,
    }
)
_FULL_GROUP: Final = _Form(
    {
        b"name": _WIRE,
        b"last-delivered-id": _WIRE,
        b"entries-read": _WIRE,
        b"lag": _WIRE,
        b"pel-count": _NUMBER,
        b"nacked-count": _NUMBER,
    }
)
_CONSUMER: Final = _Form({b"name": _WIRE, b"pending": _NUMBER, b"idle": _NUMBER, b"inactive": _NUMBER})
_FULL_CONSUMER: Final = _Form({b"name": _WIRE, b"seen-time": _NUMBER, b"active-time": _NUMBER, b"pel-count": _NUMBER})


def stream_map(stream: Stream, resp: int, more: int) -> bytes:
    """The pairs that both descriptions of a stream begin with; so many `more` follow."""
    idempotence = Idempotence(stream)
    producers, records = idempotence.tracked()
    return _STREAM.filled(
        resp,
        (
            stream.length,
            stream.node_total,
            # there is no tree here; one more than the nodes is what a flat one would have
            stream.node_total + 1,
            id_bulk(stream.last_id),
            id_bulk(stream.max_deleted_id),
            stream.entries_added,
            id_bulk(stream.first_id),
            idempotence.duration_s,
            idempotence.max_records,
            producers,
            records,
            idempotence.records_added,
            idempotence.duplicates,
        ),
        more,
    )


def group_map(group: Group | GroupRow, behind: int | None, resp: int) -> bytes:
    """A group in XINFO GROUPS."""
    return _GROUP.filled(
        resp,
        (
            bulk(group.name),
            group.consumer_count,
            group.pel_count,
            id_bulk(group.last_id),
            encode(group.entries_read, resp),
            encode(behind, resp),
        ),
    )


def full_group_map(group: Group | GroupRow, behind: int | None, resp: int) -> bytes:
    """A group in XINFO STREAM FULL; its pending entries and its consumers follow."""
    return _FULL_GROUP.filled(
        resp,
        (
            bulk(group.name),
            id_bulk(group.last_id),
            encode(group.entries_read, resp),
            encode(behind, resp),
            group.pel_count,
            group.released_count,
        ),
        more=2,
    )


def consumer_map(consumer: Consumer | ConsumerRow, now_ms: int, resp: int) -> bytes:
    """A consumer in XINFO CONSUMERS."""
    return _CONSUMER.filled(
        resp,
        (
            bulk(consumer.name),
            consumer.pel_count,
            max(now_ms - consumer.seen_ms, 0),
            NEVER if consumer.active_ms == NEVER else max(now_ms - consumer.active_ms, 0),
        ),
    )


def full_consumer_map(consumer: Consumer | ConsumerRow, resp: int) -> bytes:
    """A consumer in XINFO STREAM FULL, times in unix milliseconds; its pending entries follow."""
    values = bulk(consumer.name), consumer.seen_ms, consumer.active_ms, consumer.pel_count
    return _FULL_CONSUMER.filled(resp, values, more=1)
