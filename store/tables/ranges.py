"""Reads entries between two keys, forward or backward, and compares those at both ends and beside them with their keys.

All of it raises DamagedRowError.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.entries import bare_row
from riverbed.store.format.resp import id_bulk
from riverbed.store.format.streams import ENTRY_KEY_BYTES, id_in_key, packed_ids_in
from riverbed.store.ids import ID_BYTES
from riverbed.store.tables.places import seek, seek_last

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.model import Row

# Rows are fetched in chunks.  The first chunk is short: behind the range are the rows of other streams.
_FIRST_CHUNK: Final = 32
_CHUNK: Final = 1024
# Values without keys take 70 ns each instead of 100.  The end of the range in a chunk of them is found one by one.
_VALUES_CHUNK: Final = 128
_UNLIMITED: Final = 1 << 62
# Bytes of a row whose checksum takes longer than a search.
_LONG_ROW: Final = 64 << 10
# More bytes than the ID that a row begins with has.
_LONGEST_ID: Final = 64
# The memory that a row takes besides its value: the key, and the objects around both.
_ROW_BYTES: Final = 64


def read(
    cursor: lmdb.Cursor[bytes],
    low: bytes,
    high: bytes,
    count: int | None,
    *,
    reverse: bool,
    is_exact: bool,
    looks_beside: bool,
) -> list[Row]:
    """The rows with low <= key <= high, at most `count`; the greatest first when `reverse`.

    An empty list if it `is_exact` and there is no row under the key where the range begins.
    """
    if not begin(cursor, low, high, reverse=reverse, is_exact=is_exact, looks_beside=looks_beside):
        return []
    if reverse:
        return _read_backward(cursor, low, count)
    iterator = cursor.iternext()
    if count is not None and count <= _FIRST_CHUNK:
        return _cut(list(islice(iterator, count)), high)
    rows = []
    left = _UNLIMITED if count is None else count
    size = _FIRST_CHUNK
    while left > 0:
        wanted = min(left, size)
        chunk = list(islice(iterator, wanted))
        if chunk and chunk[-1][0] > high:
            rows += _cut(chunk, high)
            break
        rows += chunk
        left -= len(chunk)
        if len(chunk) < wanted:
            break
        size = min(4 * size, _CHUNK)
    return rows


def _read_backward(cursor: lmdb.Cursor[bytes], low: bytes, count: int | None) -> list[Row]:
    """The rows from the cursor's on, backward, with low <= key."""
    rows: list[Row] = []
    for row in cursor.iterprev():
        if count is not None and len(rows) >= count:
            break
        if row[0] < low:
            require_own_key(*row)  # with a damaged key it may be one of these
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
    is_exact: bool,
    looks_beside: bool,
) -> list[Row] | None:
    """As `read`; None when the rows, with their overhead in memory, exceed `most_bytes`.  Then only few were read.

    No row has more than `largest_row` bytes.  A chunk has only as many rows as have room, and is measured when read.
    """
    if not begin(cursor, low, high, reverse=reverse, is_exact=is_exact, looks_beside=looks_beside):
        return []
    rows: list[Row] = []
    left = most_bytes
    following = islice(cursor.iterprev() if reverse else cursor.iternext(), count)
    most = min(most_bytes // largest_row, _CHUNK)
    size = min(_FIRST_CHUNK, most)  # rows outside the range may be another stream's
    while size > 1:
        chunk = list(islice(following, size))
        is_last = len(chunk) < size
        if chunk and not low <= chunk[-1][0] <= high:
            inside = list(takewhile(lambda row: low <= row[0] <= high, chunk))
            require_own_key(*chunk[len(inside)])  # with a damaged key it may be one of these
            chunk, is_last = inside, True
        left -= sum([len(row) for _, row in chunk]) + len(chunk) * _ROW_BYTES
        if left < 0:
            return None
        rows += chunk
        if is_last:
            return rows
        size = min(4 * size, most)
    for row in following:
        if not low <= row[0] <= high:
            require_own_key(*row)
            break
        left -= len(row[1]) + _ROW_BYTES
        if left < 0:
            return None
        rows.append(row)
    return rows


def read_values(
    cursor: lmdb.Cursor[bytes],
    low: bytes,
    high: bytes,
    count: int,
    *,
    reverse: bool,
    is_exact: bool,
    looks_beside: bool,
) -> list[bytes]:
    """The values of `read`, fetched in one chunk: for a small `count`."""
    if not begin(cursor, low, high, reverse=reverse, is_exact=is_exact, looks_beside=looks_beside):
        return []
    bare_row(*cursor.item())  # values are compared with the IDs in their own text only
    values = list(islice(cursor.iterprev(keys=False) if reverse else cursor.iternext(keys=False), count))
    key = cursor.key()
    if low <= key <= high:
        bare_row(key, values[-1])
    else:
        _drop_outside(values, cursor, low, high, reverse=reverse)
    return values


def read_values_within(
    cursor: lmdb.Cursor[bytes],
    low: bytes,
    high: bytes,
    count: int | None,
    most_bytes: int,
    largest_row: int,
    *,
    reverse: bool,
    is_exact: bool,
    looks_beside: bool,
) -> list[bytes] | None:
    """The values of `read_within`."""
    if not begin(cursor, low, high, reverse=reverse, is_exact=is_exact, looks_beside=looks_beside):
        return []
    most = min(most_bytes // largest_row, _VALUES_CHUNK)
    if most <= 1:
        return _read_one_by_one(cursor, low, high, count, most_bytes, reverse=reverse)
    bare_row(*cursor.item())  # values are compared with the IDs in their own text only
    following = cursor.iterprev(keys=False) if reverse else cursor.iternext(keys=False)
    values: list[bytes] = []
    left = most_bytes
    to_come = _UNLIMITED if count is None else count
    is_measured = to_come * largest_row > most_bytes
    size = min(_FIRST_CHUNK, most)
    while to_come > 0:
        wanted = min(size, to_come)
        chunk = list(islice(following, wanted))
        to_come -= wanted
        key = cursor.key()
        if low <= key <= high:
            bare_row(key, chunk[-1])
        else:
            _drop_outside(chunk, cursor, low, high, reverse=reverse)
            to_come = 0
        if is_measured:
            left -= sum(map(len, chunk)) + len(chunk) * _ROW_BYTES
            if left < 0:
                return None
        values += chunk
        size = min(2 * size, most)
    return values


def _read_one_by_one(
    cursor: lmdb.Cursor[bytes], low: bytes, high: bytes, count: int | None, most_bytes: int, *, reverse: bool
) -> list[bytes] | None:
    """`read_values_within` from the cursor's row on, when one row may be larger than the room for all of them."""
    values: list[bytes] = []
    append = values.append
    left = most_bytes
    for key, value in islice(cursor.iterprev() if reverse else cursor.iternext(), count):
        require_own_key(key, value)  # also of the first row behind the range
        if key > high or key < low:
            break
        left -= len(value) + _ROW_BYTES
        if left < 0:
            return None
        append(value)
    return values


def _drop_outside(chunk: list[bytes], cursor: lmdb.Cursor[bytes], low: bytes, high: bytes, *, reverse: bool) -> None:
    """Remove from the end of `chunk` the values that are behind the range.

    The cursor is on the last row read, or has no position when the table has no more rows.  The two rows where the
    range ends have to be sound: with a damaged key it may end before them, or behind.
    """
    if not cursor.key():
        _ = cursor.first() if reverse else cursor.last()
    end = len(chunk)
    behind: Row | None = None
    for key in islice(cursor.iternext(values=False) if reverse else cursor.iterprev(values=False), len(chunk)):
        if low <= key <= high:
            bare_row(key, chunk[end - 1])
            break
        end -= 1
        behind = key, chunk[end]
    if behind is not None:
        bare_row(*behind)
    del chunk[end:]


def begin(
    cursor: lmdb.Cursor[bytes], low: bytes, high: bytes, *, reverse: bool, is_exact: bool, looks_beside: bool
) -> bool:
    """Put the cursor on the first row of a range of entries; -> whether there is one.  Raises DamagedRowError.

    If it `looks_beside`, the row before the range has to be sound, unless a row has the very key: with a damaged key it
    may be the first one.  Where entries may be very long no caller asks for that: it may be another stream's.  A range
    that `is_exact` begins with a row under its very key, which is found in half the time.
    """
    if is_exact:
        return cursor.set_key(high if reverse else low)
    if not reverse:
        return seek(cursor, low, bare_row if looks_beside else None)
    if looks_beside and cursor.set_range(high + b"\0"):
        bare_row(*cursor.item())
    return seek_last(cursor, high)


def require_own_key(key: bytes, row: bytes | memoryview) -> None:
    """Raise DamagedRowError if an entry is not under its own key; of a long one its checksum is not computed."""
    if len(row) < _LONG_ROW:
        bare_row(key, bytes(row))
    elif len(key) != ENTRY_KEY_BYTES or not bytes(row[:_LONGEST_ID]).startswith(id_bulk(id_in_key(key))):
        raise DamagedRowError("the key of an entry")


def is_run(cursor: lmdb.Cursor[bytes], packed_ids: bytes) -> bool:
    """Whether the rows from the cursor's on are those of these IDs, 16 bytes each, without another row between them.

    A cursor step takes a fifth of the time of a look-up: 0.13 us an ID against 0.7.
    """
    keys = islice(cursor.iternext(values=False), len(packed_ids) // ID_BYTES)
    return b"".join(packed_ids_in(keys)) == packed_ids


def _cut(rows: list[Row], high: bytes) -> list[Row]:
    """The first of these rows whose keys are not above `high`.  Raises DamagedRowError."""
    end = _first_past(rows, high) if rows and rows[-1][0] > high else len(rows)
    if end < len(rows):
        require_own_key(*rows[end])  # with a damaged key it may be one of these
    return rows[:end]


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
