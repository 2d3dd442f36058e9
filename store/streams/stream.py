"""One stream: its row and its mutators; `reading.py` has its queries.

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

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format import streams
from riverbed.store.format.entries import sealed_row
from riverbed.store.format.resp import ARRAY_HEADS, array_head, bulk, encode_words, id_bulk, word_pieces
from riverbed.store.ids import MIN_ID, StreamID, id_text, pack_id
from riverbed.store.model import Change, IdempotenceSettings
from riverbed.store.streams.nodes import NodeCounts, seek_last_node
from riverbed.store.streams.reading import ReadableStream
from riverbed.store.tables.places import seek, seek_below
from riverbed.store.tables.purge import Clearing
from riverbed.store.tables.writing.transaction import UNBOUNDED_ROW
from riverbed.store.wire import seal

if TYPE_CHECKING:
    from riverbed.store.tables.writing.namespace import Namespace
    from riverbed.store.tables.writing.transaction import Transaction

# From this size on an entry's row and line are each joined once, of its words.
_LONG_BYTES: Final = 1 << 20
# Of the key, in the beginnings of log lines that a stream keeps: each number of fields has one of its own.
_HEADS_BYTES: Final = 1 << 16


class Stream(ReadableStream):
    """A stream of one database.  `Database.stream` and `Database.create` make it."""

    __slots__ = (
        "dirty",
        "entries_added",
        "expire_ms",
        "group_count",
        "idempotence",
        "key",
        "log_heads",
        "max_deleted_id",
        "namespace",
        "tail_last_id",
    )

    def __init__(self, txn: Transaction, namespace: Namespace, key: bytes, stream_no: int) -> None:
        super().__init__(txn, stream_no)
        self.namespace = namespace
        self.key = key
        self.max_deleted_id = MIN_ID
        self.entries_added = 0
        self.expire_ms = 0
        self.group_count = 0
        self.tail_last_id = MIN_ID
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
        row_key = self.prefix + pack_id(entry_id)
        if sum(map(len, words)) < _LONG_BYTES:
            body = encode_words(words)
            size = len(body)
            txn.put_entry(row_key, seal(self.prefix, id_wire + array + body))
            line = log_head + id_wire + body
        else:
            # LMDB keeps a copy of the row, which is gone before the line is made.
            pieces = word_pieces(words)
            size = sum(map(len, pieces))
            txn.put_entry(row_key, sealed_row(self.prefix, [id_wire, array, *pieces]))
            line = b"".join((log_head, id_wire, *pieces))
        self.enter(entry_id, size)

        namespace = self.namespace
        if txn.log_db != namespace.number:
            txn.log_select(namespace.number)
        txn.log.append(line)
        txn.changes += 1
        if self.key in namespace.interest:
            txn.notify(Change.APPENDED, namespace, self.key)
        return id_wire

    def enter(self, entry_id: StreamID, size: int) -> None:
        """Count an entry with `size` bytes of fields, put behind all others; a full tail becomes a node."""
        txn = self.txn
        total = self.tail_total
        if total == 0 or total >= txn.node_max_entries or self.tail_bytes + size >= txn.node_max_bytes:
            self.open_node(entry_id)
            if size >= txn.node_max_bytes:
                txn.largest_row = UNBOUNDED_ROW
        if not self.length:
            self.first_id = entry_id
        self.count_in(1, size, entry_id)

    def count_in(self, count: int, size: int, last_id: StreamID) -> None:
        """Count `count` entries with `size` bytes of fields, up to `last_id`, into the tail node and the stream."""
        self.tail_total += count
        self.tail_bytes += size
        self.length += count
        self.entries_added = streams.add_counts(self.entries_added, count)
        self.last_id = self.last_live_id = self.tail_last_id = last_id
        self.touch()

    def log_head(self, word_count: int) -> bytes:
        """The bytes that an XADD with `word_count` fields and values begins with in the log; kept in `log_heads`."""
        if len(self.log_heads) * len(self.key) > _HEADS_BYTES:
            self.log_heads.clear()
        head = self.log_heads[word_count] = b"*%d\r\n$4\r\nXADD\r\n%b" % (word_count + 3, bulk(self.key))
        return head

    def delete_entries(self, entry_ids: list[StreamID]) -> list[bool]:
        """Delete the `entry_ids` that exist, in order; -> for each whether it did.  Logs `XDEL key id ...` of these."""
        hits = self._delete_rows(entry_ids)
        deleted = [entry_id for entry_id, hit in zip(entry_ids, hits, strict=True) if hit]
        if deleted:
            self.max_deleted_id = max(self.max_deleted_id, *deleted)
            self._refresh_edges(deleted)
            self.touch()
            self.txn.log_command(self.namespace.number, [b"XDEL", self.key, *map(id_text, deleted)])
            self.txn.notify_interest(Change.MODIFIED, self.namespace, self.key)
        return hits

    def make_room(self, last_id: StreamID, clearing: Clearing) -> bool:
        """Delete some of the dead entries that wait for the purge, if those behind `last_id` may get their IDs.

        -> whether none is left in the way.  Logs nothing.
        """
        if last_id + 1 < self.floor_id:
            if not clearing.step(self.txn, self.stream_no, self.floor_id):
                return False
            self.floor_id = MIN_ID
        return True

    def set_id(
        self, last_id: StreamID, entries_added: int | None = None, max_deleted_id: StreamID | None = None
    ) -> None:
        """Set the counters; a `max_deleted_id` of 0-0 changes nothing.  Logs XSETID.

        Takes long where `make_room` was not called before until it had nothing left to do.
        """
        words = [b"XSETID", self.key, id_text(last_id)]
        self.txn.change_begins()
        clearing = Clearing()
        while not self.make_room(last_id, clearing):
            pass
        if last_id < self.last_id:
            self.txn.tables.rewinds += 1
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
            self.txn.grown.add(self.stream_no)
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

    def _delete_rows(self, entry_ids: list[StreamID]) -> list[bool]:
        """Delete the rows that exist and count them out of their nodes; -> for each whether it did.

        `_refresh_edges` must follow.
        """
        txn = self.txn
        counts = NodeCounts(txn.nodes, self.prefix)
        hits = []
        for entry_id in entry_ids:
            hit = self.has(entry_id)
            hits.append(hit)
            if not hit:
                continue
            txn.change_begins()
            txn.delete_entry()
            self.length -= 1
            if self.tail_total > self.tail_dead and entry_id >= self.tail_first_id:
                self.tail_dead += 1
                if self.tail_dead == self.tail_total:
                    self.node_count -= counts.settle()
                    self.drop_tail()
                    self._reopen_last_node()
            else:
                counts.count_out(entry_id)
        self.node_count -= counts.settle()
        return hits

    def drop_entries(self, entry_ids: list[StreamID]) -> None:
        """Delete existing entries as a trim does: `max_deleted_id` stays.  Logs nothing."""
        self._delete_rows(entry_ids)
        self._refresh_edges(entry_ids)
        self.touch()

    def _refresh_edges(self, deleted: list[StreamID]) -> None:
        """Find the first and the last live entry again where they are among the `deleted`."""
        if not self.length:
            self.first_id = self.last_live_id = MIN_ID
            return
        reader = self.txn.reader
        if self.first_id in deleted:
            found = seek(reader, self.prefix + pack_id(max(self.first_id, self.floor_id)))
            self._require_own(found)
            self.first_id = streams.id_in_key(reader.key())
        if self.last_live_id in deleted:
            found = seek_below(reader, self.prefix + pack_id(self.last_live_id))
            self._require_own(found)
            self.last_live_id = streams.id_in_key(reader.key())

    def _require_own(self, found: bool) -> None:
        """Raise DamagedRowError unless the reader has found one of the entries that `length` counts."""
        if not found or not self.txn.reader.key().startswith(self.prefix):
            raise DamagedRowError("an entry", self.stream_no)
