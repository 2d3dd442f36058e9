"""Load: what an entry looks like, how millions of them get into a server, and what redis-benchmark says."""

from __future__ import annotations

import contextlib
import csv
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tests.support.raw import RawClient, encode
from tests.support.servers import Server

CLIENTS: Final = 50
TIMEOUT_S: Final = 300.0  # redis-benchmark tries forever to reach a server that has ended
# Explicit IDs of a loaded stream: thirteen digits, like milliseconds of today, one entry each.  `1__rand_int__` is then
# the ID of a random one, since redis-benchmark puts twelve digits in place of __rand_int__.
FIRST_MS: Final = 10**12
_CHUNK: Final = 1000
# Servers are asked for this many chunks ahead, so that they never wait for the loader.
_AHEAD: Final = 4
_BATCH: Final = 100  # of the steady writer
_ENDLESS: Final = 1_000_000_000  # requests
# What clock_getcpuclockid(3) adds to the complement of a pid.
_CPU_CLOCK_OF_PROCESS: Final = 2
_TURN: Final = 100  # entries a consumer is given at a time


def fields(number: int) -> list[bytes]:
    """Four fields and values, 66 bytes together, as a device might send them."""
    return [
        b"device", b"sensor-%08d" % (number * 7919 % 10**8),
        b"temperature", b"%05.2f" % (number % 4000 / 100),
        b"humidity", b"%04.1f" % (number % 1000 / 10),
        b"status", b"operational",
    ]  # fmt: skip


def load(port: int, key: str, entries: int, *, explicit_ids: bool = False, have: int = 0) -> float:
    """XADD over one pipelined connection until a stream of `have` entries has `entries`; -> seconds."""
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        expected = 0
        for first in range(have, entries, _CHUNK):
            numbers = range(first, min(first + _CHUNK, entries))
            ids = [b"%d" % (FIRST_MS + number) + b"-0" if explicit_ids else b"*" for number in numbers]
            # the same thousand entries over and over: what the loader would spend on others, the servers would wait
            bodies = _BODIES or _make_bodies()
            connection.sendall(
                b"".join(
                    b"*11\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (len(key), key.encode(), len(i), i, body)
                    for i, body in zip(ids, bodies, strict=False)
                )
            )
            expected += 2 * len(numbers)
            if expected >= 2 * _CHUNK * _AHEAD:
                expected -= _take_lines(connection, 2 * _CHUNK)
        while expected > 0:
            expected -= _take_lines(connection, expected)
    seconds = time.perf_counter() - begun
    with RawClient(port) as client:
        length = client.ask("XLEN", key)
        if length != b":%d\r\n" % entries:
            raise AssertionError(f"loaded {entries} entries, XLEN says {length!r}")
    return seconds


def load_in_turn(port: int, streams: int, entries: int) -> None:
    """XADD over one pipelined connection: `entries` entries, one to each of `streams` streams in turn."""
    bodies = _BODIES or _make_bodies()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        expected = 0
        for number in range(0, entries, _CHUNK):
            keys = [b"events:%d" % (each % streams) for each in range(number, min(number + _CHUNK, entries))]
            connection.sendall(
                b"".join(
                    b"*11\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n%b" % (len(key), key, body)
                    for key, body in zip(keys, bodies, strict=False)
                )
            )
            expected += 2 * len(keys)
            if expected >= 2 * _CHUNK * _AHEAD:
                expected -= _take_lines(connection, 2 * _CHUNK)
        while expected > 0:
            expected -= _take_lines(connection, expected)


def read_for(port: int, key: str, group: str, entries: int, consumers: int = 10) -> None:
    """Give a new group's consumers `entries` entries to have pending, in turns of a hundred."""
    with RawClient(port, timeout_s=TIMEOUT_S) as client:
        client.ask("XGROUP", "CREATE", key, group, 0)
        # the replies are not needed, and reading them would take longer than making them
        client.send("CLIENT", "REPLY", "OFF")
        for number in range(0, entries, _TURN):
            count = min(_TURN, entries - number)
            consumer = f"consumer{number // _TURN % consumers}"
            client.send("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", key, ">")
        if client.ask("CLIENT", "REPLY", "ON") != b"+OK\r\n":
            raise AssertionError("replies are still off")
        summary = client.ask("XPENDING", key, group)
        if not summary.startswith(b"*4\r\n:%d\r\n" % entries):
            raise AssertionError(f"read {entries} entries, XPENDING says {summary[:60]!r}")


_BODIES: list[bytes] = []


def _make_bodies() -> list[bytes]:
    _BODIES.extend(b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in fields(n)) for n in range(_CHUNK))
    return _BODIES


def _take_lines(connection: socket.socket, least: int) -> int:
    """Read replies of at least `least` lines; -> how many lines.  AssertionError when some of them are errors."""
    lines = 0
    while lines < least:
        data = connection.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        if (at := data.find(b"\n-")) >= 0:  # the first byte alone may be the `-` of an ID
            raise AssertionError(f"an error among the replies: {data[at + 1 :][:200]!r}")
        lines += data.count(b"\n")
    return lines


@dataclass(frozen=True)
class Rate:
    """What redis-benchmark counted, and what the server's process took for it."""

    a_second: float
    cpu_us: float  # user and system time for each request


def measure(
    server: Server, requests: int, *words: str, depth: int = 1, random_below: int = 0, clients: int = CLIENTS
) -> Rate:
    """Run redis-benchmark.  The CPU time says what the rate would be if the two did not share their cores."""
    before = cpu_seconds(server)
    a_second = redis_benchmark(server.port, requests, *words, depth=depth, random_below=random_below, clients=clients)
    return Rate(a_second, (cpu_seconds(server) - before) / requests * 1e6)


def cpu_seconds(server: Server) -> float:
    """Of all threads of the server's process so far, to the nanosecond: /proc counts hundredths.  Linux only."""
    return time.clock_gettime(~server.pid << 3 | _CPU_CLOCK_OF_PROCESS)


def redis_benchmark(
    port: int, requests: int, *words: str, depth: int = 1, random_below: int = 0, clients: int = CLIENTS
) -> float:
    """Requests a second of one command, as redis-benchmark counts them."""
    command = benchmark_command(port, requests, *words, depth=depth, random_below=random_below, clients=clients)
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout
    rows = list(csv.DictReader(line for line in output.splitlines() if line.startswith('"')))
    if not rows:
        raise AssertionError(f"redis-benchmark said {output!r}")
    return float(rows[-1]["rps"])


def benchmark_command(
    port: int, requests: int, *words: str, depth: int = 1, random_below: int = 0, clients: int = CLIENTS
) -> list[str]:
    options = ["-p", str(port), "-c", str(clients), "-n", str(requests), "-P", str(depth), "--csv"]
    if random_below:
        options += ["-r", str(random_below)]
    return ["redis-benchmark", *options, *words]


@contextlib.contextmanager
def endless_load(port: int, *words: str, depth: int, random_below: int = 0) -> Iterator[None]:
    """Clients that do the same as fast as they can while the block runs.  AssertionError when they gave up before."""
    process = subprocess.Popen(
        benchmark_command(port, _ENDLESS, *words, depth=depth, random_below=random_below),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
        if process.poll() is not None:
            raise AssertionError(f"redis-benchmark {' '.join(words)} ended with status {process.returncode}")
    finally:
        process.kill()
        process.wait()


class SteadyWriter:
    """A client that appends at a constant rate, in batches of 100, until it is stopped.

    Where it ends before, the end of the `with` block raises what ended it: without it there was no such load.
    """

    def __init__(self, port: int, key: str, entries_a_second: int) -> None:
        self._port = port
        self._batch = b"".join(encode([b"XADD", key, b"*", *fields(n)]) for n in range(_BATCH))
        self._interval_s = _BATCH / entries_a_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None
        self._is_end_expected = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None and value is None:
            raise self._error

    def expect_end(self) -> None:
        """The server is killed now: that is no error."""
        self._is_end_expected = True

    def _run(self) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=120) as connection:
                due = time.monotonic()
                while not self._stop.wait(max(due - time.monotonic(), 0)):
                    connection.sendall(self._batch)
                    _take_lines(connection, 2 * _BATCH)
                    due += self._interval_s
        except Exception as error:  # the main thread must see it
            if not self._is_end_expected:
                self._error = error


def info(port: int, section: str) -> dict[str, str]:
    with RawClient(port) as client:
        return dict(re.findall(r"^(\w+):(.*?)\r?$", client.ask("INFO", section).decode(), re.MULTILINE))
