"""Recognizes the one RDB file that is read here: the one without keys.

A Redis 7 begins its append-only log with an RDB file of the data that it holds then.  A new server holds none: its file
is a header, a few notes about the server, and the end.  Any other RDB file holds data that Riverbed cannot read.

    "REDIS" version:4digits *( %xFA string string ) %xFF crc64
"""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"REDIS"
# The notes of all versions take about a hundred bytes.
MAX_EMPTY_BYTES: Final = 4096

_HEADER_BYTES: Final = 9
_NOTE: Final = 0xFA
_END: Final = 0xFF
_CHECKSUM_BYTES: Final = 8
# Strings that are numbers: how many bytes follow.
_NUMBERS: Final = {0xC0: 1, 0xC1: 2, 0xC2: 4}


def is_empty_rdb(data: bytes) -> bool:
    """Whether `data`, all of a file, is an RDB without keys."""
    if not data.startswith(MAGIC) or not data[len(MAGIC) : _HEADER_BYTES].isdigit():
        return False
    at = _HEADER_BYTES
    while at < len(data) and data[at] == _NOTE:
        at = _string_end(data, _string_end(data, at + 1))
    return len(data) == at + 1 + _CHECKSUM_BYTES and data[at] == _END


def _string_end(data: bytes, at: int) -> int:
    """Where the string at `at` ends; beyond the data when it has a form that no short string has."""
    head = data[at] if at < len(data) else 0xFF
    if head in _NUMBERS:
        return at + 1 + _NUMBERS[head]
    if head < 0x40:
        return at + 1 + head
    if head < 0x80 and at + 1 < len(data):
        return at + 2 + ((head & 0x3F) << 8 | data[at + 1])
    return len(data) + 1
