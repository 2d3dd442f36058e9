"""Reads the entries of streams from the Parquet files of a snapshot, in the order and the batches of `fetch.py`.

Row groups and columns that are not asked for are not read: the range of IDs of a file is in the manifest, that of
milliseconds of a row group in its statistics.  An entry's fields are here by name alone: their order, and all but one
of several of the same name, are in the tables alone.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from riverbed.store.disk.real_files import open_file
from riverbed.store.ids import MAX_HALF, StreamID, make_id
from riverbed.tools.columns.fetch import BATCH_ROWS
from riverbed.tools.columns.projection import REST
from riverbed.tools.columns.streams import Range, StreamHere
from riverbed.tools.sidecar.segments import Segment, StreamFiles, all_columns

_IDS: Final = frozenset({"_ms", "_seq"})


class ColumnRows:
    """Some entries of one stream, with the columns that were asked for."""

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.count = columns.num_rows
        self._columns = columns

    def ids(self) -> pa.Array:
        """The IDs as text."""
        return self._columns.column("_id")

    def ms(self) -> Any:
        """The milliseconds of the IDs, as unsigned numbers of 64 bits."""
        return self._half("_ms", 0)

    def seq(self) -> Any:
        """The sequence numbers of the IDs, as unsigned numbers of 64 bits."""
        return self._half("_seq", 1)

    def _half(self, name: str, place: int) -> Any:
        numbers = self._columns.column(name)
        if not numbers.null_count:
            return numbers.to_numpy().view(np.uint64)
        texts = self.ids().to_pylist()  # a column of signed numbers lacks those from 2^63 on
        return np.array([int(text.split("-")[place]) for text in texts], dtype=np.uint64)

    def id_at(self, number: int) -> StreamID:
        return make_id(int(self._halves[0][number]), int(self._halves[1][number]))

    @cached_property
    def _halves(self) -> tuple[Any, Any]:
        return self.ms(), self.seq()

    def column(self, name: bytes) -> pa.Array:
        """The last value of a field in every row, as text or bytes; null in rows without the field."""
        text = name.decode()
        if text in self._columns.schema.names:
            return self._columns.column(text)
        return _of_rest(self._columns.column(REST), text)

    def texts(self, name: bytes) -> pa.StringArray | None:
        """The same as text; None when it is bytes, which may be no UTF-8."""
        values = self.column(name)
        return values if values.type == pa.string() else None

    def cut(self, first: int, end: int) -> ColumnRows:
        """The rows from number `first` up to `end`."""
        return self if end - first == self.count else ColumnRows(self._columns.slice(first, end - first))

    def cut_to(self, wanted: Range) -> ColumnRows:
        """The rows of a range of IDs, maybe none."""
        first = bisect_left(range(self.count), wanted.first, key=self.id_at)
        return self.cut(first, bisect_right(range(self.count), wanted.last, lo=first, key=self.id_at))


@dataclass(frozen=True, slots=True)
class FetchedRows:
    """Some rows, and in their order each stream with its number of rows, as `Fetched` has them."""

    batch: ColumnRows
    runs: list[tuple[StreamHere, int]]


def _of_rest(rest: pa.MapArray, name: str) -> pa.Array:
    """The value that each map has for a name, null where it has none."""
    offsets = rest.offsets.to_numpy()
    first, end = int(offsets[0]), int(offsets[-1])
    places = np.flatnonzero(pc.equal(rest.keys.slice(first, end - first), name).to_numpy(zero_copy_only=False)) + first
    taken = np.full(len(rest), -1, dtype=np.int64)
    taken[np.searchsorted(offsets, places, side="right") - 1] = places
    return rest.items.take(pa.array(taken, mask=taken < 0))


def may_be_read(name: str, files: StreamFiles) -> bool:
    r"""Whether the files tell a field from all others: `_rest` shows the bytes of names that are no UTF-8 as \xff."""
    return name in files.columns or "\\x" not in name


def rows_of(
    streams: Iterable[StreamHere],
    files: Mapping[int, StreamFiles],
    names: Iterable[str],
    *,
    batch_rows: int = BATCH_ROWS,
    skip: int = 0,
    take: int | None = None,
) -> Iterator[FetchedRows]:
    """The entries of some streams: by stream and ID, without the first `skip`, at most `take`.

    `files`: those of each stream with entries, by its number.  `names`: `_ms _seq _id` and fields.
    Raises OSError, and pa.ArrowException for a file that does not decode.
    """
    asked = list(names)
    left = take
    for stream in streams:
        wanted = stream.live_range
        if wanted.is_empty:
            continue
        for rows in _rows_of(files[stream.row.stream_no], wanted, asked, batch_rows):
            passed = min(skip, rows.count)
            skip -= passed
            end = rows.count if left is None else min(rows.count, passed + left)
            if passed < end:
                left = None if left is None else left - (end - passed)
                yield FetchedRows(rows.cut(passed, end), [(stream, end - passed)])
            if left == 0:
                return


def segments_in(files: StreamFiles, wanted: Range) -> Iterator[Segment]:
    """The files that may have entries of a range."""
    for segment in files.segments:
        if segment.last_id >= wanted.first and segment.first_id <= wanted.last:
            yield segment


def _rows_of(files: StreamFiles, wanted: Range, names: list[str], batch_rows: int) -> Iterator[ColumnRows]:
    columns = [name for name in names if name.startswith("_") or name in files.columns]
    columns += [REST] if len(columns) < len(names) else []
    for segment in segments_in(files, wanted):
        is_whole = wanted.first <= segment.first_id and segment.last_id <= wanted.last
        with _opened(files, segment) as file:
            yield from _rows_in(file, wanted, columns, batch_rows, is_whole=is_whole)


@contextmanager
def _opened(files: StreamFiles, segment: Segment) -> Iterator[pq.ParquetFile]:
    path = files.folder / segment.name
    with open(open_file(path, os.O_RDONLY), "rb", buffering=0) as opened, pq.ParquetFile(opened) as file:
        # Checksums find damage.  They do not find what was forged together with the manifest.
        if file.metadata.num_rows != segment.entries or file.schema_arrow != pa.schema(all_columns(files.columns)):
            raise pa.ArrowInvalid(f"{path} does not have the rows and columns that its manifest says")
        yield file


def _rows_in(
    file: pq.ParquetFile, wanted: Range, columns: list[str], batch_rows: int, *, is_whole: bool
) -> Iterator[ColumnRows]:
    groups = list(range(file.num_row_groups))
    read = set(columns)
    if not is_whole:
        groups = [group for group in groups if _may_have(file.metadata.row_group(group), wanted)]
        read |= {*_IDS, "_id"}
    # The numbers of IDs from 2^63 on are in their texts alone.
    if read & _IDS and any(_has_nulls(file.metadata.row_group(group)) for group in groups):
        read.add("_id")
    for group in groups:  # one by one: a batch of several would have the bytes of all of them
        for batch in file.iter_batches(batch_rows, [group], columns=sorted(read), use_threads=False):
            rows = ColumnRows(batch)
            rows = rows if is_whole else rows.cut_to(wanted)
            if rows.count:
                yield rows


def _has_nulls(group: Any) -> bool:
    found = [group.column(number).statistics for number in range(group.num_columns)][:2]
    return any(about is None or not about.has_null_count or about.null_count for about in found)


def _may_have(group: Any, wanted: Range) -> bool:
    """Whether a row group may have entries of a range, by its statistics of `_ms`, the first column."""
    about = group.column(0).statistics
    if about is None or not about.has_min_max or not about.has_null_count or about.null_count:
        return True
    return bool(make_id(about.max, MAX_HALF) >= wanted.first and make_id(about.min, 0) <= wanted.last)
