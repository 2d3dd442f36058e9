"""The executor: runs requests in order against one write transaction, commits once a tick, then releases the replies.

    data arrives -> receive(session, data)               as often as there are readable sockets
                              |
    tick: requests -> handlers -> mutators, in order                once, when the loop has read them all
          log.write + fdatasync, once
          replies of all sessions go out

No reply leaves before the tick's commit, so no client sees what a crash may take back.  A failed commit undoes what the
tick did to the tables, and each command behind that is answered with an error; what rests on no table stays, and is
answered as it is, see `failures.py`.  Everything is one thread; nothing here waits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.dispatch import Plain, plain_commands
from riverbed.server.commands.replay import NO_PEER
from riverbed.server.commands.request import Context, Request
from riverbed.server.commands.session import Session
from riverbed.server.commands.slices import Slices
from riverbed.server.commands.table import Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.admission import Admission
from riverbed.server.execution.blocking import Wakeups
from riverbed.server.execution.calls import Calls
from riverbed.server.execution.config_changes import apply_settings
from riverbed.server.execution.control.control import Controls
from riverbed.server.execution.control.monitors import Monitors
from riverbed.server.execution.control.pauses import Pauses
from riverbed.server.execution.control.transactions import Transactions
from riverbed.server.execution.delivery import Delivery
from riverbed.server.execution.failures import Undoing
from riverbed.server.execution.gate import Gate
from riverbed.server.execution.outbox import Releases
from riverbed.server.execution.request_queue import Inbox
from riverbed.server.execution.sliced_commands import Slicing
from riverbed.server.execution.slow_path import SlowPath, Turn
from riverbed.server.execution.ticks import Events
from riverbed.server.execution.waiters import Watches
from riverbed.server.limits.accounts import Account
from riverbed.server.protocol.encode import encode, error_line
from riverbed.server.protocol.replies import Block, LongReply, Settled
from riverbed.server.protocol.request_reader import RequestReader
from riverbed.store.errors import LogWriteError, StateLostError

if TYPE_CHECKING:
    from riverbed.server.commands.session import Peer
    from riverbed.server.execution.request_queue import Turn as InboxTurn
    from riverbed.server.protocol.replies import Reply

log = logging.getLogger("riverbed")

# Replies behind which the client's next request has to wait.
_WAITS: Final = frozenset((Block, LongReply, Slices))
# A tick ends after about so many requests, or so long, so that no client waits for another's long pipeline.
MAX_REQUESTS_A_TICK: Final = 2048
MAX_SECONDS_A_TICK: Final = 0.003
# What requests are given of a tick in which slices took longer.
MIN_SECONDS_A_TICK: Final = 0.002
# As many wake-ups make as many replies to send, which is as much work again.
MAX_SECONDS_OF_WAKING: Final = 0.004
# More in one piece is more than runs in one tick, most likely.
_LARGE_BYTES: Final = 16 << 10
# The fast path of clients that may not take it.
_NOTHING: Final[dict[bytes, Plain]] = {}
# Fast commands between two looks at the clock.
_LONGEST_RUN: Final = 32


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
        self._time = context.clock.time
        self._next_client_id = 1
        self._tick_due = False
        no_session = Session(0, NO_PEER, self.txn.databases[0], 0)
        self._request = Request(no_session, self.txn, context)  # of the fast path, whichever client sends it
        self._inbox = Inbox(self._finish, context.clock.time)
        self._arrivals = self._inbox.arrivals
        self._make_parts(no_session)
        self._signals = self.wakeups.signals
        plain = plain_commands(self.stats)
        self._fast_paths = plain, {name: entry for name, entry in plain.items() if not entry.command.flags & Flag.WRITE}
        self.fast_path = plain
        engine.on_sync = self.stats.fsync.record
        engine.checkpoints.on_end = self.stats.checkpoint.record
        self.txn.notify = self.wakeups.notify
        context.pubsub.deliver = self._delivery.push
        context.accounts.clients.on_pressure = self._read_small_pieces
        self.gate.on_change = self._choose_fast_path
        self.gate.refresh()
        apply_settings(context, self._timing)

    def _make_parts(self, no_session: Session) -> None:
        """Each knows those made before it, and this executor as `Turns`."""
        core, gate, events = self.context, self.gate, self.events
        self.watches = Watches()
        self.releases = Releases(core, self)
        self._delivery = delivery = Delivery(core.clock.monotonic, self.flush)
        self.undoing = Undoing(core, self, gate, delivery, events)
        self._calls = calls = Calls(core, no_session, self.undoing)
        self._timing = calls.timing
        self.wakeups = Wakeups(core, self, calls, delivery, self.watches)
        self.waiters = self.wakeups.waiters
        self._admission = admission = Admission(gate, self.stats, self.watches)
        self.slicing = Slicing(core, self, gate, admission, calls, delivery, events)
        self.views = self.slicing.views
        monitors = Monitors(core, gate, delivery.push)
        self.pauses = Pauses(core, self, gate)
        self.transactions = Transactions(core, gate, admission, calls, self.watches, monitors)
        self.control = Controls(
            core,
            wakeups=self.wakeups,
            slicing=self.slicing,
            transactions=self.transactions,
            pauses=self.pauses,
            monitors=monitors,
        )
        self._slow_path = SlowPath(
            core,
            admission,
            calls,
            delivery,
            pauses=self.pauses,
            monitors=monitors,
            wakeups=self.wakeups,
            kill=self.control.kill,
        )
        self.undoing.slicing = self.slicing
        delivery.on_block = self._block
        delivery.on_slices = self.slicing.begin
        core.control, core.transactions, core.pauses, core.monitors = (
            self.control,
            self.transactions,
            self.pauses,
            monitors,
        )

    # -- sessions ------------------------------------------------------------------------------------------------------

    def connect(self, peer: Peer) -> Session:
        """A client has come."""
        session = Session(self._next_client_id, peer, self.txn.databases[0], self.context.now_ms())
        self._next_client_id += 1
        session.authenticated = not self.config.requirepass
        session.account = Account(self.accounts, session.id, peer, is_trusted=session.authenticated)
        session.input = RequestReader(
            authenticated=session.authenticated,
            max_bulk_bytes=self.config.proto_max_bulk_len,
            max_query_bytes=self.config.client_query_buffer_limit,
        )
        session.refresh()
        self.context.sessions[session.id] = session
        self.stats.connections_received += 1
        return session

    def disconnect(self, session: Session) -> None:
        """A client has gone.  The second call for one does nothing."""
        if self.context.sessions.pop(session.id, None) is None:
            return
        self.control.forget(session)
        session.begin_closing()
        session.end_long_reply()
        self.slicing.drop(session)
        self.releases.forget(session)
        session.out.clear()
        session.drop_pushes()
        session.drop_input()
        session.forget_names()
        session.account.close()
        for report in self.events.disconnected:
            report(session)

    def cut_off(self, client_id: int) -> None:
        """End a client's connection and all that is kept for it now, unanswered; between two ticks."""
        session = self.context.sessions[client_id]
        session.peer.abort()
        self.disconnect(session)

    def _choose_fast_path(self) -> None:
        """Give all clients the fast path, or take it from them: for monitors, in a pause, while writes are refused."""
        everything, reads = self._fast_paths
        gate = self.gate
        self.fast_path = _NOTHING if gate.closes_fast_path else reads if gate.no_writes else everything

    def _block(self, session: Session, block: Block) -> None:
        """The client waits; one that has hung up does not wait for others."""
        if session.input.has_ended and not block.is_for_work:
            self.control.kill(session)
        else:
            self.wakeups.block(session, block)

    def end_wait(self, session: Session, reply: Reply) -> None:
        """Answer a blocked client with what a failed commit does not take back."""
        self.wakeups.end_settled(session, reply)

    def flush(self, session: Session) -> None:
        """Send the session's replies with the next tick although it has run nothing; close it then if it is closing."""
        self.ran.append(session)
        self.want_tick()

    def postpone(self, sessions: list[Session]) -> None:
        """As `flush`, for those who come first in the next tick, because this one had no time for them."""
        self.ran[:0] = sessions
        self.want_tick()

    # -- requests ------------------------------------------------------------------------------------------------------

    def receive(self, session: Session, data: bytes) -> None:
        """Have the requests in what a client has sent run in the next tick."""
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
                self._tick_due = True
                self._loop.call_soon(self._tick)
        if size > _LARGE_BYTES or session.account.owed or stats.bytes_in > self.accounts.alarm:
            self._bound_reading(session)

    def receive_end(self, session: Session) -> None:
        """The client sends nothing more: close behind the replies to what it has sent.

        A client that waits for others, for a key or for replicas, is let go at once, as by Redis: most have just left.
        """
        if session.closing:
            return
        session.input.end()
        if session.blocked is not None and not session.blocked.is_for_work:
            self.control.kill(session)
        elif not session.in_line:
            session.in_line = True
            self._arrivals.append(session)
            self.want_tick()

    def _bound_reading(self, session: Session) -> None:
        """There is more of this client than runs in the next tick, or more of all of them."""
        if session.closing:
            session.drop_input()
            return
        session.settle()
        if self.stats.bytes_in > self.accounts.alarm:
            self.accounts.clients.press()

    def _finish(self, session: Session) -> None:
        """Close behind the replies to what came before; when what a client has sent is no request, say so first."""
        error = session.input.error
        if error is not None and error.text:
            session.out.append(Settled(error_line(error.text)))
        elif error is not None:
            self.stats.query_limit_disconnections += 1
        session.begin_closing()
        session.drop_input()
        self.ran.append(session)

    def _hold_back(self, session: Session, requests: list[list[bytes]]) -> None:
        """These were taken to be run, and have to wait."""
        session.commands_processed -= len(requests)
        self.stats.commands_processed -= len(requests)
        self._inbox.hold_back(session, requests)

    def _read_small_pieces(self, on: bool) -> None:
        """All clients together have much waiting, or no longer."""
        for session in self.context.sessions.values():
            if session.authenticated:
                session.peer.read_small_pieces(on)

    def _run_inbox(self, tick_begun: float) -> None:
        """Run what has arrived, in order; what is too much for one tick stays for the next."""
        inbox = self._inbox
        inbox.begin()
        begun = self._time()
        # what slices have used of the tick is gone, but for a little
        end = max(tick_begun + MAX_SECONDS_A_TICK, begun + MIN_SECONDS_A_TICK)
        waking_end = begun + MAX_SECONDS_OF_WAKING
        room = MAX_REQUESTS_A_TICK
        while room > 0 and (turns := inbox.take(end)) is not None:
            room -= self._run_turns(turns, room, end, waking_end)
            if self._time() >= end:
                break

    def _run_turns(self, taken: list[InboxTurn], room: int, end: float, waking_end: float) -> int:
        """Run these requests, or as many of them as there is time for; -> how many have had their turn.

        All that is the same for every request is looked up once: at 50 clients with one request each that is 1.3 us of
        5 a request.
        """
        clock = self._time
        begun = clock()
        request = self._request
        request.now_ms = now_ms = int(begun * 1000)
        ran = self.ran
        txn = self.txn
        logged = txn.log
        signals = self._signals
        most_output = self.accounts.clients.most_output
        record = self._timing.record
        run_slowly = self._slow_path.run
        # A run of equal fast commands is timed as a whole: a look at the clock costs a tenth of a pipelined XADD.
        run_of: Plain | None = None
        run_count = 0
        count = 0
        turns = iter(taken)
        for session, requests in turns:
            ran.append(session)
            size = len(requests)
            count += size
            session.commands_processed += size
            session.last_interaction_ms = now_ms
            request.session = session
            request.db = session.db
            out = session.out
            plain = self.fast_path if session.is_plain else _NOTHING
            produced = 0
            waiting = iter(requests)
            for argv in waiting:
                entry = plain.get(argv[0])
                if entry is None or not entry.least_words <= len(argv) <= entry.most_words:
                    if run_of is not None:
                        record(request, run_of, run_count, clock() - begun)
                        run_of = None
                    turn = run_slowly(session, argv)
                    if turn is not Turn.GOES_ON:
                        self._hold_back(session, [argv, *waiting] if turn is Turn.WAITS_BEFORE else [*waiting])
                        break
                    begun = clock()
                    if begun >= end:
                        self._hold_back(session, [*waiting])
                        break
                    plain = self.fast_path if session.is_plain else _NOTHING
                    request.session = session
                    request.db = session.db
                    continue
                if entry is run_of and entry.is_fast and run_count < _LONGEST_RUN:
                    run_count += 1
                else:
                    if run_of is not None:
                        ended = clock()
                        record(request, run_of, run_count, ended - begun)
                        begun = ended
                        if ended >= end:
                            run_of = None
                            self._hold_back(session, [argv, *waiting])
                            break
                    run_of, run_count = entry, 1
                mark = len(logged)
                request.argv = argv
                handler = entry.handler
                try:
                    reply = handler(request)
                except CommandError as error:
                    reply = self.undoing.refused(entry.command, error)
                except StateLostError:
                    raise
                except Exception as error:
                    reply = self.undoing.fault(entry.command, error, mark)
                session.last_command = entry.name
                if reply.__class__ is tuple:
                    wire = reply[0]
                elif reply.__class__ in _WAITS:
                    self._calls.end_command(mark)
                    self._delivery.deliver(session, reply)
                    self._hold_back(session, [*waiting])
                    break
                else:
                    wire = encode(reply, session.resp)
                out.append(wire)
                if entry.is_compound:
                    if txn.unlogged is not None:
                        txn.end_command()
                    if len(logged) - mark > 1:
                        self._calls.make_atomic(mark)
                if signals:
                    self.wakeups.serve()
                    ended = clock()
                    record(request, entry, run_count, ended - begun)
                    run_of, begun = None, ended
                    if ended >= waking_end:
                        self._hold_back(session, [*waiting])
                        break
                produced += len(wire)
                if produced > most_output:
                    # one that does not read must not have its pipeline executed ahead of its reading
                    self._hold_back(session, [*waiting])
                    break
            if count >= room or begun >= end:
                self._inbox.put_back([*turns])
                break
        if run_of is not None:
            record(request, run_of, run_count, clock() - begun)
        request.argv = []
        self.stats.commands_processed += count
        self.stats.reads_processed += len(taken)
        return count

    # -- coming back ---------------------------------------------------------------------------------------------------

    def resume(self, session: Session) -> None:
        """Let the client's held-back requests run, and its replies go out, with this tick or the next."""
        self.ran.append(session)
        self._inbox.resume(session)
        if session.account.owed:
            session.settle()
        self.want_tick()

    def want_tick(self) -> None:
        if not self._tick_due:
            self._tick_due = True
            self._loop.call_soon(self._tick)

    # -- the tick ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """One tick; what cannot be undone ends the server, for nothing in memory may be answered any more."""
        if self.gave_up:
            return
        try:
            self._run_tick()
        except StateLostError as error:
            self.give_up(error)

    def give_up(self, error: StateLostError) -> None:
        """Cut all clients off, unanswered, and have the server stop; the next start recovers from the disk.

        Nothing runs from now on: not what waits for a key, nor what is under way in slices, nor a checkpoint.
        """
        log.error("%s; stopping", error)
        self.gave_up = True
        for session in list(self.context.sessions.values()):
            session.begin_closing()
            session.out.clear()
            session.end_long_reply()
            self.slicing.drop(session)
            self.control.forget(session)
            session.peer.abort()
        self._inbox.clear()
        self.ran.clear()
        for report in self.events.gave_up:
            report()

    def let_go(self) -> None:
        """Commit what has run, answer it, and close every connection; what has not run yet never will.

        Raises StateLostError.
        """
        begun = self._time()
        self.slicing.finish_writes()
        self._inbox.clear()
        sessions = list(self.context.sessions.values())
        for session in sessions:
            session.begin_closing()
            session.end_long_reply()
            self.slicing.drop(session)
        self._end_tick(begun)
        self.releases.finish()
        for session in sessions:
            session.peer.close_soon()

    def _run_tick(self) -> None:
        """Run what was submitted, commit it, then send the replies."""
        begun = self._time()
        self._tick_due = False
        if self.slicing:
            self.slicing.take_turn(has_requests=bool(self._inbox))
        if self._signals:
            self.wakeups.serve()  # for those, and for keys that expired between requests
        self._run_inbox(begun)
        if self._inbox:
            self.want_tick()  # the rest has to wait until these have their replies
        self._end_tick(begun)

    def _end_tick(self, begun: float) -> None:
        """Commit what has run since the last tick, then send the replies."""
        try:
            committed = self.engine.commit(int(begun * 1000))
        except LogWriteError as error:
            self.undoing.commit_failed(error)
            committed = False
        else:
            self.slicing.committed()
        if committed:
            offset = self.engine.log.end.offset
            for session in self.ran:
                session.written_offset = offset
        for report in self.events.tick_over:
            report()
        ran, self.ran = self.ran, []
        self.releases.release(ran)
        stats = self.stats
        stats.writes_processed += len(ran)
        if committed:
            for report in self.events.committed:
                report()
        if self.engine.refusal is not None and not self.txn.is_short_of_space:
            self.gate.refresh()
        clients = self.accounts.clients
        if clients.is_pressed:
            clients.relax()
        self.accounts.alarm = stats.bytes_in + clients.headroom
        stats.tick.record(self._time() - begun)

    def drained(self, session: Session) -> None:
        """A client that read too slowly has caught up."""
        session.refresh()
        for report in self.events.drained:
            report(session)
        self.ran.append(session)
        self.want_tick()
