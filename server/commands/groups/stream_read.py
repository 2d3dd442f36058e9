"""One stream of an XREADGROUP, read in slices: entries new to the group, those left by others, or a consumer's own.

    entries, with CLAIM      those that others have left idle for too long, then the new ones
    a history                the consumer's pending entries after an ID; dead letters are moved on the way

Each slice changes the group as far as it has read, so a client that goes away has been given what it was given.
"""

from __future__ import annotations

import enum
from itertools import groupby
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.groups.policies import dead_letters
from riverbed.server.commands.showing import Part, Room, Showing
from riverbed.server.commands.streams.entries import PAIR, entries_part
from riverbed.server.commands.streams.options import ReadOptions
from riverbed.server.commands.streams.reads import ReadBudget, stream_head
from riverbed.store.format.resp import array_head, id_bulk
from riverbed.store.format.streams import id_in_key, packed_ids_in, packed_ids_of
from riverbed.store.groups.pending_reads import MAX_OVER_LIMIT, PendingEntry
from riverbed.store.ids import MAX_ID, StreamID, pack_id, unpack_id

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.store.groups.group import Group
    from riverbed.store.groups.known_consumers import Consumer
    from riverbed.store.streams.stream import Stream

# Entries to a slice: 1.5 us each when they are new, 5 when they change hands.
SLICE_ENTRIES = 1000
_SLICE_HISTORY = 300
_MAX_TAKEN_OVER = 1000
_UNLIMITED: Final = 1 << 62
_NULL: Final = {2: b"*-1\r\n", 3: b"_\r\n"}
_FOUR: Final = b"*4\r\n"
_NEW: Final = b":0\r\n:0\r\n"  # idle time and delivery count of an entry that no consumer had


class Step(enum.Enum):
    """What comes next for a stream that is read."""

    LAST = enum.auto()
    GOES_ON = enum.auto()
    NEEDS_VIEW = enum.auto()  # before anything else is changed: the reply gets too long for memory


class StreamRead:
    """One stream of an XREADGROUP: what to read of it, how far that has come, and what it has given."""

    def __init__(
        self,
        key: bytes,
        group_no: int,
        position: StreamID,
        min_idle_ms: int | None,
        options: ReadOptions,
        budget: ReadBudget,
        room: Room,
    ) -> None:
        self.key = key
        self.group_no = group_no
        self.min_idle_ms = min_idle_ms  # of CLAIM, None without
        self._is_history = position != MAX_ID
        self._position = position
        self._options = options
        self._budget = budget
        self._room = room
        self._is_begun = False
        self._has_claimed = False
        self._is_counted = False
        self._end = MAX_ID
        self._left = 0  # entries still to be read
        self._is_cut_off = False  # the limits have left entries out
        self._has_moved_enough = False  # of entries over the delivery limit
        self.count = 0  # entries given
        self.claim_ms: int | None = None  # when the next CLAIM may find something, if this one has found nothing
        self.release_no = 0  # the next number of a release after the CLAIM
        self.spent = 0.0  # by the last step; 1 is a slice's worth
        self._parts: list[Part] = []

    def step(self, request: Request, stream: Stream, group: Group) -> Step:
        """Read a slice."""
        self.spent = 0.0
        consumer = group.get_or_create(self._options.consumer, request.now_ms)
        step = Step.LAST
        if not self._budget.exhausted:
            if not self._is_begun:
                self._is_begun = True
                count = self._budget.count
                self._left = _UNLIMITED if count is None else count
                self._end = stream.last_live_id  # what is added from now on is for the next read
            step = self._read_slice(request, stream, group, consumer)
        if step is not Step.NEEDS_VIEW and (self._budget.exhausted or not self._left):
            return Step.LAST
        return step

    def _read_slice(self, request: Request, stream: Stream, group: Group, consumer: Consumer) -> Step:
        showing = None if self._room.view is None else Showing(self._room.view, stream)
        if self._is_history:
            return self._read_history(request, stream, group, consumer, showing)
        if self.min_idle_ms is not None and not self._has_claimed:
            step = self._take_over(request, group, consumer, self.min_idle_ms, showing)
            self._has_claimed = step is not Step.NEEDS_VIEW
            if step is not Step.GOES_ON:
                return step
        return self._read_new(request, stream, group, consumer, showing)

    @property
    def is_served(self) -> bool:
        """Whether the reply has an item for this stream, if only an empty history."""
        return self.count > 0 or (self._is_begun and self._is_history and not self._is_cut_off)

    def parts(self, resp: int) -> list[Part]:
        """The key and the entries, as one item of the reply."""
        return [stream_head(self.key, resp) + array_head(self.count), *self._parts]

    def _cut(self, sizes: list[int]) -> int:
        """How many of the entries with these sizes are within the limits; the limits are charged with them."""
        count = self._budget.cut_sizes(None if self._parts else self.key, sizes)
        self._left -= count
        self.count += count
        return count

    def _count_change(self, request: Request) -> None:
        """Count what the read gives out of this stream, however much, as one change; history is none."""
        if not self._is_counted:
            self._is_counted = True
            request.txn.changes += 1

    def _keep(self, wire: bytes, entries: int) -> None:
        self._parts.append(wire)
        self._room.take(len(wire), entries)

    def _read_new(
        self, request: Request, stream: Stream, group: Group, consumer: Consumer, showing: Showing | None
    ) -> Step:
        """Read the entries that the group has not been given yet."""
        if stream.last_live_id <= group.last_id:
            return Step.LAST
        most = min(self._left, SLICE_ENTRIES)
        start = StreamID(group.last_id + 1)
        if showing is None:
            rows = stream.rows_within(start, self._end, most, self._room.left)
            if rows is None:
                return Step.NEEDS_VIEW
            sizes = [len(row) for _, row in rows] if self._budget.measures else [0] * len(rows)
        else:
            keys = stream.keys(start, self._end, most)
            # rows that end behind the ID: the entries are read when they are sent
            rows = [(key, id_bulk(id_in_key(key)) + b"*") for key in keys]
            sizes = showing.sizes(packed_ids_in(keys)) if self._budget.measures else [0] * len(keys)
        read = len(rows)
        self.spent += read / SLICE_ENTRIES
        fitting = self._cut(sizes)
        rows = rows[:fitting]
        if rows:
            group.deliver(consumer, rows, request.now_ms, to_pel=not self._options.noack)
            self._count_change(request)
            if showing is not None:
                packed_ids = packed_ids_of(rows)
                if self.min_idle_ms is None:
                    self._parts += showing.parts(packed_ids)
                else:
                    self._parts += showing.parts(packed_ids, _FOUR, [_NEW] * len(rows))
            elif self.min_idle_ms is None:
                self._keep(entries_part([row for _, row in rows]), len(rows))
            else:
                self._keep(b"".join([_FOUR + row + _NEW for _, row in rows]), len(rows))
        return Step.LAST if read < most else Step.GOES_ON

    def _read_history(
        self, request: Request, stream: Stream, group: Group, consumer: Consumer, showing: Showing | None
    ) -> Step:
        """Read the consumer's own pending entries after an ID; deleted ones have a null for their fields."""
        null = _NULL[request.session.resp]
        most = min(self._left, _SLICE_HISTORY)
        letters = dead_letters(request, group)
        entries: list[PendingEntry] = []
        rows: list[bytes] = []  # empty for those that are shown by the view
        gone: set[StreamID] = set()
        room = self._room.left if showing is None else None
        if room is not None and most * stream.txn.largest_row <= room:
            room = None  # no need to measure what cannot get too long
        is_last, looked, examined = True, self._position, 0
        for run in group.pending_runs(StreamID(self._position + 1), MAX_ID, consumer):
            packed_ids = run.packed_ids if letters is not None else run.packed_ids[: most - len(entries)]
            if showing is None:
                found = stream.rows_of_within(packed_ids, room)
                if found is None:
                    return Step.NEEDS_VIEW
            else:
                found = {packed: showing.row(packed) for packed in stream.present(packed_ids)}
            for packed in packed_ids:
                if len(entries) == most:
                    break
                entry_id = unpack_id(packed)
                row = found.get(packed)
                entry = PendingEntry(entry_id, consumer, run.delivery_time_ms, run.delivery_count)
                if row is None:
                    gone.add(entry_id)
                    row = id_bulk(entry_id) + null
                elif letters is not None and letters.exceeds(run.delivery_count + 1):
                    looked = entry_id
                    if not self._has_moved_enough:  # else it is left to the next command
                        letters.take(entry, row or stream.entry(entry_id) or b"", run.delivery_count + 1)
                    continue
                looked = entry_id
                entries.append(entry)
                rows.append(row)
                if room is not None:
                    room -= len(row)
                    if room < 0:
                        return Step.NEEDS_VIEW
            examined += len(packed_ids)
            if len(entries) == most or (letters is not None and (letters.is_full or examined >= MAX_OVER_LIMIT)):
                is_last = False
                break
        self.spent += len(entries) / _SLICE_HISTORY
        if letters is not None:
            self.spent += len(letters.found) / _SLICE_HISTORY
            letters.move()
            self._has_moved_enough |= letters.is_full
        sizes = [len(row) for row in rows] if self._budget.measures else [0] * len(rows)
        if showing is not None and self._budget.measures:
            shown = [pack_id(entry.entry_id) for entry, row in zip(entries, rows, strict=True) if not row]
            found_sizes = iter(showing.sizes(shown))
            sizes = [size or next(found_sizes) for size in sizes]
        kept = self._cut(sizes) if sizes else 0
        self._is_cut_off = kept < len(entries)
        read = entries[:kept]
        group.redeliver(consumer, [entry for entry in read if entry.entry_id not in gone], request.now_ms)
        if read:
            self._show_history(read, rows, showing)
        if kept == len(entries):
            self._position = looked
        elif read:
            self._position = read[-1].entry_id
        return Step.LAST if is_last or self._position == MAX_ID else Step.GOES_ON

    def _show_history(self, read: list[PendingEntry], rows: list[bytes], showing: Showing | None) -> None:
        if showing is None:
            self._keep(entries_part(rows[: len(read)]), len(read))
            return
        for is_shown, group in groupby(zip(read, rows, strict=False), key=lambda pair: not pair[1]):
            if is_shown:
                self._parts += showing.parts([pack_id(entry.entry_id) for entry, _ in group])
            else:
                self._parts.append(b"".join([PAIR + row for _, row in group]))

    def _take_over(
        self,
        request: Request,
        group: Group,
        consumer: Consumer,
        min_idle_ms: int,
        showing: Showing | None,
    ) -> Step:
        """Take over overdue entries, longest first, with idle time and delivery count; new entries come after them.

        More than a slice's worth is left to the next read, and the new entries too.
        """
        now_ms = request.now_ms
        most = min(self._left, _MAX_TAKEN_OVER)
        letters = dead_letters(request, group)
        most_bytes = self._room.left if showing is None else 0
        if showing is None and most_bytes == 0:
            return Step.NEEDS_VIEW
        overdue = group.overdue(min_idle_ms, now_ms, most, None if letters is None else letters.found, most_bytes)
        if overdue is None:
            return Step.NEEDS_VIEW
        self.spent += len(overdue) / _MAX_TAKEN_OVER
        if letters is not None:
            self.spent += len(letters.found) / _SLICE_HISTORY
            letters.move()
        self.claim_ms, self.release_no = group.next_claim_ms(min_idle_ms, now_ms), group.next_release_no
        if not overdue:
            return Step.GOES_ON
        packed_ids = [pack_id(entry.entry_id) for entry, _ in overdue]
        sizes = [0] * len(overdue)
        if self._budget.measures and showing is not None:
            sizes = [showing.sizes([packed])[0] for packed in packed_ids]
        elif self._budget.measures:
            sizes = [len(row) for _, row in overdue]
        kept = self._cut(sizes)
        if kept < len(overdue):
            group.claim_from_the_beginning()
        taken = [entry for entry, _ in overdue[:kept]]
        tails = [b":%d\r\n:%d\r\n" % (now_ms - entry.delivery_time_ms, entry.delivery_count) for entry in taken]
        if showing is not None:
            self._parts += showing.parts(packed_ids[:kept], _FOUR, tails)
        elif kept:
            wires = [_FOUR + row + tail for (_, row), tail in zip(overdue, tails, strict=False)]
            self._keep(b"".join(wires), kept)
        group.take_over(consumer, taken, now_ms)
        if taken:
            self._count_change(request)
        return Step.LAST if self._budget.exhausted or len(overdue) == most else Step.GOES_ON
