"""The streams in frozen tables, each with its edges, counters and where to cut it, in the order of their numbers.

That is the order of every table they are in, so one pass over the nodes goes with it.  No entry is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

import lmdb

from riverbed.store.format import rows as fmt
from riverbed.store.format.meta import META_NUMBERING, decode_lineage
from riverbed.store.ids import StreamID, pack_id, unpack_id
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import Lineage
from riverbed.store.snapshot.reader import StreamPart, StreamSummary
from riverbed.store.tables.environment import Tables

NEVER: Final = 1 << 63


class StreamWalk:
    """The streams that one transaction sees.  Every method raises one of DECODE_ERRORS when a row does not decode.

    `split_every` is the length from which on a stream has parts, None for never.
    """

    def __init__(self, tables: Tables, txn: lmdb.Transaction[bytes], split_every: int | None = None) -> None:
        self._txn = txn
        self._handles = tables.handles
        self._split_every = NEVER if split_every is None else split_every
        self._nodes = txn.cursor(tables.handles["nodes"])
        databases = fmt.unpack_row(self._meta(b"databases"))
        self._keyspaces: list[tuple[int, int]] = [(db, row[0]) for db, row in enumerate(databases)]
        self.stream_count: int = sum(size for _, size, _ in databases)

    def _meta(self, name: bytes) -> bytes:
        row = self._txn.get(name, db=self._handles["meta"])
        if row is None:
            raise ValueError(f"no row {name.decode()} in meta")
        return row

    def position(self) -> LogPosition:
        """Of the log, up to which all this is its fold."""
        file_seq, byte, offset, _ = fmt.unpack_row(self._meta(b"position"))
        return LogPosition(file_seq, byte, offset)

    def lineage(self) -> Lineage | None:
        """The line that the position's offset is on."""
        return decode_lineage(lambda name: self._txn.get(name, db=self._handles["meta"]))

    def numbering(self) -> str | None:
        """Of the tables in which a stream has this number; None of tables that an older version has made."""
        row = self._txn.get(META_NUMBERING, db=self._handles["meta"])
        return None if row is None else str(fmt.unpack_row(row))

    def streams(self) -> Iterator[StreamSummary]:
        """Those of all databases, by number."""
        names = [self._names(db, keyspace_no) for db, keyspace_no in self._keyspaces]
        for _, db, keyspace_no, key in heapq.merge(*names):
            row = self._txn.get(fmt.key_key(keyspace_no, key), db=self._handles["keys"])
            if row is None:
                raise ValueError(f"the key {key[:60]!r} has a number and no row")
            yield self._summary(db, key, fmt.decode_stream(row))

    def _names(self, db: int, keyspace_no: int) -> Iterator[tuple[int, int, int, bytes]]:
        cursor = self._txn.cursor(self._handles["names"])
        if cursor.set_range(fmt.name_key(keyspace_no, 0)):
            for packed, key in cursor:
                found, stream_no = fmt.decode_name_key(packed)
                if found != keyspace_no:
                    return
                yield stream_no, db, keyspace_no, key

    def _summary(self, db: int, key: bytes, row: fmt.StreamRow) -> StreamSummary:
        return StreamSummary(
            stream_no=row.stream_no,
            db=db,
            key=key,
            length=row.length,
            first_id=row.first_id,
            last_live_id=row.last_live_id,
            last_id=row.last_id,
            max_deleted_id=row.max_deleted_id,
            entries_added=row.entries_added,
            expire_ms=row.expire_ms,
            groups=row.group_count,
            parts=tuple(self._parts(row)) if row.length else (),
        )

    def _parts(self, row: fmt.StreamRow) -> Iterator[StreamPart]:
        """Cuts at nodes, so that no entry has to be looked at."""
        start, entries, size = row.first_id, 0, 0
        for first_id, node_entries, node_bytes in self._runs(row):
            if entries >= self._split_every and node_entries:
                yield StreamPart(start, entries, size)
                start, entries, size = first_id, 0, 0
            entries += node_entries
            size += node_bytes
        yield StreamPart(start, entries, size)

    def _runs(self, row: fmt.StreamRow) -> Iterator[tuple[StreamID, int, int]]:
        """(first_id, entries, bytes) of each node, the last one included; tombstones count in neither."""
        prefix = fmt.stream_prefix(row.stream_no)
        if row.node_count and self._nodes.set_range(prefix + pack_id(row.floor_id)):
            for key, node in self._nodes:
                if not key.startswith(prefix):
                    break
                live, total, size, _ = fmt.decode_node(node)
                yield unpack_id(key[8:]), live, size * live // max(total, 1)
        if row.tail_total:
            live = row.tail_total - row.tail_dead
            yield row.tail_first_id, live, row.tail_bytes * live // row.tail_total
