"""Sends the replies of a tick once they rest on nothing uncommitted, to as many clients as a turn has time for.

To send a thousand readers at once that their group is gone takes 20 ms of system calls.  Clients whose turn does not
come in time get their replies at the next turns, while other clients are read and answered; each client still gets its
replies in order.  Late replies are durable: a tick that fails later takes none of them back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.failures import Failures
    from riverbed.server.execution.ticks import Turns
    from riverbed.server.protocol.replies import LongReply

log = logging.getLogger("riverbed")

# The time that a turn has for sending, and how many clients get replies without a look at the clock.
TURN_S: Final = 0.003
_FEW: Final = 64
# Copying less than this for each receiver of a message costs no more than a separate send.
_LARGE_BYTES: Final = 4 << 10


class Outbox:
    """The replies of one server that may leave."""

    def __init__(self, core: Core, turns: Turns, failures: Failures) -> None:
        self.turn_s = TURN_S
        self.few = _FEW
        self._stats = core.stats
        self._monotonic = core.clock.monotonic
        self._turns = turns
        self._failures = failures
        self._loop = asyncio.get_running_loop()
        self._late: dict[Session, list[bytes]] = {}  # in the order in which their turns come
        self._drain_due = False

    def release(self, ran: list[Session]) -> None:
        """Send the replies of these sessions, and attend to the sessions that need more than that.

        Where that fails all of them are cut off: one has lost its replies, and others would wait for theirs.
        """
        try:
            self._release(ran)
        except Exception:
            for session in ran:
                session.abort()
            raise

    def _release(self, ran: list[Session]) -> None:
        late = self._late
        clock = self._monotonic
        end = clock() + self.turn_s
        is_over = False
        needy: list[Session] = []
        total = 0
        for count, session in enumerate(ran):
            if count >= self.few and not is_over:
                is_over = clock() >= end
            out = session.out
            if out:
                if is_over or late or (len(out) > 1 and (session.is_monitor or session.subscriptions)):
                    total += self._send_or_keep(session, is_over)
                else:
                    total += _send_now(session)
            if session.attention:
                if session.long_reply is not None:
                    session.long_reply.is_settled = True  # however long it waits for its first piece
                if session not in late:
                    needy.append(session)
        self._stats.bytes_out += total
        if needy:
            self._see_to(needy, end)
        if late:
            self._want_drain()

    def send_early(self, ran: list[Session]) -> None:
        """Send replies of a tick that goes on and has changed nothing: a commit that fails takes none of them back."""
        if self._late:
            return
        first = len(ran)
        while first and ran[first - 1].out:
            first -= 1
        for session in ran[first:]:
            if session.out and not (session.attention or session.is_monitor or session.subscriptions):
                self._stats.bytes_out += _send_now(session)

    def _send_or_keep(self, session: Session, is_over: bool) -> int:
        """Send a client's replies, or keep them until its turn comes; -> how many bytes."""
        out = session.out
        pieces = _with_large_apart(out) if session.is_monitor or session.subscriptions else [b"".join(out)]
        out.clear()
        # the log for a replica does not come this way, and must not overtake its replies
        is_late = (is_over or session in self._late) and not session.is_replica
        for data in pieces:
            if is_late:
                self._late.setdefault(session, []).append(data)
                self._is_late(session, len(data))
            else:
                session.send(data)
        size = sum(map(len, pieces))
        session.bytes_out += size
        return size

    def holds(self, session: Session) -> bool:
        """Whether the client has replies that were not handed over to its connection yet."""
        return session in self._late

    def forget(self, session: Session) -> None:
        """The client has gone."""
        self._late.pop(session, None)
        session.late_bytes = 0

    def finish(self) -> None:
        """Send all that is late at once."""
        while self._late:
            self._send_one()

    def _is_late(self, session: Session, size: int) -> None:
        """Count bytes that wait for the client's turn; while they are many, no more of its requests run."""
        session.late_bytes += size
        session.refresh()
        session.settle()

    # -- what is late --------------------------------------------------------------------------------------------------

    def _want_drain(self) -> None:
        if not self._drain_due:
            self._loop.call_soon(self._drain)
            self._drain_due = True

    def _drain(self) -> None:
        self._drain_due = False
        end = self._monotonic() + self.turn_s
        while self._late:
            self._send_one()
            if self._monotonic() >= end:
                break
        if self._late:
            self._want_drain()

    def go_on(self) -> None:
        """Send what is late without a turn of the loop, for as long as a turn has, and do nothing more than that."""
        end = self._monotonic() + self.turn_s
        for session in [each for each in self._late if not each.attention]:
            self._send_late(session)
            if self._monotonic() >= end:
                break

    def _send_one(self) -> None:
        self._send_late(next(iter(self._late)))

    def _send_late(self, session: Session) -> None:
        try:
            for data in _with_large_apart(self._late.pop(session)):
                session.send(data)
        except Exception:  # it would mistake later replies for those that are lost
            log.exception("late replies to client %d are lost", session.id)
            session.abort()
            return
        session.late_bytes = 0
        session.refresh()
        session.settle()
        if session.attention:
            self._attend(session)

    # -- more than replies ---------------------------------------------------------------------------------------------

    def _see_to(self, needy: list[Session], end: float) -> None:
        """Attend to these clients; when the time is up, postpone those with long replies, except the first client."""
        postponed = []
        for number, session in enumerate(dict.fromkeys(needy)):
            if number and session.long_reply is not None and self._monotonic() >= end:
                postponed.append(session)
            else:
                self._attend(session)
        if postponed:
            self._turns.postpone(postponed)

    def _attend(self, session: Session) -> None:
        """After a client's replies: close it, cut it off, go on with a long reply, or let held-back requests run."""
        session.peer.attend()
        if session.closing or session.congested:
            return
        if session.long_reply is not None:
            self._continue_long_reply(session, session.long_reply)
        elif session.is_held and not session.must_wait:
            self._turns.resume(session)

    def _continue_long_reply(self, session: Session, reply: LongReply) -> None:
        """Send a piece of a reply too long for memory; the next piece waits for a client that reads slowly."""
        try:
            piece = reply.next_piece()
        except Exception as error:  # the tables were replaced, or a row is damaged
            line = self._failures.broken_off(session, error, may_refuse=reply.is_of_read and not reply.has_begun)
            if not line:
                log.error("a long reply to client %d broke off: %s: %s", session.id, type(error).__name__, error)
                session.end_long_reply()
                session.peer.abort()
                return
            self._send_piece(session, line)
            piece = None
        if piece is None:
            session.end_long_reply()
            session.release_pushes()
        elif piece:  # else the reply has only ended a turn
            reply.note_piece(len(piece), self._monotonic())
            self._send_piece(session, piece)
        # the rest comes with the next tick, unless the client is congested by now
        if not session.congested:
            self._turns.flush(session)

    def _send_piece(self, session: Session, piece: bytes) -> None:
        session.bytes_out += len(piece)
        self._stats.bytes_out += len(piece)
        session.send(piece)


def _send_now(session: Session) -> int:
    """Send a client's replies; -> how many bytes."""
    out = session.out
    data = out[0] if len(out) == 1 else b"".join(out)
    out.clear()
    size = len(data)
    session.bytes_out += size
    send = session.send
    try:
        send(data)
    except Exception:  # the client would mistake later replies for these
        session.abort()
        raise
    return size


def _with_large_apart(parts: list[bytes]) -> list[bytes]:
    """`parts`, the small ones joined.  A large message stays one object for all clients that are sent it."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < _LARGE_BYTES:
            small.append(part)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        pieces.append(part)
    if small:
        pieces.append(b"".join(small))
    return pieces
