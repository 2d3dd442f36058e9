"""Commands that read entries: XRANGE, XREVRANGE, XREAD."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args, parse_entry_id, parse_int
from riverbed.server.commands.showing import Part, Room, ShownRange
from riverbed.server.commands.slices import in_pieces, in_slices
from riverbed.server.commands.streams.entries import NO_ENTRY, ONE_ENTRY, entries_wire
from riverbed.server.commands.streams.options import ReadOptions, parse_range_end, parse_range_start, parse_read
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NULL_ARRAY, Block
from riverbed.store.format.resp import array_head, bulk
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text
from riverbed.store.streams.view import StreamView

if TYPE_CHECKING:
    from collections.abc import Generator

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.streams.reading import ReadableStream

NEW_IN_XREAD: Final = (
    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
)


# Streams whose entries are counted before other clients have their turn.
_STREAMS_A_SLICE: Final = 50
# Streams that are looked up in a turn: 2 to 4 us each.
_STREAMS_A_TURN = 250
# Entries whose sizes are read in a slice.
_SIZED_ENTRIES = 1000
# XREAD and XREADGROUP look for each stream twice in Redis: when they take the words apart, and when they read.
LOOKUPS: Final = 2
# No row of an entry is shorter.
_MIN_ROW_BYTES: Final = 24
# What MAXSIZE charges an entry with besides its row: the heads of an array of one, and of the pair that it is.
_ENTRY_HEADS: Final = len(ONE_ENTRY)


@command(
    "XRANGE key start end [COUNT count]", Flag.READONLY, summary="Reads the entries of a range of IDs, oldest first."
)
def xrange(request: Request) -> Reply:
    """XRANGE key start end [COUNT n] -> [[id [field value ...]] ...]."""
    argv = request.argv
    start, end = parse_range_start(argv[2]), parse_range_end(argv[3])
    return _range(request, start, end, reverse=False)


@command(
    "XREVRANGE key end start [COUNT count]", Flag.READONLY, summary="Reads the entries of a range of IDs, newest first."
)
def xrevrange(request: Request) -> Reply:
    """XREVRANGE key end start [COUNT n] -> [[id [field value ...]] ...]."""
    argv = request.argv
    start, end = parse_range_start(argv[3]), parse_range_end(argv[2])
    return _range(request, start, end, reverse=True)


def _range(request: Request, start: StreamID, end: StreamID, *, reverse: bool) -> Reply:
    count: int | None = None
    argv = request.argv
    if len(argv) == 6 and argv[4] == b"COUNT":
        count = max(parse_int(argv[5]), 0)
    elif len(argv) > 4:
        args = Args(argv, 4)
        while len(args):
            if args.take_option() != b"COUNT" or not len(args):
                raise CommandError(errors.SYNTAX)
            count = max(args.take_int(), 0)
    stream = request.db.readable(argv[1], request.now_ms)
    request.count_lookup(stream is not None)
    if stream is None:
        return []
    if count == 0:
        return NULL_ARRAY
    room = request.room
    if count == 1 and not reverse and (room is None or request.txn.largest_row <= room):
        row = stream.first_entry(start, end)
        return (NO_ENTRY if row is None else ONE_ENTRY + row,)
    rows = stream.entries_within(start, end, count, room, reverse=reverse)
    if rows is None:
        return in_slices(request, partial(_long_range, start, end, count, reverse))
    return (entries_wire(rows),)


def _long_range(start: StreamID, end: StreamID, count: int | None, reverse: bool, request: Request) -> Work:
    """A range that is too long for memory, as of the view."""
    room = Room(request, is_of_read=True)
    view = yield from room.wait_for_view()
    stream = request.db.stream(request.argv[1], request.now_ms)
    if stream is None:
        return []
    shown = StreamView(view, stream)
    found = yield from shown.count(start, end, count)
    return room.reply([array_head(found), ShownRange(shown, start, end, found, reverse)])


@command(
    "XREAD [COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
    Flag.READONLY | Flag.BLOCKING | Flag.MOVABLEKEYS,
    summary="Reads new entries of streams, and waits for them with BLOCK.",
)
def xread(request: Request) -> Reply:
    """XREAD [COUNT n] [BLOCK ms] STREAMS key ... id ... -> what is newer than the IDs, a map of streams in RESP3."""
    options = parse_read(request.argv, request.now_ms, with_group=False)
    if len(options.keys) > _STREAMS_A_TURN:
        return in_slices(request, partial(_read_many, options, LOOKUPS if request.session.blocked is None else 0))
    positions: list[tuple[bytes, ReadableStream | None, StreamID]] = []
    found = 0
    resolved: list[bytes] = []
    for key, word in zip(options.keys, options.ids, strict=True):
        stream = request.db.readable(key, request.now_ms)
        position = _resolve_position(word, stream)
        if stream is not None:
            found += 1
        positions.append((key, stream, position))
        # `$` keeps the meaning it has now, `+` is looked up again
        resolved.append(id_text(position) if word == b"$" else word)
    if request.session.blocked is None:  # one that has waited was counted before
        request.count_lookup(True, LOOKUPS * found)
        if found < len(positions):
            request.count_lookup(False, LOOKUPS * (len(positions) - found))
    budget = ReadBudget(options)
    left = request.room
    served = []
    for key, stream, position in positions:
        if stream is None or not stream.length or stream.last_live_id <= position:
            continue
        rows = stream.entries_within(StreamID(position + 1), MAX_ID, budget.count, left)
        if rows is None:
            return in_slices(request, partial(_long_read, options, resolved))
        if budget.limits_all:
            del rows[budget.cut(key, rows) :]
        if rows:
            wire = entries_wire(rows)
            served.append((key, wire))
            if left is not None:
                left -= len(wire)
        if budget.exhausted:
            break
    if served:
        resp = request.session.resp
        parts = [stream_head(key, resp) + entries for key, entries in served]
        return (streams_head(len(served), resp) + b"".join(parts),)
    return _wait(request, options, resolved, [position for _, _, position in positions])


def _read_many(options: ReadOptions, lookups: int, request: Request) -> Work:
    """`xread` of very many streams: a part of them in each slice, with what is there by then.

    The lookup of each counts as `lookups` of them.
    """
    resolved: list[bytes] = []
    positions: list[StreamID] = []
    topics: list[StreamID | None] = []
    budget = ReadBudget(options)
    left = request.room
    served: list[bytes] = []
    resp = request.session.resp
    yield  # to take so many words apart took time enough
    for number, (key, word) in enumerate(zip(options.keys, options.ids, strict=True), 1):
        if number % _STREAMS_A_TURN == 0:
            yield
        stream = request.db.readable(key, request.now_ms)
        request.count_lookup(stream is not None, lookups)
        position = _resolve_position(word, stream)
        positions.append(position)
        resolved.append(id_text(position) if word == b"$" else word)
        topics.append(None if word == b"+" else position)
        if budget.exhausted or stream is None or not stream.length or stream.last_live_id <= position:
            continue
        rows = stream.entries_within(StreamID(position + 1), MAX_ID, budget.count, left)
        if rows is None:
            for key_number, left_key in enumerate(options.keys[number:], 1):
                request.count_lookup(request.db.readable(left_key, request.now_ms) is not None, lookups)
                if key_number % _STREAMS_A_TURN == 0:
                    yield
            return (yield from _long_read(options, [*resolved, *options.ids[number:]], request))
        if budget.limits_all:
            del rows[budget.cut(key, rows) :]
        if rows:
            wire = stream_head(key, resp) + entries_wire(rows)
            served.append(wire)
            if left is not None:
                left = max(left - len(wire), 0)
    if served:
        return in_pieces(request, [streams_head(len(served), resp), *served])
    if options.block_ms is None or not request.may_block:
        return NULL_ARRAY
    yield  # so does to begin to wait
    return _wait(request, options, resolved, positions, topics, is_fresh=False)


def _wait(
    request: Request,
    options: ReadOptions,
    resolved: list[bytes],
    positions: list[StreamID],
    topics: list[StreamID | None] | None = None,
    *,
    is_fresh: bool = True,
) -> Reply:
    """The reply when nothing is newer than the positions: a Block, or a null array without BLOCK.

    Unless that `is_fresh`, entries may have come since.
    """
    if options.block_ms is None or not request.may_block:
        return NULL_ARRAY
    deadline_ms = request.now_ms + options.block_ms if options.block_ms else None
    # `+` is another position for each client at every try
    if topics is None:
        topics = [None if word == b"+" else position for word, position in zip(resolved, positions, strict=True)]
    argv = request.argv[: options.first_id] + resolved
    db = request.db

    def has_news(start: int, end: int) -> bool:
        for key, position in zip(options.keys[start:end], positions[start:end], strict=True):
            stream = db.readable(key, 0)
            if stream is not None and stream.length and stream.last_live_id > position:
                return True
        return False

    return Block(
        tuple(options.keys),
        deadline_ms,
        argv,
        argv_bytes=request.session.sliced_bytes,
        topics=tuple(topics),
        has_news=None if is_fresh else has_news,
    )


def _long_read(options: ReadOptions, resolved: list[bytes], request: Request) -> Work:
    """What is newer than the positions as of the view, when it is too long for memory.

    Some `$` may not be resolved yet.
    """
    room = Room(request, is_of_read=True)
    view = yield from room.wait_for_view()
    shown: list[tuple[bytes, StreamView | None, StreamID]] = []
    for key, word in zip(options.keys, resolved, strict=True):
        stream = request.db.stream(key, request.now_ms)
        shown.append((key, None if stream is None else StreamView(view, stream), _resolve_position(word, stream)))
    budget = ReadBudget(options)
    resp = request.session.resp
    parts: list[Part] = []
    served = 0
    sized = 0  # entries since the last yield
    for number, (key, entries, position) in enumerate(shown, 1):
        if sized >= _SIZED_ENTRIES or number % _STREAMS_A_SLICE == 0:
            yield
            sized = 0
        if entries is None or entries.last_live_id <= position or budget.exhausted:
            continue
        start = StreamID(position + 1)
        count = yield from _count_within(entries, start, key, budget)
        if budget.measures:
            sized += count
        if count:
            served += 1
            parts += [stream_head(key, resp) + array_head(count), ShownRange(entries, start, MAX_ID, count)]
    if served:
        return room.reply([streams_head(served, resp), *parts])
    positions = [position for _, _, position in shown]
    asked = zip(resolved, positions, strict=True)
    resolved = [id_text(position) if word == b"$" else word for word, position in asked]
    return _wait(request, options, resolved, positions, is_fresh=False)


def _count_within(entries: StreamView, start: StreamID, key: bytes, budget: ReadBudget) -> Generator[None, None, int]:
    """How many entries from `start` on the budget allows; it is charged with them."""
    most = budget.count
    if not budget.measures:
        count = yield from entries.count(start, MAX_ID, most)
        return budget.cut_count(count)
    total = 0
    named: bytes | None = key
    while not budget.exhausted and (most is None or total < most):
        sizes, start = entries.sizes(start, _SIZED_ENTRIES if most is None else min(most - total, _SIZED_ENTRIES))
        kept = budget.cut_sizes(named, sizes)
        total += kept
        if kept < len(sizes) or len(sizes) < _SIZED_ENTRIES:
            break
        named = None
        yield
    return total


def _resolve_position(word: bytes, stream: ReadableStream | None) -> StreamID:
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
    """The head of `[[key entries] ...]`, or in RESP3 of the map of keys to entries."""
    return b"%%%d\r\n" % count if resp == 3 else array_head(count)


def stream_head(key: bytes, resp: int) -> bytes:
    """The bytes before the entries of each stream."""
    return bulk(key) if resp == 3 else b"*2\r\n" + bulk(key)


class ReadBudget:
    """COUNT for each stream, MAXCOUNT and MAXSIZE for all of them together.

    MAXSIZE is checked before each entry except the first of the reply, so one entry is always returned.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._count = options.count
        self._entries_left = options.max_count
        self._bytes_left = options.max_size
        self._is_first = True
        self.limits_all = options.max_count is not None or options.max_size is not None  # not each stream alone
        self.exhausted = False

    @property
    def count(self) -> int | None:
        """How many entries may be read from the next stream."""
        if not self.limits_all:
            return self._count
        fitting = None if self._bytes_left is None else max(self._bytes_left, 0) // _MIN_ROW_BYTES + 1
        limits = [limit for limit in (self._count, self._entries_left, fitting) if limit is not None]
        return min(limits, default=None)

    @property
    def measures(self) -> bool:
        """Whether the limits depend on the sizes of the entries."""
        return self._bytes_left is not None

    def cut(self, key: bytes | None, rows: list[bytes]) -> int:
        """How many of the entries `rows` are still within the limits; the limits are charged with them.

        `key` is the stream's, and is charged as well; None when more of the same stream is read.
        """
        if self._bytes_left is None:
            return self.cut_count(len(rows))
        return self.cut_sizes(key, [len(row) for row in rows])

    def cut_sizes(self, key: bytes | None, sizes: list[int]) -> int:
        """As `cut`, of entries of these sizes."""
        count = len(sizes)
        if self._bytes_left is not None:
            count = self._cut_bytes(key, sizes, self._bytes_left)
        return self.cut_count(count)

    def cut_count(self, count: int) -> int:
        """As `cut_sizes`, where sizes do not matter; `count` is no more than `self.count`."""
        if self._entries_left is not None:
            self._entries_left -= count
            self.exhausted = self.exhausted or self._entries_left <= 0
        return count

    def _cut_bytes(self, key: bytes | None, sizes: list[int], left: int) -> int:
        if key is not None:
            left -= len(key) + 16  # the key and the headers of its entries
        for index, size in enumerate(sizes):
            if left <= 0 and not self._is_first:
                self.exhausted = True
                self._bytes_left = 0
                return index
            self._is_first = False
            left -= size + _ENTRY_HEADS
        self._bytes_left = left
        return len(sizes)
