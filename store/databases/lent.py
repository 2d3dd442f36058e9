"""The streams of a database that are lent to the native module, which appends to them without asking for each entry.

A lent stream is not among the cached ones: a look-up takes it back first, with all that was appended.
Until then its object is out of date.  The appended rows wait in memory, so that many entries of one stream reach the
table together, which takes LMDB a third of the time.

Most of a hundred thousand streams have no object when they are appended to.  Such a stream is lent by its row, and its
row with what was appended is what is taken back: to make the object and its row again would take twice as long as all
else that an append costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.store.databases.turns import Turns
from riverbed.store.streams.runs import lend, lend_row, put_all_rows, put_rows, take_back
from riverbed.store.wire import append, keys_in_order, load, unknown_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.writing.transaction import Transaction
    from riverbed.store.wire import Run, Tail

# Bytes of rows that are in no table: of a thousand streams, as many as are logged between two checkpoints.
_MAX_BYTES = 1 << 22
# Streams that are taken back at once, those whose rows are put into the table at once, and bytes of their rows, unless
# one stream has more: less than a millisecond.
BATCH = 64
PUT_BATCH = 16
PART_BYTES: Final = 1 << 16
# Appended rows of one stream that are put there once the replies are sent, so many in a tenth of a millisecond.  All
# that a stream gets until it is taken back takes 0.3 ms, and a client would wait for that.
_LONG_BYTES: Final = 1 << 14
# Where a thousand streams take turns none has so many.  So each look that finds few comes after twice as many bytes.
_MOST_LOOK_BYTES: Final = 1 << 20


class LentStreams:
    """The lent streams of one database."""

    __slots__ = (
        "_bytes_since_look",
        "_last_key",
        "_look_bytes",
        "_put_turns",
        "_size",
        "_streams",
        "_tails",
        "_trimming",
        "_turns",
        "_txn",
        "max_bytes",
    )

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn
        self._tails: dict[bytes, Tail] = {}
        self._streams: dict[bytes, Stream] = {}
        self._trimming: set[bytes] = set()  # keys of streams that were lent to entries that trim
        self.max_bytes = _MAX_BYTES  # of rows that wait
        self._size = 0  # bytes of the rows that wait
        self._bytes_since_look = 0  # when `_last_key` was noted
        self._look_bytes = _LONG_BYTES  # after so many it is noted again
        self._last_key = b""  # of the stream that the last entry of a run went to
        self._turns = Turns(self._tails, keys_in_order)  # of being taken back
        self._put_turns = Turns(self._tails, keys_in_order)  # of having rows put into the table

    def __len__(self) -> int:
        return len(self._tails)

    @property
    def size(self) -> int:
        """Bytes of the rows that wait."""
        return self._size

    def lend(self, stream: Stream, size: int, trims: bool) -> None:
        """Lend a stream that does not expire, for an entry with `size` bytes of fields and those after it."""
        self._tails[stream.key] = lend(stream, size, trims)
        self._streams[stream.key] = stream
        if trims:
            self._trimming.add(stream.key)

    def lend_row(self, key: bytes, row_key: bytes, row: bytes) -> bool:
        """Lend a stream that has no object by its row, for entries that do not trim; -> whether it can be."""
        tail = lend_row(self._txn, row_key, row)
        if tail is None:
            return False
        self._tails[key] = tail
        return True

    def unknown_keys(self, run: Run, at: int, cached: dict[bytes, Stream], watched: dict[bytes, int]) -> list[bytes]:
        """Keys of entries from `at` on that trim nothing and fit into a node, neither lent nor in one of the dicts."""
        return unknown_keys(run, at, self._txn.node_max_bytes, self._tails, cached, watched)

    def append(self, run: Run, at: int, watched: dict[bytes, int], now_ms: int) -> tuple[int, bytes, bytes]:
        """Append entries of `run` from `at` on to the streams that are lent; -> (count, log, IDs as bulk strings)."""
        count, size, log, ids = append(run, at, self._tails, watched, now_ms)
        self._size += size
        self._bytes_since_look += size
        if count and self._bytes_since_look >= self._look_bytes:
            self._bytes_since_look = 0
            self._last_key = run.entry(at + count - 1)[0]
            self._txn.overfull[self] = None
        return count, log, ids

    def write_behind(self) -> None:
        """Put the rows of the stream that was appended to last into the table, if it has many.

        Not where entries trim: what they remove need never reach the table.
        """
        key = self._last_key
        tail = self._tails.get(key)
        if tail is not None and tail.size >= _LONG_BYTES and self.is_for_appends(key):
            self._put(tail)
            self._look_bytes = _LONG_BYTES
        elif len(self._tails) > 1:
            self._look_bytes = min(2 * self._look_bytes, _MOST_LOOK_BYTES)

    def _put(self, tail: Tail) -> None:
        self._size -= tail.size
        try:
            put_rows(self._txn, tail)
        except BaseException:
            self._txn.lose()  # rows that the tail has given away may be in no table
            raise
        self._size += tail.size  # what it is still to trim

    def load(self, run: Run, at: int, watched: dict[bytes, int]) -> int:
        """Append entries of `run`, which is from a log, from `at` on to the streams that are lent; -> how many."""
        count, size = load(run, at, self._tails, watched)
        self._size += size
        return count

    def settle(self, take_back: Callable[[bytes], object]) -> None:
        """Keep within the bound of rows that wait to be put or deleted."""
        while self._size > self.max_bytes and self._tails:
            self.put_part(take_back)

    def put_part(self, take_back: Callable[[bytes], object]) -> None:
        """Put the rows of a batch of streams into the table, each stream in its turn."""
        for key in self._batch(self._put_turns, PUT_BATCH):
            tail = self._tails[key]
            if tail.trimmed:
                take_back(key)
            else:
                self._put(tail)

    def next_keys(self) -> list[bytes]:
        """A batch of the streams, each in its turn, in the order of their numbers, one at least if there is any."""
        return self._batch(self._turns, BATCH)

    def _batch(self, turns: Turns, most: int) -> list[bytes]:
        keys = turns.take(most)
        if self._size >= PART_BYTES:
            size = 0
            for count, key in enumerate(keys, 1):
                size += self._tails[key].size
                if size >= PART_BYTES:
                    turns.give_back(keys[count:])
                    return keys[:count]
        return keys

    def all_keys(self) -> list[bytes]:
        """The keys of all streams, in the order of their numbers."""
        return keys_in_order(self._tails)

    def put_back(self, keys: list[bytes]) -> list[bytes]:
        """Put those of these streams back into their table that were lent by their rows; -> the others, still lent."""
        by_row = [key for key in keys if key not in self._streams]
        tails = [self._tails[key] for key in by_row]
        waiting = sum([tail.size for tail in tails])
        try:
            rows = put_all_rows(self._txn, tails)
        except BaseException:
            self._txn.lose()  # as in `_put`
            raise
        self._size -= waiting - sum([tail.size for tail in tails])  # those that trim wait on
        for key, row in zip(by_row, rows, strict=True):
            if row is not None:
                del self._tails[key]
        return [key for key in keys if key in self._tails]

    def is_for_appends(self, key: bytes) -> bool:
        """Whether a stream that is lent has only been appended to since: entries that trim need its object."""
        return key not in self._trimming

    def outdated(self, key: bytes) -> Stream | None:
        """The object of a lent stream, which knows nothing of what was appended; None when it is not lent."""
        return self._streams.get(key)

    def take_back(self, key: bytes, read: Callable[[bytes], Stream]) -> Stream | None:
        """The stream at `key` with all that was appended.

        None when it is not lent, or was lent by its row, and this is in its table again.  The object of a stream that
        was lent so, and has opened nodes since, is made by `read` of the row that is still in the table.

        Raises DamagedRowError, where that is damaged or what entries have trimmed.  Whatever it raises, the transaction
        is to be undone.
        """
        tail = self._tails.pop(key, None)
        if tail is None:
            return None
        self._size -= tail.size
        self._trimming.discard(key)
        stream = self._streams.pop(key, None)
        try:
            if stream is None:
                changed = tail.stream_row()
                if changed is not None:
                    put_rows(self._txn, tail)
                    self._txn.lmdb.put(*changed, db=self._txn.handles["keys"])
                    return None
                stream = read(key)
            take_back(stream, tail)
        except BaseException:
            self._txn.lose()  # the stream is in no cache any more
            raise
        return stream

    def forget(self) -> None:
        """Lose what was appended."""
        self._tails.clear()
        self._streams.clear()
        self._trimming.clear()
        self._size = 0
