"""Take the samples of `riverbed top`: INFO, and the longest streams found so far.

The cost of a sample does not grow with the number of streams: it scans a thousand keys, from where the previous sample
stopped, and reads the figures of a limited number of streams.  Works with any Redis since 7, as far as it reports the
values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from riverbed.tools.console.keytext import shown
from riverbed.tools.live.redisclient import RedisClient, number
from riverbed.tools.live.serverstat import PAGE, ask_all, databases, describe
from riverbed.tools.stream_stat import StreamStat

_KEYS_A_SAMPLE: Final = 1000
_MIN_A_PAGE: Final = 50  # an empty page costs something too

Place = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Sample:
    """A server at one moment: the fields of INFO, and the streams that were read of all `stream_total`."""

    moment_s: float  # of a monotonic clock
    unix_ms: int
    info: Mapping[str, str] = field(repr=False)
    streams: tuple[StreamStat, ...] = field(repr=False)
    stream_total: int

    def number(self, name: str) -> float | None:
        """A field as a number; None when this server does not report it."""
        return _finite(self.info.get(name, ""))

    def part(self, name: str, part: str) -> float | None:
        """`part` of a field like `a=1,b=2`."""
        for pair in self.info.get(name, "").split(","):
            key, _, value = pair.partition("=")
            if key == part:
                return _finite(value)
        return None


class Sampler:
    """Takes samples.  Remembers which streams are the longest, across connections."""

    def __init__(self, most_streams: int, is_wanted: Callable[[bytes], bool] = lambda key: True) -> None:
        self._most = most_streams
        self._is_wanted = is_wanted
        self._chosen: dict[Place, int] = {}
        self._found: dict[Place, int] = {}  # in the present walk
        self._place: Place = (0, b"0")  # database and cursor that the walk has reached

    def take(self, client: RedisClient) -> Sample:
        """Take a sample.  Raises Failure when the connection fails, ReplyError when the server refuses."""
        text = client.call("INFO", "all")
        info, counts = parse_info(text), databases(client, text)
        if self._most:
            self._walk(client, counts)
        streams = tuple(self._read(client))
        self._chosen = {(stream.db, stream.key): stream.length for stream in streams}
        return Sample(time.monotonic(), time.time_ns() // 1_000_000, info, streams, sum(counts.values()))

    def _walk(self, client: RedisClient, counts: Mapping[int, int]) -> None:
        """Scan about `_KEYS_A_SAMPLE` more keys for longer streams."""
        left = _KEYS_A_SAMPLE
        while True:
            db, cursor = self._place
            if db not in counts:
                later = [other for other in counts if other > db]
                if not later:
                    # The walk is complete.
                    self._chosen, self._found, self._place = self._found, {}, (0, b"0")
                    return
                db, cursor = min(later), b"0"
            if left <= 0:
                break
            client.call("SELECT", db)
            cursor, keys = client.call("SCAN", cursor, "COUNT", PAGE, "TYPE", "stream")
            new = [key for key in dict.fromkeys(keys) if self._is_wanted(key)]
            lengths = ask_all(client, [("XLEN", key) for key in new])
            self._found |= {
                (db, key): number(length) for key, length in zip(new, lengths, strict=True) if length is not None
            }
            self._found = _longest(self._found, self._most)
            self._place = (db + 1, b"0") if cursor == b"0" else (db, cursor)
            left -= max(len(keys), _MIN_A_PAGE)
        self._chosen = _longest(self._chosen | self._found, self._most)

    def _read(self, client: RedisClient) -> Iterator[StreamStat]:
        for db in sorted({db for db, _ in self._chosen}):
            client.call("SELECT", db)
            yield from describe(client, db, [key for number, key in self._chosen if number == db])


def _finite(text: str) -> float | None:
    """A number that a server tells; None for any other text, and for `inf` and `nan`, which cannot be shown."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _longest(found: Mapping[Place, int], most: int) -> dict[Place, int]:
    if len(found) <= most:
        return dict(found)
    return dict(nlargest(most, found.items(), key=lambda item: item[1]))


def parse_info(text: bytes) -> dict[str, str]:
    """The fields of INFO, safe to print: a server may send any bytes."""
    lines = (line for line in text.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {shown(name): shown(value) for name, colon, value in (line.partition(":") for line in lines) if colon}
