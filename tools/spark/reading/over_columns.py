"""Reads the entries of a snapshot from its columns, where these are whole and have what is asked for.

    driver    looks at the columns once a query, compares the files that it will read with their checksums, and warns
              once of those that are not what they should be; the place then says where they are
    task      reads them from there, in the place of the tables' rows.  Streams and ranges of IDs still come from the
              tables, which are compared as ever, so that all else is the same

They are not taken for what rows alone have: the map of all fields, equal names in an entry, and entries as JSON.  Nor
for many short streams, as a file takes longer to open than a thousand rows to read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.errors import StoreError
from riverbed.store.layout import COLUMNS_DIRECTORY
from riverbed.store.snapshot.reader import Snapshot, open_snapshot
from riverbed.tools.columns.streams import Range, StreamHere
from riverbed.tools.sidecar.rows import FetchedRows, may_be_read, rows_of, segments_in
from riverbed.tools.sidecar.segments import Segment, StreamFiles
from riverbed.tools.sidecar.sidecar import (
    VERSION,
    ColumnsError,
    NoColumnsError,
    fill_columns,
    open_columns,
    verify_segment,
)
from riverbed.tools.spark.reading.cache import Cache
from riverbed.tools.spark.reading.locations import Place
from riverbed.tools.spark.reading.options import Columns, Mode, ReadOptions, Verify
from riverbed.tools.spark.reading.plan import Span
from riverbed.tools.spark.reading.schemas import EntryColumns

# What each metadata column is made of.
_OF_IDS: Final[dict[str, tuple[str, ...]]] = {
    "key": (),
    "key_binary": (),
    "db": (),
    "snapshot": (),
    "id": ("_id",),
    "ms": ("_ms",),
    "seq": ("_seq",),
    "timestamp": ("_ms",),
}
# A file takes as long to open as so many rows to read.
_MIN_ROWS_A_FILE: Final = 2_000
Wanted = Iterable[tuple[int, Range]]  # the numbers of streams, and of which IDs entries are wanted


# -- on the driver -----------------------------------------------------------------------------------------------------


def over_columns(place: Place, options: ReadOptions, columns: EntryColumns, wanted: Wanted) -> Place:
    """A place that may have columns, with those that its tasks are to read.  Warns of columns that are refused."""
    if _names(columns, options) is None:
        return place
    try:
        snapshot = open_snapshot(Path(place.path))
        cache = Cache(options.cache_directory, options.cache_bytes) if options.columns is Columns.MAKE else None
        folder = columns_folder(snapshot, cache)
        files, asked = open_columns(snapshot, folder), list(wanted)
        if _is_worth_it(files, asked) and _have_fields(files, columns):
            _compare(files, asked, options)
            return replace(place, columns=str(folder))
    except NoColumnsError:
        pass
    except ColumnsError as error:
        warnings.warn(f"{error}; reading the tables", stacklevel=2)
    except (StoreError, OSError):
        pass  # something is wrong with the snapshot itself: its tasks find it
    return place


def columns_folder(snapshot: Snapshot, cache: Cache | None) -> Path:
    """Where the columns of a snapshot are: in itself, or else in `cache`, where they are made when they are missing.

    Raises NoColumnsError without either; ColumnsError when they cannot be made.
    """
    own = snapshot.path / COLUMNS_DIRECTORY
    if os.path.lexists(own):
        return own
    if cache is None:
        raise NoColumnsError(f"{snapshot.path} has no columns")
    # All that the manifest says, so that no two snapshots share an entry.
    identity = f"columns {VERSION} {snapshot.manifest}"
    try:
        return cache.get(identity, lambda working: fill_columns(snapshot, working))
    except (StoreError, OSError, lmdb.Error, ValueError) as error:
        raise ColumnsError(f"cannot make columns of {snapshot.path} in {cache.path}: {error}") from error


def _names(columns: EntryColumns, options: ReadOptions) -> list[str] | None:
    """The columns of files that those of a schema are made of; None when they need rows."""
    names: dict[str, None] = {}
    for column in columns.columns:
        if column.metadata is None:
            names[column.name] = None
        elif column.metadata in _OF_IDS:
            names.update(dict.fromkeys(_OF_IDS[column.metadata]))
        else:
            return None
    if options.mode is Mode.FAILFAST:
        names["_id"] = None  # the error says which entry it is
    return list(names) or ["_ms"]


def _is_worth_it(files: Mapping[int, StreamFiles], wanted: list[tuple[int, Range]]) -> bool:
    """Whether files are read faster than the rows.  A stream without files has no entries, or is missed later."""
    found = [segment for number, asked in wanted if number in files for segment in segments_in(files[number], asked)]
    return bool(found) and sum(segment.entries for segment in found) >= _MIN_ROWS_A_FILE * len(found)


def _have_fields(files: Mapping[int, StreamFiles], columns: EntryColumns) -> bool:
    names = [column.name for column in columns.columns if column.metadata is None]
    return all(may_be_read(name, each) for each in files.values() for name in names)


def _compare(files: Mapping[int, StreamFiles], wanted: Wanted, options: ReadOptions) -> None:
    """Compare the files that are read with their checksums, if the options say so.  Raises ColumnsError."""
    if options.verify is Verify.NEVER:
        return
    cache = Cache(options.cache_directory, options.cache_bytes)
    for number, asked in wanted:
        if number not in files:
            continue
        for segment in segments_in(files[number], asked):
            if options.verify is Verify.ALWAYS:
                verify_segment(files[number], segment)
            else:
                _compare_once(files[number], segment, cache)


def _compare_once(files: StreamFiles, segment: Segment, cache: Cache) -> None:
    """Once a machine, as long as the file is untouched."""
    path = files.folder / segment.name
    try:
        status = path.stat()
    except OSError as error:
        raise ColumnsError(f"{files.folder} is damaged: {error}") from error
    about = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    cache.get(f"verified {path.resolve()} {about} {segment.digest}", lambda _: verify_segment(files, segment))


# -- in a task ---------------------------------------------------------------------------------------------------------


def fetch_from_columns(
    span: Span, options: ReadOptions, columns: EntryColumns, streams: list[StreamHere]
) -> Iterator[FetchedRows]:
    """The entries of some streams in a span, by stream and ID.

    Raises ColumnsError before anything is read; OSError, ValueError.
    """
    names = _names(columns, options)
    assert span.place.columns is not None and names is not None
    snapshot = open_snapshot(Path(span.place.path))
    folder = Path(span.place.columns)
    Cache(options.cache_directory, options.cache_bytes).hold(folder)  # if they are in it; the driver may have ended
    files = open_columns(snapshot, folder)
    for stream in streams:
        there = files.get(stream.row.stream_no)
        if (0 if there is None else sum(each.entries for each in there.segments)) != stream.row.length:
            raise ColumnsError(f"{span.place.columns} does not have the entries of stream {stream.key_text}")
    _compare(files, [(stream.row.stream_no, stream.live_range) for stream in streams], options)
    return rows_of(streams, files, names, batch_rows=options.batch_rows, skip=span.skip, take=span.take)
