"""Limit what a server announces but has not sent: `hiredis` allocates a list when its length arrives.

    *3\\r\\n  $1\\r\\na\\r\\n  *300000000\\r\\n      16 bytes announce 300,000,000 elements, and lists in lists add up

The received bytes are searched without parsing, as long as this shows that few elements are missing and that lines end.
Text that looks like the head of a list can make the estimate too high, and a long string has no line in it; then the
replies under way are parsed to get the exact numbers.
"""

from __future__ import annotations

import re
from typing import Final

# Elements that may be missing at a time: far more than any reply to our tools has, and 8 MB of memory.
MAX_MISSING: Final = 1 << 20
# The longest string that a server takes, unless its proto-max-bulk-len is raised.
MAX_STRING_BYTES: Final = 512 << 20
# A longer line of a reply is neither a length nor a text that a server would send.
_MAX_LINE_BYTES: Final = 64 << 10
# The head of a list is not longer; the received bytes may end within it.
_MAX_HEAD_BYTES: Final = 32

_list_counts = re.compile(rb"[*>~]([0-9]{1,18})[0-9]*\r\n").findall
_map_counts = re.compile(rb"[%|]([0-9]{1,18})[0-9]*\r\n").findall
_LISTS: Final = b"*>~"
_MAPS: Final = b"%|"
_BULKS: Final = b"$=!"


class AnnouncementError(Exception):
    """More elements or bytes are announced than any reply has, or a line does not end."""


class Announced:
    """Counts missing elements in the bytes of one connection, from the beginning of a reply.

    No string may be longer than `most_bytes`; this is noticed when 64 KB of it have come.
    """

    def __init__(self, most_bytes: int = MAX_STRING_BYTES) -> None:
        self._most_bytes = most_bytes
        self._missing = 0  # an upper bound, until replies are parsed
        self._unended = 0  # bytes received since a line has ended: a line without end, or the middle of a string
        self._kept: list[bytes] = []  # bytes received since replies were last complete
        self._tail = b""
        self._exact: _Framing | None = None

    def take(self, data: bytes) -> None:
        """Check received bytes before they are parsed.  Raises AnnouncementError."""
        if self._exact is None:
            self._kept.append(data)
            self._guess(self._tail + data)
            end = data.rfind(b"\r\n")
            self._unended = self._unended + len(data) if end < 0 else len(data) - end - 2
            if self._missing <= MAX_MISSING and self._unended < _MAX_LINE_BYTES:
                return
            data = b"".join(self._kept)
            self._kept.clear()
            self._exact = _Framing(self._most_bytes)
        self._exact.take(data)

    def _guess(self, data: bytes) -> None:
        """Count everything that may be the head of a list, and count every line as an element."""
        end = data.rfind(b"\r\n") + 2 if b"\r\n" in data else 0
        counts = sum(map(int, _list_counts(data)))
        if b"%" in data or b"|" in data:
            counts += 2 * sum(map(int, _map_counts(data)))
        self._missing = max(self._missing + counts - data.count(b"\r\n"), 0)
        self._tail = data[max(end, len(data) - _MAX_HEAD_BYTES) :]

    def complete(self) -> None:
        """Reset the counts.  Every expected reply has come, and no bytes after them."""
        self._missing = self._unended = 0
        self._kept.clear()
        self._tail = b""
        self._exact = None


class _Framing:
    """Parses replies into lines and strings, to count missing elements exactly."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
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
                if count > self._most_bytes:
                    raise AnnouncementError(f"it announces a string of {count} bytes, more than {self._most_bytes}")
                at += count + 2
            elif kind in _LISTS or kind in _MAPS:
                self._missing += count if kind in _LISTS else 2 * count
                if self._missing > MAX_MISSING:
                    raise AnnouncementError(f"it announces {self._missing} elements at once")
        self._rest = data[at:]
        self._skipped = max(at - len(data), 0)
        if len(self._rest) >= _MAX_LINE_BYTES:
            raise AnnouncementError(f"a line of more than {_MAX_LINE_BYTES} bytes")
