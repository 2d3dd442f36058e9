"""The pending entries list of one group: what changes it, and what is asked of single entries.

The tables keep it as runs (`runs.py`).  With runs, the delivery of a hundred entries costs three rows, and so
does their acknowledgement: 250 us together, against 460 with a row for each entry.  Acknowledging entries one by one
rewrites their run each time: 2 us instead of 1.

Deliveries since the last checkpoint, acknowledgements and claims of one entry are not in the tables, but in `young.py`.
XACK and such claims look there and into the tables; nearly any other question or change writes all of it first.

This module knows rows and numbers.  Names, counters and the log are in `group.py`.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.pending import Run, last_in_run, length_of_run
from riverbed.store.groups.pending.insertions import Insertions
from riverbed.store.groups.pending.run_rows import change_rows, cut_out, pieces, replace_runs
from riverbed.store.groups.pending.young import BEHIND_PART, FEW_CHANGED, MAX_IN_RUN, MAX_PART, Delivery, Young
from riverbed.store.wire import find_delivery

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.tables.writing.transaction import Transaction

# A run of which one ID in so many changes, or fewer, is not taken apart.
_CUTS: Final = 4
# So many entries are looked for together.
_MANY_SOUGHT: Final = 8
# The most IDs of entries whose rows have changed that a group remembers until the next commit: some 100 bytes each, and
# all groups together log less than a megabyte until then.
_MOST_REWRITTEN = 32_768


class Pel(Insertions):
    """The pending entries of group `group_no`, those that the tables do not have yet among them."""

    def __init__(self, txn: Transaction, group_no: int, is_alive: Callable[[int], bool]) -> None:
        """As `Insertions`; the group's young deliveries are empty at first."""
        super().__init__(txn, group_no, is_alive)
        self._young = Young(txn)
        self._write_txn = txn
        # the row of the living run of the tables that `standing` found last; None after a change
        self._recent: bytes | None = None

    def _rows(self, table: str) -> lmdb.Cursor[bytes]:
        young = self._young
        if young.batches or young.changed:
            self.write_young()
        return self._txn.cursor(table)

    # -- single entries ------------------------------------------------------------------------------------------------

    def standing(self, packed: bytes) -> Delivery | None:
        """One pending entry: its consumer, the moment of its delivery, its count; None when it is not pending, or dead.

        Leaves what has changed unwritten, and writes young deliveries if the ID may be one of theirs.
        """
        young = self._young
        if packed in young.changed:
            return young.changed[packed]
        if young.batches and not young.is_above([packed]):
            self.write_young()
        return self._standing_in_tables(packed)

    def standings(self, packed_ids: list[bytes]) -> list[Delivery | None]:
        """`standing` of each of these IDs.

        Of many it asks the last commit first, where it finds those that are far apart in less than half of the time.
        """
        if len(packed_ids) < _MANY_SOUGHT:
            return [self.standing(packed) for packed in packed_ids]
        if self._young.batches and not self._young.is_above(packed_ids):
            self.write_young()  # before the list is asked for: it may make the changed rows too many to be known
        rewritten = self._rewritten()
        if rewritten is None:
            return [self.standing(packed) for packed in packed_ids]
        committed = self._write_txn.committed_deliveries(self._prefix, packed_ids)
        return [
            self._standing_since(packed, delivery, rewritten)
            for packed, delivery in zip(packed_ids, committed, strict=True)
        ]

    def _standing_since(self, packed: bytes, committed: Delivery | None, rewritten: set[bytes]) -> Delivery | None:
        """`standing` of an entry with this delivery in the tables of the last commit, None if that is not known."""
        if committed is None or packed in rewritten or packed in self._young.changed:
            return self.standing(packed)
        return committed if self._lives(committed[0]) else self.standing(packed)

    def _rewritten(self) -> set[bytes] | None:
        """The IDs whose rows are not those of the last commit any more, of entries that it had; None if not known."""
        return self._write_txn.rewritten.setdefault(self._group_no, set())

    def _note_rewritten(self, packed_ids: list[bytes]) -> None:
        """Note that the rows of these entries are about to change."""
        rewritten = self._rewritten()
        if rewritten is not None:
            rewritten.update(packed_ids)
            if len(rewritten) > _MOST_REWRITTEN:
                self._write_txn.rewritten[self._group_no] = None

    def _standing_in_tables(self, packed: bytes) -> Delivery | None:
        """As `standing`, of the tables alone; where it finds the entry, `_recent` is the row of its run.

        Makes no `Run`, which costs as much as the search.
        """
        wanted, recent = self._prefix + packed, self._recent
        if recent is not None:
            delivery = find_delivery(None, recent, wanted)
            if delivery is not None:
                return delivery
        cursor = self._txn.cursor("pel")
        if cursor.set_range(wanted):
            key, row = cursor.item()
            try:
                delivery = find_delivery(key, row, wanted)
            except ValueError:
                delivery = None
            if delivery is not None:
                if not self._lives(delivery[0]):
                    return None
                self._recent = row
                return delivery
        self._run_at(cursor, packed)  # raises if a damaged row, or the tree above, hides the ID
        return None

    def _run_of(self, packed: bytes, most: int) -> Run | None:
        """The living run of the tables that has this ID, if it has no more than `most`; a longer one is not decoded."""
        if self._standing_in_tables(packed) is None:
            return None
        row = self._recent
        assert row is not None, "what was found is in no row"
        return None if length_of_run(row) > most else Run.unpack(self._prefix + last_in_run(row), row)

    def _rows_change(self) -> None:
        """Forget what was found in rows that may be other ones from now on."""
        self._recent = None
        self._sound.forget()

    def forget_recent(self) -> None:
        """Forget the run that `standing` found last: a consumer was deleted, and its runs are dead."""
        self._recent = None

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_new(self, packed_ids: list[bytes], consumer_no: int, time_ms: int, delivery_count: int = 1) -> None:
        """Add entries with ascending IDs that are above the IDs of all runs."""
        moment = self._insert(time_ms, packed_ids[0], packed_ids[-1])
        if not self._young.add(packed_ids, consumer_no, moment, delivery_count):
            self._write_part_now()

    def add_one(self, packed: bytes, consumer_no: int, time_ms: int) -> None:
        """As `add_new`, for an entry that is delivered for the first time."""
        if time_ms == self._at_ms and packed > self._end:  # mostly; a call takes 1 % of the time of a read
            self._end = packed
            moment = self._moment
        else:
            moment = self._insert(time_ms, packed, packed)
        if not self._young.add_one(packed, consumer_no, moment):
            self._write_part_now()

    def take_one(self, packed: bytes) -> int | None:
        """Remove an entry; -> its owner's number, None when it is not pending."""
        owner_no = self._young.take_one(packed)
        if owner_no is None and (standing := self.standing(packed)) is not None:
            owner_no = standing[0]
            self._change(packed, None)
        return owner_no

    def move_one(self, packed: bytes, consumer_no: int, time_ms: int, delivery_count: int) -> None:
        """`give` an entry that `standing` has found; its former owner must be alive until it is written."""
        if time_ms == self._at_ms and packed > self._end:
            self._end = packed
            moment = self._moment
        else:
            moment = self._insert(time_ms, packed, packed)
        self._change(packed, (consumer_no, moment, delivery_count))

    def _change(self, packed: bytes, delivery: Delivery | None) -> None:
        """Note the new state of an entry that `standing` has found."""
        txn = self._write_txn
        if not self._young.change(packed, delivery):
            self._write_part_now()
        elif txn.changed_ids > FEW_CHANGED:
            txn.overfull[self] = None

    def write_young(self) -> None:
        """Put what is young into the tables: at a checkpoint, and before nearly any use of the tables."""
        young = self._young
        try:
            if young.batches:
                self._replace([], young.drain())
            self._write_changed(young.drain_changed())
        except DamagedRowError:
            raise
        except BaseException:
            self._write_txn.lose()  # clients know of what was young, and a read is not undone
            raise
        self._all_is_written()

    def write_part(self) -> bool:
        """Put some of what is young into the tables, in about two milliseconds; -> whether this was all."""
        young = self._young
        if len(young.changed) >= len(young.batches):
            self._write_changed(young.drain_changed(MAX_PART))
        else:
            self._replace([], young.drain(MAX_PART))
        return not young.batches and not young.changed

    def write_behind(self) -> None:
        """Put some of what has changed into the tables.  The checkpoint meets a damaged row again, and reports it."""
        if self._write_txn.changed_ids > FEW_CHANGED:
            with contextlib.suppress(DamagedRowError):
                self._write_changed(self._young.drain_changed(BEHIND_PART))

    def _write_part_now(self) -> None:
        """Write because there is much in memory, in the midst of a change."""
        self._change_begins()
        self.write_part()

    def _write_changed(self, changed: dict[bytes, Delivery | None]) -> None:
        """Put changes that `Young.drain_changed` has given into the tables.

        Raises DamagedRowError with the changes young again that are not in the tables: clients know of them.
        """
        self._rows_change()
        order = list(changed)
        at = 0
        try:
            while at < len(order):
                rows, end = self._rows_with(order, at)
                self._note_rewritten(order[at:end])
                change_rows(self._txn.cursor, self._prefix, rows, order[at:end], changed)
                at = end
        except DamagedRowError:
            self._young.put_back({packed: changed[packed] for packed in order[at:]})
            raise

    def forget_young(self) -> None:
        """Forget what is young: the group was destroyed."""
        self._young.drain()
        self._young.drain_changed()

    def remove(self, packed_ids: list[bytes]) -> tuple[list[bytes], dict[int, int]]:
        """Remove entries; -> the IDs that were pending and alive, and how many of them each owner had."""
        young = self._young
        by_owner: dict[int, int] = {}
        at = 0
        if young.batches:
            for owner_no, size in young.take(packed_ids):
                self._change_begins()
                by_owner[owner_no] = by_owner.get(owner_no, 0) + size
                at += size
        if at < len(packed_ids):
            at = self._remove_runs(packed_ids, at, by_owner)
        removed = packed_ids[:at]
        changed = young.changed
        for packed in packed_ids[at:]:
            # `standing`, where all that is young is known to lie above
            standing = changed[packed] if packed in changed else self._standing_in_tables(packed)
            if standing is not None:
                self._change_begins()
                self._change(packed, None)
                removed.append(packed)
                by_owner[standing[0]] = by_owner.get(standing[0], 0) + 1
        return removed, by_owner

    def _remove_runs(self, packed_ids: list[bytes], at: int, by_owner: dict[int, int]) -> int:
        """Remove the runs that `packed_ids` has from `at` on, whole, and count them in `by_owner`; -> where they end.

        Entries that are acknowledged together mostly came together.
        """
        young = self._young
        if young.batches and not young.is_above(packed_ids):
            self.write_young()
        total = len(packed_ids)
        while at < total:
            run = self._run_of(packed_ids[at], total - at)
            if run is None:
                break
            size = len(run)
            asked = packed_ids[at : at + size]
            if b"".join(asked) != run.packed or not young.changed.keys().isdisjoint(asked):
                break
            at += size
            self._change_begins()
            self._replace([run], [])
            by_owner[run.consumer_no] = by_owner.get(run.consumer_no, 0) + size
        return at

    def give(self, counts: Mapping[bytes, int], consumer_no: int, time_ms: int) -> dict[int | None, int]:
        """Deliver entries to a consumer at `time_ms`, in the order of `counts`, which has delivery counts by packed ID.

        -> how many each former owner had, None for entries that were not pending.
        """
        self._rows("pel")
        self._change_begins()
        order = list(counts)
        if order == sorted(order):
            moment = self._insert(time_ms, order[0], order[-1])
            wanted = {packed: (consumer_no, moment, count) for packed, count in counts.items()}
        else:
            wanted = {}
            for packed, count in counts.items():
                wanted[packed] = consumer_no, self._insert(time_ms, packed, packed), count
        return self._assign_in_tables(wanted)

    def release(self, wanted: Mapping[bytes, Delivery]) -> dict[int | None, int]:
        """As `give`: take entries from their owners; `wanted` has what becomes of them by packed ID."""
        self._rows("pel")
        self._change_begins()
        return self._assign_in_tables(wanted)

    def _assign_in_tables(self, wanted: Mapping[bytes, Delivery]) -> dict[int | None, int]:
        """Change what `wanted` says.

        A run is cut if only a part of it is assigned, and pieces that differ in their IDs only become one run.
        """
        order = sorted(wanted)
        former: dict[int | None, int] = {}
        old: list[Run] = []
        new: list[Run] = []
        at = 0
        while at < len(order):
            begin, packed = at, order[at]
            run = self._run_in(self._txn.cursor("pel"), packed)
            if run is not None and run.first <= packed:
                at = bisect_right(order, run.last, at)
                old.append(run)
                asked = order[begin:at]
                had = len(run.held(asked))
                if had:
                    owner_no = run.consumer_no if self._lives(run.consumer_no) else None
                    former[owner_no] = former.get(owner_no, 0) + had
                if len(asked) > had:
                    former[None] = former.get(None, 0) + len(asked) - had
                    parts = pieces(sorted({*run.ids(), *asked}), wanted, run)
                elif had * _CUTS <= len(run):
                    parts = cut_out(asked, wanted, run)
                else:
                    parts = pieces(run.ids(), wanted, run)
            else:
                at = len(order) if run is None else bisect_left(order, run.first, at)
                former[None] = former.get(None, 0) + at - begin
                parts, run = pieces(order[begin:at], wanted, None), None
            is_next = False  # whether no ID is between the last piece and this one
            for piece in parts:
                if new and _fit(new[-1], piece) and (is_next or self._is_next(new[-1], piece, run)):
                    new[-1].packed += piece.packed
                else:
                    new.append(piece)
                is_next = run is not None
        self._replace(old, new)
        return former

    def _is_next(self, last: Run, piece: Run, cut: Run | None) -> bool:
        """Whether no pending ID is between `last` and `piece`; `cut` is the run of the tables that `piece` is of."""
        between = self._run_in(self._txn.cursor("pel"), last.last + b"\0")
        if between is None or (cut is not None and between.last == cut.last):
            return True
        return between.first > piece.first

    def _replace(self, old: list[Run], new: list[Run]) -> None:
        self._rows_change()
        if old:  # claims and acknowledgements of single entries are noted, and are more
            self._write_txn.rewritten[self._group_no] = None
        replace_runs(self._txn.cursor, self._group_no, old, new)


def _fit(last: Run, piece: Run) -> bool:
    """Whether the two can be one run, if no pending ID is between them."""
    return last.is_like(piece) and len(last) + len(piece) <= MAX_IN_RUN
