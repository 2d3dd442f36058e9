"""Finds the snapshots that a user names: by paths, globs, folders, URIs of an object store, or as live stores.

    data/snapshots/20261121T120000Z-517     a snapshot               data/snapshots       all whole ones in a folder
    s3://bucket/riverbed/2026-11-21         the same, fetched        data/snapshots/2026* a glob
    data                                    a live store: a snapshot is taken of its last checkpoint

With option fetch, snapshots on a disk that all machines share are fetched as well, as a mount may be slow.

The driver resolves the names once, so that every task of a query reads the same bytes: a `Place` has their checksum,
and the task that opens it compares.  Snapshots that are fetched or taken go to the cache of the machine that reads
them.

Spark starts a process for each query's plan and for each of its tasks: what few of them need, object stores and the
checks of pages among it, is imported by the functions that need it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit, urlunsplit

import lmdb

from riverbed.store.errors import CorruptionError, NoSnapshotError, StoreError
from riverbed.store.format.meta import META_NUMBERING, META_REPLICATION
from riverbed.store.layout import COLUMNS_DIRECTORY, DATA_NAME, MANIFEST_NAME, STATE_DIRECTORY, STREAMS_NAME
from riverbed.store.snapshot.manifest import SnapshotManifest
from riverbed.store.snapshot.reader import (
    TEMPORARY_PREFIX,
    Snapshot,
    is_snapshot,
    open_snapshot,
    verify_file,
)
from riverbed.store.snapshot.totals import open_compared
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader
from riverbed.tools.spark.errors import DataLossError, SourceError
from riverbed.tools.spark.reading.cache import Cache
from riverbed.tools.spark.reading.options import Columns, ReadOptions, Verify, is_uri, local_path
from riverbed.tools.spark.reading.remote import copy, filesystem_of, read_manifest, snapshot_folders

# What file systems make in the folder that they are mounted at, for root alone.
_LOST_AND_FOUND: Final = "lost+found"
_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.1
_NOT_QUOTED: Final = "/=+:@,;!$&'()*~"
_LIVE_MAP_BYTES: Final = 1 << 40
_SNAPSHOT: Final = "snapshot"
_MAX_LISTED: Final = 10  # snapshots in an error


@dataclass(frozen=True, slots=True)
class Place:
    """A snapshot of which every task of a query must read the same bytes.

    `checksum` is the CRC-32C of its data.mdb.  `uri` is the snapshot's, and `path` is in its file system; without one
    `path` is on a disk that all tasks share.  `columns`: the folder of columns to read, None for the tables.
    """

    name: str
    path: str
    uri: str | None
    checksum: int
    time_ms: int
    offset: int
    is_live: bool = False  # a data directory, of which a stream reads the last checkpoint
    columns: str | None = None  # a folder of columns in which tasks read the entries

    @property
    def where(self) -> str:
        """The place's path or URI, for messages: without what may be a secret."""
        return self.path if self.uri is None else f"{self.uri.partition(':')[0]}://{self.path.lstrip('/')}"


# -- on the driver -----------------------------------------------------------------------------------------------------


def resolve(options: ReadOptions) -> list[tuple[Place, Snapshot]]:
    """The snapshots that the paths name, sorted by name.

    Raises SourceError when a path names none; DataLossError for another snapshot than that of `data_checksum`.
    """
    found: dict[tuple[str | None, str], tuple[Place, Snapshot]] = {}
    for path in options.paths:
        places = list(_resolve(path, options))
        if options.as_of_ms is not None:
            places = [_newest(places, options.as_of_ms, path)]
        for place, snapshot in places:
            if options.data_checksum not in (None, place.checksum):
                raise DataLossError(f"{place.where} is another snapshot now than the one that was looked at before")
            found[place.uri, place.path] = (place, snapshot)
    return sorted(found.values(), key=lambda each: (each[0].name, each[0].path))


def _newest(places: list[tuple[Place, Snapshot]], time_ms: int, path: str) -> tuple[Place, Snapshot]:
    """The newest of one store's snapshots that is not later than a time.  Raises SourceError when there is none."""
    stores = {snapshot.manifest.store_id for _, snapshot in places}
    if len(stores) > 1:
        raise SourceError(f"asOf needs snapshots of one store, and {path} has those of {len(stores)}")
    places = sorted(places, key=lambda each: (each[0].time_ms, each[0].offset, each[0].name))
    early = [each for each in places if each[0].time_ms <= time_ms]
    if not early:
        from riverbed.tools.offline.moment import time_text

        listed = [f"{place.name} ({time_text(place.time_ms)})" for place, _ in places[:_MAX_LISTED]]
        more = f", and {len(places) - _MAX_LISTED} later ones" if len(places) > _MAX_LISTED else ""
        raise SourceError(f"asOf {time_text(time_ms)} is before all snapshots of {path}: {', '.join(listed)}{more}")
    return early[-1]


def _resolve(path: str, options: ReadOptions) -> Iterator[tuple[Place, Snapshot]]:
    path = local_path(path)
    if is_uri(path):
        yield from _resolve_remote(path, options)
        return
    matches = [path]
    if has_magic(path) and not os.path.lexists(path):
        matches = sorted(glob(path))
        matches = [match for match in matches if os.path.isdir(match) and not os.path.basename(match).startswith(".")]
        if not matches:
            raise SourceError(f"no directory matches {path}")
    for match in matches:
        found = Path(match).absolute()
        if options.fetch and not _is_live(found):
            yield from _resolve_remote(found.as_uri(), options)
        else:
            yield from _resolve_local(found, options)


def _resolve_local(path: Path, options: ReadOptions) -> Iterator[tuple[Place, Snapshot]]:
    if _is_live(path):
        if options.as_of_ms is not None:
            raise SourceError(f"{path} is a data directory, which has only its last checkpoint; asOf is for snapshots")
        yield _snapshot_live(path, options)
        return
    names = sorted(os.listdir(path)) if path.is_dir() and not (path / MANIFEST_NAME).exists() else []
    # A folder without a manifest is still being made or copied; one with a manifest must be sound.
    inside = [
        path / name
        for name in names
        if not name.startswith(TEMPORARY_PREFIX)
        and not (path / name).is_symlink()  # it may lead anywhere
        and (path / name / MANIFEST_NAME).exists()
    ]
    for each in inside or [path]:
        snapshot = _open(each)
        yield _place(snapshot, str(each), None), snapshot


def _is_live(path: Path) -> bool:
    return (path / STATE_DIRECTORY / DATA_NAME).exists()


def _open(path: Path) -> Snapshot:
    try:
        return open_snapshot(path)
    except NoSnapshotError as error:
        raise SourceError(str(error)) from error
    except (StoreError, OSError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error


def _place(snapshot: Snapshot, path: str, uri: str | None, name: str | None = None) -> Place:
    manifest = snapshot.manifest
    return Place(
        name or snapshot.name, path, uri, manifest.data_file.checksum, manifest.time_ms, manifest.position.offset
    )


def _snapshot_live(directory: Path, options: ReadOptions) -> tuple[Place, Snapshot]:
    """A copy of a live store's last checkpoint, for tasks in other processes: the store replaces it within 200 ms."""
    from riverbed.server.version import VERSION
    from riverbed.store.snapshot.writer import take_snapshot

    cache = Cache(options.cache_directory, options.cache_bytes)
    try:
        identity = f"snapshot {directory} {_checkpoint(directory)}"

        def take(working: Path) -> None:
            take_snapshot(directory, working / _SNAPSHOT, program=f"riverbed {VERSION}")

        path = cache.get(identity, take, lambda there: is_snapshot(there / _SNAPSHOT)) / _SNAPSHOT
    except (StoreError, OSError, lmdb.Error) as error:
        raise SourceError(f"cannot read the store in {directory}: {error}") from error
    snapshot = _open(path)
    return _place(snapshot, str(path), None, directory.name), snapshot


def _checkpoint(directory: Path) -> str:
    """An identity of a live store's tables and of their last checkpoint.

    A deleted file may leave its inode to the file of the next store here, which counts its transactions from one again.
    So the identity includes random ids from the tables: of the tables when they were made, and of each start that wrote
    them.
    """
    tables = Tables(directory, _LIVE_MAP_BYTES, readonly=True, checks_pages=True)
    try:
        with tables.env.begin() as txn:
            reader = TableReader(tables, txn)
            ids = [reader.get("meta", name) or b"" for name in (META_NUMBERING, META_REPLICATION)]
            transaction = txn.id()
        status = (directory / STATE_DIRECTORY / DATA_NAME).stat()
        return f"{status.st_dev} {status.st_ino} {b''.join(ids).hex()} {transaction}"
    finally:
        tables.close()


# -- for streams -------------------------------------------------------------------------------------------------------


def live_place(path: str) -> Place | None:
    """The live store at `path`; None when there is none."""
    directory = _local(path)
    if not _is_live(directory):
        return None
    return Place(directory.name, str(directory), None, 0, 0, 0, is_live=True)


def series(path: str) -> list[Place]:
    """The whole snapshots in a folder, the oldest first, maybe none.

    Raises SourceError when `path` is no folder, and for a snapshot that is damaged, newer or not permitted: passing it
    over might lose what no other one has.
    """
    folder = _local(path)
    if (folder / MANIFEST_NAME).exists():
        raise SourceError(f"{path} is one snapshot; a stream is read from the folder that they come into")
    if not folder.is_dir():
        raise SourceError(f"there is no folder {path}")
    names = [name for name in os.listdir(folder) if not name.startswith(TEMPORARY_PREFIX) and name != _LOST_AND_FOUND]
    paths = [folder / name for name in names if not (folder / name).is_symlink()]  # it may lead anywhere
    places = [_place(snapshot, str(snapshot.path), None) for path in paths if (snapshot := _opened_if_there(path))]
    return sorted(places, key=lambda place: (place.time_ms, place.offset, place.name))


def _opened_if_there(path: Path) -> Snapshot | None:
    """None where there is no snapshot, or none any more: a folder without a manifest is being made, or copied.

    One that lacks another file may be being deleted, which takes seconds, and is looked at again for so long.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return open_snapshot(path)
        except NoSnapshotError:
            return None
        except CorruptionError as error:
            if not os.path.lexists(path / MANIFEST_NAME):
                return None
            is_whole = all(os.path.lexists(path / name) for name in (DATA_NAME, STREAMS_NAME))
            if is_whole or time.monotonic() >= deadline:
                raise SourceError(f"cannot read {path}: {error}") from error
        except (StoreError, OSError) as error:
            raise SourceError(f"cannot read {path}: {error}") from error
        time.sleep(_LOOK_S)


def _local(path: str) -> Path:
    path = local_path(path)
    if is_uri(path):
        raise SourceError(f"{path}: a stream is read from a directory of this machine")
    return Path(path).absolute()


# -- object stores -----------------------------------------------------------------------------------------------------


def _resolve_remote(uri: str, options: ReadOptions) -> Iterator[tuple[Place, Snapshot]]:
    filesystem, root = filesystem_of(uri)
    base, mark, query = uri.partition("?")
    try:
        for folder in snapshot_folders(filesystem, root):
            name = folder.rsplit("/", 1)[-1]
            inside = "" if folder == root else f"/{quote(name, safe=_NOT_QUOTED)}"
            own = f"{_spelled_alike(base)}{inside}{mark}{query}"
            _, manifest = read_manifest(filesystem, folder)
            snapshot = Snapshot(_fetch_head(filesystem, folder, uri, manifest, options), manifest)
            yield _place(snapshot, folder, own, name), snapshot
    except (StoreError, OSError) as error:
        raise SourceError(f"cannot read {uri}: {error}") from error


def _spelled_alike(uri: str) -> str:
    """A URI without its query, as all that name the same place have it: one snapshot is to be read once."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=quote(unquote_to_bytes(parts.path).rstrip(b"/"), safe=_NOT_QUOTED)))


def _fetch_head(filesystem: Any, folder: str, uri: str, manifest: SnapshotManifest, options: ReadOptions) -> Path:
    """Fetch the list of streams, which is all that the driver needs beside the manifest."""
    digest = manifest.streams_file

    def fetch(working: Path) -> None:
        copy(filesystem, f"{folder}/{STREAMS_NAME}", working / STREAMS_NAME, digest.size)
        verify_file(working / STREAMS_NAME, digest)

    def is_whole(there: Path) -> bool:
        return (there / STREAMS_NAME).stat().st_size == digest.size

    identity = f"head {uri} {folder} {digest.size} {digest.checksum}"
    return Cache(options.cache_directory, options.cache_bytes).get(identity, fetch, is_whole)


# -- columns -----------------------------------------------------------------------------------------------------------


def may_have_columns(place: Place, options: ReadOptions) -> bool:
    """Whether the entries of a place may be read from columns: it has some, or they may be made."""
    if place.is_live or place.uri is not None or options.columns is Columns.IGNORE:
        return False
    return options.columns is Columns.MAKE or os.path.lexists(os.path.join(place.path, COLUMNS_DIRECTORY))


# -- in a task ---------------------------------------------------------------------------------------------------------

# A process may open a file with LMDB only once.  By path: the file's device and inode, and its tables.
_open_tables: dict[Path, tuple[tuple[int, int], Tables]] = {}
_MAX_OPEN: Final = 64


def open_place(place: Place, options: ReadOptions) -> Tables:
    """The tables of a place.  They stay open for this process.

    Raises DataLossError when the snapshot is gone or is another one now; SourceError when it is damaged.
    """
    if place.is_live:
        return _open_live(Path(place.path))
    path = Path(place.path) if place.uri is None else _fetch(place, options)
    try:
        Cache(options.cache_directory, options.cache_bytes).hold(path)
        snapshot = open_snapshot(path)
        if snapshot.manifest.data_file.checksum != place.checksum:
            raise DataLossError(f"{path} is another snapshot now than when the query was planned")
        _verify(snapshot, options)
        return _opened(path / DATA_NAME, lambda: open_compared(snapshot))
    except NoSnapshotError as error:
        raise DataLossError(f"the snapshot was deleted while it was read: {error}") from error
    except CorruptionError as error:
        raise SourceError(f"damaged snapshot: {error}") from error
    except (StoreError, OSError, lmdb.Error) as error:
        raise SourceError(f"cannot read {path}: {error}") from error


def _opened(file: Path, open_tables: Callable[[], Tables]) -> Tables:
    """The tables in `file`, opened if they are not open yet.  The path may name another file by now."""
    status = file.stat()
    key = (status.st_dev, status.st_ino)
    there = _open_tables.pop(file, None)
    if there is not None and there[0] != key:
        there[1].close()
        there = None
    while len(_open_tables) >= _MAX_OPEN:
        _open_tables.pop(next(iter(_open_tables)))[1].close()
    _open_tables[file] = there or (key, open_tables())
    return _open_tables[file][1]


def _verify(snapshot: Snapshot, options: ReadOptions) -> None:
    """Compare a snapshot with its checksums if the options say so.  Raises CorruptionError, OSError."""
    if options.verify is Verify.NEVER:
        return
    if options.verify is Verify.ONCE:
        _once("verified", snapshot, options, snapshot.verify)
        return
    snapshot.verify()
    _once("walked", snapshot, options, lambda: _require_sound_pages(snapshot))


def _once(what: str, snapshot: Snapshot, options: ReadOptions, prove: Callable[[], None]) -> None:
    """Call `prove` once a machine, as long as the file is untouched."""
    status = (snapshot.path / DATA_NAME).stat()
    # Every write to the file changes one of these.  Damage by the disk itself changes none.
    about = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    identity = f"{what} {snapshot.path.resolve()} {about} {snapshot.manifest.data_file.checksum}"
    Cache(options.cache_directory, options.cache_bytes).get(identity, lambda working: prove())


def _require_sound_pages(snapshot: Snapshot) -> None:
    from riverbed.store.check.pages import require_sound_pages

    require_sound_pages(snapshot.path / DATA_NAME)


def _open_live(directory: Path) -> Tables:
    """Open the tables of a store whose server may run: read only, with LMDB's locks."""
    try:
        file = directory / STATE_DIRECTORY / DATA_NAME
        return _opened(file, lambda: Tables(directory, _LIVE_MAP_BYTES, readonly=True, checks_pages=True))
    except FileNotFoundError as error:
        raise DataLossError(f"the store was deleted while it was read: {error}") from error
    except (StoreError, OSError, lmdb.Error) as error:
        raise SourceError(f"cannot read the store in {directory}: {error}") from error


def _fetch(place: Place, options: ReadOptions) -> Path:
    """A remote snapshot on this machine's disk, fetched once for all tasks that read it."""
    assert place.uri is not None
    filesystem, _ = filesystem_of(place.uri)

    def fetch(working: Path) -> None:
        written, manifest = read_manifest(filesystem, place.path)
        if manifest.data_file.checksum != place.checksum:
            raise DataLossError(f"{place.where} is another snapshot now than when the query was planned")
        for name, digest in ((STREAMS_NAME, manifest.streams_file), (DATA_NAME, manifest.data_file)):
            copy(filesystem, f"{place.path}/{name}", working / name, digest.size)
        (working / MANIFEST_NAME).write_bytes(written)
        _require_sound_pages(open_snapshot(working, verify=True))

    try:
        cache = Cache(options.cache_directory, options.cache_bytes)
        return cache.get(f"whole {place.uri} {place.path} {place.checksum} {place.offset}", fetch, is_snapshot)
    except FileNotFoundError as error:
        raise DataLossError(f"the snapshot was deleted while it was read: {place.where}") from error
    except (StoreError, OSError) as error:
        raise SourceError(f"cannot fetch {place.where}: {error}") from error
