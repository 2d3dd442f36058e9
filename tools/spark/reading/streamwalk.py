"""The streams of a span, from the tables of a snapshot: who is in it, and what of their IDs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from riverbed.store.format import rows as fmt
from riverbed.store.ids import StreamID
from riverbed.store.tables.reader import TableReader
from riverbed.tools.spark.reading.options import Range, ReadOptions, key_text
from riverbed.tools.spark.reading.plan import Span


@dataclass(frozen=True, slots=True)
class StreamHere:
    """One stream, as far as it is in a span."""

    db: int
    key: bytes
    row: fmt.StreamRow
    range: Range  # of IDs that are in the span and asked for, whether there are entries or not

    @property
    def live_range(self) -> Range:
        """Where entries may be: rows outside of the stream's first and last entry are dead."""
        if not self.row.length:
            return Range(StreamID(1), StreamID(0))
        return self.range.cut(Range(self.row.first_id, self.row.last_live_id))

    @property
    def key_text(self) -> str:
        return key_text(self.key)


def streams_of(reader: TableReader, span: Span, options: ReadOptions) -> Iterator[StreamHere]:
    """In the order of their numbers, which is that of the rows."""
    meta = reader.get("meta", b"databases")
    if meta is None:
        return
    each = [_numbers(reader, db, row[0], span) for db, row in enumerate(fmt.unpack_row(meta))]
    for stream_no, db, keyspace_no, key in heapq.merge(*each):
        if not options.wants(db, key):
            continue
        row = reader.get("keys", fmt.key_key(keyspace_no, key))
        if row is None:
            raise ValueError(f"the key {key[:60]!r} has a number and no row")
        yield StreamHere(db, key, fmt.decode_stream(row), span.range_of(stream_no, options.range_of(db, key)))


def _numbers(reader: TableReader, db: int, keyspace_no: int, span: Span) -> Iterator[tuple[int, int, int, bytes]]:
    cursor = reader.cursor("names")
    if not cursor.set_range(fmt.name_key(keyspace_no, span.first_stream)):
        return
    for packed, key in cursor:
        found, stream_no = fmt.decode_name_key(packed)
        if found != keyspace_no or stream_no > span.last_stream:
            return
        yield stream_no, db, keyspace_no, key
