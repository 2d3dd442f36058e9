"""Servers that speak TLS, and raw clients of theirs."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from tests.support.certificates import Certificates, Pair
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer, Server


def client_context(certificates: Certificates, own: Pair | None = None) -> ssl.SSLContext:
    """A context that believes the authority, and shows `own`."""
    context = ssl.create_default_context(cafile=str(certificates.authority.cert))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


class TlsClient(RawClient):
    """A blocking connection with TLS.  Raises ssl.SSLError when the handshake fails."""

    def __init__(self, port: int, context: ssl.SSLContext, *, timeout_s: float = 60.0) -> None:
        super().__init__(port, timeout_s=timeout_s)
        plain = self.socket
        try:
            self.tls = context.wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise
        self.socket = self.tls

    def end(self) -> None:
        """Send nothing more, in the words of TLS, and still read."""
        self.tls.setblocking(False)
        try:
            self.tls._sslobj.shutdown()  # no public call sends the end and goes on
        except ssl.SSLWantReadError:
            pass
        self.tls.setblocking(True)

    def rest_until_closed(self) -> bytes:
        data = bytearray(self._frames.pending())
        with contextlib.suppress(ConnectionResetError, ssl.SSLZeroReturnError):
            while piece := self.tls.recv(1 << 16):
                data += piece
        return bytes(data)


class _OverTls(Server):
    """A server that listens with TLS alone; its certificates are `certificates`."""

    certificates: Certificates

    def settings(self) -> dict[str, object]:
        return {**super().settings(), "port": 0, "tls-port": self.port, **self.certificates.settings(), **self.options}

    def client(self, *, timeout_s: float = 60.0) -> RawClient:
        return TlsClient(self.port, client_context(self.certificates, self.certificates.client), timeout_s=timeout_s)


class TlsRiverbed(_OverTls, RiverbedServer):
    """Ours."""


class TlsRedis(_OverTls, RedisServer):
    """A real Redis."""


class Start:
    """Starts servers on fresh directories."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        self.servers: list[TlsRiverbed] = []
        self._directory = directory
        self.certificates = certificates

    def __call__(self, **options: object) -> TlsRiverbed:
        place = self._directory / f"riverbed-{len(self.servers)}"
        place.mkdir()
        named = {name.replace("_", "-"): value for name, value in options.items()}
        server = TlsRiverbed(place, self._directory / "logs", named)
        server.certificates = self.certificates
        self.servers.append(server)
        return server.start()


def is_served(server: TlsRiverbed, context: ssl.SSLContext) -> bool:
    with contextlib.suppress(ssl.SSLError, ConnectionError), TlsClient(server.port, context) as client:
        return client.ask("PING") == b"+PONG\r\n"
    return False
