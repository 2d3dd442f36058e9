"""Trims that heed consumer groups: DELREF takes the removed entries off every pending list, ACKED spares what any
group still needs.

An ACKED trim leaves holes, which no stock command says without touching `max_deleted_id`.  It is logged as XDEL of
what went, and an XMAXDELETED line, hidden from Redis, that sets `max_deleted_id` right again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from store import trimming
from store.groups import groups_of
from store.ids import MIN_ID, StreamID, id_text, pack_id, unpack_id
from store.model import References, Strategy, Trim
from store.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from store.groups import Groups

# Entries that one approximate trim looks at; where most of a long stream is still needed the next one goes on there.
_MOST_EXAMINED: Final = 10_000


def trim_with_references(stream: Stream, trim: Trim) -> int:
    """Trim a stream that has groups by DELREF or ACKED; -> how many entries went.  A mutator: logs what it did."""
    if trim.references is References.DELREF:
        return _trim_and_forget(stream, trim)
    return _trim_acked(stream, groups_of(stream), trim)


def _trim_and_forget(stream: Stream, trim: Trim) -> int:
    """The front of the stream goes, and with it all that is pending there, tombstones too."""
    old_first_id = stream.first_id
    trimmed = trimming.trim_front(stream, trim)
    if trimmed.removed:
        last_id = StreamID(stream.first_id - 1) if stream.length else stream.last_id
        for group in groups_of(stream):
            group.ack([pack_id(entry.entry_id) for entry in group.pending(old_first_id, last_id)])
    if any(trimmed):
        stream.txn.log_command(stream.db.number, [b"XTRIM", stream.key, *trimming.exact_words(stream, trim, trimmed)])
    return trimmed.removed


def _trim_acked(stream: Stream, groups: Groups, trim: Trim) -> int:
    by_length = trim.strategy is Strategy.MAXLEN
    removed: list[StreamID] = []
    examined = 0
    length = stream.length
    start, groups.acked_trim_start = groups.acked_trim_start if trim.approximate else MIN_ID, MIN_ID
    for first_id, last_id, live in _nodes(stream, start):
        if by_length and length <= trim.threshold:
            break
        if trim.limit and len(removed) + live > trim.limit:
            break
        if trim.approximate and examined >= _MOST_EXAMINED:
            groups.acked_trim_start = first_id
            break
        whole = length - live >= trim.threshold if by_length else last_id < trim.threshold
        if trim.approximate and not whole:
            break
        most = length - trim.threshold if by_length else live
        gone = _unneeded(stream, groups, first_id, last_id, most, trim)
        removed += gone
        length -= len(gone)
        examined += live
        if not whole:
            break
    if removed:
        max_deleted_id = stream.max_deleted_id
        stream.drop_entries(removed)
        txn = stream.txn
        txn.log_command(stream.db.number, [b"XDEL", stream.key, *map(id_text, removed)])
        txn.log_extension(stream.db.number, [b"XMAXDELETED", stream.key, id_text(max_deleted_id)])
    return len(removed)


def _nodes(stream: Stream, start: StreamID) -> Iterator[tuple[StreamID, StreamID, int]]:
    """(first ID, last ID, live entries) of the nodes that begin at `start` or later."""
    for first_id, live, _, _, last_id in stream.closed_nodes(start):
        yield first_id, last_id, live
    if stream.tail_total:
        yield stream.tail_first_id, stream.tail_last_id, stream.tail_total - stream.tail_dead


def _unneeded(
    stream: Stream, groups: Groups, first_id: StreamID, last_id: StreamID, most: int, trim: Trim
) -> list[StreamID]:
    """The first `most` entries of a node below the threshold that every group has been given and none has pending."""
    slowest = min((group.last_id for group in groups), default=MIN_ID)
    end = min(last_id, slowest)
    if trim.strategy is Strategy.MINID:
        end = min(end, StreamID(trim.threshold - 1))
    if end < first_id:
        return []
    pending = {entry.entry_id for group in groups for entry in group.pending(first_id, StreamID(end))}
    entry_ids = [unpack_id(key[8:]) for key, _ in stream.rows(first_id, StreamID(end))]
    return [entry_id for entry_id in entry_ids if entry_id not in pending][:most]
