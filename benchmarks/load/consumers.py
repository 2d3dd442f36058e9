"""Consumers on raw sockets that cost less than the server they ask.

redis-benchmark cannot use a reply in the next request, as a consumer does that acknowledges the entries of the reply.
So requests are made beforehand, as bytes.  Replies are recognised by their length, which is always the same, and only
the ID in their head is read.  One thread serves all consumers of a run.  Linux only.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from benchmarks.load.traffic import TIMEOUT_S, Rate, cpu_seconds
from tests.support.raw import Word, encode
from tests.support.servers import Server

_PIECE: Final = 1 << 18
# Instead of the length of a reply: it ends with the answer to ASK_DONE.
ENDS_DONE: Final = -1
_DONE: Final = b"$15\r\nthat-was-all-!!\r\n"
ASK_DONE: Final = encode(("ECHO", "that-was-all-!!"))


class Consumer(Protocol):
    """The requests of one connection.  `rounds` counts the finished rounds.

    ENDS_DONE in the place of a length: the request ends with ASK_DONE, and the reply is not kept.
    """

    rounds: int

    def first(self) -> tuple[bytes, int]:
        """The first request, and the length of its reply in bytes."""

    def next(self, reply: memoryview) -> tuple[bytes, int] | None:
        """The request that follows a reply, None when there is nothing left to do."""


class _Connection:
    """One consumer's socket and the reply it is waiting for."""

    def __init__(self, port: int, consumer: Consumer) -> None:
        self.socket = connect(port)
        self.consumer = consumer
        self.buffer = bytearray(_PIECE)
        self.view = memoryview(self.buffer)
        self.have = 0
        self.expected = 0

    def begin(self) -> None:
        request, self.expected = self.consumer.first()
        self.socket.sendall(request)

    def receive(self) -> bool:
        """Read the bytes that have come, and send the next request; -> whether more replies are to come."""
        count = self.socket.recv_into(self.view[self.have :])
        if not count:
            raise ConnectionError("the server closed the connection")
        self.have += count
        if self.expected == ENDS_DONE:
            return self._receive_to_the_end(is_begin=self.have == count)
        if self.have < self.expected:
            return True
        if self.have > self.expected or self.buffer.startswith(b"-"):
            raise AssertionError(f"not the reply that was expected: {bytes(self.view[:200])!r}")
        self.have = 0
        following = self.consumer.next(self.view[: self.expected])
        if following is None:
            return False
        request, self.expected = following
        self.socket.sendall(request)
        return True

    def _receive_to_the_end(self, *, is_begin: bool) -> bool:
        if is_begin and self.buffer.startswith(b"-"):
            raise AssertionError(f"an error: {bytes(self.view[:200])!r}")
        if self.buffer[: self.have].endswith(_DONE):
            self.have = 0
            following = self.consumer.next(self.view[:0])
            if following is None:
                return False
            request, self.expected = following
            self.socket.sendall(request)
        elif self.have > _PIECE // 2:
            rest = len(_DONE)
            self.view[:rest] = self.view[self.have - rest : self.have]
            self.have = rest
        return True


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def drive(server: Server, consumers: Sequence[Consumer]) -> Rate:
    """Let all consumers work until each has nothing left; -> rounds a second, and the server's CPU for a round."""
    connections = [_Connection(server.port, consumer) for consumer in consumers]
    before = cpu_seconds(server)
    begun = time.perf_counter()
    for connection in connections:
        connection.begin()
    if len(connections) == 1:
        while connections[0].receive():
            pass
    else:
        _serve_all(connections)
    seconds = time.perf_counter() - begun
    cpu = cpu_seconds(server) - before
    for connection in connections:
        connection.socket.close()
    rounds = sum(consumer.rounds for consumer in consumers)
    return Rate(rounds / seconds, cpu / rounds * 1e6)


def _serve_all(connections: Sequence[_Connection]) -> None:
    poll = select.epoll()
    by_number = {connection.socket.fileno(): connection for connection in connections}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    while by_number:
        ready = poll.poll(TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"{len(by_number)} consumers wait for a reply that does not come")
        for number, _ in ready:
            if not by_number[number].receive():
                poll.unregister(number)
                del by_number[number]
    poll.close()


@dataclass(frozen=True)
class Exchange:
    """One request of any size and how it was answered."""

    seconds: float
    head: bytes  # of the reply
    reply_bytes: int


def ask(port: int, *words: Word) -> Exchange:
    """Send one request and read its reply, of any length, without parsing it."""
    return exchange(port, encode(words))


def exchange(port: int, request: bytes) -> Exchange:
    """As `ask`, for a request that is made already.  An ECHO after it marks the end of its reply."""
    with connect(port) as connection:
        begun = time.perf_counter()
        connection.sendall(request + ASK_DONE)
        head, tail, total = b"", b"", 0
        while not tail.endswith(_DONE):
            data = connection.recv(_PIECE)
            if not data:
                raise ConnectionError("the server closed the connection")
            head = head or data[:100]
            tail = (tail + data)[-len(_DONE) :]
            total += len(data)
        seconds = time.perf_counter() - begun
    if head.startswith(b"-"):
        raise AssertionError(f"{request[:100]!r}: {head!r}")
    return Exchange(seconds, head, total - len(_DONE))
