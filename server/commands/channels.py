"""Which clients listen to which channel, and what they are sent when a client publishes.

    channel  ->  its subscribers, in the order they came          PUBLISH       message
    pattern  ->  its subscribers, and how it matches              PUBLISH       pmessage
    shard channel  ->  its subscribers                            SPUBLISH      smessage

A message is kept nowhere: a client that does not listen when it is published never gets it, nor do the log and the
replicas.  It leaves after the commit of the tick in which it was published, and in each subscriber's connection after
what was answered or published before.  It rests on no table, so it leaves even when the commit fails.

Knows sessions and their protocol version; sends nothing itself, and knows no command.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from riverbed.server.glob import Glob
from riverbed.server.protocol.replies import Push

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session

# Names compared with a pattern, patterns with a name, or subscriptions that end, before other clients have their turn:
# half a millisecond.
_NAMES_A_STEP: Final = 500

# Memory of a subscription besides the name, measured.  A pattern is parsed, so its name is kept twice.
CHANNEL_BYTES: Final = 160
PATTERN_BYTES: Final = 480

# In the order of subscription; a set would deliver in another order each time.  Nearly every name has one subscriber,
# which stands for itself: a client may have very many names, and a dict for each takes four times as long.
Subscribers = dict["Session", None]


class Channels:
    """Names of one kind that have subscribers.

    `names_of` finds a session's own names of this kind, so that both directions are changed in one place.
    """

    def __init__(self, names_of: Callable[[Session], dict[bytes, None]]) -> None:
        self._names_of = names_of
        self._subscribers: dict[bytes, Session | Subscribers] = {}

    def __len__(self) -> int:
        return len(self._subscribers)

    def bytes_of(self, name: bytes) -> int:
        """Memory that a subscription takes."""
        return len(name) + CHANNEL_BYTES

    def subscribe(self, session: Session, name: bytes) -> None:
        own = self._names_of(session)
        if name in own:
            return
        own[name] = None
        session.account.keep(self.bytes_of(name))
        others = self._subscribers.get(name)
        if others is None:
            self._subscribers[name] = session
        elif isinstance(others, dict):
            others[session] = None
        else:
            self._subscribers[name] = {others: None, session: None}

    def unsubscribe(self, session: Session, name: bytes) -> None:
        """End a subscription; does nothing if the client has not subscribed."""
        own = self._names_of(session)
        if name in own:
            del own[name]
            self._drop(session, name)
            session.account.keep(-self.bytes_of(name))

    def _drop(self, session: Session, name: bytes) -> None:
        subscribers = self._subscribers[name]
        if isinstance(subscribers, dict) and len(subscribers) > 1:
            del subscribers[session]
        else:
            del self._subscribers[name]

    def names_of(self, session: Session) -> list[bytes]:
        """What the session has subscribed to, oldest first."""
        return list(self._names_of(session))

    def forget_some(self, session: Session) -> bool:
        """End some of a client's subscriptions; -> whether it has more."""
        own = self._names_of(session)
        names = [own.popitem()[0] for _ in range(min(len(own), _NAMES_A_STEP))]
        for name in names:
            self._drop(session, name)
        if session.account.kept:  # not when the client has gone, and its account is closed
            session.account.keep(-sum(map(self.bytes_of, names)))
        return bool(own)

    def names(self, pattern: bytes | None = None) -> Generator[None, None, list[bytes]]:
        """The names, or only the names that match a pattern; yields now and then when that takes long."""
        names = list(self._subscribers)
        if pattern is None:
            return names
        glob = Glob(pattern)
        found: list[bytes] = []
        for at in range(0, len(names), _NAMES_A_STEP):
            if at:
                yield
            found += yield from glob.select(names[at : at + _NAMES_A_STEP])
        return [name for name in found if name or not pattern]  # no star matches an empty name

    def subscribers(self, name: bytes) -> Iterable[Session]:
        subscribers = self._subscribers.get(name, ())
        return subscribers if isinstance(subscribers, (dict, tuple)) else (subscribers,)

    def count(self, name: bytes) -> int:
        """How many subscribers a name has; of several, one that is closing may still count."""
        subscribers = self._subscribers.get(name, ())
        return len(subscribers) if isinstance(subscribers, (dict, tuple)) else int(not subscribers.closing)


class Patterns(Channels):
    """As Channels; each name is a glob, made when it is compared for the first time."""

    def __init__(self, names_of: Callable[[Session], dict[bytes, None]]) -> None:
        super().__init__(names_of)
        self._globs: dict[bytes, Glob] = {}

    def bytes_of(self, name: bytes) -> int:
        return 2 * len(name) + PATTERN_BYTES

    def _drop(self, session: Session, name: bytes) -> None:
        super()._drop(session, name)
        if name not in self._subscribers:
            self._globs.pop(name, None)

    def matching(self, channel: bytes) -> Generator[None, None, list[bytes]]:
        """The patterns that match; compares every pattern, as Redis does, and yields now and then."""
        if not channel:  # no star matches it; only KEYS shows an empty key for *
            return [channel] if channel in self._subscribers else []
        found = []
        for number, name in enumerate(list(self._subscribers), 1):
            glob = self._globs.get(name) or self._make_glob(name)
            if glob is not None and (yield from glob.steps(channel)):
                found.append(name)
            if not number % _NAMES_A_STEP:
                yield
        return found

    def _make_glob(self, name: bytes) -> Glob | None:
        """None when the last subscriber has gone while other patterns were compared."""
        if name not in self._subscribers:
            return None
        glob = self._globs[name] = Glob(name)
        return glob


class PubSub:
    """All subscriptions of one server."""

    def __init__(self) -> None:
        self.channels = Channels(lambda session: session.subscriptions.channels)
        self.patterns = Patterns(lambda session: session.subscriptions.patterns)
        self.shard_channels = Channels(lambda session: session.subscriptions.shard_channels)
        self._kinds = (self.channels, self.patterns, self.shard_channels)
        # Called for each receiver of a message: adds it to the session's output.
        self.deliver: Callable[[Session, Push], None] = lambda session, message: None
        # Called with the steps that end the subscriptions of a client that is closing; takes them all, or some later.
        self.leave: Callable[[Iterator[None]], object] = list

    def publish(self, channel: bytes, text: bytes) -> Generator[None, None, int]:
        """Send a message to all subscribers; -> how many got it.

        A client with two matching subscriptions gets the message, and counts, twice.
        Yields while very many patterns, or a very long channel, are compared; the message goes out after that.
        """
        patterns = (yield from self.patterns.matching(channel)) if self.patterns else ()
        receivers = self._send(self.channels.subscribers(channel), b"message", channel, text)
        for pattern in patterns:
            receivers += self._send(self.patterns.subscribers(pattern), b"pmessage", pattern, channel, text)
        return receivers

    def publish_to_shard(self, channel: bytes, text: bytes) -> int:
        """As `publish`, for the subscribers of the shard channel of that name."""
        return self._send(self.shard_channels.subscribers(channel), b"smessage", channel, text)

    def forget(self, session: Session) -> None:
        """End all subscriptions of a client that is closing, silently, very many bit by bit.

        It gets no messages meanwhile, but its names are still listed.
        """
        if session.subscriptions:
            self.leave(self.forget_in_steps(session))
            session.refresh()

    def forget_in_steps(self, session: Session) -> Iterator[None]:
        """End all subscriptions of a client, silently; each step takes about as long as others may wait."""
        for kind in self._kinds:
            while kind.forget_some(session):
                yield

    def _send(self, subscribers: Iterable[Session], *words: bytes) -> int:
        """Send a message.  Both wire forms are made at most once; all receivers share the bytes."""
        wires: dict[int, Push] = {}
        receivers = 0
        for session in subscribers:
            if session.closing:
                continue
            wire = wires.get(session.resp)
            if wire is None:
                wire = wires[session.resp] = _message(session.resp, words)
            self.deliver(session, wire)
            receivers += 1
        return receivers


def _message(resp: int, words: tuple[bytes, ...]) -> Push:
    """An array in RESP2, a push in RESP3."""
    head = b"%b%d\r\n" % (b"*" if resp == 2 else b">", len(words))
    return Push(head + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))
