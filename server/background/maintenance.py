"""What the server does between requests: purging, expiry (`expiry.py`), checks of the disk and of idle clients.

Each piece is a timer on the loop and takes a bounded slice of a turn, so that no client waits for more than a few
milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.background.readers import Readers
from riverbed.store.disk.locks.held_directory import LOG_MOVED, MOVED
from riverbed.store.errors import LACKS_ROOM, DamagedRowError, LogWriteError, Refusal, StateLostError

if TYPE_CHECKING:
    from riverbed.server.background.checkpoints.checkpoints import Checkpoints
    from riverbed.server.background.expiry import Expiry
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.failures import Failures
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.sliced_commands import SlicedCommands
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.limits.eviction import Evictor
    from riverbed.store.tables.writing.commands import Mark

log = logging.getLogger("riverbed")

# What a checkpoint meets in damaged or full tables.
_EXPECTED: Final = (DamagedRowError, lmdb.Error)

# A slice of purging, and the pause after it: half of the time is left to clients.
PURGE_SLICE_S: Final = 0.002
PURGE_PAUSE_S: Final = 0.002
CYCLE_S: Final = 0.1
RETRY_S: Final = 1.0
# A long reply reads a view, which keeps its pages from being used again.  A reply without progress may do this for so
# long, and for less when other clients wait for a view and cannot have one.
LONG_REPLY_S: Final = 60.0
CROWDED_REPLY_S: Final = 10.0
CYCLES_A_SPACE_CHECK: Final = 10


class Maintenance:
    """The timers of one server."""

    def __init__(
        self,
        core: Core,
        ticks: Ticks,
        gate: Gate,
        checkpoints: Checkpoints,
        *,
        failures: Failures,
        sliced_commands: SlicedCommands,
        expiry: Expiry,
        evictor: Evictor,
        kill: Callable[[Session], None],
        leave: Callable[[Iterator[None]], None],
    ) -> None:
        """`kill` closes a client; `leave` takes the steps of work, a little in each turn of the loop."""
        self.periodic: list[Callable[[], None]] = []  # called ten times a second
        self._core = core
        self._config = core.config
        self._engine = core.engine
        self._clock = core.clock
        self._stats = core.stats
        self._ticks = ticks
        self._gate = gate
        self._checkpoints = checkpoints
        self._failures = failures
        self._sliced_commands = sliced_commands
        self._expiry = expiry
        self._evictor = evictor
        self._kill = kill
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._purge_timer: asyncio.TimerHandle | None = None
        self._cycle_timer: asyncio.TimerHandle | None = None
        self._cycles = 0
        self._rotate_error: str | None = None  # the last one that was logged
        self._reported_refusal: Refusal | None = None  # what the log said last
        # a full sync replaces the tables
        self._readers = Readers(lambda: self._engine.tables, self._clock.monotonic)

    def start(self) -> None:
        self._cycle_timer = self._loop.call_later(CYCLE_S, self._cycle)

    def stop(self) -> None:
        for timer in (self._purge_timer, self._cycle_timer):
            if timer is not None:
                timer.cancel()
        self._expiry.stop()

    # -- purging -------------------------------------------------------------------------------------------------------

    def purge_soon(self) -> None:
        """Begin to delete dead rows, if there are any."""
        if self._engine.txn.dead_rows.notes and self._purge_timer is None:
            self._purge_timer = self._loop.call_later(PURGE_PAUSE_S, self._purge)

    def _purge(self) -> None:
        self._purge_timer = None
        try:
            more = self._engine.purge(PURGE_SLICE_S)
        except Exception as error:
            if self._undo("the purge", error, self._engine.txn.mark()):
                self._purge_timer = self._loop.call_later(RETRY_S, self._purge)
            return
        if more:
            self._purge_timer = self._loop.call_later(PURGE_PAUSE_S, self._purge)
        self._checkpoints.arm()

    def _undo(self, name: str, error: Exception, mark: Mark) -> bool:
        """Undo what a chore has done; -> whether the server goes on."""
        try:
            self._failures.undo_chore(name, error, mark)
        except StateLostError as failure:
            self._ticks.give_up(failure)
            return False
        return True

    # -- every 100 ms --------------------------------------------------------------------------------------------------

    def _cycle(self) -> None:
        self._cycle_timer = self._loop.call_later(CYCLE_S, self._cycle)
        self._cycles += 1
        now_ms = self._core.now_ms()
        if not self._expiry.look():
            return
        self.purge_soon()
        if self._cycles % CYCLES_A_SPACE_CHECK == 0:
            if not self._check_directory():
                return
            self._check_space()
            self._check_clients(now_ms)
        self._report_refusal()
        for run in self.periodic:
            run()
        self._stats.sample(self._clock.monotonic())

    def _report_refusal(self) -> None:
        """Log why writes are refused, or that they are taken again, whatever has noticed it.

        That they are only tried again is not logged: where the disk goes on failing, each try fails, every second.
        """
        refusal = self._engine.refusal
        if self._reported_refusal is refusal or (refusal is None and self._is_only_tried):
            return
        if refusal is None:
            is_about_space = self._reported_refusal in LACKS_ROOM
            log.info("there is space again: writes are taken" if is_about_space else "writes are taken again")
        else:
            log.warning("%s: writes are refused", refusal.value)
        self._reported_refusal = refusal

    @property
    def _is_only_tried(self) -> bool:
        """Whether nothing was written yet since writing has failed."""
        if self._reported_refusal is Refusal.TABLES_UNWRITTEN:
            return not self._engine.checkpoints.last_ok
        return self._reported_refusal is Refusal.LOG_UNWRITTEN and not self._engine.refusals.is_log_written

    def _check_directory(self) -> bool:
        """Stop the server when its directory, or that of its log, is at its path no more; -> whether it goes on.

        Another server may have begun a store there, which this one would take for its own.  What was acknowledged is in
        the directory that was moved, in the log.  A log without its directory is lost, and the tables get everything.
        """
        engine = self._engine
        if engine.held.is_gone:
            self._ticks.give_up(StateLostError(f"{MOVED} ({engine.held.path})"))
            return False
        if engine.held_log.is_gone:
            rest = "what was written since the last checkpoint is lost"
            with contextlib.suppress(*_EXPECTED, LogWriteError, StateLostError):
                self._checkpoints.checkpoint_now()
                rest = "the tables have everything: `riverbed check --repair` makes a log of them"
            self._ticks.give_up(StateLostError(f"{LOG_MOVED} ({engine.held_log.path}); {rest}"))
            return False
        return True

    def _check_space(self) -> None:
        self._readers.look()
        self._stats.oldest_reader_pid, self._stats.oldest_reader_s = self._readers.pid, self._readers.seconds
        self._engine.check_space()
        if self._gate.is_outdated:
            self._gate.refresh()
        error = self._engine.log.rotate_error
        if error is not None and error != self._rotate_error:
            log.warning("%s; it goes on in the present one", error)
        self._rotate_error = error

    def _check_clients(self, now_ms: int) -> None:
        """Cut off clients that are idle for longer than `timeout`, over an output limit, or stuck in a long reply.

        And those that hung up while they waited, with so many requests behind that they are not read.
        """
        timeout_ms = self._config.timeout * 1000
        now_s = self._clock.monotonic()
        self._core.accounts.check_growing(now_s)
        self._evictor.report()
        idle = []
        patience_s = CROWDED_REPLY_S if self._sliced_commands.is_crowded else LONG_REPLY_S
        for session in list(self._core.sessions.values()):
            if session.attention:
                session.peer.attend()
            if session.long_reply is not None and now_s - session.long_reply.progress_s > patience_s:
                log.warning("client %d read too little of a long reply for %d s: closed", session.id, patience_s)
                session.peer.abort()
            block = session.blocked
            if block is not None and not (block.is_for_work or session.account.is_read) and session.peer.has_hung_up():
                self._kill(session)
            if session.must_wait_for_others or session.long_reply is not None:
                session.last_wait_ms = now_ms  # the time in which it may use what it gets begins with that
            is_idle = timeout_ms and now_ms - max(session.last_interaction_ms, session.last_wait_ms) > timeout_ms
            listens = session.is_monitor or session.subscriptions or session.is_replica
            if is_idle and not listens:
                idle.append(session)
        if idle:
            self._leave(_cut_off(idle, now_ms - timeout_ms))


def _cut_off(sessions: list[Session], before_ms: int) -> Iterator[None]:
    """Cut off those that have sent nothing since: thousands may have fallen silent at the same time."""
    for session in sessions:
        if session.last_interaction_ms < before_ms:
            session.peer.abort()
        yield
