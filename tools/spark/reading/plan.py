"""Plans partitions: ranges of streams and IDs, cut at split keys of the manifest, so that planning reads no entry.

    stream 3            stream 4                                      stream 7, 8, 9 ... 40
    |----------------|  |---------------|---------------|----------|  |-------------------|
      a partition          cut at split keys into even ones             many short streams in one

A partition is a range in the order of table `entries`, from (stream, ID) to (stream, ID).  The task finds the streams
in between, so that a plan for millions of streams stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from riverbed.store.ids import MAX_ID, StreamID
from riverbed.store.snapshot.reader import Snapshot
from riverbed.store.snapshot.stream_lines import StreamSummary
from riverbed.tools.columns.streams import Range
from riverbed.tools.spark.reading.locations import Place
from riverbed.tools.spark.reading.options import ReadOptions, Table

# A core reads so many in a second; a task takes about 50 ms beside its reading.
_GOOD_ROWS = 2_000_000
# For fewer rows another task is not worth it.
_FEW_ROWS = 10_000


@dataclass(frozen=True)
class Span(InputPartition):
    """From (first_stream, first_id) up to, but without, (last_stream, end_id); `end_id` None: to the stream's end."""

    place: Place
    first_stream: int
    first_id: StreamID
    last_stream: int
    end_id: StreamID | None
    rows: int  # an estimate
    # For one of several spans of a part that is too large for one partition: rows of earlier spans to skip, and rows
    # to take; None: all the rest.
    skip: int = 0
    take: int | None = None

    def range_of(self, stream_no: int, asked: Range) -> Range:
        """The part of the range `asked` of a stream that is in this span."""
        first = self.first_id if stream_no == self.first_stream else StreamID(0)
        last = MAX_ID
        if stream_no == self.last_stream and self.end_id is not None:
            last = StreamID(self.end_id - 1)
        return asked.cut(Range(first, last))


@dataclass(frozen=True, slots=True)
class _Piece:
    stream_no: int
    first_id: StreamID
    end_id: StreamID | None
    rows: int


def plan(places: Iterable[tuple[Place, Snapshot]], options: ReadOptions, parallelism: int) -> list[Span]:
    """Cut everything asked for into spans with about the same number of rows; spans of one place are in order."""
    pieces = [(place, list(_pieces(snapshot, options))) for place, snapshot in places]
    rows = sum(piece.rows for _, each in pieces for piece in each)
    count = -(-rows // _GOOD_ROWS)
    if rows >= _FEW_ROWS * parallelism:
        # Every core gets the same number of tasks: three tasks on two cores take as long as four.
        count = -(-count // parallelism) * parallelism
    else:
        count = max(count, rows // _FEW_ROWS)
    target = -(-rows // max(count, options.min_partitions, 1))
    if options.max_records:
        target = min(target, options.max_records)
    # Only entries can be divided by counting rows: rows of other tables belong to a stream's beginning or to IDs.
    may_count = options.table is Table.ENTRIES
    return [span for place, each in pieces for span in _pack(place, each, max(target, 1), may_count=may_count)]


def _pieces(snapshot: Snapshot, options: ReadOptions) -> Iterator[_Piece]:
    for stream in snapshot.streams():
        if options.wants(stream.db, stream.key):
            yield from _cut(stream, options.range_of(stream.db, stream.key))


def _cut(stream: StreamSummary, asked: Range) -> Iterator[_Piece]:
    """The parts of a stream that overlap a range; its first part begins at the lowest ID there is."""
    parts = stream.parts
    if not parts:
        yield _Piece(stream.stream_no, StreamID(0), None, 0)
    for number, part in enumerate(parts):
        first = part.first_id if number else StreamID(0)
        end = parts[number + 1].first_id if number + 1 < len(parts) else None
        if first <= asked.last and (end is None or end > asked.first):
            yield _Piece(stream.stream_no, first, end, part.entries)


def _pack(place: Place, pieces: list[_Piece], target: int, *, may_count: bool) -> Iterator[Span]:
    """Join neighbours to spans of about `target` rows; divide a much larger piece by counting its rows."""
    begun: _Piece | None = None
    last: _Piece | None = None
    rows = 0
    # Cuts are wanted at multiples of `target`; otherwise the differences would add up in the last span.
    passed, cut = 0, target
    for piece in pieces:
        if begun is not None and last is not None and rows and passed + piece.rows / 2 > cut:
            yield Span(place, begun.stream_no, begun.first_id, last.stream_no, last.end_id, rows)
            begun, rows = None, 0
            cut += target * (max(passed + piece.rows // 2 - cut, 0) // target + 1)
        if may_count and piece.rows > 2 * target and not rows:
            begun = None  # if anything has begun, streams without entries
            yield from _count_off(place, piece, target)
            passed, cut = 0, target
            continue
        if begun is None:
            begun = piece
        last = piece
        rows += piece.rows
        passed += piece.rows
    if begun is not None and last is not None:
        yield Span(place, begun.stream_no, begun.first_id, last.stream_no, last.end_id, rows)


def _count_off(place: Place, piece: _Piece, target: int) -> Iterator[Span]:
    stream_no, first_id, end_id = piece.stream_no, piece.first_id, piece.end_id
    skips = range(0, piece.rows, target)
    for skip in skips:
        take = None if skip == skips[-1] else target
        yield Span(place, stream_no, first_id, stream_no, end_id, min(target, piece.rows - skip), skip, take)
