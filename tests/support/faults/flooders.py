"""Clients that write as fast as a server takes it, so that its replicas fall behind, and count what was acknowledged.

Each client appends 1-0, 2-0, 3-0 ... to a stream of its own in long pipelines.  Replies come in order, so their number
says what must be in a store, and the last ID that a store has says which entries are to be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.faults.client_threads import CountingThread
from tests.support.faults.producers import entries_of
from tests.support.raw import RawClient, encode
from tests.support.servers import Server

MAX_BYTES: Final = 32 << 20  # of one client: what is written must be read back in a moment
_LINES_A_REPLY: Final = 2  # $3 and 1-0


class Flooder(CountingThread):
    """`depth` appends under way at a time."""

    def __init__(self, server: Server, key: str, depth: int, size: int) -> None:
        super().__init__(server)
        self.key = key
        self.sent = 0
        self._depth = depth
        self._payload = b"x" * size

    def work(self, client: RawClient) -> None:
        lines, last = 0, b"\n"
        while self.sent * len(self._payload) < MAX_BYTES:
            ids = range(self.sent + 1, self.sent + self._depth + 1)
            self.sent = ids[-1]
            client.send_bytes(b"".join(encode(("XADD", self.key, f"{n}-0", "f", self._payload)) for n in ids))
            while self.acknowledged < self.sent:
                data = client.socket.recv(1 << 18)
                if not data:
                    return
                assert b"\n-" not in last + data, data[:200]  # wherever a piece ends
                lines, last = lines + data.count(b"\n"), data[-1:]
                self.acknowledged = lines // _LINES_A_REPLY

    def complaints(self, client: RawClient) -> Iterator[str]:
        """What a store that is asked now has lost, or has that was never sent."""
        found = [entry_id for entry_id, _ in entries_of(client.tree("XRANGE", self.key, "-", "+"))]
        if found != [(n, 0) for n in range(1, len(found) + 1)]:
            yield f"{self.key}: there are gaps among its {len(found)} entries"
        if not self.acknowledged <= len(found) <= self.sent:
            yield f"{self.key}: {len(found)} entries; {self.acknowledged} acknowledged, {self.sent} sent"


def start(server: Server, count: int, depth: int, size: int, prefix: str) -> list[Flooder]:
    """`count` of them at work."""
    flooders = [Flooder(server, f"{prefix}:{n}", depth, size) for n in range(count)]
    for flooder in flooders:
        flooder.start()
    return flooders
