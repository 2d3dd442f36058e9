"""Decides which client's requests run next: a client that has sent some, or one left over from the last tick.

Requests run in the order in which they arrived.  A tick is short and may end before every client has had a turn.  In
the next tick, clients with only a few requests go before the clients that were left over with long pipelines, or a
PING would wait for all of the pipelines; at most MAX_FIRST requests do so, so that no client waits for ever.  The
requests of one client always run in the order in which it sent them.

A client has one place in line, however much it has sent.  Its bytes stay as they came: `take` parses them, a batch at a
time, when the client's turn comes.  So waiting requests cost only their bytes, and a tick parses only what it runs.

    chunk -> arrivals -> line -> a batch is taken and run -> has more -> again, behind the others
                          ^                 |
                          |                 +-- not to its end (it waits, or has had enough) -> held
                          +-- resumed <------------------------------------------------------- |

While a transaction is under way (`control/beside.py`), clients that may not go on are set aside, in order, and get
their places back behind it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from riverbed.store.wire import Run, count_of, join

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.session import Session
    from riverbed.server.protocol.request_reader import RequestReader
    from riverbed.store.databases.database import Database
    from riverbed.store.wire import Requests

    # A client and its requests that run next.
    Turn = tuple[Session, Requests]

# More requests, or more lines, than these are a pipeline.
_FEW: Final = 4
_FEW_LINES: Final = 64
_LOOKED_AT: Final = 2048  # bytes: a long pipeline has so many lines in these already
# Requests that may go before the left-over ones: a fraction of a millisecond.
MAX_FIRST: Final = 64
# At most so much is parsed before it runs; the tick may end before more of it has run.
_BYTES_AT_ONCE: Final = 8 << 10
# How many bytes a request of a backlog counts as.
_REQUEST_BYTES: Final = 128
# Requests of fewer clients are not worth joining.  The name of a command ends within so many bytes, unless it has very
# many words.
_MIN_JOINED: Final = 8
_NAME_WITHIN: Final = 16


class RequestQueue:
    """The line of one executor's clients that have sent requests.

    `arrivals` are the clients that joined it since the last tick; it is always the same list.
    """

    def __init__(self, finish: Callable[[Session], None], clock: Callable[[], float]) -> None:
        """`clock` returns the time in seconds.

        `finish` is called for a client without further requests: its next bytes are not a request, or it has ended.
        """
        self.arrivals: list[Session] = []
        self.most_first = MAX_FIRST
        self._finish = finish
        self._clock = clock
        self._line: deque[Session] = deque()
        self._again: dict[Session, None] = {}  # behind the others, once the batches that were taken have run
        self._resumed: list[Session] = []
        self._aside: list[Session] = []

    def __bool__(self) -> bool:
        return bool(self.arrivals or self._line or self._again or self._resumed)

    def clear(self) -> None:
        """Drop all requests."""
        for sessions in (self.arrivals, self._line, self._again, self._resumed, self._aside):
            for session in sessions:
                session.in_line = False
                session.drop_input()
            sessions.clear()

    def begin(self) -> None:
        """Begin a tick: give places to the clients that have sent something since the last one."""
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
        """Put clients with a few short requests before the left-over clients, and the others behind them."""
        first: list[Session] = []
        room = self.most_first
        for session in arrivals:
            count = _count_few(session.input)
            if 0 < count <= room:
                first.append(session)
                room -= count
            else:
                self._line.append(session)
                session.settle()
        self._line.extendleft(reversed(first))

    def joined(self) -> tuple[Run, list[Session], Database] | None:
        """XADDs of the next clients, one each, as one run, and these clients, of one database.

        They keep their places until `took`.
        """
        line = self._line
        if len(line) < _MIN_JOINED:
            return None
        first = line[0].input
        if not first.plain.makes_runs or first.chunk.find(b"XADD", _NAME_WITHIN) >= 0:  # most likely a pipeline
            return None
        sessions: list[Session] = []
        chunks: list[bytes] = []
        db = line[0].db
        room = _BYTES_AT_ONCE
        for session in line:
            reader = session.input
            chunk = reader.chunk
            room -= len(chunk)
            if (
                room < 0
                or session.db is not db
                or not session.is_plain
                or session.account.owed
                or reader.is_behind
                or chunk.find(b"XADD", 0, _NAME_WITHIN) < 0
            ):
                break
            sessions.append(session)
            chunks.append(chunk)
        try:
            run = join(chunks) if len(chunks) >= _MIN_JOINED else None
        except MemoryError:  # one by one they need less
            run = None
        return None if run is None else (run, sessions[: len(run)], db)

    def took(self, sessions: list[Session]) -> None:
        """Take the next clients out of the line: their only requests have run."""
        for session in sessions:
            self._line.popleft()
            session.input.chunk = b""
            session.in_line = False

    def take(self, end_s: float) -> list[Turn] | None:
        """The next clients and a batch of each; None when no client is left.

        Stops at `end_s`: thousands of clients may each have sent bytes that cost time to look at and hold no whole
        request.
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
                # nearly always the client's only chunk, short and of whole requests: a long one is counted in `owed`
                chunk = reader.chunk
                try:
                    whole = reader.plain.take_chunk(chunk)
                except MemoryError:  # the first requests of it may need less
                    whole = None
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
        """Parse a chunk that does not consist of whole plain requests only."""
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
        """Put the client behind the others if it has sent more; finish it if it has nothing more to run."""
        reader = session.input
        session.in_line = False
        if reader.is_over and not requests:
            self._finish(session)
        elif reader.has_more:
            session.in_line = True
            self._again[session] = None
        session.settle()

    def put_back(self, turns: list[Turn]) -> None:
        """Put back requests that were taken and that the tick had no time for."""
        for session, requests in reversed(turns):
            self._put_back(session, requests)
            self._line.appendleft(session)

    def _put_back(self, session: Session, requests: Requests) -> None:
        self._again.pop(session, None)
        session.put_back(requests)
        session.in_line = True
        session.settle()

    def set_aside(self, session: Session, requests: Requests) -> None:
        """Put back requests that were taken, and give the client no turn before `take_up`."""
        self._put_back(session, requests)
        self._aside.append(session)

    def take_up(self) -> None:
        """Give the clients that were set aside the first places, in their order."""
        self._line.extendleft(reversed(self._aside))
        self._aside.clear()

    def hold_back(self, session: Session, requests: Requests) -> None:
        """Hold back the rest of the client's batch, and what it has sent after that, until `resume`."""
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
    if not data or data.count(b"\n", 0, _LOOKED_AT) > _FEW_LINES:
        return 0
    count = data.count(b"\n*") + 1
    return count if count <= _FEW and data.count(b"\n") <= _FEW_LINES else 0
