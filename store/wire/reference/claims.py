"""Claims: XCLAIMs with JUSTID, of one entry each, that are neighbours in a chunk."""

from __future__ import annotations

from typing import NamedTuple

from riverbed.store.wire.reference.runs import checked
from riverbed.store.wire.reference.words import words_at


class Claim(NamedTuple):
    """One XCLAIM of one entry: where it stands in its chunk, and its ID."""

    start: int
    end: int
    packed: bytes
    text: bytes


class Claims:
    """XCLAIMs with JUSTID, of one entry each, that differ in their IDs alone and are neighbours in a chunk.

    It is what a client sends that takes over what others have pending, entry by entry.  Among requests it passes for
    one, like a run.
    """

    __slots__ = ("_chunk", "_claims", "names")

    def __init__(self, chunk: bytes, names: tuple[bytes, bytes, bytes, bytes], claims: list[Claim]) -> None:
        self._chunk = chunk
        self._claims = claims
        self.names = names  # the words that all have: key, group, consumer, min-idle-time

    def __len__(self) -> int:
        return len(self._claims)

    def __getitem__(self, index: int) -> type[Claims]:
        if index:
            raise IndexError("claims have no words")
        return type(self)

    @property
    def size(self) -> int:
        """Bytes of the requests."""
        return self._claims[-1].end - self._claims[0].start

    def requests(self) -> list[list[bytes]]:
        """The requests one by one, as lists of words."""
        return [self.request(at) for at in range(len(self))]

    def request(self, at: int) -> list[bytes]:
        """Request number `at` as a list of words.  ValueError when there is no such request."""
        claim = self._claims[checked(at, len(self) - 1)]
        return words_at(self._chunk, claim.start, claim.end)[0]

    def rest(self, at: int) -> Claims:
        """The claims from number `at` on.  ValueError when there is no such claim."""
        return Claims(self._chunk, self.names, self._claims[checked(at, len(self) - 1) :])

    def ids(self) -> tuple[list[bytes], list[bytes]]:
        """-> (packed IDs, the same as bulk strings) of the claims, in order."""
        return [claim.packed for claim in self._claims], [_bulk(claim.text) for claim in self._claims]

    def replies(self, claimed: bytes) -> bytes:
        """The replies to the first claims, for each of which `claimed` has a byte: 1 if the entry was taken.

        ValueError when there are not so many.
        """
        checked(len(claimed), len(self))
        return b"".join(
            [
                b"*1\r\n" + _bulk(claim.text) if was_taken else b"*0\r\n"
                for claim, was_taken in zip(self._claims, claimed, strict=False)
            ]
        )


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)
