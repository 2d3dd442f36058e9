"""What commands ask of the executor: transactions, pauses, monitors, ends of waits and of connections."""

from __future__ import annotations

import asyncio
import enum
import time
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.slices import Slices, wait_for_view
from riverbed.server.commands.table import Command, Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.transaction_replies import SpoolError, TransactionReplies, ViewNeededError
from riverbed.server.protocol.encode import encode, error_line
from riverbed.server.protocol.replies import NULL_ARRAY, LongReply, Push, Settled
from riverbed.store.errors import LogWriteError, StateLostError
from riverbed.store.format.text import quoted

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.slices import Work
    from riverbed.server.execution.executor import Executor
    from riverbed.server.protocol.replies import Block, Reply
    from riverbed.store.tables.view import View

EXECABORT: Final = "EXECABORT Transaction discarded because of previous errors."
NO_ROOM: Final = "ERR EXEC was undone: {}"
UNBLOCKED: Final = "UNBLOCKED client unblocked via CLIENT UNBLOCK"
# These run during a pause too: one of them must be able to end it.
_NEVER_PAUSED: Final = (b"CLIENT", b"SHUTDOWN")


class Hold(enum.Enum):
    """Why writes wait, in a pause that no client can end."""

    FAILOVER = enum.auto()
    STOP = enum.auto()


class Controls:
    """The `Control` of one executor; see `server/commands/request.py` for what each method promises."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self.monitors: list[Session] = []
        self._pause_until_ms = 0
        self._pause_writes_only = False
        self._holds: set[Hold] = set()
        self._pause_timer: asyncio.TimerHandle | None = None
        self._paused: dict[Session, None] = {}

    @property
    def watches_everything(self) -> bool:
        """No request may take the fast path: a client monitors, or there is a pause."""
        return bool(self.monitors or self.is_pausing)

    # -- transactions --------------------------------------------------------------------------------------------------

    def execute_queued(self, request: Request) -> Reply:
        """Run what the session has queued; the log shows it as one transaction, between MULTI and EXEC.

        Transactions that only read have nothing to undo: one with a long reply waits for a view, and runs again.
        """
        session = request.session
        only_reads = not session.queue_failed and all(
            client_command(argv).flags & Flag.READONLY for argv in session.queued or ()
        )
        replies = self._collect_replies(session, None, may_restart=only_reads)
        try:
            reply = self._execute(request, replies, keeps_queue=only_reads)
        except ViewNeededError:
            own = request.copy()
            slices = Slices(own, self._execute_on_view(own, replies.added))
            slices.step(own)
            return slices
        except CommandError as error:  # none of it has been done
            self.discard(session)
            return (Settled(self._executor.undoing.refused(client_command(request.argv), error)[0]),)
        except BaseException:
            self.discard(session)
            raise
        self.discard(session)
        return reply

    def _execute_on_view(self, request: Request, told: int) -> Work:
        """Run a transaction that only reads between two changes; its first `told` commands are accounted for."""
        try:
            view = yield from wait_for_view()
            replies = self._collect_replies(request.session, view, may_restart=False)
            return self._execute(request.copy(), replies, told, keeps_queue=True)
        finally:
            self.discard(request.session)

    def _collect_replies(self, session: Session, view: View | None, *, may_restart: bool) -> TransactionReplies:
        executor = self._executor
        count = len(session.queued or ())
        return TransactionReplies(executor.engine, executor.spool_space, count, view, may_restart=may_restart)

    def _execute(self, request: Request, replies: TransactionReplies, told: int = 0, *, keeps_queue: bool) -> Reply:
        """Run the queued commands if they may; `replies` are released, or held by the reply."""
        executor = self._executor
        mark = len(executor.txn.log)
        try:
            queued = self._admit_queued(request)
            if queued is None:
                replies.release()
                return (Settled(encode(NULL_ARRAY, request.session.resp)),)
            if not keeps_queue:
                self.discard(request.session)
            self._run_queued(request, queued, replies, told)
            reply = replies.reply()
        except SpoolError as error:
            if len(executor.txn.log) > mark:
                executor.undoing.roll_back(mark)
            refusal = CommandError(NO_ROOM.format(error).replace("\n", " "))
            return self._answer_undone(replies, error_line(refusal.text), refusal)
        except (CommandError, StateLostError, ViewNeededError):
            replies.release()
            raise
        except Exception as error:
            if not replies.has_lasting:
                replies.release()
                raise
            line = executor.undoing.fault(client_command([b"EXEC"]), error, mark)[0]
            return self._answer_undone(replies, line, error)
        executor.stats.commands_processed += len(queued)
        executor.end_command(mark)
        return reply

    def _answer_undone(self, replies: TransactionReplies, line: bytes, error: Exception) -> Reply:
        """The reply to a transaction whose changes of tables were undone: this error for each command behind them.

        Commands that change no table (SELECT, CONFIG SET) have run, and stay: their own replies say so, as in Redis
        those of all commands do beside one that failed.  When there is none, `error` is raised.
        """
        try:
            reply = replies.undone(line)
        except BaseException:
            replies.release()
            raise
        if reply is None:
            replies.release()
            raise error
        return reply

    def _admit_queued(self, request: Request) -> list[list[bytes]] | None:
        """The queued commands, None when a watched key has changed.  Raises CommandError when they may not run."""
        session = request.session
        if session.queue_failed:
            raise CommandError(EXECABORT)
        # any other change of a watched key, of its deadline as well, has broken the watch by now
        if session.watch_broken or 0 < session.watch_until_ms <= request.now_ms:
            return None
        queued = session.queued or []
        self._executor.admission.check_queued(session, queued)
        return queued

    def _run_queued(self, request: Request, queued: list[list[bytes]], replies: TransactionReplies, told: int) -> None:
        session, room = request.session, request.room
        request.transaction = replies
        request.may_block = False
        try:
            for number, argv in enumerate(queued):
                command = client_command(argv)
                request.argv = argv
                request.db = session.db
                request.room = replies.room
                reply = self._call_queued(request, command, is_told=number < told)
                lasts = not command.rests_on_tables
                if reply.__class__ is LongReply:
                    replies.add_long(reply, lasts=lasts)
                else:
                    replies.add(encode(reply, session.resp), lasts=lasts)
                if self.monitors and number >= told:
                    self.feed_monitors(session, command, argv)
        finally:
            request.transaction = None
            request.may_block = True
            request.room = room

    def _call_queued(self, request: Request, command: Command, *, is_told: bool) -> Reply:
        """As `Executor.call`, but a bug's exception rises, so that the whole transaction is undone."""
        stats, replication = self._executor.stats, self._executor.replication
        counters = stats.counters(command.full_name)
        begun = time.perf_counter_ns()
        try:
            if replication.is_replica and command.flags & Flag.WRITE:
                raise CommandError(replication.write_refusal())  # since a REPLICAOF before it in the transaction
            reply = command.handler(request)
        except CommandError as error:
            if not is_told:
                counters.failed += 1
                stats.count_error(error.text)
            reply = error
        self._executor.txn.end_command()
        if not is_told:
            counters.record(time.perf_counter_ns() - begun)
        return reply

    def discard(self, session: Session) -> None:
        """End the session's transaction, without running it, and its watches."""
        self._executor.watches.clear(session)
        session.end_transaction()

    def watch(self, session: Session, key: bytes, expire_ms: int) -> None:
        self._executor.watches.add(session, key, expire_ms)

    def unwatch(self, session: Session) -> None:
        self._executor.watches.clear(session)

    # -- clients -------------------------------------------------------------------------------------------------------

    def forget(self, session: Session) -> None:
        if session in self._executor.waiters:
            self._executor.waiters.release(session)
        self._paused.pop(session, None)
        session.paused = False
        self.discard(session)
        self._executor.context.pubsub.forget(session)
        if session in self.monitors:
            self.monitors.remove(session)
            session.is_monitor = False
            self._executor.refresh_special()
        session.refresh()

    def kill(self, session: Session) -> None:
        session.begin_closing()
        if session.blocked is not None:
            self._executor.waiters.release(session)
        self._executor.slicing.drop(session)
        session.drop_input()
        self._executor.context.pubsub.forget(session)
        session.peer.close_soon()

    def unblock(self, session: Session, *, error: bool) -> bool:
        if session.blocked is None:
            return False
        timed_out = session.blocked.on_timeout
        in_time = NULL_ARRAY if timed_out is None else timed_out()
        self._executor.wakeups.end_settled(session, CommandError(UNBLOCKED) if error else in_time)
        return True

    def blocked_clients(self) -> int:
        return len(self._executor.waiters)

    def awaited_keys(self) -> int:
        return self._executor.waiters.key_count

    def watched_keys(self) -> int:
        return len(self._executor.watches)

    # -- pauses --------------------------------------------------------------------------------------------------------

    def pause(self, until_ms: int, *, writes_only: bool) -> None:
        """A second pause may only lengthen and widen the first, as in Redis."""
        self._pause_writes_only = writes_only and (self._pause_writes_only or not self._pause_until_ms)
        self._pause_until_ms = max(until_ms, self._pause_until_ms)
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        delay = max(self._pause_until_ms / 1000 - self._executor.clock.time(), 0)
        self._pause_timer = self._loop.call_later(delay, self.unpause)
        self._executor.refresh_special()

    def unpause(self) -> None:
        self._pause_until_ms = 0
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        self._release()

    def hold_writes(self, why: Hold) -> None:
        """Have writes wait, until `release_writes`."""
        self._holds.add(why)
        self._executor.refresh_special()

    def release_writes(self, why: Hold) -> None:
        self._holds.discard(why)
        self._release()

    def _release(self) -> None:
        """Have those who were held back try again; some may be held back by what is left."""
        self._executor.refresh_special()
        self._executor.want_tick()
        paused, self._paused = self._paused, {}
        for session in paused:
            session.paused = False
            session.refresh()
            self._executor.resume(session)

    @property
    def are_writes_held(self) -> bool:
        return bool(self._holds)

    @property
    def is_pausing(self) -> bool:
        return self._pause_until_ms > 0 or bool(self._holds)

    @property
    def stalls_slices(self) -> bool:
        """Whether commands under way in slices wait too.  A stop has them go on, as it leaves none half done."""
        return self.is_pausing and Hold.STOP not in self._holds

    def holds_back(self, session: Session, command: Command) -> bool:
        """Whether a pause makes this command, and with it the client, wait."""
        if not self.is_pausing or command.name.startswith(_NEVER_PAUSED) or session.is_replica:
            return False
        only_writes = self._pause_writes_only or not self._pause_until_ms
        if only_writes and not _writes(session, command):
            return False
        self._paused[session] = None
        session.paused = True
        session.refresh()
        return True

    # -- monitors ------------------------------------------------------------------------------------------------------

    def monitor(self, session: Session) -> None:
        if session not in self.monitors:
            self.monitors.append(session)
            session.is_monitor = True
            session.refresh()
            self._executor.refresh_special()

    def feed_monitors(self, session: Session, command: Command, argv: list[bytes]) -> None:
        """Show a command that has run to every monitor, without its secrets.  Redis hides administration as well."""
        if command.flags & (Flag.SKIP_MONITOR | Flag.ADMIN):
            return
        words = " ".join(map(quoted, command.shown(argv))).encode()
        now, place = self._executor.clock.time(), session.peer.address.encode()
        line = Push(b"+%.6f [%d %b] %b\r\n" % (now, session.db.number, place, words))
        for monitor in self.monitors:
            self._executor.push(monitor, line)

    # -- the server ----------------------------------------------------------------------------------------------------

    def views(self) -> tuple[int, int]:
        return self._executor.views.open_count, self._executor.slicing.count_waiting_for_view

    def checkpoint(self) -> None:
        try:
            self._executor.upkeep.checkpoint_now()
        except (LogWriteError, lmdb.Error) as error:
            raise CommandError(f"ERR the checkpoint failed: {error}") from None

    def checkpoint_later(self) -> None:
        self._executor.upkeep.checkpoint_later()

    def take_snapshot(self, request: Request, name: str | None, keep: int | None) -> Block:
        return self._executor.snapshots.begin(request, name, keep)

    def list_snapshots(self, request: Request) -> Block:
        return self._executor.snapshots.tell_list(request)

    def rewrite_log(self, *, later: bool) -> None:
        if later:
            self._executor.rewriting.schedule()
        else:
            self._executor.rewriting.start()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _writes(session: Session, command: Command) -> bool:
    """Whether a command writes, or is the EXEC of one that does; Sentinel's orders are a transaction that does not."""
    if command.name == b"EXEC":
        return any(client_command(argv).flags & Flag.WRITE for argv in session.queued or ())
    return bool(command.flags & Flag.WRITE)
