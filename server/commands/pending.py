"""Pending entries: XACK, XNACK, XPENDING, XCLAIM, XAUTOCLAIM.

Decides who gets what; `store.groups` applies and logs it.  XSEEN, which only a log contains, is here as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from server import errors
from server.args import Args, parse_entry_id, parse_int, parse_packed_ids
from server.commands.entries import entry_wire
from server.commands.groups import find_group, need_group
from server.commands.streamargs import parse_range_end, parse_range_start
from server.commands.table import FIRST_KEY, Flag, command
from server.errors import CommandError
from server.replies import NULL_ARRAY, OK
from store.format import array_head
from store.group import MAX_COUNT, Group, PendingEntry
from store.ids import MIN_ID, StreamID, id_text, pack_id, parse_id
from store.members import Consumer

if TYPE_CHECKING:
    from server.replies import Reply
    from server.session import Request
    from store.streams import Stream

BAD_MIN_IDLE: Final = "ERR Invalid min-idle-time argument for {}"
BAD_CLAIM_OPTION: Final = "ERR Invalid {} option argument for XCLAIM"
COUNT_NOT_POSITIVE: Final = "ERR COUNT must be > 0"
BAD_MODE: Final = "ERR mode must be SILENT, FAIL, or FATAL"
NUMIDS_NOT_POSITIVE: Final = "ERR numids must be a positive integer"
NUMIDS_MISMATCH: Final = "ERR number of IDs doesn't match numids"
BAD_RETRYCOUNT: Final = "ERR Invalid RETRYCOUNT value, must be >= 0"
IDS_MISSING: Final = "ERR syntax error, expected IDS keyword"

# XAUTOCLAIM looks at ten times as many entries as it may claim.
_EXAMINED_A_CLAIM: Final = 10
_DEFAULT_CLAIMS: Final = 100
_MOST_CLAIMS: Final = 1 << 59


# -- XACK, XNACK -------------------------------------------------------------------------------------------------------


@command(
    b"XACK",
    arity=-4,
    flags=Flag.WRITE | Flag.FAST,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="5.0.0",
    summary="Takes entries off a group's pending list: they are done.",
    syntax="key group id [id ...]",
)
def xack(request: Request) -> int:
    """XACK key group id [id ...] -> how many were pending.

    A missing key or group acknowledges nothing, and says so before the IDs are parsed, as Redis does.
    """
    argv = request.argv
    found = find_group(request, argv[1], argv[2])
    if found is None:
        return 0
    return found[1].ack(parse_packed_ids(argv[3:]), argv[3:])


@command(
    b"XNACK",
    arity=-7,
    flags=Flag.WRITE | Flag.FAST,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="8.8.0",
    summary="Gives pending entries back to the group: they belong to nobody and are claimed first.",
    syntax="key group <SILENT | FAIL | FATAL> IDS numids id [id ...] [RETRYCOUNT count] [FORCE]",
)
def xnack(request: Request) -> int:
    """XNACK key group SILENT|FAIL|FATAL IDS numids id ... [RETRYCOUNT n] [FORCE] -> how many were given back."""
    args = Args(request.argv, 3)
    stream, group = need_group(request, request.argv[1], request.argv[2])
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
            words = _take_counted(args)
        elif option == b"RETRYCOUNT" and len(args):
            retry_count = args.take_int(BAD_RETRYCOUNT)
            if retry_count < 0:
                raise CommandError(BAD_RETRYCOUNT)
        elif option == b"FORCE":
            force = True
        else:
            raise CommandError(b"ERR Unrecognized XNACK option '%b'" % word)
    if words is None:
        raise CommandError(IDS_MISSING)
    counts: list[tuple[StreamID, int]] = []
    new_counts: dict[StreamID, int] = {}  # an ID given twice is given back twice
    for entry_id in [parse_entry_id(word) for word in words]:
        old = new_counts.get(entry_id)
        if old is None:
            entry = group.find(entry_id)
            if entry is None and not (force and stream.has(entry_id)):
                continue
            old = 0 if entry is None else entry.delivery_count
        if retry_count is not None:
            new = retry_count
        elif mode == b"FATAL":
            new = MAX_COUNT
        else:
            new = max(old - 1, 0) if mode == b"SILENT" else old
        new_counts[entry_id] = new
        counts.append((entry_id, new))
    group.release(counts)
    return len(counts)


def _take_counted(args: Args) -> list[bytes]:
    """`numids id [id ...]`"""
    numids = args.take_int(NUMIDS_NOT_POSITIVE)
    if numids <= 0:
        raise CommandError(NUMIDS_NOT_POSITIVE)
    if numids > len(args):
        raise CommandError(NUMIDS_MISMATCH)
    return [args.take() for _ in range(numids)]


# -- XPENDING ----------------------------------------------------------------------------------------------------------


@command(
    b"XPENDING",
    arity=-3,
    flags=Flag.READONLY,
    keys=FIRST_KEY,
    categories=("read", "stream", "slow"),
    group="stream",
    since="5.0.0",
    summary="Tells what a group, or one of its consumers, has pending.",
    syntax="key group [[IDLE min-idle-time] start end count [consumer]]",
    tips=("nondeterministic_output",),
)
def xpending(request: Request) -> Reply:
    """XPENDING key group -> [total first last [[consumer "count"] ...]]; with a range -> [[id consumer idle n] ...].

    Deleted entries are told like any other.  Nothing is changed, no consumer is made.
    """
    argv = request.argv
    if len(argv) == 3:
        return _pending_summary(need_group(request, argv[1], argv[2])[1])
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
    _, group = need_group(request, argv[1], argv[2])
    now_ms = request.now_ms
    until_ms = now_ms - min_idle_ms if min_idle_ms > 0 else None
    if len(argv) > position + 3:
        consumer = group.consumers.get(argv[position + 3])
        if consumer is None:
            return []
        entries = group.pending_of(consumer, start, end, until_ms=until_ms)
    else:
        entries = group.pending(start, end, until_ms=until_ms)
    return [
        [
            id_text(entry.entry_id),
            b"" if entry.owner is None else entry.owner.name,
            -1 if entry.owner is None else max(now_ms - entry.delivery_time_ms, 0),
            entry.delivery_count,
        ]
        for entry in islice(entries, max(count, 0))
    ]


def _pending_summary(group: Group) -> Reply:
    edges = group.edges()
    if edges is None:
        return [0, None, None, NULL_ARRAY]
    consumers = [
        [name, b"%d" % consumer.pel_count] for name, consumer in sorted(group.consumers.items()) if consumer.pel_count
    ]
    return [group.pel_count, id_text(edges[0]), id_text(edges[1]), consumers]


# -- XCLAIM ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ClaimOptions:
    """XCLAIM's words from the IDs on."""

    entry_ids: list[StreamID] = field(default_factory=list)
    idle_ms: int | None = None
    time_ms: int | None = None
    retry_count: int | None = None
    last_id: StreamID = MIN_ID
    force: bool = False
    just_id: bool = False


def _take_claim_options(words: list[bytes]) -> _ClaimOptions:
    """IDs up to the first word that is none; what follows must be options, so a mistyped ID is reported as one."""
    options = _ClaimOptions()
    position = 0
    for word in words:
        entry_id = parse_id(word)
        if entry_id is None:
            break
        options.entry_ids.append(entry_id)
        position += 1
    args = Args(words, position)
    while len(args):
        word = args.take()
        option = word.upper()
        if option == b"FORCE":
            options.force = True
        elif option == b"JUSTID":
            options.just_id = True
        elif option == b"LASTID" and len(args):
            options.last_id = args.take_id()
        elif option in (b"IDLE", b"TIME", b"RETRYCOUNT") and len(args):
            number = args.take_int(BAD_CLAIM_OPTION.format(option.decode()))
            if option == b"RETRYCOUNT":
                options.retry_count = number if number >= 0 else None
            elif option == b"IDLE":
                options.idle_ms, options.time_ms = number, None
            else:
                options.idle_ms, options.time_ms = None, number
        else:
            raise CommandError(b"ERR Unrecognized XCLAIM option '%b'" % word)
    return options


@command(
    b"XCLAIM",
    arity=-6,
    flags=Flag.WRITE | Flag.FAST,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="5.0.0",
    summary="Takes over pending entries from other consumers.",
    syntax="key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] [RETRYCOUNT count] "
    "[FORCE] [JUSTID] [LASTID lastid]",
    tips=("nondeterministic_output",),
)
def xclaim(request: Request) -> Reply:
    """XCLAIM key group consumer min-idle-time id ... [options] -> the entries claimed, or their IDs with JUSTID."""
    argv = request.argv
    stream, group = need_group(request, argv[1], argv[2])
    min_idle_ms = parse_int(argv[4], BAD_MIN_IDLE.format("XCLAIM"))
    options = _take_claim_options(argv[5:])
    now_ms, time_ms = _claim_times(request, options)
    group.raise_position(options.last_id)
    consumer = group.meet(argv[3], now_ms)
    claims = _Claims(
        stream, group, min_idle_ms, now_ms, time_ms, just_id=options.just_id, retry_count=options.retry_count
    )
    for entry_id in options.entry_ids:
        claims.consider(entry_id, force=options.force)
    claims.apply(consumer)
    return claims.reply()


def _claim_times(request: Request, options: _ClaimOptions) -> tuple[int, int]:
    """-> (now, delivery time).  In a log, TIME is also when it happened."""
    now_ms = request.now_ms
    if request.from_log and options.time_ms is not None:
        return options.time_ms, options.time_ms
    time_ms = now_ms
    if options.idle_ms is not None:
        time_ms = now_ms - options.idle_ms
    elif options.time_ms is not None:
        time_ms = options.time_ms
    return now_ms, time_ms if 0 <= time_ms <= now_ms else now_ms


class _Claims:
    """What one claiming command takes and what it finds gone; nothing is changed before `apply`."""

    def __init__(
        self,
        stream: Stream,
        group: Group,
        min_idle_ms: int,
        now_ms: int,
        time_ms: int,
        *,
        just_id: bool,
        retry_count: int | None = None,
    ) -> None:
        self._stream = stream
        self._group = group
        self._min_idle_ms = min_idle_ms
        self._now_ms = now_ms
        self._time_ms = time_ms  # when what is taken counts as delivered
        self._just_id = just_id
        self._retry_count = retry_count
        self._counts: dict[StreamID, int] = {}  # delivery counts of what is taken
        self._taken: list[tuple[StreamID, bytes]] = []  # with their rows
        self.gone: list[StreamID] = []

    def consider(self, entry_id: StreamID, *, force: bool) -> None:
        """Take the entry with this ID if it is idle for long enough; an ID given twice is taken twice."""
        row = self._stream.entry(entry_id)
        if row is None:
            self.gone.append(entry_id)
            return
        if entry_id not in self._counts:
            entry = self._group.find(entry_id)
            if entry is None:
                if force:
                    self._take(entry_id, row, 1)
            else:
                self.consider_pending(entry, row)
        elif self._min_idle_ms <= 0 or self._now_ms - self._time_ms >= self._min_idle_ms:
            self._take(entry_id, row, self._counts[entry_id])

    def consider_pending(self, entry: PendingEntry, row: bytes) -> None:
        idle_ms = self._now_ms - entry.delivery_time_ms
        if self._min_idle_ms <= 0 or entry.owner is None or idle_ms >= self._min_idle_ms:
            self._take(entry.entry_id, row, entry.delivery_count)

    def _take(self, entry_id: StreamID, row: bytes, count: int) -> None:
        if self._retry_count is not None:
            count = self._retry_count
        elif not self._just_id:
            count = min(count + 1, MAX_COUNT)
        self._counts[entry_id] = count
        self._taken.append((entry_id, row))

    @property
    def taken_count(self) -> int:
        return len(self._taken)

    def apply(self, consumer: Consumer) -> None:
        if self.gone:
            self._group.ack([pack_id(entry_id) for entry_id in self.gone])
        self._group.claim(consumer, self._counts, self._time_ms, self._now_ms)
        self._group.note_position()
        self._group.note(consumer)

    def reply(self) -> Reply:
        if self._just_id:
            return [id_text(entry_id) for entry_id, _ in self._taken]
        entries = [entry_wire(row) for _, row in self._taken]
        return (array_head(len(entries)) + b"".join(entries),)


# -- XAUTOCLAIM --------------------------------------------------------------------------------------------------------


@command(
    b"XAUTOCLAIM",
    arity=-6,
    flags=Flag.WRITE | Flag.FAST,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="6.2.0",
    summary="Takes over, a portion at a time, pending entries that have been idle for long.",
    syntax="key group consumer min-idle-time start [COUNT count] [JUSTID]",
    tips=("nondeterministic_output",),
)
def xautoclaim(request: Request) -> Reply:
    """XAUTOCLAIM key group consumer min-idle-time start [COUNT n] [JUSTID] -> [cursor, claimed, IDs found deleted]."""
    argv = request.argv
    min_idle_ms = parse_int(argv[4], BAD_MIN_IDLE.format("XAUTOCLAIM"))
    start = parse_range_start(argv[5])
    count, just_id = _DEFAULT_CLAIMS, False
    args = Args(argv, 6)
    while len(args):
        option = args.take_option()
        if option == b"COUNT" and len(args):
            count = args.take_int(COUNT_NOT_POSITIVE)
            if not 0 < count < _MOST_CLAIMS:
                raise CommandError(COUNT_NOT_POSITIVE)
        elif option == b"JUSTID":
            just_id = True
        else:
            raise CommandError(errors.SYNTAX)
    stream, group = need_group(request, argv[1], argv[2])
    now_ms = request.now_ms
    consumer = group.meet(argv[3], now_ms)
    claims = _Claims(stream, group, min_idle_ms, now_ms, now_ms, just_id=just_id)
    cursor = MIN_ID
    for examined, entry in enumerate(group.pending(start)):
        if examined == count * _EXAMINED_A_CLAIM or claims.taken_count + len(claims.gone) == count:
            cursor = entry.entry_id
            break
        row = stream.entry(entry.entry_id)
        if row is None:
            claims.gone.append(entry.entry_id)
        else:
            claims.consider_pending(entry, row)
    claims.apply(consumer)
    return [id_text(cursor), claims.reply(), [id_text(entry_id) for entry_id in claims.gone]]


# -- the log's own -----------------------------------------------------------------------------------------------------


@command(
    b"XSEEN",
    arity=6,
    flags=Flag.WRITE | Flag.FAST | Flag.LOG_ONLY,
    keys=FIRST_KEY,
    categories=("write", "stream", "fast"),
    group="stream",
    since="7.2.0",
    summary="Says when a consumer was last seen and last active; only a log does.",
    syntax="key group consumer seen-time active-time",
)
def xseen(request: Request) -> Reply:
    """XSEEN key group consumer seen active, in milliseconds.  Read from a log, never from a client."""
    args = Args(request.argv)
    _, group = need_group(request, args.take(), args.take())
    name, seen_ms, active_ms = args.take(), args.take_int(), args.take_int()
    group.set_times(group.meet(name, seen_ms), seen_ms, active_ms)
    return OK
