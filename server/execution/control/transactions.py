"""EXEC: the commands that a client has queued, run as one transaction."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.access.logins import denial_of
from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.slices import SlicedCommand, wait_for_view
from riverbed.server.commands.table import Command, Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.control.transaction_replies import (
    SpoolError,
    SpoolSpace,
    TransactionReplies,
    ViewNeededError,
)
from riverbed.server.protocol.encode import encode, error_line
from riverbed.server.protocol.replies import NULL_ARRAY, LongReply, Settled
from riverbed.store.errors import StateLostError

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.slices import Work
    from riverbed.server.execution.admission import Admission
    from riverbed.server.execution.calls import Calls
    from riverbed.server.execution.control.monitors import Monitors
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.waiters import Watches
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.tables.view import View

EXECABORT: Final = "EXECABORT Transaction discarded because of previous errors."
NO_ROOM: Final = "ERR EXEC was undone: {}"
NO_LONGER_ALLOWED: Final = (
    "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is "
    "no longer allowed for the following reason: {}"
)
_BECAUSE: Final = {
    Reason.COMMAND: "no permission to execute the command or subcommand",
    Reason.KEY: "no permission to touch the specified keys",
    Reason.CHANNEL: "no permission to access one of the channels used as arguments to the command",
}


class Transactions:
    """The transactions of one server's clients, and what they watch."""

    def __init__(
        self, core: Core, gate: Gate, admission: Admission, calls: Calls, watches: Watches, monitors: Monitors
    ) -> None:
        self.space = SpoolSpace(core.engine, lambda: core.config.maxclients - len(core.sessions))
        self._core = core
        self._engine = core.engine
        self._txn = core.txn
        self._stats = core.stats
        self._gate = gate
        self._admission = admission
        self._calls = calls
        self._failures = calls.failures
        self._watches = watches
        self._monitors = monitors

    def execute(self, request: Request) -> Reply:
        """Run what the session has queued; the log shows it as one transaction, between MULTI and EXEC.

        Transactions that only read have nothing to undo: one with a long reply waits for a view, and runs again.
        """
        session = request.session
        only_reads = not session.transaction.has_failed and all(
            client_command(argv).flags & Flag.READONLY for argv in session.transaction.queued or ()
        )
        replies = self._collect_replies(session, None, may_restart=only_reads)
        try:
            reply = self._execute(request, replies, keeps_queue=only_reads)
        except ViewNeededError:
            own = request.copy()
            sliced = SlicedCommand(own, self._execute_on_view(own, replies.added))
            sliced.step(own)
            return sliced
        except CommandError as error:  # none of it has been done
            self.discard(session)
            return (Settled(self._failures.refused(client_command(request.argv), error)[0]),)
        except BaseException:
            self.discard(session)
            raise
        self.discard(session)
        return reply

    def _execute_on_view(self, request: Request, noted: int) -> Work:
        """Run a transaction that only reads between two changes; its first `noted` commands are counted already."""
        try:
            view = yield from wait_for_view()
            replies = self._collect_replies(request.session, view, may_restart=False)
            return self._execute(request.copy(), replies, noted, keeps_queue=True)
        finally:
            self.discard(request.session)

    def _collect_replies(self, session: Session, view: View | None, *, may_restart: bool) -> TransactionReplies:
        count = len(session.transaction.queued or ())
        return TransactionReplies(self._engine, self.space, count, view, may_restart=may_restart)

    def _execute(self, request: Request, replies: TransactionReplies, noted: int = 0, *, keeps_queue: bool) -> Reply:
        """Run the queued commands if they may run; `replies` are released, or held by the reply."""
        mark, changes = len(self._txn.log), self._txn.changes
        try:
            queued = self._admit_queued(request)
            if queued is None:
                replies.release()
                return (Settled(encode(NULL_ARRAY, request.session.resp)),)
            if not keeps_queue:
                self.discard(request.session)
            self._run_queued(request, queued, replies, noted)
            reply = replies.reply()
        except SpoolError as error:
            if len(self._txn.log) > mark:
                self._failures.roll_back(mark, changes)
            text = NO_ROOM.format(error).replace("\n", " ")
            undone = self._answer_undone(replies, error_line(text.encode()))
            if undone is None:
                raise CommandError(text) from None
            return undone
        except (CommandError, StateLostError, ViewNeededError):
            replies.release()
            raise
        except Exception as error:
            if not replies.has_lasting:
                replies.release()
                raise
            line = self._failures.fault(client_command([b"EXEC"]), error, mark, changes)[0]
            undone = self._answer_undone(replies, line)
            assert undone is not None, "it has lasting replies"
            return undone
        self._stats.commands_processed += len(queued)
        self._calls.end_command(mark)
        return reply

    def _answer_undone(self, replies: TransactionReplies, line: bytes) -> Reply:
        """The reply to a transaction whose changes of tables were undone: the error `line` for each of their commands.

        Commands that change no table (SELECT, CONFIG SET) have run, and stay, so they keep their own replies, as in
        Redis all commands do beside one that failed.  None when there is no such command: the whole is an error then.
        """
        try:
            reply = replies.undone(line)
        except BaseException:
            replies.release()
            raise
        if reply is None:
            replies.release()
        return reply

    def _admit_queued(self, request: Request) -> list[list[bytes]] | None:
        """The queued commands, None when a watched key has changed.  Raises CommandError when they may not run."""
        session = request.session
        if session.transaction.has_failed:
            raise CommandError(EXECABORT)
        # any other change of a watched key, of its expiry time as well, has broken the watch by now
        if session.transaction.watch_broken or 0 < session.transaction.watch_until_ms <= request.now_ms:
            return None
        queued = session.transaction.queued or []
        self._admission.check_queued(session, queued)
        return queued

    def _run_queued(self, request: Request, queued: list[list[bytes]], replies: TransactionReplies, noted: int) -> None:
        session, room = request.session, request.room
        request.transaction = replies
        request.may_block = False
        try:
            for number, argv in enumerate(queued):
                command = client_command(argv)
                request.argv = argv
                request.db = session.db
                request.room = replies.room
                reply = self._call_queued(request, command, is_noted=number < noted)
                lasts = not command.rests_on_tables
                if reply.__class__ is LongReply:
                    replies.add_long(reply, lasts=lasts)
                else:
                    replies.add(encode(reply, session.resp), lasts=lasts)
                if self._monitors and number >= noted:
                    self._monitors.feed(session, command, argv)
        finally:
            request.transaction = None
            request.may_block = True
            request.room = room

    def _call_queued(self, request: Request, command: Command, *, is_noted: bool) -> Reply:
        """As `Calls.call`, but a bug's exception is raised, so that the whole transaction is undone."""
        stats = self._stats
        counters = stats.counters(command.full_name)
        begun = time.perf_counter_ns()
        try:
            if self._txn.follows and command.flags & Flag.WRITE:
                raise CommandError(self._gate.no_writes)  # since a REPLICAOF earlier in the transaction
            denial = denial_of(self._core, request.session, command, request.argv, in_transaction=True)
            if denial is not None:
                raise CommandError(NO_LONGER_ALLOWED.format(_BECAUSE[denial.reason]))
            reply = command.handler(request)
        except CommandError as error:
            if not is_noted:
                counters.failed += 1
                stats.count_error(error.text)
            reply = error.with_traceback(None)  # it has this frame, which has the reply: a circle around the request
        self._txn.end_command()
        if not is_noted:
            counters.record(time.perf_counter_ns() - begun)
        return reply

    def discard(self, session: Session) -> None:
        """End the session's transaction, without running it, and its watches."""
        self._watches.clear(session)
        session.end_transaction()

    def watch(self, session: Session, key: bytes, expire_ms: int) -> None:
        self._watches.add(session, key, expire_ms)

    def unwatch(self, session: Session) -> None:
        self._watches.clear(session)
