"""Copies pieces of a buffer into Arrow's arrays of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from riverbed.store.wire import IS_NATIVE, gather

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from riverbed.tools.columns.lengths import Positions

    Bytes = NDArray[np.uint8]


# Values that all have one length, up to this one, are copied without a look at each.
_LONGEST_EQUAL: Final = 256


def order_of(starts: Positions) -> Positions | None:
    """The numbers of rows in the order of the buffer; None when they are in that order, or `gather` takes any."""
    if IS_NATIVE:
        return None
    rises = starts[1:] > starts[:-1]
    if rises.all():
        return None
    # The rows of a page mostly lie from its end down: falling runs, each above the run before.
    begins = np.concatenate(([0], np.flatnonzero(rises) + 1))
    ends = np.append(begins[1:], len(starts))
    order: Positions = np.repeat(begins + ends - 1, ends - begins) - np.arange(len(starts))
    in_order = starts[order]
    if not (in_order[1:] > in_order[:-1]).all():
        order = np.argsort(starts, kind="stable")
    return order


class Pieces:
    """Pieces of one buffer."""

    def __init__(self, buffer: Bytes) -> None:
        self._buffer = buffer

    def binary(
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
            return self.gathered(starts, ends, missing)[0]
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

    def gathered(
        self, starts: Positions, ends: Positions, missing: NDArray[np.bool_] | None = None
    ) -> tuple[pa.BinaryArray, bool]:
        """As `binary`, of places in any order; and whether all of it is ASCII."""
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


def repeated(words: list[bytes], times: int) -> pa.BinaryArray:
    """All of `words`, repeated `times` times."""
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    size = int(ends[-1])
    offsets = np.zeros(len(words) * times + 1, dtype=np.int32)
    offsets[1:] = (np.arange(times)[:, None] * size + ends).reshape(-1)
    data = b"".join(words) * times
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
