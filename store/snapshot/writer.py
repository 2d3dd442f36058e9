"""Makes a snapshot, beside a running server or of a stopped store, and deletes old snapshots.

    .temp-snapshot-XXXXXXXX/     LMDB's compact copy, from one read transaction    ->  data.mdb
                                 one walk over the copy                            ->  streams.jsonl
                                 all of it synced, then                            ->  manifest.json, synced
    NAME/                        one rename

The copy is the snapshot: everything in the manifest is read from the copy and not from the live tables, so nothing that
is written meanwhile can make the two differ.  A kill leaves a directory with a temporary name, which the next snapshot
in the same place deletes, or the next start; a lock on it shows whether a process still works there.

While LMDB makes the copy, it cannot use freed pages again: state/data.mdb may grow meanwhile.

`reader.py` knows the form of the files and how to read them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.checksum import crc32c
from riverbed.store.disk.durable_file import UNSYNCED_BYTES, write_file
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.ownership import give
from riverbed.store.disk.real_files import is_directory, is_there, require_directory
from riverbed.store.disk.removal import remove_tree
from riverbed.store.disk.working_directory import clear_leftovers, name_for, working_directory
from riverbed.store.errors import CorruptionError, SnapshotError, why_undecoded
from riverbed.store.format.meta import read_version
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, SNAPSHOTS_DIRECTORY, STATE_DIRECTORY, STREAMS_NAME
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress, counter, ignore
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.snapshot.manifest import FileDigest, SnapshotManifest, encode_manifest
from riverbed.store.snapshot.reader import TEMPORARY_PREFIX, Snapshot, list_snapshots, open_snapshot
from riverbed.store.snapshot.stream_lines import encode_stream_line
from riverbed.store.snapshot.stream_walk import StreamWalk
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, require_sound
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader

DEFAULT_SPLIT_EVERY: Final = 65_536

_MAP_BYTES: Final = 1 << 40
WORKING_PREFIX: Final = f"{TEMPORARY_PREFIX}snapshot-"
_PIPE_BYTES: Final = 1 << 20  # what LMDB hands over at a time
# A stream's line is about this long; for an estimate of the space.
_LINE_BYTES: Final = 400
_SPARE_BYTES: Final = 1 << 20

# What `steps` counts: bytes, then rows, then streams.
COPYING: Final = "copying"
VERIFYING: Final = "verifying"
LISTING: Final = "listing streams"

# Further work on the snapshot in a directory, of whose tables, so many bytes, the copy was begun at a time in unix
# milliseconds.  It goes on while rows are compared; what it gives is called when all but its own files are there.
Beside = Callable[[Path, int, int], AbstractContextManager[Callable[[], None]]]


@contextlib.contextmanager
def nothing_beside(path: Path, data_bytes: int, time_ms: int) -> Iterator[Callable[[], None]]:
    """The default: no further work."""
    yield lambda: None


def take_snapshot(
    directory: Path,
    out: Path | None = None,
    *,
    program: str,
    split_every: int = DEFAULT_SPLIT_EVERY,
    leave_bytes: int = 0,
    steps: Progress = ignore,
    beside: Beside = nothing_beside,
    files: Files | None = None,
) -> Snapshot:
    """Take a snapshot of the last checkpoint of the store in `directory`.

    The snapshot goes to `out`, which must not exist; or into the folder `out`, under a name of time and offset; or,
    without `out`, into `directory`/snapshots.  The manifest names `program`; `steps` is called with the progress.
    `beside` adds files of its own.

    An exception of `steps` stops the work between two steps.  Signal handlers must not raise: the process would wait
    for ever for LMDB's copy, which waits for its reader.

    Raises SnapshotError, with nothing left behind, when the store holds nothing yet, when `out` exists or is in
    `directory` and not in its snapshots, or when there is no space for it beyond `leave_bytes`; VersionError,
    CorruptionError, OSError.
    """
    files = files or OsFiles()
    folder, name = _place(directory, out)
    with _open_state(directory) as tables:
        if files.exists(folder):  # what a killed process has left there may have the space that is needed
            clear_leftovers(folder, WORKING_PREFIX)
        _require_space(tables, folder, leave_bytes, files)
        files.make_directory(folder)
        with working_directory(folder, WORKING_PREFIX) as working:
            maker = _Maker(working, files, steps, split_every)
            time_ms = time.time_ns() // 1_000_000
            data_file = maker.copy(tables)
            with beside(working, data_file.size, time_ms) as complete:
                maker.list_streams(data_file)
                manifest = SnapshotManifest(
                    tables_version=maker.tables_version,
                    program=program,
                    source=_source(directory),
                    is_automatic=name is None,
                    time_ms=time_ms,
                    position=maker.position,
                    replication_id=None if maker.replids is None else maker.replids.replication_id,
                    store_id=None if maker.replids is None else maker.replids.store_id or None,
                    numbering=maker.numbering,
                    split_every=split_every,
                    streams=maker.streams,
                    entries=maker.entries,
                    rows=maker.rows,
                    data_file=data_file,
                    streams_file=maker.streams_file,
                )
                maker.write(MANIFEST_NAME, [encode_manifest(manifest)])
                complete()
            maker.forget(data_file)
            files.sync_directory(working)
            if folder.resolve() == own_folder(directory).resolve():
                give(working, directory.stat())
            path = _publish(working, folder, name or _automatic_name(manifest), manifest, files)
    return open_snapshot(path)


def own_folder(directory: Path) -> Path:
    """Where a data directory keeps its own snapshots.  Raises UnsafeFileError when something else is there."""
    folder = directory / SNAPSHOTS_DIRECTORY
    require_directory(folder)
    return folder


def _place(directory: Path, out: Path | None) -> tuple[Path, str | None]:
    """-> (the folder it goes to, its name there or None)"""
    if out is None:
        return own_folder(directory), None
    if not is_there(out, follows=False):
        folder, name = out.parent, out.name
    elif not is_directory(out) or any(is_there(out / name) for name in (MANIFEST_NAME, DATA_NAME)):
        raise SnapshotError(f"{out} exists already")
    else:
        folder, name = out, None
    there, own = folder.resolve(), own_folder(directory)
    if there.is_relative_to(directory.resolve()) and not there.is_relative_to(own.resolve()):
        raise SnapshotError(f"{out} is in the data directory itself, which has its snapshots in {own} alone")
    return folder, name


@contextlib.contextmanager
def _open_state(directory: Path) -> Iterator[Tables]:
    if not is_there(directory / STATE_DIRECTORY / DATA_NAME):
        what = "holds no tables yet" if is_directory(directory) else "is not a directory"
        raise SnapshotError(f"{directory} {what}: there is no {directory / STATE_DIRECTORY / DATA_NAME}")
    try:
        tables = Tables(directory, _MAP_BYTES, readonly=True, checks_pages=True)
    except lmdb.NotFoundError:
        raise _without_checkpoint(directory) from None
    except lmdb.Error as error:
        raise SnapshotError(f"{directory / STATE_DIRECTORY} cannot be opened: {error}") from error
    try:
        yield tables
    finally:
        tables.close()


def _without_checkpoint(directory: Path) -> SnapshotError:
    return SnapshotError(
        f"the store in {directory} was never checkpointed: send SAVE to its server, or start one on it"
    )


def _require_space(tables: Tables, folder: Path, leave_bytes: int, files: Files) -> None:
    with tables.env.begin() as txn:
        if txn.get(b"position", db=tables.handles["meta"]) is None:
            raise _without_checkpoint(tables.path.parent)
        needed = tables.used_bytes(txn) + txn.stat(tables.handles["names"])["entries"] * _LINE_BYTES + _SPARE_BYTES
    standing = next(path for path in (folder, *folder.absolute().parents) if is_there(path))
    free = files.free_bytes(standing)
    if free < needed + leave_bytes:
        left = f", and {leave_bytes:,} must be left" if leave_bytes else ""
        raise SnapshotError(f"not enough space in {folder}: {needed:,} bytes are needed, {free:,} are free{left}")


def _source(directory: Path) -> str:
    return f"{os.uname().nodename}:{directory.resolve()}"


_AUTOMATIC_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]+(-[0-9]+)?")


def _automatic_name(manifest: SnapshotManifest) -> str:
    return f"{datetime.fromtimestamp(manifest.time_ms // 1000, UTC):%Y%m%dT%H%M%SZ}-{manifest.offset}"


# -- the directory -----------------------------------------------------------------------------------------------------


def _publish(working: Path, folder: Path, name: str, manifest: SnapshotManifest, files: Files) -> Path:
    """Give the finished directory its name."""
    path = folder / name
    number = 1
    while True:
        try:
            files.rename(working, path)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if not manifest.is_automatic:
                raise SnapshotError(f"{path} exists already") from error
            number += 1  # a second snapshot of the same offset within a second
            path = folder / f"{name}-{number}"
    files.sync_directory(folder)
    return path


# -- the files ---------------------------------------------------------------------------------------------------------


class _Maker:
    """Writes the files of one snapshot, and collects what the manifest will say of them."""

    def __init__(self, working: Path, files: Files, steps: Progress, split_every: int) -> None:
        self.working = working
        self.files = files
        self.steps = steps
        self.split_every = split_every
        self.streams = self.entries = 0
        self.position: LogPosition  # this and the following are set by `list_streams`
        self.replids: ReplicationIds | None
        self.numbering: str | None
        self.tables_version: int
        self.rows: dict[str, int]
        self.streams_file: FileDigest

    def copy(self, tables: Tables) -> FileDigest:
        """LMDB's compact copy of `tables`.

        The copy comes through a pipe.  So the checksum is of what LMDB meant to write, an interrupt does not have to
        wait for the end of the copy, and the copy reaches the disk in pieces.
        """
        with tables.env.begin() as txn:
            total = tables.used_bytes(txn)
        read_fd, write_fd = os.pipe()
        failures: list[lmdb.Error] = []

        def copy() -> None:
            # signals are for other threads: a signal here would end LMDB's write with an error
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                tables.env.copyfd(write_fd, compact=True)
            except lmdb.Error as error:
                failures.append(error)
            finally:
                os.close(write_fd)

        thread = threading.Thread(target=copy, name="lmdb copy", daemon=True)
        with contextlib.suppress(OSError, AttributeError):  # where a pipe's size can be set; faster by a third
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            thread.start()
            digest = self.write(DATA_NAME, _pieces(read_fd), lambda size: self.steps(COPYING, size, max(size, total)))
        finally:
            os.close(read_fd)  # LMDB's next write fails with EPIPE; the tables cannot be closed before
            thread.join()
        if failures:
            raise SnapshotError(f"the tables cannot be copied: {failures[0]}") from failures[0]
        return digest

    def write(self, name: str, pieces: Iterable[bytes], wrote: Callable[[int], None] | None = None) -> FileDigest:
        return write_digested(self.working / name, pieces, self.files, wrote)

    def forget(self, data_file: FileDigest) -> None:
        """Leave the memory that the system caches the copy in to files that are in use."""
        fd = self.files.open_read(self.working / DATA_NAME)
        self.files.forget(fd, 0, data_file.size)
        self.files.close(fd)

    def list_streams(self, data_file: FileDigest) -> None:
        """Walk the copy: compare its rows with their checksums, and write a line for each stream.

        Raises CorruptionError: what is damaged enters no snapshot.
        """
        path = self.working / DATA_NAME
        try:
            tables = Tables(self.working, data_file.size, frozen=True)
        except lmdb.Error as error:
            raise SnapshotError(f"the copy cannot be read: {error}") from error
        try:
            with tables.env.begin() as txn:
                reader = TableReader(tables, txn)
                self.rows = {table: reader.count(table) for table in TABLES}
                compared = counter(self.steps, VERIFYING, sum(self.rows[table] for table in SCRUBBED_TABLES))
                require_sound(reader, SCRUBBED_TABLES, compared)
                walk = StreamWalk(reader, self.split_every)
                self.position, self.replids, self.numbering = walk.position(), walk.replids(), walk.numbering()
                self.tables_version = read_version(reader.meta_row)
                self.streams_file = self.write(STREAMS_NAME, self._lines(walk))
        except DECODE_ERRORS as error:
            raise CorruptionError(str(path), None, why_undecoded(error)) from error
        except lmdb.Error as error:
            raise CorruptionError(str(path), None, str(error)) from error
        finally:
            tables.close()

    def _lines(self, walk: StreamWalk) -> Iterator[bytes]:
        lines: list[bytes] = []
        for stream in walk.streams():
            self.streams += 1
            self.entries += stream.length
            lines.append(encode_stream_line(stream))
            if len(lines) == 1000:
                yield b"".join(lines)
                lines.clear()
                self.steps(LISTING, self.streams, walk.stream_count)
        yield b"".join(lines)
        self.steps(LISTING, self.streams, self.streams)


def write_digested(
    path: Path,
    pieces: Iterable[bytes],
    files: Files,
    wrote: Callable[[int], None] | None = None,
    unsynced_bytes: int = UNSYNCED_BYTES,
) -> FileDigest:
    """As `write_file`; -> the digest.  `wrote` is called with the length so far."""
    checksum = size = 0

    def digested() -> Iterator[bytes]:
        nonlocal checksum, size
        for data in pieces:
            checksum = crc32c(data, checksum)
            size += len(data)
            yield data
            if wrote is not None:
                wrote(size)

    write_file(path, digested(), files, unsynced_bytes)
    return FileDigest(size, checksum)


def _pieces(fd: int) -> Iterator[bytes]:
    while data := os.read(fd, _PIPE_BYTES):
        yield data


# -- retention ---------------------------------------------------------------------------------------------------------


def delete_old(made: Snapshot, keep: int, directory: Path) -> list[str]:
    """Delete all but `made`, which was just taken, and the newest `keep` - 1 others of the store in `directory`.

    -> their names, the oldest first.  Besides `made`, only whole snapshots with the names that `take_snapshot` gave
    them are counted and deleted: neither those that people have named nor those of another store.  `made`
    stays even when a clock that was set back makes it look old.
    """
    assert keep > 0
    folder = made.path.parent
    is_own = folder.resolve() == (directory / SNAPSHOTS_DIRECTORY).resolve()
    source = _source(directory)
    found = [
        snapshot
        for snapshot in list_snapshots(folder)
        if snapshot.manifest.is_automatic and _AUTOMATIC_NAME.fullmatch(snapshot.name)  # it may be called otherwise now
        if is_own or snapshot.manifest.source == source
        if _may_be_of_one_store(snapshot, made) and snapshot.name != made.name
    ]
    going = found[: max(len(found) + 1 - keep, 0)]
    for snapshot in going:
        delete_snapshot(snapshot)
    return [snapshot.name for snapshot in going]


def _may_be_of_one_store(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots do not say that they are of different stores; older versions have noted no id."""
    ids = {one.manifest.store_id, other.manifest.store_id} - {None, ""}
    return len(ids) < 2


def delete_snapshot(snapshot: Snapshot) -> None:
    """Make it no snapshot in one step, then free its space.  Processes that have it open can still read it."""
    files = OsFiles()
    folder = snapshot.path.parent
    going = name_for(folder, WORKING_PREFIX)
    files.rename(snapshot.path, going)
    files.sync_directory(folder)
    remove_tree(going)
