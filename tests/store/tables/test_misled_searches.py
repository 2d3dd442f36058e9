"""A search that a damaged page of the tree sends beside its place is an error, and hides no row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from riverbed.store.errors import DamagedRowError
from riverbed.store.tables.places import seek, seek_below, seek_last

ROWS = [b"b", b"d", b"f", b"h"]


class Misled:
    """A cursor over ROWS whose searches land so many rows behind their place, or before it."""

    def __init__(self, by: int) -> None:
        self._by = by
        self._at = -1

    def _go(self, at: int) -> bool:
        self._at = at if 0 <= at < len(ROWS) else -1
        return self._at >= 0

    def set_range(self, key: bytes) -> bool:
        return self._go(sum(row < key for row in ROWS) + self._by)

    def key(self) -> bytes:
        return ROWS[self._at] if self._at >= 0 else b""

    def prev(self) -> bool:
        return self._go(self._at - 1)

    def next(self) -> bool:
        return self._go(self._at + 1)

    def first(self) -> bool:
        return self._go(0)

    def last(self) -> bool:
        return self._go(len(ROWS) - 1)


@pytest.mark.parametrize(
    ("find", "key", "found"),
    [
        (seek, b"d", b"d"),
        (seek, b"e", b"f"),
        (seek, b"a", b"b"),
        (seek, b"i", None),
        (seek_last, b"d", b"d"),
        (seek_last, b"e", b"d"),
        (seek_last, b"i", b"h"),
        (seek_last, b"a", None),
        (seek_below, b"d", b"b"),
        (seek_below, b"e", b"d"),
        (seek_below, b"i", b"h"),
        (seek_below, b"b", None),
    ],
)
def test_a_search_that_is_not_misled_finds_its_place(
    find: Callable[[Any, bytes], bool], key: bytes, found: bytes | None
) -> None:
    cursor = Misled(0)
    assert find(cursor, key) == (found is not None)
    if found is not None:
        assert cursor.key() == found


@pytest.mark.parametrize("by", [-2, -1, 1, 2, 9])
@pytest.mark.parametrize("find", [seek, seek_last, seek_below])
def test_a_search_that_lands_beside_its_place_is_an_error(find: Callable[[Any, bytes], bool], by: int) -> None:
    """Also one that takes itself to be behind the last row."""
    with pytest.raises(DamagedRowError):
        find(Misled(by), b"e" if by < 0 else b"c")


@pytest.mark.parametrize("by", [-1, 1, 9])
def test_a_search_for_a_row_that_is_there_and_is_missed_is_an_error(by: int) -> None:
    with pytest.raises(DamagedRowError):
        seek(Misled(by), b"d")


def test_the_row_that_was_looked_for_is_not_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Misled, "prev", lambda cursor: pytest.fail("a look at the row before"))
    assert seek(Misled(0), b"d")
