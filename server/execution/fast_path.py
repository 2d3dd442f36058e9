"""Runs the requests of a tick in order: most of them on the fast path, the others on the slow one, or queued by it.

The fast path is for plain commands of plain clients (`Session.is_plain`), and leaves out every check that such a
request passes anyway.  Most requests take it, so work that is the same for many requests is done once.
"""

from __future__ import annotations

from operator import length_hint
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.dispatch import FastCommand, FastCommands, fast_commands
from riverbed.server.commands.request import Context, Request
from riverbed.server.commands.table import Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.calls import GOES_ON
from riverbed.server.execution.control.logged_lines import make_atomic
from riverbed.server.execution.slow_path import SlowPath, Turn, Whole
from riverbed.server.protocol.encode import encode
from riverbed.server.protocol.replies import FirstReplies
from riverbed.store.errors import StateLostError
from riverbed.store.tables.writing.commands import Mark
from riverbed.store.wire import Mix, Run, behind, split_bulks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverbed.server.commands.session import Session
    from riverbed.server.execution.blocking import Blocking
    from riverbed.server.execution.calls import Calls
    from riverbed.server.execution.delivery import Delivery
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.line.request_queue import RequestQueue
    from riverbed.server.execution.line.request_queue import Turn as QueueTurn
    from riverbed.server.execution.outbox import Outbox
    from riverbed.server.execution.ticks import Turns
    from riverbed.store.wire import Neighbours, Requests
    from riverbed.store.wire import Request as WireRequest

# A tick ends after about so many requests, or so long, so that no client waits for another's long pipeline.
MAX_REQUESTS_A_TICK: Final = 2048
# Where each sync takes half a millisecond or more, the pipelines of fifty clients share one.
MAX_REQUESTS_A_SLOW_SYNC: Final = 8192
MAX_SECONDS_A_TICK: Final = 0.003
# The time that requests have in a tick in which slices took longer.
MIN_SECONDS_A_TICK: Final = 0.002
# Each wake-up makes a reply to send, which is as much work again.
MAX_SECONDS_OF_WAKING: Final = 0.004
_NO_WORDS: Final[list[bytes]] = []
_TICK_BEGINS: Final = Mark(0, 0, 0)
# What clients send.  Other spellings take the slow path.
_MULTI: Final = ([b"MULTI"], [b"multi"])
_EXEC: Final = ([b"EXEC"], [b"exec"])
# The commands of clients that may not take the fast path.
_NOTHING: Final[FastCommands] = {}
# Fast commands between two looks at the clock.
_LONGEST_RUN: Final = 32
# A transaction of more requests is queued, however it comes: to look for its end would take long.
_LONGEST_WHOLE: Final = 128
# Bytes of replies that do not wait for the end of a tick which has changed nothing: twenty reads of a hundred entries.
# They are sent while the processor has them in its cache.  Of fewer, each send would wake a client's processor.
EARLY_BYTES: Final = 128 << 10


class FastPath:
    """The fast path of one server."""

    def __init__(
        self,
        context: Context,
        turns: Turns,
        gate: Gate,
        queue: RequestQueue,
        calls: Calls,
        delivery: Delivery,
        slow_path: SlowPath,
        blocking: Blocking,
        outbox: Outbox,
        no_session: Session,
    ) -> None:
        self._stats = context.stats
        self._txn = context.txn
        self._clients = context.accounts.clients
        self._time = context.clock.time
        self._turns = turns
        self._gate = gate
        self._queue = queue
        self._calls = calls
        self._failures = calls.failures
        self._delivery = delivery
        self._slow_path = slow_path
        self._blocking = blocking
        self._signals = blocking.signals
        self._outbox = outbox
        self._request = Request(no_session, context.txn, context)  # reused for every client
        plain = fast_commands(context.stats)
        self._tables = plain, {name: entry for name, entry in plain.items() if not entry.command.flags & Flag.WRITE}
        self.most_requests = MAX_REQUESTS_A_TICK  # in a tick
        self.longest_run = _LONGEST_RUN
        self.longest_whole = _LONGEST_WHOLE  # of transactions that are not queued
        self.commands = plain  # the commands that may take the fast path just now
        gate.on_change = self._choose_commands

    def _choose_commands(self) -> None:
        """Open the fast path, or close it: for monitors, in a pause, while writes are refused."""
        everything, reads = self._tables
        gate = self._gate
        self.commands = _NOTHING if gate.closes_fast_path else reads if gate.no_writes else everything

    def run(self, tick_begun: float) -> None:
        """Run the requests that have arrived, in order; the rest stays for the next tick."""
        queue = self._queue
        queue.begin()
        begun = self._time()
        # slices have used a part of the tick; a little is left for requests in any case
        end = max(tick_begun + MAX_SECONDS_A_TICK, begun + MIN_SECONDS_A_TICK)
        waking_end = begun + MAX_SECONDS_OF_WAKING
        room = self.most_requests
        while room > 0:
            count = self._run_joined()
            if not count:
                turns = queue.take(end)
                if turns is None:
                    break
                count = self._run_or_abort(turns, room, end, waking_end)
            room -= count
            if self._turns.is_alone or self._time() >= end:
                break

    def _run_joined(self) -> int:
        """Run XADDs of clients that are next in line and have sent one each, together; -> how many.

        Thirty clients in a tick cost 0.7 us less each.  The first XADD that is not simple, see `Database.append_run`,
        and those behind it keep their places.
        """
        entry = self.commands.get(Run)
        joined = None if entry is None else self._queue.joined()
        if entry is None or joined is None:
            return 0
        run, sessions, db = joined
        request, clock = self._request, self._time
        begun = clock()
        request.now_ms = now_ms = int(begun * 1000)
        request.db, request.argv, request.run = db, _NO_WORDS, run
        before = self._txn.mark()
        try:
            reply = entry.handler(request)
        except StateLostError:
            raise
        except Exception:
            self._failures.roll_back(before)  # the request that cannot be executed fails again, in its turn
            return 0
        replies = split_bulks(reply.replies if reply.__class__ is FirstReplies else reply[0])
        done = len(replies)
        del sessions[done:]
        for session, wire in zip(sessions, replies, strict=True):
            session.commands_processed += 1
            session.last_interaction_ms = now_ms
            session.last_command = entry.name
            session.out.append(wire)
        self._turns.ran += sessions
        self._queue.took(sessions)
        if done:
            # the slow log shows the last one that was executed
            request.session, request.argv = sessions[-1], run.request(done - 1)
            self._calls.timing.record(request, entry, done, clock() - begun)
            self._stats.commands_processed += done
            self._stats.reads_processed += done
        request.argv, request.run = _NO_WORDS, None
        if self._signals:
            self._blocking.serve()
        return done

    def _run_or_abort(self, taken: list[QueueTurn], room: int, end: float, waking_end: float) -> int:
        """As `_run_turns`.  After a defect the clients of these requests are cut off: some requests are lost."""
        try:
            return self._run_turns(taken, room, end, waking_end)
        except Exception:
            for session, _ in taken:
                session.abort()
            raise

    def _run_turns(self, taken: list[QueueTurn], room: int, end: float, waking_end: float) -> int:
        """Run these requests, or as many of them as there is time for; -> how many have had their turn.

        All that is the same for every request is looked up once: with 50 clients and one request each this saves 1.3 us
        of 5 us a request.
        """
        clock = self._time
        begun = clock()
        request = self._request
        request.now_ms = now_ms = int(begun * 1000)
        ran = self._turns.ran
        txn = self._txn
        logged = txn.log
        signals = self._signals
        stats = self._stats
        most_output = self._clients.most_output
        record = self._calls.timing.record
        run_slowly = self._slow_path.run
        run_whole, queue_run = self._slow_path.run_whole, self._slow_path.queue_run
        longest_run = self.longest_run
        # A run of equal fast commands is timed as a whole: a look at the clock costs a tenth of a pipelined XADD.
        run_of: FastCommand | None = None
        run_count = longest = 0
        count = counted = 0
        unsent = 0  # bytes of replies
        left = iter(taken)
        for session, requests in left:
            ran.append(session)
            size = len(requests)
            count += size
            session.commands_processed += size
            session.last_interaction_ms = now_ms
            request.db = session.db
            out = session.out
            plain = self.commands if session.is_plain else _NOTHING
            produced = 0
            waiting = iter(requests)
            for argv in waiting:
                entry = plain.get(argv[0])
                if entry is None or not entry.least_words <= len(argv) <= entry.most_words:
                    if not isinstance(argv, list):
                        if argv[0] in self.commands and queue_run(session, argv):
                            session.commands_processed += len(argv) - 1
                            count += len(argv) - 1
                        else:
                            count += _take_one_by_one(session, argv, requests, waiting)
                        continue
                    if run_of is not None:
                        record(request, run_of, run_count, clock() - begun)
                        run_of = None
                    # INFO shows those that have run, and a refused one is taken off
                    ran_by_now = count - length_hint(waiting) - 1
                    stats.commands_processed += ran_by_now - counted
                    counted = ran_by_now
                    whole = self._whole_transaction(argv, requests, waiting, plain)
                    if whole is None:
                        turn = run_slowly(session, argv)
                    else:
                        inside = len(whole.requests)  # none is left there
                        turn = run_whole(session, argv, whole)
                        count += whole.count - inside
                        session.commands_processed += whole.count - inside
                        for _ in range(inside + 1):  # with EXEC
                            next(waiting)
                    if turn is not Turn.GOES_ON:
                        self._hold_back(session, [argv, *waiting] if turn is Turn.WAITS_BEFORE else [*waiting])
                        if self._turns.is_alone:
                            end = begun  # the others have no time
                        break
                    begun = clock()
                    if begun >= end:
                        self._hold_back(session, [*waiting])
                        break
                    # It may have taken long, or have sent the time: what follows must not be older.
                    request.now_ms = now_ms = int(begun * 1000)
                    plain = self.commands if session.is_plain else _NOTHING
                    request.db = session.db
                    continue
                is_short = len(argv) <= entry.fast_words
                if entry is run_of and is_short and run_count < longest:
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
                    longest = longest_run if is_short else 1  # the time of a long one is its own
                request.session = session  # until now that of the run before, for the slow log
                mark, extension_bytes, changes = len(logged), txn.extension_bytes, txn.changes
                if isinstance(argv, list):
                    request.argv = argv
                else:
                    request.argv, request.run = _NO_WORDS, argv
                handler = entry.handler
                try:
                    reply = handler(request)
                except CommandError as error:
                    reply = self._failures.refused(entry.command, error)
                except StateLostError:
                    raise
                except Exception as error:
                    before = Mark(mark, extension_bytes, changes)
                    if not isinstance(argv, list):
                        if not (entry.command.flags & Flag.READONLY and txn.is_unchanged_since(before)):
                            self._failures.roll_back(before)
                        # the request that cannot be executed fails again
                        run_count -= 1
                        run_of = run_of if run_count else None
                        count += _take_one_by_one(session, argv, requests, waiting)
                        continue
                    reply = self._failures.fault(entry.command, error, before)
                session.last_command = entry.name
                if reply.__class__ is tuple:
                    wire = reply[0]
                elif reply.__class__ is FirstReplies:
                    assert not isinstance(argv, list)
                    count += _take_next_alone(session, argv, reply.done, requests, waiting)
                    run_count += reply.done - 1
                    if not reply.done:
                        run_of = run_of if run_count else None
                        continue
                    request.argv = argv.request(reply.done - 1)  # the slow log shows the last one that was executed
                    session.last_command = request.argv[0].lower()
                    wire = reply.replies
                elif reply.__class__ in GOES_ON:
                    self._calls.end_command(mark)
                    share = (clock() - begun) / run_count  # as far as is known
                    assert isinstance(argv, list), "neighbours are over at once"
                    self._calls.account_later(session, entry.command, argv, reply, max(int(share * 1e9), 0))
                    if run_count > 1:
                        request.session, request.argv = _last_before(taken, left, requests, waiting)
                        record(request, entry, run_count - 1, share * (run_count - 1))
                    run_of, begun = None, clock()
                    self._delivery.deliver(session, reply)
                    self._hold_back(session, [*waiting])
                    if signals:  # what it has changed before it waits
                        self._blocking.serve()
                    break
                else:
                    wire = encode(reply, session.resp)
                out.append(wire)
                if entry.is_compound:
                    if isinstance(argv, list):
                        if txn.unlogged is not None:
                            txn.end_command()
                        if len(logged) - mark > 1:
                            make_atomic(logged, mark)
                    elif reply.__class__ is tuple:
                        if isinstance(argv, Mix):
                            session.last_command = argv.request(len(argv) - 1)[0].lower()
                        run_count += len(argv) - 1
                        count += len(argv) - 1
                        session.commands_processed += len(argv) - 1
                if signals:
                    self._blocking.serve()
                    ended = clock()
                    record(request, entry, run_count, ended - begun)
                    run_of, begun = None, ended
                    if ended >= waking_end or self._blocking.is_behind:
                        self._hold_back(session, [*waiting])
                        break
                size = len(wire)
                unsent += size
                if (
                    unsent >= EARLY_BYTES
                    and (produced + size >= EARLY_BYTES or not length_hint(waiting))  # one send for few replies
                    and txn.is_unchanged_since(_TICK_BEGINS)
                ):
                    if run_of is not None:
                        record(request, run_of, run_count, clock() - begun)
                        run_of = None
                    self._outbox.send_early(ran)
                    unsent, begun = 0, clock()
                    if begun >= end:
                        self._hold_back(session, [*waiting])
                        break
                produced += size
                if produced > most_output:
                    # a client that does not read must not have its pipeline executed ahead of its reading
                    if run_of is not None:
                        record(request, run_of, run_count, clock() - begun)
                        run_of, begun = None, clock()
                    self._hold_back(session, [*waiting])
                    break
            if count >= room or begun >= end:
                self._queue.put_back([*left])
                break
        if run_of is not None:
            record(request, run_of, run_count, clock() - begun)
        request.argv, request.run = _NO_WORDS, None
        stats.commands_processed += count - counted
        stats.reads_processed += len(taken)
        return count

    def _whole_transaction(
        self, argv: list[bytes], requests: Requests, waiting: Iterator[WireRequest], plain: FastCommands
    ) -> Whole | None:
        """What follows this request, if it is MULTI, and all up to EXEC are there and are `plain` commands."""
        if argv not in _MULTI or plain is _NOTHING:
            return None
        at = len(requests) - length_hint(waiting)
        count, only_reads = 0, True
        for end in range(at, min(len(requests), at + self.longest_whole + 1)):
            request = requests[end]
            if request in _EXEC:
                return Whole(requests[at:end], count, only_reads=only_reads)
            entry = plain.get(request[0])
            if entry is None or not entry.least_words <= len(request) <= entry.most_words:
                return None
            if isinstance(request, list):
                count += 1
            elif isinstance(request, Run | Mix):
                count += len(request)
            else:
                return None
            only_reads = only_reads and entry.command.only_reads
        return None

    def _hold_back(self, session: Session, requests: Requests) -> None:
        """Hold back requests that were taken and have to wait."""
        session.commands_processed -= len(requests)
        self._stats.commands_processed -= len(requests)
        self._queue.hold_back(session, requests)


def _last_before(
    taken: list[QueueTurn], left: Iterator[QueueTurn], requests: Requests, waiting: Iterator[WireRequest]
) -> tuple[Session, list[bytes]]:
    """The client and the words of the request that was executed before this one.

    It is of the same command; neighbours in between were queued, or are in the list once more, one by one.
    """
    turn = len(taken) - length_hint(left) - 1
    at = len(requests) - length_hint(waiting) - 1
    earlier = requests[:at]
    while True:
        while earlier:
            words = earlier.pop()
            if isinstance(words, list):
                return taken[turn][0], words
        turn -= 1
        earlier = [*taken[turn][1]]


def _take_one_by_one(session: Session, run: Neighbours, requests: Requests, waiting: Iterator[WireRequest]) -> int:
    """Put the single requests of neighbours in their place, before those in `waiting`; -> how many more these are."""
    at = len(requests) - length_hint(waiting)
    requests[at:at] = run.requests()
    session.commands_processed += len(run) - 1
    return len(run) - 1


def _take_next_alone(
    session: Session, run: Neighbours, done: int, requests: Requests, waiting: Iterator[WireRequest]
) -> int:
    """Put the request behind the first `done` of neighbours, and what is left of them, before those in `waiting`.

    -> how many more requests these are, with those that are done.
    """
    left = behind(run, done)
    at = len(requests) - length_hint(waiting)
    requests[at:at] = left
    more = done + len(left) - 1
    session.commands_processed += more
    return more
