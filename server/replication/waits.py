"""WAIT and WAITAOF: clients that wait until replicas, or this disk, have what they wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from riverbed.server.protocol.replies import Block

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.replication.sender import Sender


@dataclass(slots=True)
class _Wait:
    """`target` is the offset that is waited for, None until the tick with the client's last write is committed.

    `local` is None for WAIT.
    """

    block: Block
    target: int | None
    count: int
    local: int | None


class Waits:
    """The clients of one server that wait for replicas."""

    def __init__(self, core: Core, ticks: Ticks, replicas: Callable[[], Iterable[Sender]]) -> None:
        self._engine = core.engine
        self._ticks = ticks
        self._replicas = replicas
        self._waiting: dict[Session, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, request: Request, count: int, deadline_ms: int | None, local: int | None) -> Reply:
        """The reply if the condition is met already, or the request may not block; otherwise a Block."""
        session = request.session
        is_committed = not request.txn.log
        target = session.written_offset
        if (is_committed and self._is_met(target, count, local)) or not request.may_block:
            return self._reply(target, local)
        wait = _Wait(Block((), deadline_ms, request.argv), target if is_committed else None, count, local)
        wait.block = Block((), deadline_ms, request.argv, on_timeout=lambda: self._give_up(session, wait))
        self._waiting[session] = wait
        self._ticks.want_tick()
        return wait.block

    def committed(self) -> int | None:
        """A tick is in the log: answer clients whose wait is over; -> the highest offset that is still waited for."""
        end = self._engine.log.end.offset
        for wait in self._waiting.values():
            if wait.target is None:
                wait.target = end
        self.check()
        return max((wait.target for wait in self._waiting.values() if wait.target is not None), default=None)

    def check(self) -> None:
        """Answer the clients whose wait is over, after something was acknowledged or synced."""
        for session, wait in list(self._waiting.items()):
            if session.blocked is not wait.block:
                del self._waiting[session]  # the client has left, or was unblocked
            elif wait.target is not None and self._is_met(wait.target, wait.count, wait.local):
                del self._waiting[session]
                self._ticks.end_wait(session, self._reply(wait.target, wait.local))

    def _give_up(self, session: Session, wait: _Wait) -> Reply:
        self._waiting.pop(session, None)
        if wait.target is None:  # what the client wrote is in no log yet
            return 0 if wait.local is None else [0, 0]
        return self._reply(wait.target, wait.local)

    # -- what is so ----------------------------------------------------------------------------------------------------

    def _is_met(self, target: int, count: int, local: int | None) -> bool:
        is_local_met = not local or self._engine.log.synced_offset >= target
        return is_local_met and self._having(target, local) >= count

    def _having(self, target: int, local: int | None) -> int:
        """How many replicas have everything up to `target`; with `local`, on their disks.

        One that has connected again counts once: its connection before may be dead without our knowledge.
        """
        having = [
            replica
            for replica in self._replicas()
            if (replica.acked_offset if local is None else replica.synced_offset) >= target
        ]
        return len({replica.place if replica.introduction.port else replica for replica in having})

    def _reply(self, target: int, local: int | None) -> Reply:
        having = self._having(target, local)
        if local is None:
            return having
        return [int(self._engine.log.synced_offset >= target), having]
