"""What does TLS cost: appends over it and without it, and the handshakes of a thousand clients at once?

Fifty clients append to one stream, first in the clear and then over TLS 1.3, with certificates of P-256 that clients
do not have to show.  Then a thousand clients say their hello before any of them goes on; then the same, while another
client sends a PING every millisecond without TLS.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Final

from benchmarks.load.consumers import connect
from benchmarks.load.files import allow_files
from benchmarks.load.probe import Probe
from benchmarks.load.traffic import TIMEOUT_S, cpu_seconds, measure
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.certificates import Certificates
from tests.support.raw import encode
from tests.support.servers import Server, free_port
from tests.support.tls import TlsRedis, TlsRiverbed, client_context

_TOGETHER: Final = 1000
_PING: Final = encode(("PING",))
_PONG: Final = b"+PONG\r\n"
_XADD: Final = ("XADD", "stream", "*", "f1", "v1", "f2", "v2")


def answer(rig: Rig) -> Answer:
    allow_files(_TOGETHER + 500)
    certificates = Certificates.make(rig.new_directory())
    options = ("--tls", "--cacert", str(certificates.authority.cert), "--sni", "localhost")
    rates: dict[str, Measurement] = {}
    cpu: dict[str, Measurement] = {}
    handshakes = Measurement(f"{_TOGETHER:,} handshakes at once", "clients/s")
    handshake_cpu = Measurement(f"{_TOGETHER:,} handshakes at once: server's CPU", "us/client")
    ping = Measurement(f"{_TOGETHER:,} handshakes at once: longest PING", "ms", below(20, "ms"))
    for contender in rig.turns("TLS"):
        for depth, requests in rig.sizes.append_requests.items():
            for how, words in (("plain", _XADD), ("TLS", (*options, *_XADD))):
                server = (
                    server_with_tls(rig, contender, certificates) if how == "TLS" else rig.server(contender, "everysec")
                )
                with server:
                    rate = measure(server, requests // 2, *words, depth=depth)
                what = f"P={depth}, {how}"
                samples_of(rates.setdefault(what, Measurement(what, "XADD/s")), contender).append(rate.a_second)
                shown = f"{what}: server's CPU"
                samples_of(cpu.setdefault(what, Measurement(shown, "us/XADD")), contender).append(rate.cpu_us)
        plain_port = free_port()
        with server_with_tls(rig, contender, certificates, plain_port) as server:
            a_second, cpu_us = _all_at_once(server, client_context(certificates))
            samples_of(handshakes, contender).append(a_second)
            samples_of(handshake_cpu, contender).append(cpu_us)
            with Probe(plain_port) as probe:
                _all_at_once(server, client_context(certificates))  # once more: the processor time holds no PINGs
            samples_of(ping, contender).append(probe.latency.longest_ms)
    return Answer(
        "TLS: XADD with two small fields, 50 clients; 1,000 clients at once",
        "redis-benchmark [--tls] -c 50 -n N -P depth XADD stream '*' f1 v1 f2 v2, everysec",
        [*rates.values(), *cpu.values(), handshakes, handshake_cpu, ping],
        ("Clients for which the listening socket has no place try again after a second, with both servers.",),
    )


def server_with_tls(rig: Rig, contender: Contender, certificates: Certificates, plain_port: int = 0) -> Server:
    """A server with TLS that is not running yet."""
    plain = rig.server(contender, "everysec")
    kind = TlsRiverbed if contender is Contender.RIVERBED else TlsRedis
    options = {**plain.options, "tls-auth-clients": "no", "port": plain_port}
    server = kind(plain.directory, rig.directory / "logs", options)
    server.certificates = certificates
    return server


def _all_at_once(server: Server, context: ssl.SSLContext) -> tuple[float, float]:
    """-> clients a second, and microseconds of the server's CPU for each."""
    cpu, begun = cpu_seconds(server), time.perf_counter()
    with contextlib.ExitStack() as stack:
        clients = [_Client(stack.enter_context(connect(server.port)), context) for _ in range(_TOGETHER)]
        for client in clients:
            client.hello()
        for client in clients:
            client.ask()
        for client in clients:
            client.read_pong()
        seconds = time.perf_counter() - begun
        cpu = cpu_seconds(server) - cpu
    return _TOGETHER / seconds, cpu / _TOGETHER * 1e6


class _Client:
    """A client that takes one step of its handshake at a time."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._connection = connection
        connection.settimeout(TIMEOUT_S)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def hello(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._connection.sendall(self._outgoing.read())

    def ask(self) -> None:
        while True:
            self._receive()
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.do_handshake()
                break
        self._tls.write(_PING)
        self._connection.sendall(self._outgoing.read())

    def read_pong(self) -> None:
        while True:
            self._receive()
            with contextlib.suppress(ssl.SSLWantReadError):
                assert self._tls.read(100) == _PONG
                return

    def _receive(self) -> None:
        data = self._connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._incoming.write(data)
