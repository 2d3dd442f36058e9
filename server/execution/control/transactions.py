"""EXEC: the commands that a client has queued, run as one transaction.

A long transaction ends its turn now and then, in the middle, for `beside.py`; nothing uses the tables or commits before
it goes on.  Behind a command that changes users or settings it ends none: a client that logs in beside it must find no
user, and no password, that is there in the middle of the transaction only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.access.interface import Reason
from riverbed.server.commands.access.logins import denial_of
from riverbed.server.commands.dispatch import append_commands, client_command
from riverbed.server.commands.slices import SlicedCommand, Wish, begun, wait_for_view
from riverbed.server.commands.table import Command, Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.calls import shown_words
from riverbed.server.execution.control.logged_lines import LoggedTransaction
from riverbed.server.execution.control.spool import SpoolError, SpoolSpace
from riverbed.server.execution.control.transaction_replies import TransactionReplies, ViewNeededError
from riverbed.server.protocol.encode import array_header, encode, error_line
from riverbed.server.protocol.replies import NULL_ARRAY, FirstReplies, LongReply, Settled
from riverbed.store.errors import StateLostError
from riverbed.store.wire import behind

if TYPE_CHECKING:
    from collections.abc import Generator

    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.slices import Work
    from riverbed.server.execution.admission import Admission
    from riverbed.server.execution.calls import Calls
    from riverbed.server.execution.control.monitors import Monitors
    from riverbed.server.execution.control.watches import Watches
    from riverbed.server.execution.gate import Gate
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.stats.stats import CommandCounters
    from riverbed.store.tables.view import View
    from riverbed.store.tables.writing.commands import Mark
    from riverbed.store.wire import Neighbours, Requests

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
# A turn of a transaction ends behind the command, or the slice of one, in which so much time has passed.
TURN_NS = 5_000_000
_NEVER: Final = 1 << 62
_KEPT_BYTES: Final = 1000  # of a command whose reply is read from a view; with more it is not timed while it is sent


class _Begun:
    """What has run of a transaction whose other commands are queued."""

    def __init__(self, mark: Mark, first: FirstReplies) -> None:
        self.mark = mark  # before it
        self.first = first


def _exec() -> Command:
    return client_command([b"EXEC"])


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
        self._appends = append_commands(core.stats)

    def execute(self, request: Request) -> Reply:
        """Run what the session has queued; the log shows it as one transaction, between MULTI and EXEC.

        Transactions that only read have nothing to undo: one with a long reply waits for a view, and runs again.
        """
        run = request.run
        return self._execute_queued(request, None) if run is None else self._execute_whole(request, run)

    def _execute_whole(self, request: Request, run: Neighbours) -> Reply:
        """Run neighbours that were not queued, as their MULTI and EXEC have come with them.

        An XADD that is not simple, see `Database.append_run`, and those behind it run as if they had been queued.
        """
        argv, mark = request.argv, self._txn.mark()
        first = self._run_neighbours(request, run)
        if first.done == len(run):
            logged = LoggedTransaction(self._txn, mark.lines)
            logged.has_runs = _may_be_several(first)
            logged.end()
            self._stats.commands_processed += first.done
            return (array_header(first.done) + first.replies,)
        request.argv, request.run = argv, None
        request.session.transaction.begin_with(behind(run, first.done), len(run), only_reads=False)
        return self._execute_queued(request, _Begun(mark, first))

    def _execute_queued(self, request: Request, ran: _Begun | None) -> Reply:
        inner = request.copy()  # of each queued command in turn
        inner.in_transaction, inner.may_block = True, False
        reply = begun(inner, self._work(inner, ran))
        if reply.__class__ is SlicedCommand:
            reply.request = request.copy()
        return reply

    def _work(self, request: Request, ran: _Begun | None) -> Work:
        session = request.session
        only_reads = session.transaction.only_reads and not session.transaction.has_failed
        try:
            replies = self._collect_replies(session, None, may_restart=only_reads)
            try:
                return (yield from self._execute(request, replies, ran, keeps_queue=only_reads))
            except ViewNeededError:  # no `suppress`, which is interpreted: 0.4 us
                pass
            view = yield from wait_for_view()
            noted = replies.added  # are counted already
            replies = self._collect_replies(session, view, may_restart=False)
            return (yield from self._execute(request, replies, None, noted, keeps_queue=True))
        except CommandError as error:  # none of it has been done
            return (Settled(self._failures.refused(_exec(), error)[0]),)
        finally:
            if session.transaction.queued is not None:
                self.discard(session)
            session.transaction.queued_count = 0

    def _collect_replies(self, session: Session, view: View | None, *, may_restart: bool) -> TransactionReplies:
        count = session.transaction.queued_count
        return TransactionReplies(self._engine, self.space, count, view, may_restart=may_restart)

    def _execute(
        self, request: Request, replies: TransactionReplies, ran: _Begun | None, noted: int = 0, *, keeps_queue: bool
    ) -> Work:
        """Run the queued commands if they may run; `replies` are released, or held by the reply.

        A bug's exception in one of them undoes the whole transaction.
        """
        mark = self._txn.mark() if ran is None else ran.mark
        logged = LoggedTransaction(self._txn, mark.lines)
        try:
            if ran is not None and ran.first.done:
                _add_run(ran.first, replies, logged)
            queued = self._may_run(request)
            if queued is None:
                replies.release()
                return (Settled(encode(NULL_ARRAY, request.session.resp)),)
            count = request.session.transaction.queued_count
            if self._gate.refuses_writes and replies.has_view:  # else they are checked by now
                self._admission.check_queued(request.session)
            if not keeps_queue:
                self.discard(request.session)
                request.session.transaction.queued_count = count  # CLIENT INFO shows it until the end
            denied = yield from self._run_queued(request, queued, replies, noted, logged, keeps_queue=keeps_queue)
            if not logged.is_long:
                reply = replies.reply()
                logged.end()
            else:  # each of these takes milliseconds, and so does the commit
                yield Wish.ALONE
                reply = replies.reply()
                yield Wish.ALONE
                logged.end()
                yield Wish.ALONE
        except SpoolError as error:
            if len(self._txn.log) > mark.lines:
                self._failures.roll_back(mark)
            text = NO_ROOM.format(error).replace("\n", " ")
            undone = self._answer_undone(replies, error_line(text.encode()))
            if undone is None:
                raise CommandError(text) from None
            return undone
        except ViewNeededError:
            logged.end()  # it has only read, but keys may have expired
            replies.release()
            raise
        except (CommandError, StateLostError):
            replies.release()
            raise
        except Exception as error:
            failed = self._failures.fault(_exec(), error, mark)
            undone = self._answer_undone(replies, failed[0])
            return failed if undone is None else undone
        self._stats.commands_processed += count - denied
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

    def _may_run(self, request: Request) -> Requests | None:
        """The queued commands, None when a watched key has changed.  Raises CommandError when one was refused."""
        session = request.session
        if session.transaction.has_failed:
            raise CommandError(EXECABORT)
        # any other change of a watched key, of its expiry time as well, has broken the watch by now
        if session.transaction.watch_broken or 0 < session.transaction.watch_until_ms <= request.now_ms:
            return None
        return session.transaction.queued or []

    def _run_queued(
        self,
        request: Request,
        queued: Requests,
        replies: TransactionReplies,
        noted: int,
        logged: LoggedTransaction,
        *,
        keeps_queue: bool,
    ) -> Generator[Wish, None, int]:
        """Run the commands, and end a turn when it has taken TURN_NS; the first `noted` are counted already.

        -> how many were denied.  As in Redis these are no calls, monitors are not shown them, and EXEC has failed.
        """
        session, txn, clock = request.session, self._txn, time.perf_counter_ns
        ended = clock()
        end = ended + TURN_NS
        left = queued[:] if keeps_queue else queued  # the next one last: to free all at the end would take long
        left.reverse()
        number = denied = 0  # a transaction that runs again has no runs, which are not counted here
        while left:
            if ended >= end:
                self._end_turn(logged)
                yield Wish.ALONE
                ended = clock()
                end = ended + TURN_NS
            argv = left.pop()
            if not isinstance(argv, list):
                if session.may_do_all and not txn.follows and not self._monitors:
                    self._append_run(request, argv, left, replies, logged)
                else:
                    left += argv.requests()[::-1]
                ended = clock()
                continue
            command = client_command(argv)
            request.argv = argv
            request.db = session.db
            request.room = replies.room
            counters = None if number < noted else self._stats.counters(command.full_name)
            number += 1
            begun = ended
            if command.administers:
                end = _NEVER
            lasts = not command.rests_on_tables
            denial = None if session.may_do_all and not txn.follows else self._denial(request, command, counters)
            if denial is not None:
                if counters is not None:
                    self._count_denial(denial, is_first=not denied)
                denied += 1
                replies.add(encode(denial, session.resp), lasts=lasts)
                ended = clock()
                continue
            reply = self._call_queued(request, command, counters)
            taken = 0
            while reply.__class__ is SlicedCommand:
                if (ended := clock()) >= end:
                    taken += ended - begun
                    self._end_turn(logged)
                    yield Wish.ALONE
                    begun = clock()
                    end = begun + TURN_NS
                reply = self._continue_queued(reply, replies, counters)
            txn.end_command()
            is_made_later = False
            if reply.__class__ is LongReply:
                is_made_later = replies.add_long(reply, lasts=lasts) and _is_short(command, argv)
            else:
                replies.add(encode(reply, session.resp), lasts=lasts)
            ended = clock()
            if counters is not None:
                if is_made_later:
                    self._calls.account_later(session, command, argv, reply, taken + ended - begun)
                else:
                    counters.record(taken + ended - begun)
                    self._calls.timing.note(session, command, argv, taken + ended - begun)
                if self._monitors:
                    self._monitors.feed(session, command, argv)
        return denied

    def _append_run(
        self, request: Request, run: Neighbours, left: Requests, replies: TransactionReplies, logged: LoggedTransaction
    ) -> None:
        """Run neighbours, up to an XADD that is not simple, see `Database.append_run`; the rest goes to `left`."""
        request.db = request.session.db
        first = self._run_neighbours(request, run)
        if first.done < len(run):
            left += behind(run, first.done)[::-1]
        if first.done:
            _add_run(first, replies, logged)
        request.run = None  # with its chunk

    def _run_neighbours(self, request: Request, run: Neighbours) -> FirstReplies:
        request.argv, request.run = [], run
        begun = time.perf_counter_ns()
        entry = self._appends[run[0]]
        reply = entry.handler(request)
        if reply.__class__ is FirstReplies:
            first: FirstReplies = reply
            request.argv = run.request(first.done - 1) if first.done else []  # for the slow log
        else:
            first = FirstReplies(reply[0], len(run))
        if first.done:
            self._calls.timing.record(request, entry, first.done, (time.perf_counter_ns() - begun) / 1e9)
        return first

    def _end_turn(self, logged: LoggedTransaction) -> None:
        """Do what makes a long end of a tick, before it has become much."""
        logged.turn_over()
        self._txn.bound_caches()

    def _denial(self, request: Request, command: Command, counters: CommandCounters | None) -> CommandError | None:
        """Why one of the commands may not run any more; `counters` are None if it is counted already."""
        if self._txn.follows and command.flags & Flag.WRITE:
            return CommandError(self._gate.no_writes)  # since a REPLICAOF earlier in the transaction
        is_noted = counters is None
        denial = denial_of(self._core, request.session, command, request.argv, in_transaction=True, is_noted=is_noted)
        return None if denial is None else CommandError(NO_LONGER_ALLOWED.format(_BECAUSE[denial.reason]))

    def _count_denial(self, denial: CommandError, *, is_first: bool) -> None:
        self._stats.count_error(denial.text)
        if is_first:
            self._stats.counters(_exec().full_name).failed += 1

    def _call_queued(self, request: Request, command: Command, counters: CommandCounters | None) -> Reply:
        """Begin one of the commands; a refusal is its reply."""
        try:
            return command.handler(request)
        except CommandError as error:
            return self._refusal(error, counters)

    def _continue_queued(
        self, sliced: SlicedCommand, replies: TransactionReplies, counters: CommandCounters | None
    ) -> Reply:
        """Run another slice of one of the commands."""
        try:
            if sliced.needs_view:
                sliced.show(replies.view())
            return sliced.step(sliced.request)
        except CommandError as error:
            return self._refusal(error, counters)

    def _refusal(self, error: CommandError, counters: CommandCounters | None) -> CommandError:
        if counters is not None:
            counters.failed += 1
            self._stats.count_error(error.text)
        return error.with_traceback(None)  # it has a frame, which has the reply: a circle around the request

    def discard(self, session: Session) -> None:
        """End the session's transaction, without running it, and its watches."""
        self._watches.clear(session)
        session.end_transaction()

    def watch(self, session: Session, key: bytes, expire_ms: int, *, is_hidden: bool) -> None:
        self._watches.add(session, key, expire_ms, is_hidden=is_hidden)

    def unwatch(self, session: Session) -> None:
        self._watches.clear(session)


def _add_run(first: FirstReplies, replies: TransactionReplies, logged: LoggedTransaction) -> None:
    logged.has_runs |= _may_be_several(first)
    replies.add(first.replies, lasts=False, count=first.done)


def _is_short(command: Command, argv: list[bytes]) -> bool:
    """Whether the slow log's words of a command may be kept until its reply is sent, as of thousands of others."""
    return sum(map(len, shown_words(command, argv))) <= _KEPT_BYTES


def _may_be_several(first: FirstReplies) -> bool:
    """Whether entries of these neighbours may be one line of the log: an XADD is answered by its ID."""
    return first.replies.count(b"$") > 1
