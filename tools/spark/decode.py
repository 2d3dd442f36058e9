"""Rows of table `entries` to Arrow columns, a batch at a time.

    b"$3\\r\\n1-1\\r\\n*2\\r\\n$4\\r\\nuser\\r\\n$3\\r\\nbob\\r\\n"      one row: the ID, then names and values in turn

A batch is joined into one buffer, and numpy walks all of its rows in step: one read of eight bytes a row shows the
`$`, the digits and the end of a length.  Rows of one stream mostly have the same names in the same order, so a batch is
taken apart by *shape*: the names of the first row that is left are compared with all others, eight bytes a read.  Rows
of the seventeenth shape and beyond are parsed one by one.  Arrow columns then are `take`n from the buffer, which is
not copied before.  About 230 ns a row of four columns; a row at a time takes 900.

Knows neither LMDB nor Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["EntryBatch", "Items", "MalformedRowError"]

# Offsets of Arrow's binary arrays have 32 bits.
MOST_BYTES: Final = (1 << 31) - 64
_MOST_SHAPES: Final = 16
# Reading the eight bytes that end at a row's first bytes must not leave the buffer, nor those that begin at its last.
_MARGIN: Final = bytes(24)
_CR: Final = 13
_DOLLAR: Final = ord("$")
# Digits of a length that are read in step; the rows of longer values are parsed one by one.
_LONGEST_LENGTH: Final = 5


class MalformedRowError(ValueError):
    """A row is not what `store/FORMAT.md` says of table `entries`."""


@dataclass(frozen=True, slots=True)
class Items:
    """The names and values of all rows, flat: those of row i are `offsets[i]` up to `offsets[i + 1]`."""

    offsets: NDArray[np.int32]
    names: pa.BinaryArray
    values: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class _Shape:
    """Rows of the same names: where the k-th name begins, and where its value begins and ends, an array each."""

    rows: Positions
    names: tuple[bytes, ...]
    name_starts: list[Positions]
    value_starts: list[Positions]
    value_ends: list[Positions]

    def last_of(self, name: bytes) -> int | None:
        """The index of a name; of its last occurrence, which is the one that clients' dictionaries keep."""
        for k in range(len(self.names) - 1, -1, -1):
            if self.names[k] == name:
                return k
        return None

    def kept(self, *, unique: bool) -> list[int]:
        """The indexes of all names, or only those that no later one repeats."""
        names = self.names
        return [k for k in range(len(names)) if not unique or self.last_of(names[k]) == k]


class _Announced(NamedTuple):
    """Lengths as they stand in the rows: their values, how many digits they have, and whether they are numbers."""

    length: Positions
    digits: Positions
    is_sound: NDArray[np.bool_]


class EntryBatch:
    """Some rows of table `entries`, in any order of streams.

    Raises MalformedRowError, on the first use of what is damaged; ValueError for more than 2 GiB.
    """

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.count = len(rows)
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=self.count)
        total = int(lengths.sum())
        if total > MOST_BYTES:
            raise ValueError(f"{total} bytes in one batch; there may be {MOST_BYTES}")
        self._buffer = b"".join((_MARGIN, *rows, _MARGIN))
        self._ends = np.cumsum(lengths) + len(_MARGIN)
        self._starts = self._ends - lengths
        # The eight bytes at each place of the buffer, whatever its alignment.
        self._words: Words = np.ndarray((len(self._buffer) - 7,), dtype="<u8", buffer=self._buffer, strides=(1,))
        if self.count and int(lengths.min()) == 0:
            raise MalformedRowError("an empty row")

    # -- columns -------------------------------------------------------------------------------------------------------

    def ids(self) -> pa.BinaryArray:
        """The IDs as text."""
        starts, ends = self._ids
        return self._binary(starts, ends)

    def ms(self) -> NDArray[np.uint64]:
        """The milliseconds of the IDs."""
        return self._number(self._ids[0], self._dashes)

    def seq(self) -> NDArray[np.uint64]:
        """The sequence numbers of the IDs."""
        return self._number(self._dashes + 1, self._ids[1])

    def column(self, name: bytes) -> pa.BinaryArray:
        """The value of one field in every row, null in rows that do not have it; of several, the last."""
        starts, ends = self._starts.copy(), self._starts.copy()
        found = np.zeros(self.count, dtype=np.bool_)
        for shape in self._shapes:
            k = shape.last_of(name)
            if k is not None:
                starts[shape.rows], ends[shape.rows] = shape.value_starts[k], shape.value_ends[k]
                found[shape.rows] = True
        for row, items in self._odd_rows:
            for name_start, name_end, value_start, value_end in items:
                if self._buffer[name_start:name_end] == name:
                    starts[row], ends[row], found[row] = value_start, value_end, True
        return self._binary(starts, ends, None if found.all() else ~found)

    def items(self, *, unique: bool) -> Items:
        """All fields of all rows; of those that an entry has twice only the last if `unique`."""
        counts = np.zeros(self.count + 1, dtype=np.int64)
        for shape in self._shapes:
            counts[shape.rows + 1] = len(shape.kept(unique=unique))
        odd_rows = [(row, _last_of_each(items, self._buffer) if unique else items) for row, items in self._odd_rows]
        for row, items in odd_rows:
            counts[row + 1] = len(items)
        offsets = np.cumsum(counts)
        total = int(offsets[-1])
        name_starts, name_ends, starts, ends = (np.empty(total, dtype=np.int64) for _ in range(4))
        for shape in self._shapes:
            first = offsets[shape.rows]
            for place, k in enumerate(shape.kept(unique=unique)):
                at = first + place
                name_starts[at] = shape.name_starts[k]
                name_ends[at] = shape.name_starts[k] + len(shape.names[k])
                starts[at], ends[at] = shape.value_starts[k], shape.value_ends[k]
        for row, items in odd_rows:
            for place, item in enumerate(items, int(offsets[row])):
                name_starts[place], name_ends[place], starts[place], ends[place] = item
        return Items(offsets.astype(np.int32), self._binary(name_starts, name_ends), self._binary(starts, ends))

    def names(self) -> list[bytes]:
        """The names of fields that occur, each once, in the order of their first row."""
        first: dict[bytes, int] = {}
        for shape in self._shapes:
            for name in shape.names:
                first[name] = min(first.get(name, self.count), int(shape.rows[0]))
        for row, items in self._odd_rows:
            for name_start, name_end, _, _ in items:
                name = self._buffer[name_start:name_end]
                first[name] = min(first.get(name, self.count), row)
        return sorted(first, key=lambda name: first[name])

    def _binary(self, starts: Positions, ends: Positions, missing: NDArray[np.bool_] | None = None) -> pa.BinaryArray:
        """The bytes between `starts` and `ends`, both ascending and not overlapping; null where `missing`.

        As an array of these and of the gaps between them, which needs no copy, and every other element of that.
        """
        count = len(starts)
        if not count:
            return pa.array([], type=pa.binary())
        offsets = np.empty(2 * count, dtype=np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        array = pa.Array.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(self._buffer)]
        )
        return array.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=missing))

    # -- parsing -------------------------------------------------------------------------------------------------------

    @cached_property
    def _ids(self) -> tuple[Positions, Positions]:
        text, _ = self._read(self._starts, _LONGEST_LENGTH + 2)
        announced = self._announced_at(text, _DOLLAR, 0)
        if not announced.is_sound.all():
            raise MalformedRowError("a length that is none")
        starts = self._starts + announced.digits + 3
        ends = starts + announced.length
        if (ends > self._ends).any():
            raise MalformedRowError("the ID of an entry does not end in its row")
        return starts, ends

    @cached_property
    def _dashes(self) -> Positions:
        """Where the dash of each ID is: it mostly follows the thirteenth digit, as it has done since 2001."""
        starts, ends = self._ids
        bytes_ = np.frombuffer(self._buffer, dtype=np.uint8)
        dashes = starts + 13
        wrong = (dashes >= ends) | (bytes_[dashes] != ord("-"))
        for row in np.flatnonzero(wrong):
            dashes[row] = self._buffer.find(b"-", int(starts[row]), int(ends[row]))
        if (dashes <= starts).any() or (dashes + 1 >= ends).any():
            raise MalformedRowError("the ID of an entry is not one")
        return dashes

    def _number(self, starts: Positions, ends: Positions) -> NDArray[np.uint64]:
        """Decimal digits between two places, twenty at most, to numbers; eight digits a step."""
        lengths = ends - starts
        number = np.zeros(self.count, dtype=np.uint64)
        for place in range(0, int(lengths.max(initial=0)), 8):
            digits = np.clip(lengths - place, 0, 8)
            word = self._words[ends - place - 8]
            unused = ((8 - digits) * 8).astype(np.uint64)
            half = unused >> np.uint64(1)  # a shift by 64 is undefined, twice by 32 is not
            word = ((word >> half >> (unused - half)) << half << (unused - half)) & np.uint64(0x0F0F0F0F0F0F0F0F)
            # Pairs, then fours, then all eight: the first digit is the lowest byte.
            word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
            word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
            word = (word * np.uint64(10000) + (word >> np.uint64(32))) & np.uint64(0x00000000FFFFFFFF)
            number += word * np.uint64(10**place)
        return number

    def _read(self, at: Positions, size: int) -> tuple[NDArray[np.uint8], Words]:
        """The `size` bytes at each place, as bytes and as words: one read a row, whatever the alignment.

        Places that are nowhere, as of rows that are damaged, show other bytes.
        """
        width = -(-size // 8)
        last = len(self._buffer) - 8 * width
        kind = np.dtype((np.void, 8 * width))
        pieces = np.ndarray((last + 1,), dtype=kind, buffer=self._buffer, strides=(1,))
        found = pieces[np.clip(at, 0, last)]
        return found.view(np.uint8).reshape(-1, 8 * width), found.view("<u8").reshape(-1, width)

    def _announced_at(self, text: NDArray[np.uint8], mark: int, place: int) -> _Announced:
        """The number behind `mark` that stands at `place` of each text, and how many digits it has."""
        digit = text[:, place + 1] - 48
        is_sound = (text[:, place] == mark) & (digit <= 9)
        length = digit.astype(np.int64)
        digits = np.ones(len(text), dtype=np.int64)
        goes_on = text[:, place + 2] != _CR
        for at in range(place + 2, place + 1 + _LONGEST_LENGTH):
            if not goes_on.any():
                return _Announced(length, digits, is_sound)
            digit = text[:, at] - 48
            is_sound &= ~goes_on | (digit <= 9)
            length = np.where(goes_on, length * 10 + digit, length)
            digits += goes_on
            goes_on &= text[:, at + 1] != _CR
        return _Announced(length, digits, is_sound & ~goes_on)

    @cached_property
    def _parsed(self) -> tuple[list[_Shape], list[tuple[int, list[_Item]]]]:
        left = np.arange(self.count, dtype=np.int64)
        heads = self._ids[1] + 2
        shapes: list[_Shape] = []
        odd: list[int] = []
        while len(left) and len(shapes) < _MOST_SHAPES:
            first = int(left[0])
            items = self._parse_row(first, int(heads[first]))
            if any(len(str(end - start)) > _LONGEST_LENGTH for _, _, start, end in items):
                odd.append(first)
                left = left[1:]
                if len(odd) > self.count >> 3:
                    break
                continue
            names = tuple(self._buffer[start:end] for start, end, _, _ in items)
            shape, is_same = self._match(left, heads[left], names)
            shapes.append(shape)
            left = left[~is_same]
        odd.extend(left.tolist())
        return shapes, [(row, self._parse_row(row, int(heads[row]))) for row in odd]

    @property
    def _shapes(self) -> list[_Shape]:
        return self._parsed[0]

    @property
    def _odd_rows(self) -> list[tuple[int, list[_Item]]]:
        return self._parsed[1]

    def _match(self, rows: Positions, at: Positions, names: tuple[bytes, ...]) -> tuple[_Shape, NDArray[np.bool_]]:
        """Which of `rows`, whose fields begin at `at`, have exactly these names; and where everything is in them."""
        ends = self._ends[rows]
        is_same = np.ones(len(rows), dtype=np.bool_)
        name_starts, value_starts, value_ends = [], [], []
        before = b"*%d\r\n" % (2 * len(names))
        for name in names:
            head = b"%b$%d\r\n" % (before, len(name))
            fixed = head + name + b"\r\n"
            text, words = self._read(at, len(fixed) + _LONGEST_LENGTH + 2)
            announced = self._announced_at(text, _DOLLAR, len(fixed))
            is_same &= _begins(words, fixed) & announced.is_sound
            name_starts.append(at + len(head))
            starts = at + announced.digits + (len(fixed) + 3)
            at = starts + announced.length
            is_same &= at < ends
            value_starts.append(starts)
            value_ends.append(at)
            before = b"\r\n"
        _, words = self._read(at, 2)
        is_same &= _begins(words, b"\r\n") & (at + 2 == ends)
        if is_same.all():
            return _Shape(rows, names, name_starts, value_starts, value_ends), is_same
        kept = ([places[is_same] for places in each] for each in (name_starts, value_starts, value_ends))
        return _Shape(rows[is_same], names, *kept), is_same

    def _parse_row(self, row: int, at: int) -> list[_Item]:
        """One row by itself, whatever its lengths."""
        end = int(self._ends[row])
        count, at = self._announced(b"*", at, end)
        if count % 2 or count > end - at:
            raise MalformedRowError(f"{count} names and values")
        items = []
        for _ in range(count // 2):
            name_length, name_start = self._announced(b"$", at, end)
            name_end = name_start + name_length
            value_length, start = self._announced(b"$", name_end + 2, end)
            at = start + value_length + 2
            items.append((name_start, name_end, start, start + value_length))
        if at != end:
            raise MalformedRowError("an entry does not end with its row")
        return items

    def _announced(self, mark: bytes, at: int, end: int) -> tuple[int, int]:
        """The number after `mark` at a place, and the place behind its line."""
        stop = self._buffer.find(b"\r\n", at, min(at + 24, end))
        digits = self._buffer[at + 1 : stop]
        if stop < 0 or self._buffer[at : at + 1] != mark or not digits.isdigit():
            raise MalformedRowError("a length that is none")
        return int(digits), stop + 2


def _begins(words: Words, expected: bytes) -> NDArray[np.bool_]:
    """Whether each text, read as words, begins with `expected`."""
    equal = np.ones(len(words), dtype=np.bool_)
    for place in range(0, len(expected), 8):
        part = expected[place : place + 8]
        word = words[:, place // 8]
        if len(part) < 8:
            word = word & np.uint64((1 << (8 * len(part))) - 1)
        equal &= word == np.uint64(int.from_bytes(part, "little"))
    return equal


# Where a name begins and ends, and where its value does.
_Item = tuple[int, int, int, int]


def _last_of_each(items: list[_Item], buffer: bytes) -> list[_Item]:
    """Of the fields with the same name only the last, where it stands."""
    last = {buffer[start:end]: place for place, (start, end, _, _) in enumerate(items)}
    return [items[place] for place in sorted(last.values())]
