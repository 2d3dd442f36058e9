"""The part of the check that walks one stream: its counters, entries and nodes side by side, groups and records.

Most rows of a store are entries, so the loop over entries takes most of the time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from riverbed.store.check.findings import Pass, View, show, show_id
from riverbed.store.check.groups import check_groups
from riverbed.store.check.records import check_stream_records
from riverbed.store.format.entries import bare_values
from riverbed.store.format.resp import decode_entry
from riverbed.store.format.streams import (
    ENTRY_KEY_BYTES,
    NodeRow,
    StreamRow,
    decode_stream_prefix,
    id_in_key,
    stream_prefix,
)
from riverbed.store.ids import MIN_ID, StreamID, id_text, pack_id
from riverbed.store.tables.places import seek_below
from riverbed.store.wire import measure_entries

_ENTRY_TABLES: Final = ("entries", "nodes")
# Rows between two yields.
_ROWS_A_LOOK: Final = 256


def check_stream(view: View, key: str, stream: StreamRow) -> Pass:
    """Check the stream at `key`, whose row is `stream`, with its groups and records."""

    def broken(reason: str) -> None:
        view.add("keys", key, reason)

    assert view.meta is not None
    if stream.stream_no >= view.meta.next_stream_no:
        broken(f"stream_no {stream.stream_no}, and {view.meta.next_stream_no} is the next to be given out")
    if view.is_dead_number(stream.stream_no):
        broken(f"stream {stream.stream_no} is in use, and to be purged as well")
    if not 0 <= stream.tail_dead <= stream.tail_total:
        broken(f"{stream.tail_dead} of the {stream.tail_total} entries of the last node are gone")
    if stream.last_live_id > stream.last_id:
        broken(f"last_id {show_id(stream.last_id)} is below its newest entry {show_id(stream.last_live_id)}")
    if stream.entries_added < stream.length:
        broken(f"{stream.length} entries, but only {stream.entries_added} were ever added")
    _check_floor(view, key, stream)
    yield from _check_entries(view, key, stream)
    yield from check_groups(view, key, stream)
    if stream.idempotence is not None:
        yield from check_stream_records(view, key, stream.idempotence)


def _check_floor(view: View, key: str, stream: StreamRow) -> None:
    """Check that the trash names all rows below the floor, which are dead."""
    prefix = stream_prefix(stream.stream_no)
    purged_to = view.notes.floors.get(stream.stream_no, MIN_ID)
    if purged_to > stream.floor_id:
        reason = (
            f"entries of {key} below {show_id(purged_to)} are to be purged, and its floor is {show_id(stream.floor_id)}"
        )
        view.add("trash", f"stream {stream.stream_no}", reason)
    for table in _ENTRY_TABLES:
        cursor = view.cursor(table)
        if seek_below(cursor, prefix + pack_id(stream.floor_id)) and cursor.key().startswith(prefix):
            entry_id = id_in_key(cursor.key())
            if entry_id >= purged_to:
                reason = f"is below the floor {show_id(stream.floor_id)} of {key}, and no note has it purged"
                view.add(table, _place(stream.stream_no, entry_id), reason)


def _place(stream_no: int, entry_id: StreamID) -> str:
    return f"stream {stream_no}, {show_id(entry_id)}"


class _NodeCount:
    """One node, and the entries found in it."""

    def __init__(self, prefix: bytes, first_id: StreamID, live: int, total: int, size: int, last_id: StreamID) -> None:
        self.first_key = prefix + pack_id(first_id)
        self.last_key = prefix + pack_id(last_id)
        self.first_id = first_id
        self.live = live
        self.total = total
        self.size = size
        self.last_id = last_id
        self.found = 0
        self.found_bytes = 0


def _check_entries(view: View, key: str, stream: StreamRow) -> Pass:
    """Check entries and nodes side by side, from the floor on."""
    stream_no = stream.stream_no
    nodes = _nodes(view, stream)
    node: _NodeCount | None = None
    coming = next(nodes, None)
    count = node_count = 0
    first_id = last_id = MIN_ID
    for keys, sizes in _measured(view, stream):
        yield
        first_id = first_id if count else id_in_key(keys[0])
        last_id = id_in_key(keys[-1])
        count += len(keys)
        at = 0
        while at < len(keys):
            while coming is not None and coming.first_key <= keys[at]:
                _finish_node(view, stream, node, coming)
                node, coming = coming, next(nodes, None)
                node_count += 1
            before = len(keys) if coming is None else bisect_left(keys, coming.first_key, at)
            end = at if node is None else bisect_right(keys, node.last_key, at, before)
            if node is not None:
                node.found += end - at
                node.found_bytes += sum(sizes[at:end])
            for packed in keys[end:before]:
                view.add("entries", _place(stream_no, id_in_key(packed)), "is in no node")
            at = before
    while node is not None or coming is not None:
        yield
        _finish_node(view, stream, node, coming)
        node_count += coming is not None
        node, coming = coming, next(nodes, None)

    view.contents.streams += 1
    view.contents.entries += count
    found = (count, first_id, last_id)
    stored = (stream.length, stream.first_id, stream.last_live_id)
    if found != stored:
        real, claimed = (
            f"{length} entries from {show_id(first)} to {show_id(last)}" for length, first, last in (found, stored)
        )
        view.add("keys", key, f"{claimed}, but there are {real}")
    if node_count != stream.node_count + (stream.tail_total > 0):
        view.add("keys", key, f"{stream.node_count} closed nodes counted, {node_count} found with the last one")


def _measured(view: View, stream: StreamRow) -> Iterator[tuple[list[bytes], list[int]]]:
    """The keys of the entries from the floor on, and the bytes that a node counts for each, some hundreds at a time."""
    prefix = stream_prefix(stream.stream_no)
    cursor = view.cursor("entries")
    if not cursor.set_range(prefix + pack_id(stream.floor_id)):
        return
    rows = iter(cursor.iternext())
    is_over = False
    while not is_over:
        keys, sizes, odd = measure_entries(rows, prefix, _ROWS_A_LOOK)
        is_over = len(keys) < _ROWS_A_LOOK
        view.walked += len(keys)
        for packed, row in odd:
            if len(packed) != ENTRY_KEY_BYTES:
                view.add("entries", show(packed), "is not the key of an entry")
            else:
                entry_id = id_in_key(packed)
                view.decode("entries", _place(stream.stream_no, entry_id), _measure_exactly, packed, entry_id, row)
        if odd:
            sound = [pair for pair in zip(keys, sizes, strict=True) if len(pair[0]) == ENTRY_KEY_BYTES]
            keys, sizes = [key for key, _ in sound], [max(size, 0) for _, size in sound]
        if keys:
            yield keys, sizes


def _measure_exactly(packed: bytes, entry_id: StreamID, row: bytes) -> None:
    """Raise ValueError with the reason why the row is not RESP that can be sent to a reader."""
    (bare,) = bare_values(stream_prefix(decode_stream_prefix(packed)), [row])
    text, words = decode_entry(bare)
    if text != id_text(entry_id):
        raise ValueError(f"is the row of {text.decode(errors='replace')}")
    if not words or len(words) % 2:
        raise ValueError(f"{len(words)} words are not fields with values")
    raise ValueError("a length is written in an unusual way")


def _nodes(view: View, stream: StreamRow) -> Iterator[_NodeCount]:
    """The closed nodes above the floor, and the last node, which the stream's row holds."""
    prefix = stream_prefix(stream.stream_no)
    for packed, row in view.rows("nodes", prefix, prefix + pack_id(stream.floor_id)):
        first_id = id_in_key(packed)
        values = view.decode("nodes", _place(stream.stream_no, first_id), NodeRow.unpack, packed, row)
        if values is not None:
            yield _NodeCount(prefix, first_id, *values)
    if stream.tail_total:
        live = stream.tail_total - stream.tail_dead
        yield _NodeCount(prefix, stream.tail_first_id, live, stream.tail_total, stream.tail_bytes, stream.tail_last_id)


def _finish_node(view: View, stream: StreamRow, node: _NodeCount | None, following: _NodeCount | None) -> None:
    if node is None:
        return

    def broken(reason: str) -> None:
        view.add("nodes", _place(stream.stream_no, node.first_id), reason)

    if node.found != node.live:
        broken(f"{node.live} live entries counted, there are {node.found}")
    if not 0 <= node.live <= node.total or node.total < 1:
        broken(f"{node.live} live entries of {node.total}")
    if node.found_bytes > node.size or (node.live == node.total and node.found_bytes != node.size):
        broken(f"{node.size} bytes counted, there are {node.found_bytes}")
    if node.last_id < node.first_id or (following is not None and following.first_id <= node.last_id):
        broken(f"ends at {show_id(node.last_id)}, where it has not begun or the next one has")
    if node.last_id > stream.last_id:
        broken(f"ends at {show_id(node.last_id)}, above the stream's last_id {show_id(stream.last_id)}")
