"""A server between a tool and the real one that replies now and then with something else."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator

import hiredis

from riverbed.store.format.log_lines import encode_command

# Replies of every type, few of which are what any command is answered with.
LIES = (
    *(b":5\r\n", b":-9223372036854775808\r\n", b"$-1\r\n", b"*-1\r\n", b"+OK\r\n", b"-ERR x\r\n", b"*0\r\n"),
    *(b"$3\r\nabc\r\n", b"$1\r\n\xff\r\n", b"*1\r\n:1\r\n", b"*3\r\n:1\r\n:2\r\n:3\r\n", b"*2\r\n$1\r\na\r\n*0\r\n"),
    *(b"*2\r\n*2\r\n$1\r\na\r\n:1\r\n:1\r\n", b"*2\r\n$1\r\n5\r\n$1\r\n6\r\n", b"*2\r\n:0\r\n*1\r\n$1\r\ns\r\n"),
    *(b"%1\r\n+a\r\n:1\r\n", b"#t\r\n", b",1.5\r\n", b"_\r\n", b"(123456789012345678901234567890\r\n"),
)


@contextlib.contextmanager
def liar(port: int, chance: random.Random, rate: float) -> Iterator[int]:
    """A port that passes requests on to `port`, and replies with a lie to a part of them, `rate`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):  # the end
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=_serve, args=(client, port, chance, rate), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]


def _serve(client: socket.socket, port: int, chance: random.Random, rate: float) -> None:
    with client, socket.create_connection(("127.0.0.1", port)) as server, contextlib.suppress(OSError):
        requests = hiredis.Reader()
        while data := client.recv(1 << 16):
            requests.feed(data)
            while (words := requests.gets()) is not False:
                server.sendall(encode_command(words))
                reply = _one_reply(server)
                client.sendall(chance.choice(LIES) if words[0] != b"PING" and chance.random() < rate else reply)


def _one_reply(server: socket.socket) -> bytes:
    replies = hiredis.Reader()
    parts = []
    while replies.gets() is False:
        parts.append(server.recv(1 << 16))
        replies.feed(parts[-1])
    return b"".join(parts)
