"""Counts the replies in bytes that are ready to be sent: an undone tick answers each of them with an error."""

from __future__ import annotations

from typing import Final

# First bytes of replies that say how much follows: bytes, or values.
_BULKS: Final = (b"$", b"=", b"!")
_ARRAYS: Final = (b"*", b"~", b"%")


def count_replies(wire: bytes) -> int:
    """How many replies `wire` holds: what answers requests that are neighbours is one piece."""
    count = at = 0
    while at < len(wire):
        left = 1  # values until the end of this reply
        while left > 0:
            end = wire.find(b"\r\n", at)
            if end < 0:
                return max(count, 1)  # a part of a long one
            start, at = at, end + 2
            kind = wire[start : start + 1]
            left -= 1
            if kind in _BULKS and wire[start + 1 : end] != b"-1":
                at += int(wire[start + 1 : end]) + 2
            elif kind in _ARRAYS:
                left += max(int(wire[start + 1 : end]), 0) * (2 if kind == b"%" else 1)
        count += 1
    return max(count, 1)
