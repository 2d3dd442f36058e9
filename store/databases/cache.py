"""The streams of a database that are in memory: found by their keys, lent to runs of XADD, let go of in their turns.

A stream is `cached`, with its groups, or lent to the native module, or there is nothing of it but rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from riverbed.store.databases.lent import LentStreams
from riverbed.store.databases.recent_keys import RecentKeys
from riverbed.store.databases.turns import Turns
from riverbed.store.errors import DamagedRowError
from riverbed.store.format import streams
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.format.text import quoted
from riverbed.store.groups.groups import Groups
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.places import seek_below
from riverbed.store.tables.writing.namespace import Namespace

if TYPE_CHECKING:
    from riverbed.store.groups.group import Group
    from riverbed.store.groups.recent_deliveries import RecentDeliveries
    from riverbed.store.tables.writing.transaction import Transaction
    from riverbed.store.wire import Run

# What a cached stream takes, and how often it keeps its key: the key itself, and in the heads of its log lines.
_STREAM_BYTES: Final = 1000
_KEY_COPIES: Final = 3
# Streams that are let go of at once, with at most as many rows to write: about half a millisecond.
_BATCH: Final = 64


def size_of(key: bytes) -> int:
    """About what the stream at `key` takes while it is cached, without its groups."""
    return _STREAM_BYTES + _KEY_COPIES * len(key)


class StreamCache(Namespace):
    """The streams and groups of one database that are in memory, and the way to the others.

    `Database` adds what changes whole streams.
    """

    def __init__(self, txn: Transaction, number: int, recent_deliveries: RecentDeliveries) -> None:
        super().__init__(number)
        self.txn = txn
        self.cached: dict[bytes, Stream] = {}
        self._cached_bytes = 0  # of `cached` and of what is lent
        self._turns = Turns(self.cached, list)  # of being let go of
        self._lent = LentStreams(txn)
        self.read_lately = RecentKeys()  # of streams that were not in memory
        self._groups: dict[Stream, Groups] = {}  # of cached streams
        self._recent_deliveries = recent_deliveries

    def forget_cached(self) -> None:
        """Empty the caches of streams and groups; the caller has written changes back, or wants to lose them."""
        self._count_cached(-self._cached_bytes)
        self.cached.clear()
        for groups in self._groups.values():
            groups.leave()
        self._groups.clear()
        self._lent.forget()

    def _count_cached(self, size: int) -> None:
        self._cached_bytes += size
        self.txn.cached_bytes += size

    def let_go_of_oldest(self) -> bool:
        """Write back and forget a batch of streams, each in its turn, and their groups; -> whether there were any."""
        lent_count = self.lent_count
        if not self.cached:
            self.take_part_back()
        keys = self._turns.take(_BATCH)
        for key in keys:
            self._let_go_of(self.cached[key])
        return bool(keys) or self.lent_count < lent_count

    def _let_go_of(self, stream: Stream) -> None:
        """Write back and forget a cached stream and its groups."""
        stream.write_back()
        groups = self._groups.get(stream)
        if groups is not None:
            groups.write_back()  # what cannot be written beside damage is not forgotten
            del self._groups[stream]
            groups.leave()
        del self.cached[stream.key]
        self._count_cached(-size_of(stream.key))

    # -- questions -----------------------------------------------------------------------------------------------------

    def look_up(self, key: bytes) -> Stream | None:
        """The stream at `key`, also when its deadline has passed; None when there is none.  Raises DamagedRowError."""
        stream = self.cached.get(key) or self.take_back(key)
        if stream is None:
            stream = self._read(key)
            if stream is None:
                return None
            self.cached[key] = stream
            self._count_cached(size_of(key))
        return stream

    def _read(self, key: bytes) -> Stream | None:
        """The stream at `key` as its row has it.  Raises DamagedRowError."""
        packed = streams.key_key(self.keyspace_no, key)
        row = self.txn.lmdb.get(packed, db=self.txn.handles["keys"])
        if row is None:
            self._refuse_misplaced(packed)
            return None
        try:
            return Stream.of_row(self.txn, self, key, streams.StreamRow.unpack(packed, row))
        except DECODE_ERRORS:
            raise DamagedRowError(f"the row of key {quoted(key)}") from None

    def _refuse_misplaced(self, packed: bytes) -> None:
        """Raise DamagedRowError if a key beside the missing one has another row than its own, or is on the wrong side.

        A flipped bit of a key mostly leaves the row where it was, between the same neighbours.
        """
        rows = self.txn.cursor("keys")
        is_sound = not rows.set_range(packed) or (rows.key() > packed and streams.StreamRow.is_bound(*rows.item()))
        if is_sound and seek_below(rows, packed):
            is_sound = rows.key() < packed and streams.StreamRow.is_bound(*rows.item())
        if not is_sound:
            raise DamagedRowError("the row of a key")

    def groups(self, stream: Stream) -> Groups:
        """The groups of a stream of this database."""
        groups = self._groups.get(stream)
        if groups is None:
            groups = self._groups[stream] = Groups(stream, self._recent_deliveries)
        return groups

    def let_go_of_groups(self) -> None:
        """Forget most groups that were read, behind a commit."""
        for groups in self._groups.values():
            groups.let_go()

    def groups_with_consumers(self) -> Iterator[Group]:
        """The groups that have consumers in memory."""
        for groups in self._groups.values():
            for group in groups.in_memory():
                if group.consumers.byte_count:
                    yield group

    # -- runs of XADD --------------------------------------------------------------------------------------------------

    def append_run(self, run: Run, now_ms: int) -> tuple[int, bytes]:
        """Append the entries of a run that a client sent, up to the first one that is not simple.

        -> (how many, their IDs as bulk strings).  Simple are entries of streams that exist, do not expire and have no
        client that waits for them or watches them, if their options and IDs are in order and trim nothing.
        Logs `XADD key id f v ...` for each entry.  An exception leaves some of them.
        """
        lent = self._lent
        count, log, ids = lent.append(run, 0, self.interest, now_ms)
        done = self._log_run(count, log)
        while done < len(run) and self._lend_from(run, done):
            count, log, more = lent.append(run, done, self.interest, now_ms)
            if not count:
                break
            done += self._log_run(count, log)
            ids += more
        self._lent.settle(self.take_back)
        return done, ids

    def load_run(self, run: Run) -> int:
        """Append the entries of a run of a log, up to the first one that is not simple; -> how many.  Logs nothing.

        Simple are entries as for `append_run`.
        """
        lent = self._lent
        done = lent.load(run, 0, self.interest)
        while done < len(run) and self._lend_from(run, done):
            count = lent.load(run, done, self.interest)
            if not count:
                break
            done += count
        self._lent.settle(self.take_back)
        self.txn.changes += done
        return done

    def _log_run(self, count: int, log: bytes) -> int:
        if count:
            if self.txn.log_db != self.number:
                self.txn.log_select(self.number)
            self.txn.log.append(log)
            self.txn.changes += count
        return count

    def _lend_from(self, run: Run, at: int) -> bool:
        """Lend the stream of entry `at`, and those behind it that are not in memory; -> whether this one was lent."""
        key, size, trims = run.entry(at)
        if key in self.interest:
            return False
        lent_count = self.lent_count
        stream = self.cached.get(key) or self.take_back(key)
        if stream is None:
            if not trims and size < self.txn.node_max_bytes and self._lend_row(key):
                if self.lent_count > lent_count:  # else the entry was refused, and those behind it had their look
                    self._lend_rows_behind(run, at)
                return True
            try:
                stream = self.look_up(key)
            except DamagedRowError:
                return False  # its entry is refused by itself, and nothing has to be undone for that
        if stream is None or stream.expire_ms:
            return False
        self._lent.lend(stream, size, trims)  # raises DamagedRowError
        del self.cached[key]
        return True

    def _lend_row(self, key: bytes) -> bool:
        """Lend the stream at `key`, which is not in memory, by its row; -> whether it can be."""
        packed = streams.key_key(self.keyspace_no, key)
        row = self.txn.lmdb.get(packed, db=self.txn.handles["keys"])
        if row is None or not self._lent.lend_row(key, packed, row):
            return False
        self._count_cached(size_of(key))
        return True

    def _lend_rows_behind(self, run: Run, at: int) -> None:
        """Lend by their rows the streams behind entry `at` that are not in memory.

        To read the rows of a pipeline at once, and to go on with all of it, takes three quarters of the time.  Behind a
        stream that cannot be lent nothing is read: each entry of a pipeline that makes streams would read all others.
        """
        lent, number = self._lent, self.keyspace_no
        others = lent.unknown_keys(run, at + 1, self.cached, self.interest)
        keys = {streams.key_key(number, key): key for key in others}
        rows = [(keys[packed], packed, row) for packed, row in self.txn.cursor("keys").getmulti(list(keys))]
        self._count_cached(sum([size_of(key) for key, packed, row in rows if lent.lend_row(key, packed, row)]))

    def take_back(self, key: bytes) -> Stream | None:
        """Enter what was appended to a stream that is lent; -> the stream, None when there is no object of it."""
        lent_count = len(self._lent)
        stream = self._lent.take_back(key, self._need)
        if stream is not None:
            try:
                self.cached[key] = stream
            except BaseException:
                self.txn.lose()  # as in `LentStreams.take_back`
                raise
        elif len(self._lent) < lent_count:
            self._count_cached(-size_of(key))  # nothing of it is in memory
        return stream

    def _need(self, key: bytes) -> Stream:
        stream = self._read(key)
        assert stream is not None, "a stream that was lent is gone"
        return stream

    @property
    def lent_count(self) -> int:
        """How many streams are lent."""
        return len(self._lent)

    @property
    def lent_bytes(self) -> int:
        """Bytes of the rows that were appended to lent streams and are in no table."""
        return self._lent.size

    def let_rows_wait(self, max_bytes: int) -> None:
        """Have up to `max_bytes` of appended rows wait in memory, for one who lets no client wait for a checkpoint."""
        self._lent.max_bytes = max_bytes

    def put_lent_rows(self) -> None:
        """Put the rows of a few of the lent streams into their table."""
        self._lent.put_part(self.take_back)

    def take_part_back(self) -> None:
        """Take a few of the lent streams back, each in its turn.

        Where an object was lent that has no groups in memory, its row is lent the next time: that takes less.
        """
        for key in self._put_back(self._lent.next_keys()):
            is_for_appends = self._lent.is_for_appends(key)
            stream = self.take_back(key)
            if stream is not None and is_for_appends and stream not in self._groups:
                self._let_go_of(stream)

    def take_all_back(self) -> None:
        for key in self._put_back(self._lent.all_keys()):
            self.take_back(key)

    def _put_back(self, keys: list[bytes]) -> list[bytes]:
        """Put those of these streams back into their table that were lent by their rows; -> the others."""
        others = self._lent.put_back(keys)
        left = set(others)
        self._count_cached(-sum([size_of(key) for key in keys if key not in left]))
        return others
