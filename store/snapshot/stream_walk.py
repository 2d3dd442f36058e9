"""Lists the streams in tables that do not change, by number, each with its edges, counters and where to cut it.

The nodes are in the same order, so one pass over them is enough.  No entry is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from riverbed.store.format.meta import read_databases, read_numbering, read_position, read_replids
from riverbed.store.format.streams import StreamRow
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.snapshot.stream_lines import StreamPart, StreamSummary
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import nodes_of, streams

NEVER: Final = 1 << 63


class StreamWalk:
    """The streams that one transaction sees.  Every method raises one of DECODE_ERRORS when a row does not decode.

    `split_every` is the number of entries after which a stream is cut into parts, None for never.
    """

    def __init__(self, reader: TableReader, split_every: int | None = None) -> None:
        self._reader = reader
        self._split_every = NEVER if split_every is None else split_every
        self.stream_count: int = sum(database.size for database in read_databases(reader.meta_row))

    def position(self) -> LogPosition:
        """The position in the log up to which the tables hold everything."""
        row = read_position(self._reader.meta_row)
        if row is None:
            raise ValueError("no row position in meta")
        return row.place

    def replids(self) -> ReplicationIds | None:
        """The replication ids to which the position's offset belongs."""
        return read_replids(self._reader.meta_row)

    def numbering(self) -> str | None:
        """Which tables have given the streams their numbers; None when an older version has made the tables."""
        return read_numbering(self._reader.meta_row) or None

    def streams(self) -> Iterator[StreamSummary]:
        """The streams of all databases, by number."""
        return (self._summary(stream.db, stream.key, stream.row) for stream in streams(self._reader))

    def _summary(self, db: int, key: bytes, row: StreamRow) -> StreamSummary:
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

    def _parts(self, row: StreamRow) -> Iterator[StreamPart]:
        """Cut at nodes, so that no entry has to be read."""
        start, entries, size = row.first_id, 0, 0
        for first_id, node in nodes_of(self._reader, row):
            if entries >= self._split_every and node.live:
                yield StreamPart(start, entries, size)
                start, entries, size = first_id, 0, 0
            entries += node.live
            size += node.live_bytes
        yield StreamPart(start, entries, size)
