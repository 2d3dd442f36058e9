"""CLIENT PAUSE, and the pauses of writes that only the server itself begins and ends."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.table import Command, Flag

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.ticks import Turns

# These run during a pause too: one of them must be able to end it.
_NEVER_PAUSED: Final = (b"CLIENT", b"SHUTDOWN")


class Hold(enum.Enum):
    """Why writes wait, in a pause that no client can end."""

    DISK = enum.auto()  # too much waits for it
    FAILOVER = enum.auto()
    STOP = enum.auto()


class Pauses:
    """The pauses of one server, and the clients that wait for their end."""

    def __init__(self, core: Core, turns: Turns, gate: Gate) -> None:
        self._core = core
        self._turns = turns
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._until_ms = 0  # of the monotonic clock
        self._writes_only = False
        self._holds: set[Hold] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._paused: dict[Session, None] = {}

    def pause(self, until_ms: int, *, writes_only: bool) -> None:
        """A second pause may only lengthen and widen the first, as in Redis."""
        self._writes_only = writes_only and (self._writes_only or not self._until_ms)
        self._until_ms = max(until_ms + self._core.monotonic_ahead_ms(), self._until_ms)
        if self._timer is not None:
            self._timer.cancel()
        delay = max(self._until_ms / 1000 - self._core.clock.monotonic(), 0)
        self._timer = self._loop.call_later(delay, self.unpause)
        self._set_gate()

    def unpause(self) -> None:
        self._until_ms = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release()

    def hold_writes(self, why: Hold) -> None:
        """Have writes wait, until `release_writes`."""
        self._holds.add(why)
        self._set_gate()
        self._turns.want_tick()  # a stop lets go on what another pause has held

    def release_writes(self, why: Hold) -> None:
        self._holds.discard(why)
        self._release()

    def _release(self) -> None:
        """Let the clients that were held back try again; another pause may hold some of them back."""
        self._set_gate()
        self._turns.want_tick()
        paused, self._paused = self._paused, {}
        for session in paused:
            session.paused = False
            session.refresh()
            self._turns.resume(session)

    def _set_gate(self) -> None:
        gate = self._gate
        gate.is_paused = self._until_ms > 0 or bool(self._holds)
        gate.levels_replicas = bool(self._holds - {Hold.DISK})
        # while the server stops, sliced writes go on, so that none is left half done
        gate.stalls_writes = gate.is_paused and Hold.STOP not in self._holds
        gate.refresh()

    def forget(self, session: Session) -> None:
        """The client waits no longer."""
        self._paused.pop(session, None)
        session.paused = False

    def holds_back(self, session: Session, command: Command) -> bool:
        """Whether a pause makes this command, and with it the client, wait."""
        if not self._gate.is_paused or command.name.startswith(_NEVER_PAUSED) or session.is_replica:
            return False
        only_writes = self._writes_only or not self._until_ms
        if only_writes and not _writes(session, command):
            return False
        self._paused[session] = None
        session.paused = True
        session.refresh()
        return True


def _writes(session: Session, command: Command) -> bool:
    """Whether a command writes, or is the EXEC of a write; Sentinel's orders are a transaction without one."""
    if command.name == b"EXEC":
        queued = session.transaction.queued or ()
        return any(not isinstance(argv, list) or client_command(argv).flags & Flag.WRITE for argv in queued)
    return bool(command.flags & Flag.WRITE)
