"""The groups and consumers of one stream as a view shows them: sorted by name, and read in slices.

Memory holds names and numbers; a row is read from the view when it is asked for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from heapq import merge
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format.groups import (
    ConsumerRow,
    GroupRow,
    consumer_key,
    group_key,
)
from riverbed.store.groups.pending.runs import PendingRuns
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID
from riverbed.store.tables.groups import consumer_rows, group_names
from riverbed.store.tables.view import OpenView

if TYPE_CHECKING:
    from riverbed.store.format.pending import Run
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.view import View

# Rows to a slice, and bytes of names: two milliseconds.
_SLICE_ROWS: Final = 500
_SLICE_BYTES: Final = 1 << 20


class Names:
    """Names with their numbers, gathered in slices: no slice has time to sort very many."""

    def __init__(self) -> None:
        self.count = 0
        self.owners: list[int] = []  # the numbers of consumers that have pending entries
        self._parts: list[list[tuple[bytes, int]]] = []

    def gather(
        self, named: Iterator[tuple[bytes, int, int]], *, only_owners: bool = False
    ) -> Generator[None, None, None]:
        """Add all of `named`, or only those that have pending entries: (name, number, pending entries) each."""
        part: list[tuple[bytes, int]] = []
        rows = size = 0
        for name, number, pending in named:
            if pending:
                self.owners.append(number)
            if pending or not only_owners:
                part.append((name, number))
            rows += 1
            size += len(name)
            if rows == _SLICE_ROWS or size >= _SLICE_BYTES:
                self._add(part)
                part = []
                rows = size = 0
                yield
        self._add(part)

    def _add(self, part: list[tuple[bytes, int]]) -> None:
        self.count += len(part)
        part.sort(reverse=True)
        self._parts.append(part)

    def taken(self) -> Iterator[tuple[bytes, int]]:
        """(name, number), in byte order of the names, once: all at the end would be freed in one turn, in 36 ms."""
        return merge(*map(_taken, self._parts))


def _taken(part: list[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    while part:
        yield part.pop()


class GroupsView:
    """The groups of `stream` in `view`, which has just been made."""

    def __init__(self, view: View, stream: Stream) -> None:
        if isinstance(view, OpenView):
            stream.txn.write_back()  # no checkpoint has
        self._view = view
        self._stream_no = stream.stream_no
        self._rows = view.new_cursor("groups")

    def groups(self) -> Generator[None, None, Names]:
        """The names and numbers of the groups."""
        names = Names()
        found = group_names(self._view.new_cursor("groups"), self._stream_no)
        yield from names.gather((name, group_no, 0) for group_no, name in found)
        return names

    def consumers(self, group_no: int, *, only_owners: bool = False) -> Generator[None, None, Names]:
        """The names and numbers of the consumers of a group, or of those that have pending entries."""
        names = Names()
        yield from names.gather(self._consumers(group_no), only_owners=only_owners)
        return names

    def _consumers(self, group_no: int) -> Iterator[tuple[bytes, int, int]]:
        for number, row in consumer_rows(self._view.new_cursor("groups"), self._stream_no, group_no):
            yield row.name, number, row.pel_count

    def group(self, group_no: int) -> GroupRow:
        key = group_key(self._stream_no, group_no)
        return GroupRow.unpack(key, self._row(key))

    def consumer(self, group_no: int, consumer_no: int) -> ConsumerRow:
        key = consumer_key(self._stream_no, group_no, consumer_no)
        return ConsumerRow.unpack(key, self._row(key))

    def _row(self, key: bytes) -> bytes:
        row = self._rows.get(key)
        if row is None:
            raise CorruptionError(f"{self._view.tables.path}: table groups", None, f"the row {key.hex()} is missing")
        return row

    def pending_runs(self, group_no: int, consumer_no: int | None, owners: list[int]) -> Iterator[Run]:
        """The runs of pending entries in ID order, of one consumer or, with None, of all; `owners` as of `Names`."""
        pending = self._pending(group_no)
        if consumer_no is not None:
            return _all_of(self.consumer(group_no, consumer_no).pel_count, pending.owned(consumer_no, MIN_ID, MAX_ID))
        return _all_of(self.group(group_no).pel_count, pending.runs(MIN_ID, MAX_ID, lambda: owners))

    def edges(self, group_no: int, owners: list[int]) -> tuple[StreamID, StreamID]:
        """The lowest and the highest pending ID of a group that has pending entries.  Raises DamagedRowError."""
        edges = self._pending(group_no).edges(lambda: owners)
        if edges is None:
            raise DamagedRowError("the list of pending entries", self._stream_no)
        return edges

    def _pending(self, group_no: int) -> PendingRuns:
        def is_alive(number: int) -> bool:
            return self._rows.set_key(consumer_key(self._stream_no, group_no, number))

        return PendingRuns(self._view, group_no, is_alive)


def _all_of(count: int, runs: Iterator[Run]) -> Iterator[Run]:
    """These runs, which have `count` entries.  Raises DamagedRowError at their end when they have not."""
    found = 0
    for run in runs:
        found += len(run)
        yield run
    if found != count:
        raise DamagedRowError("the list of pending entries")
