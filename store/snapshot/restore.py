"""Makes a data directory from a snapshot, for a server to start on.

    SNAPSHOT/data.mdb   -- copied, verified -->   DIR/state/data.mdb        its position: the end of incr 1
                        -- rewritten ------->     DIR/appendonlydir/        base 1: the same state, as commands
                                                                            incr 1: a SELECT, at the snapshot's offset

Each half alone is enough to recover everything, as in any data directory.  The replication offset continues from the
snapshot's, with the same replication ids, so that a replica can start from a backup and be sent only what is newer.  A
server that starts on DIR as a primary takes a new replication id, as every primary does.

DIR is worth nothing until this is done: only then does the caller give it its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from riverbed.store.disk.copying import PIECE_BYTES
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.errors import CorruptionError, why_undecoded
from riverbed.store.format.log_lines import encode_preface
from riverbed.store.format.meta import META_POSITION, NO_DATABASE, PositionRow, read_position, read_replids
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, LOG_MANIFEST, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests
from riverbed.store.log.commands import Piece
from riverbed.store.progress import Progress, counter
from riverbed.store.rewrite.log_from_tables import write_log
from riverbed.store.rewrite.state import pieces
from riverbed.store.snapshot.reader import Snapshot
from riverbed.store.snapshot.totals import contradiction, require_totals
from riverbed.store.snapshot.writer import COPYING, VERIFYING, write_digested
from riverbed.store.tables.damage.scrub import SCRUBBED_TABLES, require_sound
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

WRITING_LOG: Final = "writing the log"

_MAP_BYTES: Final = 1 << 40
_UNSYNCED_BYTES: Final = 64 << 20
_FIRST_INCR: Final = 1
# Entries, which are nearly all rows, are compared when the log is written of them.
_COMPARED: Final = tuple(table for table in SCRUBBED_TABLES if table != "entries")


def restore_snapshot(snapshot: Snapshot, directory: Path, *, steps: Progress, files: Files | None = None) -> None:
    """Fill the empty `directory`.  `steps` is called with the progress: bytes, rows, entries.

    Raises CorruptionError when the snapshot does not have the checksum its manifest promises, not what the manifest
    says of it, or rows that do not fit each other; OSError, lmdb.Error.
    """
    files = files or OsFiles()
    offset, time_ms = snapshot.manifest.offset, snapshot.manifest.time_ms
    home = directory / LOG_DIRECTORY
    _copy_tables(snapshot, directory / STATE_DIRECTORY, steps, files)
    with closing(Tables(directory / STATE_DIRECTORY, snapshot.manifest.data_file.size, frozen=True)) as copied:
        # before this version adds rows that an earlier one has not written
        require_totals(snapshot, copied)
        with copied.env.begin() as txn:
            reader = TableReader(copied, txn)
            try:
                require_sound(reader, _COMPARED, counter(steps, VERIFYING, sum(map(reader.count, _COMPARED))))
            except CorruptionError as error:  # it names the copy, which will be gone
                raise CorruptionError(str(snapshot.path / DATA_NAME), None, error.reason) from error
    tables = Tables(directory, _MAP_BYTES)
    try:
        with tables.env.begin(write=True, db=tables.handles["meta"]) as txn:
            was_at = read_position(txn.get)
            # what a primary sends next goes to the database that was selected there
            selected = NO_DATABASE if was_at is None else was_at.selected
            preface = encode_preface(selected, offset, time_ms)
            txn.put(META_POSITION, PositionRow(_FIRST_INCR, len(preface), offset, selected).pack())
            replids = read_replids(txn.get)
        tables.env.sync(True)
        with tables.env.begin() as txn:
            state = _watched(pieces(tables, txn), snapshot, steps)
            files.make_directory(home)
            manifest, _ = write_log(
                home,
                state,
                files,
                offset=offset,
                seq=_FIRST_INCR,
                preface=preface,
                now_ms=time_ms,
            )
        manifests.replace(home / LOG_MANIFEST, replace(manifest, replids=replids), files)
    except DECODE_ERRORS as error:
        raise CorruptionError(str(snapshot.path / DATA_NAME), None, why_undecoded(error)) from error
    finally:
        tables.close()
    files.sync_directory(directory / STATE_DIRECTORY)
    files.sync_directory(directory)


def _copy_tables(snapshot: Snapshot, state: Path, steps: Progress, files: Files) -> None:
    """Copy data.mdb.  Raises CorruptionError when the copy, which will be served, is not what the manifest says."""
    expected = snapshot.manifest.data_file
    files.make_directory(state)
    found = write_digested(
        state / DATA_NAME,
        _contents(snapshot.path / DATA_NAME, files),
        files,
        lambda size: steps(COPYING, size, max(size, expected.size)),
        _UNSYNCED_BYTES,
    )
    if found != expected:
        raise CorruptionError(
            str(snapshot.path / DATA_NAME),
            None,
            f"{found.size} bytes with the CRC-32C {found.checksum:08x}; "
            f"it must be {expected.size} bytes with {expected.checksum:08x}",
        )


def _contents(path: Path, files: Files) -> Iterator[bytes]:
    fd = files.open_read(path)
    try:
        at = 0
        while data := files.read_at(fd, PIECE_BYTES, at):
            at += len(data)
            yield data
    finally:
        files.close(fd)


def _watched(found: Iterator[Piece], snapshot: Snapshot, steps: Progress) -> Iterator[Piece]:
    entries = 0
    for piece in found:
        yield piece
        entries += piece.entries
        steps(WRITING_LOG, entries, max(entries, snapshot.manifest.entries))
    if entries != snapshot.manifest.entries:
        raise contradiction(snapshot, "entries", snapshot.manifest.entries, entries)
