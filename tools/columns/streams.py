"""A range of IDs, and a stream with the part of it that a read wants."""

from __future__ import annotations

from dataclasses import dataclass

from riverbed.store.format.streams import StreamRow
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID


@dataclass(frozen=True, slots=True)
class Range:
    """IDs from `first` to `last`, both included."""

    first: StreamID = MIN_ID
    last: StreamID = MAX_ID

    def cut(self, other: Range) -> Range:
        return Range(max(self.first, other.first), min(self.last, other.last))

    @property
    def is_empty(self) -> bool:
        return self.first > self.last


def key_text(key: bytes) -> str:
    """A key for a column of texts: bytes that are not UTF-8 are written as \\xff."""
    return key.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class StreamHere:
    """One stream, and the part of it that is in a span."""

    db: int
    key: bytes
    row: StreamRow
    range: Range  # IDs that are in the span and asked for, with or without entries

    @property
    def live_range(self) -> Range:
        """Where entries may be: rows outside of the stream's first and last entry are dead."""
        if not self.row.length:
            return Range(StreamID(1), StreamID(0))
        return self.range.cut(Range(self.row.first_id, self.row.last_live_id))

    @property
    def key_text(self) -> str:
        return key_text(self.key)
