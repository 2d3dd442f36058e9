"""Makes Arrow batches of a span's rows of tables `pending`, `groups`, `consumers` and `streams`.

A group belongs to the span in which its stream begins, a pending entry to the span that has its ID, even if the entry
itself is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from riverbed.store.ids import MIN_ID
from riverbed.store.tables.reader import TableReader
from riverbed.tools.columns.groups import (
    Row,
    Taken,
    batches_of,
    consumer_rows,
    group_rows,
    pending_batches,
    stream_rows,
)
from riverbed.tools.columns.streams import StreamHere
from riverbed.tools.spark.reading.options import ReadOptions, Table
from riverbed.tools.spark.reading.plan import Span
from riverbed.tools.spark.reading.streamwalk import streams_of

_ROWS: Final[dict[Table, Callable[[TableReader, StreamHere, Taken], Iterator[Row]]]] = {
    Table.STREAMS: stream_rows,
    Table.GROUPS: group_rows,
    Table.CONSUMERS: consumer_rows,
}


def group_batches(reader: TableReader, span: Span, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of `options.table` that are in the span, by stream."""
    taken = Taken(span.place.name, span.place.time_ms)
    if options.table is Table.PENDING:
        for stream in streams_of(reader, span, options):
            yield from pending_batches(reader, stream, taken, schema)
        return
    rows_of = _ROWS[options.table]
    # The rows of a stream are in the span in which it begins.
    streams = (
        stream
        for stream in streams_of(reader, span, options)
        if stream.row.stream_no != span.first_stream or span.first_id == MIN_ID
    )
    yield from batches_of(schema, (row for stream in streams for row in rows_of(reader, stream, taken)))
