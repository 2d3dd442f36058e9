"""Connections that have not ended their handshake: how many, for how long, and how much of a turn they take.

A handshake is a millisecond of arithmetic.  When a thousand clients come at once, the clients that are connected wait
for none of them longer than for `TURN_S`; a client that never ends its handshake is cut off after `HANDSHAKE_S`.

    accepted --- first record is whole ---> newcomers ---> begun, at most MAX_BEGUN ---> ended
     0.5 kB                                   3 kB            46 kB, OpenSSL's

A newcomer for which there is no place waits until a handshake ends.  If the oldest does not within `PATIENCE_S` it is
cut off, so handshakes that stand still hold up the others for this long, and hold no more memory than that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from riverbed.server.limits.rare_lines import RareLine

HANDSHAKE_S: Final = 10.0
TURN_S: Final = 0.003
MAX_BEGUN: Final = 1024
PATIENCE_S: Final = 1.0


class Shaking(Protocol):
    """A connection whose handshake is under way."""

    address: str

    def shake(self) -> None:
        """Take the next step."""

    def give_up(self) -> None:
        """Close the connection."""


class Handshakes:
    """The handshakes of one port, or of one side; as many as its length are under way."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        limit_s: float = HANDSHAKE_S,
        most_begun: int = MAX_BEGUN,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._limit_s = limit_s
        self._most_begun = most_begun
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Shaking, asyncio.TimerHandle] = {}
        self._begun: dict[Shaking, float] = {}  # those that OpenSSL has memory for, by the time of their first step
        self._queue: deque[Shaking] = deque()  # begun, with a step to take
        self._newcomers: deque[Shaking] = deque()
        self._is_due = False
        self._patience: asyncio.TimerHandle | None = None
        self._failed = RareLine("%d TLS handshakes failed since the last such line; the last one was with %s")
        self._plain = RareLine(
            "%d clients did not speak TLS to a port with TLS since the last such line, and were cut off; the last one"
            " was %s"
        )
        self._slow = RareLine(
            f"%d TLS handshakes took longer than {limit_s:g} s, or {patience_s:g} s while others waited, since the last"
            " such line; the last one was with %s"
        )

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, connection: Shaking) -> None:
        self._under_way[connection] = self._loop.call_later(self._limit_s, self._is_late, connection)

    def end(self, connection: Shaking) -> None:
        """The handshake is over, or the connection is."""
        timer = self._under_way.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if self._begun.pop(connection, None) is not None and self._newcomers:
            self._step_later()

    def step_soon(self, connection: Shaking) -> None:
        """Have the connection take a step when its turn comes."""
        (self._queue if connection in self._begun else self._newcomers).append(connection)
        self._step_later()

    def _step_later(self) -> None:
        if not self._is_due:
            self._loop.call_soon(self._step)
            self._is_due = True

    def _step(self) -> None:
        self._is_due = False
        end = time.perf_counter() + TURN_S
        while (connection := self._next()) is not None:
            try:
                connection.shake()
            except Exception:  # what it has sent may be lost; the others go on
                connection.give_up()
                self._step_later()
                raise
            if time.perf_counter() >= end:
                self._step_later()
                return

    def _next(self) -> Shaking | None:
        """The next one to take a step; those that have begun come first, so that they end and make room."""
        while self._queue:
            connection = self._queue.popleft()
            if connection in self._under_way:
                return connection
        while self._newcomers:
            if self._newcomers[0] not in self._under_way:
                self._newcomers.popleft()
            elif self._has_room():
                connection = self._newcomers.popleft()
                self._begun[connection] = self._loop.time()
                return connection
            else:
                return None
        return None

    def _has_room(self) -> bool:
        """Whether a newcomer may begin; cuts off the oldest handshake where that makes room."""
        if len(self._begun) < self._most_begun:
            return True
        oldest, since = next(iter(self._begun.items()))
        if self._loop.time() - since >= self._patience_s:
            self._is_late(oldest)
            return True
        if self._patience is None:
            self._patience = self._loop.call_at(since + self._patience_s, self._lose_patience)
        return False

    def _lose_patience(self) -> None:
        self._patience = None
        self._step_later()

    def drop_oldest(self) -> None:
        """Cut off the one that began first."""
        next(iter(self._under_way)).give_up()

    def close(self) -> None:
        """Cut off all that are under way."""
        if self._patience is not None:
            self._patience.cancel()
        for connection in list(self._under_way):
            connection.give_up()

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def failed(self, address: str, reason: str) -> None:
        self._failed.note(f"{address}: {reason}", self._monotonic())

    def spoke_plainly(self, address: str) -> None:
        self._plain.note(address, self._monotonic())

    def _is_late(self, connection: Shaking) -> None:
        self._slow.note(connection.address, self._monotonic())
        connection.give_up()
