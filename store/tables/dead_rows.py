"""Rows that no command can reach any more: the notes that the purge works through.

DEL of a stream of millions, a trim, a flush: each makes rows unreachable at once by changing one number, and leaves a
note here.  `purge.py` deletes the rows later, in slices.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from riverbed.store.format import rows as fmt

if TYPE_CHECKING:
    from collections.abc import Callable

    import lmdb

    from riverbed.store.ids import StreamID


class Kind(enum.IntEnum):
    """What a note speaks of.  These values are on disk: never renumber."""

    STREAM = 1  # all rows of a stream number
    RANGE = 2  # entries and nodes of a stream below an ID
    KEYSPACE = 3  # all keys of a keyspace number, and their streams
    GROUP = 4  # all pending entries of a group number, and its consumers under a stream number
    CONSUMER = 5  # the pending entries of one consumer number of a group number


class Trash:
    """The notes, in table `trash`."""

    def __init__(self, cursor: Callable[[str], lmdb.Cursor[bytes]], notes: int) -> None:
        self._cursor = cursor
        notes_cursor = cursor("trash")
        self._next_no = fmt.decode_trash_key(notes_cursor.key()) + 1 if notes_cursor.last() else 1
        self.notes = notes  # how many there are
        self.rows_purged = 0

    def add_stream(self, stream_no: int) -> None:
        self._add(Kind.STREAM, stream_no)

    def add_range(self, stream_no: int, floor_id: StreamID) -> None:
        self._add(Kind.RANGE, stream_no, fmt.pack_ids(floor_id))

    def add_keyspace(self, keyspace_no: int) -> None:
        self._add(Kind.KEYSPACE, keyspace_no)

    def add_group(self, group_no: int, stream_no: int) -> None:
        self._add(Kind.GROUP, group_no, stream_no)

    def add_consumer(self, group_no: int, consumer_no: int) -> None:
        self._add(Kind.CONSUMER, group_no, consumer_no)

    def drop_ranges(self, stream_no: int) -> None:
        """Forget the notes on ranges of one stream; the caller has deleted the rows."""
        cursor = self._cursor("trash")
        found = cursor.first()
        while found:
            kind, *values = fmt.unpack_row(cursor.value())
            if kind == Kind.RANGE and values[0] == stream_no:
                cursor.delete()
                self.notes -= 1
                found = bool(cursor.key())
            else:
                found = cursor.next()

    def _add(self, kind: Kind, *values: Any) -> None:
        self._cursor("trash").put(fmt.trash_key(self._next_no), fmt.pack_row([int(kind), *values]))
        self._next_no += 1
        self.notes += 1
