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
import enum
import logging
import time
from typing import TYPE_CHECKING, Final

from riverbed.server.background.log_rewrite import Rewriting
from riverbed.server.background.maintenance import Upkeep
from riverbed.server.background.snapshots import Snapshots
from riverbed.server.background.tasks import Tasks
from riverbed.server.commands.dispatch import Plain, plain_commands
from riverbed.server.commands.replay import NO_PEER
from riverbed.server.commands.request import Context, Request
from riverbed.server.commands.session import Session
from riverbed.server.commands.slices import Slices
from riverbed.server.commands.table import Command, Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.admission import Admission
from riverbed.server.execution.blocking import Wakeups
from riverbed.server.execution.config_changes import apply_settings
from riverbed.server.execution.control import Controls
from riverbed.server.execution.failures import Undoing
from riverbed.server.execution.outbox import Releases
from riverbed.server.execution.request_queue import Inbox
from riverbed.server.execution.sliced_commands import Slicing
from riverbed.server.execution.stopping import Stopping
from riverbed.server.execution.timing import Timing
from riverbed.server.execution.transaction_replies import SpoolSpace
from riverbed.server.limits.accounts import Account
from riverbed.server.limits.eviction import Evictor
from riverbed.server.protocol.encode import encode, error_line
from riverbed.server.protocol.replies import NO_REPLY, Block, LongReply, Push, Settled, is_settled, settled_constant
from riverbed.server.protocol.request_reader import RequestReader
from riverbed.server.replication.role import Replication
from riverbed.store.engine import Engine
from riverbed.store.errors import LogWriteError, StateLostError

if TYPE_CHECKING:
    from riverbed.server.commands.session import Peer
    from riverbed.server.commands.table import Handler
    from riverbed.server.config.config import Config
    from riverbed.server.execution.request_queue import Turn as InboxTurn
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.options import Clock

log = logging.getLogger("riverbed")

# Replies behind which the client's next request has to wait.
_WAITS: Final = frozenset((Block, LongReply, Slices))
# What stands for no reply.
_UNANSWERED: Final = frozenset((Block, Slices, Push))
(_QUEUED,) = settled_constant(b"+QUEUED\r\n")
_MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n"
_SELECT: Final = b"*2\r\n$6\r\nSELECT"
_EXEC: Final = b"*1\r\n$4\r\nEXEC\r\n"
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


class Turn(enum.Enum):
    """What becomes of a client's next request."""

    GOES_ON = enum.auto()
    WAITS_BEFORE = enum.auto()  # this request has not run yet
    WAITS_AFTER = enum.auto()


class Executor:
    """Runs what clients ask for.  Needs a running asyncio loop."""

    def __init__(self, config: Config, engine: Engine, clock: Clock) -> None:
        self.loop = self._loop = asyncio.get_running_loop()
        self.config = config
        self.engine = engine
        self.txn = engine.txn
        self.clock = clock
        self.control = Controls(self)
        self.context = Context(config, engine, self.control, clock)
        self.stats = self.context.stats
        self.tasks = Tasks(self.loop, self.stats.background)
        engine.on_sync = self.stats.fsync.record
        engine.checkpoints.on_end = self.stats.checkpoint.record
        self.context.pubsub.deliver = self.push
        self.special = False  # no request may take the fast path
        self._plain = plain_commands(self.stats)
        self._plain_reads = {name: plain for name, plain in self._plain.items() if not plain.command.flags & Flag.WRITE}
        self.fast_path = self._plain
        self._caller: Session | None = None  # whose command is running on the careful path
        self.wakeups = Wakeups(self)
        self.spool_space = SpoolSpace(engine, lambda: config.maxclients - len(self.context.sessions))
        self.slicing = Slicing(self)
        self.views = self.slicing.views
        self.releases = Releases(self)
        self.admission = Admission(self)
        self.timing = Timing(self.config, self.stats, clock)
        self.undoing = Undoing(self)
        self.waiters = self.wakeups.waiters
        self.watches = self.wakeups.watches
        self.upkeep = Upkeep(self)
        self.views.checkpoint_soon = self.upkeep.checkpoint_soon
        self.replication = self.context.replication = Replication(self)
        self.rewriting = Rewriting(self)
        self.snapshots = Snapshots(self)
        self.stopping = self.context.stopping = Stopping(self)
        self.gave_up = False
        self._time = clock.time
        no_session = Session(0, NO_PEER, self.txn.databases[0], 0)
        # whichever client sends it: one of the fast path, and one of the careful path
        self._request = Request(no_session, self.txn, self.context)
        self._careful_request = Request(no_session, self.txn, self.context)
        self._next_client_id = 1
        self.accounts = self.context.accounts
        self.accounts.clients.on_pressure = self._read_small_pieces
        self.evictor = Evictor(self.accounts.holders, self.stats, self.cut_off)
        self._inbox = Inbox(self._finish, clock.time)
        self._arrivals = self._inbox.arrivals
        self.ran: list[Session] = []  # sessions that may have replies of this tick
        self._tick_due = False
        self._signals = self.wakeups.signals
        self.txn.notify = self.wakeups.notify
        self.refresh_special()
        apply_settings(self)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def connect(self, peer: Peer) -> Session:
        """A client has come."""
        session = Session(self._next_client_id, peer, self.txn.databases[0], self.now_ms())
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
        self.replication.disconnect(session)

    def cut_off(self, client_id: int) -> None:
        """End a client's connection and all that is kept for it now, unanswered; between two ticks."""
        session = self.context.sessions[client_id]
        session.peer.abort()
        self.disconnect(session)

    def refresh_special(self) -> None:
        """Give all clients the fast path, or take it from them: for monitors, in a pause, while writes are refused."""
        self.txn.is_short_of_space = self.engine.refusal is not None
        replication = self.replication
        self.special = self.control.watches_everything or self.txn.is_short_of_space or replication.refuses_reads
        self.fast_path = _NOTHING if self.special else self._plain_reads if replication.refuses_writes else self._plain

    def flush(self, session: Session) -> None:
        """Send the session's replies with the next tick although it has run nothing; close it then if it is closing."""
        self.ran.append(session)
        self.want_tick()

    def postpone(self, sessions: list[Session]) -> None:
        """As `flush`, for those who come first in the next tick, because this one had no time for them."""
        self.ran[:0] = sessions
        self.want_tick()

    def now_ms(self) -> int:
        return int(self._time() * 1000)

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
        record = self.timing.record
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
                    turn = self._run_carefully(session, argv)
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
                    self.end_command(mark)
                    self.deliver(session, reply)
                    self._hold_back(session, [*waiting])
                    break
                else:
                    wire = encode(reply, session.resp)
                out.append(wire)
                if entry.is_compound:
                    if txn.unlogged is not None:
                        txn.end_command()
                    if len(logged) - mark > 1:
                        self._make_atomic(mark)
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

    # -- the careful path ----------------------------------------------------------------------------------------------

    def _run_carefully(self, session: Session, argv: list[bytes]) -> Turn:
        """Run one request with every check."""
        if session.closing:
            return Turn.GOES_ON
        if session.must_wait:
            return Turn.WAITS_BEFORE
        command = self.admission.admit(session, argv)
        if isinstance(command, bytes):
            self.answer(session, command)
            return Turn.GOES_ON
        if session.queued is not None and not command.flags & Flag.IMMEDIATE:
            session.queue(argv)
            if session.queued_bytes > self.config.client_query_buffer_limit:
                self.stats.query_limit_disconnections += 1
                self.control.kill(session)
            self.answer(session, _QUEUED)
            return Turn.GOES_ON
        if self.control.holds_back(session, command):
            return Turn.WAITS_BEFORE
        session.last_command = command.full_name
        self._caller = session
        reply = self.call(session, command, argv)
        self._caller = None
        if self.control.monitors:
            self.control.feed_monitors(session, command, argv)
        if reply is not NO_REPLY:
            self.deliver_for(command, session, reply)
        if session.held_pushes and session.long_reply is None:
            session.release_pushes()
        if self._signals:
            self.wakeups.serve()
        # what the command may have changed: it blocked, or its reply is a long one
        must_wait: bool = session.must_wait
        return Turn.WAITS_AFTER if must_wait else Turn.GOES_ON

    def deliver(self, session: Session, reply: Reply) -> None:
        """Put a reply of any kind where it belongs."""
        if reply.__class__ is tuple:
            self.answer(session, reply[0])
        elif reply.__class__ is Block:
            self.wakeups.block(session, reply)
        elif reply.__class__ is Slices:
            self.slicing.begin(session, reply)
        elif reply.__class__ is LongReply:
            self._begin_long_reply(session, reply)
        elif reply.__class__ is Push:
            session.out.append(reply)
            if session.skip_replies:
                session.skip_replies -= 1
                session.refresh()
        else:
            self.answer(session, encode(reply, session.resp))

    def deliver_for(self, command: Command, session: Session, reply: Reply) -> None:
        """As `deliver`; what the command replies is settled unless it rests on the tables."""
        if command.rests_on_tables:
            self.deliver(session, reply)
        else:
            self.deliver_settled(session, reply)

    def deliver_settled(self, session: Session, reply: Reply) -> None:
        """As `deliver`, of a reply that a failed commit does not take back."""
        if reply.__class__ is LongReply:
            reply.is_settled = True
        elif reply.__class__ not in _UNANSWERED:
            wire = encode(reply, session.resp)
            reply = (wire if is_settled(wire) else Settled(wire),)
        self.deliver(session, reply)

    def _begin_long_reply(self, session: Session, reply: LongReply) -> None:
        """Have the reply sent while the client takes it, unless the client has asked for none."""
        if session.skip_replies or session.replies_off or session.closing:
            reply.close()
            self.answer(session, b"")
        else:
            session.begin_long_reply(reply, self.clock.monotonic())

    def push(self, session: Session, message: Push) -> None:
        """Send a client what it did not ask for: behind its replies so far, and never in the middle of one.

        A client that publishes to itself hears of it behind the reply, as in Redis since 7.2: inside EXEC there would
        be one element too many otherwise.
        """
        if session.closing:
            return
        if session is self._caller or session.long_reply is not None:
            session.hold_push(message)
        else:
            session.out.append(message)
        self.flush(session)

    def call(self, session: Session, command: Command, argv: list[bytes]) -> Reply:
        """Run the command for the client, and account for it."""
        request = self._careful_request
        request.session = session
        request.db = session.db
        request.argv = argv
        request.now_ms = self.now_ms()
        begun = time.perf_counter_ns()
        reply = self.attempt(request, command, command.handler)
        nanoseconds = time.perf_counter_ns() - begun
        request.argv = []  # or the words would stay until the next one
        self.stats.counters(command.full_name).record(nanoseconds)
        self.timing.note(session, command, argv, nanoseconds)
        return reply

    def attempt(self, request: Request, command: Command, handler: Handler) -> Reply:
        """Run the handler; an error becomes the reply.  What it logged is undone if it fails for no good reason."""
        mark = len(self.txn.log)
        try:
            reply = handler(request)
        except CommandError as error:
            reply = self.undoing.refused(command, error)
        except StateLostError:
            raise
        except Exception as error:
            reply = self.undoing.fault(command, error, mark)
        self.end_command(mark)
        return reply

    def answer(self, session: Session, wire: bytes) -> None:
        """One reply, unless the client has asked for none."""
        if session.skip_replies:
            session.skip_replies -= 1
            session.refresh()
        elif not session.replies_off:
            session.out.append(wire)

    def end_command(self, mark: int) -> None:
        """Have all that the command did logged; its first line is number `mark` of the tick."""
        self.txn.end_command()
        if len(self.txn.log) - mark > 1:
            self._make_atomic(mark)

    def _make_atomic(self, mark: int) -> None:
        """A command whose effect is several logged commands stands between MULTI and EXEC, for foreign readers."""
        logged = self.txn.log
        if logged[mark : mark + 1] and logged[mark].startswith(_SELECT):
            mark += 1  # a file of the log begins with SELECT, whatever comes then
        plain = [lines for lines in logged[mark:] if not lines.startswith((b"#", _SELECT))]
        if len(plain) > 1 and plain[0] != _MULTI:
            logged.insert(mark, _MULTI)
            logged.append(_EXEC)

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
        self.upkeep.stop()
        for session in list(self.context.sessions.values()):
            session.begin_closing()
            session.out.clear()
            session.end_long_reply()
            self.slicing.drop(session)
            self.control.forget(session)
            session.peer.abort()
        self._inbox.clear()
        self.ran.clear()
        self.stopping.give_up()

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
        if self.replication.primary.waits:
            self.replication.committed()
        ran, self.ran = self.ran, []
        self.releases.release(ran)
        stats = self.stats
        stats.writes_processed += len(ran)
        if committed:
            self.upkeep.committed()
        if self.engine.refusal is not None and not self.special:
            self.refresh_special()
        clients = self.accounts.clients
        if clients.is_pressed:
            clients.relax()
        self.accounts.alarm = stats.bytes_in + clients.headroom
        stats.tick.record(self._time() - begun)

    def drained(self, session: Session) -> None:
        """A client that read too slowly has caught up."""
        session.refresh()
        self.replication.drained(session)
        self.ran.append(session)
        self.want_tick()
