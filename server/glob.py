"""Redis's glob patterns, for KEYS, SCAN MATCH, CONFIG GET, PUBSUB and COMMAND LIST.

    *        any bytes, also none          [abc]   one of these      [a-c]  a range, either way round
    ?        any one byte                  [^abc]  none of these     \\x    x itself

Stars cut a pattern into segments, each of which matches a fixed number of bytes: the first at the start of a text, the
last at its end, and those between at the leftmost place behind the one before.  The leftmost is as good as any, so
nothing is tried twice, and `a*a*a*a*b` costs length times length instead of an exponential.

Neither a pattern nor a text has a limit.  A long pattern is parsed no further than the longest text could match, and
`steps` yields after every millisecond, so that other clients have their turn.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import groupby
from operator import contains, methodcaller
from typing import Final

# For each place the bytes that match there; a bytearray when one byte matches at each place.
_Segment = bytearray | list[bytes]
# What finds the first places of a segment, and how many these are.
_Search = tuple[re.Pattern[bytes], int]

_STEP_S: Final = 0.001
# A pattern with more stars before other parts matches nothing: Redis ends its recursion there.
_MAX_STARS: Final = 1000
# Places that are parsed, or compared, between two looks at the clock.
_PIECE: Final = 2048

_MEMBERS_A_STEP: Final = 256
# Places of a segment that a regular expression looks for: to compile one takes up to 30 us a place.
_HEAD: Final = 32
_NOTHING: Final = rb"[^\x00-\xff]"

_ANY: Final = bytes(range(256))
_IN_ORDER: Final = _ANY[128:] + _ANY[:128]  # as signed bytes
_SINGLE: Final = [bytes((byte,)) for byte in range(256)]
_EITHER_CASE: Final = [bytes({byte, *_SINGLE[byte].upper(), *_SINGLE[byte].lower()}) for byte in range(256)]
# The parts of a pattern.  A part is never longer than a piece, except for stars, which are all the same.
_PART = re.compile(
    rb"(?P<stars>\*+)|(?P<any>\?{1,2048})|(?P<class>\[\^?)|(?P<plain>[^*?\[\\]{1,2048})|\\(?P<escaped>.)|(?P<end>\\)",
    re.DOTALL,
)
# A literal with at most one star.
_LITERAL = re.compile(rb"[^*?\[\\]{0,2048}\*?[^*?\[\\]{0,2048}")
# The members of a class: an escaped byte, a range, one byte.  In `[a-]` the bracket is the end of a range.
_MEMBER = re.compile(rb"\\(?P<escaped>.)|(?P<low>[^\]])-(?P<high>.)|(?P<one>[^\]])", re.DOTALL)


class Glob:
    """A glob pattern.  `ignore_case` is for ASCII letters, as in CONFIG GET."""

    __slots__ = ("_heads", "_is_parsed", "_parts", "_segments", "_size", "ignore_case", "pattern")

    def __init__(self, pattern: bytes, *, ignore_case: bool = False) -> None:
        self.pattern = pattern
        self.ignore_case = ignore_case
        self._segments: list[_Segment] = [bytearray()]
        self._size = 0  # places in all segments so far: a match has at least so many bytes
        self._is_parsed = False
        self._parts: Iterator[None] | None = None  # while the pattern is being parsed
        self._heads: dict[int, _Search] = {}  # by segment: what finds its first places

    def matches(self, text: bytes) -> bool:
        """Whether the whole of `text` matches."""
        return _result(self.steps(text))

    def test(self) -> Callable[[bytes], bool]:
        """`matches`, or what is ten times as fast: of a literal with at most one star."""
        if self.ignore_case or not _LITERAL.fullmatch(self.pattern) or self.pattern == b"*":
            return self.matches
        first, star, last = self.pattern.partition(b"*")
        if not star:
            return self.pattern.__eq__
        if not last:
            return methodcaller("startswith", first)
        size = len(first) + len(last)
        return lambda text: len(text) >= size and text.startswith(first) and text.endswith(last)

    def steps(self, text: bytes) -> Generator[None, None, bool]:
        """As `matches`; yields after each millisecond."""
        size = len(text)
        if not self._is_parsed and self._size <= size:
            yield from self._parse_for(size)
        segments = self._segments
        if self._size > size or len(segments) - (not segments[-1]) > _MAX_STARS + 1:
            return False
        if len(segments) == 1:
            return self._size == size and (yield from _fits(segments[0], text, 0))
        if not text:  # Redis matches it with no pattern, except that a single star asks for all keys
            return self.pattern == b"*"
        first, last = segments[0], segments[-1]
        if isinstance(first, bytearray) and not text.startswith(first):
            return False  # a fast test that rejects nearly all texts
        if not ((yield from _fits(last, text, size - len(last))) and (yield from _fits(first, text, 0))):
            return False
        at, end = len(first), size - len(last)
        for number, segment in enumerate(segments[1:-1], 1):
            if isinstance(segment, bytearray):
                found = text.find(segment, at, end)
            else:
                head = self._heads.get(number) or self._heads.setdefault(number, _search(segment[:_HEAD]))
                found = yield from _find(head, segment, text, at, end)
            if found < 0:
                return False
            at = found + len(segment)
        return at <= end

    def select(self, texts: Iterable[bytes]) -> Generator[None, None, list[bytes]]:
        """The `texts` that match; yields now and then when that takes long."""
        steps = self.steps
        found = []
        for text in texts:
            does_match = yield from steps(text)
            if does_match:
                found.append(text)
        return found

    # -- parsing -------------------------------------------------------------------------------------------------------

    def _parse_for(self, size: int) -> Generator[None, None, None]:
        """Parse until no text of `size` bytes can match, or to the end of the pattern."""
        end = time.perf_counter() + _STEP_S
        if self._parts is None:
            self._parts = self._parse()
        for _ in self._parts:
            if self._size > size:
                return
            if time.perf_counter() >= end:
                yield
                end = time.perf_counter() + _STEP_S
        self._is_parsed = True
        self._parts = None

    def _parse(self) -> Iterator[None]:
        """Add one part of the pattern after the other to the segments."""
        single = _EITHER_CASE if self.ignore_case else None
        position = 0
        while match := _PART.match(self.pattern, position):
            position = match.end()
            kind, text = match.lastgroup, match[match.lastgroup or 0]
            if kind == "stars":
                self._segments.append(bytearray())
            elif kind == "any":
                self._add([_ANY] * len(text))
            elif kind == "class":
                members, position = yield from self._read_class(position)
                self._add([bytes(_ANY.translate(None, members) if text == b"[^" else members)])
            else:
                self._add(text if single is None else [single[byte] for byte in text])
            yield

    def _add(self, places: bytes | list[bytes]) -> None:
        segments = self._segments
        self._size += len(places)
        last = segments[-1]
        if isinstance(last, bytearray):
            if isinstance(places, bytes):
                last += places
                return
            last = segments[-1] = [_SINGLE[byte] for byte in last]
        last += [_SINGLE[byte] for byte in places] if isinstance(places, bytes) else places

    def _read_class(self, position: int) -> Generator[None, None, tuple[bytes, int]]:
        """The bytes that a class names, and the position behind it; `position` is behind its `[` or `[^`.

        Redis's reading is kept: `[]` matches nothing, `[^]` anything, a class that is not closed ends with the pattern,
        the bytes of a range are in the order of signed ones, and an escaped byte has a case.
        """
        exact: set[int] = set()
        folded: set[int] = set()  # in lower case where case is ignored
        fold = _lower if self.ignore_case else _same
        count = 0
        while match := _MEMBER.match(self.pattern, position):
            position = match.end()
            if match["escaped"] is not None:
                exact.update(match["escaped"])
            elif match["one"] is not None:
                folded.add(fold(match["one"][0]))
            else:
                low, high = sorted((_signed(match["low"][0]), _signed(match["high"][0])))
                folded.update(_IN_ORDER[fold(low) + 128 : fold(high) + 129])
            count += 1
            if not count % _MEMBERS_A_STEP:
                yield
        if self.ignore_case:
            folded = {byte for byte in range(256) if _lower(byte) in folded}
        return bytes(exact | folded), position + 1  # behind the `]`, or the end of the pattern


def _result(steps: Generator[None, None, bool]) -> bool:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return bool(done.value)


def _fits(segment: _Segment, text: bytes, at: int, begin: int = 0) -> Generator[None, None, bool]:
    """Whether the segment, from its place `begin` on, matches the text at `at`; the text must be long enough."""
    if isinstance(segment, bytearray):
        return text.startswith(segment, at)
    for start in range(begin, len(segment), _PIECE):
        if start > begin:
            yield
        piece = segment[start : start + _PIECE]
        if not all(map(contains, piece, text[at + start : at + start + _PIECE])):
            return False
    return True


def _search(places: list[bytes]) -> _Search:
    """A regular expression that finds these places, and how many of them."""
    parts = []
    for members, equal in groupby(places):
        one = b"." if len(members) == len(_ANY) else b"[%b]" % b"".join([b"\\x%02x" % byte for byte in members])
        parts.append(b"%b{%d}" % (one if members else _NOTHING, len(list(equal))))
    return re.compile(b"".join(parts), re.DOTALL), len(places)


def _find(search: _Search, segment: list[bytes], text: bytes, at: int, end: int) -> Generator[None, None, int]:
    """The first place from `at` on where the segment matches and does not reach beyond `end`; -1 if there is none.

    Its first places are looked for by a regular expression, which has no choice anywhere: 10 ns a byte, up to a tenth
    of a microsecond where the text nearly matches everywhere.
    """
    expression, size = search
    until = time.perf_counter() + _STEP_S
    last = end - len(segment)
    while at <= last:
        past = min(at + _PIECE, last + 1)
        found = expression.search(text, at, past - 1 + size)
        at = past if found is None else found.start()
        if found is not None:
            if size == len(segment) or (yield from _fits(segment, text, at, size)):
                return at
            at += 1
        if time.perf_counter() >= until:
            yield
            until = time.perf_counter() + _STEP_S
    return -1


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _lower(byte: int) -> int:
    return byte + 32 if 65 <= byte <= 90 else byte


def _same(byte: int) -> int:
    return byte
