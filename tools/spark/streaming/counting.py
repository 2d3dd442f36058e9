"""How many entries a stream has in a range of IDs, and where a batch of several streams ends.

Nodes (`store/FORMAT.md`) hold the counts of some hundred entries each.  At the ends of the range the keys are counted
one by one:

    stream a   |----97----|----100----|--40--|
    stream b        |-----100------|----100----|-----12----|
                                 ^ cut: the same ID for all

IDs are times, so a cut at one ID is a cut in time: all entries of a later batch are younger than all of this one, and
no watermark drops them as late.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from riverbed.store.format.streams import NodeRow, StreamRow, decode_live_counts, id_in_key, stream_prefix
from riverbed.store.ids import MAX_ID, StreamID, id_ms, make_id, pack_id
from riverbed.store.streams.nodes import nodes_from
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.places import seek, seek_last
from riverbed.store.tables.reader import TableReader

_NODES_A_LOOK: Final = 4096


class Run(NamedTuple):
    """Consecutive entries: `live` of them, none below `first_id` or above `last_id`."""

    first_id: StreamID
    last_id: StreamID
    live: int
    dead: int  # deleted entries between them; 0 for a part of a node


class EntryCounts:
    """The entries of one stream in one transaction."""

    def __init__(self, reader: TableReader, row: StreamRow) -> None:
        self._reader = reader
        self._row = row
        self._prefix = stream_prefix(row.stream_no)

    def ids(self, first: StreamID, last: StreamID = MAX_ID) -> Iterator[StreamID]:
        """The IDs of the entries from `first` to `last`."""
        return StreamEntries(self._reader, self._row).ids(first, last)

    def runs(self, first: StreamID) -> Iterator[Run]:
        """The entries from `first` on, as runs."""
        row = self._row
        first = max(first, row.first_id)
        if not row.length or first > row.last_live_id:
            return
        for run in self._nodes(first):
            if run.first_id < first:
                live = sum(1 for _ in self.ids(first, run.last_id))
                yield Run(first, run.last_id, live, 0)
            else:
                yield run

    def after(self, entry_id: StreamID) -> int:
        """How many entries are younger than `entry_id`."""
        if entry_id >= self._row.last_live_id:
            return 0
        runs = self.runs(StreamID(entry_id + 1))
        head = next(runs, None)
        if head is None:
            return 0
        count = head.live
        if self._row.node_count and head.first_id < self._row.tail_first_id:
            cursor = self._reader.cursor("nodes")
            found = seek(cursor, self._prefix + pack_id(StreamID(head.last_id + 1)))
            nodes = cursor.iternext() if found else iter(())
            while rows := list(islice(nodes, _NODES_A_LOOK)):
                own = [item for item in rows if item[0].startswith(self._prefix)]
                count += sum(decode_live_counts(own))
                if len(own) < len(rows):
                    NodeRow.unpack(*rows[len(own)])  # a damaged key may have ended the walk
                    break
            count += self._row.tail_total - self._row.tail_dead
        return count

    def _nodes(self, first: StreamID) -> Iterator[Run]:
        """The nodes as runs, from the node on in which `first` is or would be."""
        row = self._row
        if row.node_count:
            cursor = self._reader.cursor("nodes")
            start = first
            if seek_last(cursor, self._prefix + pack_id(first)) and cursor.key().startswith(self._prefix):
                start = id_in_key(cursor.key())  # the node before may reach to here
            for first_id, (live, total, _, last_id) in nodes_from(cursor, self._prefix, start):
                if last_id >= first:
                    yield Run(first_id, last_id, live, total - live)
        if row.tail_total and row.tail_last_id >= first:
            live = row.tail_total - row.tail_dead
            yield Run(row.tail_first_id, row.tail_last_id, live, row.tail_dead)


@dataclass(frozen=True, slots=True)
class Unread:
    """The part of a stream that may be in the next batch."""

    counts: EntryCounts
    first_id: StreamID
    last_id: StreamID


def common_cut(streams: Sequence[Unread], most: int) -> StreamID:
    """The ID up to which all streams are read, so that the batch has at most `most` entries; MAX_ID: to their ends.

    A millisecond is not divided unless it has more than `most` entries itself.  Then the cut is at one sequence number
    for all streams, and the batch has more entries only when several streams have that ID.  The batch has at least
    one entry.
    """
    counted, resume, bound = _count_runs(streams, most)
    if bound is None:
        return MAX_ID
    ids = heapq.merge(*(each.counts.ids(first, each.last_id) for each, first in zip(streams, resume, strict=True)))
    beyond = next(islice(ids, most - counted, None), None)  # the first entry over the limit
    if beyond is None:
        return MAX_ID
    first = min(next(each.counts.ids(each.first_id, each.last_id), MAX_ID) for each in streams)
    before = StreamID(make_id(id_ms(beyond), 0) - 1)
    if first <= before:
        return before
    return StreamID(beyond - 1) if first < beyond else beyond


def _count_runs(streams: Sequence[Unread], most: int) -> tuple[int, list[StreamID], StreamID | None]:
    """Count whole runs, as long as they have at most `most` entries together.

    -> (entries of these runs, the ID to continue from in each stream, the ID below which the runs are or None when
    there are no more runs)
    """
    passed = []
    count = 0
    bound = None
    for run, number in heapq.merge(*(_numbered(each, number) for number, each in enumerate(streams))):
        count += run.live
        if count > most:
            bound = run.first_id
            break
        passed.append((run, number))
    counted = 0
    resume = [each.first_id for each in streams]
    for run, number in passed:
        if bound is not None and run.last_id < bound and run.last_id <= streams[number].last_id:
            counted += run.live
            resume[number] = StreamID(run.last_id + 1)
    return counted, resume, bound


def _numbered(stream: Unread, number: int) -> Iterator[tuple[Run, int]]:
    for run in stream.counts.runs(stream.first_id):
        if run.first_id > stream.last_id:
            return
        yield run, number
