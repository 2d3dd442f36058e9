"""The one logical write transaction that all requests share: rows, and what they logged since the last group commit.

Underneath, every checkpoint commits an LMDB transaction and opens the next; the cursors are renewed then, and cached
rows that have changed are written back before.  What mutators need to reach the tables and the log is here: cursors,
numbers, limits, the commands of the open tick, notes of dead rows and of changes.  It knows no stream; the mutators are
methods of streams, groups and databases, which stand above it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import lmdb

from riverbed.store.format import meta as meta_rows
from riverbed.store.format.log_lines import encode_extension
from riverbed.store.format.meta import NO_DATABASE, Counters, DatabaseRow, Meta, PositionRow
from riverbed.store.format.resp import encode_command
from riverbed.store.format.streams import entry_key, stream_prefix
from riverbed.store.ids import StreamID
from riverbed.store.model import Change
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.tables.dead_rows import Trash
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.namespace import Namespace

# The size of an entry when nothing is known of it.
UNBOUNDED_ROW: Final = 1 << 62
# What stands before the fields in the row of an entry: the ID, and how many fields there are.
_ROW_HEAD_BYTES: Final = 128
_NUMBERING_BYTES: Final = 8
_NO_LIMIT: Final = 1 << 62

Notify = Callable[[Change, Namespace, bytes], None]


class Dirty(Protocol):
    """What caches rows and has changed them."""

    def write_back(self) -> None:
        """Put the rows that have changed into their tables."""


class Unlogged(Protocol):
    """What has changed, so that the lines which the open command has logged may not say all."""

    def log_rest(self) -> None:
        """Log what they do not say."""


def _ignore_change(change: Change, namespace: Namespace, key: bytes) -> None:
    """No change is of interest: offline tools and recovery."""


class Transaction:
    """The write transaction all requests share, and what they logged since the last group commit."""

    def __init__(self, tables: Tables, namespaces: Sequence[Namespace]) -> None:
        self.tables = tables
        self.handles = tables.handles
        self.log: list[bytes] = []
        self.extension_bytes = 0
        self.unlogged: Unlogged | None = None
        self.log_db = NO_DATABASE
        self.dirty: list[Dirty] = []
        self.namespaces = namespaces
        self.keep_expired = False  # while a log is executed: it says itself when a key expired
        self.follows = False  # a replica hides expired keys, and waits for its primary to delete them
        self.is_short_of_space = False  # nothing is to be added that was not asked for; the server keeps it
        self.expired_keys = 0
        self.node_max_entries = 100
        self.node_max_bytes = 4096
        self.idmp_duration_s = 100
        self.idmp_max_records = 100
        self.swept = False  # rows went since the last checkpoint that no logged command accounts for
        self.notify: Notify = _ignore_change
        self.position: LogPosition | None = None  # of the log, as the last commit recorded it
        self.synced: LogPosition | None = None  # the end of what was known to be durable of the log before that commit
        self.replids: ReplicationIds | None = None  # whose offsets those of the log are
        self.reload()

    def change_tables(self, tables: Tables) -> None:
        """Go on with another store; the namespaces stay the objects they are."""
        self.tables = tables
        self.handles = tables.handles
        self.position = None
        self.synced = None
        self.replids = None
        self.reload()

    # -- the LMDB transaction underneath -------------------------------------------------------------------------------

    def reload(self) -> None:
        """Begin from what the last commit left: at the start, and after an `abort`."""
        self.begin()
        self.log.clear()
        self.extension_bytes = 0
        self.unlogged = None
        self.dirty.clear()
        self._load_meta()
        self.trash = Trash(self.cursor, self.lmdb.stat(self.handles["trash"])["entries"])

    def begin(self) -> None:
        """Open an LMDB transaction and renew the cursors."""
        self.lmdb: lmdb.Transaction[bytes] = self.tables.begin()
        self._cursors: dict[str, lmdb.Cursor[bytes]] = {}
        entries = self.handles["entries"]
        # One cursor stays at the end of what was appended last, so that LMDB finds the page without a descent
        # (250 ns a put against 380 ns); the other one reads.
        self.appender = self.lmdb.cursor(entries)
        self.put_entry = self.appender.put
        self.reader = self.lmdb.cursor(entries)
        self.nodes = self.lmdb.cursor(self.handles["nodes"])
        self.bound_rows()

    def bound_rows(self) -> None:
        """Tell how large an entry may be, so that reads of a few need not measure them; appending a larger one shows.

        What LMDB has outside of its leaves is larger than half a page; what it has in them may still be appended to up
        to `node_max_bytes` without a node of its own.
        """
        entries = self.lmdb.stat(self.handles["entries"])
        is_bounded = entries["overflow_pages"] == 0
        self.largest_row = max(entries["psize"], self.node_max_bytes) + _ROW_HEAD_BYTES if is_bounded else UNBOUNDED_ROW

    def configure_nodes(self, max_entries: int, max_bytes: int) -> None:
        """The sizes of nodes to come, 0 for no limit: `stream-node-max-entries` and `stream-node-max-bytes`."""
        self.node_max_entries = max_entries or _NO_LIMIT
        self.node_max_bytes = max_bytes or _NO_LIMIT
        self.bound_rows()

    def cursor(self, table: str) -> lmdb.Cursor[bytes]:
        """This transaction's cursor over `table`; its place is lost to the next user of the cursor."""
        cursor = self._cursors.get(table)
        if cursor is None:
            cursor = self._cursors[table] = self.lmdb.cursor(self.handles[table])
        return cursor

    def commit(self, position: LogPosition, *, synced: LogPosition | None = None, is_synced: bool = True) -> None:
        """Write back what is cached, record `position` (see `engine.py`), commit, and open the next transaction.

        The log is durable up to `synced`; None when that is not known.

        Without `is_synced` it is for the caller to have `tables.sync` called before the next commit.  After an
        exception the transaction is gone; the caller starts again from the last checkpoint.
        """
        if self.tables.failure is not None:
            raise lmdb.Error(self.tables.failure)
        self.write_back()
        self._store_meta(position, synced)
        self.lmdb.commit()
        if is_synced:
            self.tables.sync()
        self.position = position
        self.begin()

    def abort(self) -> None:
        """End the LMDB transaction, which is gone already when it failed to commit."""
        with contextlib.suppress(lmdb.Error):
            self.lmdb.abort()

    def write_back(self) -> None:
        """Put the rows of what has changed into their tables."""
        for thing in self.dirty:
            thing.write_back()
        self.dirty.clear()

    # -- meta ----------------------------------------------------------------------------------------------------------

    def _load_meta(self) -> None:
        meta = self.handles["meta"]

        def get(name: bytes) -> bytes | None:
            return self.lmdb.get(name, db=meta)

        counters, databases, position = (
            meta_rows.read_counters(get),
            meta_rows.read_databases(get),
            meta_rows.read_position(get),
        )
        if counters is None or not databases:
            counters = Counters(1, 1, len(self.namespaces))
            self.log_db = NO_DATABASE
            databases = [DatabaseRow(namespace.number, 0, 0) for namespace in self.namespaces]
        self.next_stream_no, self.next_group_no, self.next_keyspace_no = counters
        for namespace, row in zip(self.namespaces, databases, strict=True):
            namespace.keyspace_no, namespace.size, namespace.expiring = row
        if position is not None:
            self.position, self.log_db = position.place, position.selected
            synced = meta_rows.read_synced(get)
            if synced is not None:  # it may be older than what a tool has made of the tables since, and later than that
                self.synced = min(synced, position.place)
        if self.replids is None:  # what an undone tick leaves behind is not older than this
            self.replids = meta_rows.read_replids(get)
        self._numbering = meta_rows.read_numbering(get) or secrets.token_hex(_NUMBERING_BYTES)

    def _store_meta(self, position: LogPosition, synced: LogPosition | None) -> None:
        counters = Counters(self.next_stream_no, self.next_group_no, self.next_keyspace_no)
        databases = [DatabaseRow(each.keyspace_no, each.size, each.expiring) for each in self.namespaces]
        place = PositionRow(*position, self.log_db)
        for name, row in Meta(counters, databases, place, synced, self.replids, self._numbering).rows():
            if row is None:
                self.lmdb.delete(name, db=self.handles["meta"])
            else:
                self.lmdb.put(name, row, db=self.handles["meta"])

    # -- the log -------------------------------------------------------------------------------------------------------

    def log_select(self, number: int) -> None:
        """What follows in the log is for database `number`."""
        self.log.append(encode_command([b"SELECT", b"%d" % number]))
        self.log_db = number

    def log_command(self, number: int, words: list[bytes]) -> None:
        """Log one canonical command of database `number`."""
        if self.log_db != number:
            self.log_select(number)
        self.log.append(encode_command(words))

    def log_extension(self, number: int, words: list[bytes]) -> None:
        """Log a command that real Redis 7 does not know: it stands in comment lines, which Redis skips."""
        if self.log_db != number:
            self.log_select(number)
        lines = encode_extension(words)
        self.extension_bytes += len(lines)
        self.log.append(lines)

    def log_later(self, changed: Unlogged) -> None:
        """Log what the command's lines do not say of `changed`: when it ends, or before another thing changes."""
        if self.unlogged is not changed:
            self.end_command()
            self.unlogged = changed

    def end_command(self) -> None:
        """Log what the lines of the command, or of a slice of it, do not say.  `Engine.commit` calls this too."""
        changed = self.unlogged
        if changed is not None:
            self.unlogged = None
            changed.log_rest()

    def notify_interest(self, change: Change, namespace: Namespace, key: bytes) -> None:
        if key in namespace.interest:
            self.notify(change, namespace, key)

    # -- rows of several tables ----------------------------------------------------------------------------------------

    def get_entry(self, key: bytes) -> bytes | None:
        return self.lmdb.get(key, db=self.handles["entries"])

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Delete the entries and nodes with low <= key < high, now."""
        for cursor in (self.reader, self.nodes):
            found = cursor.set_range(low)
            while found and cursor.key() < high:
                found = cursor.delete() and bool(cursor.key())

    def discard_below(self, stream_no: int, floor_id: StreamID) -> None:
        """Entries and nodes of `stream_no` below `floor_id` are dead; the purge deletes them."""
        self.trash.add_range(stream_no, floor_id)

    def clear_below(self, stream_no: int, floor_id: StreamID) -> None:
        """Delete now what `discard_below` has left to the purge."""
        self.trash.drop_ranges(stream_no)
        self.delete_range(stream_prefix(stream_no), entry_key(stream_no, floor_id))
