"""A client's socket that has a place: no more clients than there may be, and no strangers in protected mode."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from riverbed.server.execution.admission import is_loopback
from riverbed.server.network.connection import Connection, peer_name

if TYPE_CHECKING:
    from riverbed.server.assembly import Server
    from riverbed.server.network.leaving import Leaving
    from riverbed.server.tls.handshakes import Handshakes

TOO_MANY_CLIENTS = b"-ERR max number of clients reached\r\n"
PROTECTED = (
    b"-DENIED Riverbed is running in protected mode because protected mode is enabled and no password is set. In "
    b"this mode connections are only accepted from the loopback interface. Set requirepass, or protected-mode no.\r\n"
)


class GuardedConnection(Connection):
    """Refuses clients beyond `maxclients`, and strangers in protected mode."""

    def __init__(self, server: Server, handshakes: Handshakes, leaving: Leaving, unix_path: str = "") -> None:
        """`handshakes` become clients soon, and take their places already."""
        super().__init__(server.executor, leaving, unix_path)
        self._stopping = server.stopping
        self._handshakes = handshakes

    def _begin(self, transport: asyncio.Transport) -> None:
        if self._stopping.is_ending:  # the system had accepted it when the listener closed
            transport.abort()
            return
        refusal = self._refusal(transport)
        if refusal is not None:
            transport.write(refusal)
            transport.close()
            return
        super()._begin(transport)

    def _refusal(self, transport: asyncio.Transport) -> bytes | None:
        """The line that turns a client away, None for one that may stay.  Raises ConnectionResetError."""
        executor = self._executor
        config = executor.config
        if len(executor.context.sessions) + len(self._handshakes) >= config.maxclients:
            executor.stats.connections_rejected += 1
            return TOO_MANY_CLIENTS
        is_open = config.protected_mode and executor.context.users.default.lets_everybody_in
        if is_open and not self._unix_path:
            host, _ = peer_name(transport)
            return None if is_loopback(host) else PROTECTED
        return None
