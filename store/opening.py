"""The start of a store: its log and its tables found, made where they are missing, and brought to the same place.

    refuse what is not ours                          nothing has changed yet
    settle what a killed program has left            taken back when the start fails, see `recovery/start_changes.py`
    execute what the log holds beyond the tables
    commit that, durably                             from here on commits may be ahead of the disk

Knows no tick, and no checkpoint but this one; `engine.py` goes on from here.
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
from riverbed.store.recovery import replay as recovery
from riverbed.store.recovery.replay import Execute, RecoveryReport
from riverbed.store.recovery.start_changes import StartChanges
from riverbed.store.swap import KilledCompaction, Places
from riverbed.store.tables import power_loss as powercut
from riverbed.store.tables.environment import Tables


class Opened(NamedTuple):
    """What a start has made."""

    log: Log
    tables: Tables
    txn: WriteTxn
    recovery: RecoveryReport
    is_saved: bool  # what was recovered is in the tables; else the disk was full, and the tables are behind the log
    killed: KilledCompaction | None  # one that the log has gone on from: its end is still to come


def open_parts(undo: contextlib.ExitStack, directory: Path, options: Options, execute: Execute, files: Files) -> Opened:
    """Open and recover `directory`, which is locked; `undo` gets what a start that fails later takes back.

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
    report = _recover(directory, log, txn, execute, changes)

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
    """The log in `directory`, also when there is none yet.  Raises CorruptionError, OSError."""
    return Log.find(directory, files, segment_bytes=options.segment_bytes, load_truncated=options.load_truncated)


def _recover(directory: Path, log: Log, txn: WriteTxn, execute: Execute, changes: StartChanges) -> RecoveryReport:
    """Execute what the log holds beyond the tables; make the log if this is to be a new store.

    Raises StoreError, OSError; then nothing has changed but what `StartChanges` takes back.
    """
    if not log.is_missing:
        if txn.tables.is_new or txn.replids is None:  # no start has come to its end with them
            return recovery.recover(log, txn, execute)
        with changes.uncommitted(txn.tables):
            return recovery.recover(log, txn, execute, commits=False)
    if txn.position is not None or powercut.is_marked(txn.tables.path):  # the log is made before the mark
        raise NoLogError(
            f"there is no log in {log.home.path}, and the tables hold what was in one: "
            f"`riverbed check {directory} --repair` makes a new log of them"
        )
    log.create()
    return RecoveryReport()


def _save(log: Log, txn: WriteTxn, report: RecoveryReport) -> bool:
    """Commit what was recovered, durably; -> whether that worked.

    On a full disk the tables stay behind the log: what there is is served, and writes are refused.
    """
    if report.commands:
        try:
            txn.commit(log.end, synced=log.synced)
        except lmdb.Error:
            return False
    return True


def clear_away(log: Log, killed: KilledCompaction) -> bool:
    """-> whether that is the end of the compaction; else the next start ends it."""
    try:
        killed.clear_away()
        log.forget_history()
    except (OSError, LogWriteError):
        return False
    return True
