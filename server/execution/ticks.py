"""What the executor does for the other parts of the server, and what it reports to them.

The parts above the executor are given `Ticks`, a handful of its methods.  The executor imports none of these parts: it
calls the functions that the assembly has put into the lists of `Events`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from riverbed.server.commands.session import Session
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.errors import StateLostError


class Ticks(Protocol):
    """The part of the executor that others may call between two commands."""

    def want_tick(self) -> None:
        """Have a tick soon, which commits what is in the transaction."""

    def flush(self, session: Session) -> None:
        """Send the session's replies with the next tick although it has run nothing; close it then if it is closing."""

    def end_wait(self, session: Session, reply: Reply) -> None:
        """Answer a blocked client with a reply that a failed commit does not take back."""

    def give_up(self, error: StateLostError) -> None:
        """Stop the server at once: its state in memory is lost."""


class Turns(Ticks, Protocol):
    """The part of the executor that its own parts call."""

    ran: list[Session]  # sessions that may have replies of this tick
    # A transaction has ended its turn: nothing may use the tables before it goes on, see `control/beside.py`.
    is_alone: bool

    def answered(self) -> set[Session]:
        """The clients that may have replies of this tick: those that ran, and those that were woken."""

    def resume(self, session: Session) -> None:
        """Let the client's held-back requests run, and its replies go out, with this tick or the next."""

    def postpone(self, sessions: list[Session]) -> None:
        """As `flush`, for clients that come first in the next tick, because this one had no time for them."""


@dataclass(slots=True)
class Events:
    """Functions to call when something happens; `server/assembly.py` fills the lists."""

    tick_over: list[Callable[[], None]] = field(default_factory=list)  # a tick ends; only early replies are out
    committed: list[Callable[[], None]] = field(default_factory=list)  # a tick was, and its replies are out
    undone: list[Callable[[], None]] = field(default_factory=list)  # a tick was
    disconnected: list[Callable[[Session], None]] = field(default_factory=list)
    drained: list[Callable[[Session], None]] = field(default_factory=list)  # the client's socket takes more
    command_over: list[Callable[[], None]] = field(default_factory=list)  # a sliced one
    damaged: list[Callable[[], None]] = field(default_factory=list)  # a command has met a damaged row
    gave_up: list[Callable[[], None]] = field(default_factory=list)
