"""Tells a flipped bit in the last batch of a log from a write that a power cut has torn.

Both leave a last batch that does not fit its checksum.  A torn one was not acknowledged, and is cut off; a damaged one
was, and must not be.  A CRC shows which single bit would make a batch fit: then nothing was torn.
"""

from __future__ import annotations

from typing import Final

from riverbed.store.checksum import crc32c
from riverbed.store.format.log_lines import MAX_ANNOTATION_BYTES, is_sound, match_annotation, parse_annotation

# Looking for the bit takes a second for so many bytes.
MAX_BYTES: Final = 1 << 20

_POLYNOMIAL: Final = 0x82F63B78
_SUM_AT: Final = len(b"#CK:crc32c=")
_TAIL_AT: Final = _SUM_AT + 8


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_TABLE: Final = _table()


def find_flipped_bit(end: bytes) -> int | None:
    """The byte of `end`, with which a log ends, that has a flipped bit; None when one bit does not make it a batch."""
    if len(end) > MAX_BYTES:
        return None
    start = max(len(end) - MAX_ANNOTATION_BYTES, 0)
    for at in range(start, len(end)):
        found = match_annotation(end, at)
        if found is not None and found.end() == len(end):
            flipped = _in_covered(end, at)
            if flipped is not None:
                return flipped
    return _in_annotation(end, start)


def _in_covered(end: bytes, at: int) -> int | None:
    """The byte that is wrong if the annotation at `at` is right."""
    annotation = parse_annotation(end, at)
    if annotation is None or annotation.covered != at:
        return None
    covered = end[:at] + annotation.tail
    wrong = crc32c(covered) ^ annotation.checksum
    changes = [_TABLE[1 << bit] for bit in range(8)]  # of the checksum, by a bit of the last byte
    for place in range(len(covered) - 1, -1, -1):
        if wrong in changes:
            return place if place < at else place + _TAIL_AT
        changes = [change >> 8 ^ _TABLE[change & 255] for change in changes]
    return None


def _in_annotation(end: bytes, start: int) -> int | None:
    """The byte from `start` on with a bit that makes the rest an annotation of all before it."""
    sums: dict[int, int] = {}
    for place in range(start, len(end)):
        for bit in range(8):
            line = bytearray(end[start:])
            line[place - start] ^= 1 << bit
            at = start + max(line.rfind(b"#CK:crc32c="), 0)
            annotation = parse_annotation(bytes(line), at - start)
            if annotation is None or annotation.covered != at or at + _TAIL_AT + len(annotation.tail) != len(end):
                continue
            if at not in sums:
                sums[at] = crc32c(end[:at])
            if is_sound(annotation, sums[at]):
                return place
    return None
