"""The entries of one stream that a read transaction sees.

Readers of table `entries` outside of the server's write transaction use this module.  It keeps them between the edges
of the stream, so that they see neither dead rows nor other streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format.entries import bare_row, bare_values
from riverbed.store.format.streams import StreamRow, entry_key, id_in_key, stream_prefix
from riverbed.store.ids import ID_BYTES, MAX_ID, MIN_ID, StreamID, id_text, pack_id
from riverbed.store.tables import ranges
from riverbed.store.tables.places import seek, seek_last
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import nodes_of

if TYPE_CHECKING:
    from riverbed.store.model import Row


class StreamEntries:
    """The entries of the stream with this row, oldest first."""

    def __init__(self, reader: TableReader, row: StreamRow) -> None:
        self._reader = reader
        self._path = reader.path
        self._row = row
        self._prefix = stream_prefix(row.stream_no)
        # The packed IDs that all entries are between; the first is above the last when there are none.
        self._first, self._last = (
            (pack_id(row.first_id), pack_id(row.last_live_id)) if row.length else (b"\xff" * 17, b"")
        )
        self._cursor = reader.cursor("entries")

    def values(self) -> Iterator[bytes]:
        """As `sealed_values`, compared with their seals and without them."""
        for row in self.sealed_values():
            try:
                yield bare_values(self._prefix, [row])[0]
            except DamagedRowError:
                if not self._cursor.key().startswith(self._prefix):
                    raise self._lacks_entries() from None
                raise

    def sealed_values(self) -> Iterator[bytes]:
        """All of them, as rows without keys: as many as the stream counts, if the table has so many.

        Not a generator, which would take a tenth of the time of a rewrite.
        """
        row, cursor = self._row, self._cursor
        if not row.length or not seek(cursor, entry_key(row.stream_no, row.first_id)):
            return iter(())
        return islice(cursor.iternext(keys=False), row.length)

    def require_counted(self) -> None:
        """Raise CorruptionError unless `values`, read to its end, has given the entries that the stream counts."""
        row, cursor = self._row, self._cursor
        if row.length and cursor.key() != self._prefix + self._last:
            raise self._lacks_entries()
        if row.length and not self.has(self._first):
            raise self._wrong("its first entry is not there")

    def rows(self, first: StreamID = MIN_ID, last: StreamID = MAX_ID) -> Iterator[Row]:
        """Those with first <= id <= last, as (key, value)."""
        low, high = self._edges(first, last)
        if low <= high and seek(self._cursor, low):
            for key, row in takewhile(lambda row: row[0] <= high, self._cursor.iternext()):
                yield key, bare_row(key, row)

    def ids(self, first: StreamID = MIN_ID, last: StreamID = MAX_ID) -> Iterator[StreamID]:
        """The IDs of `rows`; the cost does not depend on the size of the entries."""
        low, high = self._edges(first, last)
        if low <= high and seek(self._cursor, low):
            yield from map(id_in_key, takewhile(high.__ge__, self._cursor.iternext(values=False)))

    def count_after(self, entry_id: StreamID) -> int:
        """The number of entries with larger IDs.  Nodes behind the one of `entry_id` are counted by their rows."""
        if entry_id == MAX_ID:
            return 0
        total, last = 0, MAX_ID
        for node_id, node in nodes_of(self._reader, self._row):
            if node_id > entry_id:
                last = min(last, StreamID(node_id - 1))
                total += node.live
        return total + sum(1 for _ in self.ids(StreamID(entry_id + 1), last))

    def get(self, entry_id: StreamID) -> bytes | None:
        """The row of one entry, None when there is no such entry."""
        return bare_row(self._cursor.key(), self._cursor.value()) if self.has(pack_id(entry_id)) else None

    def has(self, packed_id: bytes) -> bool:
        """Whether there is an entry with this ID."""
        return self._first <= packed_id <= self._last and self._cursor.set_key(self._prefix + packed_id)

    def has_run(self, packed_ids: bytes) -> bool:
        """Whether there is an entry for each of these IDs, 16 bytes each, and no entry between them."""
        return self.has(packed_ids[:ID_BYTES]) and ranges.is_run(self._cursor, packed_ids)

    def last_id(self, most: StreamID) -> StreamID | None:
        """The ID of the youngest entry that is not above `most`, None when there is none."""
        low, high = self._edges(MIN_ID, most)
        if low > high or not seek_last(self._cursor, high) or self._cursor.key() < low:
            return None
        return id_in_key(self._cursor.key())

    def _edges(self, first: StreamID, last: StreamID) -> tuple[bytes, bytes]:
        """The keys of the first and the last entry that may be in this range; the first is above for an empty one."""
        return self._prefix + max(pack_id(first), self._first), self._prefix + min(pack_id(last), self._last)

    def _lacks_entries(self) -> CorruptionError:
        row = self._row
        return self._wrong(f"it has not {row.length} entries up to {id_text(row.last_live_id).decode()}")

    def _wrong(self, reason: str) -> CorruptionError:
        text = f"stream {self._row.stream_no}: {reason}; `riverbed check` shows more"
        return CorruptionError(str(self._path), None, text)
