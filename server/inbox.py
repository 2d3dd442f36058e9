"""Whose requests come next: what has arrived since the last tick, and what that one had no time for.

Requests run in the order in which they arrived.  A tick is short and may end before everybody has had a turn; in the
next one, clients with only a few requests go before those that were left over with long pipelines, or a PING would
wait for all of those; but only so many, so that nobody waits for ever.  The requests of one client always run in the
order in which it sent them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from server.session import Session
    from server.stats import Stats

    # What one client sent at once.
    Arrival = tuple[Session, list[list[bytes]]]

# More than these are a pipeline.
_FEW: Final = 4
# Requests that may go before those that were left over: a fraction of a millisecond.
MOST_FIRST: Final = 64


class Inbox:
    """The requests of one executor that have not run.

    `arrivals` are those since the last tick, the same list all the time.
    """

    def __init__(self, stats: Stats) -> None:
        self.arrivals: list[Arrival] = []
        self._stats = stats
        self._left: list[Arrival] = []
        self._resumed: dict[Session, None] = {}

    def __bool__(self) -> bool:
        return bool(self.arrivals or self._left)

    def clear(self) -> None:
        """Nobody's requests will run any more."""
        self.arrivals.clear()
        self._left.clear()
        self._resumed.clear()

    def leave(self, arrivals: list[Arrival]) -> None:
        """These were taken, and the tick had no time for them."""
        self._left = arrivals

    def resume(self, session: Session) -> None:
        """Let what the session had to hold back run with what has arrived by then."""
        self._resumed[session] = None

    def take(self) -> list[Arrival]:
        """All that is to run, in order."""
        arrivals = self.arrivals[:]
        self.arrivals.clear()
        if self._left:
            arrivals = self._around_the_left(arrivals)
        if self._resumed:
            arrivals = self._with_resumed(arrivals)
        return arrivals

    def _around_the_left(self, arrivals: list[Arrival]) -> list[Arrival]:
        left, self._left = self._left, []
        first: list[Arrival] = []
        last: list[Arrival] = []
        waiting = {session for session, _ in left}
        count = 0
        for arrival in arrivals:
            session, requests = arrival
            if len(requests) <= _FEW and count < MOST_FIRST and session not in waiting:
                first.append(arrival)
                count += len(requests)
            else:
                waiting.add(session)
                last.append(arrival)
        return first + left + last

    def _with_resumed(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Also what clients may go on with, who waited with the rest of their requests: behind those who have not had
        a turn, and before what they have sent since.
        """
        resumed = [(session, session.take_backlog()) for session in self._resumed]
        first = [arrival for arrival in arrivals if arrival[0] not in self._resumed]
        last = [arrival for arrival in arrivals if arrival[0] in self._resumed]
        self._resumed.clear()
        for session, requests in resumed:  # they were counted when they came
            session.commands_processed -= len(requests)
            self._stats.commands_processed -= len(requests)
        return first + resumed + last
