"""Reading transactions of LMDB that stay open for long, whichever process has them.

A page that such a reader may still read cannot be used again, so state/ grows with every write for as long as it is
open.  LMDB knows how many transactions ago a reader began, not when: `Readers` looks every second and remembers since
when each has been there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

import lmdb

log = logging.getLogger("riverbed")

# A snapshot or a rewrite of 30 million entries takes as long.
LONG_S: Final = 60.0


class Reader(NamedTuple):
    """A transaction: its process, its thread as LMDB writes it, and what it sees."""

    pid: int
    thread: str
    transaction_no: int


class Readers:
    """The readers of one environment.  `pid` and `seconds` are of the one that has been open for the longest time."""

    def __init__(self, env: Callable[[], lmdb.Environment], monotonic: Callable[[], float]) -> None:
        self.pid = 0
        self.seconds = 0.0
        self._env = env
        self._monotonic = monotonic
        self._seen_s: dict[Reader, float] = {}
        self._reported: set[Reader] = set()

    def look(self) -> None:
        """Forget readers that were killed, and log those that have become long."""
        env, now_s = self._env(), self._monotonic()
        env.reader_check()
        last = env.info()["last_txnid"]
        # one that sees the present state holds nothing up, and may as well be a new one each time
        behind = [reader for reader in _parse(env.readers()) if reader.transaction_no < last]
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


def _parse(text: str) -> list[Reader]:
    """What py-lmdb tells: a line of headings, then process, thread and transaction of each reader, "-" for none."""
    lines = [line.split() for line in text.splitlines()[1:]]
    return [Reader(int(pid), thread, int(number)) for pid, thread, number in lines if number.isdigit()]
