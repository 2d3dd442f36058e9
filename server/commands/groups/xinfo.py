"""XINFO: describes streams, groups and consumers."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import parse_int
from riverbed.server.commands.groups.groups import no_group_of_key
from riverbed.server.commands.slices import in_pieces, in_slices, wait_for_view
from riverbed.server.commands.streams.entries import PAIR, entries_wire, entry_wire
from riverbed.server.commands.table import Flag, command, container, declare_help
from riverbed.server.errors import CommandError
from riverbed.server.protocol.encode import encode
from riverbed.server.protocol.replies import LongReply
from riverbed.store.format.resp import array_head, bulk, id_bulk
from riverbed.store.groups.consumers import NEVER, Consumer
from riverbed.store.ids import MAX_ID, MIN_ID, id_text, unpack_id
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.streams.view import StreamView

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.groups.group import Group, PendingRun
    from riverbed.store.groups.groups import Groups
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.view import View

_DEFAULT_COUNT: Final = 10
_UNLIMITED: Final = 1 << 63
# Pending entries in a reply that is made at once, and in a piece of a longer reply.
_MANY_PENDING: Final = 20_000
_PIECE_PENDING: Final = 2000


def _need_stream(request: Request) -> Stream:
    stream = request.db.stream(request.argv[2], request.now_ms)
    if stream is None:
        raise CommandError(errors.NO_SUCH_KEY)
    return stream


container("XINFO", group="stream", since="5.0.0", summary="Container of the commands that look at streams.")


# -- XINFO STREAM ------------------------------------------------------------------------------------------------------


@command("XINFO STREAM key [FULL [COUNT count]]", Flag.READONLY, since="5.0.0", summary="Describes a stream.")
def xinfo_stream(request: Request) -> Reply:
    """XINFO STREAM key [FULL [COUNT n]] -> a map.  FULL has the first n entries, and what groups have pending."""
    stream = _need_stream(request)
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
    most = _UNLIMITED if count is None else count
    if request.room is not None and _has_long_lists(request.db.groups(stream), most):
        return in_slices(request, partial(_describe_fully, count))
    entries = stream.entries_within(MIN_ID, MAX_ID, count, request.room)
    if entries is None:
        return in_slices(request, partial(_describe_fully, count))
    return _describe(stream) | {
        b"entries": (entries_wire(entries),),
        b"groups": [_describe_group(group, count) for group in request.db.groups(stream)],
    }


def _has_long_lists(groups: Groups, most: int) -> bool:
    """Whether more pending entries are to be shown, each twice, than one turn has time for."""
    return 2 * sum(min(group.pel_count, most) for group in groups) > _MANY_PENDING


def _describe_fully(count: int | None, request: Request) -> Work:
    """XINFO STREAM FULL, too long for memory: everything as of the view."""
    view = yield from wait_for_view()
    groups = request.db.groups(_need_stream(request))
    pieces = _in_pieces(groups, view, _UNLIMITED if count is None else count, request.session.resp)
    return LongReply(pieces, view.hold())


def _in_pieces(groups: Groups, view: View, most: int, resp: int) -> Generator[bytes, None, None]:
    """XINFO STREAM FULL in pieces, as everything is now; `view` was made just now."""
    stream = groups.stream
    facts = _describe(stream)
    count = min(stream.length, most)
    entries = StreamView(view, stream).pieces(MIN_ID, MAX_ID, count, PAIR)
    shown = [
        (
            _group_facts(group),
            [(consumer, _consumer_facts(consumer)) for consumer in group.sorted_consumers()],
            group.frozen(view),
        )
        for group in groups
    ]

    def pieces() -> Generator[bytes, None, None]:
        yield _map_head(len(facts) + 2, resp) + _items(facts, resp) + bulk(b"entries") + array_head(count)
        yield from entries
        yield bulk(b"groups") + array_head(len(shown))
        for group_facts, consumers, pending_runs in shown:
            yield _map_head(len(group_facts) + 2, resp) + _items(group_facts, resp) + bulk(b"pending")
            count_shown = min(group_facts[b"pel-count"], most)
            yield from _pending_pieces(pending_runs(None), count_shown, with_owner=True)
            yield bulk(b"consumers") + array_head(len(consumers))
            for consumer, consumer_facts in consumers:
                yield _map_head(len(consumer_facts) + 1, resp) + _items(consumer_facts, resp) + bulk(b"pending")
                count_shown = min(consumer_facts[b"pel-count"], most)
                yield from _pending_pieces(pending_runs(consumer), count_shown, with_owner=False)

    return pieces()


def _pending_pieces(runs: Iterator[PendingRun], count: int, *, with_owner: bool) -> Iterator[bytes]:
    """The array of the first `count` pending entries."""
    yield array_head(count)
    lines: list[bytes] = []
    for run in runs:
        head, owner = b"*3\r\n", b""
        if with_owner:
            head, owner = b"*4\r\n", bulk(b"" if run.owner is None else run.owner.name)
        tail = owner + b":%d\r\n:%d\r\n" % (run.delivery_time_ms, run.delivery_count)
        lines += [head + id_bulk(unpack_id(packed)) + tail for packed in run.packed_ids[:count]]
        count -= min(len(run.packed_ids), count)
        if len(lines) >= _PIECE_PENDING or not count:
            yield b"".join(lines)
            lines.clear()
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
    return _group_facts(group) | {
        b"pending": [
            [
                id_text(entry.entry_id),
                b"" if entry.owner is None else entry.owner.name,
                entry.delivery_time_ms,
                entry.delivery_count,
            ]
            for entry in islice(group.pending(), count)
        ],
        b"consumers": [_describe_consumer(group, consumer, count) for consumer in group.sorted_consumers()],
    }


def _group_facts(group: Group) -> dict[bytes, Reply]:
    """The facts that a group's description begins with."""
    return {
        b"name": group.name,
        b"last-delivered-id": id_text(group.last_id),
        b"entries-read": group.entries_read,
        b"lag": group.lag(),
        b"pel-count": group.pel_count,
        b"nacked-count": group.released_count,
    }


def _describe_consumer(group: Group, consumer: Consumer, count: int | None) -> dict[bytes, Reply]:
    return _consumer_facts(consumer) | {
        b"pending": [
            [id_text(entry.entry_id), entry.delivery_time_ms, entry.delivery_count]
            for entry in islice(group.pending_of(consumer), count)
        ],
    }


def _consumer_facts(consumer: Consumer) -> dict[bytes, Reply]:
    return {
        b"name": consumer.name,
        b"seen-time": consumer.seen_ms,
        b"active-time": consumer.active_ms,
        b"pel-count": consumer.pel_count,
    }


# -- XINFO GROUPS, CONSUMERS, HELP -------------------------------------------------------------------------------------


@command("XINFO GROUPS key", Flag.READONLY, since="5.0.0", summary="Lists the consumer groups of a stream.")
def xinfo_groups(request: Request) -> Reply:
    """XINFO GROUPS key -> a map for each group, in byte order of their names."""
    facts = (
        {
            b"name": group.name,
            b"consumers": group.consumer_count,
            b"pending": group.pel_count,
            b"last-delivered-id": id_text(group.last_id),
            b"entries-read": group.entries_read,
            b"lag": group.lag(),
        }
        for group in request.db.groups(_need_stream(request))
    )
    return _maps(request, facts)


@command(
    "XINFO CONSUMERS key group",
    Flag.READONLY,
    since="5.0.0",
    summary="Lists the consumers of a consumer group.",
    tips=("nondeterministic_output",),
)
def xinfo_consumers(request: Request) -> Reply:
    """XINFO CONSUMERS key group -> a map for each consumer, in byte order of their names; times are in milliseconds."""
    stream = _need_stream(request)
    group = request.db.groups(stream).get(request.argv[3])
    if group is None:
        raise no_group_of_key(request.argv[2], request.argv[3])
    now_ms = request.now_ms
    facts: Iterator[dict[bytes, Reply]] = (
        {
            b"name": consumer.name,
            b"pending": consumer.pel_count,
            b"idle": max(now_ms - consumer.seen_ms, 0),
            b"inactive": NEVER if consumer.active_ms == NEVER else max(now_ms - consumer.active_ms, 0),
        }
        for consumer in group.sorted_consumers()
    )
    return _maps(request, facts)


def _maps(request: Request, facts: Iterator[dict[bytes, Reply]]) -> Reply:
    """The array of these maps.  Each is encoded at once: as a map it takes ten times its bytes."""
    resp = request.session.resp
    parts = [encode(each, resp) for each in facts]
    return in_pieces(request, [array_head(len(parts)), *parts])


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
