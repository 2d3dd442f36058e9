"""The clients of a server as they come and go: what is made for each, and what is forgotten of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverbed.server.commands.session import Session
from riverbed.server.limits.accounts import Account
from riverbed.server.protocol.request_reader import RequestReader

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Peer
    from riverbed.server.execution.outbox import Outbox
    from riverbed.server.execution.sliced_commands import SlicedCommands
    from riverbed.server.execution.ticks import Events, Turns


class Clients:
    """The clients of one server."""

    def __init__(
        self,
        core: Core,
        turns: Turns,
        *,
        outbox: Outbox,
        sliced_commands: SlicedCommands,
        forget: Callable[[Session], None],
        events: Events,
    ) -> None:
        """`forget` ends what a client waits for, watches and listens to."""
        self._core = core
        self._turns = turns
        self._outbox = outbox
        self._sliced_commands = sliced_commands
        self._forget = forget
        self._events = events
        self._next_id = 1
        core.accounts.clients.on_pressure = self._read_small_pieces

    def connect(self, peer: Peer) -> Session:
        """Make the session of a client that has connected."""
        core, client_id = self._core, self._next_id
        self._next_id += 1
        user = core.users.default
        is_trusted = user.lets_everybody_in
        account = Account(core.accounts, client_id, peer, is_trusted=is_trusted)
        session = Session(client_id, peer, account, core.txn.databases[0], core.now_ms())
        session.authenticated = is_trusted
        session.input = RequestReader(
            authenticated=session.authenticated,
            max_bulk_bytes=core.config.proto_max_bulk_len,
            max_query_bytes=core.config.client_query_buffer_limit,
        )
        session.be(user)
        core.sessions[session.id] = session
        core.stats.connections_received += 1
        return session

    def disconnect(self, session: Session) -> None:
        """Forget a client that has disconnected.  A second call for it does nothing."""
        if self._core.sessions.pop(session.id, None) is None:
            return
        session.begin_closing()
        self._forget(session)
        session.end_long_reply()
        self._sliced_commands.drop(session)
        self._outbox.forget(session)
        session.drop_all()
        for report in self._events.disconnected:
            report(session)

    def cut_off(self, client_id: int) -> None:
        """Close a client's connection now, without replies, and drop all that is kept for it; between two ticks."""
        session = self._core.sessions[client_id]
        session.peer.abort()
        self.disconnect(session)

    def drained(self, session: Session) -> None:
        """Go on with a client that read too slowly and has caught up."""
        session.refresh()
        for report in self._events.drained:
            report(session)
        self._turns.ran.append(session)
        self._turns.want_tick()

    def _read_small_pieces(self, on: bool) -> None:
        """Read from clients in small pieces while all together have much waiting, or no longer."""
        for session in self._core.sessions.values():
            if session.authenticated:
                session.peer.read_small_pieces(on)
