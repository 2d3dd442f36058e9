"""The sixteen databases in the one write transaction that all requests share.

Mutators are methods of databases, streams and groups.  Only mutators of several databases are methods of `WriteTxn`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from riverbed.store.databases.alignment import Alignment
from riverbed.store.databases.database import DATABASE_COUNT, Database
from riverbed.store.databases.lent import BATCH as LENT_BATCH
from riverbed.store.databases.lent import PART_BYTES
from riverbed.store.format.resp import encode_command
from riverbed.store.format.streams import decode_expiry_key, name_key, unpack_expiry
from riverbed.store.format.text import quoted
from riverbed.store.groups.pending.young import MAX_PART
from riverbed.store.groups.recent_deliveries import RecentDeliveries
from riverbed.store.model import Change
from riverbed.store.position import LogPosition
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.writing.transaction import PART, Transaction

# If more groups were read, a commit lets go of them: a garbage collection takes 3 us for each.
CACHED_GROUPS = 4096
# If the consumers in memory take more, those of the groups that were not used for longest are let go.  The group that
# was used last keeps its few consumers, or the index of its many: reading the names again takes 1.5 us for each.
CACHED_CONSUMER_BYTES = 64 << 20
# Beyond this each tick lets go of about as many streams as it has read, each in its turn.  Reading a stream's row again
# takes about 2 us.  With twice as much an append to one of 100,000 streams takes 4 % less.
CACHED_BYTES = 16 << 20
# Changed rows that a checkpoint may have to write at once, in some 5 ms; those beyond are written after each tick.
MAX_CHANGED: Final = 2048
# Changed rows that a checkpoint writes at once, in some 10 ms.
FEW_CHANGED: Final = 1536
# The same when there were more before: in 4 ms, for LMDB then takes three times as long to commit the pages of all.
FEWER_CHANGED: Final = 512
# Rows of lent streams that it puts into their table at once: some two thousand of a hundred bytes, in a millisecond.
FEW_LENT_BYTES: Final = 1 << 18


class WriteTxn(Transaction):
    """The transaction of the tables, and the databases in it."""

    def __init__(self, tables: Tables) -> None:
        self.recent_deliveries = RecentDeliveries()
        self.databases = [Database(self, number, self.recent_deliveries) for number in range(DATABASE_COUNT)]
        self._few_changed = FEW_CHANGED  # until the next commit; a replica changes none while it writes them
        self.alignment = Alignment(self)
        super().__init__(tables, self.databases)

    def reload(self) -> None:
        super().reload()
        self._forget_cached()
        self.alignment.restart()

    def write_back(self) -> None:
        self.take_all_back()
        super().write_back()

    def write_part(self) -> None:
        if self.alignment.parts:
            self.alignment.align_part()
            return
        if self.changed_streams > FEW_CHANGED:
            self._few_changed = min(self._few_changed, FEWER_CHANGED)
        elif self.changed_streams <= self._few_changed:
            for db in self.databases:
                if db.lent_bytes > FEW_LENT_BYTES:
                    db.put_lent_rows()
                    return
        if not self.dirty:
            for db in self.databases:
                db.take_part_back()
        self.write_changed()

    def configure_nodes(self, max_entries: int, max_bytes: int) -> None:
        self.take_all_back()  # they were lent with the limits before
        super().configure_nodes(max_entries, max_bytes)

    @property
    def changed_streams(self) -> int:
        """About how many rows of streams the next checkpoint writes."""
        return len(self.dirty) + sum(db.lent_count for db in self.databases)

    @property
    def unwritten_parts(self) -> int:
        """About how many calls of `write_part` leave the next checkpoint little to write; 0 when it has not much.

        Each call makes it less.  Streams that change all the time are written again by the checkpoint, so a few are
        left to it.
        """
        parts = (self.young_ids + self.changed_ids) // MAX_PART + self.alignment.parts
        for db in self.databases:
            parts += max(db.lent_bytes - FEW_LENT_BYTES, 0) // PART_BYTES
        if self.changed_streams > self._few_changed:
            parts += len(self.dirty) // PART + sum(db.lent_count for db in self.databases) // LENT_BATCH
        return parts

    def take_all_back(self) -> None:
        """Put what streams that are lent were appended into the tables, as far as these streams have no object.

        Raises DamagedRowError, lmdb.Error; then the transaction is to be undone.
        """
        for db in self.databases:
            if db.lent_count:
                db.take_all_back()

    def commit(self, position: LogPosition, *, synced: LogPosition | None = None, is_synced: bool = True) -> None:
        self.alignment.align_part()
        super().commit(position, synced=synced, is_synced=is_synced)
        self.alignment.committed()
        self._few_changed = 0 if self.follows else FEW_CHANGED
        if self.group_objects > CACHED_GROUPS:
            self.group_objects = 0
            for db in self.databases:
                db.let_go_of_groups()
        self.bound_caches()  # a replay has no ticks

    def bound_caches(self) -> None:
        """Keep the next checkpoint short, and the streams in memory few; between ticks."""
        if len(self.dirty) > MAX_CHANGED and not self.is_short_of_space:
            # What a full map refuses is undone by a replay that makes these rows again, in each tick; a checkpoint that
            # is tried again writes them.
            self.write_oldest_back(len(self.dirty) - MAX_CHANGED)
        self.turn += 1
        if self.consumer_bytes > CACHED_CONSUMER_BYTES:
            self._let_go_of_consumers()
        if self.cached_bytes > CACHED_BYTES:
            self._let_go_of_streams()

    def _let_go_of_streams(self) -> None:
        """Forget as many streams as this tick has read, each in its turn, and no more than a batch beyond."""
        while self.cached_bytes > CACHED_BYTES:
            if not sum(db.let_go_of_oldest() for db in self.databases):
                self.cached_bytes = 0  # nothing is left but the names that groups kept of long keys, which are gone too

    def _let_go_of_consumers(self) -> None:
        """Forget the consumers of the groups that were not used for longest."""
        self.write_back()
        held = [group for db in self.databases for group in db.groups_with_consumers()]
        held.sort(key=lambda group: group.consumers.used_at)
        for group in held:
            if self.consumer_bytes <= CACHED_CONSUMER_BYTES:
                return
            group.consumers.let_go()

    def _forget_cached(self) -> None:
        for db in self.databases:
            db.forget_cached()
        self.cached_bytes = self.consumer_bytes = 0

    def place_of(self, stream_no: int) -> str:
        """`of key 's' ` and its database, for a text about a row of this stream; empty when there is no such stream."""
        for db in self.databases:
            key = self.lmdb.get(name_key(db.keyspace_no, stream_no), db=self.handles["names"])
            if key is not None:
                return f"of key {quoted(key)} in database {db.number} "
        return ""

    def swap(self, first: Database, second: Database) -> None:
        """Exchange the contents of two databases.  Logs SWAPDB."""
        self.write_back()
        first.keyspace_no, second.keyspace_no = second.keyspace_no, first.keyspace_no
        first.size, second.size = second.size, first.size
        first.expiring, second.expiring = second.expiring, first.expiring
        for db in (first, second):
            db.forget_cached()
        # SWAPDB names its databases itself and needs no SELECT before it
        self.log.append(encode_command([b"SWAPDB", b"%d" % first.number, b"%d" % second.number]))
        for db in (first, second):
            present = {*first.present(db.interest), *second.present(db.interest)}
            for key in [key for key in db.interest if key in present]:
                self.notify(Change.CREATED, db, key)

    def expire_due(self, now_ms: int, most: int) -> int:
        """Delete at most `most` keys whose deadline has passed; -> how many deadlines were looked at."""
        if self.keep_expired or self.follows:
            return 0
        cursor = self.cursor("expiry")
        if not cursor.first():
            return 0
        due = []
        for packed, row in islice(cursor.iternext(), most):
            deadline_ms, stream_no = decode_expiry_key(packed)
            if deadline_ms > now_ms:
                break
            due.append((packed, stream_no, unpack_expiry(packed, row)))
        homes = {db.keyspace_no: db for db in self.databases}
        for packed, stream_no, keyspace_no in due:
            db = homes.get(keyspace_no)
            key = self.lmdb.get(name_key(keyspace_no, stream_no), db=self.handles["names"])
            if db is None or key is None or db.stream(key, now_ms) is not None:
                # a row of a flushed database
                self.lmdb.delete(packed, db=self.handles["expiry"])
        return len(due)
