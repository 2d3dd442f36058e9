"""How long does a PING take, asked every millisecond?  A process of its own, so that no load generator delays it.

    python -m benchmarks.load.probe PORT [PASSWORD [REQUEST]]

Until its input ends; then it prints one line of JSON: count, p50, p99, p99.9 and longest in ms, and how often the
server closed the connection; to connect and ask again is then part of the time.  REQUEST is the line of another command
that is asked instead, one with a short reply.

A PING that takes 20 ms kept 19 others from being sent.  They are counted with the times they would have taken (19 ms,
18 ms ...), or the percentile would hide exactly what it is asked for.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.raw import encode

INTERVAL_S = 0.001
_PING = "PING"


@dataclass(frozen=True)
class Latency:
    """Of the requests of one probe, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float
    closed: int


class Probe:
    """A probe at work while the `with` block runs; `latency` afterwards."""

    latency: Latency

    def __init__(self, port: int, password: str = "", request: str = _PING) -> None:
        self._words = [str(port), password, request]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load.probe", *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self._process.communicate()
            raise AssertionError(f"the probe could not connect to port {self._words[0]}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        output, _ = self._process.communicate()
        if value is None:
            self.latency = Latency(**json.loads(output))


def probe(port: int, password: str = "", request: str = _PING) -> Latency:
    """Ask until standard input ends."""
    gc.disable()
    asked = encode(request.split())
    seconds: list[float] = []
    closed = 0
    clock = time.perf_counter
    connection = _connected(port, password)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    due = clock()
    while not seconds or not select.select([sys.stdin], [], [], max(due - clock(), 0))[0]:
        sent = clock()
        while not _is_answered(connection, asked):
            closed += 1
            connection.close()
            connection = _connected(port, password)
        took = clock() - sent
        due = max(due + INTERVAL_S, clock())
        while took > 0:
            seconds.append(took)
            took -= INTERVAL_S
    connection.close()
    seconds.sort()
    p50, p99, p999 = (seconds[int(len(seconds) * part)] * 1000 for part in (0.5, 0.99, 0.999))
    return Latency(len(seconds), p50, p99, p999, seconds[-1] * 1000, closed)


def _is_answered(connection: socket.socket, asked: bytes) -> bool:
    """Ask once; -> False when the server has closed the connection, or refuses it."""
    try:
        connection.sendall(asked)
        return connection.recv(64)[:1] not in (b"", b"-")
    except ConnectionError:
        return False


def _connected(port: int, password: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if password:
        connection.sendall(b"AUTH %b\r\n" % password.encode())
        connection.recv(64)
    return connection


if __name__ == "__main__":
    sys.stdout.write(json.dumps(vars(probe(int(sys.argv[1]), *sys.argv[2:]))) + "\n")
