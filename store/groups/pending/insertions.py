"""In which order pending entries of one group were delivered, where the time does not say it.

Entries that were delivered in the same millisecond are taken in the order in which they became pending, or were
delivered again.  Nearly always that is the order of their IDs.  An entry whose ID is below that of the one before it
begins a new **turn** of its millisecond:

    inserted   5-0 6-0 9-0  2-0 3-0  1-0  7-0        all at 1700000000000
    turn       0   0   0    1   1    2    2

A row has time and turn in one number, its **moment**.  A millisecond has 65,536 turns; what comes behind them joins the
last one, in the order of IDs.  The log has no turns: its commands stand in the order of execution.  A rewritten log has
neither, and leaves the order of IDs.

To give a turn takes the last insertion at that time.  In memory are the last one of all and those since the young
entries were last written; earlier ones are looked up in the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.store.format.pending import MAX_TIME_MS, MAX_TURN, ONE_TURN, group_prefix, time_prefix
from riverbed.store.groups.pending.runs import PendingRuns

if TYPE_CHECKING:
    from riverbed.store.tables.writing.transaction import Transaction

# Times whose last insertion is remembered: more than there are milliseconds between two checkpoints.
_MOST_TIMES = 1024
_LAST_TURN: Final = MAX_TURN * ONE_TURN


class Insertions(PendingRuns):
    """The runs of a group, and when those that come next are inserted."""

    def __init__(self, txn: Transaction, group_no: int, is_alive: Callable[[int], bool]) -> None:
        """As `PendingRuns`."""
        super().__init__(txn, group_no, is_alive)
        self._change_begins = txn.change_begins
        self._at_ms = -1  # the time of the last insertion, -1 for none
        self._moment = 0  # what it got
        self._end = b""  # its last ID
        self._newest_ms = -1  # nothing was inserted at a later time; -1 when the tables were not asked yet
        self._ends: dict[int, tuple[int, bytes]] = {}  # by time: the moment of the last insertion, and its last ID

    def _insert(self, time_ms: int, first: bytes, last: bytes) -> int:
        """The moment of entries that are inserted now, delivered at `time_ms`: ascending IDs from `first` to `last`."""
        if time_ms != self._at_ms:
            self._go_to(time_ms)
        if first < self._end and self._moment < _LAST_TURN:
            self._moment += ONE_TURN
        self._end = last
        return self._moment

    def _go_to(self, time_ms: int) -> None:
        """Make the last insertion at `time_ms` the one that the next follows.  Raises DamagedRowError."""
        time_ms = min(time_ms, MAX_TIME_MS)
        ends = self._ends
        if self._at_ms >= 0:
            ends[self._at_ms] = self._moment, self._end
        self._change_begins()
        if len(ends) > _MOST_TIMES:
            self._rows("pel_by_time")
            ends.clear()
        if self._newest_ms < 0:
            newest = self._last_below(group_prefix(self._group_no + 1))
            self._newest_ms = 0 if newest is None else newest.time_ms
        moment, end = time_ms, b""
        if time_ms > self._newest_ms:
            self._newest_ms = time_ms
        elif time_ms in ends:
            moment, end = ends[time_ms]
        elif (run := self._last_below(time_prefix(self._group_no, time_ms + 1))) is not None and run.time_ms == time_ms:
            moment, end = run.moment, run.last
        self._at_ms, self._moment, self._end = time_ms, moment, end

    def _all_is_written(self) -> None:
        """Forget insertions that the tables have by now."""
        self._ends.clear()
