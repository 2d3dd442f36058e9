"""Which consumers of a group may have a name: their numbers, found by a hash, in eight bytes for each.

    hash of the name: 32 bits  ->  one of 4096 short arrays, ascending:    [hash:32 number:32] [hash:32 number:32] ...

The arrays stay short enough to insert into: no sort and no rehash of millions ever makes a turn long.  Of three million
names some thousand share their hash with another one; the row of each number says which name it has.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import Final

ENTRY_BYTES: Final = 8
# What the arrays take beside their entries.
EMPTY_BYTES: Final = 300_000
_ARRAYS: Final = 4096
_NUMBER_BITS: Final = 32
_NUMBERS: Final = (1 << _NUMBER_BITS) - 1
# Python's own hash has a key of each process: nobody can choose names that collide.
HASH_MASK = (1 << 32) - 1


class NameIndex:
    """The numbers by the hashes of names."""

    def __init__(self) -> None:
        self._arrays: dict[int, array[int]] = {}

    def add(self, name: bytes, number: int) -> None:
        hashed = hash(name) & HASH_MASK
        numbers = self._arrays.get(hashed % _ARRAYS)
        if numbers is None:
            numbers = self._arrays[hashed % _ARRAYS] = array("Q")
        insort(numbers, hashed << _NUMBER_BITS | number)

    def remove(self, name: bytes, number: int) -> None:
        hashed = hash(name) & HASH_MASK
        numbers = self._arrays[hashed % _ARRAYS]
        del numbers[bisect_left(numbers, hashed << _NUMBER_BITS | number)]

    def find(self, name: bytes) -> list[int]:
        """The numbers of all consumers whose names have the hash of this one."""
        hashed = hash(name) & HASH_MASK
        numbers = self._arrays.get(hashed % _ARRAYS, ())
        at = bisect_left(numbers, hashed << _NUMBER_BITS)
        found = []
        while at < len(numbers) and numbers[at] >> _NUMBER_BITS == hashed:
            found.append(numbers[at] & _NUMBERS)
            at += 1
        return found
