"""The Parquet files beside the tables of a snapshot: `docs/snapshot-columns.md` has their format.

    SNAPSHOT/columns/manifest.json       identity of the snapshot, version, streams, digests of the files
    SNAPSHOT/columns/streams/7.parquet   the entries of stream number 7, in the order of their IDs

They are made once, of a whole snapshot, and are complete as soon as they are in their place.  A snapshot that has none
and must stay as it is can have them in another folder, with the same files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.working_directory import name_for, working_directory
from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.ids import id_text
from riverbed.store.layout import COLUMNS_DIRECTORY, COLUMNS_WORKING_PREFIX, MANIFEST_NAME
from riverbed.store.progress import Progress, counter, ignore
from riverbed.store.snapshot.reader import FileDigest, Snapshot, verify_file
from riverbed.store.snapshot.writer import write_digested
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import LiveStream, streams
from riverbed.tools.columns.fetch import fetch
from riverbed.tools.columns.projection import METADATA, REST, Projection, field_types
from riverbed.tools.columns.streams import Range, StreamHere

VERSION: Final = 1
_FORMAT: Final = "riverbed-columns"
_ROW_GROUP: Final = 64 << 10
# A stream is a file.
_MOST_STREAMS: Final = 10_000
_MOST_MANIFEST_BYTES: Final = 64 << 20
_FILE: Final = re.compile(r"streams/[0-9]{1,20}\.parquet", re.ASCII)
_GUARD: Final = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n\Z')


# Files that this process has compared with their checksums, as they were then; a query need not read all of them again.
_verified_files: Final[set[tuple[Any, ...]]] = set()


class ColumnsError(StoreError):
    """A snapshot has no columns, or they must not be read: one line that says why."""


class NoColumnsError(ColumnsError):
    """A snapshot has no columns."""


@dataclass(frozen=True, slots=True)
class StreamColumns:
    """The Parquet files of one stream, in the order of their IDs."""

    files: tuple[Path, ...]
    entries: int


# -- writing -----------------------------------------------------------------------------------------------------------


def write_columns(snapshot: Snapshot, *, leave_bytes: int = 0, steps: Progress = ignore) -> Path:
    """Make the columns of a whole snapshot; -> their directory.  Damaged ones are replaced.

    Calls `steps` with the entries written so far, and ends when it raises.  The disk keeps `leave_bytes` free.  Raises
    ColumnsError for more streams than files are wise, and for too little space; CorruptionError, MalformedRowError,
    OSError.
    """
    target = snapshot.path / COLUMNS_DIRECTORY
    files = OsFiles()
    with working_directory(snapshot.path, COLUMNS_WORKING_PREFIX) as working:
        fill_columns(snapshot, working, leave_bytes=leave_bytes, steps=steps)
        if target.exists():
            old = name_for(snapshot.path, COLUMNS_WORKING_PREFIX)
            os.rename(target, old)
            shutil.rmtree(old, ignore_errors=True)
        os.rename(working, target)
        files.sync_directory(snapshot.path)
    return target


def fill_columns(snapshot: Snapshot, folder: Path, *, leave_bytes: int = 0, steps: Progress = ignore) -> None:
    """Write the columns of a whole snapshot into an empty folder, which holds all of them at the end, on disk.

    Parameters and errors are those of `write_columns`.
    """
    if snapshot.manifest.streams > _MOST_STREAMS:
        raise ColumnsError(f"{snapshot.path} has {snapshot.manifest.streams} streams; columns are for {_MOST_STREAMS}")
    snapshot.verify()
    files = OsFiles()
    count = counter(steps, COLUMNS_DIRECTORY, snapshot.manifest.entries)

    def written(entries: int) -> None:
        _require_space(folder, leave_bytes)
        count(entries)

    (folder / "streams").mkdir()
    tables = snapshot.open_tables()
    try:
        with tables.env.begin() as txn:
            reader = TableReader(tables, txn)
            full = [stream for stream in streams(reader) if stream.row.length]
            about = [_write_stream(reader, stream, folder, written) for stream in full]
    finally:
        tables.close()
    manifest = {"format": _FORMAT, "version": VERSION, "snapshot": _identity(snapshot), "streams": about}
    text = json.dumps(manifest, indent=1).encode().removesuffix(b"\n}")
    guarded = text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text)
    write_digested(folder / MANIFEST_NAME, [guarded], files)
    files.sync_directory(folder / "streams")
    files.sync_directory(folder)


def _require_space(folder: Path, leave_bytes: int) -> None:
    """Raise ColumnsError when less of the disk is free than is to be left."""
    free = shutil.disk_usage(folder).free
    if free < leave_bytes:
        raise ColumnsError(f"not enough space in {folder.parent}: {free} bytes free, {leave_bytes} to be left")


def _write_stream(
    reader: TableReader, stream: LiveStream, working: Path, written: Callable[[int], None]
) -> dict[str, Any]:
    here = StreamHere(stream.db, stream.key, stream.row, Range())
    fields = field_types(fetched.batch for fetched in fetch(reader, [here], is_live=False))
    kinds = {name: METADATA[name] for name in ("_ms", "_seq", "_id")} | fields | {REST: METADATA[REST]}
    projection = Projection(kinds)
    name = f"streams/{stream.row.stream_no}.parquet"
    with pq.ParquetWriter(working / name, projection.schema, compression="zstd") as writer:
        waiting: list[pa.RecordBatch] = []
        for fetched in fetch(reader, [here], is_live=False):
            waiting.append(projection.batch(fetched.batch))
            written(waiting[-1].num_rows)
            if sum(batch.num_rows for batch in waiting) >= _ROW_GROUP:
                waiting = _write_groups(writer, waiting)
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    return {
        "stream_no": stream.row.stream_no,
        "db": stream.db,
        "key_hex": stream.key.hex(),
        "entries": stream.row.length,
        "first_id": id_text(stream.row.first_id).decode(),
        "last_id": id_text(stream.row.last_live_id).decode(),
        "files": [{"name": name, **_digest(working / name)}],
    }


def _write_groups(writer: pq.ParquetWriter, waiting: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Write whole row groups -> the rows that are left."""
    table = pa.Table.from_batches(waiting)
    whole = table.num_rows // _ROW_GROUP * _ROW_GROUP
    writer.write_table(table.slice(0, whole), row_group_size=_ROW_GROUP)
    left: list[pa.RecordBatch] = table.slice(whole).to_batches()
    return left


def _digest(path: Path) -> dict[str, Any]:
    """The length and CRC-32C of a file, which is on disk then."""
    checksum = size = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            checksum = crc32c(data, checksum)
            size += len(data)
        os.fsync(file.fileno())
    return {"bytes": size, "crc32c": f"{checksum:08x}"}


def _identity(snapshot: Snapshot) -> dict[str, Any]:
    digests = {"tables": snapshot.manifest.data_file, "streams": snapshot.manifest.streams_file}
    return {name: [digest.size, f"{digest.checksum:08x}"] for name, digest in digests.items()}


# -- reading -----------------------------------------------------------------------------------------------------------


def stream_columns(snapshot: Snapshot, db: int, key: bytes, folder: Path | None = None) -> StreamColumns:
    """The files of one stream, compared with their checksums.  `folder` None: those in the snapshot itself.

    Raises NoColumnsError when there is no folder of columns; ColumnsError when the stream has none, or when they are
    damaged, of another version or of another snapshot.
    """
    if folder is None:
        folder = snapshot.path / COLUMNS_DIRECTORY
        if not os.path.lexists(folder):
            raise NoColumnsError(f"{snapshot.path} has no columns")
    values = _manifest(snapshot, folder / MANIFEST_NAME)
    try:
        for stream in values["streams"]:
            if (stream["db"], stream["key_hex"]) == (db, key.hex()):
                paths = tuple(_verified(folder, file) for file in stream["files"])
                return StreamColumns(paths, int(stream["entries"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ColumnsError(f"{folder} does not decode: {error!r}") from error
    except (CorruptionError, OSError) as error:
        raise ColumnsError(f"{folder} is damaged: {error}") from error
    raise ColumnsError(f"{folder} has no entries of stream {key.decode(errors='backslashreplace')}")


def _manifest(snapshot: Snapshot, path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise ColumnsError(f"{path.parent} has no columns of {snapshot.path}: its manifest is missing") from None
    except OSError as error:
        raise ColumnsError(f"cannot read {path}: {error}") from error
    guard = _GUARD.search(data)
    if guard is None or int(guard[1], 16) != crc32c(data[: guard.start()]):
        raise ColumnsError(f"{path} is damaged: its checksum does not fit")
    try:
        values: dict[str, Any] = json.loads(data)
        found, version, identity = values["format"], values["version"], values["snapshot"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ColumnsError(f"{path} does not decode: {error!r}") from error
    if (found, version) != (_FORMAT, VERSION):
        raise ColumnsError(f"{path} is {found} version {version}; this program reads {_FORMAT} version {VERSION}")
    if identity != _identity(snapshot):
        raise ColumnsError(f"{path} belongs to another snapshot")
    return values


def _verified(folder: Path, file: dict[str, Any]) -> Path:
    if _FILE.fullmatch(file["name"]) is None:
        raise ValueError(f"{file['name']!r} is no name of a file of columns")
    path: Path = folder / file["name"]
    digest = FileDigest(int(file["bytes"]), int(file["crc32c"], 16))
    about = path.stat()
    seen = (path, digest, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    if seen not in _verified_files:
        verify_file(path, digest)
        if len(_verified_files) >= _MOST_STREAMS:
            _verified_files.clear()
        _verified_files.add(seen)
    return path
