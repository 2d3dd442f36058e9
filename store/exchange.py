"""Replaces the tables of a running store, or all of it: the last step of a repair, and of a full sync.

A repair has made tables again of the log, which stays.  A full sync has received another store:

    DIR/state/          \\                 DIR/SOURCE/state/           \\
    DIR/appendonlydir/   > is replaced by  DIR/SOURCE/appendonlydir/    > which is not used afterwards
    ...                 /                  ...                         /

The log decides which store is valid.  Its manifest is replaced in one step.  The old tables are moved away before that
step, and the new tables are moved in after it.  So a crash in between costs a rebuild of the tables from the log that
the manifest lists, and never mixes both stores.  Files of the other log are listed in the manifest's history, to be
deleted: before the step the files of the new log, after it the files of the old log.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from riverbed.store.disk.files import Files
from riverbed.store.disk.ownership import keep_access
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST, REPLACED_TABLES, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests
from riverbed.store.recovery.opening import find_log

if TYPE_CHECKING:
    from riverbed.store.engine import Engine


def exchange_tables(engine: Engine, made: Path, put_aside: Path) -> None:
    """Replace the tables by those in `made`, which our log has made; the old ones move to `put_aside`.

    Call it between ticks.  `made` is closed, durable, and on the disk of our directory.  What the log holds beyond
    it is replayed.  Raises OSError when the old ones cannot be moved and stay, StateLostError: the next start finds
    the old tables, the new ones, or the log alone.
    """
    state, files = engine.directory / STATE_DIRECTORY, engine.files
    with engine.state.at_risk("repaired tables could not be put in place"):
        engine.state.let_go()
        failure = engine.tables.failure  # also of the checkpoint that has just ended
        keep_access(made, state)
        kept = _move_aside(state, put_aside, files)
        if kept is None:
            files.rename(made, state)
        files.sync_directory(engine.directory)
        doubt = failure if kept is not None else None  # of the same tables as before: the disk may lack pages of them
        engine.state.take(may_commit=doubt is None)
        if kept is None:
            engine.space.uncommitted_bytes = 0  # what was executed beyond the new ones is little
        if doubt is not None:
            engine.tables.distrust(doubt)
    engine.settle_in()
    if kept is not None:
        raise kept


def _move_aside(state: Path, put_aside: Path, files: Files) -> OSError | None:
    """Move the closed tables; -> why that failed, with the tables where they were."""
    try:
        if files.exists(state):  # else an operator has deleted them
            files.rename(state, put_aside)
    except OSError as error:
        return error
    return None


def adopt(engine: Engine, source: Path) -> None:
    """Replace the store by the one in `source`, between ticks; it is closed, durable and in our directory.

    `log`, `tables` and the tables of `txn` are new objects then; the old ones must not be read any more.  The new
    log beyond the last checkpoint is replayed.  Raises StateLostError: the next start finds one store or the other.
    """
    directory, files = engine.directory, engine.files
    with engine.state.at_risk("the full sync could not be put in place"):
        engine.state.let_go()
        engine.log.close()
        for name in (STATE_DIRECTORY, LOG_DIRECTORY):
            keep_access(source / name, directory / name)
        _move_in(directory, source, files)
        engine.state.take(find_log(directory, engine.options, files))
        engine.space.uncommitted_bytes = 0  # but for a little that was executed beyond the tables
    engine.settle_in()


def _move_in(directory: Path, source: Path, files: Files) -> None:
    """Replace the log and the tables of `directory` by those of its subdirectory `source`.

    Both stores are closed and durable, and their log files have different numbers and names.  The old tables move to
    `source`.  Raises CorruptionError with nothing changed, OSError.
    """
    home, arriving_home = directory / LOG_DIRECTORY, source / LOG_DIRECTORY
    path = home / LOG_MANIFEST
    old = manifests.load(path, files) or manifests.Manifest()
    new = manifests.load(arriving_home / LOG_MANIFEST, files)
    listed = (*old.files, *old.history)
    if new is None or {file.name for file in listed} & {file.name for file in new.files}:
        raise CorruptionError(str(arriving_home), None, "these files cannot stand beside those that are here")
    arriving = tuple(file.as_history() for file in new.files)
    manifests.replace(path, replace(old, history=(*old.history, *arriving)), files)
    for file in new.files:
        files.rename(arriving_home / file.name, home / file.name)
    files.sync_directory(home)
    files.rename(directory / STATE_DIRECTORY, source / REPLACED_TABLES)
    files.sync_directory(directory)
    leaving = tuple(file.as_history() for file in listed)
    manifests.replace(path, replace(new, history=leaving), files)
    files.rename(source / STATE_DIRECTORY, directory / STATE_DIRECTORY)
    files.sync_directory(directory)
