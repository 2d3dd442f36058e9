"""`spark.readStream.format("riverbed")`: entries added since the last batch, from a live store or from snapshots.

    a live store       each batch reads the store's last checkpoint, read only, beside its server
    a folder           of snapshots of one store, as `riverbed snapshot` fills it: one snapshot after the other, so that
                       entries trimmed between two snapshots are still read from the first

A batch is everything between two offsets (`offsets.py`).  An offset has an ID for each stream; with a limit on rows,
streams that have more end at the same ID (`counting.py`).  Entries never change and IDs only grow, so a batch that is
read again after a crash is the same: with a sink that takes a batch once, each entry arrives there once.  Entries lost
before they were read are a DataLossError (`continuity.py`), unless failOnDataLoss says otherwise.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from riverbed.store.ids import MAX_ID, MIN_ID, StreamID
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import numbered_streams
from riverbed.tools.columns.streams import Range, StreamHere
from riverbed.tools.spark.errors import UNREADABLE, DataLossError, OptionError, SourceError
from riverbed.tools.spark.garbage import settle
from riverbed.tools.spark.reading.entries import entry_batches
from riverbed.tools.spark.reading.locations import Place, live_place, may_have_columns, open_place, series
from riverbed.tools.spark.reading.named import absent_text
from riverbed.tools.spark.reading.options import ReadOptions, StreamName, Table
from riverbed.tools.spark.reading.plan import Span
from riverbed.tools.spark.reading.schemas import entry_columns
from riverbed.tools.spark.reading.streamwalk import streams_of
from riverbed.tools.spark.streaming.continuity import (
    Beginning,
    deleted_loss,
    is_another,
    loss,
    numbering_of,
    other_store,
    progress_at,
    replids_of,
    trimmed_since,
)
from riverbed.tools.spark.streaming.counting import EntryCounts, Run, Unread, common_cut
from riverbed.tools.spark.streaming.offsets import Offset, Progress

_ROWS_A_TASK: Final = 1_000_000
_ALL_STREAMS: Final = (1 << 64) - 1

Json = dict[str, Any]


class Asked(NamedTuple):
    """A range of IDs of a stream, and how far the stream was read before, or else what it began with."""

    span: Span
    at: Progress
    beginning: Beginning | None


@dataclass(frozen=True)
class Batch(InputPartition):
    """What one task reads.  It names streams by the numbers that the tables of this `numbering` give them."""

    spans: tuple[Asked, ...]
    numbering: str


class EntryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new entries in micro-batches."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table is not Table.ENTRIES:
            raise OptionError(f"only entries can be streamed; table {options.table.value} is read in batches")
        if options.as_of_ms is not None:
            raise OptionError("asOf is for spark.read; endingTimestamp ends a stream")
        if options.data_checksum is not None:
            raise OptionError("dataChecksum is for spark.read; a stream checks that it goes on with the same store")
        if len(options.paths) != 1:
            raise OptionError("a stream is read from one path: a live store, or a folder of its snapshots")
        self._options = options
        self._schema = schema
        # With Trigger.AvailableNow, what was there when the query began: of a live store the ends of its streams, of a
        # folder its snapshots.
        self._target: Offset | None = None
        self._snapshots: set[str] | None = None
        self._absent: set[tuple[int | None, bytes]] = set()  # streams that are named and not there, at the last look
        self._has_warned = False
        entry_columns(schema, options)

    # -- offsets, on the driver ----------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_rows_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def initialOffset(self) -> Json:
        begin = self.reportLatestOffset() if self._options.starts_at_end else None
        return Offset().to_json() if begin is None else begin

    def prepareForTriggerAvailableNow(self) -> None:
        live = live_place(self._options.paths[0])
        if live is not None:
            self._target = self._end_of(live)
        else:
            self._snapshots = {place.name for place in self._places()}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        begin = Offset.from_json(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        for place in self._places_from(begin):
            end = self._advance(place, begin, most)
            if end.streams != begin.streams:
                return end.to_json()
        if self._absent and not self._has_warned:
            self._has_warned = True
            what = f"{absent_text(self._absent)} {self._options.paths[0]}"
            warnings.warn(f"{what}: the query reads it as soon as it is there", stacklevel=2)
        return start

    def reportLatestOffset(self) -> Json | None:
        places = self._places()
        return self._end_of(places[-1]).to_json() if places else None

    def _places(self) -> list[Place]:
        """The live store, or all snapshots, the oldest first."""
        path = self._options.paths[0]
        live = live_place(path)
        if live is not None:
            return [live]
        return [place for place in series(path) if self._snapshots is None or place.name in self._snapshots]

    def _places_from(self, begin: Offset) -> list[Place]:
        """The places to read next, from the last batch's snapshot on: it may have had more than one batch may hold."""
        places = self._places()
        if not begin.snapshot:
            return places
        names = [place.name for place in places]
        if begin.snapshot in names:
            return places[names.index(begin.snapshot) :]
        return [place for place in places if place.time_ms > begin.taken_ms] or places[-1:]

    @contextlib.contextmanager
    def _reading(self, place: Place) -> Iterator[TableReader]:
        """Raises SourceError, also for what goes wrong while the reader is in use."""
        try:
            tables = open_place(place, self._options)
            with tables.env.begin() as txn:
                yield TableReader(tables, txn)
        except UNREADABLE as error:
            raise SourceError(f"cannot read {place.name}: {error}") from error

    def _end_of(self, place: Place) -> Offset:
        with self._reading(place) as reader:
            streams = streams_of(reader, _everything(place), self._options)
            ends = {(each.db, each.key): progress_at(reader, each, each.row.last_id) for each in streams}
            return _offset(reader, place, ends)

    def _advance(self, place: Place, begin: Offset, most: int | None) -> Offset:
        """The end of the next batch if it is read from `place`: about `most` rows at most.  Raises DataLossError."""
        with self._reading(place) as reader:
            here = {(each.db, each.key): each for each in streams_of(reader, _everything(place), self._options)}
            self._absent = self._options.named() - {*here, *((None, key) for _, key in here)}
            self._require_store(reader, place, begin, here)
            ends = self._require_streams(begin, here)
            waiting = []
            for name, stream in here.items():
                at, last = begin.of(name), self._last_of(stream)
                self._require_unread(reader, stream, at)
                is_new = not self._options.fail_on_data_loss and is_another(reader, stream, at)
                first = StreamID(1) if is_new else StreamID(at.last_id + 1)
                if last >= first:
                    first = max(first, stream.range.first)
                    until = min(last, stream.range.last)
                    waiting.append((stream, last, is_new, Unread(EntryCounts(reader, stream.row), first, until)))
            cut = MAX_ID if most is None else common_cut([unread for *_, unread in waiting], most)
            for stream, last, is_new, unread in waiting:
                if last <= cut or any(unread.counts.ids(unread.first_id, min(cut, unread.last_id))):
                    ends[stream.db, stream.key] = progress_at(reader, stream, min(last, cut), is_new=is_new)
            return _offset(reader, place, ends)

    def _require_store(
        self, reader: TableReader, place: Place, begin: Offset, here: Mapping[StreamName, StreamHere]
    ) -> None:
        if self._options.fail_on_data_loss and (why := other_store(reader, begin, here)) is not None:
            raise DataLossError(f"{place.where} is of {why}; failOnDataLoss=false goes on with it")

    def _require_streams(self, begin: Offset, here: Mapping[StreamName, StreamHere]) -> dict[StreamName, Progress]:
        """The progress of the streams that are still there.  Raises DataLossError when one is not."""
        gone = {name: at for name, at in begin.streams.items() if name not in here and self._options.wants(*name)}
        if gone and self._options.fail_on_data_loss:
            raise DataLossError(deleted_loss(gone))
        return {name: at for name, at in begin.streams.items() if name not in gone}

    def _require_unread(self, reader: TableReader, stream: StreamHere, at: Progress) -> None:
        """Raise DataLossError when the stream has lost entries that were not read."""
        if self._options.fail_on_data_loss and (why := loss(reader, stream, at)) is not None:
            raise DataLossError(why)

    def _last_of(self, stream: StreamHere) -> StreamID:
        """The ID up to which a stream may be read: the end that the options name, or that of the stream.

        With Trigger.AvailableNow it is the end that a live stream had when the query began.  What comes behind
        `endingId` is not passed over: a query that goes on from the checkpoint with another end reads it.
        """
        last = min(stream.row.last_id, stream.range.last)
        return last if self._target is None else min(last, self._target.of((stream.db, stream.key)).last_id)

    # -- a batch -------------------------------------------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begin, until = Offset.from_json(start), Offset.from_json(end)
        place = self._place_of(until)
        parts: list[_Part] = []
        with self._reading(place) as reader:
            here = {(each.db, each.key): each for each in streams_of(reader, _everything(place), self._options)}
            changed = {name: at for name, at in until.streams.items() if at != begin.of(name)}
            self._require_streams(replace(until, streams=changed), here)
            for name, stream in here.items():
                at, last = begin.of(name), until.of(name).last_id
                if name not in changed:
                    continue
                if until.of(name).is_new:
                    at = Progress()
                self._require_unread(reader, stream, at)
                if not self._options.fail_on_data_loss and is_another(reader, stream, until.of(name)):
                    continue  # deleted since: the next batch begins the new stream
                counts = EntryCounts(reader, stream.row)
                runs = list(_runs(counts, StreamID(at.last_id + 1), last))
                if runs:
                    beginning = self._beginning(stream, at, counts)
                    parts.append(_Part(counts, stream.row.stream_no, at, last, runs, beginning))
            asked = [(part.stream_no, Range(StreamID(part.at.last_id + 1), part.last_id)) for part in parts]
            if may_have_columns(place, self._options):
                from riverbed.tools.spark.reading.over_columns import over_columns

                place = over_columns(place, self._options, entry_columns(self._schema, self._options), asked)
            target = self._target_rows(sum(part.rows for part in parts))
            return _packed(place, parts, target, numbering_of(reader))

    @staticmethod
    def _beginning(stream: StreamHere, at: Progress, counts: EntryCounts) -> Beginning | None:
        """What the tasks look for, of a stream that is read from its first entry on."""
        if at != Progress() or stream.range.first > stream.row.first_id:
            return None
        return Beginning.of(stream.row, counts)

    def _target_rows(self, rows: int) -> int:
        """The most rows of a task."""
        options = self._options
        target = min(_ROWS_A_TASK, -(-rows // max(options.min_partitions, 1)))
        return max(min(target, options.max_records or target), 1)

    def _place_of(self, end: Offset) -> Place:
        places = self._places()
        for place in places:
            if _name(place) == end.snapshot:
                return place
        for place in places:
            if end.snapshot and end.taken_ms and place.time_ms > end.taken_ms:
                return place
        raise DataLossError(f"snapshot {end.snapshot} is gone, and none came after it: {self._options.paths[0]}")

    # -- in a task -----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        assert isinstance(partition, Batch)
        spans = {asked.span.first_stream: asked for asked in partition.spans}
        first = partition.spans[0].span
        whole = _everything(first.place)
        with self._reading(first.place) as reader:
            if first.place.is_live and numbering_of(reader) != partition.numbering:
                raise SourceError(
                    f"the tables of {first.place.where} were exchanged while a batch of them was read, as by a full "
                    "sync or a repair; start the query again, which reads the batch again"
                )
            streams = self._streams(reader, spans)
            columns = entry_columns(self._schema, self._options)
            yield from entry_batches(reader, whole, self._any_key, columns, streams)

    def _streams(self, reader: TableReader, spans: Mapping[int, Asked]) -> Iterator[StreamHere]:
        """The streams of these spans, by number.  Raises DataLossError when entries were lost since the plan."""
        is_strict = self._options.fail_on_data_loss and all(asked.span.place.is_live for asked in spans.values())
        options, count = self._any_key, 0
        for found in numbered_streams(reader, spans):
            count += 1
            span, at, beginning = spans[found.row.stream_no]
            asked = options.range_of(found.db, found.key)
            stream = StreamHere(*found, span.range_of(found.row.stream_no, asked))
            if is_strict:
                self._require_unread(reader, stream, at)
                if beginning is not None and (why := trimmed_since(stream, beginning)) is not None:
                    raise DataLossError(why)
            yield stream
        if is_strict and count < len(spans):
            raise DataLossError("a stream was deleted while it was read; failOnDataLoss=false goes on without")

    @property
    def _any_key(self) -> ReadOptions:
        """Options without a choice of streams: spans name streams by number, so that a renamed stream is still read."""
        return replace(self._options, streams=None, names=None, pattern=None, keys=None, db=None)


def _name(place: Place) -> str:
    return "" if place.is_live else place.name


def _everything(place: Place) -> Span:
    return Span(place, 0, MIN_ID, _ALL_STREAMS, None, 0)


def _offset(reader: TableReader, place: Place, streams: dict[StreamName, Progress]) -> Offset:
    replids = replids_of(reader)
    ids = ("", "") if replids is None else (replids.replication_id, replids.store_id)
    return Offset(_name(place), streams, place.time_ms, *ids)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a batch reads of one stream: from behind `at` up to `last_id`, which are these runs of entries."""

    counts: EntryCounts
    stream_no: int
    at: Progress
    last_id: StreamID
    runs: list[Run]
    beginning: Beginning | None

    @property
    def rows(self) -> int:
        return sum(run.live for run in self.runs)


def _runs(counts: EntryCounts, first: StreamID, last: StreamID) -> Iterator[Run]:
    """The runs from `first` to `last`.  Some of the last one's entries may be behind that."""
    return takewhile(lambda run: run.first_id <= last, counts.runs(first))


def _packed(place: Place, parts: Sequence[_Part], target: int, numbering: str) -> list[Batch]:
    """Tasks of at most `target` rows: long streams are cut, short ones share a task."""
    batches: list[Batch] = []
    waiting: list[Asked] = []
    rows = 0
    for part in parts:
        for span in _spans(place, part, target):
            if waiting and rows + span.rows > target:
                batches.append(Batch(tuple(waiting), numbering))
                waiting, rows = [], 0
            waiting.append(Asked(span, part.at, part.beginning))
            rows += span.rows
    if waiting:
        batches.append(Batch(tuple(waiting), numbering))
    return batches


def _spans(place: Place, part: _Part, target: int) -> Iterator[Span]:
    """Spans of at most `target` rows, cut between runs where those are short enough, and else at an entry's ID.

    Rows are not counted off: in a live store entries before them may be deleted between two tasks.
    """
    last, stream_no = part.last_id, part.stream_no
    first, rows = StreamID(part.at.last_id + 1), 0
    for run in part.runs:
        if rows and rows + run.live > target:
            yield Span(place, stream_no, first, stream_no, run.first_id, rows)
            first, rows = run.first_id, 0
        rows += run.live
        if rows > target:
            for head in islice(part.counts.ids(first, min(run.last_id, last)), target, None, target):
                yield Span(place, stream_no, first, stream_no, head, target)
                first, rows = head, rows - target
    if rows:
        yield Span(place, stream_no, first, stream_no, None if last == MAX_ID else StreamID(last + 1), rows)
