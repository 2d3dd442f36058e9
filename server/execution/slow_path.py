"""The slow path runs a request with every check: it may be refused, queued, shown to monitors or made to wait.

Transactions of plain commands that came whole, and neighbours in a transaction, are the exception: what they would be
checked for is known before.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.dispatch import client_command, find_command
from riverbed.server.commands.slices import SlicedCommand
from riverbed.server.protocol.replies import NO_REPLY, Settled, settled_constant
from riverbed.store.wire import Mix, Run

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.table import Command
    from riverbed.server.execution.admission import Admission
    from riverbed.server.execution.blocking import Blocking
    from riverbed.server.execution.calls import Calls
    from riverbed.server.execution.control.monitors import Monitors
    from riverbed.server.execution.control.pauses import Pauses
    from riverbed.server.execution.delivery import Delivery
    from riverbed.store.wire import Neighbours, Requests

(_QUEUED,) = settled_constant(b"+QUEUED\r\n")
_MULTI_OK: Final = b"+OK\r\n"
_EXEC_WORDS: Final = [b"EXEC"]
_ADDS: Final = [b"xadd"]
_ACKS: Final = [b"xack"]
_ADDS_AND_ACKS: Final = _ADDS + _ACKS
# The replies to MULTI and up to 32 commands behind it, made once: to make one takes 0.3 us, which more commands hide.
_MULTI_QUEUED: Final = [Settled(_MULTI_OK + _QUEUED * count) for count in range(33)]


class Turn(enum.Enum):
    """Whether the client goes on behind a request, or waits."""

    GOES_ON = enum.auto()
    WAITS_BEFORE = enum.auto()  # this request has not run yet
    WAITS_AFTER = enum.auto()


class Whole:
    """The requests of a transaction that came whole: plain commands, without MULTI and EXEC."""

    __slots__ = ("count", "only_reads", "requests")

    def __init__(self, requests: Requests, count: int, *, only_reads: bool) -> None:
        self.requests = requests
        self.count = count  # of commands, those of runs among them
        self.only_reads = only_reads


class SlowPath:
    """The slow path of one server."""

    def __init__(
        self,
        core: Core,
        admission: Admission,
        calls: Calls,
        delivery: Delivery,
        *,
        pauses: Pauses,
        monitors: Monitors,
        blocking: Blocking,
        kill: Callable[[Session], None],
    ) -> None:
        self._config = core.config
        self._stats = core.stats
        self._admission = admission
        self._calls = calls
        self._delivery = delivery
        self._pauses = pauses
        self._monitors = monitors
        self._blocking = blocking
        self._signals = blocking.signals
        self._kill = kill
        self._multi, self._exec = client_command([b"MULTI"]), client_command(_EXEC_WORDS)

    def queue_run(self, session: Session, run: Neighbours) -> bool:
        """Queue XADDs, or these and XACKs, as they came; -> whether they are queued, and not to be taken one by one.

        No check is needed: the client is plain but for its transaction (`queues_runs`), and neither the gate nor their
        words refuse any of them.  A transaction of 500 XADDs takes a tenth of the time so.
        """
        if not session.queues_runs or not isinstance(run, Run | Mix):
            return False
        names = _ADDS if isinstance(run, Run) else _ACKS if run.adds is None else _ADDS_AND_ACKS
        if not session.transaction.queue_run(run, names):
            return False
        self._bound_queue(session)
        session.last_command = b"xadd" if isinstance(run, Run) else run.request(len(run) - 1)[0].lower()
        self._stats.commands_processed -= len(run)  # they are not, before EXEC
        session.out.append(Settled(_QUEUED * len(run)))
        return True

    def run_whole(self, session: Session, multi: list[bytes], whole: Whole) -> Turn:
        """Run a transaction of plain commands that came whole, behind the request `multi`.

        No check is needed, as on the fast path: the client is plain, and the gate lets these commands pass, so that
        there is no pause and no monitor either.  Two reads take half the time so.
        """
        transaction, count = session.transaction, whole.count
        run: Neighbours | None = None
        first = whole.requests[0] if len(whole.requests) == 1 else None
        if isinstance(first, Run | Mix) and not transaction.watched and not transaction.watch_broken:
            run = first
        else:
            transaction.begin_with(whole.requests, count, only_reads=whole.only_reads)
            session.refresh()
        self._stats.commands_processed -= count  # they are not, before EXEC
        self._calls.account(session, self._multi, multi, 0)  # it takes no time of its own
        session.last_command = self._exec.full_name
        session.out.append(_MULTI_QUEUED[count] if count < len(_MULTI_QUEUED) else Settled(_MULTI_OK + _QUEUED * count))
        return self._call(session, self._exec, _EXEC_WORDS, run)

    def _bound_queue(self, session: Session) -> None:
        """Close a client whose transaction takes more memory than its input may."""
        if session.transaction.queued_bytes > self._config.client_query_buffer_limit:
            self._stats.query_limit_disconnections += 1
            self._kill(session)

    def run(self, session: Session, argv: list[bytes]) -> Turn:
        """Run one request of a client."""
        if session.closing:
            return Turn.GOES_ON
        if session.must_wait:
            return Turn.WAITS_BEFORE
        command = self._admission.admit(session, argv)
        if isinstance(command, bytes):
            self._delivery.answer(session, command)
            if self._monitors and find_command(argv) is self._exec:
                self._monitors.feed(session, self._exec, argv)  # as in Redis: they see that the transaction is over
            return Turn.GOES_ON
        session.last_command = command.full_name
        if session.transaction.queued is not None and not command.is_immediate:
            session.transaction.queue(argv, command.full_name, only_reads=command.only_reads)
            self._bound_queue(session)
            self._stats.commands_processed -= 1
            self._delivery.answer(session, _QUEUED)
            return Turn.GOES_ON
        if self._pauses.holds_back(session, command):
            return Turn.WAITS_BEFORE
        return self._call(session, command, argv)

    def _call(self, session: Session, command: Command, argv: list[bytes], run: Neighbours | None = None) -> Turn:
        self._delivery.caller = session
        reply = self._calls.call(session, command, argv, run)
        is_sliced = reply.__class__ is SlicedCommand
        is_unfinished = is_sliced and reply.is_alone
        if is_sliced and (command is self._exec or session.is_monitor):
            reply.is_shown = False  # monitors are shown a transaction behind its commands, and their own behind replies
        elif self._monitors:
            self._monitors.feed(session, command, argv)  # to this client behind the reply
        self._delivery.caller = None
        if reply is not NO_REPLY:
            self._delivery.deliver_for(command, session, reply)
        if session.held_pushes and session.long_reply is None and not is_unfinished:
            session.release_pushes()
        if self._signals:
            self._blocking.serve()
            if self._blocking.is_behind:
                return Turn.WAITS_AFTER
        # the command may have changed this: it blocked, or its reply is a long one
        must_wait: bool = session.must_wait
        return Turn.WAITS_AFTER if must_wait else Turn.GOES_ON
