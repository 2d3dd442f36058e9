"""From bytes to requests: chooses the parser for each part.  Knows RESP alone: no socket, no clock, no command.

A request boundary is the only place where one hands over to the other:

            +------------------ chunk ------------------+
            | rest of a request | whole requests | head |
            +-------------------+----------------+------+
              strict_reader.py  native_reader.py  strict_reader.py
                                or fast_reader.py

The plain reader is native, or hiredis where there is no native module.  It takes whole requests of clients that send
nothing unusual.  It leaves over at most one request; the strict reader carries that from chunk to chunk, enforces the
limits and words the errors as Redis does.  The strict reader also judges every chunk that is not plain: inline
commands, a client that has not authenticated, a chunk that the plain reader refuses.

Cost of a request of 7 words and 92 bytes in nanoseconds, Python 3.11: 120 with 16 in a chunk, 210 alone in its chunk;
by hiredis 3.5 450 and 1,000; 5,100 by the strict parser; 70,000 when it arrives in 92 pieces of one byte.
"""

from __future__ import annotations

from typing import Final

from riverbed.server.protocol.fast_reader import PlainReader
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.server.protocol.strict_reader import (
    DEFAULT_MAX_BULK_BYTES,
    DEFAULT_MAX_QUERY_BYTES,
    ProtocolError,
    StrictReader,
)
from riverbed.store.wire import IS_NATIVE, Requests, words_of

# How many bytes of a long chunk are parsed at a time.  Waiting bytes stay as they came, because a request in Python
# takes 10 to 50 times its bytes.
_PIECE_BYTES: Final = 16 << 10
# Chunks up to this size, which most pipelines have, are tried as nothing but whole requests first.
SMALL_BYTES: Final = 32 << 10
# While a word longer than the first is unfinished, pieces are larger.  Short words take most of a microsecond each.
_SHORT_WORD_BYTES: Final = 1 << 10
_WORD_PIECE_BYTES: Final = 64 << 10
# A chunk that alternates between both kinds of requests would be copied at each handover, so only a few are made.
_MAX_HANDOVERS: Final = 4
# What CPython adds to the bytes of a chunk.
_CHUNK_OVERHEAD_BYTES: Final = 48
# A waiting client's chunks are joined from this number on: of single bytes each would take 50 bytes.
_MANY_CHUNKS: Final = 64

new_plain_reader: type[NativeReader] | type[PlainReader] = NativeReader if IS_NATIVE else PlainReader


class RequestReader(StrictReader):
    """Turns the bytes of one client into requests, in order, a bounded number at a time.

    `add` the bytes that arrive, in chunks of any size.  Call `next_requests` when there is time, execute and answer
    what it returned, and call it again as long as `has_more`.  When it returns nothing and `error` is set, the bytes
    are no request: answer the error and close.  The error is never raised.

    `authenticated` may be changed between calls.  While it is False a request has at most 10 words of 16 kB.  A chunk
    may hold AUTH and, behind it, a request that is too large only if AUTH fails; `next_requests` then returns the
    former, and the next call judges the latter.

    Call `end` when nothing more arrives.

    `is_behind` is True while more than one unread chunk is kept, and after the end.  While it is False and `chunk` is
    b"", a caller may set `chunk` instead of calling `add`.  When that chunk is short and the client has authenticated,
    the caller may ask `plain` for its requests, and sets `chunk` to b"" then.
    """

    __slots__ = ("_chunks", "_data", "_position", "chunk", "has_ended", "is_behind", "plain")

    def __init__(
        self,
        *,
        authenticated: bool = False,
        max_bulk_bytes: int = DEFAULT_MAX_BULK_BYTES,
        max_query_bytes: int = DEFAULT_MAX_QUERY_BYTES,
    ) -> None:
        super().__init__(authenticated=authenticated, max_bulk_bytes=max_bulk_bytes, max_query_bytes=max_query_bytes)
        self.plain = new_plain_reader()
        self.chunk = b""
        self._chunks: list[bytes] = []  # what has arrived behind `chunk`; empty while that is b""
        self._data = b""  # the bytes that are being parsed, from `_position` on
        self._position = 0
        self.is_behind = False
        self.has_ended = False

    def add(self, data: bytes) -> None:
        """Keep bytes that have arrived."""
        if self.chunk:
            self._chunks.append(data)
            self.is_behind = True
        else:
            self.chunk = data

    def end(self) -> None:
        """Note that nothing arrives behind what was added; the end is then found like a request."""
        self.has_ended = self.is_behind = True

    @property
    def has_more(self) -> bool:
        """Whether another call finds something although nothing arrives: a request, an error or the end."""
        return self.has_unread or self.error is not None or self.has_ended

    @property
    def is_over(self) -> bool:
        """Whether no request comes any more: there is an error, or nothing but the end."""
        return self.error is not None or (self.has_ended and not self.has_unread)

    @property
    def has_unread(self) -> bool:
        """Whether bytes wait that may hold a request."""
        return bool(self.chunk or self._data or self.has_rest or self.awaits_verdict)

    @property
    def only_chunk(self) -> bytes:
        """The unread bytes if they are one chunk; b"" otherwise."""
        return b"" if self._chunks else self.chunk

    @property
    def unread_bytes(self) -> int:
        """Memory held by bytes that have not been looked at."""
        chunks = self._chunks
        if len(chunks) > _MANY_CHUNKS:
            chunks[:] = [b"".join(chunks)]
        count = len(chunks) + bool(self.chunk)
        return len(self._data) + len(self.chunk) + sum(map(len, chunks)) + _CHUNK_OVERHEAD_BYTES * count

    def drop(self) -> None:
        """Drop everything: the client is leaving."""
        self.chunk = self._data = b""
        self._chunks.clear()
        self.has_rest = self.awaits_verdict = self.is_behind = False
        self.forget_request()

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The words of all requests that `data` completes; before AUTH only of those that can be judged already."""
        if data:
            self.add(data)
        requests = self.next_requests()
        while self.has_more and self.error is None and (self.authenticated or not requests):
            requests += self.next_requests()
        return words_of(requests)

    def next_requests(self) -> Requests:
        """The next requests, none of them empty; [] when the next bytes hold no whole one."""
        if self.authenticated and not self.is_behind and 0 < len(self.chunk) <= SMALL_BYTES:
            try:
                whole = self.plain.take_chunk(self.chunk)
            except MemoryError:  # the first requests of it may need less
                whole = None
            if whole is not None:
                self.chunk = b""
                return whole
        return self.take_apart()

    def take_apart(self) -> Requests:
        """As `next_requests`, for bytes that are not only whole plain requests."""
        requests: Requests = []
        if self.error is None:
            try:
                piece = self._next_piece()
                self.awaits_verdict = self.has_rest = False
                self._take_apart(piece, requests)
            except MemoryError:  # only the client that needs so much is refused, not those read beside it
                self.refuse(ProtocolError("no memory for the request", silent=True))
        self.is_behind = bool(self._data or self._buffer or self._words_left or self.has_more)
        return requests

    def _next_piece(self) -> bytes:
        """The next bytes to parse, whole requests if possible; b"" to go on with an unfinished one."""
        if self.has_rest or self.awaits_verdict:
            return b""
        data = self._data
        if not data:
            data = b"".join((self.chunk, *self._chunks)) if self._chunks else self.chunk
            self.chunk = b""
            self._chunks.clear()
            self._position = 0
        start = self._position
        end = start + (_WORD_PIECE_BYTES if self._bulk_bytes > _SHORT_WORD_BYTES else _PIECE_BYTES)
        if end >= len(data):
            self._data = b""
            return data[start:] if start else data
        if not self._words_left:
            # most likely where a request begins; if not, the strict parser carries it on
            boundary = data.rfind(b"\r\n*", start, end)
            if boundary >= 0:
                end = boundary + 2
        self._data = data
        self._position = end
        return data[start:end]

    def _take_apart(self, data: bytes, requests: Requests) -> None:
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
                taken = self.plain.take_front(data, requests)
                if taken == len(data):
                    return
                if taken:
                    data = data[taken:]
            handovers += 1
            data = self.take(data, requests, may_hand_over=handovers < _MAX_HANDOVERS)
            if not data:
                return
