"""Dead rows, which no command can reach any more: the notes on them that the purge processes.

A DEL of a stream with millions of entries, a trim or a flush makes rows unreachable at once by changing one number, and
adds a note here.  `purge.py` deletes the rows later, in slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.store.format import dead_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import lmdb

    from riverbed.store.ids import StreamID


class DeadRowNotes:
    """The notes, in table `trash`."""

    def __init__(self, cursor: Callable[[str], lmdb.Cursor[bytes]], notes: int) -> None:
        self._cursor = cursor
        notes_cursor = cursor("trash")
        self._next_no = dead_rows.decode_note_key(notes_cursor.key()) + 1 if notes_cursor.last() else 1
        self.notes = notes  # how many there are for the purge
        self._held: dict[int, bytes] = {}  # by stream number: the keys of the notes that the purge leaves alone
        self.rows_purged = 0

    def add_stream(self, stream_no: int) -> None:
        self._add(dead_rows.DeadStream(stream_no))

    def add_range(self, stream_no: int, floor_id: StreamID) -> None:
        self._add(dead_rows.DeadRange(stream_no, floor_id))

    def add_keyspace(self, keyspace_no: int) -> None:
        self._add(dead_rows.DeadKeyspace(keyspace_no))

    def add_group(self, group_no: int, stream_no: int) -> None:
        self._add(dead_rows.DeadGroup(group_no, stream_no))

    def add_consumer(self, group_no: int, consumer_no: int) -> None:
        self._add(dead_rows.DeadConsumer(group_no, consumer_no))

    def hold_stream(self, stream_no: int) -> None:
        """Note a stream whose rows no command can reach yet.  They are dead if the server ends before `release`."""
        self.add_stream(stream_no)
        self.notes -= 1
        self._held[stream_no] = dead_rows.note_key(self._next_no - 1)

    def release(self, stream_no: int, *, is_alive: bool) -> None:
        """End `hold_stream`, once: commands can reach the rows now, or else the purge deletes them."""
        key = self._held.pop(stream_no, None)
        if key is None:
            return
        if not is_alive:
            self.notes += 1
        elif self._cursor("trash").set_key(key):
            self._cursor("trash").delete()

    def oldest(self) -> tuple[bytes, dead_rows.DeadRows] | None:
        """The first note for the purge, with its key."""
        cursor = self._cursor("trash")
        found = cursor.first()
        while found and cursor.key() in self._held.values():
            found = cursor.next()
        return (cursor.key(), dead_rows.unpack_note(cursor.value())) if found else None

    def drop_ranges(self, stream_no: int, start: bytes, most: int) -> bytes | None:
        """Delete the notes on ranges of one stream, whose rows are gone; -> where to go on, None at the end.

        Begins at the key `start`, and looks at `most` notes.
        """
        cursor = self._cursor("trash")
        found = cursor.set_range(start)
        for _ in range(most):
            if not found:
                return None
            note = dead_rows.unpack_note(cursor.value())
            if isinstance(note, dead_rows.DeadRange) and note.stream_no == stream_no:
                cursor.delete()
                self.notes -= 1
                found = bool(cursor.key())
            else:
                found = cursor.next()
        return cursor.key() if found else None

    def _add(self, note: dead_rows.DeadRows) -> None:
        self._cursor("trash").put(dead_rows.note_key(self._next_no), dead_rows.pack_note(note))
        self._next_no += 1
        self.notes += 1
