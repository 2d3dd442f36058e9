"""Deletes what has expired: keys, records of producers, and consumers that stayed away.

It looks ten times a second, for a slice.  Where that was not all, it goes on after a pause, for at most a quarter of
the time, as Redis does: deadlines that come faster than that wait, and their keys are gone for clients meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.store.databases import consumer_ttl
from riverbed.store.errors import StateLostError
from riverbed.store.streams import idempotence

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.execution.blocking import Blocking
    from riverbed.server.execution.failures import Failures
    from riverbed.server.execution.ticks import Ticks

SLICE_S: Final = 0.002
PAUSE_S: Final = 0.006
BATCH: Final = 64
RETRY_S: Final = 1.0


class Expiry:
    """What expires on one server."""

    def __init__(self, core: Core, ticks: Ticks, *, failures: Failures, blocking: Blocking) -> None:
        self._core = core
        self._engine = core.engine
        self._monotonic = core.clock.monotonic
        self._ticks = ticks
        self._failures = failures
        self._blocking = blocking
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._again_s: dict[Callable[[int, float], bool], float] = {}  # when what an error has undone is tried again
        # Each is the first in its turn: where one of them takes all the time, the others are not to wait for it.
        self._kinds: deque[Callable[[int, float], bool]] = deque((self._keys, self._records, self._consumers))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> bool:
        """Take a slice now, unless one is to come soon, and more where that was not all; -> whether the server goes on.

        A kind that an error has undone is tried again after a second; the others go on.
        """
        txn = self._engine.txn
        # a replica that is to take over in a pause would not be level with what expires meanwhile
        if self._timer is not None or txn.holds_expired:
            return True
        try:
            self._failures.restore_lost()
            is_behind = self._take_slice()
        except StateLostError as failure:
            self._ticks.give_up(failure)
            return False
        if txn.log:
            self._ticks.want_tick()
        if is_behind:
            self._timer = self._loop.call_later(PAUSE_S, self._go_on)
        return True

    def _take_slice(self) -> bool:
        """-> whether there is more.  Raises StateLostError."""
        end_s = self._monotonic() + SLICE_S
        now_ms = self._core.now_ms()
        self._kinds.rotate(1)
        for expire in self._kinds:
            if self._monotonic() < self._again_s.get(expire, 0.0):
                continue
            mark = self._engine.txn.mark()
            try:
                if expire(now_ms, end_s):
                    return True
            except Exception as error:  # memory may be short between the rows of a key and the line of the log
                self._failures.undo_chore("what removes expired keys", error, mark)
                self._again_s[expire] = self._monotonic() + RETRY_S
        return False

    def _go_on(self) -> None:
        self._timer = None
        self.look()

    def _keys(self, now_ms: int, end_s: float) -> bool:
        while self._engine.txn.expire_due(now_ms, BATCH) == BATCH:
            if self._monotonic() >= end_s:
                return True
        return False

    def _records(self, now_ms: int, end_s: float) -> bool:
        dropped = idempotence.sweep(self._engine.txn, now_ms, lambda: self._monotonic() >= end_s)
        return dropped > 0 and self._monotonic() >= end_s

    def _consumers(self, now_ms: int, end_s: float) -> bool:
        if self._engine.refusal is not None:
            return False
        waiting = self._blocking.waiting_consumers
        return not consumer_ttl.sweep(self._engine.txn, now_ms, lambda: self._monotonic() >= end_s, waiting)
