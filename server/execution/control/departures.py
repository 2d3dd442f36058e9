"""Takes apart, a little in each turn of the loop, what clients leave that had very many names.

A client may watch or listen to a million names.  To forget them takes up to half a second, for which no other client
should wait when it goes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

# A step takes about as long, so a turn seldom takes more than twice that.
_TURN_S: Final = 0.0005


class Departures:
    """What is left of the clients of one server that have gone; `monotonic` gives seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._work: deque[Iterator[None]] = deque()

    def begin(self, work: Iterator[None]) -> None:
        """Take the first step of `work` now, and the others, if there are any, in the next turns of the loop."""
        if _goes_on(work):
            self._work.append(work)
            if len(self._work) == 1:
                self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        end = self._monotonic() + _TURN_S
        work = self._work.popleft()
        try:
            while _goes_on(work):
                if self._monotonic() >= end:
                    self._work.appendleft(work)
                    return
        finally:
            if self._work:
                self._loop.call_soon(self._take_turn)  # also behind a defect, which ends this one alone


def _goes_on(work: Iterator[None]) -> bool:
    """Take a step; -> whether there are more."""
    for _ in work:
        return True
    return False
