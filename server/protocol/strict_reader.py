"""Reads requests from any bytes, as Redis does: with its limits, its tolerance of odd lines and its error texts.

An incomplete request is carried from chunk to chunk.  This parser can read everything and decides in all cases;
`fast_reader.py` is faster with what most clients send.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from riverbed.store.format.text import split_words

if TYPE_CHECKING:
    from riverbed.store.wire import Requests

INLINE_LIMIT_BYTES: Final = 64 * 1024  # of an inline request, and of a line that announces a count
UNAUTHENTICATED_WORDS: Final = 10
UNAUTHENTICATED_WORD_BYTES: Final = 16 * 1024
DEFAULT_MAX_BULK_BYTES: Final = 512 << 20
DEFAULT_MAX_QUERY_BYTES: Final = 1 << 30
_MAX_WORDS: Final = (1 << 31) - 1

# What CPython adds to the bytes of a word: the object's header and its place in the list.
_WORD_OVERHEAD_BYTES: Final = 48

_STAR, _DOLLAR = b"*$"

# Lines without words, and arrays of none: a flood of them is passed over as fast as it comes.  A group that is repeated
# with `++` would take a byte of what follows with CPython before 3.11.5, which Debian 12 has.
_EMPTY_ARRAYS: Final = b"*0\r\n" * 64  # compared at once, they take a tenth of the time
_NOTHING = re.compile(rb"(?:[ \t\r\n]*\n|\*(?:0|-[1-9][0-9]{0,17})\r\n)+")
_LENGTH = re.compile(rb"0|-?[1-9][0-9]{0,18}")
# Announcements of short words, which nearly all are.
_SMALL_HEADS: Final = {b"$%d" % size: size for size in range(256)}
_SHORT_LINE_BYTES: Final = 16
_LONG_WORD_BYTES: Final = 64 << 10
# Another parser may have the rest of a chunk when it is at least this long: a shorter one is not worth a handover.
_WORTH_HANDOVER_BYTES: Final = 512
# Counts, requests and stretches of nothing of one call: short requests take 50 times their bytes once they are lists.
_MAX_STEPS: Final = 128
# A browser tricked into talking to us: an HTTP request must not get as far as its body.
_HTTP_WORDS: Final = frozenset((b"post", b"host:"))

# A handshake record of any version of TLS begins with these bytes; no command does.
_TLS_HANDSHAKE: Final = b"\x16\x03"


def _copied(source: bytes | bytearray, start: int, end: int) -> bytes:
    """The bytes from `start` to `end`.  A slice of a bytearray is a bytearray, which a long word cannot afford."""
    if end - start < _LONG_WORD_BYTES or isinstance(source, bytes):
        return bytes(source[start:end])
    with memoryview(source) as view, view[start:end] as word:
        return bytes(word)


class ProtocolError(Exception):
    """These bytes are not RESP: answer `text`, when there is one, and close.

    `text` is the whole error line without `-` and CRLF; empty when Redis closes without a word.  `is_tls` when the
    client begins a TLS handshake, which belongs to another port.
    """

    def __init__(self, reason: str | bytes, *, silent: bool = False, is_tls: bool = False) -> None:
        super().__init__(reason)
        self.is_tls = is_tls
        words = reason if isinstance(reason, bytes) else reason.encode()
        self.text = b"" if silent else b"ERR Protocol error: " + words


class StrictReader:
    """Reads the requests of one client, chunk by chunk.

    `error` is set when a request is refused; nothing is taken after it.  `authenticated` may be changed between calls.
    While it is False a request has at most 10 words of 16 kB, and `awaits_verdict` is True when a larger one waits,
    unread, for the outcome of those before it.  `has_rest` is True when a call stopped early, so as not to return too
    many requests; a call with b"" goes on.
    """

    __slots__ = (
        "_buffer",
        "_bulk_bytes",
        "_words",
        "_words_bytes",
        "_words_left",
        "authenticated",
        "awaits_verdict",
        "error",
        "has_rest",
        "max_bulk_bytes",
        "max_query_bytes",
    )

    def __init__(
        self,
        *,
        authenticated: bool = False,
        max_bulk_bytes: int = DEFAULT_MAX_BULK_BYTES,
        max_query_bytes: int = DEFAULT_MAX_QUERY_BYTES,
    ) -> None:
        self.authenticated = authenticated
        self.max_bulk_bytes = max_bulk_bytes  # proto-max-bulk-len
        self.max_query_bytes = max_query_bytes  # client-query-buffer-limit: one unfinished request in memory
        self.error: ProtocolError | None = None
        self.awaits_verdict = False
        self.has_rest = False
        # Between requests _words_left is 0; the buffer may hold the start of a line.
        self._buffer = bytearray()
        self._words: list[bytes] = []
        self._words_left = 0
        self._words_bytes = 0
        self._bulk_bytes = -1  # announced length of the word being received, -1 before its announcement

    @property
    def pending_bytes(self) -> int:
        """Memory held by a request that is not complete."""
        return len(self._buffer) + self._words_bytes

    def take(self, data: bytes, requests: Requests, *, may_hand_over: bool) -> bytes:
        """Append the requests that `data` completes; keep or refuse the rest, or return it for another parser."""
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        position = 0
        may_hand_over = may_hand_over and self.authenticated
        steps = _MAX_STEPS
        try:
            while position < len(source):
                steps -= 1
                if not steps:
                    self.has_rest = True
                    may_hand_over = False
                    break
                if self._words_left:
                    following = self._take_words(source, position)
                    if self._words_left == 0 and following != position:
                        requests.append(self._words)
                        self._words = []
                        self._words_bytes = 0
                elif source[position] == _STAR:
                    if may_hand_over and requests and len(source) - position >= _WORTH_HANDOVER_BYTES:
                        break
                    following = self._take_count(source, position)
                else:
                    following = self._take_inline(source, position, requests)
                if following == position:
                    may_hand_over = False
                    break
                position = following
            else:
                may_hand_over = False
            rest = b""
            if may_hand_over:
                rest = bytes(source[position:])
                position = len(source)
            elif not self.has_rest and len(source) - position + self._words_bytes > self.max_query_bytes:
                raise ProtocolError("query buffer limit exceeded", silent=True)
        except _NotYetAllowed as refused:
            if not requests:
                self.refuse(refused.error)
                return b""
            self.awaits_verdict = True
            position, rest = refused.position, b""
        except ProtocolError as error:
            self.refuse(error)
            return b""
        if source is data:
            if position < len(data):
                self._buffer += data[position:]
        else:
            del self._buffer[:position]
        return rest

    def refuse(self, error: ProtocolError) -> None:
        """Take nothing more."""
        self.error = error.with_traceback(None)  # its frames hold the refused bytes
        self.forget_request()

    def forget_request(self) -> None:
        """Drop an incomplete request."""
        self._buffer = bytearray()
        self._words = []
        self._words_left = 0
        self._words_bytes = 0
        self._bulk_bytes = -1

    def _take_count(self, source: bytes | bytearray, position: int) -> int:
        """Read `*N`, standing at the star.  Returns where it ends, `position` itself when it is incomplete."""
        end = _line_end(source, position, "too big mbulk count string")
        if end < 0:
            return position
        count = _length(source[position + 1 : end])
        if count is None or count > _MAX_WORDS:
            raise ProtocolError("invalid multibulk length")
        if count > UNAUTHENTICATED_WORDS and not self.authenticated:
            raise _NotYetAllowed("unauthenticated multibulk length", position)
        if count <= 0:
            return _behind_nothing(source, end + 2)
        self._words_left = count
        return end + 2

    def _take_words(self, source: bytes | bytearray, position: int) -> int:
        """Read words of the present request; returns the end of the last one or of its announcement."""
        words = self._words
        left = self._words_left
        size = self._bulk_bytes
        held = self._words_bytes
        available = len(source)
        try:
            while left:
                if size < 0:
                    end = source.find(b"\r", position, position + _SHORT_LINE_BYTES)
                    if end < 0 or end + 1 == available:
                        end = _line_end(source, position, "too big bulk count string")
                        if end < 0:
                            break
                    size = _SMALL_HEADS.get(bytes(source[position:end]), -1)
                    if size < 0:
                        size = self._word_size(source, position, end)
                    position = end + 2
                end = position + size
                if end + 2 > available:
                    break
                words.append(_copied(source, position, end))
                # The two bytes behind a word are not looked at, as in Redis.
                position = end + 2
                held += size + _WORD_OVERHEAD_BYTES
                left -= 1
                size = -1
                if held > self.max_query_bytes and left:
                    raise ProtocolError("query buffer limit exceeded", silent=True)
        finally:  # the refusal may be taken back: see _NotYetAllowed
            self._words_left = left
            self._bulk_bytes = size
            self._words_bytes = held
        return position

    def _word_size(self, source: bytes | bytearray, position: int, end: int) -> int:
        if source[position] != _DOLLAR:
            got = bytes(source[position : position + 1])
            raise ProtocolError(b"expected '$', got '%b'" % (b" " if got in b"\r\n" else got))
        size = _length(source[position + 1 : end])
        if size is None or not 0 <= size <= self.max_bulk_bytes:
            raise ProtocolError("invalid bulk length")
        if size > UNAUTHENTICATED_WORD_BYTES and not self.authenticated:
            raise _NotYetAllowed("unauthenticated bulk length", position)
        return size

    def _take_inline(self, source: bytes | bytearray, position: int, requests: Requests) -> int:
        if source.startswith(_TLS_HANDSHAKE, position):
            raise ProtocolError("a TLS handshake", silent=True, is_tls=True)
        newline = source.find(b"\n", position, position + INLINE_LIMIT_BYTES + 1)
        if newline < 0:
            if len(source) - position > INLINE_LIMIT_BYTES:
                raise ProtocolError("too big inline request")
            return position
        following = _behind_nothing(source, position)
        if following != position:
            return following
        line = bytes(source[position:newline])
        words = split_words(line.removesuffix(b"\r"))
        if words is None:
            raise ProtocolError("unbalanced quotes in request")
        if words:
            if words[0].lower() in _HTTP_WORDS:
                raise ProtocolError("HTTP request", silent=True)
            requests.append(words)
        return newline + 1


class _NotYetAllowed(Exception):
    """Refused unless a request before it authenticates the client.  `position` is where to read on if it does."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.error = ProtocolError(reason)
        self.position = position


def _behind_nothing(source: bytes | bytearray, position: int) -> int:
    """Where the requests without words that stand at `position` end."""
    while source.startswith(_EMPTY_ARRAYS, position):
        position += len(_EMPTY_ARRAYS)
    nothing = _NOTHING.match(source, position)
    return position if nothing is None else nothing.end()


def _line_end(source: bytes | bytearray, position: int, error: str) -> int:
    """Where the CR of a complete line is, -1 when it has not arrived.

    Any byte may follow the CR; Redis does not look at it.
    """
    end = source.find(b"\r", position, position + INLINE_LIMIT_BYTES + 1)
    if end < 0:
        if len(source) - position > INLINE_LIMIT_BYTES:
            raise ProtocolError(error)
        return -1
    return end if end + 1 < len(source) else -1


def _length(text: bytes | bytearray) -> int | None:
    """A canonical 64-bit decimal, None for anything else."""
    if len(text) > 20 or _LENGTH.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
