"""From bytes to requests: which of two parsers reads what.  Knows RESP alone: no socket, no clock, no command.

A request boundary is the only place where one hands over to the other:

            +------------------ chunk ------------------+
            | rest of a request | whole requests | head |
            +-------------------+----------------+------+
              strict_reader.py  native_reader.py  strict_reader.py
                                or fast_reader.py

The plain one is native, or hiredis where there is no native module: for whole requests of clients that say nothing
unusual.  What it leaves over, at most one request, goes to the strict one, which carries it from chunk to chunk,
enforces the limits and words the errors as Redis does.  The strict one is also the judge of every chunk that is not
plain: inline commands, a client that has not authenticated, a chunk the plain one objects to.

Cost of a request of 7 words and 92 bytes in nanoseconds, Python 3.11: 120 with 16 in a chunk, 210 alone in its chunk;
by hiredis 3.5 450 and 1,000; 5,100 by the strict parser; 70,000 when it arrives in 92 pieces of one byte.
"""

from __future__ import annotations

from typing import Final

from riverbed.server.protocol.fast_reader import PlainReader
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.server.protocol.strict_reader import DEFAULT_MAX_BULK_BYTES, DEFAULT_MAX_QUERY_BYTES, StrictReader
from riverbed.store.wire import IS_NATIVE, Requests, words_of

# So many bytes are taken apart at a time: what waits stays as it came, for a request in Python takes 10 to 50 times its
# bytes.  Chunks up to this size are tried as nothing but whole requests first.
_SMALL_BYTES: Final = 16 << 10
# A word that goes on is taken in larger pieces.
_WORD_PIECE_BYTES: Final = 64 << 10
# A chunk that alternates between both kinds of requests would be copied at each handover; a few must do.
_MAX_HANDOVERS: Final = 4
# What CPython adds to the bytes of a chunk.
_CHUNK_OVERHEAD_BYTES: Final = 48
# Chunks of a client that has to wait are joined when there are so many, or bytes that come one by one take 50 each.
_MANY_CHUNKS: Final = 64

new_plain_reader: type[NativeReader] | type[PlainReader] = NativeReader if IS_NATIVE else PlainReader


class RequestReader(StrictReader):
    """Turns the bytes of one client into requests, in order, a bounded number at a time.

    `add` what arrives, of any size.  Call `next_requests` when there is time for some, execute and answer what it
    returned, and call it again as long as `has_more`.  When it returns nothing and `error` is set, the bytes
    there are no request; answer the error and close.  It is raised nowhere.

    `authenticated` may be changed between calls.  While it is False a request has at most 10 words of 16 kB.  A chunk
    may hold AUTH and, behind it, a request that is too large only if AUTH fails; `next_requests` then returns the
    former, and the next call judges the latter.

    Call `end` when nothing more arrives.

    `is_behind` is True while more is kept than one chunk that no call has looked at, and from the end on.  Who finds it
    False may set `chunk`, when it is b"", instead of calling `add`, and ask `plain` for the requests in it, when it is
    short and the client has authenticated; b"" is to be put in its place then.
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
        self._chunks: list[bytes] = []  # what has arrived behind `chunk`, and nothing while that is b""
        self._data = b""  # what is being taken apart, from `_position`
        self._position = 0
        self.is_behind = False
        self.has_ended = False

    def add(self, data: bytes) -> None:
        """This has arrived."""
        if self.chunk:
            self._chunks.append(data)
            self.is_behind = True
        else:
            self.chunk = data

    def end(self) -> None:
        """Nothing arrives behind what was added; the end is something to find, like the requests before it."""
        self.has_ended = self.is_behind = True

    @property
    def has_more(self) -> bool:
        """Whether another call finds something although nothing arrives: a request, an error or the end."""
        return self._is_unfinished or self.error is not None or self.has_ended

    @property
    def is_over(self) -> bool:
        """Whether no request comes any more: there is an error, or nothing but the end."""
        return self.error is not None or (self.has_ended and not self._is_unfinished)

    @property
    def _is_unfinished(self) -> bool:
        return bool(self.chunk or self._data or self.has_rest or self.awaits_verdict)

    @property
    def only_chunk(self) -> bytes:
        """What has arrived and was not looked at, if that is one chunk; b"" otherwise."""
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
        """Keep nothing: the client is going."""
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
        """The next requests, none of them empty; [] when no whole one is among the next bytes."""
        if self.authenticated and not self.is_behind and 0 < len(self.chunk) <= _SMALL_BYTES:
            whole = self.plain.take_chunk(self.chunk)
            if whole is not None:
                self.chunk = b""
                return whole
        return self.take_apart()

    def take_apart(self) -> Requests:
        """As `next_requests`, for what is not nothing but whole plain requests."""
        requests: Requests = []
        if self.error is None:
            piece = self._next_piece()
            self.awaits_verdict = self.has_rest = False
            self._take_apart(piece, requests)
        self.is_behind = bool(self._data or self._buffer or self._words_left or self.has_more)
        return requests

    def _next_piece(self) -> bytes:
        """A part of what has arrived, of the whole requests in it if possible; b"" to go on with what was begun."""
        if self.has_rest or self.awaits_verdict:
            return b""
        data = self._data
        if not data:
            data = b"".join((self.chunk, *self._chunks)) if self._chunks else self.chunk
            self.chunk = b""
            self._chunks.clear()
            self._position = 0
        start = self._position
        end = start + (_WORD_PIECE_BYTES if self._words_left else _SMALL_BYTES)
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
