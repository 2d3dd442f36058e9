"""Runs sliced commands for the executor: decides whose turn it is and for how long, and ends them.

Each tick, or every other tick while requests come, gives them a few milliseconds, in turn.  A client with a sliced
command waits for its reply like a blocked client; if the connection is cut off, the rest of the command is not done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.slices import NO_CHECKPOINT
from riverbed.server.commands.table import Flag
from riverbed.server.errors import CommandError
from riverbed.server.limits.views import Views
from riverbed.server.protocol.encode import error_line
from riverbed.server.protocol.replies import Block, Conclusion, LongReply
from riverbed.store.tables.view import OpenView

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.slices import SlicedCommand
    from riverbed.server.execution.admission import Admission
    from riverbed.server.execution.calls import Calls
    from riverbed.server.execution.control.monitors import Monitors
    from riverbed.server.execution.delivery import Delivery
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.ticks import Events, Turns
    from riverbed.server.protocol.replies import Reply

# Of each tick, for all clients together; a slice is not interrupted, and mostly takes less than one millisecond.
SLICES_S = 0.003
NO_SLOT: Final = "ERR this reply needs a reader of the tables, and all of them are taken; try again later"
STOPPING: Final = "ERR the server is stopping"
LOST: Final = "ERR the tables were exchanged, or read again behind a command that had failed; ask for the rest again"


class SlicedCommands:
    """The sliced commands under way of one server."""

    def __init__(
        self,
        core: Core,
        turns: Turns,
        gate: Gate,
        admission: Admission,
        calls: Calls,
        delivery: Delivery,
        monitors: Monitors,
        events: Events,
    ) -> None:
        self._monotonic = core.clock.monotonic
        self.views = Views(core.engine, core.clock.monotonic, self.look_for_views)
        self._core = core
        self._txn = core.txn
        self._turns = turns
        self._gate = gate
        self._admission = admission
        self._calls = calls
        self._delivery = delivery
        self._monitors = monitors
        self._events = events
        self._by_session: dict[Session, SlicedCommand] = {}
        self._waiting: deque[Session] = deque()  # for the next slice
        self._waiting_for_view: dict[Session, None] = {}  # in the order in which they get one
        self._held: dict[Session, None] = {}  # their commands write, and writes are paused
        self._alone: Session | None = None  # its transaction has ended its turn
        self._sliced: list[Session] = []  # clients that had a slice since the last commit
        self._gave_way = self._rests = False

    def __bool__(self) -> bool:
        return bool(self._waiting or self._waiting_for_view or self._held)

    def begin(self, session: Session, sliced: SlicedCommand) -> None:
        """Take a command whose first slice has run; the client waits for the other slices."""
        sliced.writes = bool(client_command(sliced.request.argv).flags & Flag.WRITE)
        self._by_session[session] = sliced
        session.begin_slices(sliced.request.argv)
        self._wait(session, sliced)

    def of(self, session: Session) -> SlicedCommand | None:
        """The client's command under way."""
        return self._by_session.get(session)

    def _wait(self, session: Session, sliced: SlicedCommand) -> None:
        """Have the client wait for its next turn, or for a view first."""
        if sliced.is_alone:
            self._alone = session
            self._turns.is_alone = True
            return
        self._sliced.append(session)
        self._line_up(session, sliced)
        self._turns.want_tick()

    def _line_up(self, session: Session, sliced: SlicedCommand) -> None:
        """Put the client behind the others that wait for the same."""
        if sliced.needs_view:
            self._waiting_for_view[session] = None
        else:
            self._waiting.append(session)

    def _is_held(self, session: Session, sliced: SlicedCommand) -> bool:
        """Whether a pause makes the command wait; it is out of line then, until the end of the pause."""
        if not sliced.writes or not self._gate.stalls_writes:
            return False
        self._held[session] = None
        return True

    def _release(self) -> None:
        """Put those back in line that a pause has held."""
        held, self._held = self._held, {}
        for session in held:
            self._line_up(session, self._by_session[session])

    def go_on_alone(self) -> None:
        """Give the transaction that has ended its turn the next one; it meets no error that it does not answer itself.

        Raises StateLostError.
        """
        session, self._alone = self._alone, None
        assert session is not None, "no transaction is under way"
        sliced = self._by_session[session]
        self._turns.is_alone = False
        self._delivery.caller = session
        begun = time.perf_counter_ns()
        reply = sliced.step(sliced.request)
        self._delivery.caller = None
        sliced.nanoseconds += time.perf_counter_ns() - begun
        self._slice_over(session, sliced, reply)

    def take_turn(self, *, has_requests: bool) -> None:
        """Run the next slices; if requests have come during the last ones, run them with the next tick.

        So a request waits for the slices of one tick, not of two.
        """
        if self._held and not self._gate.stalls_writes:  # the end of the pause has asked for this tick
            self._release()
        self._show_views()
        if self._alone is not None or not self._waiting:
            return  # a transaction that waited for a view may have begun: the slices of others come behind it
        if self._rests:
            self._rests = False
        else:
            self._gave_way = has_requests and not self._gave_way
            if not self._gave_way:
                self._run()
                return
        self._turns.want_tick()

    def _show_views(self) -> None:
        """Give views to waiting commands, which go on at once: what they look up has to be what the view shows."""
        if not self._waiting_for_view:
            return
        if self._txn.log:  # requests ran ahead of this tick: their commit comes first
            self._turns.want_tick()
            return
        try:
            view = self.views.take()
        except lmdb.Error:
            self.refuse_views(list(self._waiting_for_view), NO_SLOT)
            return
        if view is None:
            return
        # commands that ask for another view from now on come behind the commands that get no turn now
        waiting, self._waiting_for_view = list(self._waiting_for_view), {}
        end = self._monotonic() + SLICES_S
        served = 0
        for session in waiting:
            sliced = self.of(session)
            # the command before may have killed it
            if sliced is not None and sliced.needs_view and not self._is_held(session, sliced):
                if isinstance(view, OpenView) and sliced.writes:
                    self.refuse_views([session], NO_CHECKPOINT)
                    served += 1
                    continue
                if self._txn.log and not sliced.writes:
                    break  # its counts in the tables must be those of the view: it waits for the next view
                sliced.show(view.hold())
                self._step(session, sliced, is_last=isinstance(view, OpenView))
            served += 1
            if self._alone is not None or self._monotonic() >= end:
                break
        if late := waiting[served:]:
            self._waiting_for_view = dict.fromkeys(late) | self._waiting_for_view
            self._turns.want_tick()
        view.release()

    def look_for_views(self) -> None:
        """Have a tick if commands wait for a view: there may be one now."""
        if self._waiting_for_view:
            self._turns.want_tick()

    @property
    def is_crowded(self) -> bool:
        """Whether a command waits because there are as many views as there may be."""
        return bool(self._waiting_for_view) and self.views.is_full

    @property
    def count_waiting_for_view(self) -> int:
        return len(self._waiting_for_view)

    def refuse_views(self, waiting: Iterable[Session], text: str) -> None:
        """End the commands of these clients with an error."""
        for session in waiting:
            sliced = self.of(session)
            if sliced is not None:
                command = client_command(sliced.request.argv)
                self._conclude(session, sliced, self._calls.failures.refused(command, CommandError(text)))

    def rest(self) -> None:
        """Have requests read before the next slice, because something else has kept all clients waiting."""
        self._rests = bool(self._waiting)

    def _run(self) -> None:
        """Run slices for as long as a tick allows."""
        end = self._monotonic() + SLICES_S
        while self._waiting:
            session = self._waiting.popleft()
            sliced = self.of(session)
            if sliced is not None and not self._is_held(session, sliced):  # None when the client has left
                self._step(session, sliced)
                if self._monotonic() >= end:
                    break
        if self._waiting:
            self._turns.want_tick()

    def _step(self, session: Session, sliced: SlicedCommand, *, is_last: bool = False) -> None:
        """Run the next slice, or all that are left when it `is_last`."""
        request = sliced.request
        request.now_ms = self._core.now_ms()
        command = client_command(request.argv)
        self._delivery.caller = session
        begun = time.perf_counter_ns()
        reply: Reply
        try:
            # all keys are looked at again only when the user has changed: there may be very many
            self._admission.check(session, command, request.argv, is_allowed=sliced.rights == session.rights)
            sliced.rights = session.rights
            if sliced.is_lost:
                raise CommandError(LOST)
            reply = self._calls.attempt(request, command, sliced.finish if is_last else sliced.step)
        except CommandError as error:
            reply = self._calls.failures.refused(command, error)  # writes are refused by now
        self._delivery.caller = None
        sliced.nanoseconds += time.perf_counter_ns() - begun
        if self.of(session) is not sliced:
            return  # it failed, the work before it could not be committed either, and the client was answered
        if reply is sliced and not sliced.is_alone and session.long_reply is None:
            session.release_pushes()  # confirmations of this slice
        self._slice_over(session, sliced, reply)

    def _slice_over(self, session: Session, sliced: SlicedCommand, reply: Reply) -> None:
        """Have the client wait for its next turn, or answer it."""
        if reply is sliced:
            self._wait(session, sliced)
        else:
            self._conclude(session, sliced, reply)

    def _conclude(self, session: Session, sliced: SlicedCommand, reply: Reply) -> None:
        """Answer the client; if this tick is undone, the answer says what was committed before."""
        if sliced.writes and reply.__class__ is tuple and reply[0].startswith(b"-"):
            reply = (error_line(sliced.refusal(reply[0][1:-2])),)
        argv = sliced.request.argv
        command = client_command(argv)
        self._delivery.caller = session  # a monitor sees its own EXEC behind the reply
        if reply.__class__ is LongReply:
            self._calls.account_later(session, command, argv, reply, sliced.nanoseconds)
            self._end(session, sliced)
        else:
            self.drop(session)
        self._delivery.caller = None
        before = len(session.out)
        if reply.__class__ is Block and sliced.wait is not None:
            reply = sliced.wait.also_at(reply.retry_ms)
        if reply.__class__ is Block and sliced.wait_end_ms is not None:  # tried again in vain, it waits no longer
            reply = replace(reply, deadline_ms=sliced.wait_end_ms - self._core.monotonic_ahead_ms())
        self._delivery.deliver_for(command, session, reply)
        if sliced.kept and session.long_reply is not None:
            session.long_reply.kept = sliced.kept
        elif sliced.kept and len(session.out) > before:
            conclusion = session.out[-1] = Conclusion(session.out[-1])
            conclusion.kept = sliced.kept
        if session.held_pushes and session.long_reply is None:
            session.release_pushes()
        self._turns.resume(session)

    def is_writing(self) -> bool:
        """Whether a command that writes is under way, or waits for a view to go on with."""
        return any(sliced.writes for sliced in self._by_session.values())

    @property
    def are_among_streams(self) -> bool:
        """Whether a command is under way that may remember numbers of streams or groups."""
        return any(client_command(sliced.request.argv).rests_on_tables for sliced in self._by_session.values())

    def renumbered(self) -> None:
        """Have the commands end that may remember numbers of streams or groups: these are others now."""
        for sliced in self._by_session.values():
            sliced.is_lost = client_command(sliced.request.argv).rests_on_tables

    def finish_writes(self) -> None:
        """Run the rest of the commands that write, at once: the server stops, and leaves none half done.

        There are no views any more: a client whose command waits for one gets an error that says what was done.
        """
        self._release()
        while self._waiting:
            session = self._waiting.popleft()
            sliced = self.of(session)
            if sliced is not None and sliced.writes:
                self._step(session, sliced)
        self.refuse_views([session for session, sliced in self._by_session.items() if sliced.writes], STOPPING)

    def drop(self, session: Session) -> None:
        """End the client's sliced command; the rest of it is not done."""
        sliced = self._by_session.get(session)
        if sliced is not None:
            argv = sliced.request.argv
            self._calls.account(session, client_command(argv), argv, sliced.nanoseconds)
            self._end(session, sliced)

    def _end(self, session: Session, sliced: SlicedCommand) -> None:
        """End the client's sliced command, which is accounted for."""
        del self._by_session[session]
        argv = sliced.request.argv
        if not sliced.is_shown and self._monitors:
            self._monitors.feed(session, client_command(argv), argv)
        sliced.close()
        session.end_slices()
        self._waiting_for_view.pop(session, None)
        self._held.pop(session, None)
        for report in self._events.command_over:
            report()

    def committed(self) -> None:
        """The slices that have run are in the log."""
        offset = self._core.engine.log.offset
        for session in self._sliced:
            sliced = self.of(session)
            if sliced is not None:
                sliced.committed()
                if sliced.writes:  # its last slice may log nothing
                    session.written_offset = offset
        self._sliced.clear()

    @property
    def uncommitted(self) -> list[Session]:
        """The clients whose commands have run slices since the last commit."""
        return self._sliced

    def undone(self) -> list[tuple[Session, bytes]]:
        """The slices since the last commit were undone; -> each client whose command ends, and what was kept of it.

        A command that rests on no table goes on.
        """
        ended = []
        for session in dict.fromkeys(self._sliced):
            sliced = self.of(session)
            if sliced is not None and client_command(sliced.request.argv).rests_on_tables:
                ended.append((session, sliced.kept))
                self.drop(session)
        self._sliced.clear()
        return ended
