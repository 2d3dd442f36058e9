"""What is pending in a consumer group, read in the ways that its commands ask.  Nothing here changes it.

An entry is pending with its owner, the time of its delivery and how often it was delivered; `pending/pel.py` has the
rows.  Source: the pages of the group commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import UNOWNED, PelRow, Run, group_prefix, owner_of_run, release_prefix
from riverbed.store.format.resp import bulk
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.format.streams import add_counts
from riverbed.store.groups.consumers import Members
from riverbed.store.groups.known_consumers import Consumer
from riverbed.store.ids import ID_BYTES, MAX_ID, MIN_ID, StreamID, pack_id, unpack_id
from riverbed.store.wire import show_pending

ANY_TIME: Final = (1 << 63) - 1  # later than any delivery
# One CLAIM examines about this many entries at most, 2 us each.  If most of a long list are deleted entries, or those
# of a deleted consumer, the next CLAIM continues where this one stopped.
_MAX_EXAMINED: Final = 4000
_DEAD_COST: Final = 4  # of a run of a deleted consumer, in entries
# The place of a CLAIM that stopped is kept so long beside others that want longer idle times, and find nothing there.
_PLACE_KEPT_MS: Final = 60_000
# Where nothing can become due, a waiting CLAIM looks again after this time at least.  Each look is in the log, which
# says when the consumer was seen: a look each millisecond was three gigabytes a day.
_LEAST_PAUSE_MS: Final = 100
# The cost of a slice of XPENDING, in entries shown, each 0.15 us; a run that is skipped costs as much as two.
_SHOW_COST = 4000
_SHOW_ROWS = 128
# Longer names are not copied for each entry that XPENDING shows.
_LONG_NAME: Final = 256
_MARK: Final = re.compile(rb"@(\d+)@")
# At most about this many entries, to within a run, are moved to the dead-letter stream at once: 11 us each.
MAX_OVER_LIMIT: Final = 500
MAX_OVER_LIMIT_BYTES: Final = 1 << 20


class PendingEntry(NamedTuple):
    """An entry that was delivered and not acknowledged.  After XNACK `owner` is None and the time is 0."""

    entry_id: StreamID
    owner: Consumer | None
    delivery_time_ms: int
    delivery_count: int


class PendingRun(NamedTuple):
    """Neighbouring pending entries that differ in their IDs only; `packed_ids` is ascending."""

    packed_ids: list[bytes]
    owner: Consumer | None
    delivery_time_ms: int
    delivery_count: int


class Shown(NamedTuple):
    """Pending entries as XPENDING shows them: RESP, how many, and where to continue, None when these were all."""

    parts: list[bytes]
    entries: int
    position: StreamID | None


# A pending entry and its row in the stream.
Found = tuple[PendingEntry, bytes]


class PendingReads(Members):
    """The pending entries of a group, to be read."""

    _claim_place = b""  # where the last CLAIM stopped, empty for the beginning
    _claim_release_no = 0  # the number of the first release that it has not looked at
    _claim_min_idle_ms = 0  # what those were content with that have come there
    _claim_stopped_ms = 0  # when
    _first_young_ms: int | None = None  # the delivery time of the first run that it has left for later
    _claim_goes_on = False  # it has left entries that are due, or may be

    def find_many(self, packed_ids: list[bytes]) -> dict[bytes, PendingEntry]:
        """The pending entries among the ascending `packed_ids`, by packed ID."""
        if not self.pel_count:
            return {}
        found = {}
        for run, held in self.pel.holding(packed_ids):
            time_ms = run.time_ms
            for packed in held:
                row = PelRow(unpack_id(packed), run.consumer_no, time_ms, run.delivery_count)
                found[packed] = self._entry_of(row)
        return found

    def _entry_of(self, row: PelRow) -> PendingEntry:
        if row.consumer_no == UNOWNED:
            return PendingEntry(row.entry_id, None, 0, row.delivery_count)
        return PendingEntry(row.entry_id, self.consumers.numbered(row.consumer_no), row.time_ms, row.delivery_count)

    def pending(
        self, start: StreamID = MIN_ID, end: StreamID = MAX_ID, consumer: Consumer | None = None
    ) -> Iterator[PendingEntry]:
        """The pending entries with start <= id <= end, in ID order; only those of `consumer` if it is given.

        They may be changed during the iteration.
        """
        for run in self.pending_runs(start, end, consumer):
            for packed in run.packed_ids:
                yield PendingEntry(unpack_id(packed), run.owner, run.delivery_time_ms, run.delivery_count)

    def pending_runs(
        self, start: StreamID = MIN_ID, end: StreamID = MAX_ID, consumer: Consumer | None = None
    ) -> Iterator[PendingRun]:
        """As `pending`, but whole runs."""
        return map(self._run_of, self.runs(consumer, start, end))

    def runs(self, consumer: Consumer | None = None, start: StreamID = MIN_ID, end: StreamID = MAX_ID) -> Iterator[Run]:
        """As `pending_runs`, as the tables have them."""
        if not (self.pel_count if consumer is None else consumer.pel_count):
            return iter(())
        if consumer is None:
            return self.pel.runs(start, end, self.consumers.owner_nos)
        return self.pel.owned(consumer.consumer_no, start, end)

    def idle_runs(self, until_ms: int, most: int) -> list[PendingRun] | None:
        """The runs delivered by `until_ms` and the runs without an owner; None when `most` runs were not enough."""
        if not self.pel_count:
            return []
        found = self.pel.oldest(until_ms, most)
        return None if found is None else list(map(self._run_of, found))

    def _run_of(self, run: Run) -> PendingRun:
        if run.consumer_no == UNOWNED:
            return PendingRun(run.ids(), None, 0, run.delivery_count)
        return PendingRun(run.ids(), self.consumers.numbered(run.consumer_no), run.time_ms, run.delivery_count)

    def show(
        self,
        consumer: Consumer | None,
        start: StreamID,
        end: StreamID,
        now_ms: int,
        until_ms: int,
        most: int,
        only_while_found: bool = False,
    ) -> Shown:
        """What XPENDING answers for a range: entries of `consumer`, None for all, that were delivered by `until_ms`.

        At most `most` entries, and no more than one slice examines; with `only_while_found` the slice ends as soon as
        rows have none of them.
        """
        asked = None if consumer is None else {consumer.consumer_no: bulk(consumer.name)}
        parts: list[bytes] = []
        consumer_no = None if consumer is None else consumer.consumer_no
        count = cost = 0
        size = min(most, 2)  # mostly the entries asked for are in one run or two
        position: StreamID | None = start if self.pel_count else None
        while count < most and cost < _SHOW_COST and position is not None:
            rows, position = self.pel.rows(position, end, consumer_no, self.consumers.owner_nos, size)
            try:
                names = self.consumers.names_of(rows) if asked is None else asked
                is_long = self.consumers.longest > _LONG_NAME
                wire, found = show_pending(
                    group_prefix(self.group_no),
                    rows,
                    pack_id(start),
                    pack_id(end),
                    _marks(rows, names) if is_long else names,
                    now_ms,
                    until_ms,
                    most - count,
                )
            except DECODE_ERRORS:
                raise DamagedRowError("the list of pending entries", self.stream.stream_no) from None
            if is_long:
                parts += _with_names(wire, names)
            else:
                parts.append(wire)
            count += found
            cost += found + 2 * len(rows) + 1
            if only_while_found and not found:
                break
            size = min(most - count, _SHOW_ROWS) if found else _SHOW_ROWS
        return Shown(parts, count, position if count < most else None)

    def edges(self) -> tuple[StreamID, StreamID] | None:
        """The lowest and the highest pending ID; None when no entry is pending.  Raises DamagedRowError."""
        if not self.pel_count:
            return None
        edges = self.pel.edges(self.consumers.owner_nos)
        if edges is None:  # a count of pending entries without one
            raise DamagedRowError("the list of pending entries", self.stream.stream_no)
        return edges

    def letter_bytes(self, owner: Consumer | None) -> int:
        """The bytes of the names in a dead letter: it takes more than its entry by so much.

        Its own key is one of them: the log has that in the line of each letter.
        """
        key = self.policy.dead_letter or b""
        return len(key) + len(self.stream.key) + len(self.name) + (0 if owner is None else len(owner.name))

    def overdue(
        self,
        min_idle_ms: int,
        now_ms: int,
        most: int | None,
        over_limit: list[Found] | None = None,
        most_bytes: int | None = None,
    ) -> list[Found] | None:
        """The entries that CLAIM may take, with their fields: released ones, then those idle for `min_idle_ms`.

        Entries that are idle longest come first.  None when the entries exceed `most_bytes`; with a `most_bytes` of 0
        they come without fields.

        Entries that were deleted from the stream are skipped.  Idle time is unsigned, so a delivery in the future,
        after the clock was set back, is overdue too.  Entries over the delivery limit of the policy are put into the
        list `over_limit` instead, if it is given: up to MAX_OVER_LIMIT entries and MAX_OVER_LIMIT_BYTES.
        """
        self._first_young_ms = None
        self._claim_goes_on = False
        if not self.pel_count:
            return []
        found: list[Found] = []
        examined = size = worn_bytes = 0
        passed = self._claim_place, self._claim_release_no
        for behind, run in self._to_claim():
            if examined >= _MAX_EXAMINED:
                self._stop_at(*passed, min_idle_ms, now_ms)
                return found
            passed = behind
            if run is None:
                examined += _DEAD_COST
                continue
            self._first_young_ms = run.time_ms
            if run.consumer_no != UNOWNED and 0 <= now_ms - run.time_ms < min_idle_ms:
                if self._is_for_others(min_idle_ms, now_ms):
                    self._claim_release_no = self.next_release_no
                    return found
                break
            into = found
            if over_limit is not None and add_counts(run.delivery_count, 1) > self.policy.max_deliveries:
                if len(over_limit) >= MAX_OVER_LIMIT or worn_bytes >= MAX_OVER_LIMIT_BYTES:
                    break
                into = over_limit
            for row in run.rows():
                if len(found) == most:
                    self._claim_place = b""
                    return found
                if most_bytes == 0 and into is found:
                    entry_row = b"" if self.stream.has(row.entry_id) else None
                else:
                    entry_row = self.stream.entry(row.entry_id)
                if entry_row is None:
                    continue
                entry = self._entry_of(row)
                if into is found:
                    size += len(entry_row)
                    if most_bytes is not None and size > most_bytes:
                        return None
                elif worn_bytes < MAX_OVER_LIMIT_BYTES:
                    worn_bytes += len(entry_row) + self.letter_bytes(entry.owner)
                else:
                    self._claim_goes_on = True
                    continue
                into.append((entry, entry_row))
            examined += len(run)
        else:
            self._first_young_ms = None
        self._claim_place = b""
        return found

    def _to_claim(self) -> Iterator[tuple[tuple[bytes, int], Run | None]]:
        """The runs behind the place where the last CLAIM stopped, None for dead ones; -> each with where to go on.

        What has been released since comes first: its place is before that.
        """
        place, released = self._claim_place, release_prefix(self.group_no)
        if place and not place.startswith(released):
            for _, run in self.pel.by_time(released + (self._claim_release_no - 1).to_bytes(ID_BYTES, "big")):
                if run is None or run.consumer_no != UNOWNED:
                    break
                yield (place, run.time_ms + 1), run
        for behind, run in self.pel.by_time(place):
            yield (behind, self.next_release_no), run

    def _stop_at(self, place: bytes, release_no: int, min_idle_ms: int, now_ms: int) -> None:
        """Have the next CLAIM go on there."""
        least_ms = min(self._claim_min_idle_ms, min_idle_ms) if self._claim_place else min_idle_ms
        self._claim_min_idle_ms, self._claim_stopped_ms = least_ms, now_ms
        self._claim_place, self._claim_release_no = place, release_no
        self._claim_goes_on = True

    def _is_for_others(self, min_idle_ms: int, now_ms: int) -> bool:
        """Whether the place is left as it is, to those that are content with shorter idle times."""
        is_kept = 0 <= now_ms - self._claim_stopped_ms < _PLACE_KEPT_MS
        return self._claim_place != b"" and is_kept and min_idle_ms > self._claim_min_idle_ms

    def claim_from_the_beginning(self) -> None:
        """Have the next CLAIM find again what this one has found and left."""
        self._claim_place = b""

    def next_claim_ms(self, min_idle_ms: int, now_ms: int) -> int:
        """When the next CLAIM may find what the last one, which has found nothing, could not take yet."""
        if self._claim_goes_on:
            return now_ms + 1
        if self._first_young_ms is None:
            return now_ms + max(min_idle_ms, _LEAST_PAUSE_MS) + 1
        return max(self._first_young_ms + min_idle_ms, now_ms) + 1


def _marks(rows: list[bytes], names: dict[int, bytes]) -> dict[int, bytes]:
    """What stands for those of `names` that own the rows, where entries are shown; it is found in nothing else."""
    return {number: b"@%d@" % number for number in set(map(owner_of_run, rows)) if number in names}


def _with_names(wire: bytes, names: dict[int, bytes]) -> list[bytes]:
    """What was shown with marks, in parts; a name is one object in all of them, not a copy for each entry."""
    parts = _MARK.split(wire)
    return [names[int(part)] if at % 2 else part for at, part in enumerate(parts)]
