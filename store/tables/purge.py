"""The deletion of dead rows in slices.

The purge processes the notes on dead rows (`dead_rows.py`), the oldest first, a few milliseconds at a time.  It logs
nothing: no command could reach the rows before.  XSETID cannot wait for it where new entries may get IDs of dead ones.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from riverbed.store.format import dead_rows
from riverbed.store.format.groups import NAMES_OF_GROUPS, decode_group_no, group_key
from riverbed.store.format.pending import Run, group_prefix, last_in_key, owner_of_run, owner_prefix, time_key
from riverbed.store.format.streams import StreamRow, decode_name_key, entry_key, key_key, name_key, stream_prefix
from riverbed.store.progress import ignore
from riverbed.store.tables.places import seek

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.store.ids import StreamID
    from riverbed.store.position import LogPosition
    from riverbed.store.tables.dead_rows import DeadRowNotes
    from riverbed.store.tables.writing.transaction import Transaction

# Rows deleted between two checks of the clock: 0.4 us each.
_ROWS_A_LOOK: Final = 256
_LOOKS_A_COMMIT: Final = 400
# A slice of what a command has to wait for.
_LOOKS_A_SLICE: Final = 4
_NOTES_A_SLICE: Final = 1000
# The tables whose keys begin with a stream's number.  Times come before the records that they lead the sweep to.
_STREAM_TABLES: Final = ("entries", "nodes", "idmp_times", "idmp", "idmp_ids")
_GROUP_TABLES: Final = ("pel", "pel_by_consumer", "pel_by_time")


def purge(txn: Transaction, expired: Callable[[], bool]) -> bool:
    """Delete dead rows until there are none or `expired()` is true; -> whether any are left.

    `expired` is called every few hundred rows, and for each group and each key of a flushed database, so that a slice
    ends within a fraction of a millisecond after it.
    """
    noted = txn.dead_rows
    work = _Purge(txn, expired)
    while (oldest := noted.oldest()) is not None:
        note_key, note = oldest
        if not work.delete_rows(note):
            return True
        txn.lmdb.delete(note_key, db=txn.handles["trash"])
        noted.notes -= 1
        if expired():
            return noted.notes > 0
    return False


def purge_all(
    txn: Transaction,
    position: LogPosition,
    *,
    synced: LogPosition | None = None,
    purged: Callable[[int, int], None] = ignore,
) -> None:
    """Delete all dead rows, and commit `position` (see `Transaction.commit`) periodically, so that memory stays flat.

    `purged` is called with the number of processed notes and of all notes.  Raises lmdb.Error.
    """
    looks = count(1)
    total = txn.dead_rows.notes
    while purge(txn, lambda: next(looks) % _LOOKS_A_COMMIT == 0):
        txn.commit(position, synced=synced)
        total = max(total, txn.dead_rows.notes)  # a note may add other notes
        purged(total - txn.dead_rows.notes, total)
    txn.commit(position, synced=synced)


class Clearing:
    """The deletion, in slices, of the dead rows below a stream's floor, for a command that needs their IDs now."""

    def __init__(self) -> None:
        self._stream_no = 0
        self._notes: DeadRowNotes | None = None
        self._next_note = b""

    def step(self, txn: Transaction, stream_no: int, floor_id: StreamID) -> bool:
        """Delete some; -> whether neither a row is left, nor a note that would have the purge delete new ones."""
        if stream_no != self._stream_no or txn.dead_rows is not self._notes:  # the tables were read again
            self._stream_no, self._notes, self._next_note = stream_no, txn.dead_rows, b""
        txn.has_deleted_entries = txn.swept = True
        looks = count(1)
        work = _Purge(txn, lambda: next(looks) >= _LOOKS_A_SLICE)
        if not work.delete_rows(dead_rows.DeadRange(stream_no, floor_id)):
            return False
        next_note = txn.dead_rows.drop_ranges(stream_no, self._next_note, _NOTES_A_SLICE)
        self._next_note = next_note or b""
        return next_note is None


class _Purge:
    """One slice of the purge.  Each method returns True when all its rows are deleted, False when time ran out."""

    def __init__(self, txn: Transaction, expired: Callable[[], bool]) -> None:
        self._txn = txn
        self._dead_rows = txn.dead_rows
        self._expired = expired

    def delete_rows(self, note: dead_rows.DeadRows) -> bool:
        """Delete the rows of one note."""
        match note:
            case dead_rows.DeadStream(stream_no):
                return self._purge_stream(stream_no)
            case dead_rows.DeadRange(stream_no, floor_id):
                low, high = stream_prefix(stream_no), entry_key(stream_no, floor_id)
                return all(self._delete(table, low, high) for table in ("entries", "nodes"))
            case dead_rows.DeadKeyspace(keyspace_no):
                return self._purge_keyspace(keyspace_no)
            case dead_rows.DeadGroup(group_no, stream_no):
                return self._purge_group(group_no, stream_no)
            case dead_rows.DeadConsumer(group_no, consumer_no):
                return self._purge_consumer(group_no, consumer_no)

    def _purge_stream(self, stream_no: int) -> bool:
        low, high = stream_prefix(stream_no), stream_prefix(stream_no + 1)
        for table in _STREAM_TABLES:
            if not self._delete(table, low, high):
                return False
        groups = self._txn.cursor("groups")
        while seek(groups, low) and groups.key() < high:
            # a group's row is the first one under its number; its consumers follow, and the names of groups at last
            group_no = decode_group_no(groups.key())
            if group_no == NAMES_OF_GROUPS:
                return self._delete("groups", low, high)
            groups.delete()
            self._dead_rows.add_group(group_no, stream_no)
            if not self._delete_group_rows(group_no, stream_no) or self._expired():
                return False
            groups = self._txn.cursor("groups")
        return True

    def _purge_group(self, group_no: int, stream_no: int) -> bool:
        low, high = group_prefix(group_no), group_prefix(group_no + 1)
        if not all(self._delete(table, low, high) for table in _GROUP_TABLES):
            return False
        return self._delete_group_rows(group_no, stream_no)

    def _delete_group_rows(self, group_no: int, stream_no: int) -> bool:
        low, high = group_key(stream_no, group_no), group_key(stream_no, group_no + 1)
        return self._delete("groups", low, high)

    def _purge_consumer(self, group_no: int, consumer_no: int) -> bool:
        """Delete the pending entries of a deleted consumer."""
        txn = self._txn
        pel, by_time = txn.handles["pel"], txn.handles["pel_by_time"]
        prefix = owner_prefix(group_no, consumer_no)
        cursor = txn.cursor("pel_by_consumer")
        found = seek(cursor, prefix)
        while found and cursor.key().startswith(prefix):
            for _ in range(_ROWS_A_LOOK):
                key = group_prefix(group_no) + last_in_key(cursor.key())
                run = txn.lmdb.get(key, db=pel)
                # earlier versions may have put a run of another consumer into its place
                if run is not None and owner_of_run(run) == consumer_no:
                    txn.lmdb.delete(key, db=pel)
                    txn.lmdb.delete(time_key(group_no, Run.unpack(key, run)), db=by_time)
                cursor.delete()
                self._dead_rows.rows_purged += 1
                if not cursor.key().startswith(prefix):
                    return True
            if self._expired():
                return False
        return True

    def _purge_keyspace(self, keyspace_no: int) -> bool:
        """Turn the keys of a flushed database into notes of their streams."""
        txn = self._txn
        names = txn.cursor("names")
        low = name_key(keyspace_no, 0)
        while seek(names, low):
            packed, key = names.item()
            home, stream_no = decode_name_key(packed)
            if home != keyspace_no:
                break
            names.delete()
            packed_key = key_key(keyspace_no, key)
            row = txn.lmdb.pop(packed_key, db=txn.handles["keys"])
            self._dead_rows.add_stream(stream_no)
            records_no = 0 if row is None else StreamRow.unpack(packed_key, row).records_no
            if records_no:
                self._dead_rows.add_stream(records_no)
            if self._expired():
                return False
        return True

    def _delete(self, table: str, low: bytes, high: bytes) -> bool:
        """Delete the rows of `table` with low <= key < high."""
        cursor = self._txn.cursor(table)
        if not seek(cursor, low):
            return True
        while True:
            for _ in range(_ROWS_A_LOOK):
                # after the last row of the table the cursor has no position and its key is empty
                key = cursor.key()
                if not key or key >= high:
                    return True
                cursor.delete()
                self._dead_rows.rows_purged += 1
            if self._expired():
                return False
