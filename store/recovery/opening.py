"""The start of a store: finds its log and tables, creates missing ones, and brings the tables up to the log.

    refuse foreign files                             nothing has changed yet
    end the work of a killed program                 undone when the start fails, see `recovery/start_changes.py`
    replay the log beyond the tables
    commit the result, durably                       from here on commits may not be durable yet

This module knows no tick, and no checkpoint but this one; `engine.py` continues from here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import lmdb

from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import Files
from riverbed.store.errors import LogWriteError, NoLogError
from riverbed.store.log.append_log import Log
from riverbed.store.log.takeover import require_ours
from riverbed.store.options import Options
from riverbed.store.progress import Progress
from riverbed.store.recovery import replay
from riverbed.store.recovery.replay import Execute, RecoveryReport
from riverbed.store.recovery.start_changes import StartChanges
from riverbed.store.swap import KilledCompaction, Places
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.environment import Tables


class Opening:
    """A start of a store: `log`, `tables` and `txn` are there at once, their contents after `load`."""

    def __init__(
        self, undo: contextlib.ExitStack, directory: Path, options: Options, execute: Execute, files: Files
    ) -> None:
        """Open the parts in `directory`, which is locked; `undo` gets the steps that a later failure must undo.

        Raises ForeignLogError, UnsafeFileError, VersionError, CorruptionError, another StoreError when the disk has no
        room for a copy of the tables, lmdb.Error, OSError.
        """
        places = Places(directory)
        places.require_plain()
        require_ours(directory, files)
        self._directory = directory
        self._options = options
        self._execute = execute
        self.log = find_log(directory, options, files)
        undo.callback(self.log.close)
        was_cut = self.log.follows_power_cut = power_loss.may_follow_power_cut(places.state)
        # a compaction that is moved in but not cleared away yet
        self.killed = KilledCompaction.find(places, files)
        self._changes = undo.enter_context(StartChanges(places.state, files))
        moved = self._changes.resolve_doubt()
        self._may_lack_commit = was_cut or self._changes.has_gone_back
        if self.killed is not None:
            self._changes.move_in(self.killed)
        self.tables = Tables(directory, options.map_bytes, commits_later=True)
        undo.callback(self.tables.close)
        self.txn = WriteTxn(self.tables)
        undo.callback(self.txn.abort)
        power_loss.prepare_use(places.state)
        self.txn.configure_nodes(options.node_max_entries, options.node_max_bytes)
        self.report = RecoveryReport(moved_files=moved)

    def load(self, undo: contextlib.ExitStack, progress: Progress) -> Iterator[None]:
        """Bring the tables up to the log, in the steps of `recovering`; `tables` are others then.

        Raises NoLogError, CorruptionError, ReplayError, another StoreError when the disk has no room for a copy of the
        log, lmdb.Error, OSError.
        """
        txn = self.txn
        yield from self._recover(progress)

        def take_back_log(_: object, error: BaseException | None, traceback: TracebackType | None) -> None:
            if isinstance(error, Exception):
                self.log.take_back()

        undo.push(take_back_log)
        self._save()
        txn.abort()
        self.tables.close()
        self.tables = Tables(self._directory, self._options.map_bytes, syncs_later=True)
        undo.callback(self.tables.close)
        undo.callback(txn.abort)
        txn.change_tables(self.tables)
        if self.report.unsaved is not None:
            again = RecoveryReport()
            yield from replay.recovering(self.log, txn, self._execute, again, commits=False, progress=progress)
            self._renumber()

    def _recover(self, progress: Progress) -> Iterator[None]:
        """Replay the log beyond the tables; create the log of a new store.

        Raises StoreError, OSError; then nothing has changed but what `StartChanges` undoes.
        """
        log, txn = self.log, self.txn
        if not log.is_missing:
            # without replication ids, no start with these tables was completed
            commits = txn.tables.is_new or txn.replids is None
            steps = replay.recovering(log, txn, self._execute, self.report, commits=commits, progress=progress)
            with contextlib.nullcontext() if commits else self._changes.uncommitted(txn.tables):
                yield from steps
            return
        if txn.position is not None or power_loss.is_marked(txn.tables.path):  # the log is created before the mark
            raise NoLogError(
                f"there is no log in {log.home.path}, and the tables hold the state of one: "
                f"`riverbed check {self._directory} --repair` makes a new log of them"
            )
        log.create()

    def _save(self) -> None:
        """Commit the recovered state, durably.

        Where that fails the tables stay behind the log: the server answers reads, and tries again.
        """
        self._renumber()
        if self.report.commands or self._may_lack_commit:
            try:
                self.txn.commit(self.log.end, synced=self.log.synced)
            except lmdb.Error as error:
                self.report.unsaved = error.with_traceback(None)  # which would keep the closed tables in memory

    def _renumber(self) -> None:
        """Have the next commit say that streams have other numbers, if they may."""
        if self._may_lack_commit:
            # Readers may have seen the commit that was lost.  The log tells no number, and not what took one in vain.
            self.txn.renumber()


def find_log(directory: Path, options: Options, files: Files) -> Log:
    """The log in `directory`, which may not exist yet.  Raises CorruptionError, OSError."""
    return Log.find(directory, files, segment_bytes=options.segment_bytes, load_truncated=options.load_truncated)


def clear_away(log: Log, killed: KilledCompaction) -> bool:
    """Delete what a killed compaction has left; -> whether that worked.  If not, the next start does it."""
    try:
        killed.clear_away()
        log.history.forget_deleted()
    except (OSError, LogWriteError):
        return False
    return True
