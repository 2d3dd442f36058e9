"""Pending entries: XACK, XNACK, XPENDING.

XSEEN, which only a log contains, is here as well.  Long commands run in slices; see `server/commands/slices.py`.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args, parse_int, parse_packed_ids
from riverbed.server.commands.groups.groups import group_again, look_up_group, need_group
from riverbed.server.commands.slices import (
    SLICE_IDS,
    bounded_pieces,
    first_ids,
    in_pieces,
    in_slices,
    in_turns,
    parse_in_slices,
    wait_for_view,
)
from riverbed.server.commands.streams.options import parse_range_end, parse_range_start
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import NULL_ARRAY, OK, LongReply
from riverbed.store.format.resp import array_head, bulk, id_bulk
from riverbed.store.format.streams import MAX_COUNT
from riverbed.store.groups.pending_reads import ANY_TIME
from riverbed.store.groups.view import GroupsView, Names
from riverbed.store.ids import StreamID, pack_id, unpack_id
from riverbed.store.wire import packed_id

if TYPE_CHECKING:
    from collections.abc import Generator

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.format.groups import ConsumerRow
    from riverbed.store.groups.group import Group
    from riverbed.store.groups.known_consumers import Consumer
    from riverbed.store.groups.pending_reads import PendingRun
    from riverbed.store.streams.stream import Stream

BAD_MODE: Final = "ERR mode must be SILENT, FAIL, or FATAL"
NUMIDS_NOT_POSITIVE: Final = "ERR numids must be a positive integer"
NUMIDS_MISMATCH: Final = "ERR number of IDs doesn't match numids"
BAD_RETRYCOUNT: Final = "ERR Invalid RETRYCOUNT value, must be >= 0"
IDS_MISSING: Final = "ERR syntax error, expected IDS keyword"

# XPENDING IDLE answers in ID order.  Mostly the next entries are what it asks for; where they are not, it looks for
# idle ones.  When more runs than this may be idle, it goes through the whole list.
_FEW_IDLE = 64
# Consumers in a piece of a summary.
_PIECE_ROWS = 250
# IDs to a slice of XACK: 1.2 us each when they were delivered together, 5 when one by one.
_SLICE_ACKS = 500


# -- XACK, XNACK -------------------------------------------------------------------------------------------------------


@command(
    "XACK key group id [id ...]",
    Flag.WRITE | Flag.FAST,
    summary="Takes entries off a group's pending list: they are done.",
)
def xack(request: Request) -> Reply:
    """XACK key group id [id ...] -> how many were pending.

    With a missing key or group the answer is 0 before the IDs are parsed, as in Redis.
    """
    argv = request.argv
    group = request.db.group_to_ack(argv[1], argv[2], request.now_ms)
    if group is None:
        request.count_lookup(request.db.holds(argv[1], request.now_ms))
        return 0
    request.count_lookup(True)
    if len(argv) > _SLICE_ACKS:
        return in_slices(request, partial(_ack, group.group_no))
    if len(argv) == 4:
        packed = packed_id(argv[3])
        if packed is not None:
            return group.ack_one(packed, argv[3])
    words = argv[3:]
    known = request.txn.recent_deliveries.take(words)
    if known is not None:
        return group.ack(known[0], None, known[1])
    return group.ack(parse_packed_ids(words), words)


def _ack(group_no: int, request: Request) -> Work:
    words = request.argv[3:]
    packed_ids = yield from parse_in_slices(words)
    total = 0
    for at in range(0, len(packed_ids), _SLICE_ACKS):
        if at:
            yield first_ids(at, len(packed_ids))
        found = group_again(request, request.argv[1], request.argv[2], group_no)
        if found is None:
            break
        total += found[1].ack(packed_ids[at : at + _SLICE_ACKS], words[at : at + _SLICE_ACKS])
    return total


@command(
    "XNACK key group <SILENT | FAIL | FATAL> IDS numids id [id ...] [RETRYCOUNT count] [FORCE]",
    Flag.WRITE | Flag.FAST,
    since="8.8.0",
    summary="Gives pending entries back to the group: they belong to no consumer and are claimed first.",
)
def xnack(request: Request) -> Reply:
    """XNACK key group SILENT|FAIL|FATAL IDS numids id ... [RETRYCOUNT n] [FORCE] -> how many were given back."""
    return in_slices(request, _nack, is_short=len(request.argv) <= SLICE_IDS)


def _nack(request: Request) -> Work:
    args = Args(request.argv, 3)
    group_no = need_group(request, request.argv[1], request.argv[2])[1].group_no
    mode = args.take_option()
    if mode not in (b"SILENT", b"FAIL", b"FATAL"):
        raise CommandError(BAD_MODE)
    words: list[bytes] | None = None
    retry_count: int | None = None
    force = False
    while len(args):
        word = args.take()
        option = word.upper()
        if option == b"IDS" and len(args):
            words = args.take_counted(NUMIDS_NOT_POSITIVE, NUMIDS_MISMATCH)
        elif option == b"RETRYCOUNT" and len(args):
            retry_count = args.take_int()
            if retry_count < 0:
                raise CommandError(BAD_RETRYCOUNT)
        elif option == b"FORCE":
            force = True
        else:
            raise CommandError(b"ERR Unrecognized XNACK option '%b'" % word)
    if words is None:
        raise CommandError(IDS_MISSING)
    packed_ids = yield from parse_in_slices(words)
    total = 0
    for at in range(0, len(packed_ids), SLICE_IDS):
        if at:
            yield first_ids(at, len(packed_ids))
        found = group_again(request, request.argv[1], request.argv[2], group_no)
        if found is None:
            break
        counts = _release_counts(*found, packed_ids[at : at + SLICE_IDS], mode, retry_count, force=force)
        found[1].release(counts)
        request.txn.changes += len(counts)
        total += len(counts)
    return total


def _release_counts(
    stream: Stream, group: Group, packed_ids: list[bytes], mode: bytes, retry_count: int | None, *, force: bool
) -> list[tuple[StreamID, int]]:
    """The IDs to give back, with their new delivery counts; an ID given twice is given back twice."""
    counts: list[tuple[StreamID, int]] = []
    new_counts: dict[bytes, int] = {}
    pending = group.find_many(sorted(set(packed_ids)))
    for packed in packed_ids:
        entry_id = unpack_id(packed)
        old = new_counts.get(packed)
        if old is None:
            entry = pending.get(packed)
            if entry is None and not (force and stream.has(entry_id)):
                continue
            old = 0 if entry is None else entry.delivery_count
        if retry_count is not None:
            new = retry_count
        elif mode == b"FATAL":
            new = MAX_COUNT
        else:
            new = max(old - 1, 0) if mode == b"SILENT" else old
        new_counts[packed] = new
        counts.append((entry_id, new))
    return counts


# -- XPENDING ----------------------------------------------------------------------------------------------------------


@command(
    "XPENDING key group [[IDLE min-idle-time] start end count [consumer]]",
    Flag.READONLY,
    summary="Returns the pending entries of a group or of one of its consumers.",
    tips=("nondeterministic_output",),
)
def xpending(request: Request) -> Reply:
    """XPENDING key group -> [total first last [[consumer "count"] ...]]; with a range -> [[id consumer idle n] ...].

    Deleted entries are listed like any other.  Nothing is changed, no consumer is made.
    """
    argv = request.argv
    if len(argv) == 3:
        group = look_up_group(request, argv[1], argv[2])[1]
        if group.summary is None and group.pel_count and group.consumers.are_many:
            return in_slices(request, _summarize_many)
        return _pending_summary(group)
    if not 6 <= len(argv) <= 9:
        raise CommandError(errors.SYNTAX)
    min_idle_ms = 0
    position = 3
    if argv[3].upper() == b"IDLE":
        min_idle_ms = parse_int(argv[4])
        if len(argv) < 8:
            raise CommandError(errors.SYNTAX)
        position = 5
    count = parse_int(argv[position + 2])
    start, end = parse_range_start(argv[position]), parse_range_end(argv[position + 1])
    until_ms = request.now_ms - min_idle_ms if min_idle_ms > 0 else None
    group = look_up_group(request, argv[1], argv[2])[1]
    owner = argv[position + 3] if len(argv) > position + 3 else None
    query = _Query(request.now_ms, start, end, until_ms, owner, max(count, 0))
    if query.step(group):
        return query.reply(request)
    return in_slices(request, partial(query.work, group.group_no))


class _Query:
    """XPENDING with a range: the query, and the answer so far."""

    def __init__(
        self, now_ms: int, start: StreamID, end: StreamID, until_ms: int | None, owner: bytes | None, most: int
    ) -> None:
        self._now_ms = now_ms
        self._start = start
        self._end = end
        self._until_ms = until_ms  # None for any
        self._owner = owner  # None for all
        self._left = most
        self._count = 0
        self._parts: list[bytes] = []

    def work(self, group_no: int, request: Request) -> Work:
        argv = request.argv
        while (found := group_again(request, argv[1], argv[2], group_no)) is not None and not self.step(found[1]):
            yield
        return self.reply(request)

    def reply(self, request: Request) -> Reply:
        return in_pieces(request, [array_head(self._count), *self._parts])

    def step(self, group: Group) -> bool:
        """Examine the next few thousand entries; -> whether these were all."""
        consumer = None
        if self._owner is not None:
            consumer = group.consumers.named(self._owner)
            if consumer is None:
                return True
        if self._until_ms is not None:
            if self._show(group, consumer, self._until_ms, only_while_found=True):
                return True
            idle = group.idle_runs(self._until_ms, _FEW_IDLE)
            if idle is not None:
                self._sort_out(idle, consumer)
                return True
        return self._show(group, consumer, ANY_TIME if self._until_ms is None else self._until_ms)

    def _show(self, group: Group, consumer: Consumer | None, until_ms: int, *, only_while_found: bool = False) -> bool:
        """Show entries from where we are on; -> whether these were all."""
        shown = group.show(consumer, self._start, self._end, self._now_ms, until_ms, self._left, only_while_found)
        self._parts += shown.parts
        self._count += shown.entries
        self._left -= shown.entries
        if shown.position is None or not self._left:
            return True
        self._start = shown.position
        return False

    def _sort_out(self, idle: list[PendingRun], consumer: Consumer | None) -> None:
        """Show the entries asked for, of a few idle runs, in ID order."""
        first, last = pack_id(self._start), pack_id(self._end)
        owners: dict[bytes, bytes] = {}
        asked = [
            (packed, run)
            for run in idle
            if consumer is None or run.owner is consumer
            for packed in run.packed_ids
            if first <= packed <= last
        ]
        for packed, run in sorted(asked, key=itemgetter(0))[: self._left]:
            name = b"" if run.owner is None else run.owner.name
            owner = owners.get(name)
            if owner is None:  # a long name is not copied for each entry
                owner = owners[name] = bulk(name)
            idle_ms = -1 if run.owner is None else max(self._now_ms - run.delivery_time_ms, 0)
            tail = b":%d\r\n:%d\r\n" % (idle_ms, run.delivery_count)
            self._parts += [b"*4\r\n" + id_bulk(unpack_id(packed)), owner, tail]
            self._count += 1
            self._left -= 1


def _pending_summary(group: Group) -> Reply:
    if group.summary is None:
        edges = group.edges()
        if edges is None:
            return [0, None, None, NULL_ARRAY]
        consumers = [_pending_of(consumer) for consumer in group.consumers.in_order() if consumer.pel_count]
        group.summary = b"".join([_summary_head(group.pel_count, edges, len(consumers)), *consumers])
    return (group.summary,)


def _summarize_many(request: Request) -> Work:
    """The summary of a group with very many consumers, as of a view."""
    view = yield from wait_for_view()
    stream, group = need_group(request, request.argv[1], request.argv[2])
    if not group.pel_count:
        return _pending_summary(group)
    return LongReply(_summary_pieces(GroupsView(view, stream), group.group_no), view.hold())


def _summary_pieces(shown: GroupsView, group_no: int) -> Generator[bytes, None, None]:
    owners = yield from in_turns(shown.consumers(group_no, only_owners=True))
    yield _summary_head(shown.group(group_no).pel_count, shown.edges(group_no, owners.owners), owners.count)
    yield from bounded_pieces(_pending_of_each(shown, group_no, owners), _PIECE_ROWS)


def _pending_of_each(shown: GroupsView, group_no: int, owners: Names) -> Generator[bytes, None, None]:
    # compiled, a generator expression would read the rows of all of them at once
    for _, number in owners.taken():
        yield _pending_of(shown.consumer(group_no, number))


def _summary_head(count: int, edges: tuple[StreamID, StreamID], owners: int) -> bytes:
    return b"*4\r\n:%d\r\n%b%b%b" % (count, id_bulk(edges[0]), id_bulk(edges[1]), array_head(owners))


def _pending_of(consumer: Consumer | ConsumerRow) -> bytes:
    return b"*2\r\n%b%b" % (bulk(consumer.name), bulk(b"%d" % consumer.pel_count))


# -- the log's own -----------------------------------------------------------------------------------------------------


@command(
    "XSEEN key group consumer seen-time active-time",
    Flag.WRITE | Flag.FAST | Flag.LOG_ONLY,
    since="7.2.0",
    summary="Says when a consumer was last seen and last active; only a log does.",
)
def xseen(request: Request) -> Reply:
    """XSEEN key group consumer seen active, in milliseconds.  Read from a log, never from a client."""
    args = Args(request.argv)
    _, group = need_group(request, args.take(), args.take())
    name, seen_ms, active_ms = args.take(), args.take_int(), args.take_int()
    group.set_times(group.get_or_create(name, seen_ms), seen_ms, active_ms)
    return OK
