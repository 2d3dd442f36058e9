"""The Parquet files beside the tables of a snapshot: `docs/snapshot-columns.md` has their format.

    SNAPSHOT/columns/manifest.json          identity of the snapshot, version, streams, digests of the files
    SNAPSHOT/columns/streams/7/*.parquet    the entries of stream number 7, in the order of their IDs
    SNAPSHOT/columns/groups.parquet         all groups; and consumers.parquet, pending.parquet

They are made once, of a whole snapshot, and are complete as soon as they are in their place.  A snapshot that has none
and must stay as it is can have them in another folder, with the same files.  `segments.py` writes those of a stream.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from riverbed.store.checksum import crc32c
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import DIRECTORY_MODE, is_there, read_file
from riverbed.store.disk.working_directory import name_for, working_directory
from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.ids import id_text
from riverbed.store.layout import COLUMNS_DIRECTORY, COLUMNS_WORKING_PREFIX, MANIFEST_NAME
from riverbed.store.progress import Progress, counter, ignore
from riverbed.store.snapshot.manifest import FileDigest
from riverbed.store.snapshot.reader import Snapshot, list_snapshots, verify_file
from riverbed.store.snapshot.stream_walk import StreamWalk
from riverbed.store.snapshot.totals import open_compared, require_totals
from riverbed.store.snapshot.writer import write_digested
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import LiveStream, streams
from riverbed.tools.columns.groups import (
    CONSUMERS,
    GROUPS,
    PENDING,
    Taken,
    batches_of,
    consumer_rows,
    group_rows,
    pending_batches,
)
from riverbed.tools.columns.streams import Range, StreamHere
from riverbed.tools.sidecar.segments import ParquetFile, Segment, StreamFiles, synced_digest, write_stream

VERSION: Final = 2
_FORMAT: Final = "riverbed-columns"
# A stream is a folder.
_MAX_STREAMS: Final = 10_000
_MAX_VERIFIED: Final = 100_000
_MAX_MANIFEST_BYTES: Final = 64 << 20
_GUARD: Final = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n\Z')


# Files that this process has compared with their checksums, as they were then; a query need not read all of them again.
_verified_files: Final[set[tuple[Any, ...]]] = set()


# The files of another snapshot, by database and key.
Former = dict[tuple[int, bytes], StreamFiles]


class ColumnsError(StoreError):
    """A snapshot has no columns, or they must not be read: one line that says why."""


class NoColumnsError(ColumnsError):
    """A snapshot has no columns."""


@dataclass(frozen=True, slots=True)
class StreamColumns:
    """The Parquet files of one stream, in the order of their IDs, which are all that is in `folder`."""

    folder: Path
    files: tuple[Path, ...]
    entries: int
    columns: dict[str, pa.DataType]  # of all files


# -- writing -----------------------------------------------------------------------------------------------------------


def write_columns(snapshot: Snapshot) -> Path:
    """Make the columns of a whole snapshot; -> their directory.  Damaged ones are replaced.

    Files of the newest other snapshot in the same folder are taken over where they have the same rows.

    Raises ColumnsError for more streams than files are wise; CorruptionError, MalformedRowError, OSError.
    """
    target = snapshot.path / COLUMNS_DIRECTORY
    files = OsFiles()
    with working_directory(snapshot.path, COLUMNS_WORKING_PREFIX) as working:
        fill_columns(snapshot, working, _former(snapshot.path))
        if is_there(target):
            old = name_for(snapshot.path, COLUMNS_WORKING_PREFIX)
            os.rename(target, old)
            shutil.rmtree(old, ignore_errors=True)
        os.rename(working, target)
        files.sync_directory(snapshot.path)
    return target


def fill_columns(snapshot: Snapshot, folder: Path, former: Former | None = None, *, steps: Progress = ignore) -> None:
    """Write the columns of a whole snapshot into an empty folder, which holds all of them at the end, on disk.

    `former`: the files that another snapshot has, by database and key.  `steps` is called with the entries written so
    far.  Raises as `write_columns`, and what `steps` raises.
    """
    _require_few(snapshot.path, snapshot.manifest.streams)
    snapshot.verify()
    taken = Taken(snapshot.name, snapshot.manifest.time_ms)
    written = counter(steps, COLUMNS_DIRECTORY, snapshot.manifest.entries)
    tables = open_compared(snapshot)
    try:
        with tables.env.begin() as txn:
            about = _write_files(TableReader(tables, txn), folder, taken, former or {}, written)
    finally:
        tables.close()
    _write_manifest(snapshot, folder, about)


def fill_columns_beside(
    path: Path,
    data_bytes: int,
    time_ms: int,
    rest: Callable[[], Snapshot],
    *,
    leave_bytes: int = 0,
    steps: Progress = ignore,
) -> None:
    """Write the columns of a snapshot that is being made in `path`, which has its tables, so many bytes, already.

    When the files are written, `rest` waits for the rest of the snapshot, and gives it; only then the columns can say
    what they belong to.  `time_ms`: when the snapshot was begun.  Raises as `fill_columns`, what `rest` raises, and
    ColumnsError when the disk has not `leave_bytes` left.
    """
    folder = path / COLUMNS_DIRECTORY
    folder.mkdir(DIRECTORY_MODE)
    tables = Tables(path, data_bytes, frozen=True)
    try:
        with tables.env.begin() as txn:
            reader = TableReader(tables, txn)
            _require_few(path, StreamWalk(reader).stream_count)
            count = counter(steps, COLUMNS_DIRECTORY, reader.count("entries"))

            def written(entries: int) -> None:
                _require_space(folder, leave_bytes)
                count(entries)

            about = _write_files(reader, folder, Taken(path.name, time_ms), _former(path), written)
        snapshot = rest()
        require_totals(snapshot, tables)
    finally:
        tables.close()
    _write_manifest(snapshot, folder, about)


def _require_few(path: Path, count: int) -> None:
    if count > _MAX_STREAMS:
        raise ColumnsError(f"{path} has {count} streams; columns are for {_MAX_STREAMS}")


def _write_files(
    reader: TableReader, folder: Path, taken: Taken, former: Former, written: Callable[[int], None]
) -> dict[str, Any]:
    """Write all files but the manifest, into an empty folder -> what the manifest says of them."""
    (folder / "streams").mkdir(DIRECTORY_MODE)
    every = list(streams(reader))
    full = [stream for stream in every if stream.row.length]
    about = [
        _about(stream, write_stream(reader, stream, folder, former.get((stream.db, stream.key)), written))
        for stream in full
    ]
    return {"streams": about, "tables": _write_tables(reader, every, taken, folder)}


def _write_manifest(snapshot: Snapshot, folder: Path, about: dict[str, Any]) -> None:
    files = OsFiles()
    manifest = {"format": _FORMAT, "version": VERSION, "snapshot": _identity(snapshot), **about}
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


def _about(stream: LiveStream, files: StreamFiles) -> dict[str, Any]:
    return {
        "stream_no": stream.row.stream_no,
        "db": stream.db,
        "key_hex": stream.key.hex(),
        "entries": stream.row.length,
        "first_id": id_text(stream.row.first_id).decode(),
        "last_id": id_text(stream.row.last_live_id).decode(),
        **files.encode(),
    }


def _write_tables(
    reader: TableReader, every: list[LiveStream], taken: Taken, folder: Path
) -> dict[str, dict[str, Any]]:
    """Write the groups, consumers and pending entries of all streams -> what the manifest says of each file."""
    here = [StreamHere(stream.db, stream.key, stream.row, Range()) for stream in every]
    tables: dict[str, tuple[pa.Schema, Iterator[pa.RecordBatch]]] = {
        "groups": (GROUPS, batches_of(GROUPS, (row for one in here for row in group_rows(reader, one, taken)))),
        "consumers": (
            CONSUMERS,
            batches_of(CONSUMERS, (row for one in here for row in consumer_rows(reader, one, taken))),
        ),
        "pending": (PENDING, (batch for one in here for batch in pending_batches(reader, one, taken, PENDING))),
    }
    about = {}
    for name, (schema, batches) in tables.items():
        path = folder / f"{name}.parquet"
        rows = 0
        with ParquetFile(path, schema) as file:
            for batch in batches:
                file.add(batch)
                rows += batch.num_rows
        digest = synced_digest(path)
        about[name] = {"rows": rows, "bytes": digest.size, "crc32c": f"{digest.checksum:08x}"}
    return about


def _former(path: Path) -> Former:
    """The files of the newest other snapshot beside this one that has columns, which are not compared with anything."""
    for other in reversed(list_snapshots(path.parent)):
        folder = other.path / COLUMNS_DIRECTORY
        with suppress(ColumnsError, OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            # Those of another user could claim anything.
            if other.name != path.name and folder.lstat().st_uid == os.geteuid():
                values = _manifest(other, folder / MANIFEST_NAME)
                return {
                    (int(stream["db"]), bytes.fromhex(stream["key_hex"])): StreamFiles.decode(folder, stream)
                    for stream in values["streams"]
                }
    return {}


def _identity(snapshot: Snapshot) -> dict[str, Any]:
    digests = {"tables": snapshot.manifest.data_file, "streams": snapshot.manifest.streams_file}
    return {name: [digest.size, f"{digest.checksum:08x}"] for name, digest in digests.items()}


# -- reading -----------------------------------------------------------------------------------------------------------


def open_columns(snapshot: Snapshot, folder: Path | None = None) -> dict[int, StreamFiles]:
    """The files of each stream with entries, by its number, which are not compared with anything yet.

    Raises as `stream_columns`.
    """
    folder, values = _opened(snapshot, folder)
    with _explained(folder):
        return {int(stream["stream_no"]): StreamFiles.decode(folder, stream) for stream in values["streams"]}
    raise AssertionError(folder)


def verify_segment(files: StreamFiles, segment: Segment) -> None:
    """Compare a file with its checksum.  Raises ColumnsError."""
    with _explained(files.folder):
        verify_file(files.folder / segment.name, segment.digest)


def stream_columns(snapshot: Snapshot, db: int, key: bytes, folder: Path | None = None) -> StreamColumns:
    """The files of one stream, compared with their checksums.  `folder` None: those in the snapshot itself.

    Raises NoColumnsError when there is no folder of columns; ColumnsError when the stream has none, or when they are
    damaged, of another version or of another snapshot.
    """
    folder, values = _opened(snapshot, folder)
    with _explained(folder):
        for stream in values["streams"]:
            if (stream["db"], stream["key_hex"]) == (db, key.hex()):
                files = StreamFiles.decode(folder, stream)
                paths = tuple(_verified(folder / segment.name, segment.digest) for segment in files.segments)
                _require_no_others(paths)
                return StreamColumns(paths[0].parent, paths, int(stream["entries"]), files.columns)
    raise ColumnsError(f"{folder} has no entries of stream {key.decode(errors='backslashreplace')}")


def table_columns(snapshot: Snapshot, table: str, folder: Path | None = None) -> Path:
    """The file of table `groups`, `consumers` or `pending`, compared with its checksum.  Raises as `stream_columns`."""
    folder, values = _opened(snapshot, folder)
    with _explained(folder):
        about = values["tables"][table]
        return _verified(folder / f"{table}.parquet", FileDigest(int(about["bytes"]), int(about["crc32c"], 16)))


def _opened(snapshot: Snapshot, folder: Path | None) -> tuple[Path, dict[str, Any]]:
    """-> the folder of columns, and its manifest."""
    if folder is None:
        folder = snapshot.path / COLUMNS_DIRECTORY
        if not os.path.lexists(folder):
            raise NoColumnsError(f"{snapshot.path} has no columns")
    return folder, _manifest(snapshot, folder / MANIFEST_NAME)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Raise ColumnsError for what is wrong with a manifest and with files."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise ColumnsError(f"{folder} does not decode: {error!r}") from error
    except (CorruptionError, OSError) as error:
        raise ColumnsError(f"{folder} is damaged: {error}") from error


def _manifest(snapshot: Snapshot, path: Path) -> dict[str, Any]:
    try:
        data = read_file(path, _MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        raise ColumnsError(f"{path.parent} has no columns of {snapshot.path}: its manifest is missing") from None
    except (StoreError, OSError) as error:
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


def _verified(path: Path, digest: FileDigest) -> Path:
    about = path.stat()
    seen = (path, digest, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    if seen not in _verified_files:
        verify_file(path, digest)
        if len(_verified_files) >= _MAX_VERIFIED:
            _verified_files.clear()
        _verified_files.add(seen)
    return path


def _require_no_others(paths: tuple[Path, ...]) -> None:
    """Raise ValueError unless the files are all that their folder has: readers take all that is in it."""
    if sorted(os.listdir(paths[0].parent)) != [path.name for path in paths]:
        raise ValueError(f"{paths[0].parent} does not have the files of the manifest")
