"""Reads rows of table `entries`, by the thousand, each with its stream.

Rows of a snapshot are read by whole leaf pages (`pages.py`); rows of a live store, which is being written, with a
cursor.  The cursor returns only values: keys would cost as much again, and the ID is in the row.  A batch holds rows of
as many streams as it has room for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from riverbed.store.errors import CorruptionError
from riverbed.store.format.entries import bare_row, bare_values
from riverbed.store.format.streams import entry_key, stream_prefix
from riverbed.store.ids import SEQ_BITS, StreamID
from riverbed.store.layout import DATA_NAME
from riverbed.store.tables.places import seek
from riverbed.store.tables.reader import TableReader
from riverbed.store.wire import unseal_in
from riverbed.tools.columns.decode import MARGIN, EntryBatch
from riverbed.tools.columns.pages import LeafRows, PageTable, UnknownFileError
from riverbed.tools.columns.streams import StreamHere

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    _Runs = list[tuple[StreamHere, int]]

BATCH_ROWS: Final = 16384
# A batch ends sooner when its rows are long.
_MAX_BATCH_BYTES: Final = 32 << 20
_ROWS_A_LOOK: Final = 256
# Limits of a group: streams whose pages are found in one search.
_ROWS_A_GROUP: Final = 1 << 20
_STREAMS_A_GROUP: Final = 4096
_KEY_BYTES: Final = 24
# An ID, with its length, is in this many bytes of a row.
_LONGEST_HEAD: Final = 64


@dataclass(frozen=True, slots=True)
class _Cut:
    """Rows to leave out, rows to read then (None: all), the most rows of a batch, and whether only IDs are used."""

    skip: int
    take: int | None
    batch_rows: int
    only_ids: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """Some rows, and in their order each stream with its number of rows."""

    batch: EntryBatch
    runs: _Runs


def fetch(
    reader: TableReader,
    streams: Iterable[StreamHere],
    *,
    is_live: bool,
    batch_rows: int = BATCH_ROWS,
    skip: int = 0,
    take: int | None = None,
    only_ids: bool = False,
) -> Iterator[Fetched]:
    """The entries of some streams, which ascend by number: by stream and ID, without the first `skip`, at most `take`.

    `is_live`: the tables may be written to meanwhile.  `only_ids`: of the batches only the IDs are used; then a value
    on pages of its own is not read, nor compared with its checksum, beyond its first bytes.

    Raises CorruptionError, MalformedRowError, OSError.
    """
    wanted = (stream for stream in streams if not stream.live_range.is_empty)
    part = _Cut(skip, take, batch_rows, only_ids)
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
            parts = _parts_of(rows := table.rows(leaves[at : at + pages]), group, numbers, counter)
            yield from _fetched(table, rows, parts, only_ids=cut.only_ids)


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


def _parts_of(rows: LeafRows, group: list[StreamHere], numbers: list[int], counter: _Counter) -> list[_Part]:
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
    return parts


def _fetched(table: PageTable, rows: LeafRows, parts: list[_Part], *, only_ids: bool) -> Iterator[Fetched]:
    """These rows of some leaves, in one batch, or in several when some are long."""
    if not parts:
        return
    chosen = _chosen(parts)
    runs = [(part.stream, part.end - part.first) for part in parts]
    if rows.pages is None or not rows.pages[chosen].any():
        some = _Some(rows.buffer, rows.starts[chosen], rows.ends[chosen], rows.keys[chosen])
        yield Fetched(some.batch(), runs)
        return
    longest = _LONGEST_HEAD if only_ids else None
    for some in _with_long_values(rows, chosen, table.long_value, longest):
        here, runs = _divided(runs, len(some.starts))
        yield Fetched(some.batch(), here)


def _divided(runs: _Runs, count: int) -> tuple[_Runs, _Runs]:
    """The first `count` rows of `runs`, at least one, and the others."""
    for number, (stream, rows) in enumerate(runs):
        if count <= rows:
            others = [(stream, rows - count)] if count < rows else []
            return [*runs[:number], (stream, count)], [*others, *runs[number + 1 :]]
        count -= rows
    raise AssertionError(count)


@dataclass(frozen=True, slots=True)
class _Some:
    """Rows in a buffer, with their seals, and a line of `keys` for each."""

    buffer: NDArray[np.uint8]
    starts: Positions
    ends: Positions
    keys: NDArray[np.uint64]
    is_cut: NDArray[np.bool_] | None = None  # rows of which only the first bytes are here, and so no seal

    def batch(self) -> EntryBatch:
        """The rows without their seals.  Raises DamagedRowError."""
        ends = np.array(self.ends, dtype=np.int64)
        whole = slice(None) if self.is_cut is None else np.flatnonzero(~self.is_cut)
        starts, keys, bare_ends = self.starts[whole], self.keys[whole], ends[whole]
        damaged = unseal_in(self.buffer, np.ascontiguousarray(starts), bare_ends, np.ascontiguousarray(keys[:, 0]))
        if damaged >= 0:
            row = self.buffer[starts[damaged] : self.ends[whole][damaged]].tobytes()
            bare_row(keys[damaged].astype(">u8").tobytes(), row)
        ends[whole] = bare_ends
        return EntryBatch(self.buffer, self.starts, ends, (self.keys[:, 1], self.keys[:, 2]))


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


def _with_long_values(
    rows: LeafRows, chosen: slice | Positions, read: Callable[[int, int], bytes], longest: int | None
) -> Iterator[_Some]:
    """The chosen rows, in the buffer of the pages and behind it: there `read` puts values from pages of their own.

    `read` is given the first page of a value, and how many of its bytes are wanted: `longest`, or all.  A batch ends
    before its long values are too many bytes.
    """
    assert rows.pages is not None
    pages, keys = rows.pages[chosen], rows.keys[chosen]
    starts, ends = rows.starts[chosen].astype(np.int64), rows.ends[chosen].astype(np.int64)
    sizes = np.where(pages != 0, ends - starts, 0)
    is_cut = np.zeros(len(sizes), dtype=np.bool_)
    if longest is not None:
        is_cut = sizes > longest
        sizes = np.minimum(sizes, longest)
    first = 0
    while first < len(starts):
        behind = np.cumsum(sizes[first:])
        end = first + max(1, int(np.searchsorted(behind, _MAX_BATCH_BYTES, side="right")))
        values, at = [rows.buffer.tobytes()], len(rows.buffer)
        for row in (np.flatnonzero(pages[first:end]) + first).tolist():
            value = read(int(pages[row]), int(sizes[row]))
            starts[row], ends[row] = at, at + len(value)
            values.append(value)
            at += len(value)
        values.append(bytes(MARGIN))
        buffer = np.frombuffer(b"".join(values), dtype=np.uint8)
        part = slice(first, end)
        yield _Some(buffer, starts[part], ends[part], keys[part], is_cut[part])
        first = end


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
    if not seek(cursor, entry_key(stream.row.stream_no, wanted.first)):
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
