"""Rows between two keys, forward or backward.

Knows keys and cursors, nothing of streams.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lmdb

    from store.model import Row

# Rows are fetched in chunks, the first of which is short: behind the range are those of other streams.
_FIRST_CHUNK: Final = 32
_CHUNK: Final = 1024
_UNLIMITED: Final = 1 << 62
# What a row takes of memory besides its value: the key, and the objects around both.
_ROW_BYTES: Final = 64


def read(cursor: lmdb.Cursor[bytes], low: bytes, high: bytes, count: int | None, *, reverse: bool) -> list[Row]:
    """The rows with low <= key <= high, at most `count`; the greatest first when `reverse`."""
    if reverse:
        return _read_backward(cursor, low, high, count)
    if not cursor.set_range(low):
        return []
    iterator = cursor.iternext()
    if count is not None and count <= _FIRST_CHUNK:
        rows = list(islice(iterator, count))
        if rows and rows[-1][0] > high:
            rows = rows[: _first_past(rows, high)]
        return rows
    rows = []
    left = _UNLIMITED if count is None else count
    size = _FIRST_CHUNK
    while left > 0:
        wanted = min(left, size)
        chunk = list(islice(iterator, wanted))
        if chunk and chunk[-1][0] > high:
            rows += chunk[: _first_past(chunk, high)]
            break
        rows += chunk
        left -= len(chunk)
        if len(chunk) < wanted:
            break
        size = min(4 * size, _CHUNK)
    return rows


def _read_backward(cursor: lmdb.Cursor[bytes], low: bytes, high: bytes, count: int | None) -> list[Row]:
    if cursor.set_range(high):
        if cursor.key() != high and not cursor.prev():
            return []
    elif not cursor.last():
        return []
    rows: list[Row] = []
    for row in cursor.iterprev():
        if row[0] < low or (count is not None and len(rows) >= count):
            break
        rows.append(row)
    return rows


def read_within(
    cursor: lmdb.Cursor[bytes],
    low: bytes,
    high: bytes,
    count: int | None,
    most_bytes: int,
    largest_row: int,
    *,
    reverse: bool,
) -> list[Row] | None:
    """As `read`; None, and little was read, when the rows and what memory they take besides exceed `most_bytes`.

    No row has more than `largest_row` bytes: as many are read before they are measured as there is room for.
    """
    if not reverse:
        found = cursor.set_range(low)
    elif cursor.set_range(high):
        found = cursor.key() == high or cursor.prev()
    else:
        found = cursor.last()
    if not found:
        return []
    rows: list[Row] = []
    left = most_bytes
    following = islice(cursor.iterprev() if reverse else cursor.iternext(), count)
    most = min(most_bytes // largest_row, _CHUNK)
    size = min(_FIRST_CHUNK, most)  # what is beyond `high` is not wanted, and may be another stream's
    while size > 1:
        chunk = list(islice(following, size))
        is_last = len(chunk) < size
        if chunk and not low <= chunk[-1][0] <= high:
            chunk = [row for row in chunk if low <= row[0] <= high]
            is_last = True
        left -= sum([len(row) for _, row in chunk]) + len(chunk) * _ROW_BYTES
        if left < 0:
            return None
        rows += chunk
        if is_last:
            return rows
        size = min(4 * size, most)
    for row in following:
        if not low <= row[0] <= high:
            break
        left -= len(row[1]) + _ROW_BYTES
        if left < 0:
            return None
        rows.append(row)
    return rows


def read_keys(cursor: lmdb.Cursor[bytes], low: bytes, high: bytes, count: int | None) -> list[bytes]:
    """The keys of `read`, forward: costs the same whatever the size of the rows."""
    if not cursor.set_range(low):
        return []
    return list(takewhile(high.__ge__, islice(cursor.iternext(values=False), count)))


def _first_past(rows: list[Row], high: bytes) -> int:
    """The index of the first row whose key is above `high`."""
    low, past = 0, len(rows)
    while low < past:
        middle = (low + past) // 2
        if rows[middle][0] > high:
            past = middle
        else:
            low = middle + 1
    return low
