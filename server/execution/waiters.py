"""Clients that wait: blocked reads by key, first come first served, each with a deadline.

A client blocks with the command it sent.  When one of its keys changes, the executor runs that command again; if there
is still nothing, the client keeps its place.  So one wake-up may serve several streams, and no client overtakes.

    key "jobs"    topic (group "g")    Alice(1)  Bob(2)  Dora(4) ... a thousand more
                  topic (group "h")    Carol(3)
                  no topic             Eve(5)

Most clients that wait for a key wait for the same of it, a *topic*: when there is nothing for the first client of a
line, there is nothing for the clients behind it.  So one entry for a thousand waiting consumers of a group runs two
commands, not a thousand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedList

from riverbed.store.progress import ignore

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session
    from riverbed.server.protocol.replies import Block
    from riverbed.store.tables.writing.namespace import Namespace

Place = tuple["Namespace", bytes]
# Keys whose lines a client joins or leaves in one step: 0.8 us each, and up to 45 us to look for new entries.
AT_ONCE = 100
# No dict: it finds its first key only after all keys that were taken off the front.
Line = OrderedDict["Session", int]
_NOBODY: Final = Line()


def add_interest(place: Place) -> None:
    """Have the store report changes of this key."""
    db, key = place
    db.interest[key] = db.interest.get(key, 0) + 1


def drop_interest(place: Place) -> None:
    db, key = place
    left = db.interest[key] - 1
    if left:
        db.interest[key] = left
    else:
        del db.interest[key]


def drop_interests(db: Namespace, keys: Iterable[bytes]) -> None:
    """As `drop_interest`, for very many keys."""
    interest = db.interest
    for key in keys:
        left = interest[key] - 1
        if left:
            interest[key] = left
        else:
            del interest[key]


class _Leaving:
    """A client that no longer waits, and the places that it still has in lines, where it is passed over."""

    def __init__(
        self, session: Session, number: int, places: list[tuple[Place, Hashable]], *, needs_keys: bool
    ) -> None:
        self.session = session
        self.number = number
        self.places = places
        self.needs_keys = needs_keys


class Waiters:
    """The blocked clients.  A session waits with one command at a time, in the database that it had selected then."""

    def __init__(self) -> None:
        # by key and topic: the clients in order of arrival, with their numbers
        self._by_key: dict[Place, dict[Hashable, Line]] = {}
        # how many clients wait for a key that get an error when it is deleted
        self._needed: dict[Place, int] = {}
        self._places: dict[Session, list[tuple[Place, Hashable]]] = {}
        self._next_number = 0
        self._numbers: dict[Session, int] = {}  # with which each waits
        self.on_work: Callable[[], object] = ignore  # called when clients begin to join or leave the lines of many keys
        self._joining: dict[Session, int] = {}  # with the index of the first key whose line each is not in yet
        self._leaving: list[_Leaving] = []
        # Times here are of the monotonic clock, so that nothing waits longer when the clock is set back.
        self._ends: dict[Session, int] = {}
        self._moments: dict[Session, int] = {}  # deadline or moment of the next try, whichever is earlier
        self._deadlines: SortedList[tuple[int, int]] = SortedList()  # (moment, client id)
        self._by_id: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, session: Session) -> bool:
        return session in self._places

    @property
    def key_count(self) -> int:
        """How many keys are waited for."""
        return len(self._by_key)

    @property
    def needed_key_count(self) -> int:
        """For how many keys a client waits that gets an error when the key is deleted."""
        return len(self._needed)

    def block(self, session: Session, block: Block, ahead_ms: int = 0) -> None:
        """Block the client from now on; the monotonic clock is `ahead_ms` ahead of the clock.

        With `has_news` it is put into the lines of its keys by `join`.
        """
        session.block(block)
        self._next_number += 1
        self._numbers[session] = self._next_number
        self._places[session] = []
        if block.has_news is None:
            self._enter(session, block, _topics(block))
        else:
            self._joining[session] = 0
            self.on_work()
        if block.deadline_ms is not None:
            self._ends[session] = block.deadline_ms + ahead_ms
        self._set_timer(session, block.retry_ms, ahead_ms)

    def _enter(self, session: Session, block: Block, topics: dict[bytes, Hashable]) -> None:
        """Put the client at the end of the lines of these keys."""
        number = self._numbers[session]
        places = self._places[session]
        for key, topic in topics.items():
            place = (session.db, key)
            lines = self._by_key.setdefault(place, {})
            line = lines.get(topic)
            if line is None:
                line = lines[topic] = OrderedDict()
            elif session in line:
                if line[session] == number:
                    continue  # it names the key twice
                del line[session]  # it is leaving this line, and comes again at its end
            line[session] = number
            places.append((place, topic))
            if block.needs_keys:
                self._needed[place] = self._needed.get(place, 0) + 1
            add_interest(place)

    @property
    def has_work(self) -> bool:
        """Whether clients are joining or leaving the lines of very many keys."""
        return bool(self._joining or self._leaving)

    def join(self) -> tuple[Session, int, int] | None:
        """Put a client that waits for very many keys into the next lines; -> it, and those keys from .. up to .."""
        if not self._joining:
            return None
        session, start = next(iter(self._joining.items()))
        block = session.blocked
        assert block is not None and block.has_news is not None, "in a line without waiting"
        end = start + AT_ONCE
        if end < len(block.keys):
            self._joining[session] = end
        else:
            del self._joining[session]
        self._enter(session, block, _topics(block, start, end))
        return session, start, end

    def leave(self) -> None:
        """Take a client that has waited for very many keys out of the next lines."""
        if self._leaving:
            left = self._leaving[-1]
            places = left.places[-AT_ONCE:]
            del left.places[-AT_ONCE:]
            self._take_out(left.session, left.number, places, needs_keys=left.needs_keys)
            if not left.places:
                self._leaving.pop()

    def postpone(self, session: Session, retry_ms: int | None, ahead_ms: int = 0) -> None:
        """Keep the client's place after a try that found nothing; `retry_ms` is the moment of the next try, if any.

        The same moment is another one of the monotonic clock when the clock was set back.
        """
        assert session.blocked is not None
        if retry_ms is not None or session.blocked.retry_ms is not None:
            self._drop_timer(session)
            session.blocked = replace(session.blocked, retry_ms=retry_ms)
            self._set_timer(session, retry_ms, ahead_ms)

    def _set_timer(self, session: Session, retry_ms: int | None, ahead_ms: int) -> None:
        moment_ms = self._ends.get(session)
        if retry_ms is not None:
            retry_ms += ahead_ms
            moment_ms = retry_ms if moment_ms is None else min(moment_ms, retry_ms)
        if moment_ms is not None:
            self._moments[session] = moment_ms
            self._deadlines.add((moment_ms, session.id))
            self._by_id[session.id] = session

    def _drop_timer(self, session: Session) -> None:
        moment_ms = self._moments.pop(session, None)
        if moment_ms is not None:
            self._deadlines.remove((moment_ms, session.id))
            del self._by_id[session.id]

    def release(self, session: Session) -> None:
        """End the client's wait, for whatever reason; it leaves the lines of very many keys later."""
        block = session.unblock()
        number, places = self._numbers.pop(session), self._places.pop(session)
        needs_keys = block is not None and block.needs_keys
        self._joining.pop(session, None)
        if len(places) <= AT_ONCE:
            self._take_out(session, number, places, needs_keys=needs_keys)
        else:
            self._leaving.append(_Leaving(session, number, places, needs_keys=needs_keys))
            self.on_work()
        self._ends.pop(session, None)
        self._drop_timer(session)

    def _take_out(
        self, session: Session, number: int, places: list[tuple[Place, Hashable]], *, needs_keys: bool
    ) -> None:
        for place, topic in places:
            line = self._line(place, topic)
            if line.get(session) == number:  # else it is there again, or has been
                del line[session]
                if not line:
                    lines = self._by_key[place]
                    del lines[topic]
                    if not lines:
                        del self._by_key[place]
            if needs_keys:
                self._needed[place] -= 1
                if not self._needed[place]:
                    del self._needed[place]
            drop_interest(place)

    def waits(self, session: Session, number: int) -> bool:
        """Whether the client still waits with this number, and is not only leaving the line."""
        return self._numbers.get(session) == number

    def waits_for(self, place: Place) -> bool:
        return place in self._by_key

    def waiting_for(self, place: Place) -> list[Session]:
        """The clients that wait for a key at this moment, in order of arrival."""
        lines = self._by_key.get(place, {}).values()
        numbered = [
            (number, session) for line in lines for session, number in line.items() if self.waits(session, number)
        ]
        return [session for _, session in sorted(numbered, key=itemgetter(0))]

    def alike(self, place: Place, block: Block) -> list[Session]:
        """The clients that wait for this key only, with the same topic as `block`, in order of arrival."""
        if block.topics is None or len(block.keys) != 1:
            return []
        line = self._line(place, block.topics[0])
        return [
            session
            for session, number in line.items()
            if self.waits(session, number) and session.blocked is not None and len(session.blocked.keys) == 1
        ]

    def in_turn(self, place: Place) -> Iterator[Session]:
        """As `waiting_for`, but when a client waits on after its turn, the others with its topic get none."""
        last_number = self._next_number
        turns: list[tuple[int, Session, Hashable]] = []
        for topic, line in self._by_key.get(place, {}).items():
            for session, number in line.items():
                if not self.waits(session, number):
                    continue
                turns.append((number, session, topic))
                if topic is not None:
                    break
        heapify(turns)  # numbers are unique
        while turns:
            number, session, topic = heappop(turns)
            if self.waits(session, number):
                yield session
            if topic is None:
                continue
            line = self._line(place, topic)
            first = next((each for each in line.items() if self.waits(*each)), None)
            if first is not None and number != first[1] <= last_number:
                heappush(turns, (first[1], first[0], topic))

    def _line(self, place: Place, topic: Hashable) -> Line:
        return self._by_key.get(place, {}).get(topic) or _NOBODY

    @property
    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def is_over(self, session: Session, now_ms: int) -> bool:
        """Whether the client's deadline has passed."""
        return self._ends.get(session, now_ms) < now_ms

    def number_of(self, session: Session) -> int:
        """The number with which the client waits: another one each time that it begins to."""
        return self._numbers[session]

    def end_of(self, session: Session) -> int | None:
        """The client's deadline, None when it waits for ever."""
        return self._ends.get(session)

    def due(self, now_ms: int) -> Iterator[Session]:
        """The clients whose moment has passed; each must be released or postponed before the next is asked for."""
        while self._deadlines and self._deadlines[0][0] < now_ms:
            yield self._by_id[self._deadlines[0][1]]


def _topics(block: Block, start: int = 0, end: int | None = None) -> dict[bytes, Hashable]:
    """The topic of each of these keys, None where topics cannot be compared."""
    if block.topics is None:
        return dict.fromkeys(block.keys[start:end])
    topics: dict[bytes, Hashable] = {}
    for key, topic in zip(block.keys[start:end], block.topics[start:end], strict=True):
        topics[key] = topic if topics.get(key, topic) == topic else None
    return topics
