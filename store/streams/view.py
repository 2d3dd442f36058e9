"""The entries of one stream as a view shows them: counted, and as pieces of RESP of bounded size.

A view has the same rows as the write transaction at the moment it was made, so the counters that the `Stream` has then
stay true of the view.  An entry larger than a piece comes in several pieces, and is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.entries import bare_row, bare_values, size_of_bare, verified_size
from riverbed.store.format.streams import NodeRow, decode_stream_prefix, id_in_key, packed_id_in
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, pack_id
from riverbed.store.tables import ranges
from riverbed.store.tables.places import require_order, seek, seek_last

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.view import View

    MappedCursor: TypeAlias = lmdb.Cursor[bytes] | lmdb.Cursor[memoryview]

# The size of a piece, without an entry's head: the memory that a client costs while it does not read.
PIECE_BYTES: Final = 128 << 10
# The number of entries that are added to a piece at a time if all entries are small.
_FEW_ENTRIES: Final = 64
# Bytes of a row whose checksum takes 0.1 ms.
_VERY_LONG: Final = 1 << 20
# The number of nodes, or keys, that a slice of counting reads: half a millisecond.
_SLICE_ROWS: Final = 1000


class StreamView:
    """The state of `stream` in `view`, which has just been made."""

    def __init__(self, view: View, stream: Stream) -> None:
        self._view = view
        self._prefix = stream.prefix
        self._floor_id = stream.floor_id
        self._first_id = stream.first_id
        self.length = stream.length
        self.last_live_id = stream.last_live_id if stream.length else MIN_ID
        self._tail_first_id = stream.tail_first_id
        self._tail_live = stream.tail_total - stream.tail_dead

    # -- counting ------------------------------------------------------------------------------------------------------

    def count(self, start: StreamID, end: StreamID, most: int | None = None) -> Generator[None, None, int]:
        """The number of entries with start <= id <= end, at most `most`; counts in slices.

        Counts whole nodes, so that only the entries of the first and the last node are read.
        """
        start, end = max(start, self._floor_id, self._first_id), min(end, self.last_live_id)
        if not self.length or start > end:
            return 0
        if start == self._first_id and end == self.last_live_id:
            return self.length if most is None else min(self.length, most)
        total = 0
        begin, live = start, None  # the node that is not counted yet; `live` is None for a part of a node
        for number, (first_id, node_live) in enumerate(self._nodes(start, end), 1):
            if live is not None:
                total += live
            elif first_id > begin:
                total += yield from self._count_keys(begin, StreamID(first_id - 1))
            begin, live = first_id, node_live
            if most is not None and total >= most:
                return most
            if number % _SLICE_ROWS == 0:
                yield
        if live is not None and end == self.last_live_id:
            total += live
        else:
            total += yield from self._count_keys(begin, end)
        return total if most is None else min(total, most)

    def _nodes(self, start: StreamID, end: StreamID) -> Iterator[tuple[StreamID, int]]:
        """(first ID, live entries) of the nodes that begin between `start` and `end`, including the tail."""
        cursor = self._view.new_cursor("nodes")
        if seek(cursor, self._prefix + pack_id(start)):
            high = self._prefix + pack_id(end)
            for key, row in cursor.iternext():
                live = NodeRow.unpack(key, row).live
                if key > high:  # or a damaged key
                    break
                yield id_in_key(key), live
        if self._tail_live and start <= self._tail_first_id <= end:
            yield self._tail_first_id, self._tail_live

    def _count_keys(self, start: StreamID, end: StreamID) -> Generator[None, None, int]:
        """The number of entries in a part of a node.  Raises DamagedRowError."""
        cursor = self._view.new_cursor("entries")
        low, high = self._prefix + pack_id(start), self._prefix + pack_id(end)
        self._require_own_ends(low, high)
        total = 0
        if seek(cursor, low):
            keys = cursor.iternext(values=False)
            while chunk := list(islice(keys, _SLICE_ROWS)):
                require_order(chunk)
                if chunk[-1] > high:
                    return total + sum(map(high.__ge__, chunk))
                total += len(chunk)
                yield
        return total

    def _require_own_ends(self, low: bytes, high: bytes) -> None:
        """Raise DamagedRowError unless the rows where a range begins and ends, and beside it, have their own keys.

        One with a flipped bit in its key may belong to the range, or to what is beside it.
        """
        cursor = self._view.new_mapped_cursor("entries")
        for place in (low, high + b"\0"):
            if seek(cursor, place, _require_own_key):
                _require_own_key(*cursor.item())

    def sizes(self, start: StreamID, count: int) -> tuple[list[int], StreamID]:
        """-> (the row sizes of the first `count` entries from `start` on, the ID behind the last of these)."""
        cursor = self._view.new_mapped_cursor("entries")
        low = self._prefix + pack_id(max(start, self._floor_id))
        if not seek(cursor, low, _require_own_key):
            return [], start
        keys: list[bytes] = []
        sizes: list[int] = []
        last: bytes | memoryview = b""  # one row is in memory at a time, or two
        for mapped, value in islice(cursor.iternext(), count):
            key, row = bytes(mapped), cast("bytes | memoryview", value)
            keys.append(key)
            is_own = key.startswith(self._prefix)
            if not (is_own and sizes):
                _require_own_key(key, row)
            if not is_own:
                break
            sizes.append(size_of_bare(row))
            last = row
        require_order(keys)
        if not sizes:
            return [], start
        end = keys[len(sizes) - 1]
        _require_own_key(end, last)
        return sizes, StreamID(id_in_key(end) + 1)

    def last_packed(self) -> bytes:
        """The packed ID of the stream's last entry in the view; empty if there is none."""
        cursor = self._view.new_cursor("entries")
        if _seek(cursor, self._prefix, self._prefix + pack_id(MAX_ID), reverse=True):
            key = cursor.key()
            return packed_id_in(key) if key.startswith(self._prefix) else b""
        return b""

    def has(self, packed: bytes, row: bytes) -> bool:
        """Whether the entry with this ID is in the view, and has this row, which has no seal."""
        cursor, key = self._view.new_cursor("entries"), self._prefix + packed
        return cursor.set_key(key) and bare_row(key, cursor.value()) == row

    def sizes_of(self, packed_ids: list[bytes]) -> list[int]:
        """The row sizes of these entries."""
        cursor = self._view.new_mapped_cursor("entries")
        sizes = []
        for packed in packed_ids:
            if not cursor.set_key(self._prefix + packed):
                raise self._lacks_entries()
            sizes.append(size_of_bare(cursor.value()))
        return sizes

    # -- pieces --------------------------------------------------------------------------------------------------------

    def pieces(
        self, start: StreamID, end: StreamID, count: int, head: bytes, *, reverse: bool = False
    ) -> Generator[bytes, None, None]:
        """`count` entries from `start`, each after `head`, oldest first; with `reverse` newest first from `end`."""
        low = self._prefix + pack_id(max(start, self._floor_id))
        high = self._prefix + pack_id(end)
        if self._view.has_large_entries:
            cursor = self._view.new_mapped_cursor("entries")
            yield from self._measured(cursor, self._walk(cursor, low, high, count, head, reverse=reverse))
            return
        small = self._view.new_cursor("entries")
        if count and not _seek(small, low, high, reverse=reverse):
            raise self._lacks_entries()
        rows = small.iterprev(keys=False) if reverse else small.iternext(keys=False)
        while count > 0:
            piece: list[bytes] = []
            size = 0
            while count > 0 and size < PIECE_BYTES:
                few = list(islice(rows, min(count, _FEW_ENTRIES)))
                if not few or not low <= small.key() <= high:
                    raise self._lacks_entries()
                count -= len(few)
                size += sum(map(len, few))
                piece += bare_values(self._prefix, few)
            yield head + head.join(piece)

    def pieces_of(
        self, packed_ids: bytes, head: bytes, tails: Iterable[bytes] | None = None
    ) -> Generator[bytes, None, None]:
        """The entries with these IDs, 16 bytes each; each stands between `head` and the next of `tails`, if given."""
        cursor = self._view.new_mapped_cursor("entries")
        yield from self._measured(cursor, self._look_up(cursor, packed_ids, head, tails))

    def _walk(
        self, cursor: MappedCursor, low: bytes, high: bytes, count: int, head: bytes, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Put the cursor on one entry after the other; yields (head, tail) for each."""
        found = bool(count) and _seek(cursor, low, high, reverse=reverse)
        move = cursor.prev if reverse else cursor.next
        for _ in range(count):
            if not found or not low <= bytes(cursor.key()) <= high:
                raise self._lacks_entries()
            yield head, b""
            found = move()

    def _look_up(
        self, cursor: MappedCursor, packed_ids: bytes, head: bytes, tails: Iterable[bytes] | None
    ) -> Iterator[tuple[bytes, bytes]]:
        following = None if tails is None else iter(tails)
        for at in range(0, len(packed_ids), 16):
            if not cursor.set_key(self._prefix + packed_ids[at : at + 16]):
                raise self._lacks_entries()
            yield head, b"" if following is None else next(following)

    def _measured(self, cursor: MappedCursor, places: Iterator[tuple[bytes, bytes]]) -> Generator[bytes, None, None]:
        """The entries that the cursor stands on, in pieces.  No value outlives a yield unless it is a copy."""
        parts: list[bytes | memoryview] = []
        size = 0
        for head, tail in places:
            value = cursor.value()
            length = verified_size(bytes(cursor.key()), value)
            copy = value[:length] if isinstance(value, bytes) else None
            del value
            if parts and size + length > PIECE_BYTES:
                piece = b"".join(parts)
                parts.clear()
                size = 0
                yield piece
            if length > PIECE_BYTES:
                yield head
                for at in range(0, length, PIECE_BYTES):
                    yield bytes((cursor.value() if copy is None else copy)[at : min(at + PIECE_BYTES, length)])
                yield tail
            else:
                parts += (head, cursor.value()[:length] if copy is None else copy, tail)
                size += len(head) + length + len(tail)
        yield b"".join(parts)

    def _lacks_entries(self) -> DamagedRowError:
        return DamagedRowError("an entry", decode_stream_prefix(self._prefix))


def _require_own_key(key: bytes | memoryview, row: bytes | memoryview) -> None:
    """Raise DamagedRowError if an entry is not under its own key; of one that is not very long its checksum tells."""
    ranges.require_own_key(bytes(key), row)
    if len(row) <= _VERY_LONG:
        verified_size(bytes(key), row)


def _seek(cursor: MappedCursor, low: bytes, high: bytes, *, reverse: bool) -> bool:
    """Put the cursor on the first row from `low` on, or with `reverse` the last row up to `high`; -> whether it exists.

    The row may lie outside of the range.
    """
    return seek_last(cursor, high) if reverse else seek(cursor, low)
