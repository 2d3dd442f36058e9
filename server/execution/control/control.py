"""What commands ask of the executor about clients: to end a wait, a connection, or all that is under way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NULL_ARRAY

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.blocking import Blocking
    from riverbed.server.execution.control.monitors import Monitors
    from riverbed.server.execution.control.pauses import Pauses
    from riverbed.server.execution.control.transactions import Transactions
    from riverbed.server.execution.sliced_commands import SlicedCommands

UNBLOCKED: Final = "UNBLOCKED client unblocked via CLIENT UNBLOCK"


class Controls:
    """The `Control` of one server; see `server/commands/request.py` for what each method promises."""

    def __init__(
        self,
        core: Core,
        *,
        blocking: Blocking,
        sliced_commands: SlicedCommands,
        transactions: Transactions,
        pauses: Pauses,
        monitors: Monitors,
    ) -> None:
        self._pubsub = core.pubsub
        self._blocking = blocking
        self._waiters = blocking.waiters
        self._sliced_commands = sliced_commands
        self._transactions = transactions
        self._pauses = pauses
        self._monitors = monitors

    def forget(self, session: Session) -> None:
        if session in self._waiters:
            self._waiters.release(session)
        self._pauses.forget(session)
        self._transactions.discard(session)
        self._monitors.forget(session)
        if session.closing:
            self._pubsub.forget(session)

    def kill(self, session: Session, *, drops_unread: bool = False) -> None:
        session.begin_closing()
        if session.blocked is not None:
            self._waiters.release(session)
        self._sliced_commands.drop(session)
        session.drop_input()
        self._pubsub.forget(session)
        if drops_unread and (session.long_reply is not None or session.peer.output_bytes()):
            session.end_long_reply()
            session.peer.abort()
        else:
            session.peer.close_soon()

    def unblock(self, session: Session, *, error: bool) -> bool:
        if session.blocked is None or session.blocked.is_delay:
            return False
        timed_out = session.blocked.on_timeout
        in_time = NULL_ARRAY if timed_out is None else timed_out()
        self._blocking.end_settled(session, CommandError(UNBLOCKED) if error else in_time)
        return True

    def refuse(self, session: Session, error: CommandError) -> None:
        self._blocking.end_settled(session, error)

    def blocked_clients(self) -> int:
        return len(self._waiters)

    def awaited_keys(self) -> int:
        return self._waiters.key_count

    def needed_keys(self) -> int:
        return self._waiters.needed_key_count

    def watched_keys(self) -> int:
        return len(self._blocking.watches)

    def views(self) -> tuple[int, int]:
        return self._sliced_commands.views.open_count, self._sliced_commands.count_waiting_for_view

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
