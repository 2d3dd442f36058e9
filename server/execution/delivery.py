"""Delivers replies of every kind: has them sent behind the commit or piece by piece, or has the client wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from riverbed.server.commands.slices import SlicedCommand
from riverbed.server.protocol.encode import encode
from riverbed.server.protocol.replies import Block, LongReply, Push, Settled, is_settled

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.table import Command
    from riverbed.server.protocol.replies import Reply

# Classes that stand for no reply.
_UNANSWERED: Final = frozenset((Block, SlicedCommand, Push))


class Delivery:
    """Delivers the replies of one server's commands, except on the fast path."""

    # Called for a client that waits, for a key or for the rest of its own command; set by the executor.
    on_block: Callable[[Session, Block], None]
    on_slices: Callable[[Session, SlicedCommand], None]

    def __init__(self, monotonic: Callable[[], float], flush: Callable[[Session], None]) -> None:
        self.caller: Session | None = None  # the client whose command is running on the slow path
        self._monotonic = monotonic
        self._flush = flush

    def answer(self, session: Session, wire: bytes) -> None:
        """Add one reply to the client's output, unless the client has asked for none."""
        if session.skip_replies:
            session.skip_replies -= 1
            session.refresh()
        elif not session.replies_off:
            session.out.append(wire)

    def deliver(self, session: Session, reply: Reply) -> None:
        """Put a reply of any kind where it belongs."""
        if reply.__class__ is tuple:
            self.answer(session, reply[0])
        elif reply.__class__ is Block:
            self.on_block(session, reply)
        elif reply.__class__ is SlicedCommand:
            self.on_slices(session, reply)
        elif reply.__class__ is LongReply:
            self._begin_long_reply(session, reply)
        elif reply.__class__ is Push:
            session.out.append(reply)
            if session.skip_replies:
                session.skip_replies -= 1
                session.refresh()
        else:
            self.answer(session, encode(reply, session.resp))

    def deliver_for(self, command: Command, session: Session, reply: Reply) -> None:
        """As `deliver`; the reply is settled unless the command rests on the tables."""
        if command.rests_on_tables:
            self.deliver(session, reply)
        else:
            self.deliver_settled(session, reply)

    def deliver_settled(self, session: Session, reply: Reply) -> None:
        """As `deliver`, for a reply that a failed commit does not take back."""
        if reply.__class__ is LongReply:
            reply.is_settled = True
        elif reply.__class__ not in _UNANSWERED:
            wire = encode(reply, session.resp)
            reply = (wire if is_settled(wire) else Settled(wire),)
        self.deliver(session, reply)

    def _begin_long_reply(self, session: Session, reply: LongReply) -> None:
        """Send the reply in pieces as the client reads them, unless the client has asked for none."""
        if session.skip_replies or session.replies_off or session.closing:
            reply.close()
            self.answer(session, b"")
        else:
            session.begin_long_reply(reply, self._monotonic())

    def push(self, session: Session, message: Push) -> None:
        """Send a client a message that it did not ask for: behind its replies so far, and never in the middle of one.

        A client that publishes to itself gets the message behind the reply, as in Redis since 7.2: inside EXEC there
        would be one element too many otherwise.
        """
        if session.closing:
            return
        if session is self.caller or session.long_reply is not None:
            session.hold_push(message)
        else:
            session.out.append(message)
        self._flush(session)
