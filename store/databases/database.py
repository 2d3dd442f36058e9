"""The sixteen databases: the stream of each key, if it has not expired, and the mutators of whole streams.

A stream's rows stand under its number, not under its key.  So RENAME, DEL, MOVE, FLUSHDB and SWAPDB change few rows:
DEL forgets the number and leaves its rows to the purge, FLUSHDB gives the database a new *keyspace number* and forgets
the old one, SWAPDB exchanges two keyspace numbers.

`cache.py` keeps the streams that are in memory, and `names.py` walks the keys of a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.store.databases.cache import StreamCache, size_of
from riverbed.store.databases.copying import CopyInTheMaking
from riverbed.store.format import streams
from riverbed.store.model import Change
from riverbed.store.streams.reading import ReadableStream
from riverbed.store.streams.stream import Stream
from riverbed.store.wire import open_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from riverbed.store.groups.group import Group

DATABASE_COUNT: Final = 16


class Database(StreamCache):
    """One of the databases that SELECT chooses from.  SWAPDB and FLUSHDB keep the object and change its content."""

    # -- questions -----------------------------------------------------------------------------------------------------

    def stream(self, key: bytes, now_ms: int) -> Stream | None:
        """The stream at `key`, or None.  Deletes the key, and logs that, if its deadline has passed.

        On a replica, and while clients are paused or the log takes nothing, the key is only hidden.
        """
        stream = self.look_up(key)
        if stream is not None and stream.expire_ms and stream.expire_ms <= now_ms and not self.txn.keep_expired:
            if not (self.txn.follows or self.txn.holds_expired):
                self.expire(stream)
            return None
        return stream

    def hides(self, key: bytes) -> bool:
        """Whether a key for which `stream` is None has expired, and is still to be deleted."""
        return (self.txn.follows or self.txn.holds_expired) and self.look_up(key) is not None

    def readable(self, key: bytes, now_ms: int) -> ReadableStream | None:
        """As `stream`, for one who reads it at once.

        A stream that is not in memory, and was not read lately, gets no object that is kept.
        """
        stream = self.cached.get(key)
        if stream is None or stream.expire_ms:
            if stream is None and self.take_back(key) is None and not self.read_lately.note(key):
                packed = streams.key_key(self.keyspace_no, key)
                row = self.txn.lmdb.get(packed, db=self.txn.handles["keys"])
                values = None if row is None else open_stream(packed, row)
                if values is not None and not values[4]:
                    return ReadableStream.of_values(self.txn, values)
            return self.stream(key, now_ms)
        return stream

    def group_to_ack(self, key: bytes, name: bytes, now_ms: int) -> Group | None:
        """The group `name` of the stream at `key`, to be asked nothing about entries; None when one is missing.

        A stream that is lent stays lent: a client that appends to it and acknowledges in turn saves a fifth.
        """
        stream = self._known(key, now_ms)
        return None if stream is None else self.groups(stream).get(name)

    def holds(self, key: bytes, now_ms: int) -> bool:
        """Whether there is a stream at `key`, which stays lent if it is."""
        return self._known(key, now_ms) is not None

    def _known(self, key: bytes, now_ms: int) -> Stream | None:
        """The stream at `key`, to be asked nothing about entries: it may be as it was when it was lent."""
        return self._lent.outdated(key) or self.stream(key, now_ms)

    # -- mutators ------------------------------------------------------------------------------------------------------

    def create(self, key: bytes) -> Stream:
        """Create an empty stream at `key`, which must be free.

        Logs nothing: the mutator that follows (an append, a group, an XSETID) does.  The row reaches LMDB at the next
        checkpoint, like the row of any changed stream.
        """
        txn = self.txn
        if txn.holds_expired:
            self._expire_hidden(key)
        stream = Stream(txn, self, key, txn.next_stream_no)
        txn.next_stream_no += 1
        self._link(stream)
        return stream

    def delete(self, stream: Stream) -> None:
        """Delete `stream`; the purge deletes its rows, however many they are.  Logs DEL."""
        self._remove(stream)
        self.txn.log_command(self.number, [b"DEL", stream.key])

    def expire(self, stream: Stream) -> None:
        """Delete and count a stream whose deadline has passed."""
        self.txn.count_expired()
        self.delete(stream)

    def rename(self, stream: Stream, new_key: bytes) -> None:
        """Give `stream` the key `new_key`, and delete the stream that had this key.  Logs RENAME."""
        old_key = stream.key
        if new_key != old_key:
            target = self.stream(new_key, 0)
            if target is not None:
                self._remove(target, notify=False)
            self._unlink(stream)
            stream.renamed(self, new_key)
            self._link(stream)
            self.txn.notify_interest(Change.REMOVED, self, old_key)
            self.txn.notify_interest(Change.CREATED, self, new_key)
        self.txn.log_command(self.number, [b"RENAME", old_key, new_key])

    def move(self, stream: Stream, target: Database) -> None:
        """Move `stream` to the database `target`, where its key must be free.  Logs MOVE."""
        if self.txn.holds_expired:
            target._expire_hidden(stream.key)
        self._unlink(stream)
        groups = self._groups.pop(stream, None)
        if groups is not None:
            target._groups[stream] = groups
        stream.renamed(target, stream.key)
        target._link(stream)
        self.txn.log_command(self.number, [b"MOVE", stream.key, b"%d" % target.number])
        self.txn.notify_interest(Change.REMOVED, self, stream.key)
        self.txn.notify_interest(Change.CREATED, target, stream.key)

    def copy(self, stream: Stream, target: Database, new_key: bytes) -> Stream:
        """Copy `stream` at once, in time in proportion to the stream; see `finish_copy`."""
        rows = CopyInTheMaking(self, stream)
        try:
            for _ in rows.fill():
                pass
            return self.finish_copy(rows, target, new_key)
        finally:
            rows.close()

    def finish_copy(self, rows: CopyInTheMaking, target: Database, new_key: bytes) -> Stream:
        """Give a copy whose rows are all there to `new_key` of `target`, and delete the stream that had this key.

        It has the groups and the deadline of its source too.  Logs COPY key new_key DB n REPLACE.
        """
        txn = self.txn
        replaced = target.stream(new_key, 0)
        if replaced is not None:
            target._remove(replaced, notify=False)
        source = self.stream(rows.source_key, 0)
        assert source is not None and source.stream_no == rows.source_no, "a copy that is not stale has no source"
        copy = Stream.of_row(txn, target, new_key, source.row())
        copy.stream_no = rows.stream_no
        copy.prefix = streams.stream_prefix(copy.stream_no)
        if copy.idempotence is not None:
            copy.idempotence.records_no = rows.records_no
        rows.close(is_alive=True)
        target._link(copy)
        for look in rows.looks:
            txn.cursor("consumer_ttls").put(*look)
        words = [b"COPY", rows.source_key, new_key, b"DB", b"%d" % target.number, b"REPLACE"]
        txn.log_command(self.number, words)
        txn.copied_bytes += 1  # a checkpoint may have come behind the last rows: the numbers are older than the line
        txn.notify_interest(Change.CREATED, target, new_key)
        return copy

    def set_expiry(self, stream: Stream, deadline_ms: int | None) -> None:
        """Set or clear the deadline.  Logs PEXPIREAT or PERSIST."""
        self._unlink_deadline(stream)
        stream.expire_ms = deadline_ms or 0
        self._link_deadline(stream)
        stream.touch()
        if deadline_ms is None:
            self.txn.log_command(self.number, [b"PERSIST", stream.key])
        else:
            self.txn.log_command(self.number, [b"PEXPIREAT", stream.key, b"%d" % deadline_ms])
        self.txn.notify_interest(Change.MODIFIED, self, stream.key)

    def flush(self) -> int:
        """Remove every key; -> how many there were.  Logs FLUSHDB."""
        size = self.size
        txn = self.txn
        txn.write_back()  # the purge finds groups and idempotence records by the rows of their streams
        gone = self.present(self.interest)
        self.forget_cached()
        if size:
            txn.dead_rows.add_keyspace(self.keyspace_no)
            self.keyspace_no = txn.next_keyspace_no
            txn.next_keyspace_no += 1
        self.size = self.expiring = 0
        txn.log_command(self.number, [b"FLUSHDB"])
        for key in gone:
            txn.notify(Change.REMOVED, self, key)
        return size

    def present(self, keys: Iterable[bytes]) -> list[bytes]:
        """Those of `keys` that have a stream, also one that has expired; the rows of all must be in the tables.

        There may be a million of them, and to make an object of each stream takes ten times as long.
        """
        if not self.size:
            return []
        packed = {streams.key_key(self.keyspace_no, key): key for key in keys}
        return [packed[found] for found, _ in self.txn.cursor("keys").getmulti(list(packed))]

    def _expire_hidden(self, key: bytes) -> None:
        """Delete a stream that has expired and is in the way of another one."""
        hidden = self.look_up(key)
        if hidden is not None:
            self.expire(hidden)

    # -- how they do it ------------------------------------------------------------------------------------------------

    def _link(self, stream: Stream) -> None:
        """Enter `stream` under its key and number."""
        txn = self.txn
        txn.change_begins()
        txn.cursor("names").put(streams.name_key(self.keyspace_no, stream.stream_no), stream.key)
        self.cached[stream.key] = stream
        self._count_cached(size_of(stream.key))
        self.size += 1
        self._link_deadline(stream)
        stream.touch()

    def _unlink(self, stream: Stream) -> None:
        txn = self.txn
        txn.change_begins()
        txn.lmdb.delete(streams.key_key(self.keyspace_no, stream.key), db=txn.handles["keys"])
        txn.lmdb.delete(streams.name_key(self.keyspace_no, stream.stream_no), db=txn.handles["names"])
        self._unlink_deadline(stream)
        if self.cached.pop(stream.key, None) is not None:
            self._count_cached(-size_of(stream.key))
        self.size -= 1

    def _link_deadline(self, stream: Stream) -> None:
        if stream.expire_ms:
            key = streams.expiry_key(stream.expire_ms, stream.stream_no)
            self.txn.cursor("expiry").put(key, streams.pack_expiry(key, self.keyspace_no))
            self.expiring += 1

    def _unlink_deadline(self, stream: Stream) -> None:
        if stream.expire_ms:
            key = streams.expiry_key(stream.expire_ms, stream.stream_no)
            self.txn.lmdb.delete(key, db=self.txn.handles["expiry"])
            self.expiring -= 1

    def _remove(self, stream: Stream, *, notify: bool = True) -> None:
        self._unlink(stream)
        stream.dirty = False  # never write its row back
        groups = self._groups.pop(stream, None)
        if groups is not None:
            groups.write_back()  # by their rows the purge finds their pending entries
            groups.leave()
        self.txn.dead_rows.add_stream(stream.stream_no)
        if stream.idempotence is not None and stream.idempotence.records_no:
            self.txn.dead_rows.add_stream(stream.idempotence.records_no)
        if notify:
            self.txn.notify_interest(Change.REMOVED, self, stream.key)
