"""Has clients share a sync where syncs are slow: a tick waits a little for those that were just answered.

With `appendfsync always` a tick ends in a sync, and its clients have their replies behind it.  A tick that begins with
the first of their next requests finds a part of them.  The others wait for a sync of their own, and so it stays: there
are two groups of clients, and each waits for the syncs of both.  Where a sync takes half a millisecond or more, to wait
for the rest may cost less: half of a sync or a little more, as PostgreSQL advises for its `commit_delay`.  Whether it
does is found out by trials, see `trial.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from riverbed.server.execution.line.trial import Trial

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from riverbed.server.commands.session import Session
    from riverbed.server.stats.stats import Stats

# Two syncs in a row have to take this long.
SLOW_S: Final = 0.0005
# A wait takes half of a sync, within these bounds; the loop's timers count milliseconds.
_PART: Final = 0.5
_LEAST_S: Final = 0.001
MOST_S: Final = 0.005
# The time between two ticks, in syncs, in which clients have paused: it says nothing about either way.
_PAUSE: Final = 10


class Gathering:
    """What one executor knows of the clients that are about to send something."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], stats: Stats) -> None:
        """`clock` returns the time in seconds."""
        self.is_on = False  # replies wait for syncs, which are slow
        self._loop = loop
        self._clock = clock
        self._stats = stats
        self._last_s = 0.0  # what the last sync took
        self._wait_s = 0.0
        self._begun = 0.0  # when the last tick was over, and the wait for the next one began
        self._missing: set[Session] = set()  # clients that may send something soon
        self._seen = 0  # arrivals that were looked at
        self._timer: asyncio.TimerHandle | None = None
        self._may_miss = 0  # as many clients as were missing when a wait of this round was over
        self._trial = Trial()
        self._at_once = 0  # clients that were answered since then, by ticks without a sync

    def synced(self, seconds: float, *, is_waited_for: bool) -> None:
        """Note how long a sync took, and whether replies have waited for it."""
        slow_s = min(self._last_s, seconds)
        self._last_s = seconds
        self.is_on = is_waited_for and slow_s >= SLOW_S
        self._wait_s = min(max(_PART * slow_s, _LEAST_S), MOST_S)

    def answered(self, sessions: Sequence[Session]) -> None:
        """Note the clients that a tick has answered."""
        self._end()
        now = self._clock()
        took_s = now - self._begun
        self._begun = now
        if took_s < _PAUSE * self._last_s:
            self._trial.count(len(sessions) + self._at_once, took_s)
        self._at_once = 0
        if self._trial.end_tick():
            self._may_miss = 0
        if self._trial.does_wait:
            self._missing = {session for session in sessions if _may_send(session)}
            self._seen = 0

    def answered_at_once(self, count: int) -> None:
        """Note how many clients a tick answered without a sync, or while others had more to run.

        They wait as well when others are waited for, so they count where it is asked whether that is worth it.
        """
        self._at_once += count

    def forget(self, session: Session) -> bool:
        """The client has gone; -> whether a tick that waits has nobody to wait for any more."""
        self._missing.discard(session)
        return self._timer is not None and len(self._missing) <= self._may_miss

    def stop(self) -> None:
        """Replies wait for no sync, or for other ones than before, until `synced` says what they take."""
        self.is_on = False

    def waits(self, arrivals: Sequence[Session], want_tick: Callable[[], None]) -> bool:
        """Whether the next tick waits for more clients than these, which have sent something since the last one.

        `want_tick` is called when the wait has ended in vain.
        """
        missing = self._missing
        missing.difference_update(arrivals[self._seen :])
        self._seen = len(arrivals)
        if len(missing) <= self._may_miss:
            self._end()
            return False
        if self._timer is None:
            left_s = self._begun + self._wait_s - self._clock()
            if left_s <= 0:
                self._end_in_vain()
                return False
            self._timer = self._loop.call_later(left_s, self._time_is_up, want_tick)
            self._stats.waits_for_clients += 1
        return True

    def _time_is_up(self, want_tick: Callable[[], None]) -> None:
        self._end_in_vain()
        want_tick()

    def _end_in_vain(self) -> None:
        self._may_miss = len(self._missing)
        self._end()

    def _end(self) -> None:
        self._missing = set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _may_send(session: Session) -> bool:
    """Whether a client that has its reply may send a request soon.

    Not one that has more to run or is leaving, nor one that waits for a key, a message or the log.
    """
    if session.in_line:
        return False
    if session.is_plain:
        return True
    is_listener = session.is_monitor or session.is_replica or session.is_confined
    return not (session.closing or session.must_wait or is_listener)
