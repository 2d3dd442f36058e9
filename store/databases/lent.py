"""The streams of a database that are lent to the native module, which appends to them without asking for each entry.

A lent stream is not among the cached ones: whoever looks it up has it taken back first, with all that was appended.
Until then its object is out of date, and the appended rows are in no table.  Many entries of one stream then reach the
table together, which takes LMDB a third of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.store.streams.runs import lend, take_back
from riverbed.store.wire import append

if TYPE_CHECKING:
    from riverbed.store.streams.stream import Stream
    from riverbed.store.wire import Run, Tail

# More lent streams, or bytes of rows that are in no table, make the next checkpoint longer than some 12 ms.
_MOST_STREAMS: Final = 1024
_MOST_BYTES: Final = 5 << 19
_ROW_BYTES: Final = 100  # beside the fields: the key, the objects
# Streams that are taken back at once when there are too many: less than a millisecond.
_BATCH: Final = 16


class LentStreams:
    """The lent streams of one database, those that were lent first in front."""

    __slots__ = ("_size", "_streams", "_tails")

    def __init__(self) -> None:
        self._tails: dict[bytes, Tail] = {}
        self._streams: dict[bytes, Stream] = {}
        self._size = 0  # bytes of the rows that were appended

    def __len__(self) -> int:
        return len(self._tails)

    def lend(self, stream: Stream, size: int) -> None:
        """Lend a stream that does not expire, for an entry with `size` bytes of fields and those after it."""
        self._tails[stream.key] = lend(stream, size)
        self._streams[stream.key] = stream

    def append(self, run: Run, at: int, watched: dict[bytes, int], now_ms: int) -> tuple[int, bytes, bytes]:
        """Append entries of `run` from `at` on to the streams that are lent; -> (count, log, IDs as bulk strings)."""
        count, size, log, ids = append(run, at, self._tails, watched, now_ms)
        self._size += size + count * _ROW_BYTES
        return count, log, ids

    @property
    def is_full(self) -> bool:
        return self._size > _MOST_BYTES or len(self._tails) > _MOST_STREAMS

    def oldest(self) -> list[bytes]:
        """The keys of the streams to take back when it is full."""
        return [key for key, _ in zip(self._tails, range(_BATCH), strict=False)]

    def all_keys(self) -> list[bytes]:
        return list(self._tails)

    def take_back(self, key: bytes) -> Stream | None:
        """The stream at `key` with all that was appended; None when it is not lent."""
        tail = self._tails.pop(key, None)
        if tail is None:
            return None
        stream = self._streams.pop(key)
        self._size -= tail.size + len(tail.rows) * _ROW_BYTES
        take_back(stream, tail)
        return stream

    def forget(self) -> None:
        """Lose what was appended."""
        self._tails.clear()
        self._streams.clear()
        self._size = 0
