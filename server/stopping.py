"""How a server stops, for signals and SHUTDOWN alike.

    SERVING --TERM, INT, SHUTDOWN--> WAITING --all replicas have everything, or `shutdown-timeout`--> ENDING
       ^                                |
       '---------SHUTDOWN ABORT---------'

WAITING: writes wait; reads, new clients and replicas are served.  Sliced commands run to their end.
ENDING, in this order: the server accepts no more clients; it commits and answers the commands that ran, and runs no
others; it closes connections; it ends background work and children; it checkpoints; it releases the directory.

Words, errors and order are those of Redis.  A server that lost its state (`give_up`) ends without waiting or writing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import signal
from typing import TYPE_CHECKING, Final

from riverbed.server.errors import CommandError
from riverbed.server.execution.control.pauses import Hold
from riverbed.server.protocol.replies import Block
from riverbed.server.replication.sender import State as ReplicaState
from riverbed.store.errors import StateLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.control.pauses import Pauses
    from riverbed.server.execution.sliced_commands import SlicedCommands
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.replication.role import Replication
    from riverbed.server.replication.sender import Sender

log = logging.getLogger("riverbed")

NOT_STOPPED: Final = "ERR Errors trying to SHUTDOWN. Check logs."


class State(enum.Enum):
    SERVING = enum.auto()
    WAITING = enum.auto()
    ENDING = enum.auto()


class Stopping:
    """The stop of one server.  `begun_to_end` is set when nothing can abort it any more; the assembly does the rest."""

    def __init__(
        self,
        core: Core,
        ticks: Ticks,
        *,
        pauses: Pauses,
        sliced_commands: SlicedCommands,
        replication: Replication,
        checkpoint: Callable[[], None],
        let_go: Callable[[], None],
    ) -> None:
        """`checkpoint` raises CommandError.  `let_go` answers the commands that ran, and closes every connection."""
        self.begun_to_end = asyncio.Event()
        self.close_listeners: Callable[[], None] = lambda: None  # set by `listener.serve_at`
        self._core = core
        self._engine = core.engine
        self._ticks = ticks
        self._pauses = pauses
        self._sliced_commands = sliced_commands
        self._replication = replication
        self._checkpoint = checkpoint
        self._let_go = let_go
        self._loop = asyncio.get_running_loop()
        self._monotonic = core.clock.monotonic
        self._state = State.SERVING
        self._save: bool | None = None  # None: checkpoint, but stop even if that fails
        self._force = False
        self._is_clean = True
        self._offset = 0  # where the log ended when the stop began
        self._is_due = False
        self._until_s: float | None = None
        self._timer: asyncio.Handle | None = None
        self._asked: list[tuple[Session, Block]] = []

    @property
    def is_ending(self) -> bool:
        """Whether the commands that ran are committed and answered, and no others may run."""
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
        """SIGINT.  While the server waits for replicas, it ends the wait and skips the checkpoint."""
        if self._state is State.WAITING:
            log.warning("You insist... exiting now.")
            self._is_clean = False
            self._save, self._force = False, True
            self._end()
        else:
            log.warning("Received SIGINT scheduling shutdown...")
            self.begin()

    def begin(self, *, save: bool | None = None, now: bool = False, force: bool = False) -> None:
        """Begin to stop.  A stop that is under way already keeps its own options."""
        if self._state is not State.SERVING:
            return
        if self._core.loading is not None:
            signal.raise_signal(signal.SIGTERM)  # `main` ends the process at once, see there
        log.warning("User requested shutdown...")
        self._state = State.WAITING
        self._save, self._force = save, force
        self._offset = self._engine.log.end.offset
        self._pauses.hold_writes(Hold.STOP)
        timeout_s = 0 if now else self._core.config.shutdown_timeout
        self._timer = self._loop.call_soon(self._wait, timeout_s)  # after the current tick

    def abort(self) -> bool:
        """Go on serving; -> whether there was a stop to abort."""
        if self._state is not State.WAITING:
            return False
        self._go_on()
        log.info("Shutdown manually aborted.")
        return True

    def give_up(self) -> None:
        """End and write nothing: the state in memory is not to be trusted."""
        self._begin_to_end()

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, timeout_s: float) -> None:
        if not timeout_s or self._is_ready():
            self._end()
            return
        log.info("Waiting for replicas before shutting down.")
        self._until_s = self._monotonic() + timeout_s
        self._timer = self._loop.call_later(timeout_s, self._end)
        self.look_soon()

    def remaining_ms(self) -> int | None:
        return None if self._until_s is None else int((self._until_s - self._monotonic()) * 1000)

    def look_soon(self) -> None:
        """Check after the current tick whether to end: a replica has caught up or left, or a long command has ended."""
        if self._until_s is not None and not self._is_due:
            self._loop.call_soon(self._look)
            self._is_due = True

    def _look(self) -> None:
        self._is_due = False
        if self._until_s is None:
            return
        if self._is_ready():
            self._end()
        elif self._core.txn.log:
            self._ticks.want_tick()
            self.look_soon()

    def _is_ready(self) -> bool:
        """Whether nothing is left to be executed, committed, handed over, or acknowledged by a replica."""
        is_settled = not self._core.txn.log and not self._sliced_commands.is_writing()
        replication = self._replication
        is_level = not self._lagging() and not replication.primary.awaits_return
        return is_settled and is_level and not replication.failover.is_under_way

    def _lagging(self) -> list[Sender]:
        """The replicas that have not acknowledged everything; on a replica, what it had when the stop began."""
        end = self._offset if self._replication.is_replica else self._engine.log.end.offset
        return [sender for sender in self._replication.primary.senders.values() if sender.acked_offset < end]

    def _go_on(self) -> None:
        """Cancel the stop and serve again."""
        self._cancel_timer()
        self._state = State.SERVING
        asked, self._asked = self._asked, []
        for session, block in asked:
            if session.blocked is block:
                self._ticks.end_wait(session, CommandError(NOT_STOPPED))
        self._pauses.release_writes(Hold.STOP)

    def _cancel_timer(self) -> None:
        self._until_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- ending --------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """End in one turn of the loop, so that nothing is acknowledged after the last look at the replicas."""
        self._log_lagging()
        try:
            if self._save and not self._is_saved():
                self._go_on()
                return
            self._begin_to_end()
            self._let_go()
        except StateLostError as error:
            self._ticks.give_up(error)

    def _begin_to_end(self) -> None:
        self._cancel_timer()
        self._state = State.ENDING
        self.begun_to_end.set()  # the rest of the end comes in a later turn
        self.close_listeners()

    def _log_lagging(self) -> None:
        senders, lagging = self._replication.primary.senders, self._lagging()
        now_s, end = self._monotonic(), self._engine.log.end.offset
        for sender in lagging:
            log.warning(
                "Lagging replica %s:%d reported offset %d behind master, lag=%d, state=%s.",
                *sender.place,
                end - max(sender.acked_offset, 0),
                now_s - sender.heard_s if sender.state is ReplicaState.ONLINE else 0,
                sender.state.value,
            )
        if self._replication.primary.awaits_return:
            log.warning("A replica that was sent the base has not come back for the rest of the log.")
        if senders:
            log.info("%d of %d replicas are in sync when shutting down.", len(senders) - len(lagging), len(senders))

    def _is_saved(self) -> bool:
        """Make the checkpoint that SHUTDOWN SAVE insists on; -> whether the stop goes on."""
        try:
            self._checkpoint()
        except (CommandError, MemoryError) as error:
            text = error.text if isinstance(error, CommandError) else b"not enough memory for the checkpoint"
            log.warning("%s", text.decode(errors="replace").removeprefix("ERR "))
            if self._force:
                log.warning("Error trying to save the DB. Exit anyway.")
                self._save = False
                return True
            log.warning("Error trying to save the DB, can't exit.")
            log.warning("Errors trying to shut down the server. Check the logs for more information.")
            return False
        return True

    @property
    def saves(self) -> bool:
        """Whether the stop ends with a checkpoint."""
        return self._save is not False

    @property
    def status(self) -> int:
        """The process's exit status after a stop without errors."""
        return 0 if self._is_clean else 1
