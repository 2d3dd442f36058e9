"""Makes a log from the tables, for a directory whose log is lost or unreadable.

The tables hold all of the state that the last checkpoint covers.  What came after it was in the log alone, and is lost
with it.

    1  base and incr are written, and not listed yet    a crash here leaves files that the next try writes over
    2  the tables get the end of the incr, which has a SELECT alone, as their position
    3  the manifest lists both                           from here on the directory is whole

Between 2 and 3 there is no manifest: a server refuses the directory, and another try begins at 1.  This module does not
look at damaged files: the caller moves them out of the way first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from riverbed.store.disk.durable_file import write_file
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.disk.real_files import require_plain
from riverbed.store.errors import StoreError
from riverbed.store.format.log_lines import encode_preface
from riverbed.store.format.meta import META_POSITION, PositionRow, read_position
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, LOG_MANIFEST, STATE_DIRECTORY, base_name
from riverbed.store.log import manifest as manifests
from riverbed.store.log.base_file import BaseSize, write_base
from riverbed.store.log.commands import Piece
from riverbed.store.log.manifest import LogFile, Manifest
from riverbed.store.options import DEFAULT_MAP_BYTES
from riverbed.store.rewrite.state import pieces
from riverbed.store.tables.data_file.soundness import refuse_broken_pages
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

_BASE_SEQ: Final = 1


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a new log holds: `base`, and nothing after `offset`."""

    base: BaseSize
    offset: int


def rebuild_log(
    directory: Path,
    *,
    now_ms: int,
    map_bytes: int = DEFAULT_MAP_BYTES,
    files: Files | None = None,
) -> Rebuilt:
    """Make a log for `directory` from its tables alone.

    No process may be using the directory; it must have tables, and no manifest of a log.  Raises StoreError with
    nothing changed, LockedError, VersionError, lmdb.Error, OSError.
    """
    files = files or OsFiles()
    home = directory / LOG_DIRECTORY
    manifest_path = home / LOG_MANIFEST
    if files.exists(manifest_path):
        raise StoreError(f"{manifest_path} is there: a log that exists is not rebuilt")
    if not files.exists(directory / STATE_DIRECTORY / DATA_NAME):
        raise StoreError(f"{directory} has no tables to make a log from")
    with lock_directory(directory):
        require_plain(home)
        refuse_broken_pages(directory / STATE_DIRECTORY / DATA_NAME, map_bytes)
        tables = Tables(directory, map_bytes)
        try:
            with tables.env.begin() as txn:
                before = read_position(TableReader(tables, txn).meta_row)
                if before is None:
                    raise StoreError(f"{tables.path} was never checkpointed: there is no state to make a log from")
                # a number that the tables' position never had
                seq = max(before.file_seq, 0) + 1
                files.make_directory(home)
                files.sync_directory(directory)
                preface = encode_preface(before.selected, before.offset, now_ms)
                manifest, base = write_log(
                    home, pieces(tables, txn), files, offset=before.offset, seq=seq, preface=preface, now_ms=now_ms
                )
                position = PositionRow(seq, len(preface), before.offset, before.selected)
            with tables.env.begin(write=True) as txn:
                txn.put(META_POSITION, position.pack(), db=tables.handles["meta"])
            tables.env.sync(True)
        finally:
            tables.close()
        manifests.replace(manifest_path, manifest, files)
    return Rebuilt(base, before.offset)


def write_log(
    home: Path, state: Iterable[Piece], files: Files, *, offset: int, seq: int, preface: bytes, now_ms: int
) -> tuple[Manifest, BaseSize]:
    """Write a base that holds `state`, and an incr `seq` that begins at `offset`; -> a manifest of the two.

    The incr has no more than the `preface` of the database that is selected there: the base may end with another one.
    The manifest is not written yet.  Raises OSError.
    """
    size = write_base(home / base_name(_BASE_SEQ), state, files, offset=offset, now_ms=now_ms)
    incr = LogFile.incr(seq, offset)
    write_file(home / incr.name, [preface], files)
    return Manifest(base=LogFile.base(_BASE_SEQ, size.size, size.command_bytes), incrs=(incr,)), size
