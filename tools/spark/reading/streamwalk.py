"""Finds the streams of a span in the tables of a snapshot, and their ranges of IDs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import streams as streams_between
from riverbed.tools.columns.fetch import Fetched, fetch
from riverbed.tools.columns.streams import StreamHere
from riverbed.tools.spark.reading.options import ReadOptions
from riverbed.tools.spark.reading.plan import Span


def streams_of(reader: TableReader, span: Span, options: ReadOptions) -> Iterator[StreamHere]:
    """The streams of a span in the order of their numbers, which is that of the rows."""
    for db, key, row in streams_between(reader, span.first_stream, span.last_stream, options.wants):
        yield StreamHere(db, key, row, span.range_of(row.stream_no, options.range_of(db, key)))


def fetch_span(
    reader: TableReader,
    span: Span,
    options: ReadOptions,
    streams: Iterable[StreamHere] | None = None,
    *,
    only_ids: bool = False,
) -> Iterator[Fetched]:
    """The entries of a span, by stream and ID; or of these streams in it, which ascend by number.

    `only_ids`: of the entries only their IDs are used.
    Raises CorruptionError, MalformedRowError, OSError.
    """
    return fetch(
        reader,
        streams_of(reader, span, options) if streams is None else streams,
        is_live=span.place.is_live,
        batch_rows=options.batch_rows,
        skip=span.skip,
        take=span.take,
        only_ids=only_ids,
    )
