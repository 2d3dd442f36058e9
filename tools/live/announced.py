"""How much a server announces that it has not sent: `hiredis` makes room for a list when its length arrives.

    *3\\r\\n  $1\\r\\na\\r\\n  *300000000\\r\\n      16 bytes announce 300,000,000 elements, and lists in lists add up

What is sent is looked at as a whole, without taking it apart, as long as that shows that little is missing.  Text that
looks like the head of a list can make it seem more; then the replies under way are taken apart to be certain.
"""

from __future__ import annotations

import re
from typing import Final

# Elements that may be missing at a time: far more than any reply to our tools has, and 8 MB of room.
MAX_MISSING: Final = 1 << 20
# A line of a reply that is longer is no length, and no text that a server means to say.
_MAX_LINE_BYTES: Final = 64 << 10
# The head of a list that the next piece goes on with is not longer.
_MAX_HEAD_BYTES: Final = 32

_list_counts = re.compile(rb"[*>~]([0-9]{1,18})[0-9]*\r\n").findall
_map_counts = re.compile(rb"[%|]([0-9]{1,18})[0-9]*\r\n").findall
_LISTS: Final = b"*>~"
_MAPS: Final = b"%|"
_BULKS: Final = b"$=!"


class AnnouncementError(Exception):
    """More elements are announced than any reply has, or a line does not end."""


class Announced:
    """Follows the bytes of one connection, from where a reply begins."""

    def __init__(self) -> None:
        self._missing = 0  # at most, or exactly when replies are taken apart
        self._kept: list[bytes] = []  # what has come since replies were last complete
        self._tail = b""
        self._exact: _Framing | None = None

    def take(self, data: bytes) -> None:
        """Look at what comes next, before anything else does.  Raises AnnouncementError."""
        if self._exact is None:
            self._kept.append(data)
            self._guess(self._tail + data)
            if self._missing <= MAX_MISSING:
                return
            data = b"".join(self._kept)
            self._kept.clear()
            self._exact = _Framing()
        self._exact.take(data)

    def _guess(self, data: bytes) -> None:
        """Count all that may be a head of a list, and take every line for an element."""
        end = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0
        counts = sum(map(int, _list_counts(data)))
        if b"%" in data or b"|" in data:
            counts += 2 * sum(map(int, _map_counts(data)))
        self._missing = max(self._missing + counts - data.count(b"\r\n"), 0)
        self._tail = data[max(end, len(data) - _MAX_HEAD_BYTES) :]

    def complete(self) -> None:
        """Every reply that is owed has come, and nothing behind them."""
        self._missing = 0
        self._kept.clear()
        self._tail = b""
        self._exact = None


class _Framing:
    """Takes replies apart into lines and strings."""

    def __init__(self) -> None:
        self._missing = 0
        self._rest = b""  # a line without its end
        self._skipped = 0  # bytes of a string that have not come

    def take(self, data: bytes) -> None:
        """Raises AnnouncementError."""
        data = self._rest + data
        at = self._skipped
        while at < len(data):
            end = data.find(b"\r\n", at, at + _MAX_LINE_BYTES)
            if end < 0:
                break
            kind, number = data[at : at + 1], data[at + 1 : min(end, at + _MAX_HEAD_BYTES)]
            count = int(number) if number.isdigit() else 0
            at = end + 2
            self._missing = max(self._missing - 1, 0)
            if kind in _BULKS and number.isdigit():
                at += count + 2
            elif kind in _LISTS or kind in _MAPS:
                self._missing += count if kind in _LISTS else 2 * count
                if self._missing > MAX_MISSING:
                    raise AnnouncementError(f"it announces {self._missing} elements at once")
        self._rest = data[at:]
        self._skipped = max(at - len(data), 0)
        if len(self._rest) >= _MAX_LINE_BYTES:
            raise AnnouncementError(f"a line of more than {_MAX_LINE_BYTES} bytes")
