"""Makes Arrow batches of a span's rows of table `entries`.

`fetch.py` reads rows by the thousand, `decode.py` finds their fields.  This module makes the columns that the schema
asks for, and handles values that do not fit their column as the mode says.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverbed.store.format.resp import decode_entry
from riverbed.store.tables.reader import TableReader
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.fetch import Fetched
from riverbed.tools.columns.metadata import fields_map, longs, timestamps
from riverbed.tools.columns.streams import StreamHere
from riverbed.tools.spark.errors import MalformedValueError
from riverbed.tools.spark.reading.options import Mode, ReadOptions
from riverbed.tools.spark.reading.plan import Span
from riverbed.tools.spark.reading.schemas import EntryColumn, EntryColumns
from riverbed.tools.spark.reading.streamwalk import fetch_span, streams_of

if TYPE_CHECKING:
    from riverbed.tools.sidecar.rows import FetchedRows

# Columns that need of a row no more than its ID.
_NOT_OF_FIELDS: Final = frozenset({"key", "key_binary", "db", "snapshot", "id", "ms", "seq", "timestamp"})


def entry_batches(
    reader: TableReader,
    span: Span,
    options: ReadOptions,
    columns: EntryColumns,
    streams: Iterable[StreamHere] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The entries of a span, or of `streams` in it, by stream and ID.

    Raises MalformedValueError in mode FAILFAST, MalformedRowError.
    """
    maker = _BatchMaker(span, options, columns)
    for fetched in _fetch(reader, span, options, columns, streams):
        yield maker.batch(fetched)


def _fetch(
    reader: TableReader,
    span: Span,
    options: ReadOptions,
    columns: EntryColumns,
    streams: Iterable[StreamHere] | None,
) -> Iterator[Fetched] | Iterator[FetchedRows]:
    """The entries, from columns where the plan says so."""
    if span.place.columns is not None:
        from riverbed.tools.sidecar.sidecar import ColumnsError
        from riverbed.tools.spark.reading.over_columns import fetch_from_columns

        here = list(streams_of(reader, span, options) if streams is None else streams)
        try:
            return fetch_from_columns(span, options, columns, here)
        except ColumnsError as error:  # they were whole when the query was planned
            warnings.warn(f"{error}; reading the tables", stacklevel=2)
            streams = here
    only_ids = all(column.metadata in _NOT_OF_FIELDS for column in columns.columns)
    return fetch_span(reader, span, options, streams, only_ids=only_ids)


class _BatchMaker:
    """Makes the columns of batches."""

    def __init__(self, span: Span, options: ReadOptions, columns: EntryColumns) -> None:
        self._span = span
        self._mode = options.mode
        self._columns = columns

    def batch(self, fetched: Fetched | FetchedRows) -> pa.RecordBatch:
        batch = fetched.batch
        malformed = np.zeros(batch.count, dtype=np.bool_)
        arrays: list[pa.Array] = []
        for column in self._columns.columns:
            if column.metadata is not None:
                arrays.append(self._metadata(column, fetched))
            else:
                arrays.append(self._field(column, fetched, malformed))
        if malformed.any():
            if self._mode is Mode.DROPMALFORMED:
                kept = pa.array(~malformed)
                arrays = [array.filter(kept) for array in arrays]
            elif self._columns.corrupt is not None:
                assert isinstance(batch, EntryBatch)
                arrays[self._columns.corrupt] = _corrupt_texts(batch, malformed)
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns.schema)

    def _field(self, column: EntryColumn, fetched: Fetched | FetchedRows, malformed: Any) -> pa.Array:
        assert column.field is not None and column.cast is not None
        if column.type == pa.string() and (texts := fetched.batch.texts(column.field)) is not None:
            return texts
        values = fetched.batch.column(column.field)
        array = column.cast(values)
        if array.null_count != values.null_count:
            bad = pc.and_(pc.is_null(array), pc.is_valid(values)).to_numpy(zero_copy_only=False)
            if self._mode is Mode.FAILFAST:
                number = int(np.flatnonzero(bad)[0])
                entry_id = fetched.batch.ids().cast(pa.string())[number]
                where = f"entry {entry_id} of stream {_whose(fetched, number).key_text}"
                what = values.cast(pa.binary())[number].as_py()
                raise MalformedValueError(f"{where}: {column.name} is {what[:100]!r}, which is no {column.type}")
            malformed |= bad
        return array.cast(column.type)

    def _metadata(self, column: EntryColumn, fetched: Fetched | FetchedRows) -> pa.Array:
        batch, runs = fetched.batch, fetched.runs
        count = batch.count
        match column.metadata:
            case "key":
                return _repeat([(stream.key_text, rows) for stream, rows in runs], pa.string())
            case "key_binary":
                return _repeat([(stream.key, rows) for stream, rows in runs], pa.binary())
            case "db":
                return _repeat([(stream.db, rows) for stream, rows in runs], pa.int32())
            case "snapshot":
                return _repeat([(self._span.place.name, count)], pa.string())
            case "id":
                return batch.ids().cast(pa.string())
            case "ms":
                return longs(batch.ms())
            case "seq":
                return longs(batch.seq())
            case "timestamp":
                return timestamps(batch.ms())
            case "corrupt":
                return pa.nulls(count, type=pa.string())
            case "fields" | "fields_text":
                assert isinstance(batch, EntryBatch)
                return fields_map(batch, as_text=column.metadata == "fields_text").cast(column.type)
            case "items":
                assert isinstance(batch, EntryBatch)
                items = batch.items(unique=False)
                structs = pa.StructArray.from_arrays([items.names, items.values], ["name", "value"])
                return pa.ListArray.from_arrays(pa.array(items.offsets), structs).cast(column.type)
        raise AssertionError(column.metadata)


def _repeat(values: list[tuple[Any, int]], kind: pa.DataType) -> pa.Array:
    """An array with each value repeated by its count."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0][0], type=kind), values[0][1])
    counts = [count for _, count in values]
    return pa.array([value for value, _ in values], type=kind).take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _whose(fetched: Fetched | FetchedRows, number: int) -> StreamHere:
    """The stream of a row."""
    for stream, count in fetched.runs:
        if number < count:
            return stream
        number -= count
    raise AssertionError(number)


def _corrupt_texts(batch: EntryBatch, malformed: Any) -> pa.Array:
    """The whole entry as JSON for rows with a value that did not fit, null for the others."""
    texts: list[str | None] = [None] * batch.count
    for number in np.flatnonzero(malformed).tolist():
        entry_id, words = decode_entry(batch.row(number))
        texts_of = [word.decode(errors="backslashreplace") for word in words]
        fields = dict(zip(texts_of[::2], texts_of[1::2], strict=True))
        texts[number] = json.dumps({"_id": entry_id.decode(), **fields}, ensure_ascii=False)
    return pa.array(texts, type=pa.string())
