"""The runs of one group: how pending entries lie in the tables, and all that is asked of them.

A **run** is a row for up to a hundred neighbouring entries of one owner with the same delivery time, turn and count, as
the entries that one XREADGROUP has delivered.  Three tables hold it:

    pel               group_no, last id                -> consumer_no, moment, delivery_count, id id id ...
    pel_by_consumer   group_no, consumer_no, last id   -> nothing
    pel_by_time       group_no, time + 1, turn, last id -> nothing        the longest idle first
                      group_no, 0, release_no          -> last id         entries without owner, in order of release

    3-0 4-0 5-0 6-0 7-0 8-0 9-0      delivered to Alice, three at a time
    [---------] [---------] [-]      three runs, under 5-0, 8-0 and 9-0
    [-] |B| [-] [---------] [-]      Bob claims 4-0: its run is cut in three

Runs do not overlap, so the only run that may hold an ID is the first one whose last ID is not below it.

Only the run names its owner.  DELCONSUMER of a consumer with a million pending entries only deletes the consumer's
number.  A run under a number that no consumer has is dead: every reader skips it, and it waits for the purge
(`store/tables/dead_rows.py`).  Memory holds no copy of the runs in the tables.

The turn orders entries that were delivered in one millisecond; see `insertions.py`.

Rows and trees may have flipped bits.  A search therefore looks at the rows on both sides of where it ends, and raises
DamagedRowError instead of an answer that lacks a run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import (
    UNOWNED,
    Run,
    first_in_run,
    group_prefix,
    last_in_key,
    last_in_run,
    owner_of_run,
    owner_prefix,
    time_key,
)
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, pack_id, unpack_id
from riverbed.store.tables.damage.sound import SoundStretches, sound_stretch
from riverbed.store.tables.places import ordered_rows, require_place, seek, seek_below

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.tables.view import View
    from riverbed.store.tables.writing.transaction import Transaction

# Numbers of consumers, asked for again each time that they are needed.
Owners = Callable[[], Iterable[int]]

# Runs read at once.
_CHUNK: Final = 16
# Rows changed at once, with a None for each that is no neighbour: what is made of more leaves the processor's cache.
_ROWS: Final = 128
# After more than this many dead runs in a row, the next living run is looked up in the consumers' own lists.
_MAX_DEAD: Final = 64

_IN_INDEX: Final = "a key in the index of pending entries by time"


class PendingRuns:
    """The runs of group `group_no`, in the tables or in a snapshot of them.

    `is_alive` is true if a consumer has the number.
    """

    def __init__(self, txn: Transaction | View, group_no: int, is_alive: Callable[[int], bool]) -> None:
        self._txn = txn
        self._group_no = group_no
        self._prefix = group_prefix(group_no)
        self._is_alive = is_alive
        self._sound = SoundStretches()  # keys between which no damaged one was found since rows have changed

    def _lives(self, consumer_no: int) -> bool:
        return consumer_no == UNOWNED or self._is_alive(consumer_no)

    def _rows(self, table: str) -> lmdb.Cursor[bytes]:
        """The cursor over a table that has all pending entries."""
        return self._txn.cursor(table)

    def _run_for(self, packed_id: bytes) -> Run | None:
        """The only run that may hold an ID: the first run that does not end before the ID."""
        return self._run_in(self._rows("pel"), packed_id)

    def _run_in(self, cursor: lmdb.Cursor[bytes], packed_id: bytes) -> Run | None:
        cursor.set_range(self._prefix + packed_id)
        return self._run_at(cursor, packed_id)

    def _run_at(self, cursor: lmdb.Cursor[bytes], packed_id: bytes) -> Run | None:
        """As `_run_in`, of a cursor that was led to this ID: another search from there may be led elsewhere."""
        run: Run | None = None
        key, row = cursor.item()
        if key:
            run = Run.under(key, row)
            if not key.startswith(self._prefix):
                run = None
        if run is None or not run.first <= packed_id <= run.last:
            low = self._prefix + packed_id
            require_place(cursor, low, Run.under)
            if low not in self._sound:
                self._sound.add(*sound_stretch(cursor, len(self._prefix), Run.under))
        return run

    def _rows_with(self, order: list[bytes], at: int) -> tuple[list[tuple[bytes, bytes] | None], int]:
        """The rows of the runs in the tables that hold the pending IDs `order` from `at` on; -> them, and how far.

        They are (key, row), None between those that are no neighbours; a few hundred at most.
        """
        cursor, prefix = self._txn.cursor("pel"), self._prefix
        rows: list[tuple[bytes, bytes] | None] = []
        while at < len(order) and len(rows) < _ROWS:
            packed = order[at]
            low = prefix + packed
            if not rows or not cursor.next() or cursor.key() < low:
                rows.append(None)
                if not cursor.set_range(low):
                    break
            key, row = cursor.item()
            if first_in_run(row) > packed or not key.startswith(prefix):
                break
            rows.append((key, row))
            at += 1
            last = last_in_key(key)
            if at < len(order) and order[at] <= last:
                at = bisect_right(order, last, at)
        else:
            return rows, at
        self._run_in(cursor, packed)
        raise DamagedRowError("the list of pending entries")

    def holding(self, order: list[bytes]) -> Iterator[tuple[Run, list[bytes]]]:
        """(living run, the IDs of `order` that it holds); `order` is ascending and has each ID once.

        Does one look-up for each run, not for each ID.  The caller may change the run yielded last, and no other row.
        """
        self._rows("pel")
        return self._holding_in_tables(order)

    def _holding_in_tables(self, order: list[bytes]) -> Iterator[tuple[Run, list[bytes]]]:
        at, total = 0, len(order)
        while at < total:
            run = self._run_in(self._txn.cursor("pel"), order[at])
            if run is None:
                return
            first = run.first
            if order[at] < first:
                at = bisect_left(order, first, at)
            end = bisect_right(order, run.last, at)
            asked = order[at:end]
            at = end
            if asked and self._lives(run.consumer_no):
                held = run.held(asked)
                if held:
                    yield run, held

    def holds_any_from(self, start: StreamID) -> bool:
        """Whether there is a run, dead or alive, with an ID >= start."""
        return self._run_for(pack_id(start)) is not None

    def runs(self, start: StreamID, end: StreamID, owners: Owners) -> Iterator[Run]:
        """The runs with start <= id <= end, in ID order, cut to that range.  They may change during the iteration.

        `owners` gives the numbers of the consumers with pending entries; they are needed to skip many dead runs.
        """
        first, last = pack_id(start), pack_id(end)
        low = self._prefix + first
        dead = 0
        size = 2  # most queries are for a few entries
        while self._leads_to(cursor := self._rows("pel"), low):
            # other code may move the cursor before the caller asks this generator for the next run
            chunk = list(islice(cursor.iternext(), size))
            for key, row in chunk:
                run = Run.under(key, row)
                if not key.startswith(self._prefix) or run.first > last:
                    return
                if self._lives(run.consumer_no):
                    dead = 0
                    cut = run.within(first, last)
                    if cut is not None:
                        yield cut
                else:
                    dead += 1
            if len(chunk) < size:
                return
            size = _CHUNK
            low = chunk[-1][0] + b"\0"
            if dead > _MAX_DEAD:
                living = self._next_living(last_in_key(chunk[-1][0]), owners())
                if living is None:
                    return
                low, dead = self._prefix + living, 0

    def rows(
        self, start: StreamID, end: StreamID, consumer_no: int | None, owners: Owners, size: int
    ) -> tuple[list[bytes], StreamID | None]:
        """About `size` rows from `start` on, of one consumer if it is given; -> rows, and where to go on, None if not.

        The first and the last row may have IDs outside of the range.  Some may be dead; many together are left out.
        """
        last = pack_id(end)
        if consumer_no is not None:
            found = [run.pack(self._prefix) for run in islice(self.owned(consumer_no, start, end), size)]
            is_last = len(found) < size
        else:
            found, is_last = self._read(self._prefix + pack_id(start), size)
        if is_last or not found:
            return found, None
        position = last_in_run(found[-1])
        if consumer_no is None and size > _MAX_DEAD and not any(map(self._lives, map(owner_of_run, found))):
            living = self._next_living(position, owners())
            if living is None:
                return [], None
            found, position = [], max(position, self._before(living))
        return found, StreamID(unpack_id(position) + 1) if position < last else None

    def _before(self, living: bytes) -> bytes:
        """The ID before the run that ends with `living`."""
        run = self._run_for(living)
        assert run is not None, "a consumer's list holds what the group's does not"
        return pack_id(StreamID(unpack_id(run.first) - 1))

    def _read(self, low: bytes, size: int) -> tuple[list[bytes], bool]:
        """`size` rows from the key `low` on; -> rows, and whether these are all.  Without their keys they cost less."""
        cursor = self._rows("pel")
        if not self._leads_to(cursor, low):
            return [], True
        Run.under(*cursor.item())  # without their keys the rows are not compared with these
        found = list(islice(cursor.iternext(keys=False), size))
        if cursor.key().startswith(self._prefix):
            self._require_order(low, found)
            return found, False
        seek(cursor, low)  # behind them are other groups' rows, or none
        found = []
        for key, row in islice(cursor.iternext(), size):
            if not key.startswith(self._prefix):
                Run.under(key, row)  # with a damaged key it would be one of these
                break
            found.append(row)
        self._require_order(low, found)
        return found, True

    def _require_order(self, low: bytes, rows: list[bytes]) -> None:
        """Raise DamagedRowError unless the IDs of these runs ascend from the key `low` on, as those of a sound tree do.

        The first one may begin below `low`, but ends behind it.
        """
        is_behind = not rows or self._prefix + last_in_run(rows[0]) >= low
        if not is_behind or any(first_in_run(row) <= last_in_run(before) for before, row in pairwise(rows)):
            raise DamagedRowError("the order of rows")

    @staticmethod
    def _leads_to(cursor: lmdb.Cursor[bytes], low: bytes) -> bool:
        """Put the cursor on the first row from `low` on; -> whether there is one.  Raises DamagedRowError.

        It is searched for twice: where a page stands in the place of another, the second search, which sets out from
        the row that the first one has found, is led elsewhere.  This holds also where the row has the place in it: its
        checksum does not tell an earlier version of it, nor what the cursor meets behind it.
        """
        if seek(cursor, low, Run.under):
            require_place(cursor, low, Run.under)
        return seek(cursor, low, Run.under)

    def _next_living(self, after: bytes, owners: Iterable[int]) -> bytes | None:
        """The last ID of the first run that ends behind `after` and has a living owner or no owner."""
        cursor = self._rows("pel_by_consumer")
        ends = []
        for consumer_no in (UNOWNED, *owners):
            prefix = owner_prefix(self._group_no, consumer_no)
            if seek(cursor, prefix + after + b"\0") and cursor.key().startswith(prefix):
                ends.append(last_in_key(cursor.key()))
        return min(ends, default=None)

    def last_id(self, owners: Owners) -> StreamID | None:
        """The highest pending ID."""
        cursor = self._rows("pel")
        past = group_prefix(self._group_no + 1)
        if seek(cursor, past, Run.under):
            Run.under(*cursor.item())
            require_place(cursor, past, Run.under)
            found = cursor.prev()
        else:
            found = cursor.last()
        for _ in range(_MAX_DEAD):
            if not found or not cursor.key().startswith(self._prefix):
                return None
            run = Run.under(*cursor.item())
            if self._lives(run.consumer_no):
                return unpack_id(run.last)
            found = cursor.prev()
        lists = self._rows("pel_by_consumer")
        ends = []
        for consumer_no in (UNOWNED, *owners()):
            prefix = owner_prefix(self._group_no, consumer_no)
            past = owner_prefix(self._group_no, consumer_no + 1)
            found = lists.prev() if seek(lists, past) else lists.last()
            if found and lists.key().startswith(prefix):
                ends.append(unpack_id(last_in_key(lists.key())))
        return max(ends, default=None)

    def edges(self, owners: Owners) -> tuple[StreamID, StreamID] | None:
        """The lowest and the highest pending ID; None when no entry is pending."""
        first = next(self.runs(MIN_ID, MAX_ID, owners), None)
        last = self.last_id(owners)
        return None if first is None or last is None else (unpack_id(first.first), last)

    def owned(self, consumer_no: int, start: StreamID, end: StreamID) -> Iterator[Run]:
        """As `runs`, for one living consumer."""
        prefix = owner_prefix(self._group_no, consumer_no)
        first, last = pack_id(start), pack_id(end)
        low = prefix + first
        size = 2
        before, chunk = ordered_rows(self._rows("pel_by_consumer"), low, size)
        if before is not None and before[0].startswith(prefix):
            self._require_own(before[0], consumer_no)
        elif before is not None:
            self._require_foreign(before[0], consumer_no)
        while chunk:
            for key, _ in chunk:
                if not key.startswith(prefix):
                    self._require_foreign(key, consumer_no)
                    return
                run = self._listed(key, consumer_no)
                if run is None or run.first > last:
                    return
                cut = run.within(first, last)
                if cut is not None:
                    yield cut
            if len(chunk) < size:
                return
            size = _CHUNK
            _, chunk = ordered_rows(self._rows("pel_by_consumer"), chunk[-1][0] + b"\0", size)

    def _listed(self, key: bytes, consumer_no: int) -> Run | None:
        """The run that a key of a consumer's list leads to.  Raises DamagedRowError when it leads to none."""
        last = last_in_key(key)
        runs = self._txn.cursor("pel")
        if runs.set_key(self._prefix + last):
            run = Run.under(*runs.item())
            if run.consumer_no == consumer_no:
                return run
        if self._txn.cursor("pel_by_consumer").set_key(key):
            raise DamagedRowError("a key in a consumer's list of pending entries")
        return self._run_for(last)  # the list has changed since the key was read

    def _require_own(self, key: bytes, consumer_no: int) -> None:
        """Raise DamagedRowError if a key of a consumer's list leads to none of its runs."""
        runs = self._txn.cursor("pel")
        if not runs.set_key(self._prefix + last_in_key(key)) or owner_of_run(runs.value()) != consumer_no:
            raise DamagedRowError("a key in a consumer's list of pending entries")

    def _require_foreign(self, key: bytes, consumer_no: int) -> None:
        """Raise DamagedRowError if a key beside those of a consumer's list is one of these, but for a flipped bit."""
        last = last_in_key(key)
        runs = self._txn.cursor("pel")
        if runs.set_key(self._prefix + last) and owner_of_run(runs.value()) == consumer_no:
            lists = self._txn.cursor("pel_by_consumer")
            if not lists.set_key(owner_prefix(self._group_no, consumer_no) + last):
                raise DamagedRowError("a key in a consumer's list of pending entries")

    def oldest(self, until_ms: int, most: int) -> list[Run] | None:
        """The runs without an owner and the runs delivered by `until_ms`; None when `most` runs were not enough."""
        found: list[Run] = []
        for looked_at, (_, run) in enumerate(self.by_time(b"")):
            if looked_at == most:
                return None
            if run is not None:
                if run.time_ms > until_ms and run.consumer_no != UNOWNED:
                    break
                found.append(run)
        return found

    def by_time(self, after: bytes) -> Iterator[tuple[bytes, Run | None]]:
        """(place, run) of released entries in order of release, then of owned entries, the longest idle first.

        None stands for each dead run, which takes as long to pass over.  The iteration continues behind the place
        `after`; empty is the beginning.
        """
        low = after + b"\0" if after else self._prefix
        before, chunk = ordered_rows(self._rows("pel_by_time"), low, _CHUNK)
        if not after and before is not None:
            self._require_foreign_place(*before)
        while chunk:
            for key, value in chunk:
                if not key.startswith(self._prefix):
                    self._require_foreign_place(key, value)
                    return
                run = self._placed(key, value or last_in_key(key))
                yield key, run if run is not None and self._lives(run.consumer_no) else None
            if len(chunk) < _CHUNK:
                return
            _, chunk = ordered_rows(self._rows("pel_by_time"), chunk[-1][0] + b"\0", _CHUNK)

    def _require_foreign_place(self, key: bytes, value: bytes) -> None:
        """Raise DamagedRowError if a key beside those of the group is one of them, but for a flipped bit."""
        last = value or last_in_key(key)
        self._require_place_of(self._run_for(last), last)

    def _placed(self, key: bytes, last: bytes) -> Run | None:
        """The run that a key of the index by time leads to.  Raises DamagedRowError when it leads to another."""
        run = self._run_for(last)
        if run is not None and time_key(self._group_no, run) == key:
            return run
        if self._txn.cursor("pel_by_time").set_key(key):
            raise DamagedRowError(_IN_INDEX)
        self._require_place_of(run, last)
        return run  # the index has changed since the key was read

    def _last_below(self, past: bytes) -> Run | None:
        """The run with an owner, dead or alive, that the tables have last in the index by time below the key `past`.

        None when the group has none there.  Raises DamagedRowError.
        """
        cursor = self._txn.cursor("pel_by_time")
        if not seek_below(cursor, past):
            return None
        key, value = cursor.item()
        if value or not key.startswith(self._prefix):
            return None
        run = self._run_in(self._txn.cursor("pel"), last_in_key(key))
        if run is None or time_key(self._group_no, run) != key:
            raise DamagedRowError(_IN_INDEX)
        return run

    def _require_place_of(self, run: Run | None, last: bytes) -> None:
        """Raise DamagedRowError if this is the run that ends with `last`, and the index by time does not lead to it."""
        if run is None or run.last != last:
            return
        if not self._txn.cursor("pel_by_time").set_key(time_key(self._group_no, run)):
            raise DamagedRowError(_IN_INDEX)
