"""Reading transactions of LMDB that stay open for long, in any process.

A page that such a reader may still read cannot be used again, so state/ grows with every write for as long as it is
open.  LMDB knows how many transactions ago a reader began, not when: `Readers` looks every second and remembers since
when each has been there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.store.tables.environment import Reader, Tables

log = logging.getLogger("riverbed")

# A snapshot or a rewrite of 30 million entries takes as long.
LONG_S: Final = 60.0


class Readers:
    """The readers of one store.  `pid` and `seconds` are those of the reader that has been open longest."""

    def __init__(self, tables: Callable[[], Tables], monotonic: Callable[[], float]) -> None:
        self.pid = 0
        self.seconds = 0.0
        self._tables = tables
        self._monotonic = monotonic
        self._seen_s: dict[Reader, float] = {}
        self._reported: set[Reader] = set()

    def look(self) -> None:
        """Forget readers that were killed, and log those that have become long."""
        tables, now_s = self._tables(), self._monotonic()
        tables.env.reader_check()
        last = tables.env.info()["last_txnid"]
        # a reader of the present state keeps no old pages, and may be a new one each time
        behind = [reader for reader in tables.readers() if reader.transaction_no < last]
        self._seen_s = {reader: self._seen_s.get(reader, now_s) for reader in behind}
        self._reported.intersection_update(behind)
        self.pid, self.seconds = 0, 0.0
        for reader, since_s in self._seen_s.items():
            if now_s - since_s >= self.seconds:
                self.pid, self.seconds = reader.pid, now_s - since_s
            if now_s - since_s >= LONG_S and reader not in self._reported:
                self._reported.add(reader)
                log.warning(
                    "process %d has been reading the tables for %d s, as they were %d checkpoints ago: "
                    "state/ grows until it ends",
                    reader.pid,
                    now_s - since_s,
                    last - reader.transaction_no,
                )
