"""XREADGROUP: reads new entries, a consumer's own history, and with CLAIM entries left too long by others.

`stream_read.py` reads one of its streams, in slices.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.arguments import parse_entry_id
from riverbed.server.commands.groups import stream_read
from riverbed.server.commands.groups.groups import find_group, group_again, need_group, no_such_group
from riverbed.server.commands.groups.stream_read import Step, StreamRead
from riverbed.server.commands.showing import Room
from riverbed.server.commands.slices import in_slices
from riverbed.server.commands.streams.entries import PAIR, entries_part
from riverbed.server.commands.streams.options import ReadOptions, parse_read
from riverbed.server.commands.streams.reads import LOOKUPS, ReadBudget, stream_head, streams_head
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NULL_ARRAY, Block
from riverbed.store.format.resp import array_head
from riverbed.store.ids import MAX_ID, StreamID

if TYPE_CHECKING:
    from collections.abc import Hashable

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.databases.database import Database
    from riverbed.store.groups.group import Group
    from riverbed.store.model import Row
    from riverbed.store.streams.stream import Stream

MEANINGLESS: Final = (
    "ERR The {0} ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by "
    "specifying a proper ID, or use the > ID to get new messages. The {0} ID would just return an empty result set."
)
_WHERE: Final = b" in XREADGROUP with GROUP option"
# Streams to a slice: 5 us each.
_SLICE_KEYS = 100
# Entries that are read before the reply is measured: a slice's worth of those that LMDB keeps within its pages.
_UNMEASURED_BYTES: Final = 5 << 20


@command(
    "XREADGROUP GROUP group consumer [COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] "
    "[CLAIM min-idle-time] [NOACK] STREAMS key [key ...] id [id ...]",
    Flag.WRITE | Flag.BLOCKING | Flag.MOVABLEKEYS,
    summary="Reads for a consumer of a group: new entries, its own pending entries, or those that others left idle.",
)
def xreadgroup(request: Request) -> Reply:
    """XREADGROUP GROUP group consumer [options] STREAMS key ... id ... -> entries by stream; see `xread`.

    `>` reads entries that the group has not been given, and blocks for them with BLOCK; any other ID reads the
    consumer's own pending entries after it.  If one pair of key and ID is bad, nothing is changed.
    """
    options = parse_read(request.argv, request.now_ms, with_group=True)
    assert options.group is not None
    count = options.count
    most = None if count is None else count * len(options.keys)
    is_short = most is not None and most <= stream_read.SLICE_ENTRIES
    if is_short and count is not None and options.is_plain:
        if count == 1 and not options.noack:
            reply = _read_one(request, options, options.group)
        else:
            reply = _read_plainly(request, options, options.group, count)
        if reply is not None:
            if request.session.blocked is None:  # one that has waited was counted before
                request.count_lookup(True, LOOKUPS)
            return reply
    lookups = LOOKUPS if request.session.blocked is None else 0
    return in_slices(request, partial(_read, options, options.group, lookups), is_short=is_short, entries=most)


def _look_for(request: Request, key: bytes, name: bytes, before: int = 0) -> tuple[Stream, Group]:
    """As `need_group`; in Redis an error counts one lookup of this key, and of each of those `before` it."""
    found = find_group(request, key, name)
    if found is None:
        request.count_lookup(True, before)
        request.lookup(key)
        raise no_such_group(key, name, _WHERE)
    return found


def _read_plainly(request: Request, options: ReadOptions, group_name: bytes, count: int) -> Reply:
    """New entries of one stream, for which `_read` takes a third longer; None when there are none, or many bytes."""
    key = options.keys[0]
    stream, group = _look_for(request, key, group_name)
    if stream.last_live_id <= group.last_id:
        return None
    start = StreamID(group.last_id + 1)
    rows: list[Row] | None
    room = request.room
    if room is None or count * request.txn.largest_row <= _UNMEASURED_BYTES:
        rows = stream.rows(start, MAX_ID, count)
    else:
        rows = stream.rows_within(start, MAX_ID, count, room)
        if rows is None:
            return None
    resp = request.session.resp
    head = streams_head(1, resp) + stream_head(key, resp) + array_head(len(rows))
    wire = entries_part([row for _, row in rows], head)
    if room is not None and len(wire) > room:
        return None
    consumer = group.get_or_create(options.consumer, request.now_ms)
    group.deliver(consumer, rows, request.now_ms, to_pel=not options.noack)
    request.txn.changes += 1
    return (wire,)


def _read_one(request: Request, options: ReadOptions, group_name: bytes) -> Reply:
    """`_read_plainly` of one entry, in half its time: the most frequent read of all."""
    key = options.keys[0]
    stream, group = _look_for(request, key, group_name)
    if stream.last_live_id <= group.last_id:
        return None
    room = request.room
    if room is not None and request.txn.largest_row > _UNMEASURED_BYTES:
        return _read_plainly(request, options, group_name, 1)
    resp = request.session.resp
    head = options.heads.get(resp)
    if head is None:
        head = options.heads[resp] = streams_head(1, resp) + stream_head(key, resp) + array_head(1) + PAIR
    row_key, row = stream.first_row(StreamID(group.last_id + 1))
    wire = head + row
    if room is not None and len(wire) > room:
        return None
    consumer = group.get_or_create(options.consumer, request.now_ms)
    group.deliver_one(consumer, row_key, row, request.now_ms, in_transaction=request.in_transaction)
    request.txn.changes += 1
    return (wire,)


def _read(options: ReadOptions, group_name: bytes, lookups: int, request: Request) -> Work:
    """Read in slices; the lookup of each stream counts as `lookups` of them."""
    room = Room(request)
    budget = ReadBudget(options)
    claim_min_idle_ms = options.claim_min_idle_ms
    is_fresh = True  # no yield has come since the lookups
    work: list[tuple[StreamRead, Stream, Group]] = []
    for number, (key, word) in enumerate(zip(options.keys, options.ids, strict=True), 1):
        stream, group = _look_for(request, key, group_name, number - 1)
        position = _parse_position(word)
        if position != MAX_ID:
            claim_min_idle_ms = None  # for the streams after it as well, as in Redis
        read = StreamRead(key, group.group_no, position, claim_min_idle_ms, options, budget, room)
        work.append((read, stream, group))
        if number % _SLICE_KEYS == 0:
            yield
            is_fresh = False
    request.count_lookup(True, lookups * len(work))
    served: list[StreamRead] = []
    given = 0
    spent = 0.0  # since the last yield; 1 is a slice's worth
    for number, (read, stream, group) in enumerate(work, 1):
        found: tuple[Stream, Group] | None = (stream, group)
        if not is_fresh:
            found = group_again(request, read.key, group_name, read.group_no)
        while found is not None:
            step = read.step(request, *found)
            spent += read.spent
            if step is Step.LAST:
                break
            if step is Step.NEEDS_VIEW:
                yield from room.wait_for_view()
            else:
                yield _delivered(given + read.count)
            spent = 0.0
            is_fresh = False
            found = group_again(request, read.key, group_name, read.group_no)
        given += read.count
        if read.is_served:
            served.append(read)
        if spent >= 1 or number % _SLICE_KEYS == 0:
            yield _delivered(given)
            spent = 0.0
            is_fresh = False
    if served:
        resp = request.session.resp
        return room.reply([streams_head(len(served), resp), *chain(*[read.parts(resp) for read in served])])
    if options.block_ms is None or not request.may_block:
        return NULL_ARRAY
    return (yield from _wait(request, options, group_name, [read for read, _, _ in work], is_fresh=is_fresh))


def _wait(
    request: Request, options: ReadOptions, group_name: bytes, reads: list[StreamRead], *, is_fresh: bool
) -> Work:
    """The Block of a read that has found nothing; `is_fresh` if that is still so."""
    is_many = len(reads) > _SLICE_KEYS  # it joins their lines in slices, and looks for new entries then
    retry_ms: int | None = None
    topics: list[Hashable] = []
    for number, read in enumerate(reads, 1):
        stream, group = need_group(request, read.key, group_name, _WHERE)
        if not is_fresh and not is_many and stream.last_live_id > group.last_id:
            # new entries came between slices, and have woken no client
            return (yield from _read(options, group_name, 0, request))
        topics.append((group_name, read.min_idle_ms))
        if read.claim_ms is not None:
            # what was released between slices has woken no client either
            claim_ms = read.claim_ms if read.release_no == group.next_release_no else request.now_ms + 1
            retry_ms = claim_ms if retry_ms is None else min(retry_ms, claim_ms)
        if is_many and number % _SLICE_KEYS == 0:
            yield _delivered(0)
    deadline_ms = request.now_ms + options.block_ms if options.block_ms else None
    release_nos = [None if read.claim_ms is None else read.release_no for read in reads] if is_many else []
    has_news = partial(_has_news, request.db, options.keys, group_name, release_nos) if is_many else None
    return Block(
        tuple(options.keys),
        deadline_ms,
        request.argv,
        retry_ms,
        tuple(topics),
        needs_keys=True,
        argv_bytes=request.session.sliced_bytes,
        has_news=has_news,
    )


def _has_news(
    db: Database, keys: list[bytes], group_name: bytes, release_nos: list[int | None], start: int, end: int
) -> bool:
    """Whether one of these streams has an entry for the group, or one of them or its group is gone.

    `release_nos` are those up to which a CLAIM of each stream has looked, None for a read without it.
    """
    for key, release_no in zip(keys[start:end], release_nos[start:end], strict=True):
        stream = db.stream(key, 0)
        group = None if stream is None else db.groups(stream).get(group_name)
        if stream is None or group is None or stream.last_live_id > group.last_id:
            return True
        if release_no is not None and release_no != group.next_release_no:
            return True
    return False


def _delivered(count: int) -> str:
    return f"{count} entries delivered to the consumer"


def _parse_position(word: bytes) -> StreamID:
    """The ID after which to read; `>` is the largest ID there is."""
    if word == b">":
        return MAX_ID
    if word in (b"$", b"+"):
        raise CommandError(MEANINGLESS.format(word.decode()))
    return parse_entry_id(word)
