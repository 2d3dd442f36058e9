"""Loads a server like hostile and careless clients, each kind in a process of its own, until its input ends.

    python -m benchmarks.threats.abuse PORT PASSWORD KIND

Clients that the server evicts come back.  The processes run at the lowest priority: on other machines they would not
take the server's processor.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

from tests.support.raw import RawClient, encode

STREAM = "big"
STRANGERS = 100
READERS = 150
_PIPELINES = 8
_PAUSE_S = 0.005
_RESETS_AT_ONCE = 10
_NO_LINGER = struct.pack("ii", 1, 0)
# A character set that matches little, repeated; and a pattern of a megabyte.
_GLOBS = (b"[^x]" * 8000, b"a" * (1 << 20), b"*a" * 5000 + b"b")


def is_over(wait_s: float = 0.0) -> bool:
    """Whether standard input has ended."""
    return bool(select.select([sys.stdin], [], [], wait_s)[0])


def stream(connect: Callable[[], socket.socket], count: int, data: bytes) -> None:
    """Send `data` again and again on `count` connections, and never read.  Closed connections are opened again."""
    positions: dict[socket.socket, int] = {}
    while not is_over():
        while len(positions) < count:
            connection = connect()
            connection.setblocking(False)
            positions[connection] = 0
        _, writable, _ = select.select([], list(positions), [], 0.1)
        for connection in writable:
            position = positions[connection]
            try:
                positions[connection] = (position + connection.send(data[position:])) % len(data)
            except BlockingIOError:
                pass
            except OSError:
                connection.close()
                del positions[connection]


def strangers(port: int, password: str) -> None:
    """Junk from clients that have not authenticated."""
    stream(lambda: socket.create_connection(("127.0.0.1", port)), STRANGERS, b"a\n" * 30_000)


def pipelines(port: int, password: str) -> None:
    """Ordinary clients with endless pipelines."""
    data = encode(("XADD", "flood", "*", "field", "value")) * 1000
    stream(lambda: _authenticated(port, password).socket, _PIPELINES, data)


def readers(port: int, password: str) -> None:
    """Clients that ask for all of a stream and do not read it."""
    with contextlib.ExitStack() as stack:
        for _ in range(READERS):
            client = stack.enter_context(_authenticated(port, password))
            client.send("XRANGE", STREAM, "-", "+")
        while not is_over(0.1):
            pass


def resets(port: int, password: str) -> None:
    """Connections that are reset as soon as they are made."""
    for _ in _rounds():
        for _ in range(_RESETS_AT_ONCE):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def announcements(port: int, password: str) -> None:
    """A few bytes that announce 300 million elements, before AUTH and after."""
    for number in _rounds():
        with RawClient(port) as client, contextlib.suppress(OSError):
            if number % 2:
                client.ask("AUTH", password)
            client.send_bytes(b"*1\r\n>300000000\r\n")
            client.rest_until_closed() if number % 4 else None


def globs(port: int, password: str) -> None:
    """Patterns that take long to match, or to compile."""
    with _authenticated(port, password) as client:
        for number in _rounds():
            client.ask("KEYS", _GLOBS[number % len(_GLOBS)])


KINDS = {kind.__name__: kind for kind in (strangers, pipelines, readers, resets, announcements, globs)}


def _authenticated(port: int, password: str) -> RawClient:
    client = RawClient(port, timeout_s=120)
    client.ask("AUTH", password)
    return client


def _rounds() -> Iterator[int]:
    number = 0
    while not is_over():
        number += 1
        yield number
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    os.nice(19)
    while not is_over(_PAUSE_S):
        with contextlib.suppress(ConnectionError):  # they were evicted, or the server has ended
            KINDS[sys.argv[3]](int(sys.argv[1]), sys.argv[2])
