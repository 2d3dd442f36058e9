"""Runs: XADDs that are neighbours in a chunk."""

from __future__ import annotations

from typing import NamedTuple

from riverbed.store.wire.reference.words import words_at


class Trim(NamedTuple):
    """The trim of an XADD by length or by ID, approximate or exact."""

    by_id: bool
    is_approximate: bool
    threshold: int


class Entry(NamedTuple):
    """One XADD: where its head, ID, first field and the byte behind its last value stand in its chunk; its words.

    `wanted` is the ID that it asks for, None for `*`; `word_count` are its fields and values.
    """

    start: int
    id: int
    fields: int
    end: int
    key: bytes
    word_count: int
    wanted: int | None
    trim: Trim | None

    @property
    def size(self) -> int:
        """Bytes of the fields."""
        return self.end - self.fields


class Run:
    """XADDs that are neighbours in a chunk.

    Among requests it passes for one, so that those of other kinds need not be asked what they are: its length is the
    number of entries, and what stands in the place of the name is the class, which no client can send.
    """

    __slots__ = ("chunk", "entries")

    def __init__(self, chunk: bytes, entries: list[Entry]) -> None:
        self.chunk = chunk
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> type[Run]:
        if index:
            raise IndexError("a run has no words")
        return type(self)

    @property
    def key(self) -> bytes:
        """The first entry's."""
        return self.entries[0].key

    @property
    def word_count(self) -> int:
        """The first entry's fields and values."""
        return self.entries[0].word_count

    @property
    def is_plain(self) -> bool:
        """Whether the first entry has the ID `*` and no trim."""
        return self.entries[0].wanted is None and self.entries[0].trim is None

    @property
    def size(self) -> int:
        """Bytes of the requests."""
        return self.entries[-1].end - self.entries[0].start

    def requests(self) -> list[list[bytes]]:
        """The requests one by one, as lists of words."""
        return [self.request(at) for at in range(len(self))]

    def request(self, at: int) -> list[bytes]:
        """The request of entry `at` as a list of words.  ValueError when there is no such entry."""
        checked(at, len(self) - 1)
        return words_at(self.chunk, self.entries[at].start, self.entries[at].end)[0]

    def entry(self, at: int) -> tuple[bytes, int, bool]:
        """-> (key, bytes of fields, whether it trims) of entry `at`.  ValueError when there is no such entry."""
        checked(at, len(self) - 1)
        entry = self.entries[at]
        return entry.key, entry.size, entry.trim is not None

    def rest(self, at: int) -> Run:
        """The run from entry `at` on.  ValueError when there is no such entry."""
        checked(at, len(self) - 1)
        return Run(self.chunk, self.entries[at:])

    def fitting(self, at: int, most: int, room: int) -> list[Entry]:
        """The entries from `at` on, `most` of them, whose fields have less than `room` bytes together."""
        if not 0 <= at <= len(self) or most < 0 or room < 0:
            raise ValueError("not a place in the run, or a negative bound")
        entries = []
        for entry in self.entries[at : at + most]:
            room -= entry.size
            if room <= 0:
                break
            entries.append(entry)
        return entries

    def fields(self, entry: Entry) -> bytes:
        return self.chunk[entry.fields : entry.end]

    def id_bulk(self, entry: Entry) -> bytes:
        return self.chunk[entry.id : entry.fields]


def checked(number: int, most: int) -> int:
    if not 0 <= number <= most:
        raise ValueError(f"{number} is not from 0 to {most}")
    return number
