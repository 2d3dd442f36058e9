"""Replaces the store by the result of a compaction, and completes a replacement that a kill has interrupted.

    state/data.mdb, lock.mdb         1  put aside                     state/compact/old.mdb, old-lock.mdb
    appendonlydir/manifest           2  replaced, in one step         lists the new base and incr
    state/compact/data.mdb           3  moved in                      state/data.mdb

The log decides: before 2 the store is the old one, from 2 on the new one.  state/compact/plan.json, durable before 1,
names the files that are to become the log, so that `KilledCompaction` can distinguish the two.  Every program that
opens a store to write ends such a compaction first: it moves the tables that belong to the log to their place and
deletes the rest, without reading any data.

The lock file moves with its tables.  It says which of LMDB's two meta pages counts, and a reader with the old tables
open keeps it alive: a server that opened the new tables with the old lock file would begin with the wrong page.

This module knows no rows and no commands.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from riverbed.store.disk.durable_file import write_file
from riverbed.store.disk.files import Files
from riverbed.store.disk.ownership import give_access
from riverbed.store.disk.real_files import is_there, read_file, require_plain
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import DATA_NAME, LOCK_NAME, LOG_DIRECTORY, LOG_FILE, LOG_MANIFEST, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests
from riverbed.store.log.home import TEMPORARY_PREFIX
from riverbed.store.log.manifest import LogFile, Manifest
from riverbed.store.replication_id import ReplicationIds

WORK_DIRECTORY: Final = "compact"
_OLD: Final = "old.mdb"
_OLD_LOCK: Final = "old-lock.mdb"
_PLAN: Final = "plan.json"
_BASE: Final = f"{TEMPORARY_PREFIX}compact"
_MAX_PLAN_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of files and folders while the store in `directory` is compacted."""

    directory: Path

    @property
    def state(self) -> Path:
        return self.directory / STATE_DIRECTORY

    @property
    def data(self) -> Path:
        """The tables of the store."""
        return self.state / DATA_NAME

    @property
    def work(self) -> Path:
        """The folder for the compaction's files."""
        return self.state / WORK_DIRECTORY

    @property
    def old_lock(self) -> Path:
        """LMDB's lock file of the tables that were put aside."""
        return self.work / _OLD_LOCK

    @property
    def home(self) -> Path:
        """The folder of the log."""
        return self.directory / LOG_DIRECTORY

    @property
    def manifest(self) -> Path:
        return self.home / LOG_MANIFEST

    def require_plain(self) -> None:
        """Raise UnsafeFileError when anything in the tables' or the log's directory is a link, a pipe or a device."""
        require_plain(self.state)
        require_plain(self.home)

    @property
    def base(self) -> Path:
        """The new base while it is written: in the log's folder, because a rename to another disk would fail."""
        return self.home / _BASE


def put_in_place(
    places: Places,
    old: Manifest,
    base: LogFile,
    incr: LogFile,
    replids: ReplicationIds | None,
    files: Files,
    *,
    preface: bytes,
    backlog: Sequence[LogFile],
) -> None:
    """Replace the store by `places.work`/data.mdb and `places.base`, which are durable and not open.

    `old` is the present manifest; the next one lists `base` and `incr`, which begins with `preface`, and `backlog` of
    its files as history that is kept.  Raises OSError.  The caller calls `end_compaction` afterwards, after an error
    and after success.
    """
    work = places.work
    plan = json.dumps({"base": base.name, "incr": incr.name}).encode()
    write_file(work / _PLAN, [plan], files)
    files.sync_directory(work)
    files.rename(places.base, places.home / base.name)
    write_file(places.home / incr.name, [preface], files)
    owner = places.data.stat()
    for path in (work / DATA_NAME, places.home / base.name, places.home / incr.name):
        give_access(path, owner)
    files.sync_directory(places.home)
    files.rename(places.data, work / _OLD)
    _move(places.state / LOCK_NAME, places.old_lock, files)
    files.sync_directory(places.state)
    kept = {file.name for file in backlog}
    gone = [file.as_history() for file in (*old.files, *old.history) if file.name not in kept]
    manifest = Manifest(base, (*gone, *backlog), (incr,), replids)
    manifests.replace(places.manifest, manifest, files)
    give_access(places.manifest, owner)
    KilledCompaction(places, files, manifest, (base.name, incr.name), is_new=True).move_in()


def end_compaction(places: Places, files: Files) -> bool:
    """End a compaction as the log decides; -> whether there was one.  Its directories are plain.

    The caller holds the directory's lock and has opened nothing in it.  Raises CorruptionError, OSError.
    """
    killed = KilledCompaction.find(places, files)
    if killed is None:
        return False
    killed.move_in()
    killed.clear_away()
    manifest = killed.manifest
    if killed.is_new and manifest.history != manifest.backlog:
        manifests.replace(places.manifest, replace(manifest, history=manifest.backlog), files)
        if is_there(places.data):
            give_access(places.manifest, places.data.stat())
    return True


@dataclass(frozen=True, slots=True)
class KilledCompaction:
    """The files that a killed compaction has left.  It is ended in two steps; only the second step deletes files.

    `is_new` is true if the log is the new one already; `names` are the planned base and incr, if there is a plan.
    """

    places: Places
    files: Files
    manifest: Manifest
    names: tuple[str, ...]
    is_new: bool

    @classmethod
    def find(cls, places: Places, files: Files) -> KilledCompaction | None:
        """-> the killed compaction, None when there is none.  Raises CorruptionError, OSError; changes nothing."""
        if not files.exists(places.work):
            return None
        manifest = manifests.load(places.manifest, files) or Manifest()
        names = _planned(places, files) or ()
        return cls(places, files, manifest, names, any(file.name in names[:1] for file in manifest.files))

    def move_in(self) -> list[tuple[Path, Path]]:
        """Move the store's tables to their place, unless tables are there, perhaps rebuilt from the log by a server.

        -> the renames, each with source and target.  Raises OSError.
        """
        places, files = self.places, self.files
        tables = places.work / (DATA_NAME if self.is_new else _OLD)
        if not self.names or files.exists(places.data) or not files.exists(tables):
            return []
        moves = [(tables, places.data)]
        if not self.is_new:
            moves.insert(0, (places.old_lock, places.state / LOCK_NAME))
        elif files.exists(places.state / LOCK_NAME):
            files.unlink(places.state / LOCK_NAME)
        done = [(source, target) for source, target in moves if _move(source, target, files)]
        files.sync_directory(places.state)
        return done

    def clear_away(self) -> None:
        """Delete the remaining files; if the log is the new one, also the history that is not kept.  Raises OSError."""
        places, files, home = self.places, self.files, self.places.home
        # without this, a power cut might bring back a manifest whose files are deleted below
        files.sync_directory(home)
        listed = {file.name for file in self.manifest.files}
        gone = [home / name for name in self.names if name not in listed]
        if self.is_new:
            kept = self.manifest.backlog
            gone += [home / file.name for file in self.manifest.history if file not in kept]
        for path in (places.base, *gone):
            if files.exists(path):
                files.unlink(path)
        shutil.rmtree(places.work)
        files.sync_directory(places.state)


def _move(source: Path, target: Path, files: Files) -> bool:
    """Rename a file if it exists; -> whether it did."""
    if not files.exists(source):
        return False
    files.rename(source, target)
    return True


def _planned(places: Places, files: Files) -> tuple[str, str] | None:
    """The names of the new base and incr; None when there is no complete plan.

    Files of these names may be deleted, so they must be names that a compaction gives.  Raises CorruptionError.
    """
    path = places.work / _PLAN
    if not files.exists(path):
        return None
    try:
        plan = json.loads(read_file(path, _MAX_PLAN_BYTES))
    except (ValueError, RecursionError):
        return None  # a torn plan: no file was moved yet, because the plan is synced before
    if not isinstance(plan, dict):
        raise CorruptionError(str(path), None, "is no plan of a compaction")
    return _name(plan, "base", places), _name(plan, "incr", places)


def _name(plan: dict[str, Any], kind: str, places: Places) -> str:
    name = plan.get(kind)
    bare = rf"{re.escape(LOG_FILE)}\.[0-9]{{1,19}}\.{kind}\.aof"
    if not isinstance(name, str) or not re.fullmatch(bare, name):
        raise CorruptionError(str(places.work / _PLAN), None, f"{name!r} is not the name of a {kind} file of the log")
    return name
