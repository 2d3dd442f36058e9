"""Redis's glob patterns, for KEYS, SCAN MATCH and CONFIG GET.

    *        any bytes, also none          [abc]   one of these      [a-c]  a range, either way round
    ?        any one byte                  [^abc]  none of these     \\x    x itself

A pattern becomes a regular expression, so that matching runs in C.  Every part between two stars matches a fixed number
of bytes, hence the leftmost match of each part is as good as any: atomic groups say so, and a hostile pattern such as
`a*a*a*a*b` costs length times length instead of an exponential.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

_STAR, _ANY, _CLASS, _CLASS_END, _ESCAPE, _RANGE = b"*?[]\\-"


@functools.lru_cache(maxsize=256)
def compile_glob(pattern: bytes, ignore_case: bool = False) -> Callable[[bytes], re.Match[bytes] | None]:
    """A function that tells whether bytes match `pattern` as a whole, by a match or None.

    `ignore_case` is for ASCII letters, as in CONFIG GET.
    """
    parts = [b""]  # regular expressions of what stands between the stars
    position = 0
    while position < len(pattern):
        byte = pattern[position]
        position += 1
        if byte == _STAR:
            parts.append(b"")
        elif byte == _ANY:
            parts[-1] += b"."
        elif byte == _CLASS:
            members, position = _read_class(pattern, position, ignore_case)
            parts[-1] += _class_expression(members)
        else:
            if byte == _ESCAPE and position < len(pattern):
                byte = pattern[position]
                position += 1
            parts[-1] += re.escape(bytes((byte,)))
    first, *middle = parts
    expression = first
    if middle:
        last = middle.pop()
        expression += b"".join(b"(?>.*?%b)" % part for part in middle if part)
        # Redis's loop does not begin on an empty text, so `**` does not match it; `*` alone never gets there.
        expression += (b".+" if len(pattern) > 1 and not any(parts) else b".*") + last
    flags = re.DOTALL | re.IGNORECASE if ignore_case else re.DOTALL
    return re.compile(expression, flags).fullmatch


def _read_class(pattern: bytes, position: int, ignore_case: bool) -> tuple[frozenset[int], int]:
    """The bytes that a class matches, and the position behind it; `position` is behind its `[`.

    Redis's reading of odd classes is kept: `[]` matches nothing, `[^]` anything, a class that is not closed ends with
    the pattern, and in `[a-]` the bracket is the end of a range.
    """
    negated = pattern[position : position + 1] == b"^"
    position += negated
    members: set[int] = set()
    while position < len(pattern):
        byte = pattern[position]
        if byte == _ESCAPE and position + 1 < len(pattern):
            members.add(pattern[position + 1])
            position += 2
        elif byte == _CLASS_END:
            position += 1
            break
        elif position + 2 < len(pattern) and pattern[position + 1] == _RANGE:
            low, high = sorted((byte, pattern[position + 2]))
            if ignore_case:
                low, high = _lower(low), _lower(high)
            members.update(range(low, high + 1))
            position += 3
        else:
            members.add(byte)
            position += 1
    if ignore_case:
        lowered = {_lower(member) for member in members}
        members = {byte for byte in range(256) if _lower(byte) in lowered}
    return frozenset(range(256)) - members if negated else frozenset(members), position


def _class_expression(members: frozenset[int]) -> bytes:
    if not members:
        return b"(?!)"
    # the members are spelled out in both cases already, and \xhh keeps every byte clear of the syntax
    return b"[%b]" % b"".join(b"\\x%02x" % member for member in sorted(members))


def _lower(byte: int) -> int:
    return byte + 32 if 65 <= byte <= 90 else byte
