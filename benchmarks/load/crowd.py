"""Clients that have connected and asked once, in a process of their own: all leave at once when it is killed.

    python -m benchmarks.load.crowd PORT COUNT

It prints a line when all have their reply, and then waits for the end of its input.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.load.consumers import connect
from benchmarks.load.files import allow_files
from tests.support.raw import encode

_PING = encode(("PING",))
_PONG = b"+PONG\r\n"


@contextlib.contextmanager
def crowd(port: int, count: int) -> Iterator[None]:
    """`count` clients while the `with` block runs; behind it all of them leave, and their process has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load.crowd", str(port), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the clients could not connect")
            yield
        finally:
            process.kill()


def _be_crowd(port: int, count: int) -> None:
    allow_files(count + 100)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(connect(port))
            client.sendall(_PING)
            if (reply := client.recv(64)) != _PONG:  # above `maxclients` it is an error
                raise AssertionError(f"{reply!r}")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    _be_crowd(int(sys.argv[1]), int(sys.argv[2]))
