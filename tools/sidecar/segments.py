"""The Parquet files of one stream: each has the entries of a closed range of IDs, and is never changed.

    first ID                                                      last ID
    | 262,144 entries | 262,144 entries | 90,000 entries | 20,000 entries |
                                         what the last snapshot had new    what this one has new

A snapshot takes over the files of the one before it, as further names of the same files, so that an hourly snapshot
costs what was added in the hour.  Nothing is taken on trust: entries may have been deleted in the middle of a range, or
the stream may be another one by now, with the same key.  So a file is taken over only when

    the rows that the tables of this snapshot have in its range have the SHA-256 that its rows had, and
    the file itself has its length and checksum, and
    the stream has the same columns as before.

Whatever is left of the stream, in front of, between and behind such files, is written.  All files of a stream have the
same columns: a field that is new, or is no text any more, has all of them written again.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from riverbed.store.checksum import crc32c
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import DIRECTORY_MODE, open_file
from riverbed.store.errors import CorruptionError
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text, make_id, parse_id
from riverbed.store.snapshot.manifest import FileDigest
from riverbed.store.snapshot.reader import verify_file
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import LiveStream
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.fetch import fetch
from riverbed.tools.columns.projection import METADATA, REST, Projection, field_types
from riverbed.tools.columns.streams import Range, StreamHere

_ROW_GROUP: Final = 64 << 10
# A row group ends after so many bytes of rows as well: two of them are in memory at a time, one in that of a reader.
_ROW_GROUP_BYTES: Final = 64 << 20
_OF_IDS: Final = ("_ms", "_seq", "_id")
_FILES: Final = OsFiles()
# What one deleted entry has written again, and what one task of a reader takes at least.
_MAX_ENTRIES: Final = 256 << 10
# Below how many entries a file is small, and how many such files a stream may have: beyond, they are written again as
# one, with what is new.  Readers pay for each file; but were they written again each time, every small growth would
# write several times as much.
_SMALL: Final = ((4 << 10, 8), (_ROW_GROUP, 64))
_NAME: Final = re.compile(r"streams/[0-9]{1,20}/[0-9]{20}-[0-9]{20}\.parquet", re.ASCII)
_TYPES: Final = {"string": pa.string(), "binary": pa.binary()}


class _OtherColumnsError(Exception):
    """The entries have other fields than those that the files were to have columns for."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: the entries from `first_id` to `last_id`.  `rows_sha256` is of their rows in the tables, in order."""

    name: str
    digest: FileDigest
    first_id: StreamID
    last_id: StreamID
    entries: int
    rows_sha256: str

    @classmethod
    def decode(cls, values: dict[str, Any]) -> Segment:
        """Raises ValueError, TypeError, KeyError, AttributeError."""
        if _NAME.fullmatch(values["name"]) is None:
            raise ValueError(f"{values['name']!r} is no name of a file of columns")
        first_id, last_id = (parse_id(values[key].encode()) for key in ("first_id", "last_id"))
        if first_id is None or last_id is None or first_id > last_id:
            raise ValueError(f"{values['name']} has no range of IDs")
        return cls(
            values["name"],
            FileDigest(int(values["bytes"]), int(values["crc32c"], 16)),
            first_id,
            last_id,
            int(values["entries"]),
            str(values["rows_sha256"]),
        )

    def encode(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "bytes": self.digest.size,
            "crc32c": f"{self.digest.checksum:08x}",
            "entries": self.entries,
            "first_id": id_text(self.first_id).decode(),
            "last_id": id_text(self.last_id).decode(),
            "rows_sha256": self.rows_sha256,
        }


@dataclass(frozen=True, slots=True)
class StreamFiles:
    """The files of one stream, in the order of their IDs, below `folder`, and the columns of its fields."""

    folder: Path
    columns: dict[str, pa.DataType]
    segments: tuple[Segment, ...]

    @classmethod
    def decode(cls, folder: Path, values: dict[str, Any]) -> StreamFiles:
        """Raises ValueError, TypeError, KeyError, AttributeError."""
        columns = {str(name): _TYPES[kind] for name, kind in values["columns"]}
        segments = tuple(map(Segment.decode, values["files"]))
        if any(one.last_id >= other.first_id for one, other in pairwise(segments)):
            raise ValueError("its files do not ascend")
        if sum(segment.entries for segment in segments) != values["entries"]:
            raise ValueError("its files do not have its entries")
        if any(not segment.name.startswith(f"streams/{values['stream_no']}/") for segment in segments):
            raise ValueError("it has files of another stream")
        return cls(folder, columns, segments)

    def encode(self) -> dict[str, Any]:
        return {
            "columns": [[name, str(kind)] for name, kind in self.columns.items()],
            "files": [segment.encode() for segment in self.segments],
        }


def write_stream(
    reader: TableReader, stream: LiveStream, folder: Path, former: StreamFiles | None, written: Callable[[int], None]
) -> StreamFiles:
    """Write or take over the files of a stream, below `folder`, on disk at the end.

    `former`: the files of an earlier snapshot.  Calls `written` with entries that are done.  Raises CorruptionError,
    MalformedRowError, OSError, and what `written` raises.
    """
    return _Writer(reader, stream, folder, written).write(former)


class _Writer:
    def __init__(self, reader: TableReader, stream: LiveStream, folder: Path, written: Callable[[int], None]) -> None:
        self._reader = reader
        self._stream = stream
        self._folder = folder
        self._written = written
        self._done = self._reported = 0
        self._place = f"streams/{stream.row.stream_no}"

    def write(self, former: StreamFiles | None) -> StreamFiles:
        (self._folder / self._place).mkdir(DIRECTORY_MODE)
        kept = [] if former is None else self._taken_over(former)
        # Most streams have the fields of their first entries throughout: then one look at each row is enough.
        known = former.columns if former is not None and kept else field_types(islice(self._rows([Range()]), 1))
        try:
            segments = self._write(kept, known)
        except _OtherColumnsError:
            for file in (self._folder / self._place).iterdir():
                file.unlink()
            known = field_types(self._rows([Range()]))
            segments = self._write([], known)
        found = sum(segment.entries for segment in segments)
        if found != self._stream.row.length:
            reason = f"stream {self._stream.key!r} has {found} entries and a length of {self._stream.row.length}"
            raise CorruptionError(str(self._reader.path), None, reason)
        _FILES.sync_directory(self._folder / self._place)
        return StreamFiles(self._folder, known, segments)

    def _write(self, kept: list[Segment], columns: dict[str, pa.DataType]) -> tuple[Segment, ...]:
        """Write what is left of the stream -> all segments.  Raises _OtherColumnsError, with some of it written."""
        self._done = 0
        for segment in kept:
            self._count(segment.entries)
        new = [segment for span in _between(kept) for segment in self._write_span(span, columns)]
        return tuple(sorted([*kept, *new], key=lambda segment: segment.first_id))

    def _count(self, entries: int) -> None:
        """Report how many entries are done; those that are written a second time are reported once."""
        self._done += entries
        self._written(max(0, self._done - self._reported))
        self._reported = max(self._done, self._reported)

    # -- what is there already -----------------------------------------------------------------------------------------

    def _taken_over(self, former: StreamFiles) -> list[Segment]:
        kept = [segment for segment in former.segments if self._has_rows_of(segment)]
        for few, most in _SMALL:
            if sum(segment.entries < few for segment in kept) > most:
                kept = [segment for segment in kept if segment.entries >= few]
        linked = (self._linked(former.folder, segment) for segment in kept)
        return [segment for segment in linked if segment is not None]

    def _has_rows_of(self, segment: Segment) -> bool:
        """Whether the tables have the rows that the file was made of."""
        rows = hashlib.sha256()
        count = 0
        for batch in self._rows([Range(segment.first_id, segment.last_id)]):
            rows.update(batch.joined())
            count += batch.count
        return (count, rows.hexdigest()) == (segment.entries, segment.rows_sha256)

    def _linked(self, former: Path, segment: Segment) -> Segment | None:
        """Give a file a name here as well; None if it is damaged, or cannot have one."""
        name = self._name(segment.first_id)
        path = self._folder / name
        # The name first, so that the file that is compared is the one that stays.
        with suppress(OSError, CorruptionError):
            os.link(former / segment.name, path, follow_symlinks=False)
            if stat.S_ISREG(path.lstat().st_mode):
                verify_file(path, segment.digest)
                return replace(segment, name=name)
        path.unlink(missing_ok=True)
        return None

    # -- what is new ---------------------------------------------------------------------------------------------------

    def _rows(self, spans: list[Range], most: int | None = None) -> Iterator[EntryBatch]:
        for span in spans:
            here = StreamHere(self._stream.db, self._stream.key, self._stream.row, span)
            for fetched in fetch(self._reader, [here], is_live=False, take=most):
                yield fetched.batch

    def _write_span(self, span: Range, columns: dict[str, pa.DataType]) -> Iterator[Segment]:
        while not span.is_empty and (segment := self._write_segment(span, columns)) is not None:
            yield segment
            if segment.last_id >= span.last:
                return
            span = Range(StreamID(segment.last_id + 1), span.last)

    def _write_segment(self, span: Range, columns: dict[str, pa.DataType]) -> Segment | None:
        """Write the first entries of a span; None when it has none."""
        batches = self._rows([span], _MAX_ENTRIES)
        batch = next(batches, None)
        if batch is None:
            return None
        projection = Projection(all_columns(columns))
        first_id = last_id = _id_at(batch, 0)
        name = self._name(first_id)
        hashed = hashlib.sha256()
        entries = 0
        with ParquetFile(self._folder / name, projection.schema) as file, _Beside() as beside:
            while batch is not None:
                if list(field_types([batch], columns).items()) != list(columns.items()):
                    raise _OtherColumnsError
                beside.do(partial(_add_rows, hashed, batch))
                entries += batch.count
                last_id = _id_at(batch, batch.count - 1)
                file.add(projection.batch(batch))
                self._count(batch.count)
                batch = next(batches, None)
        return Segment(name, synced_digest(self._folder / name), first_id, last_id, entries, hashed.hexdigest())

    def _name(self, first_id: StreamID) -> str:
        """By which files are in the order of their IDs, and no two of a stream are the same."""
        ms, _, seq = id_text(first_id).decode().partition("-")
        return f"{self._place}/{ms:>020}-{seq:>020}.parquet"


def _add_rows(hashed: hashlib._Hash, rows: EntryBatch) -> None:
    hashed.update(rows.joined())


def all_columns(fields: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The columns of the files of a stream with such fields."""
    return {name: METADATA[name] for name in _OF_IDS} | fields | {REST: METADATA[REST]}


def _id_at(batch: EntryBatch, number: int) -> StreamID:
    return make_id(int(batch.ms()[number]), int(batch.seq()[number]))


def _between(segments: list[Segment]) -> list[Range]:
    """The ranges of IDs that ascending segments leave."""
    spans = []
    begin = MIN_ID
    for segment in segments:
        if begin < segment.first_id:
            spans.append(Range(begin, StreamID(segment.first_id - 1)))
        if segment.last_id == MAX_ID:
            return spans
        begin = StreamID(segment.last_id + 1)
    return [*spans, Range(begin, MAX_ID)]


class ParquetFile:
    """A Parquet file that is written in row groups, by a thread, while the next rows are decoded."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        # No two IDs are the same, so a dictionary would be as long as the column.
        fields = [name for name in schema.names if name not in _OF_IDS]
        fields += [f"{REST}.key_value.{part}" for part in ("key", "value")]
        deltas = {name: "DELTA_BINARY_PACKED" for name in schema.names if name in ("_ms", "_seq")}
        os.close(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))  # Arrow would make it readable for all
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=fields, column_encoding=deltas)
        self._beside = _Beside()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._beside:
                if kind is None:
                    self._write(pa.Table.from_batches(self._waiting, self._writer.schema))
        finally:
            self._writer.close()

    def add(self, rows: pa.RecordBatch) -> None:
        self._note([*self._waiting, rows])
        is_long = self._waiting_bytes >= _ROW_GROUP_BYTES
        whole = self._waiting_rows if is_long else self._waiting_rows // _ROW_GROUP * _ROW_GROUP
        if whole:
            table = pa.Table.from_batches(self._waiting)
            self._note(table.slice(whole).to_batches())
            self._write(table.slice(0, whole))

    def _note(self, waiting: list[pa.RecordBatch]) -> None:
        self._waiting = waiting
        self._waiting_rows = sum(each.num_rows for each in waiting)
        self._waiting_bytes = sum(each.nbytes for each in waiting)

    def _write(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._beside.do(lambda: self._writer.write_table(rows, row_group_size=_ROW_GROUP))


class _Beside:
    """Does one thing after the other in a thread, at most one of them behind: what it works on takes memory."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._under_way: Future[object] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._thread:
            if kind is None:
                self._wait()

    def do(self, work: Callable[[], object]) -> None:
        """Raises what the work before has raised."""
        self._wait()
        self._under_way = self._thread.submit(work)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None


def synced_digest(path: Path) -> FileDigest:
    """The length and CRC-32C of a file, which is on disk then."""
    checksum = size = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            checksum = crc32c(data, checksum)
            size += len(data)
        os.fsync(file.fileno())
    return FileDigest(size, checksum)
