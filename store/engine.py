"""The engine ties log, tables and recovery together: open, commit a tick, checkpoint, purge, close.

    tick          mutators change LMDB's open transaction and list canonical commands
    commit        the list goes to the log in one write, durable as the fsync policy says; replies may go out
    checkpoint    LMDB is committed with the log position it covers, and the disk catches up, the log first

The state is the last checkpoint plus the log's tail.  `tables/data_file/power_loss.py` says what a power cut may
destroy of a checkpoint that is not durable yet.  The engine's parts are in `running/`:

    keeper         the log: when it is synced, and when its next file begins
    batches        what commands have logged, written as one
    statements     what its manifest states: replication ids and policy
    state          the way back to the state when something fails
    checkpoints    the checkpoint that is not durable yet
    refusals       why writes are refused; `space` measures
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import lmdb

from riverbed.store.disk.files import Files
from riverbed.store.disk.locks.held_directory import HeldDirectory, HeldFiles
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.disk.spill import Spill
from riverbed.store.errors import (
    TABLE_DAMAGE,
    DamagedRowError,
    LogWriteError,
    Refusal,
    ReplayError,
    StateLostError,
    StoreError,
    text_of,
)
from riverbed.store.format.meta import NO_DATABASE
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.log.append_log import Log
from riverbed.store.log.streamed.batch import StreamedBatch, data_of
from riverbed.store.options import Clock, Fsync, Options
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress, ignore
from riverbed.store.recovery import replay
from riverbed.store.recovery.opening import Opening, clear_away
from riverbed.store.recovery.replay import Execute
from riverbed.store.recovery.start_changes import made_directory
from riverbed.store.running.batches import Batches
from riverbed.store.running.checkpoint import Checkpoints, Durability
from riverbed.store.running.live_state import LiveState
from riverbed.store.running.log_keeper import LogKeeper
from riverbed.store.running.refusals import Refusals
from riverbed.store.running.space import Space
from riverbed.store.running.statements import Statements
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.purge import purge
from riverbed.store.tables.writing.commands import Mark


class Engine:
    """An open store.  Only one thread may use it."""

    def __init__(
        self, directory: Path, options: Options, execute: Execute, clock: Clock, files: Files | None = None
    ) -> None:
        """Lock `directory` and open what is in it, for `load`; raises what `open` raises."""
        self.directory = directory
        self.options = options
        self.clock = clock
        self.held = HeldDirectory(directory)
        self.held_log = HeldDirectory(directory / LOG_DIRECTORY)  # its files stay open without it
        self.files = files = files or HeldFiles(self.held)
        self._execute = execute
        self.space = Space(directory, options, files)
        self._changes_at_checkpoint = 0  # what `WriteTxn.changes` was
        self.is_loaded = False
        self.has_settled = False
        with contextlib.ExitStack() as undo:
            undo.enter_context(made_directory(directory))
            self._lock = undo.enter_context(contextlib.ExitStack())
            self._lock.enter_context(lock_directory(directory))
            self._opening = opening = Opening(undo, directory, options, execute, files)
            self.held.settle()
            self.txn = txn = opening.txn
            self.recovery = opening.report
            self.refusals = Refusals(self.space, txn)
            self.checkpoints = Checkpoints(clock, self.refusals)
            self.keeper = LogKeeper(opening.log, txn, options, clock, self.checkpoints, self.refusals)
            self.statements = Statements(self.keeper, txn, options)
            self.state = LiveState(directory, options, execute, self.keeper, txn)
            self.batches = Batches(self.keeper, txn, options, self.space, self.refusals, self.state)
            self._undo = undo.pop_all()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        execute: Execute,
        clock: Clock,
        options: Options | None = None,
        files: Files | None = None,
        progress: Progress = ignore,
    ) -> Engine:
        """Open `directory`, creating it if necessary, and bring its state up to the end of the log.

        `execute(txn, db, words)` runs one logged command.  `progress` is called now and then.  Raises LockedError,
        ForeignLogError, NoLogError, UnsafeFileError, VersionError, CorruptionError, ReplayError, any other StoreError,
        lmdb.Error, OSError.
        """
        engine = cls(directory, options or Options(), execute, clock, files)
        for _ in engine.load(progress):
            pass
        return engine

    def load(self, progress: Progress = ignore) -> Generator[None, None, None]:
        """Bring the state up to the end of the log, in steps; raises what `open` raises, and the directory is released.

        Between two steps commands may read the tables, and nothing may change them.  Closing the iterator ends the
        start as a kill does.
        """
        with self._undo as undo:
            self.held_log.require_writable()  # the next file of the log is made at the first write, or much later
            opening = self._opening
            yield from opening.load(undo, progress)
            undo.callback(self.keeper.end_quietly)
            self.state.changes_at_commit = self.txn.changes
            if self.recovery.unsaved is None:
                self.checkpoints.count += self.recovery.commands > 0
                self._changes_at_checkpoint = self.txn.changes
            else:
                self.space.uncommitted_bytes = self.recovery.uncommitted_bytes
                self.recovery.unsaved = self.checkpoints.refused(self.recovery.unsaved)
            self.has_settled = opening.killed is not None and clear_away(self.log, opening.killed)
            self.statements.begin_replids(self.checkpoint)
            self.statements.note_policy()
            self.keeper.begin_file_if_needed()
            self.held_log.settle()
            self.check_space()
            undo.pop_all()
        self.is_loaded = True

    @property
    def log(self) -> Log:
        """The log, another one after a full sync."""
        return self.keeper.log

    @property
    def tables(self) -> Tables:
        """The tables, others after a repair or a full sync."""
        return self.txn.tables

    @property
    def refusal(self) -> Refusal | None:
        """Why writes are refused; None while they are not."""
        return self.refusals.reason

    @property
    def offset(self) -> int:
        """The replication offset of the end of the log; 0 until the log was read to its end."""
        return self.log.end.offset if self.is_loaded else 0

    def set_fsync(self, fsync: Fsync) -> None:
        """Make the log durable before every reply, or later, from now on."""
        self.options.fsync = fsync
        if self.is_loaded:
            self.statements.note_policy()

    def set_role(self, *, is_replica: bool) -> None:
        """Follow another server from now on, or none."""
        self.options.is_replica = self.txn.follows = is_replica
        if self.is_loaded:
            self.statements.note_policy()

    # -- a tick --------------------------------------------------------------------------------------------------------

    def commit(self, now_ms: int) -> bool:
        """Write the commands logged since the last call, durable as the policy says; -> whether there were any.

        Raises LogWriteError: then all of them are undone, and writes are refused from now on.  If the error is an
        `UnknownOutcomeError`, the next start may still find the batch, so clients must get neither success nor error.
        """
        return self.is_loaded and self.batches.commit(now_ms)

    def new_spill(self) -> Spill:
        """A file for a batch of the primary that is too long for memory.  Raises OSError."""
        return Spill(self.directory, self.files.free_bytes, self.space.reserve_bytes)

    def apply(self, batches: Sequence[StreamedBatch]) -> None:
        """Execute batches of the primary and append them unchanged to the log; a replica's counterpart of `commit`.

        Raises ReplayError when one does not fit the state, LogWriteError when they cannot be written; all of them are
        undone then, but those that memory is too short to sync.  Raises TABLE_DAMAGE when the tables are damaged,
        MemoryError when it is too short to execute them, StateLostError.
        """
        self.state.require()
        txn = self.txn
        assert not txn.log, "a tick is open"
        self.restore_lost()
        txn.lose_observers()
        keep_expired, txn.keep_expired = txn.keep_expired, True  # the primary says when a key has expired
        appended = False
        try:
            if self.log.end.position == 0:  # before the batches select another database
                self.keeper.write_preface()
                if self.log.end.position == 0 and txn.log_db != NO_DATABASE and self.log.end.offset:
                    raise LogWriteError("a new file of the log could not be begun")
            for batch in batches:
                for requests in batch.pieces():
                    replay.require_selected(txn, requests)
                    replay.execute_requests(txn, self._execute, requests)
                    txn.drop_log()
            begin = self.log.end.position
            self.log.writer.append_verbatim(data_of(batches), batches[-1].offset)
            appended = True
            if self.options.fsync is Fsync.ALWAYS:
                self.keeper.sync()
        except LogWriteError as error:
            self.batches.undo(error, was_appended=appended)
            raise
        except Exception as error:
            self.state.restore(self.state.changes_at_commit)
            if appended:  # they are in the log and the state, and our replicas would miss them
                if self.batches.on_written is not None:
                    self.batches.on_written(batches)
                raise LogWriteError(f"batches that are in the log cannot be synced: {text_of(error)}") from error
            if isinstance(error, (ReplayError, lmdb.Error, MemoryError, *TABLE_DAMAGE)):
                raise
            if isinstance(error, OSError):
                raise LogWriteError(f"a long batch cannot be read again: {error}") from error
            raise ReplayError(f"{type(error).__name__} when executing a command of the primary: {error}") from error
        finally:
            txn.keep_expired = keep_expired
        self.batches.written(batches, self.log.end.position - begin)

    def rollback(self, now_ms: int, mark: Mark | None = None) -> None:
        """Undo the changes of the open transaction behind `mark`, all of this tick without one.

        The commands before it are committed first.  The state is then restored from the last checkpoint and the log's
        tail.  Raises LogWriteError when these commands cannot be written; then all of the tick is undone.
        """
        txn = self.txn
        mark = mark or Mark(0, 0, self.state.changes_at_commit)
        txn.unlogged = None
        txn.uncount_expired(mark.lines)
        del txn.log[mark.lines :]
        txn.extension_bytes, txn.changes = mark.extension_bytes, mark.changes
        # The undone lines may have selected it, and a file that begins now is not to begin with that: its preface comes
        # behind the replay.
        txn.log_db = NO_DATABASE
        try:
            self.commit(now_ms)
        except LogWriteError:
            raise
        except BaseException as error:  # the tables have what the lines that are gone did
            raise self.state.lose(f"nothing could be undone: {text_of(error)}") from error
        self.state.restore(txn.changes)

    def restore_lost(self) -> None:
        """Have back what the log has and memory has lost, see `LoggedCommands.lose`; call it between commands.

        Raises as `rollback` does.
        """
        if self.txn.has_lost:
            self.rollback(int(self.clock.time() * 1000), self.txn.mark())

    def reload(self, *, from_log: bool) -> None:
        """Read the state from the tables again, or make them again of the whole log, between ticks.

        The caller has checkpointed.  Raises StoreError, OSError, lmdb.Error with nothing changed; StateLostError.
        """
        changes = self.txn.changes
        if not from_log:
            self.state.restore(changes)
            return
        self.keeper.end_quietly()
        try:
            self.state.make_again()
            self.txn.changes = changes
            self.checkpoint()
        except (OSError, lmdb.Error, StoreError):
            self.state.restore(changes)
            raise
        self.check_space()

    def settle_in(self) -> None:
        """Do with replaced files what a start does behind the replay; a failure shows in `refusal`."""
        self.refusals.files_replaced(is_log_broken=self.log.broken)
        self.statements.set_replids(self.log.replids)
        self.statements.note_policy()
        self.keeper.begin_file_if_needed()
        self.check_space()

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    @property
    def needs_checkpoint(self) -> bool:
        """Whether anything was committed or purged since the last checkpoint."""
        return self.txn.position != self.log.end or self.txn.swept or self.txn.copied_bytes > 0

    @property
    def has_changes(self) -> bool:
        """Whether the tables differ from the last checkpoint, or will after the open tick."""
        return bool(self.txn.log) or self.needs_checkpoint

    @property
    def changes_since_checkpoint(self) -> int:
        """How many changes commands have made since the last checkpoint, as the `dirty` of Redis counts them.

        Handlers count what Redis counts for their command, often less than they change; nothing depends on the number.
        """
        return self.txn.changes - self._changes_at_checkpoint

    @property
    def lacks_checkpoint(self) -> bool:
        """Whether a checkpoint has failed, and so much was logged since the last one that it must not become more.

        An undo and the next start execute all of that once more.
        """
        return not self.checkpoints.last_ok and self.space.is_overdue

    @property
    def dirty_bytes(self) -> int:
        """The bytes logged or copied since the last checkpoint: about the size of LMDB's changes in memory."""
        return self.space.uncommitted_bytes + self.txn.copied_bytes

    def checkpoint(self) -> None:
        """Commit LMDB with the position of the log that it covers, and make both durable.  Call it between ticks.

        A failure leaves the state as it is, and writes are refused.  The next call tries again, unless the disk has
        failed.  Raises LogWriteError, lmdb.Error.
        """
        self.begin_checkpoint()
        self.end_checkpoint()

    def begin_checkpoint(self, *, divides_log: bool = False) -> Durability:
        """Commit LMDB; -> a Durability that a thread can `run` while ticks continue.

        The next file of the log begins there if it `divides_log`, or if the current one is full.

        Raises DamagedRowError when a row to be changed cannot be read; nothing is lost, and the next one tries again.

        Call `end_checkpoint` afterwards.  A caller that needs the checkpoint to be durable may call it earlier, and
        then waits for the disk; so does the next checkpoint.  Raises LogWriteError, lmdb.Error, StateLostError.
        """
        self.state.require()
        self.restore_lost()
        self.end_checkpoint()
        if self.log.writer.fd < 0:
            self.keeper.begin_file_if_needed()
        self.statements.note_policy()
        self.tables.retry_mark()
        if self.log.condition.refusal is not None:
            self.checkpoints.last_ok = False
            raise LogWriteError(self.log.condition.refusal)
        if self.tables.failure is not None:  # here the state is as it was: else all of the log's tail is executed again
            raise self.checkpoints.refused(lmdb.Error(self.tables.failure))
        if not self.tables.syncs_later:
            self.keeper.sync()  # before the tables, which are durable with their commit
        durability = Durability(self.log, self.tables, self.clock)
        commit_no = self.tables.commit_no
        try:
            self.txn.commit(self.log.end, synced=self.log.synced, is_synced=False)
        except BaseException as error:
            if self.tables.commit_no != commit_no:  # and the next transaction could not begin
                self.tables.distrust(f"no transaction could begin behind a commit: {error}")
            if isinstance(error, (DamagedRowError, lmdb.Error)):
                raise self._tables_failed(error) from None
            self.txn.lose()
            raise
        try:
            self.tables.committed()
        except lmdb.Error as error:
            raise self._tables_failed(error) from None
        self.space.uncommitted_bytes = 0
        self._changes_at_checkpoint = self.txn.changes
        self.txn.swept = False
        self.txn.copied_bytes = 0
        self.checkpoints.begun(durability)
        durability.next_file = self.keeper.begin_next_file() if divides_log else self.keeper.next_file_if_full()
        return durability

    def write_part(self) -> None:
        """Put rows that the next checkpoint would put into the tables, which commits them, see `WriteTxn.write_part`.

        Raises DamagedRowError, lmdb.Error, with the state as it was.
        """
        self._write_rows(self.txn.write_part)

    def write_behind(self) -> None:
        """Put rows that the next commands would put into the tables, between ticks.  Raises as `write_part` does."""
        self._write_rows(self.txn.write_behind)

    def _write_rows(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (DamagedRowError, lmdb.Error) as error:
            raise self._tables_failed(error) from None
        except BaseException:
            self.txn.lose()
            raise

    def _tables_failed(self, error: DamagedRowError | lmdb.Error) -> DamagedRowError | lmdb.Error:
        """Have the state as it was before LMDB could not write; -> the error to raise.  Raises StateLostError."""
        if isinstance(error, DamagedRowError):
            self.checkpoints.blocked()
            if self.txn.has_lost:
                self.state.restore(self.txn.changes)
            return error
        told = self.checkpoints.refused(error)
        try:
            self.state.restore(self.txn.changes)
        except StateLostError as lost:  # where LMDB could not write a meta page, it does not say why any more
            raise self.state.lose(f"the tables could not be written: {told}; {lost}") from lost
        return told

    def end_checkpoint(self) -> None:
        """Make the checkpoint that was begun durable, if there is one.  Raises LogWriteError, lmdb.Error."""
        self.keeper.end_checkpoint()

    def divide_log(self) -> LogPosition:
        """Begin a new file of the log, and a checkpoint there, so that LMDB holds exactly the state before that file.

        -> where the file begins.  Call it between ticks.  Checkpoint and file, unless they were there, are not durable
        yet; see `begin_checkpoint`.  `LogHome.has_incr` tells later whether there is the file.  Raises LogWriteError,
        lmdb.Error; then the log continues in the present file.
        """
        assert not self.txn.log, "a tick is open"
        self.end_checkpoint()
        self.log.listing.settle()
        if not self.log.is_fresh:
            self.begin_checkpoint(divides_log=True)
            return self.log.next_start
        if self.needs_checkpoint:
            self.begin_checkpoint()
        return self.log.end

    def check_space(self) -> None:
        """Refuse writes while less than the reserve is free, so that deleting and trimming still have room."""
        self.refusals.check_space()

    # -- the rest ------------------------------------------------------------------------------------------------------

    def purge(self, seconds: float) -> bool:
        """Delete dead rows for about `seconds`; -> whether any are left."""
        monotonic = self.clock.monotonic
        end = monotonic() + seconds
        while self.txn.free_some():
            if monotonic() >= end:
                return True
        if not self.txn.dead_rows.notes:
            return False
        self.txn.swept = True
        return purge(self.txn, lambda: monotonic() >= end)

    def close(self, *, save: bool = True) -> None:
        """Commit, checkpoint if `save`, make the log durable in any case, and release the directory."""
        try:
            try:
                if self.txn.log:
                    self.commit(int(self.clock.time() * 1000))
                if save and self.needs_checkpoint:
                    self.checkpoint()
            finally:
                if self.is_loaded and self.log.condition.refusal is None:  # else it is told already
                    self.keeper.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the directory without committing the open transaction."""
        with self._lock, contextlib.closing(self.log):
            try:
                self.keeper.end_quietly()
                self.txn.abort()
            finally:
                self.tables.close(is_log_durable=not self.log.unsynced_bytes)
