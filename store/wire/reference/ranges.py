"""Ranges: XRANGEs of one entry each that are neighbours in a chunk."""

from __future__ import annotations

from typing import NamedTuple

from riverbed.store.wire.reference.ids import ID_BYTES
from riverbed.store.wire.reference.runs import checked
from riverbed.store.wire.reference.words import words_at


class Range(NamedTuple):
    """One XRANGE of one entry: where it stands in its chunk, its key, the first and the last ID that are asked for."""

    start: int
    end: int
    key: bytes
    low: int
    high: int


class Ranges:
    """XRANGEs of one entry each, of any keys, that are neighbours in a chunk.

    It is what a client sends that looks entries up by their IDs, or what is first in many streams.  Among requests it
    passes for one, like a run.
    """

    __slots__ = ("_chunk", "_ranges")

    def __init__(self, chunk: bytes, ranges: list[Range]) -> None:
        self._chunk = chunk
        self._ranges = ranges

    def __len__(self) -> int:
        return len(self._ranges)

    def __getitem__(self, index: int) -> type[Ranges]:
        if index:
            raise IndexError("ranges have no words")
        return type(self)

    @property
    def size(self) -> int:
        """Bytes of the requests."""
        return self._ranges[-1].end - self._ranges[0].start

    def requests(self) -> list[list[bytes]]:
        """The requests one by one, as lists of words."""
        return [self.request(at) for at in range(len(self))]

    def request(self, at: int) -> list[bytes]:
        """Request number `at` as a list of words.  ValueError when there is no such request."""
        found = self._ranges[checked(at, len(self) - 1)]
        return words_at(self._chunk, found.start, found.end)[0]

    def rest(self, at: int) -> Ranges:
        """The ranges from number `at` on.  ValueError when there is no such range."""
        return Ranges(self._chunk, self._ranges[checked(at, len(self) - 1) :])

    def bounds(self) -> list[tuple[bytes, bytes, bytes]]:
        """-> (key, first packed ID, last packed ID) of each, in order; equal neighbours share the key."""
        bounds: list[tuple[bytes, bytes, bytes]] = []
        for one in self._ranges:
            key = bounds[-1][0] if bounds and bounds[-1][0] == one.key else one.key
            bounds.append((key, one.low.to_bytes(ID_BYTES, "big"), one.high.to_bytes(ID_BYTES, "big")))
        return bounds
