"""How long does a pipeline take when pipelines come at a fixed rate, whatever the server does?  A process of its own.

    python -m benchmarks.load.pacer PORT RATE SECONDS

RATE is in pipelines a second, each of 16 XADD, in turns over 50 connections; 0 sends the next one on each reply, to
find the rate that the server bears.  At the end it prints one line of JSON: count, rate, p50, p99, p99.9 and longest
in ms.

A pipeline's time runs from the moment at which it was due.  A pipeline that is sent late, because the server or this
process was busy, has waited since then, so that a stall counts for all that came during it.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from benchmarks.load.traffic import CLIENTS, TIMEOUT_S, fields
from tests.support.raw import encode

DEPTH: Final = 16
_LINES: Final = 2 * DEPTH  # of the replies to one pipeline
_STREAMS: Final = 10


@dataclass(frozen=True)
class Pace:
    """What one run has seen; times in milliseconds."""

    count: int
    rate: float  # pipelines a second that were answered
    p50_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float


class _Client:
    """One connection, the moments at which its unanswered pipelines were due, and the lines of a reply begun."""

    def __init__(self, port: int, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = f"paced-{number % _STREAMS}"
        self.pipeline = b"".join(encode(("XADD", key, "*", *fields(n))) for n in range(DEPTH))
        self.due: deque[float] = deque()
        self._lines = 0

    def send(self, due: float) -> None:
        self.due.append(due)
        self.socket.sendall(self.pipeline)

    def receive(self, now: float, seconds: list[float]) -> None:
        """Take what has come, and note the time of each pipeline whose replies are whole."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        if data[:1] == b"-":
            raise AssertionError(f"{data[:100]!r}")
        self._lines += data.count(b"\n")
        while self._lines >= _LINES:
            self._lines -= _LINES
            seconds.append(now - self.due.popleft())


def run(port: int, rate: float, duration_s: float) -> Pace:
    """Send pipelines for `duration_s` seconds, and wait for the last reply."""
    gc.disable()
    clients = {client.socket.fileno(): client for client in (_Client(port, number) for number in range(CLIENTS))}
    poll = select.epoll()
    for number in clients:
        poll.register(number, select.EPOLLIN)
    begun = time.perf_counter()
    seconds = _at_rate(clients, poll, rate, duration_s) if rate else _at_most(clients, poll, duration_s)
    took = time.perf_counter() - begun
    for client in clients.values():
        client.socket.close()
    poll.close()
    count = len(seconds)
    seconds.sort()
    p50, p99, p999 = (seconds[int(count * part)] * 1000 for part in (0.5, 0.99, 0.999))
    return Pace(count, count / took, p50, p99, p999, seconds[-1] * 1000)


def _at_rate(clients: dict[int, _Client], poll: select.epoll, rate: float, duration_s: float) -> list[float]:
    """-> the seconds of each pipeline, from when it was due."""
    clock = time.perf_counter
    in_turn = list(clients.values())
    total = max(int(rate * duration_s), 1)
    seconds: list[float] = []
    begun = clock()
    sent = 0
    while len(seconds) < total:
        due = begun + sent / rate
        now = clock()
        if sent < total and due <= now:
            in_turn[sent % len(in_turn)].send(due)
            sent += 1
            if sent % 8:
                continue  # catch up, but read in between
        # an epoll object waits for whole milliseconds only; select does not
        timeout = max(begun + sent / rate - clock(), 0) if sent < total else TIMEOUT_S
        if not select.select([poll], [], [], timeout)[0]:
            if sent == total:
                raise TimeoutError(f"{total - len(seconds)} replies do not come")
            continue
        for number, _ in poll.poll(0):
            clients[number].receive(clock(), seconds)
    return seconds


def _at_most(clients: dict[int, _Client], poll: select.epoll, duration_s: float) -> list[float]:
    """Send each client's next pipeline once it has its replies; -> the seconds of each."""
    clock = time.perf_counter
    seconds: list[float] = []
    end = clock() + duration_s
    for client in clients.values():
        client.send(clock())
    waiting = len(clients)
    while waiting:
        ready = poll.poll(TIMEOUT_S)
        if not ready:
            raise TimeoutError("replies do not come")
        for number, _ in ready:
            client = clients[number]
            client.receive(clock(), seconds)
            if not client.due:
                if clock() < end:
                    client.send(clock())
                else:
                    waiting -= 1
    return seconds


def pace(port: int, rate: float, duration_s: float) -> Pace:
    """Run the process; `rate` 0 for as many as the server takes."""
    command = [sys.executable, "-m", "benchmarks.load.pacer", str(port), str(rate), str(duration_s)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S).stdout
    return Pace(**json.loads(output))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(vars(run(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))) + "\n")
