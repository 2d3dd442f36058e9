"""XINFO: describes streams, groups and consumers."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.groups.groups import no_group_of_key
from riverbed.server.commands.slices import bounded_pieces, in_pieces, in_slices, in_turns, wait_for_view
from riverbed.server.commands.streams.entries import PAIR, entries_wire, entry_wire
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import NO_SUCH_KEY, CommandError
from riverbed.server.protocol.encode import encode
from riverbed.server.protocol.replies import LONG_BYTES, LongReply
from riverbed.store.format.pending import UNOWNED
from riverbed.store.format.resp import array_head, bulk, id_bulk
from riverbed.store.groups.known_consumers import NEVER, Consumer
from riverbed.store.groups.lag import lag
from riverbed.store.groups.view import GroupsView, Names
from riverbed.store.ids import MAX_ID, MIN_ID, id_text, unpack_id
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.streams.view import PIECE_BYTES, StreamView

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.format.groups import ConsumerRow, GroupRow
    from riverbed.store.format.pending import Run
    from riverbed.store.groups.group import Group
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.view import View

_DEFAULT_COUNT: Final = 10
_UNLIMITED: Final = 1 << 63
# Pending entries, and groups or consumers, in a reply that is made at once.
_MANY_PENDING: Final = 20_000
_MANY_ROWS: Final = 500
# Groups that are in memory already, which take a fifth of the time: 4 ms.
_MANY_IN_MEMORY: Final = 4000
# Parts in a piece of a longer reply: 3 ms.
_PIECE_ROWS: Final = 250
# An entry in a list of pending ones, besides its owner.
_ENTRY_BYTES: Final = 100


container("XINFO", group="stream", since="5.0.0", summary="Container of the commands that look at streams.")


# -- XINFO STREAM ------------------------------------------------------------------------------------------------------


@command("XINFO STREAM key [FULL [COUNT count]]", Flag.READONLY, summary="Describes a stream.")
def xinfo_stream(request: Request) -> Reply:
    """XINFO STREAM key [FULL [COUNT n]] -> a map.  FULL has the first n entries, and what groups have pending."""
    stream = _look_up(request)
    words = request.argv[3:]
    if not words:
        return _describe(stream) | _ends(stream)
    is_counted = len(words) == 3 and words[1].upper() == b"COUNT"
    if words[0].upper() != b"FULL" or not (len(words) == 1 or is_counted):
        raise errors.subcommand_syntax(request.argv)
    count: int | None = _DEFAULT_COUNT
    if is_counted:
        count = parse_int(words[2])
        if count < 0:
            count = _DEFAULT_COUNT
        count = count or None  # 0 is unlimited
    if _is_long(request, stream, _UNLIMITED if count is None else count):
        return in_slices(request, partial(_describe_fully, count))
    entries = stream.entries_within(MIN_ID, MAX_ID, count, request.room)
    if entries is None:
        return in_slices(request, partial(_describe_fully, count))
    return _describe(stream) | {
        b"entries": (entries_wire(entries),),
        b"groups": [_describe_group(group, count) for group in request.db.groups(stream)],
    }


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


def _describe_fully(count: int | None, request: Request) -> Work:
    """XINFO STREAM FULL, too long for memory: everything as of the view."""
    view = yield from wait_for_view()
    shown = _ShownGroups(view, request.existing_stream(request.argv[2]), request.session.resp)
    return LongReply(shown.stream_fully(_UNLIMITED if count is None else count), view.hold())


class _ShownGroups:
    """What XINFO shows of a stream with many groups or consumers, in pieces, as of a view that was made just now.

    A piece without bytes ends a turn.
    """

    def __init__(self, view: View, stream: Stream, resp: int) -> None:
        self._groups = GroupsView(view, stream)
        self._entries = StreamView(view, stream)
        self._facts = _describe(stream)
        self._counters = stream.row()
        self._resp = resp

    def groups(self) -> Generator[bytes, None, None]:
        """XINFO GROUPS."""
        names = yield from in_turns(self._groups.groups())
        rows = (self._groups.group(group_no) for _, group_no in names.taken())
        yield array_head(names.count)
        yield from bounded_pieces((_group_wire(row, self._lag(row), self._resp) for row in rows), _PIECE_ROWS)

    def consumers(self, group_no: int, now_ms: int) -> Generator[bytes, None, None]:
        """XINFO CONSUMERS."""
        names = yield from in_turns(self._groups.consumers(group_no))
        yield array_head(names.count)
        rows = (self._groups.consumer(group_no, consumer_no) for _, consumer_no in names.taken())
        yield from bounded_pieces((encode(_consumer_summary(row, now_ms), self._resp) for row in rows), _PIECE_ROWS)

    def _lag(self, row: GroupRow) -> int | None:
        return lag(self._counters, row.last_id, row.entries_read)

    def stream_fully(self, most: int) -> Generator[bytes, None, None]:
        """XINFO STREAM FULL, with up to `most` entries, and pending entries of each group and of each consumer."""
        groups = yield from in_turns(self._groups.groups())
        facts = self._facts
        count = min(self._entries.length, most)
        head = _map_head(len(facts) + 2, self._resp) + _items(facts, self._resp)
        yield head + bulk(b"entries") + array_head(count)
        yield from self._entries.pieces(MIN_ID, MAX_ID, count, PAIR)
        yield bulk(b"groups") + array_head(groups.count)
        yield from bounded_pieces(self._groups_fully(groups, most), _PIECE_ROWS)

    def _groups_fully(self, groups: Names, most: int) -> Iterator[bytes]:
        """Each group in parts, of which few take long."""
        for _, group_no in groups.taken():
            consumers = yield from in_turns(self._groups.consumers(group_no))
            row = self._groups.group(group_no)
            facts = _group_facts(row, self._lag(row))
            yield _map_head(len(facts) + 2, self._resp) + _items(facts, self._resp) + bulk(b"pending")
            runs = self._groups.pending_runs(group_no, None, consumers.owners)
            yield from self._pending(runs, min(row.pel_count, most), owners_of=group_no)
            yield bulk(b"consumers") + array_head(consumers.count)
            for _, consumer_no in consumers.taken():
                consumer = self._groups.consumer(group_no, consumer_no)
                facts = _consumer_facts(consumer)
                yield _map_head(len(facts) + 1, self._resp) + _items(facts, self._resp) + bulk(b"pending")
                runs = self._groups.pending_runs(group_no, consumer_no, consumers.owners)
                yield from self._pending(runs, min(consumer.pel_count, most), owners_of=None)

    def _pending(self, runs: Iterator[Run], count: int, *, owners_of: int | None) -> Iterator[bytes]:
        """The array of the first `count` pending entries, with their owners' names if a group is given."""
        yield array_head(count)
        if not count:
            return
        for run in runs:
            is_released = run.consumer_no == UNOWNED
            head, owner = b"*3\r\n", b""
            if owners_of is not None:
                name = b"" if is_released else self._groups.consumer(owners_of, run.consumer_no).name
                head, owner = b"*4\r\n", bulk(name)
            tail = owner + b":%d\r\n:%d\r\n" % (0 if is_released else run.time_ms, run.delivery_count)
            ids = run.ids()[:count]
            most = 1 + PIECE_BYTES // (_ENTRY_BYTES + len(tail))  # entries with long names are not for one piece
            for at in range(0, len(ids), most):
                yield b"".join([head + id_bulk(unpack_id(packed)) + tail for packed in ids[at : at + most]])
            count -= len(ids)
            if not count:
                return
        assert not count, "fewer pending entries than were counted"


def _map_head(count: int, resp: int) -> bytes:
    return b"%%%d\r\n" % count if resp == 3 else array_head(2 * count)


def _items(facts: dict[bytes, Reply], resp: int) -> bytes:
    """The keys and values of a map."""
    return b"".join([encode(word, resp) for pair in facts.items() for word in pair])


def _describe(stream: Stream) -> dict[bytes, Reply]:
    """The facts that the short and the long answer begin with."""
    idempotence = Idempotence(stream)
    producers, records = idempotence.tracked()
    return {
        b"length": stream.length,
        b"radix-tree-keys": stream.node_total,
        # there is no tree here; one more than the nodes is what a flat one would have
        b"radix-tree-nodes": stream.node_total + 1,
        b"last-generated-id": id_text(stream.last_id),
        b"max-deleted-entry-id": id_text(stream.max_deleted_id),
        b"entries-added": stream.entries_added,
        b"recorded-first-entry-id": id_text(stream.first_id),
        b"idmp-duration": idempotence.duration_s,
        b"idmp-maxsize": idempotence.max_records,
        b"pids-tracked": producers,
        b"iids-tracked": records,
        b"iids-added": idempotence.records_added,
        b"iids-duplicates": idempotence.duplicates,
    }


def _ends(stream: Stream) -> dict[bytes, Reply]:
    first = stream.rows(MIN_ID, MAX_ID, 1)
    last = stream.rows(MIN_ID, MAX_ID, 1, reverse=True)
    ends = [(entry_wire(row),) for _, row in first + last]
    return {
        b"groups": stream.group_count,
        b"first-entry": ends[0] if ends else None,
        b"last-entry": ends[1] if ends else None,
    }


def _describe_group(group: Group, count: int | None) -> dict[bytes, Reply]:
    """A group in XINFO STREAM FULL; times are unix milliseconds."""
    return _group_facts(group, group.lag()) | {
        b"pending": [
            [
                id_text(entry.entry_id),
                b"" if entry.owner is None else entry.owner.name,
                entry.delivery_time_ms,
                entry.delivery_count,
            ]
            for entry in islice(group.pending(), count)
        ],
        b"consumers": [_describe_consumer(group, consumer, count) for consumer in group.consumers.in_order()],
    }


def _group_facts(group: Group | GroupRow, behind: int | None) -> dict[bytes, Reply]:
    """The facts that a group's description begins with."""
    return {
        b"name": group.name,
        b"last-delivered-id": id_text(group.last_id),
        b"entries-read": group.entries_read,
        b"lag": behind,
        b"pel-count": group.pel_count,
        b"nacked-count": group.released_count,
    }


def _describe_consumer(group: Group, consumer: Consumer, count: int | None) -> dict[bytes, Reply]:
    return _consumer_facts(consumer) | {
        b"pending": [
            [id_text(entry.entry_id), entry.delivery_time_ms, entry.delivery_count]
            for entry in islice(group.pending(consumer=consumer), count)
        ],
    }


def _consumer_facts(consumer: Consumer | ConsumerRow) -> dict[bytes, Reply]:
    return {
        b"name": consumer.name,
        b"seen-time": consumer.seen_ms,
        b"active-time": consumer.active_ms,
        b"pel-count": consumer.pel_count,
    }


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
    return in_pieces(request, [array_head(len(groups)), *[_group_wire(group, group.lag(), resp) for group in groups]])


def _list_many_groups(request: Request) -> Work:
    view = yield from wait_for_view()
    shown = _ShownGroups(view, request.existing_stream(request.argv[2]), request.session.resp)
    return LongReply(shown.groups(), view.hold())


def _group_wire(group: Group | GroupRow, behind: int | None, resp: int) -> bytes:
    """The map that shows a group, on the wire: a third of the time that `encode` takes, and there may be thousands."""
    return (
        b"%b$4\r\nname\r\n%b$9\r\nconsumers\r\n:%d\r\n$7\r\npending\r\n:%d\r\n"
        b"$17\r\nlast-delivered-id\r\n%b$12\r\nentries-read\r\n%b$3\r\nlag\r\n%b"
    ) % (
        _map_head(6, resp),
        bulk(group.name),
        group.consumer_count,
        group.pel_count,
        id_bulk(group.last_id),
        encode(group.entries_read, resp),
        encode(behind, resp),
    )


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
    return [_consumer_summary(consumer, request.now_ms) for consumer in group.consumers.in_order()]


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


def _consumer_summary(consumer: Consumer | ConsumerRow, now_ms: int) -> dict[bytes, Reply]:
    return {
        b"name": consumer.name,
        b"pending": consumer.pel_count,
        b"idle": max(now_ms - consumer.seen_ms, 0),
        b"inactive": NEVER if consumer.active_ms == NEVER else max(now_ms - consumer.active_ms, 0),
    }


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
