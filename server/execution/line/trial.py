"""Finds out whether it is worth it that ticks wait for clients: it depends on the clients.

Some think for longer than a tick waits, or are many in one slow process.  So it is tried: a round of ticks that wait
against the round before, which did not.  The way that answers more clients a second is kept for a while, and then the
other one is tried again.
"""

from __future__ import annotations

from typing import Final

ROUND: Final = 32  # ticks
# Rounds of one way between two of the other one.
ROUNDS: Final = 16
# To wait has to answer so many times as many clients: otherwise it only makes replies late.
_WORTH: Final = 1.1
_SHORTEST_ROUND_S: Final = 1e-6


class Trial:
    """What ticks that wait, and ticks that do not, have answered."""

    def __init__(self) -> None:
        self.does_wait = False  # the ticks of this round do
        self._is_on = False
        self._rounds = ROUNDS  # since the last one
        self._ticks = 0  # of this round
        self._clients = 0  # that it has answered
        self._took_s = 0.0
        self._rate = 0.0  # of the round before

    def count(self, clients: int, took_s: float) -> None:
        """Count what a tick has answered, and how long that took since the tick before."""
        self._clients += clients
        self._took_s += took_s

    def end_tick(self) -> bool:
        """-> whether a round is over with this tick."""
        self._ticks += 1
        if self._ticks < ROUND:
            return False
        rate = self._clients / max(self._took_s, _SHORTEST_ROUND_S)
        self._took_s = 0.0
        self._ticks = self._clients = 0
        self._rounds += 1
        if self._is_on:
            self._is_on = False
            self._rounds = 0
            waiting, at_once = (rate, self._rate) if self.does_wait else (self._rate, rate)
            self.does_wait = waiting > _WORTH * at_once
        elif self._rounds >= ROUNDS:
            self._is_on = True
            self.does_wait = not self.does_wait
        self._rate = rate
        return True
