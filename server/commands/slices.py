"""Commands that may take longer than a turn of the loop: they run in slices, and other clients run in between.

A handler gives its work as a generator that yields after a millisecond or so and returns the reply:

    def work(request):                        the executor
        ... look up, change rows              runs the first slice where the handler is called,
        yield                                 commits, lets other clients run,
        ... look everything up again          runs the next ones as time allows,
        return reply                          answers

A command whose reply is too long for memory yields `Wish.VIEW` instead, before it changes what the reply is about: it
goes on with a view of the tables as they are just then, and its reply is read from that, piece by piece.

What is done between two yields is one unit, in the log too.  A generator may keep nothing over a yield but names, IDs,
the numbers of streams and groups, and pieces of the reply: streams and groups are not the same objects afterwards, and
may be gone.  Then the work done so far stays done, and is what is answered; another one that has taken the name by then
is left alone, so it is found again by its number, see `stream_again` and `groups.group_again`.  For the rest a long
command equals several short ones that the client sent one after the other; from a log it runs whole.  In a transaction
it ends turns as well, but nothing that matters to the tables runs in between, see `server/execution/control/beside.py`.

When a command cannot go on, because a slice cannot be logged or writes are refused by then, the changes of its earlier
slices stay: they are in the log and with replicas.  No other error leaves changes behind, so this one has its own code:

    -PARTIAL XACK was done in part, which stays: the first 400 of 600 IDs. The rest was not done: MISCONF The disk ...

The generator yields how far it has come, in words that fit into this text.

Knows no event loop; `server/execution/sliced_commands.py` does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from riverbed.server.commands.arguments import parse_packed_ids
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import LONG_BYTES, LongReply

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.protocol.replies import Block, Reply
    from riverbed.store.streams.stream import Stream
    from riverbed.store.tables.view import View


class Wish(enum.Enum):
    """What a command needs before its next slice, beyond its turn."""

    VIEW = enum.auto()
    ALONE = enum.auto()  # that nothing uses the tables before it: a transaction has ended its turn


# Yields to end its turn: how far it has come, or None while it has changed nothing.  Or it yields a Wish and is sent
# what it wished for.  Returns the reply.
Work: TypeAlias = Generator[Any, Any, "Reply"]
Gathered = TypeVar("Gathered")

# IDs to a slice, and so to one command of the log: 5 to 15 us each.
SLICE_IDS = 200
_SLICE_WORDS: Final = 2000
_NO_PROGRESS: Final = "its first steps"
_PIECE_BYTES: Final = 1 << 17
# The longest reply that may be made in one turn: 10 ms or so.
MAX_WHOLE_BYTES: Final = 16 << 20
NO_CHECKPOINT: Final = (
    "ERR so long a reply is read from a checkpoint, and that failed; see the server's log, or ask for fewer entries"
)


class SlicedCommand:
    """A command under way.  `request` is its own; its time is set before each slice."""

    __slots__ = (
        "_done",
        "_has_logged",
        "_view",
        "is_alone",
        "is_lost",
        "is_shown",
        "kept",
        "nanoseconds",
        "needs_view",
        "request",
        "rights",
        "wait",
        "wait_end_ms",
        "work",
        "writes",
    )

    def __init__(self, request: Request, work: Work) -> None:
        self.request = request
        self.work = work
        self.rights = request.session.rights  # with which it was allowed
        self.writes = False  # its changes are its own; set by the executor
        self.kept = b""  # what of it is in the log, in words; empty when nothing is
        self._done = _NO_PROGRESS  # how far it has come, in the log or not
        self._has_logged = False
        self.nanoseconds = 0  # spent on it
        self.wait: Block | None = None  # in place of its own, when it finds nothing: it looks at one key of very many
        self.wait_end_ms: int | None = None  # of the monotonic clock: when a client is answered that waits on behind it
        self.needs_view = False  # it waits until it is shown one
        self.is_alone = False  # nothing may use the tables before it goes on
        self.is_lost = False  # the numbers that it remembers may be those of other streams and groups by now
        self.is_shown = True  # monitors have been, or need not be, shown it
        self._view: View | None = None

    def show(self, view: View) -> None:
        """Go on with `view`, made just now; it is released when the command ends or is shown another."""
        if self._view is not None:
            self._view.release()
        self._view = view

    def step(self, request: Request) -> Reply:
        """Run another slice; -> the reply, or self when there is more to do."""
        logged = len(request.txn.log)
        try:
            yielded = self.work.send(self._view if self.needs_view else None)
        except StopIteration as done:
            self.close()
            return done.value
        except BaseException:
            self.close()
            raise
        request.txn.end_command()
        self.wishes(yielded)
        self._has_logged = self._has_logged or len(request.txn.log) > logged
        return self

    def wishes(self, yielded: Any) -> None:
        """Note what its work has yielded."""
        self.needs_view = yielded is Wish.VIEW
        self.is_alone = yielded is Wish.ALONE
        if yielded.__class__ is str:
            self._done = yielded

    def committed(self) -> None:
        """Note that its work so far is in the log."""
        self.kept = self._so_far()

    def refusal(self, error: bytes) -> bytes:
        """The text of the error that ends it, when its tick is committed."""
        return partial_error(self._so_far(), error)

    def _so_far(self) -> bytes:
        """What has been done; empty when a read has only logged that a key expired."""
        if not self._has_logged or not self.writes:
            return b""
        return b"%b was done in part, which stays: %b." % (self.request.argv[0].upper(), self._done.encode())

    def finish(self, request: Request) -> Reply:
        """Run the rest, and return the whole reply in memory.  Raises CommandError when it is too long."""
        reply = self.step(request)
        while reply is self:
            reply = self.step(request)
        if reply.__class__ is not LongReply:
            return reply
        pieces = []
        size = 0
        try:
            for piece in reply.pieces:
                size += len(piece)
                if size > MAX_WHOLE_BYTES:
                    raise CommandError(NO_CHECKPOINT)
                pieces.append(piece)
        finally:
            reply.close()
        return (b"".join(pieces),)

    def close(self) -> None:
        """Drop the rest of the work."""
        self.work.close()
        if self._view is not None:
            self._view.release()
            self._view = None


def partial_error(kept: bytes, error: bytes) -> bytes:
    """The text of an error that ends a command of which `kept` is in the log; `error` itself when nothing is."""
    return b"PARTIAL %b The rest was not done: %b" % (kept, error) if kept else error


def first_ids(count: int, total: int) -> str:
    """How far a command has come that takes IDs in their order."""
    return f"the first {count} of {total} IDs"


def stream_again(request: Request, key: bytes, stream_no: int) -> Stream | None:
    """The stream of a command that goes on behind a yield; None when `key` is free by then, or is another stream's."""
    stream = request.db.stream(key, request.now_ms)
    return stream if stream is not None and stream.stream_no == stream_no else None


def wait_for_view() -> Generator[Wish, View | None, View]:
    """Wait for a view, made just now.  It is open until the command ends; a reply holds its own."""
    view = yield Wish.VIEW
    assert view is not None, "a command went on without the view it waits for"
    return view


def in_slices(
    request: Request, work: Callable[[Request], Work], *, is_short: bool = False, entries: int | None = 0
) -> Reply:
    """Run `work` up to its first yield, or whole if `is_short` or not interruptible; -> reply or SlicedCommand.

    The reply has at most so many `entries`, None for any number.  When entries may be large, even a short command may
    wait for a view.
    """
    if request.in_transaction:
        return begun(request, work(request))
    if not request.may_block:
        return _whole(work(request))
    is_small = entries is not None and entries * request.txn.largest_row <= LONG_BYTES
    if is_short and is_small:
        return _whole(work(request))
    own = request.copy()  # the executor reuses the other one for the next command
    sliced = SlicedCommand(own, work(own))
    reply = sliced.step(own)
    while is_short and reply is sliced and not sliced.needs_view:
        reply = sliced.step(own)
    return reply


def begun(request: Request, work: Work) -> Reply:
    """Run `work` up to its first yield; -> reply or SlicedCommand.  `request` is its own."""
    try:
        yielded = next(work)
    except StopIteration as done:
        return done.value
    request.txn.end_command()
    sliced = SlicedCommand(request, work)
    sliced.wishes(yielded)
    return sliced


def _whole(work: Work) -> Reply:
    while True:
        try:
            wish = next(work)
        except StopIteration as done:
            return done.value
        assert wish is not Wish.VIEW, "a view cannot be waited for here"


def in_pieces(request: Request, parts: list[bytes]) -> Reply:
    """The reply whose RESP is `parts`; sent piece by piece when joining them would take long."""
    if request.room is None or sum(map(len, parts)) <= request.room:
        return (b"".join(parts),)
    return LongReply(_pieces(parts))


def joined(parts: list[bytes]) -> list[bytes]:
    """`parts` of one slice as one part, unless they are long, so that a reply of a million words has few parts."""
    return [b"".join(parts)] if sum(map(len, parts)) <= _PIECE_BYTES else parts


def bounded_pieces(parts: Iterable[bytes], most_parts: int) -> Generator[bytes, None, None]:
    """`parts` as pieces of bounded size and time; an empty part ends a turn."""
    piece: list[bytes] = []
    size = 0
    for part in parts:
        piece.append(part)
        size += len(part)
        if not part or len(piece) >= most_parts or size >= _PIECE_BYTES:
            yield b"".join(piece)
            piece.clear()
            size = 0
    yield b"".join(piece)


def in_turns(work: Generator[None, None, Gathered]) -> Generator[bytes, None, Gathered]:
    """Do work for a reply before its next piece; each slice ends a turn, as a piece without bytes."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: Gathered = done.value
            return found
        yield b""


def verbatim_in_pieces(request: Request, lines: list[bytes]) -> Reply:
    """As `in_pieces`, of one text for people."""
    size = sum(map(len, lines))
    head = b"$%d\r\n" % size if request.session.resp == 2 else b"=%d\r\ntxt:" % (size + 4)
    return in_pieces(request, [head, *lines, b"\r\n"])


def _pieces(parts: list[bytes]) -> Generator[bytes, None, None]:
    """`parts`, a few at a time; each is released when it is out."""
    parts.reverse()
    while parts:
        piece = []
        size = 0
        while parts and size < _PIECE_BYTES:
            size += len(parts[-1])
            piece.append(parts.pop())
        yield b"".join(piece)


def parse_in_slices(words: list[bytes]) -> Generator[None, None, list[bytes]]:
    """`parse_packed_ids`, in slices."""
    packed: list[bytes] = []
    for at in range(0, len(words), _SLICE_WORDS):
        if at:
            yield
        packed += parse_packed_ids(words[at : at + _SLICE_WORDS])
    return packed
