"""Appends whole runs of XADD to a stream, with the same rows as appending their entries one by one.

`store/wire` copies the bytes.  This module decides the ID and the node of each entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.store.ids import ID_BYTES, StreamID, pack_id, unpack_id
from riverbed.store.tables.transaction import UNBOUNDED_ROW
from riverbed.store.wire import Run, expand, expand_one, load_xadds

if TYPE_CHECKING:
    from riverbed.store.streams.stream import Stream

    Rows = list[tuple[bytes, bytes]]

# More bytes than any run can have.
MAX_ROOM: Final = 1 << 62
_PREFIX_BYTES: Final = 8


def append_run(stream: Stream, run: Run, first_id: StreamID, at: int = 0, end: int | None = None) -> bytes:
    """Append entries `at` to `end` of a run that a client sent, the first with `first_id`; -> the IDs as bulk strings.

    The caller has made sure that `first_id` is above `last_id`, that all IDs fit into its millisecond, and that no
    client waits for or watches the key.  Logs `XADD key id f v ...` for each entry.  An exception leaves some of them.
    """
    txn = stream.txn
    head = _log_head(stream, run)
    rows: Rows = []
    pieces = []
    if end is None:
        end = len(run)
    while at < end:
        key = stream.prefix + first_id.to_bytes(ID_BYTES, "big")
        most = txn.node_max_entries - stream.tail_total
        room = txn.node_max_bytes - stream.tail_bytes
        made = 0
        if stream.tail_total and most > 0 and room > 0:
            made, size, log, ids = expand(run, at, min(most, end - at), room, key, head, rows)
        if not made:
            most = min(txn.node_max_entries, end - at)
            made, size, log, ids = expand(run, at, most, txn.node_max_bytes, key, head, rows)
            if not made:
                made, size, log, ids = expand(run, at, 1, MAX_ROOM, key, head, rows)
                txn.largest_row = UNBOUNDED_ROW
            stream.open_node(first_id)
        if not stream.length:
            stream.first_id = first_id
        _count_in(stream, made, size, StreamID(first_id + made - 1))
        txn.log.append(log)
        pieces.append(ids)
        at += made
        first_id = StreamID(first_id + made)
    txn.appender.putmulti(rows)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def append_one(stream: Stream, run: Run, entry_id: StreamID) -> bytes:
    """As `append_run`, for a run of one entry, without a list.  Clients that wait for each reply send such runs."""
    txn = stream.txn
    key = stream.prefix + entry_id.to_bytes(ID_BYTES, "big")
    row, size, log, reply = expand_one(run, key, _log_head(stream, run))
    put = txn.put_entry  # a local name: Python would call `txn.put_entry(...)` slowly, like a method
    put(key, row)
    total = stream.tail_total
    if total == 0 or total >= txn.node_max_entries or stream.tail_bytes + size >= txn.node_max_bytes:
        stream.open_node(entry_id)
        if size >= txn.node_max_bytes:
            txn.largest_row = UNBOUNDED_ROW
    if not stream.length:
        stream.first_id = entry_id
    _count_in(stream, 1, size, entry_id)
    txn.log.append(log)
    return reply


def _log_head(stream: Stream, run: Run) -> bytes:
    """Select the stream's database in the log; -> the bytes that the run's lines in the log begin with."""
    number = stream.namespace.number
    if stream.txn.log_db != number:
        stream.txn.log_select(number)
    return stream.log_heads.get(run.word_count) or stream.log_head(run.word_count)


def load_run(stream: Stream, run: Run, rows: Rows) -> int:
    """Append the entries of a run of a log, up to the first entry whose ID is not above `last_id`; -> how many.

    Their rows are appended to `rows`; the caller has to put them into the table before reading it.  Logs nothing.
    """
    txn = stream.txn
    last = stream.prefix + pack_id(stream.last_id)
    at, count = 0, len(run)
    while at < count:
        mark = len(rows)
        most = txn.node_max_entries - stream.tail_total
        room = txn.node_max_bytes - stream.tail_bytes
        made = 0
        if stream.tail_total and most > 0 and room > 0:
            made, size, last = load_xadds(run, at, most, room, last, rows)
        if not made:
            most, room = txn.node_max_entries, txn.node_max_bytes
            made, size, last = load_xadds(run, at, most, room, last, rows)
            if not made:
                made, size, last = load_xadds(run, at, 1, MAX_ROOM, last, rows)
                if not made:
                    break
                if size >= txn.node_max_bytes:
                    txn.largest_row = UNBOUNDED_ROW
            stream.open_node(unpack_id(rows[mark][0][_PREFIX_BYTES:]))
        if not stream.length:
            stream.first_id = unpack_id(rows[mark][0][_PREFIX_BYTES:])
        _count_in(stream, made, size, unpack_id(last[_PREFIX_BYTES:]))
        at += made
    return at


def _count_in(stream: Stream, count: int, size: int, last_id: StreamID) -> None:
    """Count `count` entries, up to `last_id`, into the tail node and the stream."""
    stream.tail_total += count
    stream.tail_bytes += size
    stream.length += count
    stream.entries_added += count
    stream.last_id = stream.last_live_id = stream.tail_last_id = last_id
    if not stream.dirty:
        stream.touch()
