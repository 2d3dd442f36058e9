"""Puts cursors on places between the rows of any table, and looks whether damage has led them elsewhere.

All of it raises DamagedRowError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from operator import ge
from typing import TYPE_CHECKING, Any, TypeAlias

from riverbed.store.errors import DamagedRowError

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.model import Row

    AnyCursor: TypeAlias = lmdb.Cursor[bytes] | lmdb.Cursor[memoryview]
    # Raises DamagedRowError for a key and its row.
    Check: TypeAlias = Callable[[bytes, bytes], object]


def seek(cursor: AnyCursor, low: bytes, check: Callable[[Any, Any], object] | None = None) -> bool:
    """Put the cursor on the first row from `low` on; -> whether there is one.  Raises DamagedRowError.

    A flipped bit in a page of the tree leads to a page beside the right one.  Then the row that is found is below
    `low`, as LMDB takes the first one of the next page without a look at its key, or the row before it is not.
    A row whose key is `low` is the right one, whatever is beside it, as long as its key is not damaged itself: most
    ranges begin with an entry that is there.  `check` is called for the row before any other one.
    """
    found = cursor.set_range(low)
    if found:
        key = bytes(cursor.key())
        if key == low:
            return True
        if key < low:
            raise out_of_order()
    is_first = not (cursor.prev() if found else cursor.last())
    if not is_first:
        if check is not None:
            check(*cursor.item())
        if bytes(cursor.key()) >= low:
            raise out_of_order()
    return found and (cursor.first() if is_first else cursor.next())


def ordered_rows(cursor: lmdb.Cursor[bytes], low: bytes, most: int) -> tuple[Row | None, list[Row]]:
    """-> (the row before `low`, up to `most` rows from `low` on).  Raises DamagedRowError.

    For tables without checksums: a flipped bit in a key of a page has a search for another one pass over rows.  The key
    is out of order then, among the two rows before `low` and those up to the one behind the last.
    """
    before = 0
    if cursor.set_range(low):
        while before < 2 and cursor.prev():
            before += 1
    elif cursor.last():
        before = 1 + cursor.prev()
    else:
        return None, []
    rows = list(islice(cursor.iternext(), before + most + 1))
    keys = [key for key, _ in rows]
    is_misled = (before > 0 and keys[before - 1] >= low) or (before < len(keys) and keys[before] < low)
    if is_misled:
        raise out_of_order()
    require_order(keys)
    return rows[before - 1] if before else None, rows[before : before + most]


def seek_last(cursor: AnyCursor, high: bytes) -> bool:
    """Put the cursor on the last row that is not above `high`; -> whether there is one.  Raises DamagedRowError."""
    return seek_below(cursor, high + b"\0")


def seek_below(cursor: AnyCursor, past: bytes) -> bool:
    """Put the cursor on the last row below `past`; -> whether there is one.  Raises DamagedRowError."""
    found = cursor.set_range(past)
    if found and bytes(cursor.key()) < past:
        raise out_of_order()
    is_there = cursor.prev() if found else cursor.last()
    if is_there and bytes(cursor.key()) >= past:
        raise out_of_order()
    return is_there


def require_place(cursor: lmdb.Cursor[bytes], low: bytes, check: Check) -> None:
    """Raise DamagedRowError unless the cursor, which stands where `low` leads, is behind all that is below `low`.

    A flipped bit in a key of a row or of the tree above leads past rows, or to rows that are below: then the row before
    is damaged, or one of the two is on the wrong side.
    """
    key = cursor.key()
    if key and key < low:
        raise out_of_order()
    if cursor.prev() if key else cursor.last():
        check(*cursor.item())
        if cursor.key() >= low:
            raise out_of_order()
    if key:
        cursor.set_key(key)


def require_order(keys: Sequence[bytes]) -> None:
    """Raise DamagedRowError unless keys that a cursor has met one after the other ascend."""
    if any(map(ge, keys, keys[1:])):
        raise out_of_order()


def out_of_order() -> DamagedRowError:
    return DamagedRowError("the order of rows")
