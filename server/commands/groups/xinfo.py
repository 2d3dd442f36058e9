"""XINFO: describes streams, groups and consumers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.groups.groups import no_group_of_key
from riverbed.server.commands.groups.xinfo_maps import (
    consumer_map,
    full_consumer_map,
    full_group_map,
    group_map,
    stream_map,
)
from riverbed.server.commands.slices import bounded_pieces, in_pieces, in_slices, in_turns, wait_for_view
from riverbed.server.commands.streams.entries import PAIR, entries_wire, entry_wire
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import NO_SUCH_KEY, CommandError
from riverbed.server.protocol.encode import encode
from riverbed.server.protocol.replies import LONG_BYTES, LongReply
from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import UNOWNED
from riverbed.store.format.resp import array_head, bulk, id_bulk
from riverbed.store.groups.lag import lag
from riverbed.store.groups.view import GroupsView, Names
from riverbed.store.ids import MAX_ID, MIN_ID, unpack_id
from riverbed.store.streams.view import PIECE_BYTES, StreamView

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.format.groups import GroupRow
    from riverbed.store.format.pending import Run
    from riverbed.store.groups.group import Group
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.view import View

_DEFAULT_COUNT: Final = 10
_UNLIMITED: Final = (1 << 63) - 1
# Pending entries, and groups or consumers, in a reply that is made at once.
_MANY_PENDING: Final = 20_000
_MANY_ROWS: Final = 500
# Groups that are in memory already, which take a fifth of the time: 4 ms.
_MANY_IN_MEMORY: Final = 4000
# Parts in a piece of a longer reply: 3 ms.
_PIECE_ROWS: Final = 250
# An entry in a list of pending ones, besides its owner.
_ENTRY_BYTES: Final = 100
# What follows in the short answer of XINFO STREAM.
_ENDS: Final = bulk(b"groups") + b":%d\r\n" + bulk(b"first-entry")
_LAST_ENTRY: Final = bulk(b"last-entry")


container("XINFO", group="stream", since="5.0.0", summary="Container of the commands that look at streams.")


# -- XINFO STREAM ------------------------------------------------------------------------------------------------------


@command("XINFO STREAM key [FULL [COUNT count]]", Flag.READONLY, summary="Describes a stream.")
def xinfo_stream(request: Request) -> Reply:
    """XINFO STREAM key [FULL [COUNT n]] -> a map.  FULL has the first n entries, and what groups have pending."""
    stream = _look_up(request)
    words, resp = request.argv[3:], request.session.resp
    if not words:
        return _describe_shortly(request, stream)
    is_counted = len(words) == 3 and words[1].upper() == b"COUNT"
    if words[0].upper() != b"FULL" or not (len(words) == 1 or is_counted):
        raise errors.subcommand_syntax(request.argv)
    most = parse_int(words[2]) if is_counted else _DEFAULT_COUNT
    if most < 0:
        most = _DEFAULT_COUNT
    most = most or _UNLIMITED  # 0 asks for all
    entries = None
    if not _is_long(request, stream, most):
        entries = stream.entries_within(MIN_ID, MAX_ID, most, request.room)
    if entries is None:
        return in_slices(request, partial(_describe_fully, most))
    groups = list(request.db.groups(stream))
    parts = [stream_map(stream, resp, more=2), bulk(b"entries"), entries_wire(entries)]
    parts += [bulk(b"groups"), array_head(len(groups))]
    for group in groups:
        parts += _group_fully(group, most, resp)
    return in_pieces(request, parts)


def _describe_shortly(request: Request, stream: Stream) -> Reply:
    first = stream.entries_within(MIN_ID, MAX_ID, 1, request.room)
    last = None if first is None else stream.entries_within(MIN_ID, MAX_ID, 1, request.room, reverse=True)
    if first is None or last is None:
        return in_slices(request, _describe_long_ends)
    ends = [entry_wire(row) for row in first + last] or [encode(None, request.session.resp)] * 2
    return (_head_of_ends(stream, request.session.resp) + _LAST_ENTRY.join(ends),)


def _describe_long_ends(request: Request) -> Work:
    """The short answer, with entries too long for one turn: everything as of the view."""
    view = yield from wait_for_view()
    stream, resp = request.existing_stream(request.argv[2]), request.session.resp
    return LongReply(_ends_in_pieces(_head_of_ends(stream, resp), StreamView(view, stream), resp), view.hold())


def _head_of_ends(stream: Stream, resp: int) -> bytes:
    """The short answer up to its first entry."""
    return stream_map(stream, resp, more=3) + _ENDS % stream.group_count


def _ends_in_pieces(head: bytes, entries: StreamView, resp: int) -> Generator[bytes, None, None]:
    for before, reverse in ((head, False), (_LAST_ENTRY, True)):
        yield before
        if entries.length:
            yield from entries.pieces(MIN_ID, MAX_ID, 1, PAIR, reverse=reverse)
        else:  # they were deleted before the view was made
            yield encode(None, resp)


def _look_up(request: Request) -> Stream:
    """The stream, counted as a hit or a miss.  Raises CommandError when there is none."""
    stream = request.lookup(request.argv[2])
    if stream is None:
        raise CommandError(NO_SUCH_KEY)
    return stream


def _is_long(request: Request, stream: Stream, most: int) -> bool:
    """Whether more groups, consumers or pending entries are to be shown than one turn has time for."""
    if stream.group_count > _MANY_ROWS:
        return True
    groups = list(request.db.groups(stream))
    if sum(group.consumer_count for group in groups) > _MANY_ROWS:
        return True
    # each pending entry is shown twice
    if 2 * sum(min(group.pel_count, most) for group in groups) > _MANY_PENDING:
        return True
    return sum(map(partial(_name_bytes, most), groups)) > LONG_BYTES


def _name_bytes(most: int, group: Group) -> int:
    """At most what names take in the description of a group with few consumers: an entry has that of its owner."""
    if group.consumers.are_many:
        return LONG_BYTES + 1
    return (group.consumer_count + min(group.pel_count, most)) * group.consumers.longest + len(group.name)


def _describe_fully(most: int, request: Request) -> Work:
    """XINFO STREAM FULL, too long for memory: everything as of the view."""
    view = yield from wait_for_view()
    stream, resp = request.existing_stream(request.argv[2]), request.session.resp
    shown = _ShownGroups(view, stream, resp)
    return LongReply(shown.stream_fully(stream_map(stream, resp, more=2), StreamView(view, stream), most), view.hold())


class _ShownGroups:
    """What XINFO shows of a stream with many groups or consumers, in pieces, as of a view that was made just now.

    A piece without bytes ends a turn.
    """

    def __init__(self, view: View, stream: Stream, resp: int) -> None:
        self._groups = GroupsView(view, stream)
        self._counters = stream.row()
        self._resp = resp

    def groups(self) -> Generator[bytes, None, None]:
        """XINFO GROUPS."""
        names = yield from in_turns(self._groups.groups())
        rows = (self._groups.group(group_no) for _, group_no in names.taken())
        yield array_head(names.count)
        yield from bounded_pieces((group_map(row, self._lag(row), self._resp) for row in rows), _PIECE_ROWS)

    def consumers(self, group_no: int, now_ms: int) -> Generator[bytes, None, None]:
        """XINFO CONSUMERS."""
        names = yield from in_turns(self._groups.consumers(group_no))
        yield array_head(names.count)
        rows = (self._groups.consumer(group_no, consumer_no) for _, consumer_no in names.taken())
        yield from bounded_pieces((consumer_map(row, now_ms, self._resp) for row in rows), _PIECE_ROWS)

    def _lag(self, row: GroupRow) -> int | None:
        return lag(self._counters, row.last_id, row.entries_read)

    def stream_fully(self, head: bytes, entries: StreamView, most: int) -> Generator[bytes, None, None]:
        """XINFO STREAM FULL, with up to `most` entries, and pending entries of each group and of each consumer."""
        groups = yield from in_turns(self._groups.groups())
        count = min(entries.length, most)
        yield head + bulk(b"entries") + array_head(count)
        yield from entries.pieces(MIN_ID, MAX_ID, count, PAIR)
        yield bulk(b"groups") + array_head(groups.count)
        yield from bounded_pieces(self._groups_fully(groups, most), _PIECE_ROWS)

    def _groups_fully(self, groups: Names, most: int) -> Iterator[bytes]:
        """Each group in parts, of which few take long."""
        for _, group_no in groups.taken():
            consumers = yield from in_turns(self._groups.consumers(group_no))
            row = self._groups.group(group_no)
            yield full_group_map(row, self._lag(row), self._resp)
            runs = self._groups.pending_runs(group_no, None, consumers.owners)
            yield from _pending(runs, min(row.pel_count, most), partial(self._owner, group_no))
            yield bulk(b"consumers") + array_head(consumers.count)
            for _, consumer_no in consumers.taken():
                consumer = self._groups.consumer(group_no, consumer_no)
                yield full_consumer_map(consumer, self._resp)
                runs = self._groups.pending_runs(group_no, consumer_no, consumers.owners)
                yield from _pending(runs, min(consumer.pel_count, most))

    def _owner(self, group_no: int, consumer_no: int) -> bytes:
        return self._groups.consumer(group_no, consumer_no).name


def _group_fully(group: Group, most: int, resp: int) -> Iterator[bytes]:
    """A group in XINFO STREAM FULL, in parts; times are unix milliseconds."""
    yield full_group_map(group, group.lag(), resp)
    consumers = group.consumers.in_order()
    yield from _pending(group.runs(), min(group.pel_count, most), lambda number: group.consumers.numbered(number).name)
    yield bulk(b"consumers") + array_head(len(consumers))
    for consumer in consumers:
        yield full_consumer_map(consumer, resp)
        yield from _pending(group.runs(consumer), min(consumer.pel_count, most))


def _pending(runs: Iterator[Run], count: int, owner: Callable[[int], bytes] | None = None) -> Iterator[bytes]:
    """The array of the first `count` pending entries, with the names of their owners if these are known by number.

    Raises DamagedRowError when there are fewer.
    """
    yield bulk(b"pending") + array_head(count)
    if not count:
        return
    head = array_head(3 if owner is None else 4)
    for run in runs:
        is_released = run.consumer_no == UNOWNED
        tail = b":%d\r\n:%d\r\n" % (0 if is_released else run.time_ms, run.delivery_count)
        if owner is not None:
            tail = bulk(b"" if is_released else owner(run.consumer_no)) + tail
        packed_ids = run.ids(count)
        most = 1 + PIECE_BYTES // (_ENTRY_BYTES + len(tail))  # entries with long names are not for one piece
        for at in range(0, len(packed_ids), most):
            yield b"".join([head + id_bulk(unpack_id(packed)) + tail for packed in packed_ids[at : at + most]])
        count -= len(packed_ids)
        if not count:
            return
    raise DamagedRowError("the list of pending entries")


# -- XINFO GROUPS, CONSUMERS, HELP -------------------------------------------------------------------------------------


@command("XINFO GROUPS key", Flag.READONLY, summary="Lists the consumer groups of a stream.")
def xinfo_groups(request: Request) -> Reply:
    """XINFO GROUPS key -> a map for each group, in byte order of their names."""
    stream = _look_up(request)
    known = request.db.groups(stream)
    if len(known) > (_MANY_IN_MEMORY if known.are_in_memory else _MANY_ROWS):
        return in_slices(request, _list_many_groups)
    groups = list(known)
    if sum([len(group.name) for group in groups]) > LONG_BYTES:
        return in_slices(request, _list_many_groups)
    resp = request.session.resp
    return in_pieces(request, [array_head(len(groups)), *[group_map(group, group.lag(), resp) for group in groups]])


def _list_many_groups(request: Request) -> Work:
    view = yield from wait_for_view()
    shown = _ShownGroups(view, request.existing_stream(request.argv[2]), request.session.resp)
    return LongReply(shown.groups(), view.hold())


@command(
    "XINFO CONSUMERS key group",
    Flag.READONLY,
    summary="Lists the consumers of a consumer group.",
    tips=("nondeterministic_output",),
)
def xinfo_consumers(request: Request) -> Reply:
    """XINFO CONSUMERS key group -> a map for each consumer, in byte order of their names; times are in milliseconds."""
    group = _need_group(request, _look_up(request))
    if group.consumer_count > _MANY_ROWS or _name_bytes(0, group) > LONG_BYTES:
        return in_slices(request, _list_many_consumers)
    now_ms, resp = request.now_ms, request.session.resp
    consumers = group.consumers.in_order()
    return in_pieces(
        request, [array_head(len(consumers)), *[consumer_map(consumer, now_ms, resp) for consumer in consumers]]
    )


def _need_group(request: Request, stream: Stream) -> Group:
    group = request.db.groups(stream).get(request.argv[3])
    if group is None:
        raise no_group_of_key(request.argv[2], request.argv[3])
    return group


def _list_many_consumers(request: Request) -> Work:
    view = yield from wait_for_view()
    stream = request.existing_stream(request.argv[2])
    group = _need_group(request, stream)
    shown = _ShownGroups(view, stream, request.session.resp)
    return LongReply(shown.consumers(group.group_no, request.now_ms), view.hold())


declare_help(
    "XINFO",
    "CONSUMERS <key> <groupname>",
    "    Show consumers of <groupname>.",
    "GROUPS <key>",
    "    Show the stream consumer groups.",
    "STREAM <key> [FULL [COUNT <count>]",
    "    Show information about the stream.",
    since="5.0.0",
)
