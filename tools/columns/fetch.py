"""Reads rows of table `entries`, by the thousand, each with its stream.

Rows of a snapshot are read by whole leaf pages (`pages.py`); rows of a live store, which is being written, with a
cursor.  The cursor returns only values: keys would cost as much again, and the ID is in the row.  A batch holds rows of
as many streams as it has room for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from riverbed.store.errors import CorruptionError
from riverbed.store.format.entries import bare_row, bare_values
from riverbed.store.format.streams import entry_key, stream_prefix
from riverbed.store.ids import SEQ_BITS, StreamID
from riverbed.store.layout import DATA_NAME
from riverbed.store.tables.reader import TableReader
from riverbed.store.wire import unseal_in
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.pages import LeafRows, PageTable, UnknownFileError
from riverbed.tools.columns.streams import StreamHere

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

BATCH_ROWS: Final = 16384
# A batch ends sooner when its rows are long.
_MAX_BATCH_BYTES: Final = 32 << 20
_ROWS_A_LOOK: Final = 256
# Limits of a group: streams whose pages are found in one search.
_ROWS_A_GROUP: Final = 1 << 20
_STREAMS_A_GROUP: Final = 4096
_KEY_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class _Cut:
    """Rows to leave out, rows to read then (None: all), and the most rows of a batch."""

    skip: int
    take: int | None
    batch_rows: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Some rows, and in their order each stream with its number of rows."""

    batch: EntryBatch
    runs: list[tuple[StreamHere, int]]


def fetch(
    reader: TableReader,
    streams: Iterable[StreamHere],
    *,
    is_live: bool,
    batch_rows: int = BATCH_ROWS,
    skip: int = 0,
    take: int | None = None,
) -> Iterator[Fetched]:
    """The entries of some streams, which ascend by number: by stream and ID, without the first `skip`, at most `take`.

    `is_live`: the tables may be written to meanwhile.  Raises CorruptionError, MalformedRowError, OSError.
    """
    wanted = (stream for stream in streams if not stream.live_range.is_empty)
    part = _Cut(skip, take, batch_rows)
    if not is_live:
        try:
            table = PageTable(reader.path / DATA_NAME, b"entries", _KEY_BYTES)
        except UnknownFileError:
            pass
        else:
            with table:
                if table.row_count != reader.count("entries"):
                    raise CorruptionError(str(reader.path / DATA_NAME), None, "is not the file that it was")
                yield from _by_pages(table, wanted, part)
            return
    yield from _by_cursor(reader, wanted, part)


# -- by pages ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Counter:
    """Counts off the rows of a span: `skip` rows are not read, then `left` rows are, or all (None)."""

    skip: int
    left: int | None

    def cut(self, first: int, end: int) -> tuple[int, int]:
        """The part of the rows `first` up to `end` that is in the span."""
        passed = min(self.skip, end - first)
        self.skip -= passed
        first += passed
        if self.left is not None:
            end = min(end, first + self.left)
            self.left -= end - first
        return first, end


def _by_pages(table: PageTable, streams: Iterator[StreamHere], cut: _Cut) -> Iterator[Fetched]:
    counter = _Counter(cut.skip, cut.take)
    pages = cut.batch_rows * table.leaf_count // max(table.row_count, 1)
    pages = max(1, min(pages, _MAX_BATCH_BYTES // table.page_bytes))
    while group := _group_of(streams):
        numbers = [stream.row.stream_no for stream in group]
        leaves = table.leaves([_keys_of(stream) for stream in group])
        for at in range(0, len(leaves), pages):
            if counter.left == 0:
                return
            yield from _rows_of(table, table.rows(leaves[at : at + pages]), group, numbers, counter)


def _group_of(streams: Iterator[StreamHere]) -> list[StreamHere]:
    group = []
    rows = 0
    for stream in streams:
        group.append(stream)
        rows += stream.row.length
        if rows >= _ROWS_A_GROUP or len(group) >= _STREAMS_A_GROUP:
            break
    return group


def _keys_of(stream: StreamHere) -> tuple[bytes, bytes]:
    wanted = stream.live_range
    return entry_key(stream.row.stream_no, wanted.first), entry_key(stream.row.stream_no, wanted.last)


def _rows_of(
    table: PageTable, rows: LeafRows, group: list[StreamHere], numbers: list[int], counter: _Counter
) -> Iterator[Fetched]:
    """The rows of some leaves that are in the span and asked for."""
    stream_nos = rows.keys[:, 0]
    here = group[bisect_left(numbers, int(stream_nos[0])) : bisect_right(numbers, int(stream_nos[-1]))]
    asked = np.array([stream.row.stream_no for stream in here], dtype=np.uint64)
    firsts = np.searchsorted(stream_nos, asked, side="left").tolist()
    ends = np.searchsorted(stream_nos, asked, side="right").tolist()
    parts = []
    for stream, first, end in zip(here, firsts, ends, strict=True):
        first, end = counter.cut(*_cut_to(rows, stream, first, end))
        if first < end:
            parts.append(_Part(stream, first, end))
    if not parts:
        return
    chosen = _chosen(parts)
    starts, row_ends, keys = rows.starts[chosen], rows.ends[chosen], rows.keys[chosen]
    if rows.pages is not None and rows.pages[chosen].any():
        yield from _with_long_values(table, rows, parts)
        return
    row_ends = _bare_ends(rows, starts, row_ends, keys)
    batch = EntryBatch(rows.buffer, starts, row_ends, (keys[:, 1], keys[:, 2]))
    yield Fetched(batch, [(part.stream, part.end - part.first) for part in parts])


def _bare_ends(rows: LeafRows, starts: Positions, ends: Positions, keys: NDArray[np.uint64]) -> Positions:
    """Where these rows end without their seals.  Raises DamagedRowError."""
    found = np.array(ends, dtype=np.int64)
    damaged = unseal_in(rows.buffer, np.ascontiguousarray(starts), found, np.ascontiguousarray(keys[:, 0]))
    if damaged >= 0:
        bare_row(keys[damaged].astype(">u8").tobytes(), rows.buffer[starts[damaged] : ends[damaged]].tobytes())
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """A stream's rows of some leaves: from `first` up to `end`."""

    stream: StreamHere
    first: int
    end: int


def _cut_to(rows: LeafRows, stream: StreamHere, first: int, end: int) -> tuple[int, int]:
    """The part of a stream's rows, `first` up to `end`, that is in its live range."""
    wanted = stream.live_range

    def id_of(row: int) -> StreamID:
        return StreamID(int(rows.keys[row, 1]) << SEQ_BITS | int(rows.keys[row, 2]))

    if first < end and id_of(first) < wanted.first:
        first = bisect_left(range(end), wanted.first, lo=first, key=id_of)
    if first < end and id_of(end - 1) > wanted.last:
        end = bisect_right(range(end), wanted.last, lo=first, key=id_of)
    return first, end


def _chosen(parts: list[_Part]) -> slice | Positions:
    """An index of all rows of `parts`."""
    if all(before.end == part.first for before, part in pairwise(parts)):
        return slice(parts[0].first, parts[-1].end)
    return np.concatenate([np.arange(part.first, part.end) for part in parts])


def _with_long_values(table: PageTable, rows: LeafRows, parts: list[_Part]) -> Iterator[Fetched]:
    """Read rows one by one when some of them are on pages of their own."""
    pending = _Pending()
    for part in parts:
        for row in range(part.first, part.end):
            start, end = int(rows.starts[row]), int(rows.ends[row])
            page = 0 if rows.pages is None else int(rows.pages[row])
            value = table.long_value(page, end - start) if page else rows.buffer[start:end].tobytes()
            if pending.rows and pending.size + len(value) > _MAX_BATCH_BYTES:
                yield pending.take()
            pending.add(part.stream, [value])
    if pending.rows:
        yield pending.take()


# -- with a cursor -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pending:
    """Rows collected for the next batch."""

    rows: list[bytes] = field(default_factory=list)
    runs: list[tuple[StreamHere, int]] = field(default_factory=list)
    size: int = 0

    def add(self, stream: StreamHere, rows: list[bytes]) -> None:
        self.rows += bare_values(stream_prefix(stream.row.stream_no), rows)
        self.size += sum(map(len, rows))
        if self.runs and self.runs[-1][0] is stream:
            self.runs[-1] = (stream, self.runs[-1][1] + len(rows))
        else:
            self.runs.append((stream, len(rows)))

    def take(self) -> Fetched:
        fetched = Fetched(EntryBatch.of_rows(self.rows), self.runs)
        self.rows, self.runs, self.size = [], [], 0
        return fetched


def _by_cursor(reader: TableReader, streams: Iterator[StreamHere], cut: _Cut) -> Iterator[Fetched]:
    pending = _Pending()
    for stream in streams:
        for rows in _rows_by_cursor(reader, stream, cut):
            is_full = len(pending.rows) + len(rows) > cut.batch_rows
            if pending.rows and (is_full or pending.size + sum(map(len, rows)) > _MAX_BATCH_BYTES):
                yield pending.take()
            pending.add(stream, rows)
    if pending.rows:
        yield pending.take()


def _rows_by_cursor(reader: TableReader, stream: StreamHere, cut: _Cut) -> Iterator[list[bytes]]:
    wanted = stream.live_range
    cursor = reader.cursor("entries")
    last_key = entry_key(stream.row.stream_no, wanted.last)
    if not cursor.set_range(entry_key(stream.row.stream_no, wanted.first)):
        return
    left = cut.take
    there = stream.row.length  # behind them are the rows of other streams
    if cut.skip:
        for _ in islice(cursor.iternext(keys=True, values=False), cut.skip):
            pass
        if not cursor.next():
            return
    while there > 0 and (left is None or left > 0):
        first_key = cursor.key()
        if first_key > last_key or not first_key:
            return
        most = min(cut.batch_rows, there, there if left is None else left)
        rows = _some(cursor, most)
        ended_at = cursor.key()  # empty after the last row of the table
        if not ended_at or ended_at > last_key:
            yield _up_to(cursor, first_key, last_key)[:most]
            return
        yield rows
        there -= len(rows)
        if left is not None:
            left -= len(rows)
        if not cursor.next():
            return


def _some(cursor: Any, most: int) -> list[bytes]:
    """Up to `most` rows from the cursor on, fewer when they are long.  Leaves the cursor on the last of them."""
    rows = list(islice(cursor.iternext(keys=False, values=True), min(most, _ROWS_A_LOOK)))
    size = sum(map(len, rows))
    if size:
        most = min(most, max(len(rows), len(rows) * _MAX_BATCH_BYTES // size))
    if len(rows) < most and len(rows) == _ROWS_A_LOOK and cursor.next():
        more = list(islice(cursor.iternext(keys=False, values=True), most - len(rows)))
        rows += more
    return rows


def _up_to(cursor: Any, first_key: bytes, last_key: bytes) -> list[bytes]:
    """The rows from `first_key` to `last_key`.  Compares each key, so it is only for a stream's last batch."""
    rows: list[bytes] = []
    cursor.set_key(first_key)
    for key, row in cursor:
        if key > last_key:
            break
        rows.append(row)
    return rows
