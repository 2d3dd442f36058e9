"""What the TLS connections of one server have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.server.tls.contexts import Contexts
from riverbed.server.tls.handshakes import Handshakes
from riverbed.server.tls.transport import Bios, TlsTransport

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from riverbed.server.config.config import Config


class Tls:
    """Makes the connections of one server.  Needs a running asyncio loop."""

    def __init__(self, config: Config, monotonic: Callable[[], float]) -> None:
        """Raises TlsSettingsError."""
        self._config = config
        self._contexts = Contexts(config)
        self._bios = Bios()
        self._monotonic = monotonic
        self._handshakes: list[Handshakes] = []  # of each port, and of the connections that are made
        self._outgoing = self.new_handshakes()

    def new_handshakes(self) -> Handshakes:
        """For a port."""
        handshakes = Handshakes(self._monotonic)
        self._handshakes.append(handshakes)
        return handshakes

    @property
    def handshakes_under_way(self) -> int:
        """How many connections have not ended their handshake."""
        return sum(map(len, self._handshakes))

    def accept(
        self,
        handshakes: Handshakes,
        make_user: Callable[[], asyncio.BaseProtocol],
        refuses: Callable[[], bool] = lambda: False,
    ) -> TlsTransport:
        """The protocol of a connection that a port accepts; `refuses`: whether it is closed at once."""
        context = self._contexts.accepting
        return TlsTransport(self._bios, handshakes, context, make_user, is_server=True, refuses=refuses)

    def to_primary(self, link: asyncio.Protocol) -> asyncio.BaseProtocol:
        """The protocol of a connection to a primary, which `link` is to speak over."""
        if not self._config.tls_replication:
            return link
        return TlsTransport(self._bios, self._outgoing, self._contexts.connecting, lambda: link, is_server=False)
