"""Answers clients while a long transaction is under way: those whose next request needs no table.

A transaction is atomic, so from its first command to its commit nothing else may read or change the tables, or commit.
That is kept in the simplest way: the loop does not turn.  No timer, chore, task or signal can come in between, whatever
it does.  A transaction that has run for some milliseconds ends its turn all the same, and before it gets the next one

    glance     what has come on the sockets of clients is read, without a turn of the loop       network/glance.py
    run        requests that have no effect beyond their own connection are run: PING, ECHO, AUTH, CLIENT SETNAME ...
    send       their replies are sent, unless one that waits for the commit is before them; the next turn goes on with
               those for which this one had no time

Any other request keeps its place in line, with all that its client has sent behind it.  That client is not read any
more until the transaction has ended, so it costs no more memory than what was read at once.  Clients that connect are
accepted behind the transaction, and one that hangs up, also the one whose transaction it is, is missed behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from riverbed.server.commands.dispatch import find_command
from riverbed.server.commands.table import Command, Flag
from riverbed.server.execution.slow_path import SlowPath, Turn
from riverbed.server.protocol.replies import Push, is_settled
from riverbed.store.errors import StateLostError

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.line.request_queue import RequestQueue
    from riverbed.server.execution.line.request_queue import Turn as QueueTurn
    from riverbed.server.execution.outbox import Outbox
    from riverbed.server.execution.ticks import Turns
    from riverbed.store.wire import Requests

log = logging.getLogger("riverbed")

# The time that clients have between two turns of the transaction.
TURN_S: Final = 0.003
_NOT_BESIDE: Final = Flag.ADMIN | Flag.IMMEDIATE | Flag.PUBSUB


class Sockets(Protocol):
    """The sockets of clients, read without a turn of the loop."""

    def begin(self, sessions: Iterable[Session]) -> None:
        """Begin to read these clients."""

    def read(self) -> None:
        """Hand over what has come since the last look."""

    def leave(self, session: Session) -> None:
        """Read this client no further."""

    def end(self) -> None:
        """Leave all clients to the loop again."""


def may_run_beside(command: Command) -> bool:
    """Whether it needs no table and, short as it is, changes and shows nothing but the client's own connection."""
    if command.rests_on_tables or command.flags & _NOT_BESIDE:
        return False
    return command.group == "connection" or bool(command.flags & Flag.FAST)


class Beside:
    """What one server does beside its transactions."""

    def __init__(self, core: Core, turns: Turns, queue: RequestQueue, slow_path: SlowPath, outbox: Outbox) -> None:
        self.sockets: Sockets | None = None  # set by the listener; None without sockets
        self._core = core
        self._stats = core.stats
        self._time = core.clock.time
        self._turns = turns
        self._queue = queue
        self._slow_path = slow_path
        self._outbox = outbox

    def finish(self, go_on: Callable[[], None], begun: float) -> float:
        """Run the transaction that is under way to its end by `go_on`; -> when its last turn began.

        The tick began at `begun`.  Each turn counts as a tick in the statistics: it is what clients wait for.  Raises
        StateLostError.
        """
        is_first = True
        try:
            while self._turns.is_alone:
                self._stats.tick.record(self._time() - begun)
                try:
                    self._look(is_first=is_first)
                except Exception:
                    log.exception("a bug: clients are not answered beside a transaction")  # which must end all the same
                is_first = False
                begun = self._time()
                go_on()
        except (StateLostError, MemoryError):
            raise
        except Exception as error:  # a part of it may have run
            log.exception("a bug: a transaction has failed")
            raise StateLostError(f"a transaction has failed ({type(error).__name__})") from None
        finally:
            if self.sockets is not None:
                self.sockets.end()
            self._queue.take_up()
        return begun

    def _look(self, *, is_first: bool) -> None:
        """Answer what has come since the last look."""
        sockets = self.sockets
        if is_first:
            self._send([*self._turns.ran])  # what was answered earlier in this tick
            if sockets is not None:
                sockets.begin(self._core.sessions.values())
        if sockets is not None:
            sockets.read()
        self._outbox.go_on()
        self._run()

    def _run(self) -> None:
        """Run the requests that have come and may run, and send their replies."""
        queue = self._queue
        queue.begin()
        end = self._time() + TURN_S
        ran: list[Session] = []
        try:
            while (taken := queue.take(end)) is not None:
                self._run_all(taken, ran)
                if self._time() >= end:
                    break
        finally:
            self._send(ran)
            self._turns.ran += [session for session in ran if session.out or session.attention]

    def _run_all(self, taken: list[QueueTurn], ran: list[Session]) -> None:
        """Run these requests, as far as they may run; `ran` gets the clients of those that ran."""
        left = iter(taken)
        for session, requests in left:
            try:
                if self._run_some(session, requests):
                    ran.append(session)
            except BaseException:
                for each in [session, *(other for other, _ in left)]:
                    each.abort()
                raise

    def _run_some(self, session: Session, requests: Requests) -> int:
        """Run the first of a client's requests, as far as they may run, and set the others aside; -> how many ran."""
        session.last_interaction_ms = self._core.now_ms()
        count = 0
        for argv in requests:
            if not isinstance(argv, list) or not self._may_run(session, argv):
                self._queue.set_aside(session, requests[count:])
                break
            turn = self._slow_path.run(session, argv)
            count += turn is not Turn.WAITS_BEFORE
            if turn is not Turn.GOES_ON:
                self._queue.hold_back(session, requests[count:])
                break
        if session.backlog and self.sockets is not None:
            self.sockets.leave(session)
        session.commands_processed += count
        self._stats.commands_processed += count
        self._stats.reads_processed += 1
        return count

    def _may_run(self, session: Session, argv: list[bytes]) -> bool:
        if session.closing or session.transaction.queued is not None or not _are_settled(session):
            return False
        command = find_command(argv)
        return command is not None and may_run_beside(command)

    def _send(self, sessions: list[Session]) -> None:
        """Send clients their replies, if none of these waits for the commit and nothing else is to be done for them."""
        self._outbox.release([each for each in sessions if not each.attention and _are_settled(each)])


def _are_settled(session: Session) -> bool:
    """Whether all replies of the client may go out: a message may be of the transaction, of which nothing is seen."""
    return all(is_settled(wire) and wire.__class__ is not Push for wire in session.out)
