"""Which client's requests run next: of the clients that have sent some, and of those left over from the last tick.

Requests run in the order in which they arrived.  A tick is short and may end before every client has had a turn.  In
the next tick, clients with only a few requests go before those that were left over with long pipelines, or a PING would
wait for all of the pipelines; but only so many, so that no client waits for ever.  The requests of one client always
run in the order in which it sent them.

A client has one place in line, however much it has sent.  What it has sent stays as it came: `take` has it parsed, a
batch at a time, when its turn has come.  So what waits costs its bytes, and a tick costs what it runs.

    chunk -> arrivals -> line -> a batch is taken and run -> has more -> again, behind the others
                          ^                 |
                          |                 +-- not to its end (it waits, or has had enough) -> held
                          +-- resumed <------------------------------------------------------- |
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from riverbed.store.wire import count_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.session import Session
    from riverbed.server.protocol.request_reader import RequestReader
    from riverbed.store.wire import Requests

    # A client and the requests of it that run next.
    Turn = tuple[Session, Requests]

# More than these are a pipeline.
_FEW: Final = 4
_FEW_LINES: Final = 64
# Requests that may go before those that were left over: a fraction of a millisecond.
MAX_FIRST: Final = 64
# So much is parsed before it runs; more would be in vain when the tick ends.
_BYTES_AT_ONCE: Final = 8 << 10
# What a request of a backlog counts for.
_REQUEST_BYTES: Final = 128


class RequestQueue:
    """The line of one executor's clients that have sent requests.

    `arrivals` are those that got into it since the last tick, the same list all the time.
    """

    def __init__(self, finish: Callable[[Session], None], clock: Callable[[], float]) -> None:
        """`clock` tells the time in seconds.

        `finish` is called for a client that sends no more requests: its next bytes are none, or it has ended.
        """
        self.arrivals: list[Session] = []
        self._finish = finish
        self._clock = clock
        self._line: deque[Session] = deque()
        self._again: dict[Session, None] = {}  # behind the others, once the batches that were taken have run
        self._resumed: list[Session] = []

    def __bool__(self) -> bool:
        return bool(self.arrivals or self._line or self._again or self._resumed)

    def clear(self) -> None:
        """No request will run any more."""
        for sessions in (self.arrivals, self._line, self._again, self._resumed):
            for session in sessions:
                session.in_line = False
                session.drop_input()
            sessions.clear()

    def begin(self) -> None:
        """A tick begins: clients that have sent something since the last one get their places."""
        line = self._line
        if not line:
            line.extend(self.arrivals)
        elif self.arrivals:
            self._line_up(self.arrivals)
        self.arrivals.clear()
        if self._resumed:
            line.extend(self._resumed)
            self._resumed.clear()

    def _line_up(self, arrivals: list[Session]) -> None:
        """Put clients with a few short requests before those that were left over, and the others behind them."""
        first: list[Session] = []
        room = MAX_FIRST
        for session in arrivals:
            count = _count_few(session.input)
            if 0 < count <= room:
                first.append(session)
                room -= count
            else:
                self._line.append(session)
                session.settle()
        self._line.extendleft(reversed(first))

    def take(self, end_s: float) -> list[Turn] | None:
        """The next clients and a batch of each; None when there is no other.

        No more of them once `end_s` has come: thousands of clients may each have sent bytes that cost time to look at
        and hold no whole request.
        """
        line = self._line
        if self._again:
            line.extend(self._again)
            self._again.clear()
        if not line:
            return None
        turns: list[Turn] = []
        room = _BYTES_AT_ONCE
        while line:
            session = line.popleft()
            reader = session.input
            if not session.is_plain or session.account.owed or reader.is_behind:
                requests = self._take_with_care(session)
            else:
                # nearly always the client's only chunk, a short one, and nothing is left of it: a long one is owed
                chunk = reader.chunk
                whole = reader.plain.take_chunk(chunk)
                if whole is not None:
                    reader.chunk = b""
                    session.in_line = False
                    turns.append((session, whole))
                    room -= len(chunk)
                    if room <= 0:
                        break
                    continue
                requests = self._take_apart(session)
            if requests:
                turns.append((session, requests))
                room -= _REQUEST_BYTES * count_of(requests)
            if room <= 0 or self._clock() >= end_s:
                break
        return turns

    def _take_apart(self, session: Session) -> Requests:
        """What the client has sent, and nothing is known of, is not just whole plain requests."""
        requests = session.input.take_apart()
        if session.input.is_behind:
            self._keep_in_line(session, requests)
        else:
            session.in_line = False
        return requests

    def _take_with_care(self, session: Session) -> Requests:
        if session.closing:
            session.in_line = False
            session.drop_input()
            return []
        if session.must_wait:
            self.hold_back(session, session.backlog)
            return []
        requests = session.take_backlog() or session.input.next_requests()
        self._keep_in_line(session, requests)
        return requests

    def _keep_in_line(self, session: Session, requests: Requests) -> None:
        """The rest of what it has sent, if there is any, comes behind the others."""
        reader = session.input
        session.in_line = False
        if reader.is_over and not requests:
            self._finish(session)
        elif reader.has_more:
            session.in_line = True
            self._again[session] = None
        session.settle()

    def put_back(self, turns: list[Turn]) -> None:
        """These were taken, and the tick had no time for them."""
        for session, requests in reversed(turns):
            self._again.pop(session, None)
            session.put_back(requests)
            session.in_line = True
            session.settle()
            self._line.appendleft(session)

    def hold_back(self, session: Session, requests: Requests) -> None:
        """The client may not go on with these, the rest of its batch, nor with what it has sent behind them."""
        self._again.pop(session, None)
        if requests or session.input.has_more:
            session.hold_back(requests)
        else:
            session.refresh()
        session.settle()

    def resume(self, session: Session) -> None:
        """Let the client go on, behind the clients that send something before the next tick."""
        if session.is_held:
            session.is_held = False
            session.refresh()
            self._resumed.append(session)


def _count_few(reader: RequestReader) -> int:
    """About how many requests have arrived; 0 if they may be many."""
    data = reader.only_chunk
    if not data:
        return 0
    count = data.count(b"\n*") + 1
    return count if count <= _FEW and data.count(b"\n") <= _FEW_LINES else 0
