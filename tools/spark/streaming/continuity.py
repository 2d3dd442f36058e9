"""Decides whether a store still has every entry that a streaming query has not read yet.

`offsets.py` keeps of each stream: the ID up to which it was read, how many entries had been added by then, the stream's
number, and one entry.

    this entry is there, unchanged           the same stream, and no trim has passed this entry
    another entry has its ID                 another stream: DEL and XADD, or another store
    it is gone, and so is all that was read  entries added since, less those that are there, were trimmed or deleted

A trim removes the oldest entries and does not record how many.  XDEL records its greatest ID (`max_deleted_id`) and
leaves holes.  A hole is not a loss, as a client deleted that entry on purpose; every other missing entry is a loss.
Holes that were there when the stream was read are no entries that it had to read: only newer ones explain what is
missing.  Their number is noted, and counts for too much once nodes with such holes are gone.  So is the first entry
that was not read: while it is there, no trim has come so far.

A store is recognized by its id, which stays the same as long as its streams continue: after restarts, on replicas, in
restored stores.  A store with another id counts as the same when it has an entry that was read, as after
`riverbed import`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

import xxhash

from riverbed.store.format.meta import read_numbering, read_replids
from riverbed.store.format.streams import StreamRow
from riverbed.store.ids import MAX_ID, StreamID, id_text
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.reader import TableReader
from riverbed.tools.columns.streams import StreamHere, key_text
from riverbed.tools.spark.reading.options import StreamName
from riverbed.tools.spark.streaming.counting import EntryCounts
from riverbed.tools.spark.streaming.offsets import Mark, Offset, Progress


def replids_of(reader: TableReader) -> ReplicationIds | None:
    """The store's id and its replication ids; None for tables that a tool has made."""
    return read_replids(reader.meta_row)


def progress_at(reader: TableReader, stream: StreamHere, end: StreamID, *, is_new: bool = False) -> Progress:
    """The progress of a stream that was read up to `end`."""
    row, counts = stream.row, EntryCounts(reader, stream.row)
    next_id = next(counts.ids(StreamID(end + 1)), None) if end < row.last_live_id else None
    holes = 0 if next_id is None else _holes(counts, row, next_id)
    seen = row.entries_added - counts.after(end)
    return Progress(end, seen, row.stream_no, _mark(reader, row, end), is_new, numbering_of(reader), holes, next_id)


def other_store(reader: TableReader, begin: Offset, here: Mapping[StreamName, StreamHere]) -> str | None:
    """Why this is not the store that was read up to `begin`; None when it is, or when nothing shows that it is not."""
    was, found = {begin.store_id, begin.replication_id} - {""}, replids_of(reader)
    if not begin.streams or not was or (found is not None and is_same_store(was, found)):
        return None
    marks = [(here[name], at.mark) for name, at in begin.streams.items() if name in here and at.mark is not None]
    if any(_is_there(reader, stream.row, mark) for stream, mark in marks):
        return None
    now = "no id" if found is None else f"id {found.with_store().store_id}"
    return f"another store ({now}) than the one that was read so far ({begin.store_id or begin.replication_id})"


def is_same_store(was: set[str], replids: ReplicationIds) -> bool:
    """Whether one of the ids of a store that was read is one of this store.

    Replication ids count as well: older versions recorded no store id, and a new store's id is its first replication
    id.
    """
    return not was.isdisjoint((replids.store_id, replids.replication_id, replids.previous_id))


def is_another(reader: TableReader, stream: StreamHere, at: Progress) -> bool:
    """Whether the key now holds another stream than the one that was read up to `at`."""
    row = stream.row
    if at == Progress():
        return False
    if row.last_id < at.last_id or row.entries_added < at.seen:
        return True
    if at.mark is not None and (found := _digest(reader, row, at.mark.entry_id)) is not None:
        return found != at.mark.digest
    if (row.last_id, row.entries_added) == (at.last_id, at.seen):
        return False  # nothing was added; the numbers may differ, as in rebuilt tables
    is_numbered_alike = at.numbering in ("", numbering_of(reader))
    return (is_numbered_alike and at.number not in (None, row.stream_no)) or _missing(row, at) < 0


def loss(reader: TableReader, stream: StreamHere, at: Progress) -> str | None:
    """Describe the entries of a stream that are gone and were not read; None when there are none.

    Single entries that were deleted do not count.  A stream of which nothing was read yet has no losses: the query
    begins with the entries that are there.
    """
    if at == Progress():
        return None
    read = id_text(at.last_id).decode()
    if is_another(reader, stream, at):
        return (
            f"stream {stream.key_text} was read up to {read} and is another one now, as after DEL and XADD: the old "
            f"one's entries behind that are lost; failOnDataLoss=false reads the new one from its beginning"
        )
    row = stream.row
    missing = _missing(row, at)
    is_next_there = at.next_id is not None and row.length and row.first_id == at.next_id
    if missing > 0 and not is_next_there and missing > _new_holes(reader, row, at):
        first = id_text(row.first_id).decode() if row.length else "its end"
        return (
            f"stream {stream.key_text} was trimmed up to {first}, and was read up to {read} by then: {missing} entries "
            f"are gone; failOnDataLoss=false goes on with the rest"
        )
    if (late_id := _added_late(reader, row, at)) is not None:
        return (
            f"stream {stream.key_text} was read up to {read}, and has entries below that since XSETID set its last ID "
            f"back, from {id_text(late_id).decode()} on; failOnDataLoss=false goes on without them"
        )
    return None


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a stream began with when a batch was planned that reads it from there.

    `sure_id` is its first entry behind all that were ever deleted one by one.
    """

    max_deleted_id: StreamID
    sure_id: StreamID

    @classmethod
    def of(cls, row: StreamRow, counts: EntryCounts) -> Beginning | None:
        """None for a stream that has no such entry."""
        if row.max_deleted_id == MAX_ID:
            return None
        sure_id = next(counts.ids(max(row.first_id, StreamID(row.max_deleted_id + 1))), None)
        return None if sure_id is None else cls(row.max_deleted_id, sure_id)


def trimmed_since(stream: StreamHere, planned: Beginning) -> str | None:
    """Describe what a trim has taken of a task's part of a stream since the plan; None when it has taken nothing.

    Where entries may have been deleted one by one, it is not known whether there was a trim.
    """
    row = stream.row
    if row.length and row.first_id <= max(planned.sure_id, stream.range.first):
        return None
    if row.max_deleted_id > planned.max_deleted_id:
        return None
    first = id_text(row.first_id).decode() if row.length else "its end"
    return (
        f"stream {stream.key_text} was trimmed up to {first} while its first batch was read; failOnDataLoss=false goes "
        "on with the rest"
    )


def deleted_loss(streams: Mapping[StreamName, Progress]) -> str:
    """The error text for streams that were read and are not there any more."""
    names = ", ".join(f"{key_text(key)} (up to {id_text(at.last_id).decode()})" for (_, key), at in streams.items())
    return f"deleted after it was read, with all entries behind that: {names}; failOnDataLoss=false goes on without"


def numbering_of(reader: TableReader) -> str:
    """The id of the tables that gave the streams their numbers; empty when an older version made the tables."""
    return read_numbering(reader.meta_row)


def _missing(row: StreamRow, at: Progress) -> int:
    """How many entries were added after `at` and are not there; 0 while the stream still has an entry that was read."""
    if row.length and row.first_id <= at.last_id:
        return 0
    return row.entries_added - at.seen - row.length


def _added_late(reader: TableReader, row: StreamRow, at: Progress) -> StreamID | None:
    """The first entry below `at` that was not there when the stream was read up to it; None when there is none."""
    if at.number is None or row.entries_added <= at.seen or not row.length or row.first_id > at.last_id:
        return None  # an older version noted neither the number nor the mark
    counts = EntryCounts(reader, row)
    first = StreamID(1) if at.mark is None else StreamID(at.mark.entry_id + 1)
    late_id = next(counts.ids(first, at.last_id), None) if first <= at.last_id else None
    # Below the mark XSETID lets none in before that is gone.
    if row.max_deleted_id > at.last_id or (at.mark is not None and _is_there(reader, row, at.mark)):
        return late_id
    # Nothing behind `at` was deleted, nor trimmed, as an entry up to `at` is there: what was added is known.
    return (late_id or row.first_id) if row.entries_added - counts.after(at.last_id) > at.seen else None


def _new_holes(reader: TableReader, row: StreamRow, at: Progress) -> int:
    """How many entries were surely deleted one by one since the stream was read up to `at`, or one."""
    if row.max_deleted_id <= at.last_id:
        return 0
    holes = _holes(EntryCounts(reader, row), row, row.first_id)
    if at.numbering == numbering_of(reader):  # tables that were made again have other nodes
        holes -= at.holes
    return max(holes, 1)


def _holes(counts: EntryCounts, row: StreamRow, first: StreamID) -> int:
    """How many entries after `first`, which is there, were deleted one by one: those in nodes that begin there."""
    return sum(run.dead for run in takewhile(lambda run: run.first_id <= row.max_deleted_id, counts.runs(first)))


def _mark(reader: TableReader, row: StreamRow, end: StreamID) -> Mark | None:
    """A mark of the youngest entry up to `end`."""
    entry_id = StreamEntries(reader, row).last_id(end)
    digest = None if entry_id is None else _digest(reader, row, entry_id)
    return None if entry_id is None or digest is None else Mark(entry_id, digest)


def _is_there(reader: TableReader, row: StreamRow, mark: Mark) -> bool:
    return _digest(reader, row, mark.entry_id) == mark.digest


def _digest(reader: TableReader, row: StreamRow, entry_id: StreamID) -> str | None:
    """The digest of an entry; None when the entry is not there."""
    value = StreamEntries(reader, row).get(entry_id)
    return None if value is None else xxhash.xxh3_64_hexdigest(value)
