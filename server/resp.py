"""From bytes to requests: which of two parsers reads what.  Knows RESP alone: no socket, no clock, no command.

A request boundary is the only place where one hands over to the other:

            +------------------ chunk ------------------+
            | rest of a request | whole requests | head |
            +-------------------+----------------+------+
               strictresp.py       plainresp.py   strictresp.py

The plain one is hiredis, for whole requests of clients that say nothing unusual.  What it leaves over, at most one
request, goes to the strict one, which carries it from chunk to chunk, enforces the limits and words the errors as Redis
does.  The strict one is also the judge of every chunk that is not plain: inline commands, a client that has not
authenticated, a chunk hiredis objects to, announcements of very many words.

Cost of a request of 7 words and 110 bytes in nanoseconds, Python 3.11 and hiredis 3.5: 450 with 16 in a chunk, of
which hiredis itself 270, the type check of the words 80, looking for long counts 50; 1,000 alone in its chunk; 5,100 by
the strict parser; 70,000 when it arrives in 110 pieces of one byte.
"""

from __future__ import annotations

from typing import Final

from server.plainresp import PlainReader
from server.strictresp import DEFAULT_MAX_BULK_BYTES, DEFAULT_MAX_QUERY_BYTES, StrictReader

# Chunks up to this size are tried as nothing but whole requests first; a larger one is likely cut off in one.
_SMALL_BYTES: Final = 16 << 10
# A chunk that alternates between both kinds of requests would be copied at each handover; a few must do.
_MAX_HANDOVERS: Final = 4


class RequestReader(StrictReader):
    """Turns the bytes of one client into requests, in order.

    Feed it chunks of any size.  After each `feed`, execute and answer what it returned, then look at `error`: when it
    is set, these were the last requests; answer it and close.  It is raised nowhere.

    `authenticated` may be changed between calls.  While it is False a request has at most 10 words of 16 kB.  A chunk
    may hold AUTH and, behind it, a request that is too large only if AUTH fails; `feed` then returns the former, sets
    `awaits_verdict` and keeps the rest until it is called again, with b"" if nothing has arrived.
    """

    __slots__ = ("_plain",)

    def __init__(
        self,
        *,
        authenticated: bool = False,
        max_bulk_bytes: int = DEFAULT_MAX_BULK_BYTES,
        max_query_bytes: int = DEFAULT_MAX_QUERY_BYTES,
    ) -> None:
        super().__init__(authenticated=authenticated, max_bulk_bytes=max_bulk_bytes, max_query_bytes=max_query_bytes)
        self._plain = PlainReader()

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The requests that `data` completes.  None of them is empty."""
        if (
            self.authenticated
            and not self._words_left
            and not self._buffer
            and self.error is None
            and len(data) <= _SMALL_BYTES
            and data.startswith(b"*")
        ):
            whole = self._plain.take_chunk(data)
            if whole is not None:
                return whole
        requests: list[list[bytes]] = []
        if self.error is not None:
            return requests
        self.awaits_verdict = False
        handovers = 0
        while True:
            if (
                self.authenticated
                and not self._words_left
                and not self._buffer
                and handovers < _MAX_HANDOVERS
                and len(data) <= self.max_bulk_bytes
                and data.startswith(b"*")
            ):
                taken = self._plain.take_front(data, requests)
                if taken == len(data):
                    return requests
                if taken:
                    data = data[taken:]
            handovers += 1
            rest = self.take(data, requests, may_hand_over=handovers < _MAX_HANDOVERS)
            if not rest:
                return requests
            data = rest
