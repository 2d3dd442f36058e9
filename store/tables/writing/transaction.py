"""The one logical write transaction that all requests share: the rows of the tables, and what caches some of them.

Every checkpoint writes changed cached rows back, commits the LMDB transaction underneath, opens the next one and renews
the cursors.  Here mutators find what they need of the tables: cursors, numbers, limits, notes of dead rows; and, in
`commands.py`, of the log.  This module knows no stream; the mutators are methods of streams, groups and databases,
which are above it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

import lmdb

from riverbed.store.errors import DamagedRowError
from riverbed.store.format import meta as meta_rows
from riverbed.store.format.entries import bare_row
from riverbed.store.format.meta import META_VERSION, NO_DATABASE, Counters, DatabaseRow, Meta, PositionRow
from riverbed.store.ids import StreamID
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.tables.damage.sound import SoundStretches, ordered_stretch
from riverbed.store.tables.dead_rows import DeadRowNotes
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.places import seek, seek_below
from riverbed.store.tables.writing.commands import LoggedCommands
from riverbed.store.tables.writing.namespace import Namespace
from riverbed.store.tables.writing.participants import Dirty, Overfull
from riverbed.store.wire import IS_NATIVE, find_deliveries, find_keys

# The largest size of an entry when no bound is known.
UNBOUNDED_ROW: Final = 1 << 62
# Looks for pages in the place of others between two commits, 20 us each: a command may ask for any number of IDs.
_MOST_LOOKS: Final = 256
# The bytes before the fields in the row of an entry: the ID and the number of fields.
_ROW_HEAD_BYTES: Final = 128
_NUMBERING_BYTES: Final = 8
_NO_LIMIT: Final = 1 << 62
# Objects that are freed in one go: a tenth of a millisecond.
FREED_AT_ONCE = 1000
# Changed streams or groups that are written in one part of a checkpoint's work.
PART: Final = 64


class Transaction(LoggedCommands):
    """The write transaction that all requests share, and the commands they logged since the last commit."""

    def __init__(self, tables: Tables, namespaces: Sequence[Namespace]) -> None:
        super().__init__()
        self.tables = tables
        self.handles = tables.handles
        self.dirty: list[Dirty] = []
        self.overfull: dict[Overfull, None] = {}  # what `write_behind` is to ask, in this order
        self.grown: set[int] = set()  # streams, by number, that have closed a node; see `databases/alignment.py`
        self.leftovers: list[dict[Any, Any]] = []  # objects that nothing uses any more; see `leave`
        self.group_objects = 0  # made since the last commit that let go of them; see `groups/groups.py`
        self.consumer_bytes = 0  # about what the consumers in memory take
        self.turn = 0  # counts the calls of `bound_caches`
        self.young_ids = 0  # pending entries that dirty objects hold in memory; see `groups/pending/young.py`
        self.changed_ids = 0  # pending entries of the tables that have changed in memory only
        self.namespaces = namespaces
        self.keep_expired = False  # while a log is replayed: the log itself says when a key expired
        self.follows = False  # a replica hides expired keys, and waits for its primary to delete them
        self.holds_expired = False  # clients are paused, or the log takes nothing: expired keys are hidden until then
        self.is_short_of_space = False  # add only data that clients ask for; the server sets it
        self.records_place = b""  # where the sweep of idempotence records goes on
        self.cached_bytes = 0  # about what the cached streams take, without their groups; deleted ones count too
        self.node_max_entries = 100
        self.node_max_bytes = 4096
        self.idmp_duration_s = 100
        self.idmp_max_records = 100
        self.copied_bytes = 0  # of the rows that were added since the last checkpoint without a logged command
        self.swept = False  # rows were deleted since the last checkpoint without a logged command
        self.position: LogPosition | None = None  # of the log, as the last commit recorded it
        self.synced: LogPosition | None = None  # the log was known to be durable up to here before that commit
        self.replids: ReplicationIds | None = None  # the replication ids that the log's offsets belong to
        self.reload()

    def change_tables(self, tables: Tables) -> None:
        """Continue with another store; the namespaces stay the same objects."""
        self.tables = tables
        self.handles = tables.handles
        self.position = None
        self.synced = None
        self.replids = None
        self.reload()

    # -- the LMDB transaction underneath -------------------------------------------------------------------------------

    def reload(self) -> None:
        """Begin from the state of the last commit: at the start, and after an `abort`."""
        self.begin()
        self.forget_logged()
        self.young_ids = self.changed_ids = self.copied_bytes = 0
        self.dirty.clear()
        self.overfull.clear()
        self.grown.clear()
        self.lose_observers()
        self._load_meta()
        self.dead_rows = DeadRowNotes(self.cursor, self.lmdb.stat(self.handles["trash"])["entries"])

    def leave(self, objects: dict[Any, Any]) -> None:
        """Have the purge free these objects, a few at a time: to free a million takes a tenth of a second."""
        if len(objects) > FREED_AT_ONCE:
            self.leftovers.append(objects)

    def free_some(self) -> bool:
        """Free some of what is left over; -> whether there was any."""
        if not self.leftovers:
            return False
        objects = self.leftovers[-1]
        for _ in range(min(FREED_AT_ONCE, len(objects))):
            objects.popitem()
        if not objects:
            self.leftovers.pop()
        return True

    def empty(self) -> None:
        """Empty all tables, right after `reload`; only the version of the format stays."""
        self.has_deleted_entries = True
        for name, handle in self.handles.items():
            if name != "meta":
                self.lmdb.drop(handle, delete=False)
        meta = self.lmdb.cursor(self.handles["meta"])
        found = meta.first()
        while found:
            found = meta.delete() if meta.key() != META_VERSION else meta.next()
        self.position = self.synced = None
        self._load_meta()
        self.dead_rows = DeadRowNotes(self.cursor, 0)

    def begin(self) -> None:
        """Open an LMDB transaction and renew the cursors."""
        self.lmdb: lmdb.Transaction[bytes] = self.tables.begin()
        self._cursors: dict[str, lmdb.Cursor[bytes]] = {}
        entries = self.handles["entries"]
        # One cursor stays at the last appended entry, so that LMDB finds the page without a descent (250 ns a put
        # against 380 ns).  The other cursor reads.
        self.appender = self.lmdb.cursor(entries)
        self.put_entry = self.appender.put
        self.reader = self.lmdb.cursor(entries)
        self.nodes = self.lmdb.cursor(self.handles["nodes"])
        self.measure_largest_row()
        self.commit_no = self.lmdb.id() - 1  # of the tables that this transaction has begun with
        self.has_deleted_entries = False  # since then
        # Keys between which no page of entries stands in the place of another, found since then.
        self.ordered_entries = SoundStretches()
        self.looks_left = _MOST_LOOKS
        # By the number of a group: the IDs of pending entries whose rows have changed since then, None if not known.
        self.rewritten: dict[int, set[bytes] | None] = {}

    def measure_largest_row(self) -> None:
        """Set `largest_row`, so that reads of a few entries need not measure them.

        LMDB keeps rows larger than half a page outside of its leaves, so without such pages all rows are small.  Later
        appends raise the bound for an entry of `node_max_bytes` or more.
        """
        entries = self.lmdb.stat(self.handles["entries"])
        is_bounded = entries["overflow_pages"] == 0
        self.largest_row = max(entries["psize"], self.node_max_bytes) + _ROW_HEAD_BYTES if is_bounded else UNBOUNDED_ROW

    def configure_nodes(self, max_entries: int, max_bytes: int) -> None:
        """Set the limits of new nodes, 0 for none: `stream-node-max-entries` and `stream-node-max-bytes`."""
        self.node_max_entries = max_entries or _NO_LIMIT
        self.node_max_bytes = max_bytes or _NO_LIMIT
        self.measure_largest_row()

    def cursor(self, table: str) -> lmdb.Cursor[bytes]:
        """This transaction's cursor over `table`; the next user of the cursor moves it."""
        cursor = self._cursors.get(table)
        if cursor is None:
            cursor = self._cursors[table] = self.lmdb.cursor(self.handles[table])
        return cursor

    def commit(self, position: LogPosition, *, synced: LogPosition | None = None, is_synced: bool = True) -> None:
        """Write back cached rows, record `position` (see `engine.py`), commit, and open the next transaction.

        The log is durable up to `synced`; None when that is not known.

        Without `is_synced` the caller has to arrange a call of `tables.sync` before the next commit.  After an
        exception the transaction is gone; the caller starts again from the last checkpoint.
        """
        if self.tables.failure is not None:
            raise lmdb.Error(self.tables.failure)
        self.write_back()
        self.overfull.clear()
        self._store_meta(position, synced)
        self.lmdb.commit()
        if is_synced:
            self.tables.sync()
        self.position = position
        self.begin()

    def abort(self) -> None:
        """End the LMDB transaction, which has ended already if its commit failed."""
        with contextlib.suppress(lmdb.Error):
            self.lmdb.abort()

    def write_back(self) -> None:
        """Put the changed cached rows into their tables."""
        self.write_oldest_back(len(self.dirty))

    def write_changed(self) -> None:
        """Put some of the rows that have been changed for longest into their tables, in some two milliseconds at most.

        The checkpoint has less to write then.  Readers see none of it before.
        """
        done = 0
        for thing in self.dirty[:PART]:
            if not thing.write_part():
                break
            done += 1
        del self.dirty[:done]

    def write_behind(self) -> None:
        """Put rows into their tables that the next commands would have to put there, while clients read replies.

        A client that sends the next pipeline then finds a server that has time for it.
        """
        overfull = list(self.overfull)
        self.overfull.clear()
        for thing in overfull:
            thing.write_behind()

    def write_oldest_back(self, count: int) -> None:
        """Put the `count` cached rows that have been changed for longest into their tables.

        Raises DamagedRowError behind the others if some cannot be put beside damage; these wait on.
        """
        refused: list[Dirty] = []
        damage: DamagedRowError | None = None
        for thing in self.dirty[:count]:
            try:
                thing.write_back()
            except DamagedRowError as error:
                refused.append(thing)
                damage = error
        self.dirty[:count] = refused
        if damage is not None:
            raise damage

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
            if synced is not None:  # it may be later than the tables, if a tool has made them since
                self.synced = min(synced, position.place)
        if self.replids is None:  # after an undone tick the ids in memory are not older than these
            self.replids = meta_rows.read_replids(get)
        self._numbering = meta_rows.read_numbering(get) or secrets.token_hex(_NUMBERING_BYTES)

    def renumber(self) -> None:
        """From the next commit on, take the numbers of streams for others than those that readers may have seen."""
        self._numbering = secrets.token_hex(_NUMBERING_BYTES)

    def _store_meta(self, position: LogPosition, synced: LogPosition | None) -> None:
        counters = Counters(self.next_stream_no, self.next_group_no, self.next_keyspace_no)
        databases = [DatabaseRow(each.keyspace_no, each.size, each.expiring) for each in self.namespaces]
        place = PositionRow(*position, self.log_db)
        for name, row in Meta(counters, databases, place, synced, self.replids, self._numbering).rows():
            if row is None:
                self.lmdb.delete(name, db=self.handles["meta"])
            else:
                self.lmdb.put(name, row, db=self.handles["meta"])

    # -- rows of several tables ----------------------------------------------------------------------------------------

    def get_entry(self, key: bytes) -> bytes | None:
        """The row without its seal.  Raises DamagedRowError."""
        row = self.lmdb.get(key, db=self.handles["entries"])
        if row is None:
            self.refuse_misplaced(key, key)
            return None
        return bare_row(key, row)

    def certain_entries(self, keys: list[bytes]) -> bytes:
        """A byte for each key: 1 if there certainly is an entry; 0 if only a look into the table tells.

        Certain is of an entry of the last commit that it is still there while none was deleted.  What the purge deletes
        does not count: no living stream has it, or it is below the floor of one.
        """
        if self.has_deleted_entries or not IS_NATIVE:  # the reference takes longer than LMDB
            return bytes(len(keys))
        return find_keys(self.tables.committed_pages(self.commit_no), self.commit_no, b"entries", keys)

    def committed_deliveries(self, prefix: bytes, packed_ids: list[bytes]) -> list[tuple[int, int, int] | None]:
        """What the last commit has of pending entries of the group with this prefix; None of others, or if in doubt.

        -> (owner, moment, delivery count) of each; what has changed since, the caller knows.
        """
        if not IS_NATIVE:
            return [None] * len(packed_ids)
        return find_deliveries(self.tables.committed_pages(self.commit_no), self.commit_no, b"pel", prefix, packed_ids)

    def delete_entry(self) -> None:
        """Delete the entry that `reader` stands at."""
        self.has_deleted_entries = True
        self.reader.delete()

    def refuse_misplaced(self, low: bytes, high: bytes) -> None:
        """Raise DamagedRowError if an entry beside those from `low` to `high`, of which none was found, is one of them.

        A flipped bit of a key mostly leaves the row where it was, between the same neighbours; one in a page of the
        tree leads to the wrong page, whose rows are on the wrong side.
        """
        reader = self.reader
        if reader.set_range(low):
            bare_row(*reader.item())
            if reader.key() <= high:
                raise DamagedRowError("the order of entries")
        if seek_below(reader, low):
            bare_row(*reader.item())
            if reader.key() >= low:
                raise DamagedRowError("the order of entries")

    def refuse_misplaced_page(self, key: bytes) -> None:
        """Raise DamagedRowError if the page that a search for a missing entry comes to stands in another's place."""
        self.refuse_misplaced(key, key)
        if key in self.ordered_entries or not self.looks_left:
            return
        self.looks_left -= 1
        reader = self.reader
        if reader.set_range(key) or reader.last():
            self.ordered_entries.add(*ordered_stretch(reader))

    def delete_range(self, low: bytes, high: bytes) -> None:
        """Delete the entries and nodes with low <= key < high, now."""
        self.has_deleted_entries = True
        for cursor in (self.reader, self.nodes):
            found = seek(cursor, low)
            while found and cursor.key() < high:
                found = cursor.delete() and bool(cursor.key())

    def discard_below(self, stream_no: int, floor_id: StreamID) -> None:
        """Leave the entries and nodes of `stream_no` below `floor_id`, which are dead, to the purge."""
        self.dead_rows.add_range(stream_no, floor_id)
