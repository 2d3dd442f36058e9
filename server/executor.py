"""The executor: runs requests in order against one write transaction, commits once a tick, then releases the replies.

    data arrives -> submit(session, requests)            as often as there are readable sockets
                              |
    tick: handlers -> mutators, for all of them in order            once, when the loop has read them all
          log.write + fdatasync, once
          replies of all sessions go out

No reply leaves before the tick's commit, so nobody sees what a crash could take back.  A failed commit undoes the
tick, and its clients are told.  Everything is one thread; nothing here waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

import lmdb

from server.blocked import Place, Waiters, Watches
from server.context import Context
from server.dispatch import Plain, client_command, plain_commands
from server.encode import encode, error_line
from server.errors import CommandError, wrong_arity
from server.replay import NOBODY, Replayer
from server.replies import NO_REPLY, NULL_ARRAY, Park
from server.commands.table import Command, Flag
from server.session import Request, Session
from server.upkeep import Upkeep
from store.engine import Engine, Fsync, Options, Refusal
from store.errors import LogWriteError
from store.streams import Change

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from server.config import Config
    from server.replies import Reply
    from server.session import Peer
    from store.engine import Clock
    from store.keyspace import Database

log = logging.getLogger("riverbed")

NOAUTH: Final = "NOAUTH Authentication required."
EXECABORT: Final = "EXECABORT Transaction discarded because of previous errors."
EXECABORT_BECAUSE: Final = b"EXECABORT Transaction discarded because of: %b"
NOT_IN_MULTI: Final = "ERR Command not allowed inside a transaction"
UNBLOCKED: Final = "UNBLOCKED client unblocked via CLIENT UNBLOCK"
MISCONF: Final = {
    Refusal.DISK_NEARLY_FULL: "MISCONF The disk is nearly full. Commands that need space are refused until there is "
    "some again; reading, deleting and trimming go on.",
    Refusal.DISK_FULL: "MISCONF The disk is full. Writes are refused until there is space again; reads go on.",
    Refusal.LOG_FAILED: "MISCONF Errors writing to the AOF file: the log could not be written or synced. Writes are "
    "refused until a restart; reads go on.",
}
_QUEUED: Final = b"+QUEUED\r\n"
_MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n"
_EXEC: Final = b"*1\r\n$4\r\nEXEC\r\n"
# What wakes those who wait for a key.  Trims and deletions of entries wake nobody.
_WAKING: Final = frozenset(Change) - {Change.MODIFIED}
# What breaks a transaction that watches a key.
_BREAKING: Final = frozenset(Change) - {Change.GROUP_REMOVED, Change.RELEASED}


# A tick ends after about so many requests, some 5 ms, so that no client waits for another's long pipeline.
MOST_REQUESTS_A_TICK: Final = 2048


class SystemClock:
    """The real one."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class Executor:
    """Runs what clients ask for.  Needs a running asyncio loop."""

    def __init__(self, config: Config, engine: Engine, replayer: Replayer, clock: Clock) -> None:
        self.config = config
        self.engine = engine
        self.txn = engine.txn
        self.clock = clock
        self.context = Context(config, engine, self, clock)
        replayer.context = self.context
        self.stats = self.context.stats
        self.monitors: list[Session] = []
        self.waiters = Waiters()
        self.watches = Watches()
        self.upkeep = Upkeep(self)
        # Called when a command asks the server to stop: (save) -> None.
        self.on_shutdown: Callable[[bool], None] = lambda save: None
        self.special = False  # no request may take the fast path
        self._loop = asyncio.get_running_loop()
        self._time = clock.time
        self._plain = plain_commands(self.stats)
        nobody = Session(0, NOBODY, self.txn.databases[0], 0)
        self._request = Request(self.context, nobody, self.txn)  # of the fast path, whoever sends it
        self._next_client_id = 1
        self._inbox: list[tuple[Session, list[list[bytes]]]] = []
        self._ran: list[Session] = []  # sessions that may have replies of this tick
        self._tick_due = False
        self._signals: list[Place] = []  # keys that changed and that somebody waits for
        self._pause_until_ms = 0
        self._pause_writes_only = False
        self._paused: dict[Session, None] = {}
        self._pause_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadline_timer_ms = 0
        self.txn.notify = self._notify
        self.refresh_special()
        self._follow_config()

    def _follow_config(self) -> None:
        """Apply the settings that the store acts on, now and whenever they change."""
        config, engine = self.config, self.engine

        def apply() -> None:
            slower_than_us = config.slowlog_log_slower_than
            thresholds = [slower_than_us] if slower_than_us >= 0 else []
            if config.latency_monitor_threshold:
                thresholds.append(config.latency_monitor_threshold * 1000)
            self._slow_ns = min(thresholds) * 1000 if thresholds else 1 << 62
            engine.options.fsync = Fsync(config.appendfsync)
            engine.configure_nodes(config.stream_node_max_entries, config.stream_node_max_bytes)
            engine.txn.idmp_duration_s = config.stream_idmp_duration
            engine.txn.idmp_max_records = config.stream_idmp_maxsize

        apply()
        for name in (
            "slowlog-log-slower-than",
            "latency-monitor-threshold",
            "appendfsync",
            "stream-node-max-entries",
            "stream-node-max-bytes",
            "stream-idmp-duration",
            "stream-idmp-maxsize",
        ):
            config.observe(name, apply)

    # -- sessions --------------------------------------------------------------------------------------------------------

    def connect(self, peer: Peer) -> Session:
        """A client has come."""
        session = Session(self._next_client_id, peer, self.txn.databases[0], self.now_ms())
        self._next_client_id += 1
        session.request = Request(self.context, session, self.txn)
        session.authenticated = not self.config.requirepass
        session.fast_path = {} if self.special else self._plain
        session.refresh_special()
        self.context.sessions[session.id] = session
        self.stats.connections_received += 1
        return session

    def disconnect(self, session: Session) -> None:
        """A client has gone."""
        self.forget(session)
        session.closing = True
        session.backlog.clear()
        session.out.clear()
        self._paused.pop(session, None)
        self.context.sessions.pop(session.id, None)

    def forget(self, session: Session) -> None:
        """See `Control.forget`."""
        if session in self.waiters:
            self.waiters.release(session)
        self.forget_transaction(session)
        if session in self.monitors:
            self.monitors.remove(session)
            session.is_monitor = False
            self.refresh_special()
        session.refresh_special()

    def forget_transaction(self, session: Session) -> None:
        self.watches.clear(session)
        session.queued = None
        session.queue_failed = False
        session.refresh_special()

    def refresh_special(self) -> None:
        """Give everybody the fast path, or take it from them: for monitors, during a pause, while writes are refused."""
        special = bool(self.monitors or self._pause_until_ms or self.engine.refusal is not None)
        if special != self.special:
            self.special = special
            for session in self.context.sessions.values():
                session.fast_path = {} if special else self._plain
                session.refresh_special()

    def flush(self, session: Session) -> None:
        """Send the session's replies with the next tick although it has run nothing; close it then if it is closing."""
        self._ran.append(session)
        self.want_tick()

    def now_ms(self) -> int:
        return int(self._time() * 1000)

    # -- requests --------------------------------------------------------------------------------------------------------

    def submit(self, session: Session, requests: list[list[bytes]]) -> None:
        """Have `requests` of one client, which arrived together, run in the next tick."""
        self._inbox.append((session, requests))
        if not self._tick_due:
            self._tick_due = True
            self._loop.call_soon(self._tick)

    def run_now(self, session: Session, requests: list[list[bytes]]) -> None:
        """As `submit`, but run them, and what was submitted before, at once; the replies still wait for the tick.

        For a client whose next bytes cannot be judged before: after AUTH longer requests are allowed.
        """
        self.submit(session, requests)
        self._run_inbox()

    def _run_inbox(self) -> None:
        """Run what was submitted, in order; what is too much for one tick stays for the next.

        All that is the same for every request of the tick is looked up once: at 50 clients with one request each
        that is 1.3 us of 5 a request.
        """
        inbox, self._inbox = self._inbox, []
        clock = self._time
        begun = clock()
        request = self._request
        request.now_ms = now_ms = int(begun * 1000)
        ran = self._ran
        logged = self.txn.log
        signals = self._signals
        # A run of equal fast commands is timed as a whole: a look at the clock costs a tenth of a pipelined XADD.
        run_of: Plain | None = None
        run_count = 0
        count = 0
        for position, (session, requests) in enumerate(inbox):
            ran.append(session)
            if session.backlog or session.parked is not None:
                session.backlog += requests
                continue
            count += len(requests)
            session.commands_processed += len(requests)
            session.last_interaction_ms = now_ms
            request.session = session
            request.db = session.db
            out = session.out
            plain = session.plain
            waiting = iter(requests)
            for argv in waiting:
                entry = plain.get(argv[0])
                if entry is None or not entry.least_words <= len(argv) <= entry.most_words:
                    if run_of is not None:
                        self._record(run_of, run_count, clock() - begun)
                        run_of = None
                    if not self._run_carefully(session, argv):
                        session.backlog += [argv, *waiting] if session in self._paused else waiting
                        break
                    begun = clock()
                    plain = session.plain
                    request.session = session
                    request.db = session.db
                    continue
                if entry is run_of and entry.is_fast:
                    run_count += 1
                else:
                    if run_of is not None:
                        ended = clock()
                        self._record(run_of, run_count, ended - begun)
                        begun = ended
                    run_of, run_count = entry, 1
                mark = len(logged)
                request.argv = argv
                try:
                    reply = entry.handler(request)
                except CommandError as error:
                    reply = self._refused(entry.command, error)
                except Exception as error:
                    reply = self._fault(entry.command, error, mark)
                if reply.__class__ is tuple:
                    out.append(reply[0])
                elif reply.__class__ is Park:
                    session.last_command = entry.name
                    self._park(session, reply)
                    session.backlog += waiting
                    break
                else:
                    out.append(encode(reply, session.resp))
                if entry.is_compound and len(logged) - mark > 1:
                    self._make_atomic(mark)
                if signals:
                    self._serve_waiters()
                session.last_command = entry.name
            if count >= MOST_REQUESTS_A_TICK and position + 1 < len(inbox):
                self._inbox[:0] = inbox[position + 1 :]
                break
        if run_of is not None:
            self._record(run_of, run_count, clock() - begun)
        self.stats.commands_processed += count

    def _record(self, entry: Plain, count: int, seconds: float) -> None:
        """Account for a run of `count` calls of one command, the last of which `_request` still holds."""
        nanoseconds = max(int(seconds * 1e9), 0)  # the clock may have been set back
        entry.counters.record_run(count, nanoseconds)
        if nanoseconds >= self._slow_ns * count:
            request = self._request
            self._note_slow(request.session, entry.command, request.argv, nanoseconds // count // 1000)

    def _note_slow(self, session: Session, command: Command, argv: list[bytes], usec: int) -> None:
        config = self.config
        now = int(self.clock.time())
        slower_than = config.slowlog_log_slower_than
        if 0 <= slower_than <= usec and not command.flags & Flag.SKIP_SLOWLOG:
            self.stats.slowlog.add(
                argv, usec, now, session.peer.address.encode(), session.name, config.slowlog_max_len
            )
        event = b"fast-command" if command.flags & Flag.FAST else b"command"
        self.stats.latency.add(event, now, usec // 1000, config.latency_monitor_threshold)

    # -- the careful path ------------------------------------------------------------------------------------------------

    def _run_carefully(self, session: Session, argv: list[bytes]) -> bool:
        """Run one request with every check; False when the client must wait before its next one."""
        if session.closing:
            return True
        request = session.request
        command = None
        try:
            command = client_command(argv)
            self._check(session, command, argv)
        except CommandError as error:
            if session.queued is not None:
                if command is not None and command.name == b"EXEC":
                    # a refused EXEC ends the transaction all the same
                    self.forget_transaction(session)
                    error = CommandError(EXECABORT_BECAUSE % error.text.removeprefix(b"ERR "))
                else:
                    session.queue_failed = True
            self.stats.count_error(error.text)
            if command is not None:
                self.stats.counters(command.full_name).rejected += 1
            self._answer(session, error_line(error.text))
            return True
        if session.queued is not None and not command.flags & Flag.IMMEDIATE:
            session.queued.append(argv)
            self._answer(session, _QUEUED)
            return True
        if self._must_pause(command):
            self._paused[session] = None
            return False
        if self.monitors and not command.flags & (Flag.SKIP_MONITOR | Flag.ADMIN):
            self._feed_monitors(session, argv)
        request.now_ms = self.now_ms()
        request.db = session.db
        request.argv = argv
        session.last_command = command.full_name
        reply = self._call(session, command, argv)
        if reply.__class__ is Park:
            self._park(session, reply)
            return False
        if reply is not NO_REPLY:
            self._answer(session, reply[0] if reply.__class__ is tuple else encode(reply, session.resp))
        if self._signals:
            self._serve_waiters()
        return True

    def _check(self, session: Session, command: Command, argv: list[bytes]) -> None:
        """Raise what refuses the command before it runs."""
        flags = command.flags
        if not command.accepts(len(argv)):
            raise wrong_arity(command.full_name)
        if not session.authenticated and not flags & Flag.NO_AUTH:
            raise CommandError(NOAUTH)
        if session.queued is not None and flags & Flag.NO_MULTI:
            raise CommandError(NOT_IN_MULTI)
        refusal = self.engine.refusal
        if refusal is not None and flags & Flag.WRITE and (
            flags & Flag.DENYOOM or refusal is Refusal.LOG_FAILED
        ):
            raise CommandError(MISCONF[refusal])

    def _call(self, session: Session, command: Command, argv: list[bytes]) -> Reply:
        """Run the handler; an error becomes the reply."""
        mark = len(self.txn.log)
        begun = time.perf_counter_ns()
        try:
            reply = command.handler(session.request)
        except CommandError as error:
            reply = self._refused(command, error)
        except Exception as error:
            reply = self._fault(command, error, mark)
        nanoseconds = time.perf_counter_ns() - begun
        if len(self.txn.log) - mark > 1:
            self._make_atomic(mark)
        self.stats.counters(command.full_name).record(nanoseconds)
        if nanoseconds >= self._slow_ns:
            self._note_slow(session, command, argv, nanoseconds // 1000)
        return reply

    def _answer(self, session: Session, wire: bytes) -> None:
        """One reply, unless the client has asked for none."""
        if session.skip_replies:
            session.skip_replies -= 1
            session.refresh_special()
        elif not session.replies_off:
            session.out.append(wire)

    def _refused(self, command: Command, error: CommandError) -> tuple[bytes]:
        self.stats.counters(command.full_name).failed += 1
        self.stats.count_error(error.text)
        return (error_line(error.text),)

    def _fault(self, command: Command, error: Exception, mark: int) -> tuple[bytes]:
        """Something escaped a handler: undo that command, keep what came before it, tell the client."""
        if isinstance(error, lmdb.Error):
            log.warning("%s was undone: %s", command.full_name.decode(), error)
            text = f"MISCONF {command.full_name.decode()} was undone, the store refused it: {error}"
        else:
            log.error("a bug: %s was undone", command.full_name.decode(), exc_info=error)
            text = f"ERR internal error: {command.full_name.decode()} was undone ({type(error).__name__})"
        try:
            self.engine.rollback(mark, self.now_ms())
        except LogWriteError as failure:
            self._commit_failed(failure)
        return self._refused(command, CommandError(text.replace("\n", " ")))

    def _make_atomic(self, mark: int) -> None:
        """A command whose effect is several logged commands stands between MULTI and EXEC, for foreign readers."""
        logged = self.txn.log
        plain = [lines for lines in logged[mark:] if not lines.startswith((b"#", b"*2\r\n$6\r\nSELECT"))]
        if len(plain) > 1 and plain[0] != _MULTI:
            logged.insert(mark, _MULTI)
            logged.append(_EXEC)

    # -- transactions ----------------------------------------------------------------------------------------------------

    def execute_queued(self, request: Request) -> Reply:
        """See `Control.execute_queued`.  The log shows the transaction as one, between MULTI and EXEC."""
        session = request.session
        queued, session.queued = session.queued or [], None
        failed, session.queue_failed = session.queue_failed, False
        for _, key in list(session.watched):
            session.db.stream(key, request.now_ms)  # a deadline that has passed breaks the watch
        broken = session.watch_broken
        self.watches.clear(session)
        session.refresh_special()
        if failed:
            raise CommandError(EXECABORT)
        if broken:
            return NULL_ARRAY
        refusal = self.engine.refusal
        replies: list[Reply] = []
        mark = len(self.txn.log)
        request.in_transaction = True
        request.may_block = False
        try:
            for argv in queued:
                command = client_command(argv)
                if refusal is not None:
                    self._check(session, command, argv)
                request.argv = argv
                request.db = session.db
                counters = self.stats.counters(command.full_name)
                begun = time.perf_counter_ns()
                try:
                    reply = command.handler(request)
                except CommandError as error:
                    counters.failed += 1
                    self.stats.count_error(error.text)
                    reply = error
                counters.record(time.perf_counter_ns() - begun)
                if self.monitors and not command.flags & Flag.SKIP_MONITOR:
                    self._feed_monitors(session, argv)
                replies.append(reply)
        finally:
            request.in_transaction = False
            request.may_block = True
        self.stats.commands_processed += len(queued)
        self._make_atomic(mark)
        return replies

    def watch(self, session: Session, key: bytes) -> None:
        self.watches.add(session, key)

    def unwatch(self, session: Session) -> None:
        self.watches.clear(session)

    def monitor(self, session: Session) -> None:
        if not session.is_monitor:
            session.is_monitor = True
            self.monitors.append(session)
            session.refresh_special()
            self.refresh_special()

    # -- waiting ---------------------------------------------------------------------------------------------------------

    def _notify(self, change: Change, db: Database, key: bytes) -> None:
        place = (db, key)
        if change in _BREAKING:
            self.watches.changed(place)
        if change in _WAKING and self.waiters.waits_for(place):
            self._signals.append(place)

    def _park(self, session: Session, park: Park) -> None:
        self.waiters.park(session, park)
        self._arm_deadline()

    def _serve_waiters(self) -> None:
        """Run again the commands of those who wait for keys that have changed, in the order they came."""
        while self._signals:
            places = dict.fromkeys(self._signals)
            self._signals.clear()
            for place in places:
                for session in self.waiters.waiting_for(place):
                    if session.parked is not None:
                        self._retry(session, session.parked)

    def _retry(self, session: Session, park: Park) -> None:
        request = session.request
        request.now_ms = self.now_ms()
        request.db = session.db
        request.argv = park.argv
        command = client_command(park.argv)
        reply = self._call(session, command, park.argv)
        if reply.__class__ is not Park:
            self._end_wait(session, reply[0] if reply.__class__ is tuple else encode(reply, session.resp))

    def _end_wait(self, session: Session, wire: bytes) -> None:
        self.waiters.release(session)
        self._answer(session, wire)
        self._resume(session)

    def _resume(self, session: Session) -> None:
        """Let the client's held-back requests run, and its replies go out, with this tick or the next."""
        self._ran.append(session)
        backlog, session.backlog = session.backlog, []
        if backlog:
            self._inbox.append((session, backlog))
        self.want_tick()

    def want_tick(self) -> None:
        if not self._tick_due:
            self._tick_due = True
            self._loop.call_soon(self._tick)

    def unblock(self, session: Session, *, error: bool) -> bool:
        if session.parked is None:
            return False
        self._end_wait(session, error_line(UNBLOCKED.encode()) if error else encode(NULL_ARRAY, session.resp))
        return True

    def blocked_clients(self) -> int:
        return len(self.waiters)

    def _arm_deadline(self) -> None:
        """Keep one timer, for the earliest deadline."""
        deadline_ms = self.waiters.next_deadline_ms
        if deadline_ms is None or (self._deadline_timer is not None and self._deadline_timer_ms <= deadline_ms):
            return
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer_ms = deadline_ms
        delay = max(deadline_ms / 1000 - self.clock.time(), 0)
        self._deadline_timer = self._loop.call_later(delay, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._deadline_timer = None
        for session in self.waiters.due(self.now_ms()):
            self._end_wait(session, encode(NULL_ARRAY, session.resp))
        self._arm_deadline()

    # -- the tick --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Run what was submitted, commit it, then send the replies."""
        begun = self._time()
        self._tick_due = False
        self._run_inbox()
        if self._inbox:
            self.want_tick()  # the rest has to wait until these have their replies
        try:
            committed = self.engine.commit(int(begun * 1000))
        except LogWriteError as error:
            self._commit_failed(error)
            committed = False
        ran, self._ran = self._ran, []
        sent = 0
        for session in ran:
            out = session.out
            if out:
                data = out[0] if len(out) == 1 else b"".join(out)
                out.clear()
                size = len(data)
                sent += size
                session.bytes_out += size
                session.send(data)
            if session.attention:
                session.peer.attend()
        stats = self.stats
        stats.bytes_out += sent
        stats.writes_processed += len(ran)
        if committed:
            self.upkeep.committed()
        if self.engine.refusal is not None and not self.special:
            self.refresh_special()
        stats.note_tick((self._time() - begun) * 1000)

    def _commit_failed(self, error: LogWriteError) -> None:
        """The tick was undone: every reply of it becomes an error, for any of them may rest on what is gone."""
        refusal = self.engine.refusal or Refusal.LOG_FAILED
        log.warning("a tick was undone: %s; %s", error, refusal.value)
        line = error_line(MISCONF[refusal].encode())
        for session in self._ran:
            session.out[:] = [line] * len(session.out)
        self.refresh_special()

    # -- what else commands ask for --------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        try:
            self.upkeep.checkpoint_now()
        except (LogWriteError, lmdb.Error, OSError) as error:
            raise CommandError(f"ERR the checkpoint failed: {error}") from None

    def shutdown(self, *, save: bool) -> None:
        self._loop.call_soon(self.on_shutdown, save)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def kill(self, session: Session) -> None:
        session.closing = True
        session.refresh_special()
        if session.parked is not None:
            self.waiters.release(session)
        session.peer.close_soon()

    def pause(self, until_ms: int, *, writes_only: bool) -> None:
        self._pause_until_ms = max(until_ms, self._pause_until_ms)
        self._pause_writes_only = writes_only and (self._pause_writes_only or not self._paused)
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        delay = max(self._pause_until_ms / 1000 - self.clock.time(), 0)
        self._pause_timer = self._loop.call_later(delay, self.unpause)
        self.refresh_special()

    def unpause(self) -> None:
        self._pause_until_ms = 0
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        self.refresh_special()
        paused, self._paused = self._paused, {}
        for session in paused:
            self._resume(session)

    def _must_pause(self, command: Command) -> bool:
        if not self._pause_until_ms or command.name.startswith((b"CLIENT", b"SHUTDOWN")):
            return False
        return not self._pause_writes_only or bool(command.flags & Flag.WRITE) or command.name == b"EXEC"

    def _feed_monitors(self, session: Session, argv: list[bytes]) -> None:
        words = b" ".join([b'"%b"' % _quoted(word) for word in argv])
        line = b"+%.6f [%d %b] %b\r\n" % (self.clock.time(), session.db.number, session.peer.address.encode(), words)
        for monitor in self.monitors:
            if monitor is not session:
                monitor.out.append(line)
                self._ran.append(monitor)
        self.want_tick()


def _quoted(word: bytes) -> bytes:
    """A word as MONITOR shows it: printable, with C escapes."""
    return "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in word).encode()


_ESCAPES: Final = {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    7: "\\a",
    8: "\\b",
}


def open_executor(config: Config, directory: Path, clock: Clock | None = None) -> Executor:
    """Open the store at `directory` and an executor over it.  Raises what `Engine.open` does."""
    clock = clock or SystemClock()
    replayer = Replayer()
    options = Options(
        fsync=Fsync(config.appendfsync),
        map_bytes=config.lmdb_map_size,
        log_directory=config.appenddirname,
        log_filename=config.appendfilename,
        segment_bytes=config.log_segment_bytes,
        load_truncated=config.aof_load_truncated,
        reserve_bytes=config.disk_reserve_bytes,
        node_max_entries=config.stream_node_max_entries,
        node_max_bytes=config.stream_node_max_bytes,
    )
    engine = Engine.open(directory, execute=replayer.execute, clock=clock, options=options)
    return Executor(config, engine, replayer, clock)
