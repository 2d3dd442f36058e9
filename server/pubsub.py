"""Who listens to which channel, and what they are sent when somebody speaks.

    channel  ->  its subscribers, in the order they came          PUBLISH       message
    pattern  ->  its subscribers, and how it matches              PUBLISH       pmessage
    shard channel  ->  its subscribers                            SPUBLISH      smessage

A message is kept nowhere: who does not listen when it is published never hears of it, nor does the log, nor do
replicas.  It leaves with the tick in which it was published, so behind that tick's commit, and in each subscriber's
connection it stands behind what was answered or published before.  When the commit fails it is dropped, as is all else
that rests on the tick.

Knows sessions and their protocol version; sends nothing itself, and knows no command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from server.glob import compile_glob
from server.replies import Message

if TYPE_CHECKING:
    import re

    from server.session import Session

# In the order in which they came; a set would deliver in another order each time.
Subscribers = dict["Session", None]


class Channels:
    """Names of one kind that somebody has subscribed to.

    `names_of` finds a session's own names of this kind, so that both directions are changed in one place.
    """

    def __init__(self, names_of: Callable[[Session], dict[bytes, None]]) -> None:
        self._names_of = names_of
        self._subscribers: dict[bytes, Subscribers] = {}

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscribe(self, session: Session, name: bytes) -> None:
        self._names_of(session)[name] = None
        self._subscribers.setdefault(name, {})[session] = None

    def unsubscribe(self, session: Session, name: bytes) -> None:
        """Nothing happens to who has not subscribed."""
        subscribers = self._subscribers.get(name)
        if subscribers is None or session not in subscribers:
            return
        del self._names_of(session)[name]
        del subscribers[session]
        if not subscribers:
            del self._subscribers[name]

    def names_of(self, session: Session) -> list[bytes]:
        """What the session has subscribed to, oldest first."""
        return list(self._names_of(session))

    def forget(self, session: Session) -> None:
        for name in self.names_of(session):
            self.unsubscribe(session, name)

    def names(self, pattern: bytes | None = None) -> list[bytes]:
        """The names, or those that match a pattern."""
        if pattern is None:
            return list(self._subscribers)
        matches = compile_glob(pattern)
        return [name for name in self._subscribers if matches(name) and (name or not pattern)]

    def subscribers(self, name: bytes) -> Iterable[Session]:
        return self._subscribers.get(name, ())

    def count(self, name: bytes) -> int:
        return len(self._subscribers.get(name, ()))


class _Pattern(NamedTuple):
    matches: Callable[[bytes], re.Match[bytes] | None]
    subscribers: Subscribers


class Patterns(Channels):
    """As Channels; each name is a glob."""

    def __init__(self, names_of: Callable[[Session], dict[bytes, None]]) -> None:
        super().__init__(names_of)
        self._patterns: dict[bytes, _Pattern] = {}

    def subscribe(self, session: Session, name: bytes) -> None:
        super().subscribe(session, name)
        if name not in self._patterns:
            self._patterns[name] = _Pattern(compile_glob(name), self._subscribers[name])

    def unsubscribe(self, session: Session, name: bytes) -> None:
        super().unsubscribe(session, name)
        if name not in self._subscribers:
            self._patterns.pop(name, None)

    def matching(self, channel: bytes) -> list[tuple[bytes, Subscribers]]:
        """The patterns that match, with who listens; costs a match of every pattern there is, as in Redis."""
        if not channel:  # which no star matches: that KEYS * shows an empty key is KEYS's own doing
            return [(channel, self._subscribers[channel])] if channel in self._subscribers else []
        return [(name, row.subscribers) for name, row in self._patterns.items() if row.matches(channel)]


class PubSub:
    """All subscriptions of one server."""

    def __init__(self) -> None:
        self.channels = Channels(lambda session: session.channels)
        self.patterns = Patterns(lambda session: session.patterns)
        self.shard_channels = Channels(lambda session: session.shard_channels)
        # Called for each receiver of a message: puts it among what the session is sent.
        self.deliver: Callable[[Session, Message], None] = lambda session, message: None

    def publish(self, channel: bytes, text: bytes) -> int:
        """Send a message to all who listen -> to how many; who listens in two ways gets and counts as two."""
        receivers = self._send(self.channels.subscribers(channel), b"message", channel, text)
        for pattern, subscribers in self.patterns.matching(channel):
            receivers += self._send(subscribers, b"pmessage", pattern, channel, text)
        return receivers

    def publish_to_shard(self, channel: bytes, text: bytes) -> int:
        """As `publish`, to those who have subscribed to a shard channel of that name."""
        return self._send(self.shard_channels.subscribers(channel), b"smessage", channel, text)

    def forget(self, session: Session) -> None:
        """End all subscriptions of a client, silently."""
        for kind in (self.channels, self.patterns, self.shard_channels):
            kind.forget(session)
        session.refresh_special()

    def _send(self, subscribers: Iterable[Session], *words: bytes) -> int:
        """Both wire forms are made at most once, whoever listens: they share the bytes."""
        wires: dict[int, Message] = {}
        receivers = 0
        for session in subscribers:
            wire = wires.get(session.resp)
            if wire is None:
                wire = wires[session.resp] = _message(session.resp, words)
            self.deliver(session, wire)
            receivers += 1
        return receivers


def _message(resp: int, words: tuple[bytes, ...]) -> Message:
    """An array in RESP2, a push in RESP3."""
    head = b"%b%d\r\n" % (b"*" if resp == 2 else b">", len(words))
    return Message(head + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))
