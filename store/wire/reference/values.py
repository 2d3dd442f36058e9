"""Where values are in the rows of a buffer, and pieces of a buffer as a column of Arrow."""

from __future__ import annotations

import re
from array import array
from itertools import accumulate

from riverbed.store.wire.reference.rows import Buffer

_LENGTH = re.compile(rb"([0-9]{1,9})\r\n")


def find_values(
    buffer: Buffer, starts: Buffer, ends: Buffer, heads: list[bytes], tail: bytes, places: Buffer, found: Buffer
) -> int:
    """Where values are in the rows from `starts` to `ends` in a buffer -> how many rows are of this shape:

        head 1 | length | CR LF | value 1 | head 2 | length | CR LF | value 2 | tail

    `places` has room for the begin of value 1 in each row, then for its end in each row, and so on; `found` is one byte
    a row: whether it is of this shape.  The places of a row that is not are of no use.  Lengths have at most nine
    digits, which may begin with zeros.  All numbers are native ones of 64 bits.
    """
    begins, stops = (memoryview(each).cast("B").cast("q") for each in (starts, ends))
    into, flags = memoryview(places).cast("B").cast("q"), memoryview(found).cast("B")
    count = len(begins)
    if len(stops) != count or len(into) != 2 * len(heads) * count:
        raise ValueError("not as many numbers of 64 bits")
    if len(flags) != count:
        raise ValueError("not as many flags as rows")
    data = bytes(memoryview(buffer).cast("B"))
    for row, (start, stop) in enumerate(zip(begins, stops, strict=True)):
        values = _values_in(data[start:stop], heads, tail) if 0 <= start <= stop <= len(data) else None
        flags[row] = values is not None
        for number, place in enumerate(values or ()):
            into[number * count + row] = start + place
    return sum(flags)


def _values_in(row: bytes, heads: list[bytes], tail: bytes) -> list[int] | None:
    """Begin and end of each value in a row; None when it is of another shape."""
    at, places = 0, []
    for head in heads:
        length = _LENGTH.match(row, at + len(head))
        if not row.startswith(head, at) or length is None or int(length[1]) > len(row) - length.end():
            return None
        places += [length.end(), at := length.end() + int(length[1])]
    return places if row[at:] == tail else None


def gather(buffer: Buffer, starts: Buffer, ends: Buffer, offsets: Buffer, pieces: Buffer) -> bool:
    """Put the bytes from `starts` to `ends` in a buffer one behind the other -> whether all of them are ASCII.

    `offsets`, one more than there are pieces, are native numbers of 32 bits: where each piece begins, and the end of
    the last.  `pieces` has room for exactly what there is.
    """
    data, into = memoryview(buffer).cast("B"), memoryview(pieces).cast("B")
    begins, stops = (memoryview(each).cast("B").cast("q") for each in (starts, ends))
    if len(begins) != len(stops):
        raise ValueError("not as many numbers of 64 bits")
    at = memoryview(offsets).cast("B")
    if len(at) != 4 * (len(begins) + 1) or len(into) >= 1 << 31:
        raise ValueError("not as many offsets as pieces, or too many bytes for them")
    places = list(zip(begins, stops, strict=True))
    sizes = [stop - start if 0 <= start <= stop <= len(data) else -1 for start, stop in places]
    if min(sizes, default=0) < 0 or sum(sizes) != len(into):
        raise ValueError("the pieces are not in the buffer, or not as long as the room for them")
    into[:] = gathered = b"".join([data[start:stop] for start, stop in places])
    at.cast("i")[:] = memoryview(array("i", accumulate(sizes, initial=0)))
    return gathered.isascii()
