"""The replies to the commands of one transaction: they leave together, behind its commit, and are not all in memory.

Short replies are kept in memory.  A reply that has no room there goes to a file without a name in the data directory at
once, for a later command of the transaction may change what it shows:

    MULTI   XADD s   XRANGE s   XDEL s   XRANGE s   EXEC
                         |                   |
                         `---- the file -----'----> commit ----> piece by piece to the client

This works for every transaction.  A transaction that only reads does not need the file for its long replies: it runs
between two changes of the store, with a view, and its long replies are read from the view while they are sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Final, cast

from riverbed.server.execution.control.spool import Spool, SpoolError
from riverbed.server.protocol.encode import array_header
from riverbed.server.protocol.replies import LONG_BYTES, LongReply, Mixture, Settled
from riverbed.store.streams.view import PIECE_BYTES
from riverbed.store.tables.view import OpenView

if TYPE_CHECKING:
    from riverbed.server.execution.control.spool import SpoolSpace
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.engine import Engine
    from riverbed.store.tables.view import View

# What a queued command may add to the replies in memory: the command itself takes more.
_BYTES_A_COMMAND = 128
# A reply of up to so much may be kept beyond that, for a command that rests on no table.
_SHORT_BYTES: Final = 128
# A reply of up to so much is made in memory, even when it is for the file.
_MIN_ROOM = 64 << 10
# Replies that are read from a view while they are sent: each takes a kilobyte or two until then.
_MAX_FROM_VIEW = 10_000
_PIECE_BYTES = PIECE_BYTES  # a variable, as tests change it


class ViewNeededError(Exception):
    """A transaction that only reads has to run again, with a view."""


class TransactionReplies:
    """Collects the replies of one transaction, in order.  It must be released; a long reply does that itself."""

    def __init__(self, engine: Engine, space: SpoolSpace, count: int, view: View | None, *, may_restart: bool) -> None:
        """`count` is the number of commands.  Commands that have a `view` only read; it shows what they see.

        Without a view and with `may_restart`, a long reply raises ViewNeededError.
        """
        self.added = 0
        self._engine = engine
        self._space = space
        self._count = count
        self._view = None if view is None else view.hold()
        self._may_restart = may_restart
        self._left = self._room = LONG_BYTES + count * _BYTES_A_COMMAND
        self._parts: list[bytes | range | LongReply] = []  # a range is of bytes in the file
        self._lasting: list[bool] = []  # whether a failed commit leaves the part true
        self._counts: dict[int, int] = {}  # of the commands whose replies are part number so and so, unless it is one
        self._from_view = 0
        self._spool: Spool | None = None

    @property
    def has_view(self) -> bool:
        """Whether the commands have waited for a view."""
        return self._view is not None

    @property
    def room(self) -> int:
        """How many bytes the next reply may have in memory."""
        return min(max(self._left, _MIN_ROOM), LONG_BYTES)

    def view(self) -> View:
        """A view from which a long reply is read, which the caller releases: it shows what the transaction sees now."""
        if self._view is not None:
            return self._view.hold()
        if self._may_restart:
            raise ViewNeededError
        return OpenView(self._engine.tables, self._engine.txn.lmdb)

    @property
    def has_lasting(self) -> bool:
        """Whether a failed commit leaves any of them true."""
        return any(self._lasting)

    def add(self, wire: bytes, *, lasts: bool, count: int = 1) -> None:
        """Add the replies to the next `count` commands; they `last` when these rest on no table.  Raises SpoolError."""
        self.added += count
        self._lasting.append(lasts)
        # a short lasting reply stays in memory, so that an error of the file never answers a command whose effect stays
        if len(wire) <= self._left or (lasts and len(wire) <= _SHORT_BYTES):
            self._left -= len(wire)
            self._parts.append(wire)
        else:
            self._spool_all((wire,))
        if count > 1:
            self._counts[len(self._parts) - 1] = count

    def add_long(self, reply: LongReply, *, lasts: bool) -> bool:
        """As `add`, for a reply in pieces: they go to the file now, unless the view has them when they are sent.

        -> whether they are made when they are sent.
        """
        self.added += 1
        self._lasting.append(lasts)
        is_from_view = reply.source is not None and reply.source is self._view
        if is_from_view and self._from_view < _MAX_FROM_VIEW:
            self._from_view += 1
            self._parts.append(reply)
            return True
        try:
            self._spool_all(reply.pieces)
        finally:
            reply.close()
        return False

    def _spool_all(self, pieces: Iterable[bytes]) -> None:
        """Put the next part into the file."""
        if self._spool is None:
            self._spool = Spool(self._space)
        start = self._spool.end
        for piece in pieces:
            self._spool.append(piece)
        self._parts.append(range(start, self._spool.end))

    def reply(self) -> Reply:
        """The array of all replies.  Raises SpoolError."""
        head = array_header(self._count)
        if self._spool is None and not self._from_view and self._room - self._left <= LONG_BYTES:
            short = cast(list[bytes], self._parts)
            self.release()
            return (self._short_reply(head + b"".join(short), short),)
        if self._spool is not None:
            self._spool.flush()
        reply = LongReply(self._pieces(head), self, is_settled=all(self._lasting))
        if self.has_lasting:
            reply.undo = self._replace_undone
        return reply

    def _short_reply(self, wire: bytes, parts: list[bytes]) -> bytes:
        if all(self._lasting):
            return Settled(wire)
        if not self.has_lasting:
            return wire
        mixture = Mixture(wire)
        mixture.lasting = []
        for number, part in enumerate(parts):
            mixture.lasting += [part] if self._lasting[number] else [None] * self._counts.get(number, 1)
        return mixture

    def undone(self, line: bytes) -> Reply | None:
        """The array when the transaction was undone before its end; None if no reply of it lasts.

        It has the error `line` for each command whose effect was undone, and for those that have not run.
        """
        if not self.has_lasting:
            return None
        with contextlib.suppress(SpoolError):
            if self._spool is not None:
                self._spool.flush()
        self._replace_undone(line)
        in_parts = len(self._parts) + sum(self._counts.values()) - len(self._counts)
        left, in_piece = self._count - in_parts, max(_PIECE_BYTES // len(line), 1)
        self._parts += [line * in_piece] * (left // in_piece) + [line * (left % in_piece)]
        self._lasting = [True] * len(self._parts)
        self._from_view = 0  # the parts are bytes, or in the file
        self._left = self._room - sum(len(part) for part in self._parts if isinstance(part, bytes))
        return self.reply()

    def _replace_undone(self, line: bytes) -> None:
        """Replace by `line` each part that does not last, or cannot be read from the file."""
        written = 0 if self._spool is None else self._spool.written_bytes
        for number, part in enumerate(self._parts):
            if self._lasting[number] and not (isinstance(part, range) and part.stop > written):
                continue
            if isinstance(part, LongReply):
                part.close()
            self._parts[number] = line * self._counts.get(number, 1)
        self._lasting = [True] * len(self._parts)

    def _pieces(self, head: bytes) -> Generator[bytes, None, None]:
        self._parts.reverse()
        parts = self._parts  # the parts that were not sent, the next one last
        small, size = [head], len(head)
        while parts:
            part = parts[-1]
            if isinstance(part, bytes):
                small.append(part)
                size += len(part)
            if not isinstance(part, bytes) or size >= _PIECE_BYTES:
                yield b"".join(small)
                small.clear()
                size = 0
            if isinstance(part, range):
                assert self._spool is not None, "bytes in a file that there is not"
                yield from self._spool.pieces(part)
            elif isinstance(part, LongReply):
                while (piece := part.next_piece()) is not None:
                    yield piece
                part.close()
            parts.pop()
        yield b"".join(small)

    def release(self) -> None:
        """Close the parts, the file and the view: nothing more is sent."""
        if self._from_view:
            for part in self._parts:
                if isinstance(part, LongReply):
                    part.close()
        self._parts = []
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        if self._view is not None:
            self._view.release()
            self._view = None
