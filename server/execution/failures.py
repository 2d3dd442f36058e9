"""Answers clients when something failed: a command was refused, a command met a bug, or a tick was undone.

A commit that fails undoes what its tick did to the tables and to the log, and nothing else: a selected database, a
setting, a subscription, a message and a queued command stay.  So the answer depends on the command:

    it reads or changes tables                 -MISCONF, whatever its reply was
    it does neither                            its reply, which is `Settled`
    a transaction with commands of both kinds  the array with -MISCONF for the former: a `Mixture`

Redis does the same at an earlier moment: it refuses writes before they run, and runs everything else.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, Protocol

import lmdb

from riverbed.server.commands.dispatch import client_command
from riverbed.server.commands.slices import partial_error
from riverbed.server.commands.table import Flag
from riverbed.server.errors import CommandError
from riverbed.server.execution.gate import MISCONF
from riverbed.server.limits.rare_lines import RareLine
from riverbed.server.protocol.counting import count_replies
from riverbed.server.protocol.encode import array_header, error_line
from riverbed.server.protocol.replies import Conclusion, Mixture, Settled, is_settled
from riverbed.store.errors import (
    TABLE_DAMAGE,
    DamagedRowError,
    LogWriteError,
    NumbersSpentError,
    Refusal,
    UnknownOutcomeError,
    text_of,
)

if TYPE_CHECKING:
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.commands.table import Command
    from riverbed.server.execution.delivery import Delivery
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.ticks import Events, Turns
    from riverbed.server.protocol.replies import LongReply
    from riverbed.store.tables.writing.commands import Mark

log = logging.getLogger("riverbed")

_REPORT_SECONDS: Final = 60
# In the place of what LMDB says, which names an argument of its library.
MAP_FULL: Final = "it has no room for its rows, see lmdb-map-size"


class Sliced(Protocol):
    """The commands under way in slices."""

    @property
    def uncommitted(self) -> list[Session]:
        """The clients whose commands have run slices since the last commit."""

    def committed(self) -> None:
        """The slices that have run are in the log."""

    def undone(self) -> list[tuple[Session, bytes]]:
        """The slices since the last commit were undone; -> each client whose command ends, and what was kept of it."""


class Waits(Protocol):
    """The waits of clients for keys."""

    def committed(self) -> None:
        """What the waits rest on that have begun is in the log."""

    def undone(self) -> list[Session]:
        """The waits that have begun since the last commit end; -> the clients, which are to be answered."""


class Failures:
    """Undoes what failed, and answers the clients."""

    # Both are set by the executor.
    sliced_commands: Sliced
    waits: Waits

    def __init__(self, core: Core, turns: Turns, gate: Gate, delivery: Delivery, events: Events) -> None:
        self._core = core
        self._engine = core.engine
        self._stats = core.stats
        self._turns = turns
        self._gate = gate
        self._delivery = delivery
        self._events = events
        self.has_committed = False  # what stands before an undone command; the end of the tick finds nothing of it
        self._reported_s: float | None = None  # when a bug was logged last
        self._unreported = 0  # bugs since then
        # a client may send a thousand such commands a second
        self._no_space = RareLine("%d commands that LMDB refused since the last such line; the last one: %s")
        self._no_memory = RareLine("%d commands for which memory was short since the last such line; the last one: %s")
        self._damage = RareLine("%d commands that have met damage since the last such line; the last one: %s")
        self._undone_ticks = RareLine("%d ticks that were undone since the last such line; the last one: %s")

    def refused(self, command: Command, error: CommandError) -> tuple[bytes]:
        self._stats.counters(command.full_name).failed += 1
        self._stats.count_error(error.text)
        line = error_line(error.text)
        return (line if command.rests_on_tables else Settled(line),)

    def fault(self, command: Command, error: Exception, mark: Mark) -> tuple[bytes]:
        """Undo a command whose handler raised an exception, and keep those before `mark`; -> the error reply."""
        txn = self._core.txn
        has_done_nothing = txn.is_unchanged_since(mark)
        if isinstance(error, lmdb.ReadersFullError) and has_done_nothing:
            # a read beside the transaction could not begin
            return self.refused(command, CommandError(f"ERR {error}"))
        if isinstance(error, NumbersSpentError):
            if not has_done_nothing:
                self.roll_back(mark)
            return self.refused(command, CommandError(f"ERR {error}"))
        name = command.full_name.decode()
        if isinstance(error, TABLE_DAMAGE):
            self.damage_met()
            # LMDB takes no more writes in a transaction that has met a broken page
            is_undone = has_done_nothing and isinstance(error, DamagedRowError)
            return self._undone(command, self._repair_reason(error), mark, has_done_nothing=is_undone)
        if isinstance(error, MemoryError) and not self._gate.is_loading:
            # a write may have met it between the tables and the log
            is_only_a_read = has_done_nothing and bool(command.flags & Flag.READONLY)
            return self._undone(command, f"OOM not enough memory for {name}", mark, has_done_nothing=is_only_a_read)
        is_harmless = has_done_nothing and command.flags & Flag.READONLY and not isinstance(error, lmdb.Error)
        if is_harmless or self._gate.is_loading:  # nothing writes during a load, which goes on
            self._report_bug(f"{name} failed", error)
            return self.refused(command, CommandError(f"ERR internal error: {name} failed ({type(error).__name__})"))
        if isinstance(error, lmdb.Error):
            self._no_space.note(f"{name} was undone: {error}", self._core.clock.monotonic())
            reason = MAP_FULL if isinstance(error, lmdb.MapFullError) else str(error)
            text = f"MISCONF {name} was undone, the store refused it: {reason}"
        else:
            self._report_bug(f"{name} was undone", error)
            text = f"ERR internal error: {name} was undone ({type(error).__name__})"
        self.roll_back(mark)
        return self.refused(command, CommandError(text.replace("\n", " ")))

    def _repair_reason(self, damage: Exception) -> str:
        """The error reply to a command that has met damage in the tables, after it was reported."""
        cure = "The tables are being made again" if self._core.repair.in_progress else "RIVERBED REPAIR mends it"
        if isinstance(damage, DamagedRowError):
            place = ""
            with contextlib.suppress(lmdb.Error):  # that is damaged as well
                place = self._core.txn.place_of(damage.stream_no)
            return f"ERR {damage.what} {place}is damaged: its checksum does not fit. {cure}"
        return f"ERR a page of the tables is damaged ({damage}). {cure}"

    def _undone(self, command: Command, text: str, mark: Mark, *, has_done_nothing: bool) -> tuple[bytes]:
        """Undo a command that cannot be done, through no fault of the code; `text` is the error reply."""
        name, reason = command.full_name.decode(), text.partition(" ")[2]
        line = self._no_memory if text.startswith("OOM") else self._damage
        line.note(f"{name} failed: {reason}", self._core.clock.monotonic())
        if not has_done_nothing:
            self.roll_back(mark)
        return self.refused(command, CommandError(text))

    def broken_off(self, session: Session, error: Exception, *, may_refuse: bool) -> bytes:
        """Have damage mended that a client's long reply has met.

        -> the error line to send in its place, empty unless it `may_refuse` the whole and damage was what it met.
        """
        if not isinstance(error, TABLE_DAMAGE):
            return b""
        self.damage_met()
        if not may_refuse:
            return b""
        command, text = client_command([session.last_command]), self._repair_reason(error)
        self._damage.note(f"{command.full_name.decode()} failed: {text}", self._core.clock.monotonic())
        return self.refused(command, CommandError(text))[0]

    def _report_bug(self, what: str, error: Exception) -> None:
        """Log the error with its traceback, at most one a minute: a client may be able to cause very many."""
        now_s = self._core.clock.monotonic()
        if self._reported_s is not None and now_s - self._reported_s < _REPORT_SECONDS:
            self._unreported += 1
            return
        more = f"; {self._unreported} more errors since the last report" if self._unreported else ""
        self._reported_s, self._unreported = now_s, 0
        log.error("a bug: %s%s", what, more, exc_info=error)

    def damage_met(self) -> None:
        """Have the tables mended, for whatever has met a damaged row."""
        for mend in self._events.damaged:
            mend()

    def undo_chore(self, name: str, error: Exception, mark: Mark) -> None:
        """As `fault`, for work that no client has asked for and that is tried again.  Raises StateLostError."""
        if isinstance(error, (DamagedRowError, MemoryError, lmdb.Error)):
            log.warning("%s was undone: %s", name, text_of(error))
        else:
            self._report_bug(f"{name} was undone", error)
        if isinstance(error, TABLE_DAMAGE):
            self.damage_met()
        self.roll_back(mark)

    def roll_back(self, mark: Mark) -> None:
        """Undo what the tick has done behind `mark`.  Raises StateLostError."""
        if self._turns.is_alone:
            return  # it is of a request beside a transaction, which has done nothing to the tables
        before = self._engine.log.end
        try:
            self._engine.rollback(self._core.now_ms(), mark)
        except LogWriteError as failure:
            self.commit_failed(failure)
        else:
            self.has_committed |= self._engine.log.end != before
            self.settle_replies()

    def met_between_commands(self, error: DamagedRowError | lmdb.Error) -> None:
        """Undo what damage, or LMDB, has stopped between commands: those before stay.  Raises StateLostError."""
        if isinstance(error, TABLE_DAMAGE):
            self._damage.note(f"between commands: {error}", self._core.clock.monotonic())
            self.damage_met()
        else:
            error = self._engine.checkpoints.refused(error)
            self._no_space.note(f"between commands: {error}", self._core.clock.monotonic())
        if isinstance(error, lmdb.Error):  # LMDB takes no more writes in this transaction
            self.roll_back(self._engine.txn.mark())
            self._gate.refresh()
        else:
            self.restore_lost()

    def restore_lost(self) -> None:
        """Have back, between commands, what the log has and memory has lost.  Raises StateLostError."""
        if self._engine.txn.has_lost:
            self.roll_back(self._engine.txn.mark())

    def commit_early(self) -> None:
        """Commit what has run so far, before the end of the tick, or between ticks.

        Raises LogWriteError when all of it was undone and its clients were answered, StateLostError.
        """
        try:
            self._engine.commit(self._core.now_ms())
        except LogWriteError as error:
            self.commit_failed(error)
            raise
        self.settle_replies()

    def settle_replies(self) -> None:
        """Settle all replies so far: their commands are in the log, however the tick ends."""
        self.sliced_commands.committed()
        self.waits.committed()
        offset = self._engine.log.end.offset
        for session in self._turns.answered():
            session.written_offset = offset  # the end of the tick may find nothing more to commit
            session.out[:] = [wire if is_settled(wire) else Settled(wire) for wire in session.out]
            if session.long_reply is not None:
                session.long_reply.is_settled = True

    def commit_failed(self, error: LogWriteError) -> None:
        """Turn every reply of an undone tick into an error, unless the reply is settled."""
        refusal = self._engine.refusal or Refusal.LOG_FAILED
        if isinstance(error, UnknownOutcomeError):
            log.warning("a tick was undone: %s; %s", error, refusal.value)
        else:
            self._undone_ticks.note(f"{error}; {refusal.value}", self._core.clock.monotonic())
        for report in self._events.undone:
            report()
        if isinstance(error, UnknownOutcomeError):
            self._answer_nothing()
            return
        self._break_watches()
        for session in self._turns.answered():
            session.out[:] = [wire if is_settled(wire) else self._taken_back(wire, refusal) for wire in session.out]
            if session.long_reply is not None and not session.long_reply.is_settled:
                self._undo_long_reply(session, session.long_reply, refusal)
        for session, kept_part in self.sliced_commands.undone():
            self._delivery.answer(session, self._refusal(refusal, kept_part))
            self._turns.resume(session)
        for session in self.waits.undone():
            self._delivery.answer(session, self._refusal(refusal))
            self._turns.resume(session)
        self._gate.refresh()

    def _break_watches(self) -> None:
        """Break watches of expiring keys: a WATCH of this tick may have noted an expiry time that is undone now."""
        for session in self._turns.answered().union(self.sliced_commands.uncommitted):
            watched = session.transaction.watched
            if watched is not None and any(db.expiring for db in watched.keys):
                session.transaction.watch_broken = True

    def _undo_long_reply(self, session: Session, reply: LongReply, refusal: Refusal) -> None:
        """Replace a long reply, of which nothing was sent, by an error, or by what stays of its transaction."""
        if reply.undo is not None:
            reply.undo(self._refusal(refusal))
            reply.is_settled = True
            return
        session.end_long_reply()
        self._delivery.answer(session, self._refusal(refusal, reply.kept))
        session.release_pushes()
        self._turns.resume(session)

    def _taken_back(self, wire: bytes, refusal: Refusal) -> bytes:
        """The reply that replaces one that may rest on undone changes."""
        if isinstance(wire, Mixture):
            line = self._refusal(refusal, times=wire.lasting.count(None))
            parts = [line if part is None else part for part in wire.lasting]
            return Settled(array_header(len(parts)) + b"".join(parts))
        count = count_replies(wire)
        kept = wire.kept if isinstance(wire, Conclusion) else b""
        times = 0 if wire.startswith(b"-") else count  # an error was counted when it was made
        return Settled(self._refusal(refusal, kept, times) * count)

    def _refusal(self, refusal: Refusal, kept: bytes = b"", times: int = 1) -> Settled:
        """The reply to a command that was undone, except for its `kept` part; counted as so many errors."""
        error = partial_error(kept, MISCONF[refusal].encode())
        if times:
            self._stats.count_error(error, times)
        return Settled(error_line(error))

    def _answer_nothing(self) -> None:
        """Cut off the clients whose replies rest on this tick: only the next start finds out what was done."""
        self._break_watches()
        undone = {session for session, _ in self.sliced_commands.undone()}.union(self.waits.undone())
        for session in self._turns.answered() | undone:
            if session in undone or not _has_settled_replies(session):
                session.out.clear()
                session.peer.abort()
        self._gate.refresh()


def _has_settled_replies(session: Session) -> bool:
    """Whether all replies of the client are true however the commit has ended."""
    has_replies = bool(session.out) and session.long_reply is None
    return has_replies and all(map(is_settled, session.out))
