"""Table `entries` of a span as Arrow batches.

Rows are fetched by thousands with a cursor that returns values alone: keys would cost as much again, and the ID is in
the row.  `decode.py` takes them apart; here they become the columns that were asked for, and what does not fit its
column is dealt with as the mode says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store import format as fmt
from store.tablereader import TableReader
from tools.spark.decode import EntryBatch
from tools.spark.errors import MalformedValueError
from tools.spark.options import Mode, ReadOptions
from tools.spark.plan import Span
from tools.spark.schemas import EntryColumn, EntryColumns
from tools.spark.streamwalk import StreamHere, streams_of

# A batch ends sooner when its rows are long.
_MOST_BATCH_BYTES: Final = 32 << 20
_ROWS_A_LOOK: Final = 256
_LAST_TIMESTAMP_MS: Final = ((1 << 63) - 1) // 1000
_MOST_LONG: Final = (1 << 63) - 1


def entry_batches(
    reader: TableReader, span: Span, options: ReadOptions, columns: EntryColumns
) -> Iterator[pa.RecordBatch]:
    """The entries of a span, by stream and ID.  Raises MalformedValueError in mode FAILFAST, MalformedRowError."""
    for stream in streams_of(reader, span, options):
        maker = _BatchMaker(stream, span, options, columns)
        for rows in _fetch(reader, stream, span, options.batch_rows):
            yield maker.batch(rows)


def _fetch(reader: TableReader, stream: StreamHere, span: Span, batch_rows: int) -> Iterator[list[bytes]]:
    wanted = stream.live_range
    if wanted.is_empty:
        return
    cursor = reader.cursor("entries")
    stream_no = stream.row.stream_no
    last_key = fmt.entry_key(stream_no, wanted.last)
    if not cursor.set_range(fmt.entry_key(stream_no, wanted.first)):
        return
    left = span.take
    if span.skip:
        for _ in islice(cursor.iternext(keys=True, values=False), span.skip):
            pass
        if not cursor.next():
            return
    while left is None or left > 0:
        first_key = cursor.key()
        if first_key > last_key or not first_key:
            return
        most = batch_rows if left is None else min(batch_rows, left)
        rows = _some(cursor, most)
        ended_at = cursor.key()  # empty behind the last row of the table
        if not ended_at or ended_at > last_key:
            rows = _up_to(cursor, first_key, last_key)
            yield rows[:most]
            return
        yield rows
        if left is not None:
            left -= len(rows)
        if not cursor.next():
            return


def _some(cursor: Any, most: int) -> list[bytes]:
    """Up to `most` rows from where the cursor stands, which is left on the last of them; fewer when they are long."""
    rows = list(islice(cursor.iternext(keys=False, values=True), min(most, _ROWS_A_LOOK)))
    size = sum(map(len, rows))
    if size:
        most = min(most, max(len(rows), len(rows) * _MOST_BATCH_BYTES // size))
    if len(rows) < most and len(rows) == _ROWS_A_LOOK and cursor.next():
        more = list(islice(cursor.iternext(keys=False, values=True), most - len(rows)))
        rows += more
    return rows


def _up_to(cursor: Any, first_key: bytes, last_key: bytes) -> list[bytes]:
    """The rows from `first_key` to `last_key`, by looking at each key: once a stream, for its last batch."""
    rows: list[bytes] = []
    cursor.set_key(first_key)
    for key, row in cursor:
        if key > last_key:
            break
        rows.append(row)
    return rows


class _BatchMaker:
    """Makes the columns of one stream's batches."""

    def __init__(self, stream: StreamHere, span: Span, options: ReadOptions, columns: EntryColumns) -> None:
        self._stream = stream
        self._span = span
        self._mode = options.mode
        self._columns = columns

    def batch(self, rows: list[bytes]) -> pa.RecordBatch:
        batch = EntryBatch(rows)
        malformed = np.zeros(batch.count, dtype=np.bool_)
        arrays: list[pa.Array] = []
        for column in self._columns.columns:
            if column.metadata is not None:
                arrays.append(self._metadata(column, batch, malformed))
            else:
                arrays.append(self._field(column, batch, rows, malformed))
        if malformed.any():
            if self._mode is Mode.DROPMALFORMED:
                kept = pa.array(~malformed)
                arrays = [array.filter(kept) for array in arrays]
            elif self._columns.corrupt is not None:
                arrays[self._columns.corrupt] = _corrupt_texts(rows, malformed)
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns.schema)

    def _field(self, column: EntryColumn, batch: EntryBatch, rows: list[bytes], malformed: Any) -> pa.Array:
        assert column.field is not None and column.cast is not None
        values = batch.column(column.field)
        array = column.cast(values)
        if array.null_count != values.null_count:
            bad = pc.and_(pc.is_null(array), pc.is_valid(values)).to_numpy(zero_copy_only=False)
            self._found_malformed(bad, rows, column, malformed)
        return array

    def _found_malformed(self, bad: Any, rows: list[bytes], column: EntryColumn, malformed: Any) -> None:
        if self._mode is Mode.FAILFAST:
            row = rows[int(np.flatnonzero(bad)[0])]
            entry_id, words = fmt.decode_entry(row)
            where = f"entry {entry_id.decode()} of stream {self._stream.key_text}"
            what = dict(zip(words[::2], words[1::2], strict=True)).get(column.field or b"", entry_id)
            raise MalformedValueError(f"{where}: {column.name} is {what[:100]!r}, which is no {column.type}")
        malformed |= bad

    def _metadata(self, column: EntryColumn, batch: EntryBatch, malformed: Any) -> pa.Array:
        count = batch.count
        stream = self._stream
        match column.metadata:
            case "key":
                return _repeat(stream.key_text, count, pa.string())
            case "key_binary":
                return _repeat(stream.key, count, pa.binary())
            case "db":
                return _repeat(stream.db, count, pa.int32())
            case "snapshot":
                return _repeat(self._span.place.name, count, pa.string())
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
                items = batch.items(unique=True)
                names = readable(items.names)
                values = items.values if column.metadata == "fields" else readable(items.values)
                offsets = pa.array(items.offsets)
                return pa.MapArray.from_arrays(offsets, names, values).cast(column.type)
            case "items":
                items = batch.items(unique=False)
                structs = pa.StructArray.from_arrays([items.names, items.values], ["name", "value"])
                return pa.ListArray.from_arrays(pa.array(items.offsets), structs).cast(column.type)
        raise AssertionError(column.metadata)


def _repeat(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type=kind), count)


def longs(numbers: Any) -> pa.Array:
    """Unsigned numbers of 64 bits to Spark's signed ones: null for those that do not fit, never a negative one."""
    return pa.array(numbers.astype(np.int64), mask=numbers > _MOST_LONG if (numbers > _MOST_LONG).any() else None)


def timestamps(ms: Any) -> pa.Array:
    """Unix milliseconds to timestamps of microseconds; null beyond the year 294247, where those end."""
    beyond = ms > _LAST_TIMESTAMP_MS
    micros = np.where(beyond, 0, ms).astype(np.int64) * 1000
    return pa.array(micros, mask=beyond if beyond.any() else None).cast(pa.timestamp("us", tz="UTC"))


def readable(values: pa.BinaryArray) -> pa.Array:
    """Bytes to text; those that are not UTF-8 are written as \\xff."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="backslashreplace") for value in values.to_pylist()]
        return pa.array(texts, type=pa.string())


def _corrupt_texts(rows: list[bytes], malformed: Any) -> pa.Array:
    """The whole entry as JSON for rows in which something did not fit, null for the others."""
    texts: list[str | None] = [None] * len(rows)
    for number in np.flatnonzero(malformed).tolist():
        entry_id, words = fmt.decode_entry(rows[number])
        texts_of = [word.decode(errors="backslashreplace") for word in words]
        fields = dict(zip(texts_of[::2], texts_of[1::2], strict=True))
        texts[number] = json.dumps({"_id": entry_id.decode(), **fields}, ensure_ascii=False)
    return pa.array(texts, type=pa.string())
