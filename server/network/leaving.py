"""Ends connections, a few in each turn of the loop: thousands of clients may leave in one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session

# To forget a client and to close its socket takes up to 70 us with TLS.
AT_ONCE: Final = 32

End = Callable[["Session"], None]


class Leaving:
    """The clients of one server that have ended their side, or whose connection is gone.  Needs a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[End, Session]] = deque()
        self._taken = 0  # in this turn

    def take(self, end: End, session: Session) -> None:
        """Call `end(session)`: at once for the first few in a turn, in one of the next turns for the others.

        The calls for a client are made in the order in which they came.
        """
        if self._taken == 0:
            self._loop.call_soon(self._next_turn)
        if self._taken < AT_ONCE and not self._waiting:
            self._taken += 1
            end(session)
        else:
            self._waiting.append((end, session))

    def _next_turn(self) -> None:
        self._taken = min(len(self._waiting), AT_ONCE)
        if self._taken:
            self._loop.call_soon(self._next_turn)  # first: a defect ends one of these calls alone
        for _ in range(self._taken):
            end, session = self._waiting.popleft()
            end(session)
