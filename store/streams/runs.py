"""Whole runs of XADD appended to a stream: what appending their entries one by one comes to, row by row.

`store/wire` copies the bytes; which entry gets which ID and belongs to which node is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.store.ids import StreamID, pack_id, unpack_id
from riverbed.store.tables.transaction import UNBOUNDED_ROW
from riverbed.store.wire import Run, load_xadds

if TYPE_CHECKING:
    from riverbed.store.streams.stream import Stream

    Rows = list[tuple[bytes, bytes]]

# More bytes than any run has.
MAX_ROOM: Final = 1 << 62
_PREFIX_BYTES: Final = 8


def load_run(stream: Stream, run: Run, rows: Rows) -> int:
    """Append the entries of a run out of a log, up to the first whose ID is not above the last; -> how many.

    Their rows are appended to `rows` and have to be put into the table before it is read.  Nothing is logged.
    """
    txn = stream.txn
    last = pack_id(stream.last_id)
    at, count = 0, run.count
    while at < count:
        mark = len(rows)
        most = txn.node_max_entries - stream.tail_total
        room = txn.node_max_bytes - stream.tail_bytes
        made = 0
        if stream.tail_total and most > 0 and room > 0:
            made, size, last = load_xadds(run, at, most, room, stream.prefix, last, rows)
        if not made:
            most, room = txn.node_max_entries, txn.node_max_bytes
            made, size, last = load_xadds(run, at, most, room, stream.prefix, last, rows)
            if not made:
                made, size, last = load_xadds(run, at, 1, MAX_ROOM, stream.prefix, last, rows)
                if not made:
                    break
                if size >= txn.node_max_bytes:
                    txn.largest_row = UNBOUNDED_ROW
            stream.open_node(unpack_id(rows[mark][0][_PREFIX_BYTES:]))
        if not stream.length:
            stream.first_id = unpack_id(rows[mark][0][_PREFIX_BYTES:])
        _count_in(stream, made, size, unpack_id(last))
        at += made
    return at


def _count_in(stream: Stream, count: int, size: int, last_id: StreamID) -> None:
    """So many entries, up to `last_id`, have come into the open node."""
    stream.tail_total += count
    stream.tail_bytes += size
    stream.length += count
    stream.entries_added += count
    stream.last_id = stream.last_live_id = stream.tail_last_id = last_id
    if not stream.dirty:
        stream.touch()
