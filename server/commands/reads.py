"""Commands that read entries: XRANGE, XREVRANGE, XREAD."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from server import errors
from server.args import Args, parse_entry_id
from server.commands.entries import PIECE_ENTRIES, entries_wire, long_array, long_range
from server.commands.streamargs import (
    ReadOptions,
    parse_range_end,
    parse_range_start,
    parse_read,
)
from server.commands.table import FIRST_KEY, Flag, command
from server.errors import CommandError
from server.replies import NULL_ARRAY, LongReply, Park
from store.format import array_head, bulk
from store.ids import MAX_ID, MIN_ID, StreamID, id_text, pack_id
from store.view import View

if TYPE_CHECKING:
    from collections.abc import Generator

    from server.replies import Reply
    from server.session import Request
    from store.streams import Stream

NEW_IN_XREAD: Final = (
    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
)


# Longer replies are sent in pieces, from a snapshot, so that neither memory nor other clients feel them.
MOST_ENTRIES_AT_ONCE: Final = 20_000
_UNLIMITED: Final = 1 << 62
# Streams looked at before others have their turn.
_STREAMS_A_PIECE: Final = 50


@command(
    b"XRANGE",
    arity=-4,
    flags=Flag.READONLY,
    keys=FIRST_KEY,
    categories=("read", "stream", "slow"),
    group="stream",
    since="5.0.0",
    summary="Reads the entries of a range of IDs, oldest first.",
    syntax="key start end [COUNT count]",
)
def xrange(request: Request) -> Reply:
    """XRANGE key start end [COUNT n] -> [[id [field value ...]] ...]."""
    argv = request.argv
    start, end = parse_range_start(argv[2]), parse_range_end(argv[3])
    return _range(request, start, end, reverse=False)


@command(
    b"XREVRANGE",
    arity=-4,
    flags=Flag.READONLY,
    keys=FIRST_KEY,
    categories=("read", "stream", "slow"),
    group="stream",
    since="5.0.0",
    summary="Reads the entries of a range of IDs, newest first.",
    syntax="key end start [COUNT count]",
)
def xrevrange(request: Request) -> Reply:
    """XREVRANGE key end start [COUNT n] -> [[id [field value ...]] ...]."""
    argv = request.argv
    start, end = parse_range_start(argv[3]), parse_range_end(argv[2])
    return _range(request, start, end, reverse=True)


def _range(request: Request, start: StreamID, end: StreamID, *, reverse: bool) -> Reply:
    count: int | None = None
    if len(request.argv) > 4:
        args = Args(request.argv, 4)
        while len(args):
            if args.take_option() != b"COUNT" or not len(args):
                raise CommandError(errors.SYNTAX)
            count = max(args.take_int(), 0)
    stream = request.db.stream(request.argv[1], request.now_ms)
    if stream is None:
        return []
    if count == 0:
        return NULL_ARRAY
    if request.may_block and (count is None or count > MOST_ENTRIES_AT_ONCE) and stream.length > MOST_ENTRIES_AT_ONCE:
        found = stream.count_range(start, end)
        wanted = found if count is None else min(count, found)
        if wanted > MOST_ENTRIES_AT_ONCE:
            request.context.control.checkpoint()  # so that a snapshot shows what this client may see
            return LongReply(long_range(stream.snapshot_rows(start, end, reverse=reverse), wanted))
    return (entries_wire(stream.rows(start, end, count, reverse=reverse)),)


def read_keys(argv: list[bytes]) -> list[bytes]:
    """The keys of an XREAD or XREADGROUP: the first half of what follows STREAMS."""
    for position, word in enumerate(argv):
        if word.upper() == b"STREAMS":
            words = argv[position + 1 :]
            return words[: len(words) // 2]
    return []


@command(
    b"XREAD",
    arity=-4,
    flags=Flag.READONLY | Flag.BLOCKING | Flag.MOVABLEKEYS,
    categories=("read", "stream", "slow", "blocking"),
    group="stream",
    since="5.0.0",
    summary="Reads what is new in streams, and waits for it if asked to.",
    syntax="[COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
    find_keys=read_keys,
)
def xread(request: Request) -> Reply:
    """XREAD [COUNT n] [BLOCK ms] STREAMS key ... id ... -> what is newer than the IDs, a map of streams in RESP3."""
    options = parse_read(request.argv, request.now_ms, with_group=False)
    positions: list[tuple[bytes, Stream | None, StreamID]] = []
    resolved: list[bytes] = []
    for key, word in zip(options.keys, options.ids, strict=True):
        stream = request.db.stream(key, request.now_ms)
        position = _resolve_position(word, stream)
        positions.append((key, stream, position))
        # `$` keeps the meaning it has now, `+` is looked up again
        resolved.append(id_text(position) if word == b"$" else word)
    budget = ReadBudget(options)
    left = MOST_ENTRIES_AT_ONCE if request.may_block else _UNLIMITED
    served = []
    for key, stream, position in positions:
        if stream is None or not stream.length or stream.last_live_id <= position:
            continue
        most = left + 1 if budget.count is None else min(budget.count, left + 1)
        rows = budget.cut(key, stream.rows(StreamID(position + 1), MAX_ID, most))
        left -= len(rows)
        if left < 0:
            return _long_read(request, options, positions)
        if rows:
            served.append((key, entries_wire(rows)))
        if budget.exhausted:
            break
    if served:
        resp = request.session.resp
        parts = [stream_head(key, resp) + entries for key, entries in served]
        return (streams_head(len(served), resp) + b"".join(parts),)
    if options.block_ms is None or not request.may_block:
        return NULL_ARRAY
    deadline_ms = request.now_ms + options.block_ms if options.block_ms else None
    # `+` is another position for everybody at every look
    topics = [None if word == b"+" else position for word, (_, _, position) in zip(resolved, positions, strict=True)]
    argv = request.argv[: options.first_id] + resolved
    return Park(tuple(options.keys), deadline_ms, argv, topics=tuple(topics))


def _long_read(
    request: Request, options: ReadOptions, positions: list[tuple[bytes, Stream | None, StreamID]]
) -> LongReply:
    """What is newer than the positions, in pieces, as it is now."""
    request.context.control.checkpoint()  # so that a view shows what this client may see
    wanted = [
        (key, stream.prefix + pack_id(max(StreamID(position + 1), stream.floor_id)), stream.prefix + pack_id(MAX_ID))
        for key, stream, position in positions
        if stream is not None and stream.last_live_id > position
    ]
    return LongReply(_read_pieces(View(request.txn.tables), wanted, ReadBudget(options), request.session.resp))


def _read_pieces(
    view: View, wanted: list[tuple[bytes, bytes, bytes]], budget: ReadBudget, resp: int
) -> Generator[bytes, None, None]:
    """The reply to an XREAD of (key, first row, last row).  Reads everything twice: its size comes first."""
    try:
        found = []
        for number, (key, low, high) in enumerate(wanted):
            if not number % _STREAMS_A_PIECE:
                yield b""
            if budget.exhausted:
                break
            most = _UNLIMITED if budget.count is None else budget.count
            rows = view.rows("entries", low, high)
            count = 0
            while count < most:
                size = min(PIECE_ENTRIES, most - count)
                piece = list(islice(rows, size))
                kept = len(budget.cut(None if count else key, piece))
                count += kept
                if kept < size:
                    break
                yield b""
            if count:
                found.append((key, low, high, count))
        yield streams_head(len(found), resp)
        for key, low, high, count in found:
            yield stream_head(key, resp)
            yield from long_array(view.rows("entries", low, high), count)
    finally:
        view.close()


def _resolve_position(word: bytes, stream: Stream | None) -> StreamID:
    """The ID after which to read."""
    if word == b"$":
        return MIN_ID if stream is None else stream.last_id
    if word == b"+":
        if stream is None or not stream.length:
            return MIN_ID
        return StreamID(stream.last_live_id - 1) if stream.last_live_id else MIN_ID
    if word == b">":
        raise CommandError(NEW_IN_XREAD)
    return parse_entry_id(word)


def streams_head(count: int, resp: int) -> bytes:
    """What `[[key entries] ...]`, or in RESP3 the map of keys to entries, begins with."""
    return b"%%%d\r\n" % count if resp == 3 else array_head(count)


def stream_head(key: bytes, resp: int) -> bytes:
    """What stands before the entries of each stream."""
    return bulk(key) if resp == 3 else b"*2\r\n" + bulk(key)


class ReadBudget:
    """COUNT for each stream, MAXCOUNT and MAXSIZE for all of them together.

    MAXSIZE is asked before each entry but never before the first of the reply, so one entry is always returned.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._count = options.count
        self._entries_left = options.max_count
        self._bytes_left = options.max_size
        self._is_first = True
        self.exhausted = False

    @property
    def count(self) -> int | None:
        """How many entries may be read from the next stream."""
        if self._entries_left is None:
            return self._count
        return self._entries_left if self._count is None else min(self._count, self._entries_left)

    def cut(self, key: bytes | None, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The front of `rows` that is still within the limits; they are charged with it.

        `key` is the stream's, and charged as well; None when more is read of the same stream.
        """
        if self._bytes_left is not None:
            rows = self._cut_bytes(key, rows, self._bytes_left)
        if self._entries_left is not None:
            self._entries_left -= len(rows)
            self.exhausted = self.exhausted or self._entries_left <= 0
        return rows

    def _cut_bytes(self, key: bytes | None, rows: list[tuple[bytes, bytes]], left: int) -> list[tuple[bytes, bytes]]:
        if key is not None:
            left -= len(key) + 16  # the key and the headers of its entries
        for index, row in enumerate(rows):
            if left <= 0 and not self._is_first:
                self.exhausted = True
                self._bytes_left = 0
                return rows[:index]
            self._is_first = False
            left -= len(entries_wire([row]))
        self._bytes_left = left
        return rows
