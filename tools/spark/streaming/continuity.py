"""Whether what a store has continues what a streaming query has read of it, or something in between is lost.

Of a stream we know what `offsets.py` keeps: up to which ID it was read, how many entries had been added by then, its
number, and one entry.

    the entry is there, as it was            the same stream, and a trim has not come past it
    another entry has its ID                 another stream: DEL and XADD, or another store
    it is gone, and so is all that was read  entries added since, less those that are there, were trimmed or deleted

Trims take the oldest entries, and leave no trace of how many; XDEL leaves its greatest ID (`max_deleted_id`) and holes.
What cannot be a hole is a loss; a hole is none: that entry was deleted on purpose.

A store is known by its id, which stays for as long as its streams go on: through starts, on replicas, in what is
restored.  One that has another id is the same when an entry that was read is there, as after `riverbed import`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xxhash

from riverbed.store.format.meta import read_numbering, read_replids
from riverbed.store.format.streams import StreamRow, entry_key, id_in_key, stream_prefix
from riverbed.store.ids import StreamID, id_text
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.tables.reader import TableReader
from riverbed.tools.spark.reading.options import key_text
from riverbed.tools.spark.reading.streamwalk import StreamHere
from riverbed.tools.spark.streaming.counting import EntryCounts
from riverbed.tools.spark.streaming.offsets import Mark, Offset, Progress, StreamName


def replids_of(reader: TableReader) -> ReplicationIds | None:
    """Which store it is, and its replication ids; None of tables that a tool has made."""
    return read_replids(reader.meta_row)


def progress_at(reader: TableReader, stream: StreamHere, end: StreamID, *, is_new: bool = False) -> Progress:
    """What to remember of a stream that was read up to `end`."""
    row = stream.row
    seen = row.entries_added - EntryCounts(reader, row).after(end)
    return Progress(end, seen, row.stream_no, _mark(reader, row, end), is_new, _numbering(reader))


def other_store(reader: TableReader, begin: Offset, here: Mapping[StreamName, StreamHere]) -> str | None:
    """Why this is not the store that was read up to `begin`; None when it is, or nothing speaks against it."""
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

    Its replication ids count as well: older versions have noted no others, and those of a new store begin with one.
    """
    return not was.isdisjoint((replids.store_id, replids.replication_id, replids.previous_id))


def is_another(reader: TableReader, stream: StreamHere, at: Progress) -> bool:
    """Whether the key has another stream now than the one that was read up to `at`."""
    row = stream.row
    if at == Progress():
        return False
    if row.last_id < at.last_id or row.entries_added < at.seen:
        return True
    if at.mark is not None and (found := _digest(reader, row, at.mark.entry_id)) is not None:
        return found != at.mark.digest
    if (row.last_id, row.entries_added) == (at.last_id, at.seen):
        return False  # nothing was added, also where numbers are others, as in tables that were made again
    is_numbered_alike = at.numbering in ("", _numbering(reader))
    return (is_numbered_alike and at.number not in (None, row.stream_no)) or _missing(row, at) < 0


def loss(reader: TableReader, stream: StreamHere, at: Progress) -> str | None:
    """What of a stream is gone that was not read; None: nothing, but for single entries that were deleted.

    A stream of which nothing was read yet begins with what it has: what was trimmed before was never promised.
    """
    if at == Progress():
        return None
    read = id_text(at.last_id).decode()
    if is_another(reader, stream, at):
        return (
            f"stream {stream.key_text} was read up to {read} and is another one now, as after DEL and XADD: what the "
            f"old one had beyond is lost; failOnDataLoss=false reads the new one from its beginning"
        )
    missing = _missing(stream.row, at)
    if missing > 0 and missing > _holes(reader, stream.row, at.last_id):
        first = id_text(stream.row.first_id).decode() if stream.row.length else "its end"
        return (
            f"stream {stream.key_text} was trimmed up to {first}, and was read up to {read} by then: {missing} entries "
            f"are gone; failOnDataLoss=false goes on with what is left"
        )
    return None


def deleted_loss(streams: Mapping[StreamName, Progress]) -> str:
    """Of streams that were read, and are not there any more."""
    names = ", ".join(f"{key_text(key)} (up to {id_text(at.last_id).decode()})" for (_, key), at in streams.items())
    return f"deleted after it was read, with whatever it had beyond: {names}; failOnDataLoss=false goes on without"


def _numbering(reader: TableReader) -> str:
    """Of the tables that gave the streams their numbers; empty where an older version has made them."""
    return read_numbering(reader.meta_row)


def _missing(row: StreamRow, at: Progress) -> int:
    """How many entries were added beyond `at` and are not there; 0 while the front of the stream was read."""
    if row.length and row.first_id <= at.last_id:
        return 0
    return row.entries_added - at.seen - row.length


def _holes(reader: TableReader, row: StreamRow, read_id: StreamID) -> int:
    """How many entries beyond `read_id` were surely deleted one by one: in nodes that no trim has reached, or one."""
    if row.max_deleted_id <= read_id:
        return 0
    if not row.length:
        return 1
    holes = 0
    for run in EntryCounts(reader, row).runs(row.first_id):
        if run.first_id > row.max_deleted_id:
            break
        holes += run.dead
    return max(holes, 1)


def _mark(reader: TableReader, row: StreamRow, end: StreamID) -> Mark | None:
    """The youngest entry up to `end`."""
    if not row.length or row.first_id > end:
        return None
    cursor = reader.cursor("entries")
    key = entry_key(row.stream_no, min(end, row.last_live_id))
    if not cursor.set_range(key):
        cursor.last()
    elif cursor.key() != key:
        cursor.prev()
    found: Any = cursor.key()
    entry_id = id_in_key(found)
    digest = _digest(reader, row, entry_id)
    return None if digest is None or not found.startswith(stream_prefix(row.stream_no)) else Mark(entry_id, digest)


def _is_there(reader: TableReader, row: StreamRow, mark: Mark) -> bool:
    return _digest(reader, row, mark.entry_id) == mark.digest


def _digest(reader: TableReader, row: StreamRow, entry_id: StreamID) -> str | None:
    """Of an entry, None when it is not there."""
    if not row.length or not row.first_id <= entry_id <= row.last_live_id:
        return None
    value = reader.get("entries", entry_key(row.stream_no, entry_id))
    return None if value is None else xxhash.xxh3_64_hexdigest(value)
