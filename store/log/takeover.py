"""Finds out whose log a directory holds, before anything in it is opened or made: Riverbed's, a Redis's, or a part.

A manifest of ours has marks that a Redis leaves out when it writes the manifest: the replication ids, the checksums.  A
log without these marks is a Redis's, even if it was ours before.  Our first rewrite would lose its strings and hashes,
and its next rewrite would lose our entries, so Riverbed copies such a log and never continues it.  The same is true of
a directory that has no store of ours and in which a Redis keeps its data in another form or under other names.

Log files that no manifest lists stop the start: a log begun beside them would lack its past.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from riverbed.store.disk.files import Files
from riverbed.store.disk.locks.other_writers import writer_of
from riverbed.store.disk.real_files import is_there, read_file
from riverbed.store.errors import CorruptionError, ForeignLogError, LockedError, UnsafeFileError
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, LOG_FILE, LOG_MANIFEST, STATE_DIRECTORY, store_around
from riverbed.store.log import manifest as manifests
from riverbed.store.log.empty_rdb import MAGIC, MAX_EMPTY_BYTES, is_empty_rdb
from riverbed.store.log.manifest import Manifest

_COPYING: Final = (
    "`riverbed import redis://HOST:PORT NEW` copies all streams of a running Redis into a new data directory"
)
_MANIFEST: Final = ".manifest"
_RDB: Final = ".rdb"
_AOF: Final = ".aof"


def refuse_orphans(home: Path, files: Files) -> None:
    """Raise CorruptionError when log files are in `home` without a manifest: they must not be written over."""
    if not files.exists(home):
        return
    ours = re.compile(re.escape(LOG_FILE) + r"\.\d+\.(base|incr)\.(aof|rdb)")
    for name in sorted(files.names(home)):
        if ours.fullmatch(name):
            fd = files.open_read(home / name)
            try:
                if files.size(fd):
                    raise CorruptionError(str(home / name), None, "a log file is here, but no manifest lists it")
            finally:
                files.close(fd)


def require_ours(directory: Path, files: Files) -> None:
    """Check before writing that `directory` is a store of ours whose log no other process writes, or is empty.

    Raises ForeignLogError, LockedError, CorruptionError.
    """
    manifest = refuse_redis(directory, files)
    if manifest is not None and manifest.files:
        home = directory / LOG_DIRECTORY
        writer = writer_of(home / manifest.files[-1].name)
        if writer is not None:
            raise LockedError(f"{home} is in use: {writer} writes the log in it")


def refuse_redis(directory: Path, files: Files) -> Manifest | None:
    """-> the manifest of our log in `directory`, if there is one.

    Raises ForeignLogError when a Redis keeps its data there, or when it is a part of a store of ours; CorruptionError.
    """
    home = directory / LOG_DIRECTORY
    manifest = manifests.load(home / LOG_MANIFEST, files)
    if manifest is not None:
        if not manifest.is_ours:
            raise _log_of_redis(directory, home, manifest)
        return manifest
    if is_there(directory / STATE_DIRECTORY / DATA_NAME, follows=False):
        return None  # a store of ours that has lost its log
    if (store := store_around(directory)) is not None:
        raise ForeignLogError(f"{directory} is a part of the data directory {store}: name that")
    for path, found in _data_of_redis(directory):
        if found is None:
            raise ForeignLogError(
                f"{path} is the data of a Redis, and {directory} holds no store of Riverbed: give Riverbed a directory "
                f"of its own; {_other_ways(directory, path)}"
            )
        raise _log_of_redis(directory, path.parent, found)
    return None


def _log_of_redis(directory: Path, home: Path, manifest: Manifest) -> ForeignLogError:
    last = manifest.files[-1].name if manifest.files else ""
    user = writer_of(home / last) if last else None
    in_use = "" if user is None else f", and {user} has it open"
    if _begins_with_rdb(home, manifest):
        advice = f"{_COPYING}; this log begins with an RDB file, which `riverbed replay` cannot read"
    else:
        advice = f"{_COPYING}, `riverbed replay {directory} NEW` those of this log"
    return ForeignLogError(f"the log in {home} was written by a Redis{in_use}: {advice}")


def _begins_with_rdb(home: Path, manifest: Manifest) -> bool:
    """Whether the first file is an RDB file that has keys."""
    if not manifest.files:
        return False
    try:
        data = read_file(home / manifest.files[0].name, MAX_EMPTY_BYTES + 1)
    except (UnsafeFileError, OSError):
        return False
    return data.startswith(MAGIC) and not (len(data) <= MAX_EMPTY_BYTES and is_empty_rdb(data))


def _other_ways(directory: Path, path: Path) -> str:
    return _COPYING if path.suffix == _RDB else f"{_COPYING}, `riverbed replay {directory} NEW` those of this log"


def _data_of_redis(directory: Path) -> Iterator[tuple[Path, Manifest | None]]:
    """What a Redis has left in a directory that holds no store of ours: snapshots, logs, and logs in other folders."""
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(directory)):
            path = directory / name
            with contextlib.suppress(UnsafeFileError, CorruptionError, OSError):
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode) and (
                    (name.endswith(_RDB) and read_file(path, len(MAGIC)) == MAGIC)
                    or (name.endswith(_AOF) and path.stat().st_size)
                ):
                    yield path, None
                elif stat.S_ISDIR(mode):
                    yield from _foreign_manifests(path)


def _foreign_manifests(folder: Path) -> Iterator[tuple[Path, Manifest]]:
    for name in sorted(os.listdir(folder)):
        if name.endswith(_MANIFEST):
            path = folder / name
            manifest = manifests.parse(read_file(path, manifests.MAX_MANIFEST_BYTES), str(path))
            if not manifest.is_ours:
                yield path, manifest
