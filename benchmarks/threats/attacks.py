"""Attacks of clients that know the password, each kind in a process of its own, until its input ends.

    python -m benchmarks.threats.attacks PORT TLS_PORT KIND COUNT

It prints a line when the attack is in place: all connections are made, or the first of them were evicted.  Evicted
clients come back, and none of them reads more than its kind says.  The process runs at the lowest priority: on other
machines it would not take the server's processor.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from benchmarks.load.consumers import connect
from benchmarks.load.files import allow_files
from benchmarks.threats.abuse import is_over
from tests.support.raw import encode

LARGE: Final = "large"  # the stream that is asked for and not read
LARGE_ENTRIES: Final = 1_000
LARGE_VALUE_BYTES: Final = 100_000
_WANTED: Final = "wanted"
_PIECE: Final = b"x" * 100_000
_PAUSE_S: Final = 0.01
_WAKE_S: Final = 1.0
_SMALL_WINDOW: Final = 4096
_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # a TLS client's hello, and the rest never comes


class Crowd:
    """`count` connections that send what they were told to, as far as the server takes it, and never read."""

    def __init__(self, port: int, count: int, greeting: bytes, *, window: int = 0) -> None:
        """Each connection says `greeting` first; `window`: the size of its receive buffer, 0 for the usual one."""
        self._port = port
        self._count = count
        self._greeting = greeting
        self._window = window
        self._unsent: dict[socket.socket, memoryview] = {}
        self.evicted = 0

    def fill(self, at_once: int = 100) -> bool:
        """Make missing connections, at most so many; -> whether there are as many as there should be."""
        for _ in range(min(self._count - len(self._unsent), at_once)):
            with contextlib.suppress(OSError):
                connection = connect(self._port)
                if self._window:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._window)
                connection.setblocking(False)
                self._unsent[connection] = memoryview(self._greeting)
        return len(self._unsent) == self._count

    def push(self, more: bytes = b"") -> None:
        """Send what is left of each connection's bytes, and `more` where nothing is left."""
        for connection, rest in list(self._unsent.items()):
            data = rest or memoryview(more)
            try:
                self._unsent[connection] = data[connection.send(data) :] if data else data
            except BlockingIOError:
                self._unsent[connection] = data
            except OSError:
                self._drop(connection)

    def notice_ends(self, *, discard: bool = False) -> None:
        """Forget the connections that the server has closed; `discard`: read what came, and answer the greeting."""
        poll = select.poll()
        by_number = {connection.fileno(): connection for connection in self._unsent}
        for number in by_number:
            poll.register(number, select.POLLIN if discard else select.POLLRDHUP)
        for number, event in poll.poll(0):
            connection = by_number[number]
            if event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
                self._drop(connection)
            elif discard:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            if not connection.recv(1 << 16):
                self._drop(connection)
            elif not self._unsent[connection]:
                self._unsent[connection] = memoryview(self._greeting)
        except OSError:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        connection.close()
        self._unsent.pop(connection, None)
        self.evicted += 1


def idle(port: int, tls_port: int, count: int) -> None:
    """Connections that have asked for one thing and stay."""
    _keep(Crowd(port, count, encode(["PING"])))


def blocked(port: int, tls_port: int, count: int) -> None:
    """Readers that wait for one stream; once a second an entry wakes all of them, and they wait again."""
    crowd = Crowd(port, count, encode(["XREAD", "BLOCK", 0, "STREAMS", _WANTED, "$"]))
    entry = encode(["XADD", _WANTED, "MAXLEN", 10, "*", "f", "v"])
    with connect(port) as writer:
        writer.setblocking(False)
        due = time.monotonic() + _WAKE_S

        def wake() -> None:
            nonlocal due
            crowd.notice_ends(discard=True)
            if time.monotonic() > due:
                with contextlib.suppress(BlockingIOError):
                    writer.send(entry)
                due = time.monotonic() + _WAKE_S

        _keep(crowd, meanwhile=wake)


def hoarders(port: int, tls_port: int, count: int) -> None:
    """Transactions that only become longer."""
    crowd = Crowd(port, count, encode(["MULTI"]), window=_SMALL_WINDOW)
    _keep(crowd, encode(["ECHO", _PIECE]))


def subscribers(port: int, tls_port: int, count: int) -> None:
    """Subscribers that never read, and a publisher with messages of 100 kB."""
    crowd = Crowd(port, count, encode(["SUBSCRIBE", "news"]), window=_SMALL_WINDOW)
    publishers = Crowd(port, 1, b"")
    _keep(crowd, meanwhile=lambda: _publish(publishers, encode(["PUBLISH", "news", _PIECE])))


def monitors(port: int, tls_port: int, count: int) -> None:
    """Monitors that never read, and a client with arguments of 100 kB."""
    crowd = Crowd(port, count, encode(["MONITOR"]), window=_SMALL_WINDOW)
    publishers = Crowd(port, 1, b"")
    _keep(crowd, meanwhile=lambda: _publish(publishers, encode(["EXISTS", _PIECE])))


def _publish(publishers: Crowd, message: bytes) -> None:
    publishers.fill()
    publishers.push(message)
    publishers.notice_ends(discard=True)


def halves(port: int, tls_port: int, count: int) -> None:
    """Requests that announce 500 MB, of which little comes at a time."""
    crowd = Crowd(port, count, b"*2\r\n$4\r\nECHO\r\n$500000000\r\n")
    _keep(crowd, _PIECE[:16_000])


def replies(port: int, tls_port: int, count: int) -> None:
    """Clients that ask ten times for 100 MB and never read."""
    _keep(Crowd(port, count, encode(["XRANGE", LARGE, "-", "+"]) * 10, window=_SMALL_WINDOW))


def handshakes(port: int, tls_port: int, count: int) -> None:
    """TLS clients that say a byte of their hello at a time."""
    _keep(Crowd(tls_port, count, _HELLO), b"\x00")


KINDS = {kind.__name__: kind for kind in (idle, blocked, hoarders, subscribers, monitors, halves, replies, handshakes)}


def _keep(crowd: Crowd, more: bytes = b"", meanwhile: Callable[[], None] = lambda: None) -> None:
    """Keep the crowd at its size until the input ends, and let it send `more` again and again."""
    is_told = False
    while not is_over(_PAUSE_S):
        is_full = crowd.fill()
        crowd.push(more)
        meanwhile()
        crowd.notice_ends()
        if not is_told and (is_full or crowd.evicted):
            sys.stdout.write("in place\n")
            sys.stdout.flush()
            is_told = True


class Attack:
    """An attack under way while the `with` block runs, which begins when it is in place."""

    def __init__(self, port: int, tls_port: int, kind: str, count: int) -> None:
        self._words = [str(port), str(tls_port), kind, str(count)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.threats.attacks", *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise AssertionError(f"the attack ended before it was in place: {self._words}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()


if __name__ == "__main__":
    os.nice(19)
    _count = int(sys.argv[4])
    allow_files(_count + 500)
    KINDS[sys.argv[3]](int(sys.argv[1]), int(sys.argv[2]), _count)
