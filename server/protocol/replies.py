"""The kinds of replies that a handler returns.

    int                 :n
    bytes               bulk string
    str                 simple string ("OK")
    None                null            $-1 in RESP2, _ in RESP3
    NULL_ARRAY          null array      *-1 in RESP2, _ in RESP3
    bool                # in RESP3, :1 or :0 in RESP2
    float               , in RESP3, bulk in RESP2
    list                array
    dict                % in RESP3, a flat array in RESP2
    set, frozenset      ~ in RESP3, an array in RESP2
    Verbatim            = in RESP3, bulk in RESP2
    CommandError        an error inside an array (EXEC); a handler's own errors are raised
    (wire,)             a one-tuple: bytes that are RESP already, the same in both protocols
    LongReply           sent piece by piece
    Block                nothing yet: the client waits (blocking reads)
    NO_REPLY            nothing at all (CLIENT REPLY OFF, a blocked client that left)
    Push                RESP that is no reply (SUBSCRIBE's confirmations): sent also to clients that want no replies

The one-tuple is for the hot path: entries are stored in the form in which they are sent, and a tuple costs a tenth of
an instance of our own classes.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

# A longer reply is sent piece by piece.
LONG_BYTES = 1 << 20
# How much of a long reply a client has to take in a time: the reply keeps pages of the tables from being used again.
PROGRESS_BYTES: Final = 4 << 20


class _Singleton(enum.Enum):
    NULL_ARRAY = enum.auto()
    NO_REPLY = enum.auto()


NULL_ARRAY: Final = _Singleton.NULL_ARRAY
NO_REPLY: Final = _Singleton.NO_REPLY
OK: Final = (b"+OK\r\n",)


class Push(bytes):
    """RESP, encoded for its receiver, that is no reply: CLIENT REPLY OFF and SKIP do not hold it back."""

    __slots__ = ()


class Settled(bytes):
    """A reply that stays true when the commit of its tick fails.

    What it reports is in no table (SELECT, CONFIG SET, an error that refused a request before it ran), or is in the log
    already.
    """

    __slots__ = ()


# Constants that are settled by their identity: uvloop takes 1,400 instructions more to send a `Settled`.
_SETTLED_CONSTANTS: Final[dict[int, bytes]] = {}


def settled_constant(wire: bytes) -> tuple[bytes]:
    """A reply for handlers on the fast path that is always settled; made once, when a module is imported."""
    own = bytes(bytearray(wire))  # an object of its own, even if the same bytes exist elsewhere
    _SETTLED_CONSTANTS[id(own)] = own
    return (own,)


def is_settled(wire: bytes) -> bool:
    """Whether a reply, or a push, stays true when the commit of its tick fails."""
    return wire.__class__ is Settled or wire.__class__ is Push or _SETTLED_CONSTANTS.get(id(wire)) is wire


SETTLED_OK: Final = settled_constant(b"+OK\r\n")


class Mixture(bytes):
    """The reply to a transaction when a failed commit takes back some of its commands and not others.

    `lasting` has the replies that stay true, and None for each of the others.
    """

    lasting: list[bytes | None]


class Conclusion(bytes):
    """The last reply of a sliced command, of which `kept` is in the log already.

    When a failure takes back the last slice, the client is shown what was kept, see `slices.py`.
    """

    kept: bytes


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text for people: INFO, CLIENT LIST."""

    text: bytes
    kind: bytes = b"txt"


@dataclass(frozen=True, slots=True)
class Block:
    """The read found nothing; run the same command again when one of `keys` changes.

    `deadline_ms` is unix time, as the clock is set now; None is for ever.  `argv` is the command to run again, with
    what must not be re-evaluated (`$`) already resolved.
    """

    keys: tuple[bytes, ...]
    deadline_ms: int | None
    argv: list[bytes]
    retry_ms: int | None = None  # run it again at this moment as well, whatever happens to the keys
    # For each key, what the client waits for (group, start ID).  Waiters with an equal topic are not retried after one
    # of them found nothing.  None is for what only this client knows.
    topics: tuple[Hashable, ...] | None = None
    is_for_work: bool = False  # waits for work of the server, which ends: answer even a client that has hung up
    is_delay: bool = False  # of a reply that is known: CLIENT UNBLOCK does not hasten it
    needs_keys: bool = False  # it gets an error when one of the keys is deleted
    on_timeout: Callable[[], Reply] | None = None  # makes the reply when the deadline passes; None is a null array
    argv_bytes: int = 0  # about what the words take, if that was counted before: very many take long to count
    # Whether there is something for the client at the keys from one index to another: a client begins to wait for many
    # keys in several turns, and clients may write to them in between.
    has_news: Callable[[int, int], bool] | None = None

    def also_at(self, retry_ms: int | None) -> Block:
        """The same wait, run again at this moment as well."""
        if retry_ms is None or (self.retry_ms is not None and self.retry_ms <= retry_ms):
            return self
        return replace(self, retry_ms=retry_ms)


class Source(Protocol):
    """What a long reply is read from: a view, or the replies of a transaction that were kept."""

    def release(self) -> None:
        """Release the source: the reply is over."""


@dataclass(slots=True)
class LongReply:
    """A reply too long for memory, or for one turn of the loop: its RESP in pieces, made while the client takes them.

    It holds the `source` that it is read from, if there is one, until it is closed.  `progress_s` is when the client
    had last taken PROGRESS_BYTES.
    """

    pieces: Generator[bytes, None, None]
    source: Source | None = None
    progress_s: float = 0.0
    is_settled: bool = False  # as of `Settled`
    # Puts this error in the place of what a failed commit takes back, before the first piece is made; None when that is
    # the whole reply.
    undo: Callable[[bytes], None] | None = None
    kept: bytes = b""  # as of a Conclusion
    # The command has changed nothing, so that an error may take the place of the whole reply while none of it is sent.
    is_of_read: bool = False
    has_begun: bool = False  # a piece was sent
    nanoseconds: int = 0  # that the server has worked for the command, see `next_piece`
    on_close: Callable[[int], None] | None = None  # called once, with these nanoseconds
    _taken: int = 0  # bytes since `progress_s`

    def next_piece(self) -> bytes | None:
        """Make the next piece, None behind the last one; the time that this takes is the command's."""
        begun = time.perf_counter_ns()
        try:
            return next(self.pieces, None)
        finally:
            self.nanoseconds += time.perf_counter_ns() - begun

    def note_piece(self, size: int, now_s: float) -> None:
        """Count a piece that was sent."""
        self.has_begun = True
        self._taken += size
        if self._taken >= PROGRESS_BYTES:
            self._taken = 0
            self.progress_s = now_s

    def close(self) -> None:
        self.pieces.close()
        if self.source is not None:
            self.source.release()
            self.source = None
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close(self.nanoseconds)


class FirstReplies(NamedTuple):
    """The replies to the first `done` of requests that are neighbours.  The next one is to be executed by itself."""

    replies: bytes
    done: int


Reply: TypeAlias = Any
