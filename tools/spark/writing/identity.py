"""Names of rows: a retry of a task gives the same names to the same rows, in any order of the rows.

The name of a row depends on its content, and on the number of equal rows before it in the same partition.  So an
attempt that gets the rows of its partition in another order, as after a shuffle, sends no row twice and leaves no row
out.  The partition must have the same rows in each attempt.  A row that the first attempt did not have is a new row.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack
import numpy as np
import xxhash

from riverbed.tools.spark.writing.rows import Entry

NAME_BYTES: Final = 16


class Names:
    """Names the rows of one partition."""

    def __init__(self) -> None:
        self._seen = SortedRuns()

    def of(self, entries: list[Entry]) -> list[bytes]:
        """The names of the next rows, of `NAME_BYTES` each."""
        digests = [xxhash.xxh3_128_digest(msgpack.packb([*entry[:2], *entry.words])) for entry in entries]
        short = np.frombuffer(b"".join(digests), dtype=">u8")[::2].astype(np.uint64)
        return [
            digest if not count else xxhash.xxh3_128_digest(digest + b"%d" % count)
            for digest, count in zip(digests, self._equal_before(short).tolist(), strict=True)
        ]

    def _equal_before(self, numbers: Any) -> Any:
        """For each of `numbers`, how many equal numbers came before it, in earlier calls and in this one."""
        before = self._seen.count(numbers)
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        before[order] += np.arange(len(numbers)) - np.searchsorted(ascending, ascending, side="left")
        self._seen.add(ascending)
        return before


class SortedRuns:
    """Counts how often each value was added.  Keeps only the values, in sorted runs that are merged to remain few."""

    def __init__(self) -> None:
        self._runs: list[Any] = []

    def add(self, ascending: Any) -> None:
        run = ascending
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        self._runs.append(run)

    def count(self, values: Any) -> Any:
        """For each of `values`, how often it was added."""
        found = np.zeros(len(values), dtype=np.int64)
        for run in self._runs:
            found += np.searchsorted(run, values, side="right") - np.searchsorted(run, values, side="left")
        return found
