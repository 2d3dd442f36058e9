"""One stream: its queries and its mutators.

A stream's entries are LMDB rows in ID order.  In addition there are *nodes*: counts of about a hundred consecutive
entries each, because Redis keeps entries in radix-tree nodes:

        nodes     [ 1-0 .. 9-4 : 100 live ] [ 9-5 .. 12-0 : 98 live, 2 gone ] | tail: 41, in the stream's row
        entries    1-0 1-1 2-0 ... 9-4        9-5 9-7 ... 12-0                | 12-3 ...
                        ^ floor: rows below it are dead and wait to be purged

Approximate trimming is defined on nodes.  Nodes also make exact trimming of millions of entries cheap: whole nodes are
counted, not walked.  Trimming raises `floor_id` at once; the rows below it are deleted later, in slices (`purge.py`).

Every mutator changes the rows and logs its canonical command, the form that Redis itself propagates.  The object is a
cache of the stream's row and is written back at the next checkpoint.  Do not keep it across ticks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format import streams
from riverbed.store.format.entries import bare_pairs, bare_row, bare_values, sealed_row
from riverbed.store.format.resp import ARRAY_HEADS, array_head, bulk, encode_words, id_bulk, word_pieces
from riverbed.store.ids import MIN_ID, StreamID, id_text, pack_id, unpack_id
from riverbed.store.model import Change, IdempotenceSettings, Row
from riverbed.store.streams.nodes import seek_last_node, seek_node
from riverbed.store.tables import ranges
from riverbed.store.tables.ranges import seek
from riverbed.store.tables.streams import estimated_bytes
from riverbed.store.tables.transaction import UNBOUNDED_ROW
from riverbed.store.wire import seal

if TYPE_CHECKING:
    from riverbed.store.tables.namespace import Namespace
    from riverbed.store.tables.transaction import Transaction

# More bytes than any entries can have.
_ANY_BYTES: Final = 1 << 124
# From this size on an entry's row and line are each joined once, of its words.
_LONG_BYTES: Final = 1 << 20
# Up to this many entries are read in one chunk, even if the stream ends before.
_FEW: Final = 32


class Stream:
    """A stream of one database.  `Database.stream` and `Database.create` make it."""

    __slots__ = (
        "dirty",
        "entries_added",
        "expire_ms",
        "first_id",
        "floor_id",
        "group_count",
        "idempotence",
        "key",
        "last_id",
        "last_live_id",
        "length",
        "log_heads",
        "max_deleted_id",
        "namespace",
        "node_count",
        "prefix",
        "stream_no",
        "tail_bytes",
        "tail_dead",
        "tail_first_id",
        "tail_last_id",
        "tail_total",
        "txn",
    )

    def __init__(self, txn: Transaction, namespace: Namespace, key: bytes, stream_no: int) -> None:
        self.txn = txn
        self.namespace = namespace
        self.key = key
        self.stream_no = stream_no
        self.prefix = streams.stream_prefix(stream_no)
        self.length = 0
        self.first_id = MIN_ID
        self.last_id = MIN_ID
        self.last_live_id = MIN_ID
        self.max_deleted_id = MIN_ID
        self.floor_id = MIN_ID
        self.entries_added = 0
        self.expire_ms = 0
        self.group_count = 0
        self.node_count = 0  # closed nodes, the tail not counted
        self.tail_first_id = MIN_ID
        self.tail_last_id = MIN_ID
        self.tail_total = 0
        self.tail_dead = 0
        self.tail_bytes = 0
        self.idempotence: IdempotenceSettings | None = None
        self.dirty = False
        self.log_heads: dict[int, bytes] = {}  # by word count: the bytes that such an XADD begins with in the log

    # -- the row -------------------------------------------------------------------------------------------------------

    def row(self) -> streams.StreamRow:
        """The stream's row in table `keys`; see FORMAT.md."""
        return streams.StreamRow(
            self.stream_no,
            self.key if len(self.key) > streams.MAX_PLAIN_KEY else None,
            self.length,
            self.entries_added,
            self.expire_ms,
            self.first_id,
            self.last_id,
            self.last_live_id,
            self.max_deleted_id,
            self.floor_id,
            self.tail_first_id,
            self.tail_last_id,
            self.group_count,
            self.node_count,
            self.tail_total,
            self.tail_dead,
            self.tail_bytes,
            None if self.idempotence is None else replace(self.idempotence),
        )

    @classmethod
    def of_row(cls, txn: Transaction, namespace: Namespace, key: bytes, values: streams.StreamRow) -> Stream:
        stream = cls(txn, namespace, key, values.stream_no)
        (
            stream.stream_no,
            _,
            stream.length,
            stream.entries_added,
            stream.expire_ms,
            stream.first_id,
            stream.last_id,
            stream.last_live_id,
            stream.max_deleted_id,
            stream.floor_id,
            stream.tail_first_id,
            stream.tail_last_id,
            stream.group_count,
            stream.node_count,
            stream.tail_total,
            stream.tail_dead,
            stream.tail_bytes,
            stream.idempotence,
        ) = values
        return stream

    def touch(self) -> None:
        """Mark the row to be written at the next checkpoint."""
        if not self.dirty:
            self.dirty = True
            self.txn.dirty.append(self)

    def write_back(self) -> None:
        """Put the row into its table, if it has changed and the stream was not deleted."""
        if self.dirty:
            txn = self.txn
            key = streams.key_key(self.namespace.keyspace_no, self.key)
            txn.lmdb.put(key, self.row().pack(key), db=txn.handles["keys"])
            self.dirty = False

    def write_part(self) -> bool:
        """As `write_back`."""
        self.write_back()
        return True

    def renamed(self, namespace: Namespace, key: bytes) -> None:
        """Set the new database and key of a renamed stream, and drop what was cached for the old key."""
        self.namespace = namespace
        self.key = key
        self.log_heads.clear()
        self.touch()

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def node_total(self) -> int:
        """The number of nodes: `radix-tree-keys` of XINFO.

        As in Redis, a node is dropped with its last entry, except when an exact trim removed the entry, not the node.
        """
        return self.node_count + (self.tail_total > 0)

    def rows(self, start: StreamID, end: StreamID, count: int | None = None, *, reverse: bool = False) -> list[Row]:
        """The (key, value) rows with start <= id <= end, at most `count`; newest first when `reverse`.

        A key's last 16 bytes are the ID.  A value is the entry as a client receives it, see `format.encode_entry`.
        """
        if start < self.floor_id:
            start = self.floor_id
        if not self.length or start > end or (count is not None and count <= 0):
            return []
        low, high = self.prefix + pack_id(start), self.prefix + pack_id(end)
        return bare_pairs(ranges.read(self.txn.reader, low, high, count, reverse=reverse))

    def first_entry(self, start: StreamID, end: StreamID) -> bytes | None:
        """The value of the first of `rows`, in half the time; None when there is none."""
        if start < self.floor_id:
            start = self.floor_id
        if not self.length or start > end:
            return None
        reader, low, high = (
            self.txn.reader,
            self.prefix + start.to_bytes(16, "big"),
            self.prefix + end.to_bytes(16, "big"),
        )
        if seek(reader, low):
            key, row = reader.item()
            if low <= key <= high:
                return bare_row(key, row)
        self.txn.refuse_misplaced(low, high)
        return None

    def first_row(self, start: StreamID) -> Row:
        """The first of `rows` from `start` on, which there must be."""
        reader = self.txn.reader
        seek(reader, self.prefix + max(start, self.floor_id).to_bytes(16, "big"))
        key, row = reader.item()
        return key, bare_row(key, row)

    def rows_within(
        self, start: StreamID, end: StreamID, count: int | None, most_bytes: int | None, *, reverse: bool = False
    ) -> list[Row] | None:
        """As `rows`; None when they are more than about `most_bytes`.  Rows are measured only if they may be large."""
        if most_bytes is None or (count is not None and count * self.txn.largest_row <= most_bytes):
            return self.rows(start, end, count, reverse=reverse)
        if start < self.floor_id:
            start = self.floor_id
        if not self.length or start > end or (count is not None and count <= 0):
            return []
        low, high = self.prefix + pack_id(start), self.prefix + pack_id(end)
        rows = ranges.read_within(self.txn.reader, low, high, count, most_bytes, self.txn.largest_row, reverse=reverse)
        return None if rows is None else bare_pairs(rows)

    def entries_within(
        self, start: StreamID, end: StreamID, count: int | None, most_bytes: int | None, *, reverse: bool = False
    ) -> list[bytes] | None:
        """As `rows_within`, without the keys, in three quarters of the time."""
        if start < self.floor_id:
            start = self.floor_id
        if not self.length or start > end or (count is not None and count <= 0):
            return []
        low, high = self.prefix + pack_id(start), self.prefix + pack_id(end)
        txn = self.txn
        if most_bytes is None:
            most_bytes = _ANY_BYTES
        if start >= self.tail_first_id or not self.node_count:
            # entries of the tail: few, with other streams' entries behind them, so that reading values alone is no gain
            live = self.tail_total - self.tail_dead
            if live and live * txn.largest_row <= most_bytes:
                rows = ranges.read(txn.reader, low, high, live if count is None else min(live, count), reverse=reverse)
                if not rows:
                    txn.refuse_misplaced(low, high)
                return bare_values(self.prefix, [row for _, row in rows])
        elif start == end:
            count = 1
        if count is not None and count <= _FEW and count * txn.largest_row <= most_bytes:
            values = bare_values(self.prefix, ranges.read_values(txn.reader, low, high, count, reverse=reverse))
            if len(values) < count:
                self._require_end(low, high, values, reverse=reverse)
            return values
        found = ranges.read_values_within(txn.reader, low, high, count, most_bytes, txn.largest_row, reverse=reverse)
        if found is None:
            return None
        if count is None or len(found) < count:
            self._require_end(low, high, found, reverse=reverse)
        return bare_values(self.prefix, found)

    def _require_end(self, low: bytes, high: bytes, found: list[bytes], *, reverse: bool) -> None:
        """Refuse the end of a range if a damaged key or tree has made it; an empty one is worth large neighbours."""
        if not found:
            self.txn.refuse_misplaced(low, high)
        elif self.txn.largest_row < UNBOUNDED_ROW and not reverse:
            self.txn.refuse_misplaced(high + b"\0", high)

    def keys(self, start: StreamID, end: StreamID, count: int | None = None) -> list[bytes]:
        """The keys of `rows`, oldest first; one row at a time is in memory.  Raises DamagedRowError.

        What is done by a key alone is logged, and would outlive the repair of a damaged key.
        """
        start = max(start, self.floor_id)
        if not self.length or start > end or (count is not None and count <= 0):
            return []
        high = self.prefix + pack_id(end)
        found: list[bytes] = []
        if seek(self.txn.reader, self.prefix + pack_id(start)):
            for key, row in islice(self.txn.reader.iternext(), count):
                bare_row(key, row)  # also the one behind the range, whose key may be damaged
                if key > high:
                    break
                found.append(key)
        return found

    def entry(self, entry_id: StreamID) -> bytes | None:
        """The row of one entry, None when there is no such entry."""
        if entry_id < self.floor_id or entry_id > self.last_live_id:
            return None
        return self.txn.get_entry(self.prefix + pack_id(entry_id))

    def rows_of_within(self, packed_ids: list[bytes], most_bytes: int | None) -> dict[bytes, bytes] | None:
        """As `rows_of`; None when they are more than about `most_bytes`."""
        if most_bytes is None or len(packed_ids) * self.txn.largest_row <= most_bytes:
            return self.rows_of(packed_ids)
        if self.txn.largest_row < UNBOUNDED_ROW:
            found = self.rows_of(packed_ids)
            size = sum([len(found[packed]) for packed in packed_ids if packed in found])
            return found if size <= most_bytes else None
        found = {}
        for packed in packed_ids:
            row = self.entry(unpack_id(packed))
            if row is not None:
                found[packed] = row
                most_bytes -= len(row)
                if most_bytes < 0:
                    return None
        return found

    def present(self, packed_ids: list[bytes]) -> set[bytes]:
        """The IDs of `packed_ids` that exist, without reading their entries."""
        return {packed for packed in packed_ids if self.has(unpack_id(packed))}

    def rows_of(self, packed_ids: list[bytes]) -> dict[bytes, bytes]:
        """The rows of the ascending `packed_ids` that exist, by packed ID; perhaps also rows between them.

        IDs that are requested together are mostly neighbours: as a range they take 0.4 us each, one by one 0.9.
        """
        if len(packed_ids) <= 1:
            return {packed: row for packed in packed_ids if (row := self.entry(unpack_id(packed))) is not None}
        many = 2 * len(packed_ids)
        rows = self.rows(unpack_id(packed_ids[0]), unpack_id(packed_ids[-1]), many)
        found = streams.by_packed_id(rows)
        if len(rows) == many:
            left = bisect_right(packed_ids, streams.packed_id_in(rows[-1][0]))
            for packed in packed_ids[left:]:
                row = self.txn.get_entry(self.prefix + packed)
                if row is not None:
                    found[packed] = row
        return found

    def has(self, entry_id: StreamID) -> bool:
        if entry_id < self.floor_id or entry_id > self.last_live_id:
            return False
        if self._is_there(entry_id):
            return True
        key = self.prefix + pack_id(entry_id)
        self.txn.refuse_misplaced(key, key)
        return False

    def _is_there(self, entry_id: StreamID) -> bool:
        return self.txn.reader.set_key(self.prefix + pack_id(entry_id))

    def byte_size(self) -> int:
        """The bytes that the entries take on disk, estimated from the counts of the tail and the first nodes."""
        return estimated_bytes(self.txn.nodes, self.prefix, self.length, self.node_count, self.tail_bytes)

    # -- mutators ------------------------------------------------------------------------------------------------------

    def append_entry(self, entry_id: StreamID, words: list[bytes]) -> bytes:
        """Append an entry of the field and value `words`; -> the ID as a RESP bulk string.

        The caller has made sure that `entry_id` is above `last_id`.  Logs `XADD key id f v ...`.
        """
        txn = self.txn
        count = len(words)
        id_wire = id_bulk(entry_id)
        array = ARRAY_HEADS[count] if count < 1024 else array_head(count)
        log_head = self.log_heads.get(count) or self.log_head(count)
        row_key = self.prefix + entry_id.to_bytes(16, "big")
        put = txn.put_entry  # a local name: Python would call `txn.put_entry(...)` slowly, like a method
        if sum(map(len, words)) < _LONG_BYTES:
            body = encode_words(words)
            size = len(body)
            put(row_key, seal(self.prefix, id_wire + array + body))
            line = log_head + id_wire + body
        else:
            # LMDB keeps a copy of the row, which is gone before the line is made.
            pieces = word_pieces(words)
            size = sum(map(len, pieces))
            put(row_key, sealed_row(self.prefix, [id_wire, array, *pieces]))
            line = b"".join((log_head, id_wire, *pieces))

        total = self.tail_total
        if total == 0 or total >= txn.node_max_entries or self.tail_bytes + size >= txn.node_max_bytes:
            self.open_node(entry_id)
            total = 0
            if size >= txn.node_max_bytes:
                txn.largest_row = UNBOUNDED_ROW
        self.tail_total = total + 1
        self.tail_bytes += size
        if not self.length:
            self.first_id = entry_id
        self.length += 1
        self.entries_added += 1
        self.last_id = self.last_live_id = self.tail_last_id = entry_id
        if not self.dirty:
            self.touch()

        namespace = self.namespace
        if txn.log_db != namespace.number:
            txn.log_select(namespace.number)
        txn.log.append(line)
        if self.key in namespace.interest:
            txn.notify(Change.APPENDED, namespace, self.key)
        return id_wire

    def log_head(self, word_count: int) -> bytes:
        """The bytes that an XADD with `word_count` fields and values begins with in the log; kept in `log_heads`."""
        head = self.log_heads[word_count] = b"*%d\r\n$4\r\nXADD\r\n%b" % (word_count + 3, bulk(self.key))
        return head

    def delete_entries(self, entry_ids: list[StreamID]) -> list[bool]:
        """Delete the `entry_ids` that exist, in order; -> for each whether it did.  Logs `XDEL key id ...` of these."""
        hits = [self._delete_entry(entry_id) for entry_id in entry_ids]
        deleted = [entry_id for entry_id, hit in zip(entry_ids, hits, strict=True) if hit]
        if deleted:
            self.max_deleted_id = max(self.max_deleted_id, *deleted)
            self._refresh_edges()
            self.touch()
            self.txn.log_command(self.namespace.number, [b"XDEL", self.key, *map(id_text, deleted)])
            self.txn.notify_interest(Change.MODIFIED, self.namespace, self.key)
        return hits

    def set_id(
        self, last_id: StreamID, entries_added: int | None = None, max_deleted_id: StreamID | None = None
    ) -> None:
        """Set the counters; a `max_deleted_id` of 0-0 changes nothing.  Logs XSETID."""
        words = [b"XSETID", self.key, id_text(last_id)]
        self.txn.change_begins()
        if last_id + 1 < self.floor_id:
            # new entries may get IDs of dead entries that wait for the purge
            self.txn.clear_below(self.stream_no, self.floor_id)
            self.floor_id = MIN_ID
        if last_id < self.last_id:
            self._end_nodes_at(last_id)
        self.last_id = last_id
        if entries_added is not None:
            self.entries_added = entries_added
            words += [b"ENTRIESADDED", b"%d" % entries_added]
        if max_deleted_id is not None:
            if max_deleted_id:
                self.max_deleted_id = max_deleted_id
            words += [b"MAXDELETEDID", id_text(max_deleted_id)]
        self.touch()
        self.txn.log_command(self.namespace.number, words)

    # -- how they do it ------------------------------------------------------------------------------------------------

    def open_node(self, first_id: StreamID) -> None:
        """Close the tail node, if it holds any entry, and begin a new one at `first_id`."""
        if self.tail_total:
            live = self.tail_total - self.tail_dead
            key = self.prefix + pack_id(self.tail_first_id)
            node = streams.NodeRow(live, self.tail_total, self.tail_bytes, self.tail_last_id)
            self.txn.nodes.put(key, node.pack(key))
            self.node_count += 1
        self.tail_first_id = first_id
        self.tail_total = self.tail_dead = self.tail_bytes = 0

    def _end_nodes_at(self, last_id: StreamID) -> None:
        """Cut nodes off at `last_id`: only tombstones are above it, and new entries will be."""
        if self.tail_total and self.tail_first_id > last_id:
            self.drop_tail()
        self.tail_last_id = min(self.tail_last_id, last_id)
        nodes = self.txn.nodes
        while True:
            node = seek_last_node(nodes, self.prefix)
            if node is None or nodes.key() < self.prefix + pack_id(self.floor_id):
                return
            key = nodes.key()
            if streams.id_in_key(key) <= last_id:
                if node.last_id > last_id:
                    nodes.put(key, node._replace(last_id=last_id).pack(key))
                return
            nodes.delete()
            self.node_count -= 1

    def drop_tail(self) -> None:
        """Forget the tail node: none of its entries is left."""
        self.tail_total = self.tail_dead = self.tail_bytes = 0

    def _reopen_last_node(self) -> None:
        """Make the last closed node the tail again, as Redis appends to its last node; the tail node is gone."""
        nodes = self.txn.nodes
        if not self.node_count:
            return
        node = seek_last_node(nodes, self.prefix)
        if node is None:
            raise DamagedRowError("a node", self.stream_no)
        self.tail_first_id = streams.id_in_key(nodes.key())
        self.tail_last_id = node.last_id
        self.tail_total, self.tail_dead, self.tail_bytes = node.total, node.total - node.live, node.size
        nodes.delete()
        self.node_count -= 1

    def _delete_entry(self, entry_id: StreamID) -> bool:
        """Delete one row and subtract it from its node's count.  `_refresh_edges` must follow."""
        if not self.has(entry_id):
            return False
        self.txn.change_begins()
        self.txn.reader.delete()
        self.length -= 1
        if self.tail_total > self.tail_dead and entry_id >= self.tail_first_id:
            self.tail_dead += 1
            if self.tail_dead == self.tail_total:
                self.drop_tail()
                self._reopen_last_node()
            return True
        nodes = self.txn.nodes
        node = seek_node(nodes, self.prefix, entry_id)
        if node.live > 1:
            key = nodes.key()
            nodes.put(key, node._replace(live=node.live - 1).pack(key))
        else:
            nodes.delete()
            self.node_count -= 1
        return True

    def drop_entries(self, entry_ids: list[StreamID]) -> None:
        """Delete existing entries as a trim does: `max_deleted_id` stays.  Logs nothing."""
        for entry_id in entry_ids:
            self._delete_entry(entry_id)
        self._refresh_edges()
        self.touch()

    def _refresh_edges(self) -> None:
        """Find the first and the last live entry again after rows were deleted."""
        if not self.length:
            self.first_id = self.last_live_id = MIN_ID
            return
        reader = self.txn.reader
        if not self._is_there(self.first_id):
            found = seek(reader, self.prefix + pack_id(max(self.first_id, self.floor_id)))
            self._require_own(found)
            self.first_id = streams.id_in_key(reader.key())
        if not self._is_there(self.last_live_id):
            found = ranges.seek_below(reader, self.prefix + pack_id(self.last_live_id))
            self._require_own(found)
            self.last_live_id = streams.id_in_key(reader.key())

    def _require_own(self, found: bool) -> None:
        """Raise DamagedRowError unless the reader has found one of the entries that `length` counts."""
        if not found or not self.txn.reader.key().startswith(self.prefix):
            raise DamagedRowError("an entry", self.stream_no)
