"""Replies with entries in them, short or long: what they keep in memory, and what is read while they are sent.

A command collects the parts of its reply.  While they are short together, they are bytes.  When more would exceed the
`Room`, the command waits for a view.  From then on it keeps only the IDs of entries, and the entries are read from the
view, a piece at a time, as the client takes them.  So memory does not grow with the size of entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from riverbed.server.commands.slices import in_pieces, wait_for_view
from riverbed.server.commands.streams.entries import PAIR
from riverbed.server.protocol.replies import LongReply
from riverbed.store.ids import StreamID
from riverbed.store.streams.view import PIECE_BYTES, StreamView

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Wish
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.view import View

# Memory of an entry of a reply, besides its bytes.
_ENTRY_BYTES = 64


@dataclass(slots=True)
class Shown:
    """Entries of a stream in a reply, read from the view when they are sent."""

    stream: StreamView
    packed_ids: bytes  # 16 bytes each
    head: bytes = PAIR  # before each of them
    tails: list[bytes] | None = None  # behind each, if anything

    def pieces(self) -> Generator[bytes, None, None]:
        return self.stream.pieces_of(self.packed_ids, self.head, self.tails)


@dataclass(slots=True)
class ShownRange:
    """As `Shown`: the first `count` entries between two IDs; with `reverse` the last ones, newest first."""

    stream: StreamView
    start: StreamID
    end: StreamID
    count: int
    reverse: bool = False

    def pieces(self) -> Generator[bytes, None, None]:
        return self.stream.pieces(self.start, self.end, self.count, PAIR, reverse=self.reverse)


Part: TypeAlias = bytes | Shown | ShownRange


class Room:
    """How much memory the reply to one command may still take, and the view that the rest of it is read from."""

    def __init__(self, request: Request, *, is_of_read: bool = False) -> None:
        """`is_of_read` if the command changes nothing."""
        self._is_of_read = is_of_read
        self.request = request
        self.left = request.room  # bytes, None without a limit
        self.view: View | None = None

    def take(self, size: int, entries: int) -> None:
        """Count bytes of the reply that are kept."""
        if self.left is not None:
            self.left = max(self.left - size - entries * _ENTRY_BYTES, 0)

    def wait_for_view(self) -> Generator[Wish, View | None, View]:
        """Wait for a view.  What was looked up before has to be looked up again."""
        view = self.view = yield from wait_for_view()
        return view

    def reply(self, parts: list[Part]) -> Reply:
        """The reply whose RESP is `parts`, sent piece by piece when it is long."""
        if self.view is not None:
            return LongReply(_pieces(parts), self.view.hold(), is_of_read=self._is_of_read)
        return in_pieces(self.request, cast("list[bytes]", parts))


class Showing:
    """A stream in a reply that is read from a view: entries that the view lacks, being newer, are kept in memory."""

    def __init__(self, view: View, stream: Stream) -> None:
        self._view = view
        self._stream = stream
        self._shown = StreamView(view, stream)
        self._last = self._shown.last_packed()

    def row(self, packed: bytes) -> bytes:
        """The row of an existing entry; empty when the view has it."""
        is_old = packed <= self._last
        if is_old and not self._view.may_have_other_entries:
            return b""
        row = self._stream.txn.get_entry(self._stream.prefix + packed)
        return b"" if row is None or (is_old and self._shown.has(packed, row)) else row

    def sizes(self, packed_ids: list[bytes]) -> list[int]:
        """The sizes of the rows of entries, in order of their IDs."""
        if self._view.may_have_other_entries:
            return [len(self.row(packed)) or self._shown.sizes_of([packed])[0] for packed in packed_ids]
        known = bisect_right(packed_ids, self._last)
        return self._shown.sizes_of(packed_ids[:known]) + [len(self.row(packed)) for packed in packed_ids[known:]]

    def parts(self, packed_ids: list[bytes], head: bytes = PAIR, tails: list[bytes] | None = None) -> list[Part]:
        """The entries with these IDs, in any order, between `head` and the one of `tails` that belongs to each."""
        parts: list[Part] = []
        at = 0
        while at < len(packed_ids):
            end, row = at, b""
            while end < len(packed_ids) and not (row := self.row(packed_ids[end])):
                end += 1
            if end > at:
                own = None if tails is None else tails[at:end]
                parts.append(Shown(self._shown, b"".join(packed_ids[at:end]), head, own))
            if row:
                parts.append(head + row + (b"" if tails is None else tails[end]))
            at = end + 1
        return parts


def _pieces(parts: list[Part]) -> Generator[bytes, None, None]:
    """`parts`, one after the other; the small ones together."""
    small: list[bytes] = []
    size = 0
    for part in parts:
        if isinstance(part, bytes):
            small.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                joined = b"".join(small)
                small.clear()
                size = 0
                for at in range(0, len(joined), PIECE_BYTES):
                    yield joined[at : at + PIECE_BYTES]
        else:
            pieces = part.pieces()
            yield b"".join(small) + next(pieces, b"")
            small.clear()
            size = 0
            yield from pieces
    yield b"".join(small)
