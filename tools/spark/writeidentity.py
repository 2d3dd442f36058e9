"""What makes rows known again: names that a retry of a task gives to the same rows, whatever order they come in.

A row is named by what is in it, and by how many equal ones came before it in the same partition.  So an attempt that
gets the rows of its partition in another order, as behind a shuffle, still sends nothing twice and leaves nothing out;
only which rows are in the partition must be the same.  Rows that differ from those of the first attempt are new ones.

The server remembers names (iids) by producer, some hundred each: rows are spread over many producers.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack
import numpy as np
import xxhash

from tools.spark.writerows import Entry

# So many that a producer of a partition of millions still has few rows.
_PRODUCERS: Final = 1 << 20
# What a server must remember of each producer, and up to how many rows of a partition that is enough: with 46 on
# average, no producer has as many as 100.
LEAST_REMEMBERED: Final = 100
MOST_ROWS: Final = 46 * _PRODUCERS

Name = tuple[bytes, bytes]  # of the producer, of the row: pid and iid


class Names:
    """Of the rows of one partition."""

    def __init__(self, job: str, partition: int) -> None:
        self._prefix = f"{job}:{partition}:".encode()
        self._seen = Counts()

    def of(self, entries: list[Entry]) -> list[Name]:
        """The names of the next rows."""
        digests = [xxhash.xxh3_128_digest(msgpack.packb([entry.key, *entry.words])) for entry in entries]
        short = np.frombuffer(b"".join(digests), dtype=">u8")[::2].astype(np.uint64)
        return [
            self._name(digest if not count else digest + b"%d" % count)
            for digest, count in zip(digests, self._seen.count(short).tolist(), strict=True)
        ]

    def _name(self, iid: bytes) -> Name:
        return b"%b%x" % (self._prefix, xxhash.xxh3_64_intdigest(iid) % _PRODUCERS), iid


class Counts:
    """How often each number has come, in eight bytes each: sorted runs, merged so that there are few."""

    def __init__(self) -> None:
        self._runs: list[Any] = []

    def count(self, numbers: Any) -> Any:
        """How many equal ones came before each of `numbers`, in earlier calls and in this one."""
        before = np.zeros(len(numbers), dtype=np.int64)
        for run in self._runs:
            before += np.searchsorted(run, numbers, side="right") - np.searchsorted(run, numbers, side="left")
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        before[order] += np.arange(len(numbers)) - np.searchsorted(ascending, ascending, side="left")
        self._add(ascending)
        return before

    def _add(self, run: Any) -> None:
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        self._runs.append(run)
