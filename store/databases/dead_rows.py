"""Rows that nobody can see any more, and their deletion in slices.

DEL of a stream of millions, a trim, a flush: each makes rows unreachable at once by changing one number, and leaves a
note here.  `purge` works the notes off, oldest first, a few milliseconds at a time.  Nothing of this is logged: what
is purged was gone already.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from riverbed.store.format import rows as fmt
from riverbed.store.ids import StreamID
from riverbed.store.streams.stream import Stream

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.databases.transaction import WriteTxn

# Rows deleted between two looks at the clock: 0.4 us each.
_ROWS_A_LOOK: Final = 256


class Kind(enum.IntEnum):
    """What a note speaks of.  These values are on disk: never renumber."""

    STREAM = 1  # all rows of a stream number
    RANGE = 2  # entries and nodes of a stream below an ID
    KEYSPACE = 3  # all keys of a keyspace number, and their streams
    GROUP = 4  # all pending entries of a group number, and its consumers under a stream number
    CONSUMER = 5  # the pending entries of one consumer number of a group number


# The tables whose keys begin with a stream's number.
_STREAM_TABLES: Final = ("entries", "nodes", "idmp", "idmp_ids", "idmp_times")
_GROUP_TABLES: Final = ("pel", "pel_by_consumer", "pel_by_time")


class Trash:
    """The notes, in table `trash`."""

    def __init__(self, txn: WriteTxn) -> None:
        self._txn = txn
        cursor = txn.cursor("trash")
        self._next_no = fmt.decode_trash_key(cursor.key()) + 1 if cursor.last() else 1
        self.notes = txn.lmdb.stat(txn.handles["trash"])["entries"]
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
        cursor = self._txn.cursor("trash")
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
        self._txn.cursor("trash").put(fmt.trash_key(self._next_no), fmt.pack_row([int(kind), *values]))
        self._next_no += 1
        self.notes += 1

    def purge(self, expired: Callable[[], bool]) -> bool:
        """Delete dead rows until there are none or `expired()` is true; -> whether any are left.

        `expired` is asked every few hundred rows, so that a slice ends within a fraction of a millisecond of it.
        """
        txn = self._txn
        while self.notes:
            cursor = txn.cursor("trash")
            cursor.first()
            note_key, row = cursor.item()
            kind, *values = fmt.unpack_row(row)
            if not self._work_off(Kind(kind), values, expired):
                return True
            txn.lmdb.delete(note_key, db=txn.handles["trash"])
            self.notes -= 1
            if expired():
                return self.notes > 0
        return False

    def _work_off(self, kind: Kind, values: list[Any], expired: Callable[[], bool]) -> bool:
        """True when the note's rows are all gone."""
        if kind is Kind.STREAM:
            return self._purge_stream(values[0], expired)
        if kind is Kind.RANGE:
            stream_no, floor = values
            low, high = fmt.stream_prefix(stream_no), fmt.stream_prefix(stream_no) + floor
            return all(self._delete(table, low, high, expired) for table in ("entries", "nodes"))
        if kind is Kind.KEYSPACE:
            return self._purge_keyspace(values[0], expired)
        if kind is Kind.GROUP:
            return self._purge_group(values[0], values[1], expired)
        if kind is Kind.CONSUMER:
            return self._purge_consumer(values[0], values[1], expired)
        raise AssertionError(kind)

    def _purge_stream(self, stream_no: int, expired: Callable[[], bool]) -> bool:
        low, high = fmt.stream_prefix(stream_no), fmt.stream_prefix(stream_no + 1)
        for table in _STREAM_TABLES:
            if not self._delete(table, low, high, expired):
                return False
        groups = self._txn.cursor("groups")
        while groups.set_range(low) and groups.key() < high:
            # a group's row is the first one under its number, its consumers' follow
            group_no = fmt.decode_group_no(groups.key())
            groups.delete()
            self.add_group(group_no, stream_no)
            if not self._delete_group_rows(group_no, stream_no, expired):
                return False
            groups = self._txn.cursor("groups")
        return True

    def _purge_group(self, group_no: int, stream_no: int, expired: Callable[[], bool]) -> bool:
        low, high = fmt.group_prefix(group_no), fmt.group_prefix(group_no + 1)
        if not all(self._delete(table, low, high, expired) for table in _GROUP_TABLES):
            return False
        return self._delete_group_rows(group_no, stream_no, expired)

    def _delete_group_rows(self, group_no: int, stream_no: int, expired: Callable[[], bool]) -> bool:
        low, high = fmt.group_key(stream_no, group_no), fmt.group_key(stream_no, group_no + 1)
        return self._delete("groups", low, high, expired)

    def _purge_consumer(self, group_no: int, consumer_no: int, expired: Callable[[], bool]) -> bool:
        """Delete what a deleted consumer had pending."""
        txn = self._txn
        pel, by_time = txn.handles["pel"], txn.handles["pel_by_time"]
        prefix = fmt.owner_prefix(group_no, consumer_no)
        cursor = txn.cursor("pel_by_consumer")
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            for _ in range(_ROWS_A_LOOK):
                last_id = cursor.key()[12:]
                run = txn.lmdb.pop(fmt.group_prefix(group_no) + last_id, db=pel)
                assert run is not None, "a consumer's list holds what the group's does not"
                _, time_ms, _ = fmt.decode_run_head(run)
                txn.lmdb.delete(fmt.moment_prefix(group_no, time_ms + 1) + last_id, db=by_time)
                cursor.delete()
                self.rows_purged += 1
                if not cursor.key().startswith(prefix):
                    return True
            if expired():
                return False
        return True

    def _purge_keyspace(self, keyspace_no: int, expired: Callable[[], bool]) -> bool:
        """Turn the keys of a flushed database into notes of their streams."""
        txn = self._txn
        names = txn.cursor("names")
        low = fmt.name_key(keyspace_no, 0)
        while names.set_range(low):
            packed, key = names.item()
            home, stream_no = fmt.decode_name_key(packed)
            if home != keyspace_no:
                break
            names.delete()
            row = txn.lmdb.pop(fmt.key_key(keyspace_no, key), db=txn.handles["keys"])
            self.add_stream(stream_no)
            records_no = 0 if row is None else Stream.decode_records_no(row)
            if records_no:
                self.add_stream(records_no)
            if self.notes % 64 == 0 and expired():
                return False
        return True

    def _delete(self, table: str, low: bytes, high: bytes, expired: Callable[[], bool]) -> bool:
        """Delete the rows of `table` with low <= key < high; False when time ran out before the last."""
        cursor: lmdb.Cursor[bytes] = self._txn.cursor(table)
        if not cursor.set_range(low):
            return True
        while True:
            for _ in range(_ROWS_A_LOOK):
                # after the last row of the table the cursor stands nowhere and its key is empty
                key = cursor.key()
                if not key or key >= high:
                    return True
                cursor.delete()
                self.rows_purged += 1
            if expired():
                return False
