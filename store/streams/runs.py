"""Appends runs of XADD to streams, with the same rows as appending their entries one by one.

`store/wire` appends to a `Tail`, as far as this module allows it for a stream: it *lends* the stream, and takes it back
before anything else looks at the stream.  So Python runs once for a node, not once for an entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.store.format.streams import id_in_key
from riverbed.store.ids import MIN_ID, StreamID, pack_id, unpack_id
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams.nodes import first_node
from riverbed.store.streams.trimming import trim_front
from riverbed.store.tables.writing.transaction import UNBOUNDED_ROW
from riverbed.store.wire import Run, Tail, expand_one, load_xadds, open_tail, open_tail_by_row, take_tails

if TYPE_CHECKING:
    from riverbed.store.model import Row
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.writing.transaction import Transaction

# More bytes than any run can have.
MAX_ROOM: Final = 1 << 62
# New nodes that are filled until Python looks at the stream again: to write them takes less than a millisecond.
_NODES: Final = 16


def lend(stream: Stream, size: int, trims: bool) -> Tail:
    """What may be appended to the stream natively, from an entry of `size` bytes of fields on, until `take_back`.

    Unless this entry `trims`, those that do are not taken when they might remove one: to read the first node takes a
    quarter of the time of lending.  The caller has made sure that the stream does not expire.
    """
    txn = stream.txn
    most = room = 0
    if stream.tail_total:
        most = max(txn.node_max_entries - stream.tail_total, 0)
        room = max(txn.node_max_bytes - stream.tail_bytes, 0)
    max_entries, max_bytes, nodes = txn.node_max_entries, txn.node_max_bytes, _NODES
    if size >= max_bytes:  # it has a node of its own
        most, max_entries, max_bytes, nodes = 0, 1, size + 1, 1
        txn.largest_row = UNBOUNDED_ROW
    oldest, node_end, node_live = _front(stream) if trims else (MIN_ID, MIN_ID, 0)
    return open_tail(
        stream.prefix + pack_id(stream.last_id),
        pack_id(oldest),
        pack_id(node_end),
        stream.length,
        node_live,
        most,
        room,
        max_entries,
        max_bytes,
        nodes,
    )


def lend_row(txn: Transaction, key: bytes, row: bytes) -> Tail | None:
    """As `lend`, of the stream with this row of table `keys`, for entries that do not trim.

    None when only its object can be lent.  `Tail.stream_row` has the row again, unless nodes were opened.
    """
    return open_tail_by_row(key, row, txn.node_max_entries, txn.node_max_bytes, _NODES)


def _front(stream: Stream) -> tuple[StreamID, StreamID, int]:
    """-> up to which IDs an exact and an approximate trim remove nothing, and how many entries the latter would."""
    if not stream.length:
        return MIN_ID, MIN_ID, 0
    if stream.node_count:
        node = first_node(stream.txn.nodes, stream.prefix, stream.floor_id, stream.first_id)
        return min(stream.first_id, node.last_id), node.last_id, node.live
    # the tail becomes the first node, if a node is opened; no approximate trim removes a part of it before
    return stream.first_id, stream.tail_last_id, stream.tail_total - stream.tail_dead


def take_back(stream: Stream, tail: Tail) -> None:
    """Enter what was appended natively into the stream and its tables.  The lines of the log were logged before."""
    put_rows(stream.txn, tail)
    for number, (count, size, first, last) in enumerate(tail.nodes()):
        if number:
            stream.open_node(unpack_id(first))
        if count:
            if not stream.length:
                stream.first_id = unpack_id(first)
            stream.count_in(count, size, unpack_id(last))
    if tail.trimmed:
        trim_front(stream, Trim(Strategy.MAXLEN, stream.length - tail.trimmed, approximate=False))


def put_rows(txn: Transaction, tail: Tail) -> None:
    """Put the rows that wait in `tail` into their table."""
    if tail.size:
        txn.appender.putmulti(tail.take_rows())


def put_all_rows(txn: Transaction, tails: list[Tail]) -> list[Row | None]:
    """Put the rows that wait in all of `tails` into their table, and the rows of their streams into theirs.

    -> the latter, None for each stream that was not lent by its row or has opened nodes since: it has to be taken back.
    """
    rows, stream_rows = take_tails(tails)
    txn.appender.putmulti(rows)
    txn.cursor("keys").putmulti([row for row in stream_rows if row is not None])
    return stream_rows


def append_one(stream: Stream, run: Run, entry_id: StreamID) -> bytes:
    """Append the first entry of a run with `entry_id`; -> the ID as a bulk string.

    Clients that wait for each reply send such runs.  The caller has made sure that `entry_id` is above `last_id`, and
    that no client waits for or watches the key.  Logs `XADD key id f v ...`.
    """
    txn = stream.txn
    key = stream.prefix + pack_id(entry_id)
    row, size, log, reply = expand_one(run, key, _log_head(stream, run))
    txn.put_entry(key, row)
    stream.enter(entry_id, size)
    txn.log.append(log)
    txn.changes += 1
    return reply


def _log_head(stream: Stream, run: Run) -> bytes:
    """Select the stream's database in the log; -> the bytes that the run's lines in the log begin with."""
    number = stream.namespace.number
    if stream.txn.log_db != number:
        stream.txn.log_select(number)
    return stream.log_heads.get(run.word_count) or stream.log_head(run.word_count)


def load_run(stream: Stream, run: Run) -> int:
    """Append the entries of a run of a log, up to the first that trims or whose ID is not above `last_id`; -> how many.

    Logs nothing.
    """
    txn = stream.txn
    rows: list[tuple[bytes, bytes]] = []
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
            stream.open_node(id_in_key(rows[mark][0]))
        if not stream.length:
            stream.first_id = id_in_key(rows[mark][0])
        stream.count_in(made, size, id_in_key(last))
        at += made
    txn.appender.putmulti(rows)
    txn.changes += at
    return at
