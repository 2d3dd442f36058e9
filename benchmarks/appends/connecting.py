"""What does a new client cost: connections a second, the server's CPU for each, and how long others wait meanwhile?

One after the other: a client connects, sends a PING, reads its reply and leaves.  With the handshake: a client first
says what redis-py says, `HELLO 3` and two times CLIENT SETINFO, in one piece.  All at once: a thousand clients connect
before any of them sends something; then the same, while another client sends a PING every millisecond.  And as many as
a server has by default, less a few, leave at once: their process is killed.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Final

from benchmarks.load.consumers import connect
from benchmarks.load.crowd import crowd
from benchmarks.load.files import allow_files
from benchmarks.load.probe import Probe
from benchmarks.load.traffic import TIMEOUT_S, cpu_seconds
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.raw import encode
from tests.support.servers import Server

_TOGETHER: Final = 1000  # twice the backlog of the listening socket
_LEAVING: Final = 9000
_SETTLE_S: Final = 2.0  # until the server has forgotten them
_PING: Final = encode(("PING",))
_HANDSHAKE: Final = b"".join(
    encode(words)
    for words in (
        ("HELLO", 3),
        ("CLIENT", "SETINFO", "LIB-NAME", "redis-py"),
        ("CLIENT", "SETINFO", "LIB-VER", "8.1.0"),
        ("PING",),
    )
)
_PONG: Final = b"+PONG\r\n"


def answer(rig: Rig) -> Answer:
    allow_files(_LEAVING + 500)  # the servers' limit as well
    count = rig.sizes.connections
    lines: dict[str, tuple[Measurement, Measurement]] = {
        what: (Measurement(what, "clients/s"), Measurement(f"{what}: server's CPU", "us/client"))
        for what in ("PING, one after the other", "handshake of redis-py, one after the other", "all at once")
    }
    plain, handshake, together = lines.values()
    ping = Measurement(f"{_TOGETHER:,} at once: longest PING", "ms", below(20, "ms"))
    parting = Measurement(f"{_LEAVING:,} leave at once: longest PING", "ms", below(20, "ms"))
    for contender in rig.turns(f"{count:,} connections"):
        with rig.server(contender, "everysec") as server:
            _note(plain, contender, _in_turn(server, count, _PING))
            _note(handshake, contender, _in_turn(server, count, _HANDSHAKE))
            _note(together, contender, _all_at_once(server))
            with Probe(server.port) as probe:
                _all_at_once(server)  # once more: a thousand PINGs take as much of the processor as a thousand clients
            samples_of(ping, contender).append(probe.latency.longest_ms)
            with contextlib.ExitStack() as leaving:
                leaving.enter_context(crowd(server.port, _LEAVING))
                with Probe(server.port) as probe:
                    leaving.close()
                    time.sleep(_SETTLE_S)
            samples_of(parting, contender).append(probe.latency.longest_ms)
    return Answer(
        f"New clients: {count:,} one after the other, {_TOGETHER:,} at once; {_LEAVING:,} that leave at once",
        "connect, PING, close; connect, HELLO 3, CLIENT SETINFO x 2, PING, close",
        [measurement for pair in lines.values() for measurement in pair] + [ping, parting],
        (
            "The CPU holds the client's closing, too, but not for all at once.",
            "Clients for which the listening socket has no place try again after a second, with both servers.",
            "Redis 7.0 answers CLIENT SETINFO with an error.",
        ),
    )


def _note(pair: tuple[Measurement, Measurement], contender: Contender, found: tuple[float, float]) -> None:
    for measurement, value in zip(pair, found, strict=True):
        samples_of(measurement, contender).append(value)


def _in_turn(server: Server, count: int, request: bytes) -> tuple[float, float]:
    """-> clients a second, and microseconds of the server's CPU for each."""
    cpu, begun = cpu_seconds(server), time.perf_counter()
    for _ in range(count):
        with connect(server.port) as client:
            _ask(client, request)
    seconds = time.perf_counter() - begun
    return count / seconds, (cpu_seconds(server) - cpu) / count * 1e6


def _all_at_once(server: Server) -> tuple[float, float]:
    """As `_in_turn`; the clients connect before the first of them asks something, and none leaves before the end."""
    cpu, begun = cpu_seconds(server), time.perf_counter()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.port)) for _ in range(_TOGETHER)]
        for client in clients:
            client.sendall(_PING)
        for client in clients:
            _read_pong(client)
        seconds = time.perf_counter() - begun
        cpu = cpu_seconds(server) - cpu
    return _TOGETHER / seconds, cpu / _TOGETHER * 1e6


def _ask(client: socket.socket, request: bytes) -> None:
    client.sendall(request)
    _read_pong(client)


def _read_pong(client: socket.socket) -> None:
    """Read until the reply to PING, which comes last.  Raises ConnectionError, TimeoutError."""
    client.settimeout(TIMEOUT_S)
    data = b""
    while not data.endswith(_PONG):
        piece = client.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
