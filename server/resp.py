"""From bytes to requests.  Knows RESP and nothing else: no socket, no clock, no command.

Two parsers share the work, and a request boundary is the only place where one hands over to the other:

            +------------------ chunk ------------------+
            | rest of a request | whole requests | head |
            +-------------------+----------------+------+
                  strict             hiredis      strict

`hiredis.Reader` is C and parses replies, which is nearly what we need: a request is an array of bulk strings.  It
takes whatever whole requests a chunk holds.  It is given nothing else, because it never says how much it consumed,
knows no inline commands, reserves memory for as many words as a client announces, and is content with words that
Redis refuses.  So its state never outlives one chunk: what is left over, at most one request, goes to the strict
parser, which carries it from chunk to chunk, enforces the limits and words the errors as Redis does.

The strict parser is also the judge of every chunk that is not plain: inline commands, a client that has not
authenticated, a chunk hiredis objects to, announcements of very many words.

Cost of a request of 7 words and 110 bytes in nanoseconds, Python 3.11 and hiredis 3.5: 450 with 16 in a chunk, of
which hiredis itself 270, the type check of the words 80, looking for long counts 50; 1,700 alone in its chunk; 5,500 by
the strict parser; 70,000 when it arrives in 110 pieces of one byte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final

import hiredis

from store.format import encode_command

INLINE_LIMIT_BYTES: Final = 64 * 1024  # of an inline request, and of a line that announces a count
UNAUTHENTICATED_WORDS: Final = 10
UNAUTHENTICATED_WORD_BYTES: Final = 16 * 1024
DEFAULT_MAX_BULK_BYTES: Final = 512 << 20
DEFAULT_MAX_QUERY_BYTES: Final = 1 << 30
_MAX_WORDS: Final = (1 << 31) - 1

# What CPython adds to the bytes of a word: the object's header and its place in the list.
_WORD_OVERHEAD_BYTES: Final = 48

# hiredis moves what it has not parsed yet to the front of its buffer every kilobyte; with 160 kB fed at once that
# made a request cost 340 ns instead of 285.
_SLICE_BYTES: Final = 16 * 1024

# A chunk that alternates between both kinds of requests would be copied at each handover; a few must do.
_MAX_HANDOVERS: Final = 4
# Less than this is not worth a handover.
_WORTH_HANDOVER_BYTES: Final = 512

# hiredis would build a list of that length before the first word arrives: 8 bytes a word in memory, and a stall of
# about a second for a billion.  10,000 words and more are counted one by one instead.
_find_long_count = re.compile(rb"\*[0-9]{5}").search
# Aggregates of RESP3 that hiredis returns as a list or dict, where Redis would see an inline command.
_find_other_aggregate = re.compile(rb"\n[%~|>][0-9]+\r\n").search
_PERCENT, _TILDE, _BAR, _GREATER = b"%~|>"
# Types that hiredis returns as bytes although they are no bulk strings: simple string, verbatim, big number.  A word
# may begin like that too; their lengths on the wire tell them apart.
_PLUS, _EQUALS, _PAREN = b"+=("
_STAR, _DOLLAR = b"*$"

_LENGTH = re.compile(rb"0|-?[1-9][0-9]{0,18}")
# Announcements of short words, which nearly all are.
_SMALL_HEADS: Final = {b"$%d" % size: size for size in range(256)}
_SHORT_LINE_BYTES: Final = 16
_BLANKS = re.compile(rb"\s*")
# One inline word: plain characters, then perhaps a quoted part, which must end the word.
_INLINE_WORD = re.compile(
    rb"""([^ \t\r\n"']*+)(?:"""
    rb""""((?:\\x[0-9a-fA-F]{2}|\\.|[^"\\])*+)"(?=\s|\Z)|"""
    rb"""'((?:\\'|[^'])*+)'(?=\s|\Z)|(?=[ \t\r\n]|\Z))""",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONTROL_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}
# A browser tricked into talking to us: an HTTP request must not get as far as its body.
_HTTP_WORDS: Final = frozenset((b"post", b"host:"))

_INCOMPLETE: Final = object()
_join = b"".join
# Chunks up to this size are tried as nothing but whole requests first; a larger one is likely cut off in one.
_SMALL_BYTES: Final = 16 << 10
_SMALLEST_BYTES: Final = len(b"*1\r\n$1\r\nX\r\n")
_CR: Final = ord("\r")


class ProtocolError(Exception):
    """These bytes are not RESP: answer `text`, when there is one, and close.

    `text` is the whole error line without `-` and CRLF; empty when Redis closes without a word.
    """

    def __init__(self, reason: str | bytes, *, silent: bool = False) -> None:
        super().__init__(reason)
        words = reason if isinstance(reason, bytes) else reason.encode()
        self.text = b"" if silent else b"ERR Protocol error: " + words


class RequestReader:
    """Turns the bytes of one client into requests, in order.

    Feed it chunks of any size.  After each `feed`, execute and answer what it returned, then look at `error`: when it
    is set, these were the last requests; answer it and close.  It is raised nowhere.

    `authenticated` may be changed between calls.  While it is False a request has at most 10 words of 16 kB.  A chunk
    may hold AUTH and, behind it, a request that is too large only if AUTH fails; `feed` then returns the former, sets
    `awaits_verdict` and keeps the rest until it is called again, with b"" if nothing has arrived.
    """

    __slots__ = (
        "_buffer",
        "_bulk_bytes",
        "_hiredis",
        "_words",
        "_words_bytes",
        "_words_left",
        "authenticated",
        "awaits_verdict",
        "error",
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
        self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)
        # The strict parser's state.  Between requests _words_left is 0; the buffer may hold the start of a line.
        self._buffer = bytearray()
        self._words: list[bytes] = []
        self._words_left = 0
        self._words_bytes = 0
        self._bulk_bytes = -1  # announced length of the word being received, -1 before its announcement

    @property
    def pending_bytes(self) -> int:
        """Memory held by a request that is not complete."""
        return len(self._buffer) + self._words_bytes

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
            whole = self._take_small(data)
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
                and data.startswith(b"*")
            ):
                taken = self._take_plain(data, requests)
                if taken == len(data):
                    return requests
                if taken:
                    data = data[taken:]
            handovers += 1
            rest = self._take_strictly(data, requests, may_hand_over=handovers < _MAX_HANDOVERS)
            if not rest:
                return requests
            data = rest

    def _take_small(self, data: bytes) -> list[list[bytes]] | None:
        """The requests of a chunk that is nothing but whole plain requests, None for any other chunk.

        What nearly every chunk is: 0.6 us for one request of 7 words, 0.37 us for each of 16 (`_take_plain`, which
        finds out what else it may be, takes 1.6 and 0.42).
        """
        if len(data) < _SMALLEST_BYTES or (data[2] != _CR and data[3] != _CR):
            return None  # a count of three digits or more is for the others to judge
        reader = self._hiredis
        gets = reader.gets
        try:
            reader.feed(data)
            request = gets()
            # Joining raises unless all words are bytes, and is the cheapest such test.
            if request is not _INCOMPLETE and _join(request):
                requests = [request]
                # Words of other types that hiredis takes for bytes show when the requests are encoded again; the ends
                # of XRANGE are what brings a + here, and this is a sixth of what `_take_plain` would cost.
                odd_words = _PLUS in data or _EQUALS in data or _PAREN in data
                if (not reader.has_data() or self._take_others(data, requests)) and (
                    not odd_words or _join(map(encode_command, requests)) == data
                ):
                    return requests
        except (hiredis.ProtocolError, TypeError):
            pass
        self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)
        return None

    def _take_others(self, data: bytes, requests: list[list[bytes]]) -> bool:
        """Append the requests behind the first of `data`, which hiredis has; False if that is not all of it."""
        if _PERCENT in data or _TILDE in data or _BAR in data or _GREATER in data or _find_long_count(data) is not None:
            return False
        reader = self._hiredis
        gets = reader.gets
        while (request := gets()) is not _INCOMPLETE:
            if not _join(request):  # nothing joined is an empty request
                return False
            requests.append(request)
        # All bytes were used, but perhaps for the first words of a request; an array on top level tells.
        reader.feed(b"*0\r\n")
        return bool(gets() == [])

    # -- whole requests, by hiredis ------------------------------------------------------------------------------------

    def _take_plain(self, data: bytes, requests: list[list[bytes]]) -> int:
        """Append the requests at the front of `data`; return how many bytes they are.

        What follows is an unfinished request or something for the strict parser.
        """
        size = len(data)
        if size > self.max_bulk_bytes or _find_long_count(data) is not None:
            return 0
        odd_words = (
            (_PLUS in data and b"\n+" in data)
            or (_EQUALS in data and b"\n=" in data)
            or (_PAREN in data and b"\n(" in data)
        )
        if (_PERCENT in data or _TILDE in data or _BAR in data or _GREATER in data) and _find_other_aggregate(data):
            return 0
        reader = self._hiredis
        gets = reader.gets
        batch: list[list[bytes]] = []
        add = batch.append
        try:
            for piece in (data,) if size <= _SLICE_BYTES else _slices(data):
                reader.feed(piece)
                while (request := gets()) is not _INCOMPLETE:
                    _join(request)  # raises unless all words are bytes: the cheapest such test, in C
                    add(request)
            whole = not reader.has_data()
            if whole:
                # All bytes were used, but perhaps for the first words of a request; an array on top level tells.
                reader.feed(b"*0\r\n")
                whole = gets() == []
        except (hiredis.ProtocolError, TypeError):
            whole = False
        if not whole:
            self._hiredis = hiredis.Reader(notEnoughData=_INCOMPLETE)
            size = _end_of_last(batch, data)
        if not size or not all(batch):  # `*0` and `*-1` are no requests
            return 0
        if odd_words and _wire_bytes(batch) != size:
            return 0
        requests += batch
        return size

    # -- everything else -----------------------------------------------------------------------------------------------

    def _take_strictly(self, data: bytes, requests: list[list[bytes]], *, may_hand_over: bool) -> bytes:
        """Append what `data` completes; keep or refuse the rest, or return it when hiredis may have it."""
        source: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            source = self._buffer
        position = 0
        may_hand_over = may_hand_over and self.authenticated
        try:
            while position < len(source):
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
            elif len(source) - position + self._words_bytes > self.max_query_bytes:
                raise ProtocolError("query buffer limit exceeded", silent=True)
        except _NotYetAllowed as refused:
            if not requests:
                self._refuse(refused.error)
                return b""
            self.awaits_verdict = True
            position, rest = refused.position, b""
        except ProtocolError as error:
            self._refuse(error)
            return b""
        if source is data:
            if position < len(data):
                self._buffer += data[position:]
        else:
            del self._buffer[:position]
        return rest

    def _refuse(self, error: ProtocolError) -> None:
        self.error = error
        self._buffer = bytearray()
        self._words = []
        self._words_bytes = 0

    def _take_count(self, source: bytes | bytearray, position: int) -> int:
        """Read `*N`, standing at the star.  Returns where it ends, `position` itself when it is not all there."""
        end = _line_end(source, position, "too big mbulk count string")
        if end < 0:
            return position
        count = _length(source[position + 1 : end])
        if count is None or count > _MAX_WORDS:
            raise ProtocolError("invalid multibulk length")
        if count > UNAUTHENTICATED_WORDS and not self.authenticated:
            raise _NotYetAllowed("unauthenticated multibulk length", position)
        self._words_left = max(count, 0)
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
                words.append(bytes(source[position:end]))
                # The two bytes behind a word are not looked at, as in Redis.
                position = end + 2
                held += size + _WORD_OVERHEAD_BYTES
                left -= 1
                size = -1
                if held > self.max_query_bytes and left:
                    raise ProtocolError("query buffer limit exceeded", silent=True)
        finally:  # a refusal may be taken back: see _NotYetAllowed
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

    def _take_inline(self, source: bytes | bytearray, position: int, requests: list[list[bytes]]) -> int:
        newline = source.find(b"\n", position, position + INLINE_LIMIT_BYTES + 1)
        if newline < 0:
            if len(source) - position > INLINE_LIMIT_BYTES:
                raise ProtocolError("too big inline request")
            return position
        line = bytes(source[position:newline])
        words = split_inline(line.removesuffix(b"\r"))
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


def split_inline(line: bytes) -> list[bytes] | None:
    """The words of a line without its newline, quotes resolved; None when the quotes do not fit."""
    words = []
    position = _end_of_blanks(line, 0)
    while position < len(line):
        match = _INLINE_WORD.match(line, position)
        if match is None:
            return None
        plain, double, single = match.groups()
        if double is not None:
            plain += _ESCAPE.sub(_unescape, double)
        elif single is not None:
            plain += single.replace(b"\\'", b"'")
        words.append(plain)
        position = _end_of_blanks(line, match.end())
    return words


def _end_of_blanks(line: bytes, position: int) -> int:
    match = _BLANKS.match(line, position)
    assert match is not None
    return match.end()


def _unescape(match: re.Match[bytes]) -> bytes:
    code, char = match.groups()
    if code is not None:
        return bytes((int(code, 16),))
    return _CONTROL_ESCAPES.get(char, char)


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


def _slices(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]


def _end_of_last(batch: list[list[bytes]], data: bytes) -> int:
    """Where the last request of `batch` ends in `data`, which begins with all of them.

    When its wire form occurs only once, that is the place; pipelines of equal requests have to be measured instead
    (20 against 370 ns a request).  0, for the strict parser to read all of it, if neither fits: words of other types
    than bulk strings.
    """
    if not batch or not all(batch):
        return 0
    last = batch[-1]
    wire = b"*%d\r\n%b" % (len(last), _join([b"$%d\r\n%b\r\n" % (len(word), word) for word in last]))
    start = data.rfind(wire)
    if start >= 0 and data.find(wire, 0, start + len(wire) - 1) < 0:
        return start + len(wire)
    size = _wire_bytes(batch)
    if data.startswith(wire, size - len(wire)):
        return size
    return 0


def _wire_bytes(batch: list[list[bytes]]) -> int:
    """How many bytes these requests were, being arrays of bulk strings: both parsers take only canonical lengths."""
    size = 0
    for count, times in Counter(map(len, batch)).items():
        size += times * (len(str(count)) + 3)
    for length, times in Counter(map(len, chain.from_iterable(batch))).items():
        size += times * (len(str(length)) + length + 5)
    return size
