"""Reads the lengths in front of IDs, names and values in a row: of many rows in step, or of one row.

Eight bytes of each row are read as one number; the first byte is the lowest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Words = NDArray[np.uint64]
    Flags = NDArray[np.bool_]

_ZERO: Final = np.uint64(ord("0"))
_NINE: Final = np.uint64(9)
ONE_BYTE: Final = np.uint64(0xFF)
_TWO_BYTES: Final = np.uint64(0xFFFF)
_CRLF: Final = np.uint64(0x0A0D)
# The most digits of a length that is read in step.  Rows with longer values are parsed one by one.
LONGEST_LENGTH: Final = 5

# Where a name begins and ends, and where its value does.
Item = tuple[int, int, int, int]


class MalformedRowError(ValueError):
    """A row does not have the format of table `entries` in `store/FORMAT.md`."""


class Announced(NamedTuple):
    """Lengths written in rows: their values, their numbers of digits, and whether they are numbers at all."""

    length: Positions | int  # one number if all lengths are the same
    digits: Positions | int
    is_sound: Flags | bool


def announced_in(words: Words) -> Announced:
    """The number that each eight bytes begin with, and how many digits it has; CR LF must follow."""
    first = int(words[0]).to_bytes(8, "little") if len(words) else b""
    count = first.find(b"\r\n")
    if 1 <= count <= LONGEST_LENGTH:
        if first[:count].isdigit() and (words & mask(0, count + 2) == word_at(first[: count + 2], 0)).all():
            return Announced(int(first[:count]), count, True)
        if _has_crlf(words, count).all():
            length, is_sound = _digits(words, count)
            return Announced((length * is_sound).astype(np.int64), count, is_sound)
    length = np.zeros(len(words), dtype=np.uint64)
    digits = np.ones(len(words), dtype=np.int64)
    is_sound = np.zeros(len(words), dtype=np.bool_)
    left = np.arange(len(words))
    for count in range(1, LONGEST_LENGTH + 1):
        ends = _has_crlf(words, count)
        here = left[ends]
        number, is_number = _digits(words[ends], count)
        length[here], digits[here], is_sound[here] = number * is_number, count, is_number
        left, words = left[~ends], words[~ends]
        if not len(left):
            break
    return Announced(length.astype(np.int64), digits, is_sound)


def _has_crlf(words: Words, place: int) -> Flags:
    """Whether CR LF is at byte `place` of each eight bytes."""
    ends: Flags = (words >> np.uint64(8 * place)) & _TWO_BYTES == _CRLF
    return ends


def _digits(words: Words, count: int) -> tuple[Words, NDArray[np.bool_]]:
    """-> (the number that the first `count` bytes of each eight spell; whether these bytes are digits)"""
    number = (words & ONE_BYTE) - _ZERO
    is_number = number <= _NINE
    for place in range(1, count):
        digit = ((words >> np.uint64(8 * place)) & ONE_BYTE) - _ZERO
        is_number &= digit <= _NINE
        number = number * np.uint64(10) + digit
    return number, is_number


def word_at(text: bytes, place: int) -> np.uint64:
    """Eight bytes of `text`, as the number that they are read as."""
    return np.uint64(int.from_bytes(text[place : place + 8], "little"))


def mask(start: int, end: int) -> np.uint64:
    """The bits of bytes `start` up to `end` of eight."""
    return np.uint64((1 << (8 * end)) - (1 << (8 * start)))


def parse_items(row: bytes, at: int) -> list[Item]:
    """Where names and values are in a row, whose ID ends before `at`."""
    count, at = _announced(row, b"*", at)
    if count % 2 or count > len(row) - at:
        raise MalformedRowError(f"{count} names and values")
    items = []
    for _ in range(count // 2):
        name_length, name_start = _announced(row, b"$", at)
        name_end = name_start + name_length
        value_length, start = _announced(row, b"$", name_end + 2)
        at = start + value_length + 2
        items.append((name_start, name_end, start, start + value_length))
    if at != len(row):
        raise MalformedRowError("an entry does not end with its row")
    return items


def _announced(row: bytes, mark: bytes, at: int) -> tuple[int, int]:
    """The number after `mark` at a place, and the place behind its line."""
    stop = row.find(b"\r\n", at, at + 24)
    digits = row[at + 1 : stop]
    if stop < 0 or row[at : at + 1] != mark or not digits.isdigit():
        raise MalformedRowError("a length that is none")
    return int(digits), stop + 2
