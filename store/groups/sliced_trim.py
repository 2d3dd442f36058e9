"""Trims in slices: those that respect consumer groups, and those of many nodes.

To count the entries of 40,000 nodes takes 30 ms.  A long trim equals several short ones, each of which is logged.

DELREF removes the trimmed entries from every pending list.  ACKED keeps entries that any group still needs.  Both look
at single entries, so that `~` ends at no partial node, as in Redis; it only allows a limit.

An ACKED trim leaves holes.  No command of Redis makes them without changing `max_deleted_id`.  The trim is logged as
XDEL of the removed entries, and XSETID, which restores `max_deleted_id`.  XSETID cannot restore 0-0: a Redis shows 0-1
then, and an XMAXDELETED line, hidden from Redis, has the truth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from riverbed.store.format.streams import id_in_key, packed_ids_in
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text, unpack_id
from riverbed.store.model import Change, References, Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.streams.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverbed.store.groups.groups import Groups

# One approximate trim examines at most about this many entries.  If most of a long stream is still needed, the next
# trim continues where this one stopped.
_MAX_EXAMINED: Final = 10_000
# A slice examines, or removes from the front, about this many entries: a few milliseconds.
_SLICE: Final = 500
# A slice of a trim that asks no group passes over about this many nodes, in two or three milliseconds; over a fourth of
# them where a limit asks for a look at each.
_SLICE_NODES: Final = 4000
_LOWEST_SETTABLE: Final = StreamID(1)  # XSETID takes 0-0 for nothing


def needs_slices(stream: Stream, trim: Trim) -> bool:
    """Whether the trim needs a `SlicedTrim`; else the stream may trim itself."""
    if trim.references is References.KEEPREF:
        return stream.node_count > _SLICE_NODES
    return trim.approximate or stream.group_count > 0


def nodes_a_slice(trim: Trim) -> int:
    """How many nodes a slice of a trim that asks no group passes over."""
    return max(_SLICE_NODES // 4, 1) if trim.limit else _SLICE_NODES


class SlicedTrim:
    """A trim in slices of one stream.  Holds no reference to it."""

    def __init__(self, trim: Trim) -> None:
        self.removed = 0
        self._trim = trim
        self._stream_no = 0  # not known before the first slice
        self._start: StreamID | None = None  # where ACKED continues
        self._examined = 0

    def step(self, groups: Groups) -> bool:
        """Trim one slice; -> whether it was the last one.  A mutator: logs the trim.

        It ends as well when another stream has taken the key since the slice before.
        """
        if self._stream_no not in (0, groups.stream.stream_no):
            return True
        self._stream_no = groups.stream.stream_no
        if self._trim.references is References.KEEPREF:
            return self._pass_over_nodes(groups.stream)
        before = self.removed
        if self._trim.references is References.DELREF or not len(groups):
            is_last = self._take_front(groups)
        else:
            is_last = self._take_acked(groups)
        if self.removed > before:
            stream = groups.stream
            stream.txn.notify_interest(Change.MODIFIED, stream.namespace, stream.key)
        return is_last

    def _pass_over_nodes(self, stream: Stream) -> bool:
        trim = self._rest()
        if trim is None:
            return True
        removed, is_last = trimming.trim_some(stream, trim, nodes_a_slice(trim))
        self.removed += removed
        return is_last

    def _rest(self) -> Trim | None:
        """What is left of the trim, None when it has removed as many entries as it may."""
        trim = self._trim
        if not trim.limit:
            return trim
        return replace(trim, limit=trim.limit - self.removed) if self.removed < trim.limit else None

    def _take_front(self, groups: Groups) -> bool:
        trim = self._rest()
        if trim is None:
            return True
        part = _front(groups, trim)
        removed = 0 if part is None else _trim_and_forget(groups, part)
        is_last = not removed
        if is_last:  # the trim takes no more than a slice, or the first node alone is more than a slice
            removed = _trim_and_forget(groups, trim)
        self.removed += removed
        if is_last:
            self._take_partial_node(groups)
        return is_last

    def _take_partial_node(self, groups: Groups) -> None:
        """Trim the first node, of which an approximate trim takes no part; the whole nodes before it are gone."""
        trim = self._trim
        _, _, live = next(_nodes(groups.stream, MIN_ID), (MIN_ID, MIN_ID, 0))
        if trim.approximate and live and not (trim.limit and self.removed + live > trim.limit):
            self.removed += _trim_and_forget(groups, replace(trim, approximate=False, limit=0))

    def _take_acked(self, groups: Groups) -> bool:
        stream = groups.stream
        trim = self._trim
        by_length = trim.strategy is Strategy.MAXLEN
        if self._start is None:
            self._start = groups.acked_trim_start if trim.approximate else MIN_ID
        groups.acked_trim_start = MIN_ID
        most_examined = groups.entries_a_slice(_SLICE)
        slowest = min((group.last_id for group in groups), default=MIN_ID)
        taken: list[StreamID] = []
        examined = 0
        is_last = True
        length = stream.length
        for first_id, last_id, live in _nodes(stream, self._start):
            if (by_length and length <= trim.threshold) or first_id > slowest:
                break
            if trim.limit and self.removed + len(taken) + live > trim.limit:
                break
            if trim.approximate and self._examined >= _MAX_EXAMINED:
                groups.acked_trim_start = first_id
                break
            if examined >= most_examined:
                self._start = first_id
                is_last = False
                break
            whole = length - live >= trim.threshold if by_length else last_id < trim.threshold
            most = length - trim.threshold if by_length else live
            gone = _unneeded(groups, first_id, min(last_id, slowest), most, trim)
            taken += gone
            length -= len(gone)
            examined += live
            self._examined += live
            if not whole:
                break
        if taken:
            _drop(stream, taken)
        self.removed += len(taken)
        return is_last


def trim_in_slices(groups: Groups, trim: Trim) -> int:
    """Run all slices of a `SlicedTrim`; -> how many entries were removed."""
    work = SlicedTrim(trim)
    while not work.step(groups):
        pass
    return work.removed


def _front(groups: Groups, trim: Trim) -> Trim | None:
    """The first slice of `trim`, as a trim of its own; None when `trim` takes no more than a slice."""
    stream = groups.stream
    removable = stream.length - trim.threshold if trim.strategy is Strategy.MAXLEN else _SLICE
    most = groups.entries_a_slice(max(min(removable, _SLICE), 0))
    if trim.approximate and most < _SLICE:
        most = max(most, next(_nodes(stream, MIN_ID), (MIN_ID, MIN_ID, 0))[2])  # it takes whole nodes alone
    if stream.length <= most or 0 < trim.limit <= most:
        return None
    if trim.strategy is Strategy.MAXLEN:
        threshold = stream.length - most
        takes_more = threshold > trim.threshold
    else:
        threshold = id_in_key(stream.keys(stream.first_id, MAX_ID, most + 1)[-1])
        takes_more = threshold < trim.threshold
    if not takes_more:
        return None
    return replace(trim, limit=most) if trim.limit else replace(trim, threshold=threshold)


def _trim_and_forget(groups: Groups, trim: Trim) -> int:
    """Trim the front of the stream, and remove its entries from all pending lists.

    Pending records of entries that were deleted earlier stay, as in Redis.
    """
    stream = groups.stream
    candidates = _removable(stream, trim) if any(group.pel_count for group in groups) else []
    trimmed = trimming.trim_front(stream, trim)
    if candidates and trimmed.removed:
        groups.forget(packed_ids_in(candidates[: trimmed.removed]))
    if any(trimmed):
        trimming.log_trim(stream, trim, trimmed)
    return trimmed.removed


def _removable(stream: Stream, trim: Trim) -> list[bytes]:
    """The keys of the entries at the front that the trim may remove at most."""
    most = trim.limit or None
    if trim.strategy is Strategy.MINID:
        return stream.keys(stream.first_id, StreamID(trim.threshold - 1), most) if trim.threshold else []
    over = stream.length - trim.threshold
    return stream.keys(stream.first_id, stream.last_id, over if most is None else min(over, most))


def _drop(stream: Stream, entry_ids: list[StreamID]) -> None:
    """Delete entries as a trim does.  Logs XDEL and XSETID, and XMAXDELETED where XSETID cannot say it."""
    max_deleted_id = stream.max_deleted_id
    stream.drop_entries(entry_ids)
    txn = stream.txn
    txn.log_command(stream.namespace.number, [b"XDEL", stream.key, *map(id_text, entry_ids)])
    settable = max_deleted_id or _LOWEST_SETTABLE
    counters = [b"ENTRIESADDED", b"%d" % stream.entries_added, b"MAXDELETEDID", id_text(settable)]
    txn.log_command(stream.namespace.number, [b"XSETID", stream.key, id_text(stream.last_id), *counters])
    if settable != max_deleted_id:
        txn.log_extension(stream.namespace.number, [b"XMAXDELETED", stream.key, id_text(max_deleted_id)])


def _nodes(stream: Stream, start: StreamID) -> Iterator[tuple[StreamID, StreamID, int]]:
    """(first ID, last ID, live entries) of the nodes that begin at `start` or later."""
    for first_id, node in trimming.closed_nodes(stream, start):
        yield first_id, node.last_id, node.live
    if stream.tail_total:
        yield stream.tail_first_id, stream.tail_last_id, stream.tail_total - stream.tail_dead


def _unneeded(groups: Groups, first_id: StreamID, end: StreamID, most: int, trim: Trim) -> list[StreamID]:
    """The first `most` entries of a node, up to `end` and below the threshold, that no group has pending."""
    if trim.strategy is Strategy.MINID:
        end = min(end, StreamID(trim.threshold - 1))
    if end < first_id:
        return []
    pending: set[bytes] = set()
    for group in groups:
        for run in group.pending_runs(first_id, end):
            pending.update(run.packed_ids)
    return [unpack_id(packed) for packed in packed_ids_in(groups.stream.keys(first_id, end)) if packed not in pending][
        :most
    ]
