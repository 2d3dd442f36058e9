"""XREADGROUP: new entries for a group's consumers, their own history, and with CLAIM what others have left too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from server.args import parse_entry_id
from server.commands.entries import entries_wire, id_texts
from server.commands.groups import need_group
from server.commands.reads import ReadBudget, read_keys, streams_wire
from server.commands.streamargs import ReadOptions, parse_read
from server.commands.table import Flag, command
from server.errors import CommandError
from server.replies import NULL_ARRAY, Park
from store.format import array_head, id_bulk
from store.group import Group, PendingEntry
from store.ids import MAX_ID, StreamID, pack_id
from store.members import Consumer

if TYPE_CHECKING:
    from server.replies import Reply
    from server.session import Request
    from store.model import Row
    from store.streams import Stream

MEANINGLESS: Final = (
    "ERR The {0} ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by "
    "specifying a proper ID, or use the > ID to get new messages. The {0} ID would just return an empty result set."
)
_WHERE: Final = b" in XREADGROUP with GROUP option"
_NULL: Final = {2: b"*-1\r\n", 3: b"_\r\n"}
_NEW: Final = b":0\r\n:0\r\n"  # idle time and delivery count of an entry that nobody had


@command(
    b"XREADGROUP",
    arity=-7,
    flags=Flag.WRITE | Flag.BLOCKING | Flag.MOVABLEKEYS,
    categories=("write", "stream", "slow", "blocking"),
    group="stream",
    since="5.0.0",
    summary="Reads for a consumer of a group: what is new, its own history, or what others have left too long.",
    syntax="GROUP group consumer [COUNT count] [MAXCOUNT count] [MAXSIZE bytes] [BLOCK milliseconds] "
    "[CLAIM min-idle-time] [NOACK] STREAMS key [key ...] id [id ...]",
    find_keys=read_keys,
)
def xreadgroup(request: Request) -> Reply:
    """XREADGROUP GROUP group consumer [options] STREAMS key ... id ... -> entries by stream; see `xread`.

    `>` reads what the group has not been given, and waits for it if asked to; any other ID reads the consumer's own
    pending entries after it.  One bad pair of key and ID and nothing is changed.
    """
    options = parse_read(request.argv, request.now_ms, with_group=True)
    assert options.group is not None
    work: list[tuple[bytes, Stream, Group, StreamID]] = []
    for key, word in zip(options.keys, options.ids, strict=True):
        stream, group = need_group(request, key, options.group, _WHERE)
        work.append((key, stream, group, _parse_position(word)))
    budget = ReadBudget(options)
    claim_min_idle_ms = options.claim_min_idle_ms
    served: list[tuple[bytes, bytes]] = []
    for key, stream, group, position in work:
        consumer = group.meet(options.consumer, request.now_ms)
        reader = _Reader(request, key, stream, group, consumer, budget)
        if position != MAX_ID:
            claim_min_idle_ms = None  # for the streams after it as well, as in Redis
        wire = None
        if not budget.exhausted:
            if position != MAX_ID:
                wire = reader.history(position)
            elif claim_min_idle_ms is None:
                wire = reader.new(options)
            else:
                wire = reader.claimed_and_new(options, claim_min_idle_ms)
        group.note(consumer)
        if wire is not None:
            served.append((key, wire))
    if served:
        return (streams_wire(served, request.session.resp),)
    if options.block_ms is None or not request.may_block:
        return NULL_ARRAY
    deadline_ms = request.now_ms + options.block_ms if options.block_ms else None
    return Park(tuple(options.keys), deadline_ms, request.argv, _next_claim_ms(request, options, work))


def _parse_position(word: bytes) -> StreamID:
    """`>` is the largest ID there is, and reads the same."""
    if word == b">":
        return MAX_ID
    if word in (b"$", b"+"):
        raise CommandError(MEANINGLESS.format(word.decode()))
    return parse_entry_id(word)


def _next_claim_ms(
    request: Request, options: ReadOptions, work: list[tuple[bytes, Stream, Group, StreamID]]
) -> int | None:
    """When the first pending entry will have been idle for long enough, None without CLAIM."""
    if options.claim_min_idle_ms is None:
        return None
    oldest_ms = [group.oldest_delivery_ms() for _, _, group, _ in work]
    oldest = min(request.now_ms if delivery_ms is None else delivery_ms for delivery_ms in oldest_ms)
    return max(oldest + options.claim_min_idle_ms, request.now_ms) + 1


class _Reader:
    """Reads of one stream of an XREADGROUP.  Each returns the entries as a reply, or None when there is nothing."""

    def __init__(
        self, request: Request, key: bytes, stream: Stream, group: Group, consumer: Consumer, budget: ReadBudget
    ) -> None:
        self._request = request
        self._key = key
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._budget = budget

    def new(self, options: ReadOptions) -> bytes | None:
        """What the group has not been given yet."""
        rows = self._take_new(options, self._budget.count)
        return entries_wire(rows) if rows else None

    def _take_new(self, options: ReadOptions, most: int | None) -> list[Row]:
        """Deliver the next entries; -> them."""
        stream, group = self._stream, self._group
        if stream.last_live_id <= group.last_id:
            return []
        rows = stream.rows(StreamID(group.last_id + 1), MAX_ID, most)
        rows = self._budget.cut(self._key, rows)
        if rows:
            group.deliver(self._consumer, rows, id_texts(rows), self._request.now_ms, to_pel=not options.noack)
        return rows

    def history(self, after: StreamID) -> bytes:
        """The consumer's own pending entries after an ID; deleted ones with a null for their fields."""
        stream = self._stream
        null = _NULL[self._request.session.resp]
        most = self._budget.count
        entries: list[tuple[PendingEntry, bytes | None]] = []
        rows: list[tuple[bytes, bytes]] = []
        for entry in self._group.pending_of(self._consumer, StreamID(after + 1)):
            if len(rows) == most:
                break
            row = stream.entry(entry.entry_id)
            entries.append((entry, row))
            shown = id_bulk(entry.entry_id) + null if row is None else row
            rows.append((stream.prefix + pack_id(entry.entry_id), shown))
        rows = self._budget.cut(self._key, rows)
        read = [entry for entry, row in entries[: len(rows)] if row is not None]
        self._group.redeliver(self._consumer, read, self._request.now_ms)
        return entries_wire(rows)

    def claimed_and_new(self, options: ReadOptions, min_idle_ms: int) -> bytes | None:
        """What is overdue, then what is new, each with its idle time and delivery count so far."""
        group, now_ms = self._group, self._request.now_ms
        most = self._budget.count
        overdue = group.overdue(min_idle_ms, now_ms, most)
        rows = [(self._stream.prefix + pack_id(entry.entry_id), row) for entry, row in overdue]
        overdue = overdue[: len(self._budget.cut(self._key, rows))] if rows else []
        parts = [
            b"*4\r\n%b:%d\r\n:%d\r\n" % (row, now_ms - entry.delivery_time_ms, entry.delivery_count)
            for entry, row in overdue
        ]
        group.take_over(self._consumer, [entry for entry, _ in overdue], now_ms)
        if not self._budget.exhausted and (most is None or most > len(overdue)):
            new = self._take_new(options, None if most is None else most - len(overdue))
            parts += [b"*4\r\n" + row + _NEW for _, row in new]
        return array_head(len(parts)) + b"".join(parts) if parts else None
