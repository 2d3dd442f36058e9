"""The one way in which a server stops, for signals and SHUTDOWN alike.

    SERVING --TERM, INT, SHUTDOWN--> WAITING --all replicas have everything, or `shutdown-timeout`--> ENDING
       ^                                |
       '---------SHUTDOWN ABORT---------'

WAITING: writes wait; reads, new clients and replicas are served.  What was half done in slices is completed.
ENDING, in this order: accept no more clients; what has run is committed and answered, and what has not run never will;
connections close; background work and children end; the checkpoint; the directory is let go of.

Words, errors and order are those of Redis.  A server that lost its state (`give_up`) ends without waiting or writing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.errors import CommandError
from riverbed.server.execution.control import Hold
from riverbed.server.protocol.replies import Block
from riverbed.server.replication.sender import State as ReplicaState
from riverbed.store.errors import LogWriteError, StateLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.executor import Executor
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.replication.sender import Sender

log = logging.getLogger("riverbed")

NOT_STOPPED: Final = "ERR Errors trying to SHUTDOWN. Check logs."


class State(enum.Enum):
    SERVING = enum.auto()
    WAITING = enum.auto()
    ENDING = enum.auto()


class Stopping:
    """The stop of one server.  `begun_to_end` is set when nothing can avert it any more; `finish` does the rest."""

    def __init__(self, executor: Executor) -> None:
        self.begun_to_end = asyncio.Event()
        self.close_listeners: Callable[[], None] = lambda: None  # set by `listener.serve`
        self._executor = executor
        self._monotonic = executor.clock.monotonic
        self._state = State.SERVING
        self._save: bool | None = None  # None: a checkpoint, but none that the stop depends on
        self._force = False
        self._is_clean = True
        self._offset = 0  # where the log ended when the stop began
        self._is_due = False
        self._until_s: float | None = None
        self._timer: asyncio.Handle | None = None
        self._asked: list[tuple[Session, Block]] = []
        executor.replication.on_progress = self.look_soon

    @property
    def is_ending(self) -> bool:
        """Whether what has run is committed and answered, and nothing more may run."""
        return self._state is State.ENDING

    # -- asking for it -------------------------------------------------------------------------------------------------

    def ask(self, request: Request, *, save: bool | None, now: bool, force: bool) -> Reply:
        block = Block((), None, request.argv)
        self._asked.append((request.session, block))
        self.begin(save=save, now=now, force=force)
        return block

    def terminate(self) -> None:
        """SIGTERM."""
        log.warning("Received SIGTERM scheduling shutdown...")
        self.begin()

    def interrupt(self) -> None:
        """SIGINT.  One that comes while the server waits for replicas ends the wait, and the checkpoint is left out."""
        if self._state is State.WAITING:
            log.warning("You insist... exiting now.")
            self._is_clean = False
            self._save, self._force = False, True
            self._end()
        else:
            log.warning("Received SIGINT scheduling shutdown...")
            self.begin()

    def begin(self, *, save: bool | None = None, now: bool = False, force: bool = False) -> None:
        """Stop, unless that is under way: then only its own words count."""
        if self._state is not State.SERVING:
            return
        log.warning("User requested shutdown...")
        self._state = State.WAITING
        self._save, self._force = save, force
        executor = self._executor
        self._offset = executor.engine.log.end.offset
        executor.control.hold_writes(Hold.STOP)
        timeout_s = 0 if now else executor.config.shutdown_timeout
        self._timer = executor.loop.call_soon(self._wait, timeout_s)  # behind the tick under way

    def abort(self) -> bool:
        """Go on serving; -> whether there was a stop to be averted."""
        if self._state is not State.WAITING:
            return False
        self._go_on()
        log.info("Shutdown manually aborted.")
        return True

    def give_up(self) -> None:
        """The state in memory is not to be trusted: end, and write nothing."""
        self._begin_to_end()

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, timeout_s: float) -> None:
        if not timeout_s or self._is_ready():
            self._end()
            return
        log.info("Waiting for replicas before shutting down.")
        self._until_s = self._monotonic() + timeout_s
        self._timer = self._executor.loop.call_later(timeout_s, self._end)
        self.look_soon()

    def remaining_ms(self) -> int | None:
        return None if self._until_s is None else int((self._until_s - self._monotonic()) * 1000)

    def look_soon(self) -> None:
        """A replica may have come level, or left, or a long command has ended: see behind the tick under way."""
        if self._until_s is not None and not self._is_due:
            self._is_due = True
            self._executor.loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        if self._until_s is None:
            return
        if self._is_ready():
            self._end()
        elif self._executor.txn.log:
            self._executor.want_tick()
            self.look_soon()

    def _is_ready(self) -> bool:
        """Whether nothing is left to be executed, committed, handed over, or acknowledged by a replica."""
        executor = self._executor
        is_settled = not executor.txn.log and not executor.slicing.is_writing()
        return is_settled and not executor.replication.failover.is_under_way and not self._lagging()

    def _lagging(self) -> list[Sender]:
        """The replicas that have not acknowledged everything; of a replica's own, what it had when the stop began."""
        executor = self._executor
        end = self._offset if executor.replication.is_replica else executor.engine.log.end.offset
        return [sender for sender in executor.replication.primary.senders.values() if sender.acked_offset < end]

    def _go_on(self) -> None:
        """There is no stop."""
        self._cancel_timer()
        self._state = State.SERVING
        asked, self._asked = self._asked, []
        for session, block in asked:
            if session.blocked is block:
                self._executor.wakeups.end_settled(session, CommandError(NOT_STOPPED))
        self._executor.control.release_writes(Hold.STOP)

    def _cancel_timer(self) -> None:
        self._until_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- ending --------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """In one turn of the loop, so that nothing is acknowledged behind the last look at the replicas."""
        self._log_lagging()
        try:
            if self._save and not self._is_saved():
                self._go_on()
                return
            self._begin_to_end()
            self._executor.let_go()
        except StateLostError as error:
            self._executor.give_up(error)

    def _begin_to_end(self) -> None:
        self._cancel_timer()
        self._state = State.ENDING
        self.close_listeners()
        self.begun_to_end.set()

    def _log_lagging(self) -> None:
        executor = self._executor
        senders, lagging = executor.replication.primary.senders, self._lagging()
        now_s, end = self._monotonic(), executor.engine.log.end.offset
        for sender in lagging:
            log.warning(
                "Lagging replica %s:%d reported offset %d behind master, lag=%d, state=%s.",
                *sender.place,
                end - max(sender.acked_offset, 0),
                now_s - sender.heard_s if sender.state is ReplicaState.ONLINE else 0,
                sender.state.value,
            )
        if senders:
            log.info("%d of %d replicas are in sync when shutting down.", len(senders) - len(lagging), len(senders))

    def _is_saved(self) -> bool:
        """Make the checkpoint that SHUTDOWN SAVE insists on; -> whether the stop goes on."""
        try:
            self._executor.control.checkpoint()
        except CommandError as error:
            log.warning("%s", error.text.decode(errors="replace").removeprefix("ERR "))
            if self._force:
                log.warning("Error trying to save the DB. Exit anyway.")
                self._save = False
                return True
            log.warning("Error trying to save the DB, can't exit.")
            log.warning("Errors trying to shut down the server. Check the logs for more information.")
            return False
        return True

    async def finish(self) -> int:
        """End what works in the background, checkpoint, let go of the directory; -> the process's exit status."""
        executor = self._executor
        saves = self._save is not False and not executor.gave_up
        log.info("stopping%s", "" if saves else " without a checkpoint")
        executor.upkeep.stop()
        await executor.replication.stop()
        await executor.rewriting.stop()
        await executor.snapshots.stop()
        await executor.tasks.close()
        executor.upkeep.close()
        await asyncio.sleep(0)
        if executor.gave_up:
            executor.engine.abandon()
            return 1
        try:
            executor.engine.close(save=saves)
        except (LogWriteError, lmdb.Error) as error:
            log.warning("the last checkpoint failed; the next start replays the log: %s", error)
            return 1
        log.info("stopped")
        return 0 if self._is_clean else 1
