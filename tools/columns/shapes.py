"""Finds IDs, names and values in rows of table `entries`, in all rows of a batch in step.

    b"$3\\r\\n1-1\\r\\n*2\\r\\n$4\\r\\nuser\\r\\n$3\\r\\nbob\\r\\n"      one row: the ID, then names and values in turn

The rows of a batch are in one buffer, in any place and order, and numpy parses all of them in step: one read of eight
bytes a row shows the digits and the end of a length.  Rows of one stream mostly have the same names in the same order,
so a batch is parsed by *shape*: the names of the first remaining row are compared with all other rows, eight bytes a
read.  Rows of the seventeenth shape and beyond are parsed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from riverbed.store.wire import IS_NATIVE, find_values
from riverbed.tools.columns.lengths import (
    LONGEST_LENGTH,
    ONE_BYTE,
    Item,
    MalformedRowError,
    announced_in,
    mask,
    parse_items,
    word_at,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from riverbed.tools.columns.lengths import Flags, Positions, Words

    Bytes = NDArray[np.uint8]


_MAX_SHAPES: Final = 16
# Rows with longer values are parsed one by one.
_MAX_DIGITS: Final = 9 if IS_NATIVE else LONGEST_LENGTH
_DOLLAR: Final = np.uint64(ord("$"))
_CR: Final = ord("\r")
_LF: Final = ord("\n")
# A read of this many bytes of a row costs as much as one of eight.
_A_LOOK: Final = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows with the same names.  For the k-th name: arrays of where it begins, and where its value begins and ends."""

    rows: Positions
    names: tuple[bytes, ...]
    name_starts: list[Positions]
    value_starts: list[Positions]
    value_ends: list[Positions]

    def last_of(self, name: bytes) -> int | None:
        """The index of a name's last occurrence, which is the one that clients' dictionaries keep."""
        for k in range(len(self.names) - 1, -1, -1):
            if self.names[k] == name:
                return k
        return None

    def kept(self, *, unique: bool) -> list[int]:
        """The indexes of all names; if `unique`, only of each name's last occurrence."""
        names = self.names
        return [k for k in range(len(names)) if not unique or self.last_of(names[k]) == k]


class Rows:
    """Rows from `starts` to `ends` in a buffer.  All places are of the buffer; MalformedRowError for a damaged row."""

    def __init__(self, buffer: Bytes, starts: Positions, ends: Positions) -> None:
        self.count = len(starts)
        self._buffer = buffer
        self.starts = starts
        self.ends = ends
        # The eight bytes from each byte of the buffer on, aligned or not.
        self._words: Words = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
        if self.count and int((ends - starts).min()) == 0:
            raise MalformedRowError("an empty row")

    def row(self, number: int) -> bytes:
        """The bytes of one row."""
        return self.bytes_of(int(self.starts[number]), int(self.ends[number]))

    def bytes_of(self, start: int, end: int) -> bytes:
        return self._buffer[start:end].tobytes()

    @cached_property
    def ids(self) -> tuple[Positions, Positions]:
        """Where the ID of each row begins and ends."""
        words = self._words[self.starts]
        announced = announced_in(words >> np.uint64(8))
        if not ((words & ONE_BYTE == _DOLLAR) & announced.is_sound).all():
            raise MalformedRowError("a length that is none")
        starts = self.starts + announced.digits + 3
        ends = starts + announced.length
        if (ends > self.ends).any():
            raise MalformedRowError("the ID of an entry does not end in its row")
        return starts, ends

    @cached_property
    def dashes(self) -> Positions:
        """Where the dash of each ID is: mostly behind the thirteenth digit, as in all IDs of times since 2001."""
        starts, ends = self.ids
        dashes = starts + 13
        wrong = (dashes >= ends) | (self._buffer[dashes] != ord("-"))
        for row in np.flatnonzero(wrong):
            start = int(starts[row])
            dashes[row] = start + self.bytes_of(start, int(ends[row])).find(b"-")
        if (dashes <= starts).any() or (dashes + 1 >= ends).any():
            raise MalformedRowError("the ID of an entry is not one")
        return dashes

    def number(self, starts: Positions, ends: Positions) -> NDArray[np.uint64]:
        """The numbers written between `starts` and `ends`, of at most twenty digits; reads eight digits a step."""
        lengths = ends - starts
        number = np.zeros(self.count, dtype=np.uint64)
        for place in range(0, int(lengths.max(initial=0)), 8):
            digits = np.clip(lengths - place, 0, 8)
            word = self._words[ends - place - 8]
            unused = ((8 - digits) * 8).astype(np.uint64)
            half = unused >> np.uint64(1)  # a shift by 64 is undefined, two shifts by 32 are not
            word = ((word >> half >> (unused - half)) << half << (unused - half)) & np.uint64(0x0F0F0F0F0F0F0F0F)
            # Join digits to pairs, then to fours, then all eight: the first digit is the lowest byte.
            word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
            word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
            word = (word * np.uint64(10000) + (word >> np.uint64(32))) & np.uint64(0x00000000FFFFFFFF)
            number += word * np.uint64(10**place)
        return number

    def _at(self, at: Positions, size: int) -> Positions:
        """Limit places so that `size` bytes can be read at each.  The places of matching rows never change."""
        return np.minimum(at, max(len(self._buffer) - size, 0))

    def _look(self, at: Positions, size: int) -> Words:
        """The `size` bytes from each place on, as a line of numbers; `size` is a multiple of eight."""
        pieces = np.ndarray((len(self._buffer) - size + 1,), dtype=f"V{size}", buffer=self._buffer, strides=(1,))
        words: Words = pieces[at].view("<u8").reshape(len(at), size // 8)
        return words

    def _past(self, at: Positions, expected: bytes) -> tuple[Flags, Words]:
        """Whether the bytes `expected` are at each place, and the eight bytes behind them.

        Up to seven bytes before each place are read as well.
        """
        is_there = np.ones(len(at), dtype=np.bool_)
        most = _A_LOOK - 8
        while len(expected) > most:
            found = self._look(at, most)
            for column in range(most // 8):
                is_there &= found[:, column] == word_at(expected, 8 * column)
            at, expected = at + most, expected[most:]
        # Reads begin some bytes earlier, so that the eight bytes behind `expected` are one whole number.
        before = -len(expected) % 8
        found = self._look(at - before, before + len(expected) + 8)
        padded = bytes(before) + expected
        for column in range(len(padded) // 8):
            words = found[:, column]
            if before and not column:
                words = words & mask(before, 8)
            is_there &= words == word_at(padded, 8 * column)
        return is_there, found[:, -1]

    @cached_property
    def _parsed(self) -> tuple[list[Shape], list[tuple[int, list[Item]]]]:
        left = np.arange(self.count, dtype=np.int64)
        heads = self.ids[1] + 2
        shapes: list[Shape] = []
        odd: list[int] = []
        while len(left) and len(shapes) < _MAX_SHAPES and len(odd) <= self.count >> 3:
            first = int(left[0])
            items = self._parse_row(first, int(heads[first]))
            if any(len(str(end - start)) > _MAX_DIGITS for _, _, start, end in items):
                odd.append(first)
                left = left[1:]
                continue
            names = tuple(self.bytes_of(start, end) for start, end, _, _ in items)
            shape, is_same = self._match(left, heads if len(left) == self.count else heads[left], names)
            if not is_same[0]:  # lengths that begin with zeros
                odd.append(first)
                left = left[1:]
                continue
            shapes.append(shape)
            left = left[~is_same]
        odd.extend(left.tolist())
        return shapes, [(row, self._parse_row(row, int(heads[row]))) for row in odd]

    @property
    def shapes(self) -> list[Shape]:
        return self._parsed[0]

    @property
    def odd_rows(self) -> list[tuple[int, list[Item]]]:
        return self._parsed[1]

    def _match(self, rows: Positions, at: Positions, names: tuple[bytes, ...]) -> tuple[Shape, NDArray[np.bool_]]:
        """Which of `rows`, whose fields begin at `at`, have exactly these names; and where names and values are."""
        ends = self.ends if len(rows) == self.count else self.ends[rows]
        if IS_NATIVE:
            return self._found(rows, at, ends, names)
        is_same = np.ones(len(rows), dtype=np.bool_)
        name_starts, value_starts, value_ends = [], [], []
        before = b"*%d\r\n" % (2 * len(names))
        for name in names:
            head = b"%b$%d\r\n" % (before, len(name))
            fixed = head + name + b"\r\n$"
            at = self._at(at, len(fixed) + 8)
            is_there, words = self._past(at, fixed)
            announced = announced_in(words)
            is_same &= is_there & announced.is_sound
            name_starts.append(at + len(head))
            starts = at + (announced.digits + (len(fixed) + 2))
            at = starts + announced.length
            value_starts.append(starts)
            value_ends.append(at)
            before = b"\r\n"
        # Each place is behind the one before, so if a row ends where it must, all its places are inside it.
        is_same &= at + 2 == ends
        is_same &= (self._buffer[ends - 2] == _CR) & (self._buffer[ends - 1] == _LF)
        if is_same.all():
            return Shape(rows, names, name_starts, value_starts, value_ends), is_same
        kept = ([places[is_same] for places in each] for each in (name_starts, value_starts, value_ends))
        return Shape(rows[is_same], names, *kept), is_same

    def _found(
        self, rows: Positions, at: Positions, ends: Positions, names: tuple[bytes, ...]
    ) -> tuple[Shape, NDArray[np.bool_]]:
        """As `_match`."""
        announced = [b"\r\n$%d\r\n" % len(name) for name in names]
        if names:
            announced[0] = b"*%d%b" % (2 * len(names), announced[0])
        heads = [b"%b%b\r\n$" % each for each in zip(announced, names, strict=True)]
        places = np.empty((len(names), 2, len(rows)), dtype=np.int64)
        found = np.zeros(len(rows), dtype=np.bool_)
        tail = b"\r\n" if heads else b"*0\r\n"
        at, ends = np.ascontiguousarray(at), np.ascontiguousarray(ends)
        if find_values(self._buffer, at, ends, heads, tail, places, found) < len(rows):
            rows, at, places = rows[found], at[found], places[:, :, found]
        value_starts, value_ends = list(places[:, 0]), list(places[:, 1])
        name_starts = [before + len(head) for before, head in zip([at, *value_ends], announced, strict=False)]
        return Shape(rows, names, name_starts, value_starts, value_ends), found

    def _parse_row(self, row: int, at: int) -> list[Item]:
        """Parse one row alone, with lengths of any size."""
        start = int(self.starts[row])
        return [(start + a, start + b, start + c, start + d) for a, b, c, d in parse_items(self.row(row), at - start)]
