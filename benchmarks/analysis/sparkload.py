"""The entries that Spark is measured on, four fields each, for Riverbed and for Redis."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

FIRST_MS = 1_700_000_000_000
STREAM = "events"
FIELDS = ("user", "amount", "action", "session")
# Entries that share a millisecond.
A_MS = 2
_A_PIECE = 5000


def load(port: int, entries: int, *, first: int = 0, unique: bool = False) -> None:
    """XADD entries number `first` and on in one pipeline.  `unique`: no two of them have the same session."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        reader = threading.Thread(target=_drain, args=(connection, entries))
        reader.start()
        for piece in _pieces(first, entries, unique=unique):
            connection.sendall(piece)
        reader.join()


def _drain(connection: socket.socket, replies: int) -> None:
    # A reply is a bulk string: two lines.
    while replies > 0:
        data = connection.recv(1 << 20)
        if not data:
            raise ConnectionError("the server hung up")
        replies -= data.count(b"$")
        if data[:1] == b"-" or b"\n-" in data:
            raise ValueError(f"refused: {data[:200]!r}")


def _pieces(begin: int, entries: int, *, unique: bool) -> Iterator[bytes]:
    """Values from pools: making them one by one would take longer than loading them."""
    rnd = random.Random(1 + begin)
    head = b"*11\r\n$4\r\nXADD\r\n" + _bulk(STREAM.encode())
    users = [_bulk(b"user") + _bulk(b"u%06d" % number) for number in range(50_000)]
    amounts = [_bulk(b"amount") + _bulk(b"%.2f" % (rnd.random() * 1000)) for _ in range(10_000)]
    actions = [_bulk(b"action") + _bulk(each) for each in (b"view", b"click", b"purchase", b"logout")]
    sessions = [_bulk(b"session") + _bulk(rnd.randbytes(16).hex().encode()) for _ in range(10_000)]
    for first in range(begin, begin + entries, _A_PIECE):
        size = min(_A_PIECE, begin + entries - first)
        if unique:
            digits = rnd.randbytes(16 * size).hex().encode()
            sessions = [_bulk(b"session") + _bulk(digits[at : at + 32]) for at in range(0, 32 * size, 32)]
        columns = [rnd.choices(pool, k=size) for pool in (users, amounts, actions)]
        columns.append(sessions if unique else rnd.choices(sessions, k=size))
        rows = enumerate(zip(*columns, strict=True), first)
        yield b"".join(
            [b"%b%b%b" % (head, _bulk(b"%d-%d" % (FIRST_MS + n // A_MS, n)), b"".join(row)) for n, row in rows]
        )


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)
