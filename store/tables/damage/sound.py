"""Looks at the rows around a place for keys that damage has changed, and remembers where there are none."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverbed.store.tables.places import out_of_order, require_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lmdb

    from riverbed.store.model import Row
    from riverbed.store.tables.places import Check

# How much is looked at on each side of a place: as many rows as a page has, if they are small, and the bytes of several
# pages, as long rows soon fill one.
_LOOK_ROWS: Final = 60
_LOOK_BYTES: Final = 64 << 10
# More rows than a page has of entries.
_PAGE_ROWS: Final = 80
# No stretch of keys, and a key behind all others.
NOWHERE: Final = (b"\xff", b"")
_LAST_KEY: Final = b"\xff" * 32
# Stretches that are remembered, 0.2 KB each.  Looks at random IDs leave a third as many as would cover all rows before
# they begin to meet: a group may have 300,000 runs.
MOST_STRETCHES: Final = 1024


class SoundStretches:
    """The stretches of keys that `sound_stretch` has found, until rows change."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[bytes] = []  # ascending, and no stretch reaches into another
        self._lasts: list[bytes] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self._firsts, key) - 1
        return at >= 0 and key <= self._lasts[at]

    def add(self, first: bytes, last: bytes) -> None:
        """Remember one more stretch, as one with those that it reaches into."""
        if first > last:
            return
        at = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        if at == end and len(self._firsts) >= MOST_STRETCHES:
            at = end = min(at, MOST_STRETCHES - 1)
            del self._firsts[at], self._lasts[at]  # a neighbour makes room
        self._firsts[at:end] = [min([first, *self._firsts[at:end]])]
        self._lasts[at:end] = [max([last, *self._lasts[at:end]])]

    def forget(self) -> None:
        """Forget all of them: rows have changed."""
        self._firsts.clear()
        self._lasts.clear()


def sound_stretch(cursor: lmdb.Cursor[bytes], width: int, check: Check) -> tuple[bytes, bytes]:
    """The keys around the cursor, from the first to the last, among which rows hide no damaged key.

    A damaged key leads searches astray, of rows that are put as well: they may stand on the wrong side of it, on the
    same page or beside it.  None does where keys ascend, and where the rows are sound that differ in the first `width`
    bytes of their keys from a neighbour, and the first and last one.  Raises DamagedRowError.  Takes 20 us, or twice as
    long where rows are long.
    """
    key = cursor.key()
    back = _some_rows(cursor.iterprev(), _LOOK_ROWS, _LOOK_BYTES)
    begins = not cursor.key()  # with what was looked at, or before
    rows = _some_rows(cursor.iternext(), 2 * _LOOK_ROWS, sum(map(_size_of, back)) + _LOOK_BYTES)
    ends = not cursor.key()
    last_at = len(rows) - 1
    for at, (here, row) in enumerate(rows):
        behind = rows[at + 1][0] if at < last_at else _LAST_KEY
        if behind <= here:
            raise out_of_order()
        kind = here[:width]
        if at == 0 or not (behind.startswith(kind) and rows[at - 1][0].startswith(kind)):
            check(here, row)
    if key:
        cursor.set_key(key)
    if not rows:
        return NOWHERE
    return b"" if begins else rows[0][0], _LAST_KEY if ends else rows[-1][0]


def ordered_stretch(cursor: lmdb.Cursor[bytes]) -> tuple[bytes, bytes]:
    """As `sound_stretch`, by the order of keys alone: a page that stands in the place of another is not in order.

    Rows are at one end of the page then that a search comes to, and what tells so at the other.
    """
    back = list(islice(cursor.iterprev(values=False), _PAGE_ROWS))
    begins = not cursor.key()
    keys = list(islice(cursor.iternext(values=False), len(back) + _PAGE_ROWS))
    ends = not cursor.key()
    require_order(keys)
    if not keys:
        return NOWHERE
    return b"" if begins else keys[0], _LAST_KEY if ends else keys[-1]


def _some_rows(rows: Iterator[Row], most: int, most_bytes: int) -> list[Row]:
    """Rows until they are `most`, or more than `most_bytes`; the cursor has no place any more if there were fewer."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        most_bytes -= _size_of(row)
        if most_bytes < 0 or len(found) == most:
            break
    return found


def _size_of(row: Row) -> int:
    """The bytes that a row takes in its page, at least."""
    return len(row[0]) + len(row[1])
