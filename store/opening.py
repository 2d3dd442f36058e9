"""The start of a store: finds its log and tables, creates missing ones, and brings the tables up to the log.

    refuse foreign files                             nothing has changed yet
    end the work of a killed program                 undone when the start fails, see `recovery/start_changes.py`
    replay the log beyond the tables
    commit the result, durably                       from here on commits may not be durable yet

This module knows no tick, and no checkpoint but this one; `engine.py` continues from here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import lmdb

from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import Files
from riverbed.store.errors import LogWriteError, NoLogError
from riverbed.store.log.append_log import Log
from riverbed.store.log.takeover import require_ours
from riverbed.store.options import Options
from riverbed.store.progress import Progress
from riverbed.store.recovery import replay as recovery
from riverbed.store.recovery.replay import Execute, RecoveryReport
from riverbed.store.recovery.start_changes import StartChanges
from riverbed.store.swap import KilledCompaction, Places
from riverbed.store.tables import power_loss as powercut
from riverbed.store.tables.environment import Tables


class Opened(NamedTuple):
    """The parts of a store after a start."""

    log: Log
    tables: Tables
    txn: WriteTxn
    recovery: RecoveryReport
    is_saved: bool  # the tables hold the recovered state; else the disk was full, and the tables are behind the log
    killed: KilledCompaction | None  # a compaction that is moved in but not cleared away yet


def open_parts(
    undo: contextlib.ExitStack,
    directory: Path,
    options: Options,
    execute: Execute,
    files: Files,
    progress: Progress,
) -> Opened:
    """Open and recover `directory`, which is locked; `undo` gets the steps that a later failure must undo.

    Raises ForeignLogError, UnsafeFileError, VersionError, CorruptionError, ReplayError, OSError.
    """
    places = Places(directory)
    places.require_plain()
    require_ours(directory, files)
    log = find_log(directory, options, files)
    undo.callback(log.close)
    killed = KilledCompaction.find(places, files)
    changes = undo.enter_context(StartChanges(places.state, files))
    changes.resolve_doubt()
    if killed is not None:
        changes.move_in(killed)
    tables = Tables(directory, options.map_bytes, commits_later=True)
    undo.callback(tables.close)
    txn = WriteTxn(tables)
    undo.callback(txn.abort)
    powercut.prepare_use(places.state)
    txn.configure_nodes(options.node_max_entries, options.node_max_bytes)
    report = _recover(directory, log, txn, execute, changes, progress)

    def take_back_log(_: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, Exception):
            log.take_back()

    undo.push(take_back_log)
    is_saved = _save(log, txn, report)
    txn.abort()
    tables.close()
    tables = Tables(directory, options.map_bytes, syncs_later=True)
    undo.callback(tables.close)
    undo.callback(txn.abort)
    txn.change_tables(tables)
    if not is_saved:
        recovery.recover(log, txn, execute, commits=False)
    return Opened(log, tables, txn, report, is_saved, killed)


def find_log(directory: Path, options: Options, files: Files) -> Log:
    """The log in `directory`, which may not exist yet.  Raises CorruptionError, OSError."""
    return Log.find(directory, files, segment_bytes=options.segment_bytes, load_truncated=options.load_truncated)


def _recover(
    directory: Path, log: Log, txn: WriteTxn, execute: Execute, changes: StartChanges, progress: Progress
) -> RecoveryReport:
    """Replay the log beyond the tables; create the log of a new store.

    Raises StoreError, OSError; then nothing has changed but what `StartChanges` undoes.
    """
    if not log.is_missing:
        if txn.tables.is_new or txn.replids is None:  # no start with them was completed
            return recovery.recover(log, txn, execute, progress=progress)
        with changes.uncommitted(txn.tables):
            return recovery.recover(log, txn, execute, commits=False, progress=progress)
    if txn.position is not None or powercut.is_marked(txn.tables.path):  # the log is created before the mark
        raise NoLogError(
            f"there is no log in {log.home.path}, and the tables hold the state of one: "
            f"`riverbed check {directory} --repair` makes a new log of them"
        )
    log.create()
    return RecoveryReport()


def _save(log: Log, txn: WriteTxn, report: RecoveryReport) -> bool:
    """Commit the recovered state, durably; -> whether that worked.

    On a full disk the tables stay behind the log: the server answers reads and refuses writes.
    """
    if report.commands:
        try:
            txn.commit(log.end, synced=log.synced)
        except lmdb.Error:
            return False
    return True


def clear_away(log: Log, killed: KilledCompaction) -> bool:
    """Delete what a killed compaction has left; -> whether that worked.  If not, the next start does it."""
    try:
        killed.clear_away()
        log.forget_history()
    except (OSError, LogWriteError):
        return False
    return True
