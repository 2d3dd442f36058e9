"""Finds the streams of a span in the tables of a snapshot, and their ranges of IDs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from riverbed.store.format.streams import StreamRow
from riverbed.store.ids import StreamID
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import streams
from riverbed.tools.spark.reading.options import Range, ReadOptions, key_text
from riverbed.tools.spark.reading.plan import Span


@dataclass(frozen=True, slots=True)
class StreamHere:
    """One stream, and the part of it that is in a span."""

    db: int
    key: bytes
    row: StreamRow
    range: Range  # IDs that are in the span and asked for, with or without entries

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
    """The streams of a span in the order of their numbers, which is that of the rows."""
    for db, key, row in streams(reader, span.first_stream, span.last_stream, options.wants):
        yield StreamHere(db, key, row, span.range_of(row.stream_no, options.range_of(db, key)))
