"""Rows between two keys, forward or backward, from the write transaction or from a snapshot.

Knows keys and cursors, nothing of streams.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import lmdb

    from store.model import Row

# Rows are fetched in chunks, the first of which is short: behind the range are those of other streams.
_FIRST_CHUNK: Final = 32
_CHUNK: Final = 1024
_UNLIMITED: Final = 1 << 62


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


def read_snapshot(
    snapshot: lmdb.Transaction[bytes], entries: Any, low: bytes, high: bytes, *, reverse: bool
) -> Generator[Row, None, None]:
    """As `read`, one by one, without a limit; ends `snapshot` when it is exhausted or closed."""
    try:
        cursor = snapshot.cursor(entries)
        if not reverse:
            if cursor.set_range(low):
                for row in cursor.iternext():
                    if row[0] > high:
                        return
                    yield row
        elif (cursor.key() == high or cursor.prev()) if cursor.set_range(high) else cursor.last():
            for row in cursor.iterprev():
                if row[0] < low:
                    return
                yield row
    finally:
        snapshot.abort()


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
