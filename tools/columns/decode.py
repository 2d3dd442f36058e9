"""Decodes rows of table `entries` to Arrow columns, a batch at a time.

    b"$3\\r\\n1-1\\r\\n*2\\r\\n$4\\r\\nuser\\r\\n$3\\r\\nbob\\r\\n"      one row: the ID, then names and values in turn

The rows of a batch are in one buffer, in any place and order, and numpy parses all of them in step: one read of eight
bytes a row shows the digits and the end of a length.  Rows of one stream mostly have the same names in the same order,
so a batch is parsed by *shape*: the names of the first remaining row are compared with all other rows, eight bytes a
read.  Rows of the seventeenth shape and beyond are parsed one by one.  Arrow columns are then copied from the buffer
once.  This takes about 110 ns for a row of four columns; parsing row by row takes 900 ns.

Knows neither LMDB nor Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from riverbed.store.wire import IS_NATIVE, find_values, gather
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
    Numbers = tuple[NDArray[np.uint64], NDArray[np.uint64]]


# Offsets of Arrow's binary arrays have 32 bits.
MAX_BYTES: Final = (1 << 31) - 64
_MAX_SHAPES: Final = 16
# Rows with longer values are parsed one by one.
_MAX_DIGITS: Final = 9 if IS_NATIVE else LONGEST_LENGTH
# Reads of the eight bytes before a row's first bytes, or from its last byte on, must stay inside the buffer.
MARGIN: Final = 24
_DOLLAR: Final = np.uint64(ord("$"))
_CR: Final = ord("\r")
_LF: Final = ord("\n")
# Values that all have one length, up to this one, are copied without a look at each.
_LONGEST_EQUAL: Final = 256
# A read of this many bytes of a row costs as much as one of eight.
_A_LOOK: Final = 64


@dataclass(frozen=True, slots=True)
class Items:
    """The names and values of all rows, flat: those of row i are `offsets[i]` up to `offsets[i + 1]`."""

    offsets: NDArray[np.int32]
    names: pa.BinaryArray
    values: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class _Shape:
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


class EntryBatch:
    """Some rows of table `entries`, in any order of streams.

    Raises MalformedRowError on the first use of a damaged row; ValueError for more than 2 GiB.
    """

    def __init__(self, buffer: Bytes, starts: Positions, ends: Positions, ids: Numbers | None = None) -> None:
        """The rows from `starts` to `ends` in a buffer: at least `MARGIN` bytes from its edges, not overlapping.

        `ids`: milliseconds and sequence numbers, if the caller knows them.
        """
        self.count = len(starts)
        self._buffer = buffer
        self._starts = starts
        self._ends = ends
        self._numbers = ids
        self._columns: dict[bytes, tuple[pa.BinaryArray, bool]] = {}
        self._texts: dict[bytes, pa.StringArray | None] = {}
        # The eight bytes from each byte of the buffer on, aligned or not.
        self._words: Words = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
        if len(buffer) > MAX_BYTES:
            raise ValueError(f"{len(buffer)} bytes in one batch; there may be {MAX_BYTES}")
        if self.count and int((ends - starts).min()) == 0:
            raise MalformedRowError("an empty row")

    @classmethod
    def of_rows(cls, rows: Sequence[bytes]) -> EntryBatch:
        """A batch of rows that are not in one buffer yet."""
        margin = bytes(MARGIN)
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        ends = np.cumsum(lengths) + MARGIN
        return cls(np.frombuffer(b"".join((margin, *rows, margin)), dtype=np.uint8), ends - lengths, ends)

    def row(self, number: int) -> bytes:
        """The bytes of one row."""
        return self._bytes(int(self._starts[number]), int(self._ends[number]))

    def joined(self) -> memoryview:
        """The bytes of all rows, one behind the other."""
        rows = self._binary(self._starts, self._ends, self._order)
        if not len(rows):
            return memoryview(b"")
        ends = np.frombuffer(rows.buffers()[1], dtype=np.int32)[rows.offset :]
        return memoryview(rows.buffers()[2])[int(ends[0]) : int(ends[len(rows)])]

    def _bytes(self, start: int, end: int) -> bytes:
        return self._buffer[start:end].tobytes()

    # -- columns -------------------------------------------------------------------------------------------------------

    def ids(self) -> pa.BinaryArray:
        """The IDs as text."""
        starts, ends = self._ids
        return self._binary(starts, ends, self._order)

    def ms(self) -> NDArray[np.uint64]:
        """The milliseconds of the IDs."""
        if self._numbers is not None:
            return self._numbers[0]
        return self._number(self._ids[0], self._dashes)

    def seq(self) -> NDArray[np.uint64]:
        """The sequence numbers of the IDs."""
        if self._numbers is not None:
            return self._numbers[1]
        return self._number(self._dashes + 1, self._ids[1])

    def column(self, name: bytes) -> pa.BinaryArray:
        """The value of one field in every row: the last of several, null in rows without the field."""
        return self._column(name)[0]

    def texts(self, name: bytes) -> pa.StringArray | None:
        """The same as text; None when a value is no UTF-8."""
        if name not in self._texts:
            values, is_ascii = self._column(name)
            try:
                self._texts[name] = values.view(pa.string()) if is_ascii else values.cast(pa.string())
            except pa.ArrowInvalid:
                self._texts[name] = None
        return self._texts[name]

    def _column(self, name: bytes) -> tuple[pa.BinaryArray, bool]:
        """-> the values, and whether they are known to be ASCII"""
        if name not in self._columns:
            starts, ends, missing = self._places_of(name)
            if IS_NATIVE and self.count:
                self._columns[name] = self._gathered(starts, ends, missing)
            else:
                self._columns[name] = self._binary(starts, ends, self._order, missing), False
        return self._columns[name]

    def _places_of(self, name: bytes) -> tuple[Positions, Positions, NDArray[np.bool_] | None]:
        """Where the value of a field begins and ends in every row, and the rows without the field."""
        if len(self._shapes) == 1 and not self._odd_rows:
            k = self._shapes[0].last_of(name)
            if k is not None:
                return self._shapes[0].value_starts[k], self._shapes[0].value_ends[k], None
        starts, ends = self._starts.copy(), self._starts.copy()
        found = np.zeros(self.count, dtype=np.bool_)
        for shape in self._shapes:
            k = shape.last_of(name)
            if k is not None:
                starts[shape.rows], ends[shape.rows] = shape.value_starts[k], shape.value_ends[k]
                found[shape.rows] = True
        for row, items in self._odd_rows:
            for name_start, name_end, value_start, value_end in items:
                if self._bytes(name_start, name_end) == name:
                    starts[row], ends[row], found[row] = value_start, value_end, True
        return starts, ends, None if found.all() else ~found

    def items(self, *, unique: bool) -> Items:
        """All fields of all rows; if `unique`, only the last of an entry's fields with the same name."""
        counts = np.zeros(self.count + 1, dtype=np.int64)
        for shape in self._shapes:
            counts[shape.rows + 1] = len(shape.kept(unique=unique))
        odd_rows = [(row, self._last_of_each(items) if unique else items) for row, items in self._odd_rows]
        for row, items in odd_rows:
            counts[row + 1] = len(items)
        offsets = np.cumsum(counts)
        total = int(offsets[-1])
        name_starts, name_ends, starts, ends = (np.empty(total, dtype=np.int64) for _ in range(4))
        is_uniform = not odd_rows and len(self._shapes) == 1 and bool(self._shapes[0].names)
        for shape in self._shapes:
            first = offsets[shape.rows]
            for place, k in enumerate(shape.kept(unique=unique)):
                at = first + place
                starts[at], ends[at] = shape.value_starts[k], shape.value_ends[k]
                if not is_uniform:
                    name_starts[at] = shape.name_starts[k]
                    name_ends[at] = shape.name_starts[k] + len(shape.names[k])
        for row, items in odd_rows:
            for place, item in enumerate(items, int(offsets[row])):
                name_starts[place], name_ends[place], starts[place], ends[place] = item
        order = self._order
        if order is not None:
            in_order = counts[1:][order]
            order = np.repeat(offsets[:-1][order] - (np.cumsum(in_order) - in_order), in_order) + np.arange(total)
        if is_uniform:
            shape = self._shapes[0]
            names = _repeated([shape.names[k] for k in shape.kept(unique=unique)], self.count)
        else:
            names = self._binary(name_starts, name_ends, order)
        return Items(offsets.astype(np.int32), names, self._binary(starts, ends, order))

    def _last_of_each(self, items: list[Item]) -> list[Item]:
        """Only the last of the fields with the same name, in the order of the row."""
        last = {self._bytes(start, end): place for place, (start, end, _, _) in enumerate(items)}
        return [items[place] for place in sorted(last.values())]

    def names(self) -> list[bytes]:
        """The names of all fields, each once, in the order of their first rows."""
        first: dict[bytes, int] = {}
        for shape in self._shapes:
            for name in shape.names:
                first[name] = min(first.get(name, self.count), int(shape.rows[0]))
        for row, items in self._odd_rows:
            for name_start, name_end, _, _ in items:
                name = self._bytes(name_start, name_end)
                first[name] = min(first.get(name, self.count), row)
        return sorted(first, key=lambda name: first[name])

    @cached_property
    def _order(self) -> Positions | None:
        """The row numbers in the order of the buffer; None when they are in that order, or `gather` takes any."""
        if IS_NATIVE:
            return None
        rises = self._starts[1:] > self._starts[:-1]
        if rises.all():
            return None
        # The rows of a page mostly lie from its end down: falling runs, each above the run before.
        begins = np.concatenate(([0], np.flatnonzero(rises) + 1))
        ends = np.append(begins[1:], self.count)
        order: Positions = np.repeat(begins + ends - 1, ends - begins) - np.arange(self.count)
        in_order = self._starts[order]
        if not (in_order[1:] > in_order[:-1]).all():
            order = np.argsort(self._starts, kind="stable")
        return order

    def _binary(
        self, starts: Positions, ends: Positions, order: Positions | None, missing: NDArray[np.bool_] | None = None
    ) -> pa.BinaryArray:
        """The bytes between `starts` and `ends`, which must not overlap; null where `missing`.

        In `order` the places ascend, so the values and the gaps between them form one array without a copy.  The
        result takes every other element of that array, in the order of rows.
        """
        count = len(starts)
        if not count:
            return pa.array([], type=pa.binary())
        if IS_NATIVE:
            return self._gathered(starts, ends, missing)[0]
        length = int(ends[0] - starts[0])
        if missing is None and 0 < length <= _LONGEST_EQUAL and (ends - starts == length).all():
            return self._equally_long(starts, length)
        gaps = np.empty(2 * count, dtype=np.int32)
        wanted = np.empty(count, dtype=np.int32)
        if order is None:
            gaps[0::2], gaps[1::2] = starts, ends
            wanted[:] = np.arange(0, 2 * count, 2, dtype=np.int32)
        else:
            gaps[0::2], gaps[1::2] = starts[order], ends[order]
            wanted[order] = np.arange(0, 2 * count, 2, dtype=np.int32)
        array = pa.Array.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(gaps), pa.py_buffer(self._buffer)]
        )
        return array.take(pa.array(wanted, mask=missing))

    def _gathered(
        self, starts: Positions, ends: Positions, missing: NDArray[np.bool_] | None = None
    ) -> tuple[pa.BinaryArray, bool]:
        """As `_binary`, of places in any order; and whether all of it is ASCII."""
        starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        offsets, pieces = (
            np.empty(len(starts) + 1, dtype=np.int32),
            np.empty(int((ends - starts).sum()), dtype=np.uint8),
        )
        is_ascii = gather(self._buffer, starts, ends, offsets, pieces)
        there = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
        buffers = [there, pa.py_buffer(offsets), pa.py_buffer(pieces)]
        return pa.Array.from_buffers(pa.binary(), len(starts), buffers), is_ascii

    def _equally_long(self, starts: Positions, length: int) -> pa.BinaryArray:
        pieces = np.ndarray((len(self._buffer) - length + 1,), dtype=f"V{length}", buffer=self._buffer, strides=(1,))
        offsets = np.arange(0, (len(starts) + 1) * length, length, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(pieces[starts])]
        return pa.Array.from_buffers(pa.binary(), len(starts), buffers)

    # -- parsing -------------------------------------------------------------------------------------------------------

    @cached_property
    def _ids(self) -> tuple[Positions, Positions]:
        words = self._words[self._starts]
        announced = announced_in(words >> np.uint64(8))
        if not ((words & ONE_BYTE == _DOLLAR) & announced.is_sound).all():
            raise MalformedRowError("a length that is none")
        starts = self._starts + announced.digits + 3
        ends = starts + announced.length
        if (ends > self._ends).any():
            raise MalformedRowError("the ID of an entry does not end in its row")
        return starts, ends

    @cached_property
    def _dashes(self) -> Positions:
        """Where the dash of each ID is: mostly behind the thirteenth digit, as in all IDs of times since 2001."""
        starts, ends = self._ids
        dashes = starts + 13
        wrong = (dashes >= ends) | (self._buffer[dashes] != ord("-"))
        for row in np.flatnonzero(wrong):
            start = int(starts[row])
            dashes[row] = start + self._bytes(start, int(ends[row])).find(b"-")
        if (dashes <= starts).any() or (dashes + 1 >= ends).any():
            raise MalformedRowError("the ID of an entry is not one")
        return dashes

    def _number(self, starts: Positions, ends: Positions) -> NDArray[np.uint64]:
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
    def _parsed(self) -> tuple[list[_Shape], list[tuple[int, list[Item]]]]:
        left = np.arange(self.count, dtype=np.int64)
        heads = self._ids[1] + 2
        shapes: list[_Shape] = []
        odd: list[int] = []
        while len(left) and len(shapes) < _MAX_SHAPES and len(odd) <= self.count >> 3:
            first = int(left[0])
            items = self._parse_row(first, int(heads[first]))
            if any(len(str(end - start)) > _MAX_DIGITS for _, _, start, end in items):
                odd.append(first)
                left = left[1:]
                continue
            names = tuple(self._bytes(start, end) for start, end, _, _ in items)
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
    def _shapes(self) -> list[_Shape]:
        return self._parsed[0]

    @property
    def _odd_rows(self) -> list[tuple[int, list[Item]]]:
        return self._parsed[1]

    def _match(self, rows: Positions, at: Positions, names: tuple[bytes, ...]) -> tuple[_Shape, NDArray[np.bool_]]:
        """Which of `rows`, whose fields begin at `at`, have exactly these names; and where names and values are."""
        ends = self._ends if len(rows) == self.count else self._ends[rows]
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
            return _Shape(rows, names, name_starts, value_starts, value_ends), is_same
        kept = ([places[is_same] for places in each] for each in (name_starts, value_starts, value_ends))
        return _Shape(rows[is_same], names, *kept), is_same

    def _found(
        self, rows: Positions, at: Positions, ends: Positions, names: tuple[bytes, ...]
    ) -> tuple[_Shape, NDArray[np.bool_]]:
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
        return _Shape(rows, names, name_starts, value_starts, value_ends), found

    def _parse_row(self, row: int, at: int) -> list[Item]:
        """Parse one row alone, with lengths of any size."""
        start = int(self._starts[row])
        return [(start + a, start + b, start + c, start + d) for a, b, c, d in parse_items(self.row(row), at - start)]


def _repeated(words: list[bytes], times: int) -> pa.BinaryArray:
    """All of `words`, repeated `times` times."""
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    size = int(ends[-1])
    offsets = np.zeros(len(words) * times + 1, dtype=np.int32)
    offsets[1:] = (np.arange(times)[:, None] * size + ends).reshape(-1)
    data = b"".join(words) * times
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
