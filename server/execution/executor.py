"""The executor: runs requests in order against one write transaction, commits once a tick, then releases the replies.

    data arrives -> receive(session, data)               as often as there are readable sockets
                              |
    tick: requests -> handlers -> mutators, in order                once, when the loop has read them all
          log.write + fdatasync, once
          replies of all sessions go out

No reply leaves before what it rests on is committed, so no client sees what a crash may take back: replies of reads may
leave while the tick has changed nothing, all others leave behind its commit.  A failed commit undoes what the
tick did to the tables, and each command that did it is answered with an error.  A command that rests on no table keeps
its effect and its reply, see `failures.py`.  Everything runs in one thread; nothing here waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import lmdb

from riverbed.server.commands.replay import unconnected_session
from riverbed.server.commands.request import Context
from riverbed.server.execution.admission import Admission
from riverbed.server.execution.blocking import Blocking
from riverbed.server.execution.calls import Calls
from riverbed.server.execution.clients import Clients
from riverbed.server.execution.control.beside import Beside
from riverbed.server.execution.control.control import Controls
from riverbed.server.execution.control.departures import Departures
from riverbed.server.execution.control.monitors import Monitors
from riverbed.server.execution.control.pauses import Pauses
from riverbed.server.execution.control.transactions import Transactions
from riverbed.server.execution.control.watches import Watches
from riverbed.server.execution.delivery import Delivery
from riverbed.server.execution.failures import Failures
from riverbed.server.execution.fast_path import MAX_REQUESTS_A_SLOW_SYNC, MAX_REQUESTS_A_TICK, FastPath
from riverbed.server.execution.gate import Gate
from riverbed.server.execution.line.gathering import Gathering
from riverbed.server.execution.line.request_queue import RequestQueue
from riverbed.server.execution.outbox import Outbox
from riverbed.server.execution.sliced_commands import SlicedCommands
from riverbed.server.execution.slow_path import SlowPath
from riverbed.server.execution.ticks import Events
from riverbed.server.protocol.encode import error_line
from riverbed.server.protocol.replies import Block, Settled
from riverbed.server.protocol.request_reader import SMALL_BYTES
from riverbed.store.errors import DamagedRowError, LogWriteError, StateLostError
from riverbed.store.options import Fsync

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session
    from riverbed.server.protocol.replies import Reply

log = logging.getLogger("riverbed")


class Executor:
    """Runs what clients ask for.  Needs a running asyncio loop."""

    def __init__(self, context: Context) -> None:
        self._loop = asyncio.get_running_loop()
        self.context = context
        self.config = context.config
        self.engine = engine = context.engine
        self.txn = engine.txn
        self.stats = context.stats
        self.accounts = context.accounts
        self.events = Events()
        self.gate = Gate(engine)
        self.gave_up = False
        self.ran: list[Session] = []
        self.is_alone = False
        self._woken: list[Session] = []  # as `ran`, of clients that have asked for nothing in this tick
        self._time = context.clock.time
        self._tick_due = False
        self._has_failed = False  # the last tick has met a defect
        self.queue = RequestQueue(self._finish, context.clock.time)
        self._arrivals = self.queue.arrivals
        self._gathering = Gathering(self._loop, context.clock.monotonic, context.stats)
        self._make_parts()
        self.events.disconnected.append(self._await_no_longer)
        engine.keeper.on_sync = self._synced
        engine.checkpoints.on_end = self.stats.checkpoint.record
        self.txn.notify = self.blocking.notify
        context.config.observe("appendfsync", self._syncs_change)
        self.gate.refresh()

    def _make_parts(self) -> None:
        """Make the parts: each knows the parts made before it, and this executor as `Turns`."""
        no_session = unconnected_session(self.txn.databases[0])
        core, gate, events = self.context, self.gate, self.events
        self.departures = Departures(self._loop, core.clock.monotonic)
        self.watches = Watches(self.departures.begin)
        delivery = Delivery(core.clock.monotonic, self.flush)
        self.failures = Failures(core, self, gate, delivery, events)
        self.outbox = Outbox(core, self, self.failures)
        calls = Calls(core, no_session, self.failures)
        self.timing = calls.timing
        self.blocking = Blocking(core, self, gate, calls, delivery, self.watches)
        self.waiters = self.blocking.waiters
        admission = Admission(core, gate, self.watches)
        monitors = Monitors(core, gate, delivery.push)
        self.sliced_commands = SlicedCommands(core, self, gate, admission, calls, delivery, monitors, events)
        self.views = self.sliced_commands.views
        self.pauses = Pauses(core, self, gate)
        self.transactions = Transactions(core, gate, admission, calls, self.watches, monitors)
        self.control = Controls(
            core,
            blocking=self.blocking,
            sliced_commands=self.sliced_commands,
            transactions=self.transactions,
            pauses=self.pauses,
            monitors=monitors,
        )
        slow_path = SlowPath(
            core,
            admission,
            calls,
            delivery,
            pauses=self.pauses,
            monitors=monitors,
            blocking=self.blocking,
            kill=self.control.kill,
        )
        self.fast_path = FastPath(
            core, self, gate, self.queue, calls, delivery, slow_path, self.blocking, self.outbox, no_session
        )
        self.beside = Beside(core, self, self.queue, slow_path, self.outbox)
        self.clients = Clients(
            core,
            self,
            outbox=self.outbox,
            sliced_commands=self.sliced_commands,
            forget=self.control.forget,
            events=events,
        )
        self.failures.sliced_commands, self.failures.waits = self.sliced_commands, self.blocking
        core.pubsub.deliver = delivery.push
        core.pubsub.leave = self.departures.begin
        self.blocking.kill = self.control.kill
        delivery.on_block = self._block
        delivery.on_slices = self.sliced_commands.begin
        core.control = self.control
        core.transactions = self.transactions
        core.pauses = self.pauses
        core.monitors = monitors

    # -- replies that no request of the tick has made ------------------------------------------------------------------

    def _block(self, session: Session, block: Block) -> None:
        """Block the client; close it instead if it has hung up and would wait for other clients."""
        if session.input.has_ended and not block.is_for_work:
            self.control.kill(session)
        else:
            self.blocking.block(session, block)

    def end_wait(self, session: Session, reply: Reply) -> None:
        """Answer a blocked client with a reply that a failed commit does not take back."""
        self.blocking.end_settled(session, reply)

    def flush(self, session: Session) -> None:
        """Send the session's replies with the next tick although it has run nothing; close it then if it is closing."""
        self._woken.append(session)
        self.want_tick()

    def postpone(self, sessions: list[Session]) -> None:
        """As `flush`, for clients that come first in the next tick, because this one had no time for them."""
        self.ran[:0] = sessions
        self.want_tick()

    # -- requests ------------------------------------------------------------------------------------------------------

    def receive(self, session: Session, data: bytes) -> None:
        """Take bytes that a client has sent; their requests run in the next tick."""
        size = len(data)
        stats = self.stats
        session.bytes_in += size
        stats.bytes_in += size
        if session.in_line:
            session.input.add(data)
        else:
            session.input.chunk = data
            session.in_line = True
            self._arrivals.append(session)
            if not self._tick_due:
                self._loop.call_soon(self._tick)
                self._tick_due = True  # not before: where memory is short for the call, the next client makes it
        if size > SMALL_BYTES or session.account.owed or stats.bytes_in > self.accounts.alarm:
            self._bound_reading(session)

    def receive_end(self, session: Session) -> None:
        """Close a client that sends nothing more, after the replies to what it has sent.

        A client that waits for a key or for replicas is closed at once, as by Redis: most of them have just left.
        """
        if session.closing:
            return
        session.input.end()
        if session.blocked is not None and not session.blocked.is_for_work:
            self.control.kill(session)
        elif session.is_idle and not self.outbox.holds(session):
            session.begin_closing()
            session.peer.close_soon()
        elif not session.in_line:
            session.in_line = True
            self._arrivals.append(session)
            self.want_tick()

    def _bound_reading(self, session: Session) -> None:
        """Limit reading: this client, or all clients together, have sent more than runs in the next tick."""
        if session.closing:
            session.drop_input()
            return
        session.settle()
        if self.stats.bytes_in > self.accounts.alarm:
            self.accounts.clients.press()

    def _finish(self, session: Session) -> None:
        """Close a client after its last reply; if its bytes are not a request, answer with an error first."""
        error = session.input.error
        if error is not None and error.text:
            session.out.append(Settled(error_line(error.text)))
        elif error is not None and error.is_tls:
            self.context.tls_to_plain_port.note(session.peer.address, self.context.clock.monotonic())
        elif error is not None:
            self.stats.query_limit_disconnections += 1
        session.begin_closing()
        session.drop_input()
        self.ran.append(session)

    # -- coming back ---------------------------------------------------------------------------------------------------

    def resume(self, session: Session) -> None:
        """Let the client's held-back requests run, and its replies go out, with this tick or the next."""
        self._woken.append(session)
        self.queue.resume(session)
        if session.account.owed:
            session.settle()
        self.want_tick()

    def answered(self) -> set[Session]:
        """The clients that may have replies of this tick: those that ran, and those that were woken."""
        return {*self.ran, *self._woken}

    def want_tick(self) -> None:
        if not self._tick_due:
            self._loop.call_soon(self._tick)
            self._tick_due = True

    # -- the tick ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Run one tick; an error that cannot be undone stops the server, as its state in memory is lost.

        A defect that two ticks in a row meet stops it as well.  After one, the clients of the tick are cut off.
        """
        if self.gave_up:
            return
        try:
            if self._gathering.is_on and self._waits_for_clients():
                return
            self._run_tick()
        except StateLostError as error:
            self.give_up(error)
        except MemoryError:  # outside of a command: between the tables, the log and the replicas
            self.give_up(StateLostError("not enough memory to commit"))
        except Exception as error:
            self._tick_failed(error)
        else:
            self._has_failed = False

    def _tick_failed(self, error: Exception) -> None:
        """Go on behind a tick that has met a defect: what it has changed is whole, as commands undo their own part."""
        log.error("a bug: a tick has failed", exc_info=error)
        if self._has_failed or self.is_alone:
            self.give_up(StateLostError("a bug is in the way of every tick"))
            return
        self._has_failed = True
        self._tick_due = False
        self.want_tick()

    def _await_no_longer(self, session: Session) -> None:
        """The client has gone: the tick does not wait for what it might send."""
        if self._gathering.forget(session):
            self.want_tick()

    def _waits_for_clients(self) -> bool:
        """Whether the tick comes later, with clients that send something by then, or at the end of the wait."""
        if self.is_alone or not self._gathering.waits(self._arrivals, self.want_tick):
            return False
        self._tick_due = False
        return True

    def give_up(self, error: StateLostError) -> None:
        """Cut all clients off without replies, and stop the server; the next start recovers from the disk.

        Nothing runs from now on: no blocked command, no sliced command, no checkpoint.
        """
        log.error("%s; stopping", error)
        self.engine.state.lose(str(error))  # a task, or a timer, may be about to commit
        with contextlib.ExitStack() as ends:  # each of these is called, whatever another raises
            for report in reversed(self.events.gave_up):
                ends.callback(report)
            self.cut_all_off()

    def cut_all_off(self) -> None:
        """Cut all clients off without replies, and run nothing from now on."""
        self.gave_up = True
        for session in list(self.context.sessions.values()):
            session.begin_closing()
            session.out.clear()
            session.end_long_reply()
            self.sliced_commands.drop(session)
            self.control.forget(session)
            session.peer.abort()
        self.queue.clear()
        self.ran.clear()
        self._woken.clear()

    def let_go(self) -> None:
        """Commit what has run, answer it, and close every connection; requests that have not run are dropped.

        Raises StateLostError.
        """
        begun = self._time()
        self.failures.restore_lost()
        self.sliced_commands.finish_writes()
        self.queue.clear()
        sessions = list(self.context.sessions.values())
        for session in sessions:
            session.begin_closing()
            session.end_long_reply()
            self.sliced_commands.drop(session)
        self._end_tick(begun)
        self.outbox.finish()
        for session in sessions:
            session.peer.close_soon()

    def _run_tick(self) -> None:
        """Run what was submitted, commit it, then send the replies."""
        begun = self._time()
        self._tick_due = False
        self.failures.restore_lost()
        if self.sliced_commands:
            self.sliced_commands.take_turn(has_requests=bool(self.queue))
        if not self.is_alone:
            self.blocking.begin_tick()  # keys that slices changed, keys that expired, and clients that had no turn yet
            self.fast_path.run(begun)
        if self.is_alone:
            begun = self.beside.finish(self.sliced_commands.go_on_alone, begun)
            self.blocking.serve()
            self.want_tick()  # for what had no turn in this one
        if self.queue:
            self.want_tick()  # the other requests wait until these have their replies
        self._end_tick(begun)

    def _end_tick(self, begun: float) -> None:
        """Commit what has run since the last tick, then send the replies."""
        self._put_woken_last()
        try:
            committed = self.engine.commit(int(begun * 1000))
        except LogWriteError as error:
            self.failures.commit_failed(error)
            committed = False
        except (StateLostError, MemoryError):
            raise
        except Exception as error:  # what it was about to log might be logged twice
            log.exception("a bug: a commit has failed")
            raise StateLostError(f"a commit has failed ({type(error).__name__})") from None
        else:
            self.sliced_commands.committed()
            self.blocking.committed()
        if committed:
            offset = self.engine.log.offset
            for session in self.ran:
                session.written_offset = offset
        self._bound_caches()
        for report in self.events.tick_over:
            report()
        self._put_woken_last()
        ran, self.ran = self.ran, []
        self.outbox.release(ran)
        if self._gathering.is_on:
            if committed and not self.queue:
                self._gathering.answered(ran)
            else:
                self._gathering.answered_at_once(len(ran))
        stats = self.stats
        stats.writes_processed += len(ran)
        # not during a load, which may copy rows as well
        if self.engine.is_loaded and (committed or self.failures.has_committed or self.txn.copied_bytes):
            self.failures.has_committed = False
            for report in self.events.committed:
                report()
        if self.gate.is_outdated:
            self.gate.refresh()
        clients = self.accounts.clients
        if clients.is_pressed:
            clients.relax()
        self.accounts.alarm = stats.bytes_in + clients.headroom
        stats.tick.record(self._time() - begun)

    def _bound_caches(self) -> None:
        """Let go of rows in memory.  Where LMDB refuses that, it comes later; the replies do not wait for it."""
        try:
            self.txn.bound_caches()
        except (DamagedRowError, lmdb.Error) as error:
            self.failures.met_between_commands(error)

    def _synced(self, seconds: float) -> None:
        """Note how long a sync of the log took."""
        self.stats.fsync.record(seconds)
        self._gathering.synced(seconds, is_waited_for=self.engine.options.fsync is Fsync.ALWAYS)
        self._bound_ticks()

    def _syncs_change(self) -> None:
        """Another `appendfsync` begins; with `everysec`, or a disk that hangs, the next sync may end much later."""
        self._gathering.stop()
        self._bound_ticks()

    def _bound_ticks(self) -> None:
        self.fast_path.most_requests = MAX_REQUESTS_A_SLOW_SYNC if self._gathering.is_on else MAX_REQUESTS_A_TICK

    def _put_woken_last(self) -> None:
        """A thousand subscribers or woken readers are not sent theirs before the clients that have just asked."""
        if self._woken:
            self.ran += self._woken
            self._woken.clear()
