"""Which keys were asked for lately: a few thousand of them, in little memory, whatever the keys are.

A stream that is asked for again soon is worth an object that is kept.  Of very many streams that are asked for in any
order, each would only push another one out.
"""

from __future__ import annotations

from typing import Final

# Of ten thousand streams that are read in any order every third is then known at its second read, of a hundred thousand
# every twenty-fifth.
_PLACES: Final = 4096


class RecentKeys:
    """The keys that were noted last, by their hashes: each is forgotten for another that has its place."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes: list[int | None] = []

    def note(self, key: bytes) -> bool:
        """Note a key; -> whether it was noted lately.  May be wrong, rarely."""
        if not self._hashes:
            self._hashes = [None] * _PLACES  # most databases are never read
        known = hash(key)
        place = known % _PLACES
        if self._hashes[place] == known:
            return True
        self._hashes[place] = known
        return False
