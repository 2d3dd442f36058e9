"""XCLAIM and XAUTOCLAIM: pending entries that change hands.

Decides which consumer gets which entries; `store.groups.group` applies and logs it.  Long commands run in slices; see
`server/commands/slices.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from riverbed.server import errors
from riverbed.server.commands.arguments import Args, parse_int
from riverbed.server.commands.groups.groups import group_again, look_up_group, need_group
from riverbed.server.commands.groups.policies import DeadLetters, dead_letters
from riverbed.server.commands.showing import Part, Room, Showing
from riverbed.server.commands.slices import first_ids, in_slices
from riverbed.server.commands.streams.entries import entry_wire, id_wire
from riverbed.server.commands.streams.options import parse_range_start
from riverbed.server.commands.table import Flag, command
from riverbed.server.errors import CommandError
from riverbed.store.format.pending import MAX_TIME_MS, UNOWNED, time_of
from riverbed.store.format.resp import array_head, bulk, id_bulk
from riverbed.store.format.streams import add_counts
from riverbed.store.groups.pending_reads import PendingEntry
from riverbed.store.ids import MIN_ID, StreamID, id_text, pack_id, parse_id, unpack_id
from riverbed.store.tables.writing.transaction import UNBOUNDED_ROW
from riverbed.store.wire import packed_id

if TYPE_CHECKING:
    from collections.abc import Generator

    from riverbed.server.commands.request import Request
    from riverbed.server.commands.slices import Work
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.groups.group import Group
    from riverbed.store.groups.known_consumers import Consumer
    from riverbed.store.groups.pending_reads import PendingRun
    from riverbed.store.streams.stream import Stream

BAD_MIN_IDLE: Final = "ERR Invalid min-idle-time argument for {}"
_BAD_MIN_IDLE: Final = BAD_MIN_IDLE.format("XCLAIM")
BAD_CLAIM_OPTION: Final = "ERR Invalid {} option argument for XCLAIM"
COUNT_NOT_POSITIVE: Final = "ERR COUNT must be > 0"

# XAUTOCLAIM looks at ten times as many entries as it may claim.
_EXAMINED_A_CLAIM: Final = 10
_DEFAULT_CLAIMS: Final = 100
_MAX_CLAIMS: Final = 1 << 59
# Entries that XAUTOCLAIM examines in a slice: 0.5 us each, and 5 us for one that it claims.
_SLICE_EXAMINED = 1000
# IDs to a slice of XCLAIM: 4 us each when they were delivered together, 18 when every one cuts a run of its own.
_SLICE_IDS = 250
_SLICE_CLAIMS = 200


class _Claims:
    """The entries that a slice of a claiming command takes or finds deleted; nothing is changed before `apply`."""

    def __init__(
        self,
        stream: Stream,
        group: Group,
        min_idle_ms: int,
        now_ms: int,
        time_ms: int,
        letters: DeadLetters | None,
        room: Room,
        *,
        just_id: bool,
        retry_count: int | None = None,
    ) -> None:
        self._stream = stream
        self._group = group
        self._min_idle_ms = min_idle_ms
        self._now_ms = now_ms
        self._time_ms = time_ms  # the delivery time of what is taken
        self._letters = letters
        self._just_id = just_id
        self._retry_count = retry_count
        self._room = room
        self._showing = None if room.view is None else Showing(room.view, stream)
        self._counts: dict[bytes, int] = {}  # delivery counts of what is taken, by packed ID
        self.taken: list[bytes] = []  # packed IDs, in order
        self._rows: list[bytes] = []  # the entries; empty ones where the reply does not need them
        self._size = 0
        self.gone: list[bytes] = []
        self.needs_view = False  # the reply gets too long for memory: nothing of this may be applied

    def _find(self, packed_ids: list[bytes]) -> dict[bytes, bytes]:
        """The rows of the ascending `packed_ids` that exist; empty rows when only IDs are shown."""
        showing = self._showing
        if showing is not None:
            return {packed: showing.row(packed) for packed in self._stream.present(packed_ids)}
        if self._just_id:
            if self._stream.txn.largest_row < UNBOUNDED_ROW:
                return self._stream.rows_of(packed_ids)
            return dict.fromkeys(self._stream.present(packed_ids), b"")
        room = None if self._room.left is None else self._room.left - self._size
        rows = self._stream.rows_of_within(packed_ids, room)
        if rows is None:
            self.needs_view = True
            return {}
        return rows

    def consider(self, packed_ids: list[bytes], *, force: bool) -> None:
        """Take the entries that are idle for long enough; an ID given twice is taken twice."""
        order = sorted(set(packed_ids))
        rows = self._find(order)
        if self.needs_view:
            return
        pending = self._group.find_many(order)
        is_new_idle = self._min_idle_ms <= 0 or self._now_ms - self._time_ms >= self._min_idle_ms
        for packed in packed_ids:
            row = rows.get(packed)
            if row is None:
                self.gone.append(packed)
            elif packed in self._counts:
                count = self._next_count(self._counts[packed])
                if is_new_idle and not (self._letters is not None and self._letters.exceeds(count)):
                    del self._counts[packed]  # it moves behind those that were taken since
                    self._take(packed, row, count)
            elif (entry := pending.get(packed)) is not None:
                if self._is_idle(entry):
                    self._deliver(packed, row, entry)
            elif force:
                self._take(packed, row, self._next_count(1))

    def consider_run(self, run: PendingRun, most_examined: int, most: int) -> int:
        """Take idle entries of a run, up to `most` together with deleted ones; -> how many were examined."""
        packed_ids = run.packed_ids[:most_examined]
        rows = self._find(packed_ids)
        if self.needs_view:
            return 0
        is_idle = self._is_idle(run)
        # rows of other entries may stand in between, so their number says nothing
        if not is_idle and all(map(rows.__contains__, packed_ids)):
            return len(packed_ids)
        for examined, packed in enumerate(packed_ids):
            if self.found == most:
                return examined
            row = rows.get(packed)
            if row is None:
                self.gone.append(packed)
            elif is_idle and self._letters is None:
                self._take(packed, row, self._next_count(run.delivery_count))
            elif is_idle:
                if self._is_left_over(run):
                    return examined  # the next command takes it
                self._deliver(packed, row, PendingEntry(unpack_id(packed), *run[1:]))
        return len(packed_ids)

    def _is_idle(self, entry: PendingEntry | PendingRun) -> bool:
        if self._min_idle_ms <= 0 or entry.owner is None:
            return True
        return self._now_ms - entry.delivery_time_ms >= self._min_idle_ms

    def _is_left_over(self, run: PendingRun) -> bool:
        letters = self._letters
        return letters is not None and letters.is_full and letters.exceeds(self._next_count(run.delivery_count))

    def _next_count(self, count: int) -> int:
        """The next delivery count of an entry with this one."""
        if self._retry_count is not None:
            return self._retry_count
        return count if self._just_id else add_counts(count, 1)

    def _deliver(self, packed: bytes, row: bytes, entry: PendingEntry) -> None:
        """Take the entry, or note it as a dead letter when it is over the delivery limit of the group."""
        count = self._next_count(entry.delivery_count)
        if self._letters is None or not self._letters.exceeds(count):
            self._take(packed, row, count)
        else:
            self._letters.take(entry, row or self._stream.entry(entry.entry_id) or b"", count)

    def _take(self, packed: bytes, row: bytes, count: int) -> None:
        self._counts[packed] = count
        self.taken.append(packed)
        self._rows.append(row)
        self._size += len(row)

    @property
    def found(self) -> int:
        """How many entries were taken, found deleted, or are to be moved."""
        moved = 0 if self._letters is None else len(self._letters.found)
        return len(self.taken) + len(self.gone) + moved

    def apply(self, consumer: Consumer) -> None:
        self._stream.txn.changes += len(self.taken)
        if self.gone:
            self._group.ack(self.gone)
        if self._letters is not None:
            self._letters.move()
        self._group.claim(consumer, self._counts, self._time_ms, self._now_ms)

    def parts(self) -> list[Part]:
        """The entries taken, without the head of the array."""
        if self._just_id:
            pairs = zip(self.taken, self._rows, strict=True)
            return [b"".join([id_wire(row) if row else id_bulk(unpack_id(packed)) for packed, row in pairs])]
        if self._showing is not None:
            return self._showing.parts(self.taken)
        self._room.take(self._size, len(self._rows))
        return [b"".join([entry_wire(row) for row in self._rows])]


# -- XCLAIM ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _ClaimOptions:
    """XCLAIM's words from the IDs on."""

    packed_ids: list[bytes] = field(default_factory=list)
    idle_ms: int | None = None
    time_ms: int | None = None
    retry_count: int | None = None
    last_id: StreamID = MIN_ID
    force: bool = False
    just_id: bool = False


def _take_claim_options(words: list[bytes]) -> Generator[None, None, _ClaimOptions]:
    """IDs up to the first word that is no ID; options must follow, so a mistyped ID is reported as an option."""
    options = _ClaimOptions()
    position = 0
    for word in words:
        entry_id = parse_id(word)
        if entry_id is None:
            break
        options.packed_ids.append(pack_id(entry_id))
        position += 1
        if position % _SLICE_EXAMINED == 0:
            yield
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
    "XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-milliseconds] [RETRYCOUNT count] "
    "[FORCE] [JUSTID] [LASTID lastid]",
    Flag.WRITE | Flag.FAST,
    summary="Takes over pending entries from other consumers.",
    tips=("nondeterministic_output",),
)
def xclaim(request: Request) -> Reply:
    """XCLAIM key group consumer min-idle-time id ... [options] -> the entries claimed, or their IDs with JUSTID."""
    words = len(request.argv)
    found = look_up_group(request, request.argv[1], request.argv[2])
    if not request.from_log and (words == 6 or (words == 7 and request.argv[6] == b"JUSTID")):
        reply = _claim_one(request, *found, just_id=words == 7)
        if reply is not None:
            return reply
    return in_slices(request, partial(_claim, found[1].group_no), is_short=words <= _SLICE_IDS, entries=words)


def _claim_one(request: Request, stream: Stream, group: Group, *, just_id: bool) -> Reply:
    """XCLAIM of one ID, for which `_claim` takes many times as long; None when it is no plain case."""
    argv = request.argv
    min_idle_ms = parse_int(argv[4], _BAD_MIN_IDLE)
    packed = packed_id(argv[5])
    standing = None if packed is None else group.pel.standing(packed)
    if packed is None or standing is None or standing[0] == UNOWNED:
        return None
    owner_no, moment, count = standing
    asked = bulk(argv[5])
    if just_id:
        if not stream.has_packed(packed):
            return None
        wire = b"*1\r\n" + asked
    else:
        rows = stream.rows_of_within([packed], request.room)
        if not rows or dead_letters(request, group) is not None:
            return None
        wire = b"*1\r\n" + entry_wire(rows[packed])
        count = add_counts(count, 1)
    now_ms = request.now_ms
    consumer = group.get_or_create(argv[3], now_ms)
    if min_idle_ms > 0 and now_ms - time_of(owner_no, moment) < min_idle_ms:
        return []
    group.claim_one(consumer, packed, asked, owner_no, count, now_ms)
    request.txn.changes += 1
    return (wire,)


def _claim(group_no: int, request: Request) -> Work:
    room = Room(request)
    argv = request.argv
    min_idle_ms = parse_int(argv[4], _BAD_MIN_IDLE)
    options = yield from _take_claim_options(argv[5:])
    count = at = 0
    parts: list[Part] = []
    while True:
        found = group_again(request, argv[1], argv[2], group_no)
        if found is None:
            break
        stream, group = found
        now_ms, time_ms = _claim_times(request, options)
        letters = None if options.just_id else dead_letters(request, group)
        claims = _Claims(
            *(stream, group, min_idle_ms, now_ms, time_ms, letters, room),
            just_id=options.just_id,
            retry_count=options.retry_count,
        )
        claims.consider(options.packed_ids[at : at + _SLICE_IDS], force=options.force)
        if claims.needs_view:
            yield from room.wait_for_view()
            continue
        consumer = group.get_or_create(argv[3], now_ms)
        counted = request.txn.changes
        is_raised = not at and group.raise_position(options.last_id)
        claims.apply(consumer)
        if is_raised and request.txn.changes == counted:  # in Redis a claim has the position in it
            request.txn.changes += 1
        count += len(claims.taken)
        parts += claims.parts()
        at += _SLICE_IDS
        if at >= len(options.packed_ids):
            break
        yield first_ids(at, len(options.packed_ids))
    return room.reply([array_head(count), *parts])


def _claim_times(request: Request, options: _ClaimOptions) -> tuple[int, int]:
    """-> (now, delivery time).  In a log, TIME is also the time of the claim."""
    now_ms = request.now_ms
    if request.from_log and options.time_ms is not None:
        time_ms = min(max(options.time_ms, 0), MAX_TIME_MS)
        return time_ms, time_ms
    time_ms = now_ms
    if options.idle_ms is not None:
        time_ms = now_ms - options.idle_ms
    elif options.time_ms is not None:
        time_ms = options.time_ms
    return now_ms, time_ms if 0 <= time_ms <= now_ms else now_ms


# -- XAUTOCLAIM --------------------------------------------------------------------------------------------------------


@command(
    "XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]",
    Flag.WRITE | Flag.FAST,
    since="6.2.0",
    summary="Takes over, a portion at a time, pending entries that have been idle for long.",
    tips=("nondeterministic_output",),
)
def xautoclaim(request: Request) -> Reply:
    """XAUTOCLAIM key group consumer min-idle-time start [COUNT n] [JUSTID] -> [cursor, claimed, IDs found deleted]."""
    request.lookup(request.argv[1])  # as in Redis, it is counted also where a word is wrong
    return in_slices(request, _autoclaim)


def _autoclaim(request: Request) -> Work:
    room = Room(request)
    argv = request.argv
    min_idle_ms = parse_int(argv[4], BAD_MIN_IDLE.format("XAUTOCLAIM"))
    cursor = parse_range_start(argv[5])
    left, just_id = _DEFAULT_CLAIMS, False
    args = Args(argv, 6)
    while len(args):
        option = args.take_option()
        if option == b"COUNT" and len(args):
            left = args.take_int(COUNT_NOT_POSITIVE)
            if not 0 < left < _MAX_CLAIMS:
                raise CommandError(COUNT_NOT_POSITIVE)
        elif option == b"JUSTID":
            just_id = True
        else:
            raise CommandError(errors.SYNTAX)
    begun_on = need_group(request, argv[1], argv[2])
    group_no = begun_on[1].group_no
    found: tuple[Stream, Group] | None = begun_on
    most_examined = left * _EXAMINED_A_CLAIM
    claimed = gone_count = 0
    parts: list[Part] = []
    gone: list[Part] = []
    while found is not None:
        stream, group = found
        letters = None if just_id else dead_letters(request, group)
        now_ms = request.now_ms
        claims = _Claims(stream, group, min_idle_ms, now_ms, now_ms, letters, room, just_id=just_id)
        examined, end = _examine(group, claims, cursor, min(most_examined, _SLICE_EXAMINED), min(left, _SLICE_CLAIMS))
        if claims.needs_view:
            yield from room.wait_for_view()
            found = group_again(request, argv[1], argv[2], group_no)
            continue
        claims.apply(group.get_or_create(argv[3], now_ms))
        claimed += len(claims.taken)
        parts += claims.parts()
        gone_count += len(claims.gone)
        gone.append(b"".join([id_bulk(unpack_id(packed)) for packed in claims.gone]))
        most_examined -= examined
        left -= claims.found
        cursor = MIN_ID if end is None else end
        if end is None or not left or not most_examined or (letters is not None and letters.is_full):
            break
        yield f"{claimed} entries claimed; a call that goes on begins at {id_text(cursor).decode()}"
        found = group_again(request, argv[1], argv[2], group_no)
    else:
        cursor = MIN_ID  # the group was deleted between slices, and its pending entries with it
    head = b"*3\r\n" + id_bulk(cursor) + array_head(claimed)
    return room.reply([head, *parts, array_head(gone_count), *gone])


def _examine(
    group: Group, claims: _Claims, start: StreamID, most_examined: int, most: int
) -> tuple[int, StreamID | None]:
    """Consider the pending entries from `start` on; -> how many were examined, and the next ID, None at the end."""
    examined = 0
    for run in group.pending_runs(start):
        if examined == most_examined or claims.found == most:
            return examined, unpack_id(run.packed_ids[0])
        seen = claims.consider_run(run, most_examined - examined, most)
        if claims.needs_view:
            return examined, unpack_id(run.packed_ids[0])
        examined += seen
        if seen < len(run.packed_ids):
            return examined, unpack_id(run.packed_ids[seen])
    return examined, None
