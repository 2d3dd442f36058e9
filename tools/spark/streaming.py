"""`spark.readStream.format("riverbed")`: what has been added since the last batch, of a live store or of snapshots.

    a live store       each batch reads the store's last checkpoint, read only, beside its server
    a folder           of snapshots of one store, as `riverbed snapshot` fills it: one after the other, so that what was
                       trimmed between two of them is still read from the first

A batch is everything between two offsets (`offsets.py`), an ID for each stream.  Entries never change and IDs only
grow, so a batch that is read again after a crash is the same: with a sink that takes a batch once, each entry arrives
there once.  What was trimmed before it was read is a DataLossError, unless failOnDataLoss says otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from store import format as fmt
from store.ids import MAX_ID, MIN_ID, StreamID, id_text, unpack_id
from store.tablereader import TableReader
from tools.spark.entries import entry_batches
from tools.spark.errors import DataLossError, OptionError
from tools.spark.garbage import settle
from tools.spark.locations import Place, live_place, open_place, series
from tools.spark.offsets import Offset, Progress
from tools.spark.options import ReadOptions, Table, key_text
from tools.spark.plan import Span
from tools.spark.schemas import entry_columns
from tools.spark.streamwalk import StreamHere, streams_of

_ROWS_A_TASK: Final = 1_000_000
_ALL_STREAMS: Final = (1 << 64) - 1

Json = dict[str, Any]


@dataclass(frozen=True)
class Batch(InputPartition):
    """What one task reads: ranges of IDs of some streams."""

    spans: tuple[Span, ...]


class EntryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads entries as they come."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table is not Table.ENTRIES:
            raise OptionError(f"only entries can be streamed; table {options.table.value} is read in batches")
        if len(options.paths) != 1:
            raise OptionError("a stream is read from one path: a live store, or a folder of its snapshots")
        self._options = options
        self._schema = schema
        self._target: Offset | None = None
        entry_columns(schema, options)

    # -- offsets, on the driver ----------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_rows_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def initialOffset(self) -> Json:
        begin = self.reportLatestOffset() if self._options.starts_at_end else None
        return Offset().to_json() if begin is None else begin

    def prepareForTriggerAvailableNow(self) -> None:
        places = self._places()
        self._target = self._end_of(places[-1]) if places else Offset()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        begin = Offset.from_json(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        for place in self._places_from(begin):
            end = self._advance(place, begin, most)
            if end.streams != begin.streams:
                return end.to_json()
        return start

    def reportLatestOffset(self) -> Json | None:
        places = self._places()
        return self._end_of(places[-1]).to_json() if places else None

    def _places(self) -> list[Place]:
        """The live store, or all snapshots, the oldest first."""
        path = self._options.paths[0]
        live = live_place(path)
        return [live] if live is not None else series(path)

    def _places_from(self, begin: Offset) -> list[Place]:
        """From the snapshot on that the last batch was read from: it may have more than a batch may hold."""
        places = self._places()
        if not begin.snapshot:
            return places
        names = [place.name for place in places]
        if begin.snapshot in names:
            return places[names.index(begin.snapshot) :]
        return [place for place in places if place.time_ms > begin.taken_ms] or places[-1:]

    @contextlib.contextmanager
    def _reading(self, place: Place) -> Iterator[TableReader]:
        tables = open_place(place, self._options)
        with tables.env.begin() as txn:
            yield TableReader(tables, txn)

    def _end_of(self, place: Place) -> Offset:
        with self._reading(place) as reader:
            return Offset(
                _name(place),
                {
                    (stream.db, stream.key): Progress(stream.row.last_id, stream.row.entries_added)
                    for stream in streams_of(reader, _everything(place), self._options)
                },
                place.time_ms,
            )

    def _advance(self, place: Place, begin: Offset, most: int | None) -> Offset:
        """How far one place brings the query, by at most `most` rows, shared among its streams."""
        ends = dict(begin.streams)
        with self._reading(place) as reader:
            waiting: list[tuple[StreamHere, StreamID]] = []
            for stream in streams_of(reader, _everything(place), self._options):
                name = (stream.db, stream.key)
                last = self._last_of(stream)
                if last > begin.of(name).last_id:
                    waiting.append((stream, last))
            for number, (stream, last) in enumerate(waiting):
                name = (stream.db, stream.key)
                at = begin.of(name)
                share = None if most is None else -(-most // (len(waiting) - number))
                end, count = _walk(reader, stream, at.last_id, last, share)
                if most is not None:
                    most -= count
                if end > at.last_id:
                    ends[name] = Progress(end, _seen(reader, stream, end))
                if most is not None and most <= 0:
                    break
        return Offset(_name(place), ends, place.time_ms)

    def _last_of(self, stream: StreamHere) -> StreamID:
        """Up to where a stream may be read: its end, or where it ended when Trigger.AvailableNow began."""
        if self._target is None:
            return stream.row.last_id
        return min(stream.row.last_id, self._target.of((stream.db, stream.key)).last_id)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begin, until = Offset.from_json(start), Offset.from_json(end)
        place = self._place_of(until)
        batches: list[Batch] = []
        spans: list[Span] = []
        rows = 0
        found = set()
        with self._reading(place) as reader:
            for stream in streams_of(reader, _everything(place), self._options):
                name = (stream.db, stream.key)
                found.add(name)
                first, last = begin.of(name).last_id, until.of(name).last_id
                if last <= first:
                    continue
                self._require_unread(stream, begin.of(name))
                for span in _spans(reader, place, stream, first, last):
                    spans.append(span)
                    rows += span.rows
                    if rows >= _ROWS_A_TASK:
                        batches.append(Batch(tuple(spans)))
                        spans, rows = [], 0
        missing = {name for name, at in until.streams.items() if at != begin.of(name)} - found
        if missing and self._options.fail_on_data_loss:
            names = ", ".join(sorted(key_text(key) for _, key in missing))
            raise DataLossError(f"deleted before it was read: {names}; failOnDataLoss=false goes on without")
        if spans:
            batches.append(Batch(tuple(spans)))
        return batches

    def _place_of(self, end: Offset) -> Place:
        places = self._places()
        for place in places:
            if _name(place) == end.snapshot:
                return place
        for place in places:
            if end.snapshot and end.taken_ms and place.time_ms > end.taken_ms:
                return place
        raise DataLossError(f"snapshot {end.snapshot} is gone, and none came after it: {self._options.paths[0]}")

    def _require_unread(self, stream: StreamHere, at: Progress) -> None:
        """Raise DataLossError when the stream has lost more at its beginning than was read.

        A stream of which nothing was read yet begins with what it has: what was trimmed before was never promised.
        """
        row = stream.row
        if not self._options.fail_on_data_loss or at == Progress():
            return
        if row.last_id < at.last_id:
            was, now = id_text(at.last_id).decode(), id_text(row.last_id).decode()
            raise DataLossError(
                f"stream {stream.key_text} was read up to {was}, and ends with {now}: it is another one"
            )
        is_behind = not row.length or row.first_id > at.last_id
        if is_behind and row.entries_added - row.length > at.seen:
            raise DataLossError(
                f"stream {stream.key_text} was trimmed up to {id_text(row.first_id).decode()}, and was read up to "
                f"{id_text(at.last_id).decode()} by then; failOnDataLoss=false goes on with what is left"
            )

    # -- in a task -----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        assert isinstance(partition, Batch)
        options = replace(self._options, streams=None, pattern=None, keys=None, db=None)
        columns = entry_columns(self._schema, self._options)
        for span in partition.spans:
            with self._reading(span.place) as reader:
                yield from entry_batches(reader, span, options, columns)


def _name(place: Place) -> str:
    return "" if place.is_live else place.name


def _everything(place: Place) -> Span:
    return Span(place, 0, MIN_ID, _ALL_STREAMS, None, 0)


def _walk(
    reader: TableReader, stream: StreamHere, after: StreamID, last: StreamID, most: int | None
) -> tuple[StreamID, int]:
    """-> (the ID of the `most`-th entry behind `after`, or `last` if there are fewer; how many entries there are)"""
    row = stream.row
    cursor = reader.cursor("entries")
    first = max(after + 1, row.first_id)
    if not row.length or first > last or after >= MAX_ID:
        return last, 0
    if not cursor.set_range(fmt.entry_key(row.stream_no, StreamID(first))):
        return last, 0
    last_key = fmt.entry_key(row.stream_no, min(last, row.last_live_id))
    count = 0
    for key in islice(cursor.iternext(keys=True, values=False), most):
        if key > last_key:
            return last, count
        count += 1
    if most is not None and count == most:
        return unpack_id(cursor.key()[8:]), count
    return last, count


def _seen(reader: TableReader, stream: StreamHere, end: StreamID) -> int:
    """How many entries had been added up to `end`, all that are deleted by now among them; by nodes, of a hundred."""
    row = stream.row
    if end >= row.last_id:
        return row.entries_added
    seen = row.entries_added - row.length
    counted = MIN_ID
    prefix = fmt.stream_prefix(row.stream_no)
    for _, node in reader.rows("nodes", prefix):
        live, _, _, last_id = fmt.decode_node(node)
        if last_id > end:
            break
        if last_id >= row.first_id:
            seen += live
            counted = last_id
    return seen + _walk(reader, stream, counted, end, None)[1]


def _spans(reader: TableReader, place: Place, stream: StreamHere, after: StreamID, last: StreamID) -> Iterator[Span]:
    """Ranges of up to `_ROWS_A_TASK` entries."""
    stream_no = stream.row.stream_no
    while after < last:
        end, count = _walk(reader, stream, after, last, _ROWS_A_TASK)
        end_id = None if end == MAX_ID else StreamID(end + 1)
        yield Span(place, stream_no, StreamID(after + 1), stream_no, end_id, count)
        after = end
