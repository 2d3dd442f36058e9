"""What clients are told when something failed: a refused command, one that fell over a bug, a tick that was undone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.commands.slices import partial_error
from riverbed.server.errors import CommandError
from riverbed.server.execution.admission import MISCONF
from riverbed.server.protocol.encode import error_line
from riverbed.server.protocol.replies import Conclusion, Message, Push, Settled
from riverbed.store.errors import LogWriteError, UnknownOutcomeError
from riverbed.store.refusal import Refusal

if TYPE_CHECKING:
    from riverbed.server.commands.table import Command
    from riverbed.server.execution.executor import Executor

log = logging.getLogger("riverbed")

# Rests on nothing that a failed tick takes back.
_LASTING: Final[frozenset[type[bytes]]] = frozenset((Push, Settled))


class Undoing:
    """Of one executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def refused(self, command: Command, error: CommandError) -> tuple[bytes]:
        self._executor.stats.counters(command.full_name).failed += 1
        self._executor.stats.count_error(error.text)
        return (error_line(error.text),)

    def fault(self, command: Command, error: Exception, mark: int) -> tuple[bytes]:
        """Something escaped a handler: undo that command, keep what came before it, tell the client."""
        if isinstance(error, lmdb.ReadersFullError) and len(self._executor.txn.log) == mark:
            # a read beside the transaction could not begin, and nothing was done
            return self.refused(command, CommandError(f"ERR {error}"))
        if isinstance(error, lmdb.Error):
            log.warning("%s was undone: %s", command.full_name.decode(), error)
            text = f"MISCONF {command.full_name.decode()} was undone, the store refused it: {error}"
        else:
            log.error("a bug: %s was undone", command.full_name.decode(), exc_info=error)
            text = f"ERR internal error: {command.full_name.decode()} was undone ({type(error).__name__})"
        self.roll_back(mark)
        return self.refused(command, CommandError(text.replace("\n", " ")))

    def roll_back(self, mark: int) -> None:
        """Undo what the tick has done beyond its first `mark` logged commands.  Raises StateLostError."""
        try:
            self._executor.engine.rollback(mark, self._executor.now_ms())
        except LogWriteError as failure:
            self.commit_failed(failure)
        else:
            self.settle_replies()

    def commit_early(self) -> None:
        """Commit what has run so far, before the tick, or between ticks.

        Raises LogWriteError when all of it is undone and answered for, StateLostError.
        """
        try:
            self._executor.engine.commit(self._executor.now_ms())
        except LogWriteError as error:
            self.commit_failed(error)
            raise
        self.settle_replies()

    def settle_replies(self) -> None:
        """Everything that has run so far is in the log: what is answered is true, however the tick ends."""
        self._executor.slicing.committed()
        for session in set(self._executor.ran):
            session.out[:] = [wire if wire.__class__ is Push else Settled(wire) for wire in session.out]
            if session.long_reply is not None:
                session.long_reply.is_settled = True

    def commit_failed(self, error: LogWriteError) -> None:
        """The tick was undone: every reply of it becomes an error, for any of them may rest on what is gone."""
        executor = self._executor
        refusal = executor.engine.refusal or Refusal.LOG_FAILED
        log.warning("a tick was undone: %s; %s", error, refusal.value)
        executor.replication.primary.tick_was_undone()
        if isinstance(error, UnknownOutcomeError):
            self._answer_nothing()
            return
        for session in set(executor.ran):
            kept = [wire for wire in session.out if wire.__class__ is not Message]
            session.out[:] = [
                wire
                if wire.__class__ in _LASTING
                else _refusal(refusal, wire.kept if isinstance(wire, Conclusion) else b"")
                for wire in kept
            ]
            if session.long_reply is not None and not session.long_reply.is_settled:
                line = _refusal(refusal, session.long_reply.kept)
                session.end_long_reply()
                executor.answer(session, line)
                executor.resume(session)
        for session, kept_part in executor.slicing.undone():
            executor.answer(session, _refusal(refusal, kept_part))
            executor.resume(session)
        executor.refresh_special()

    def _answer_nothing(self) -> None:
        """Cut off the clients of this tick: whether their writes were done is for the next start to find out."""
        executor = self._executor
        for session in {*executor.ran, *(session for session, _ in executor.slicing.undone())}:
            session.out.clear()
            session.peer.abort()
        executor.refresh_special()


def _refusal(refusal: Refusal, kept: bytes) -> bytes:
    """The reply to a command that was undone but for what is `kept` of it."""
    return error_line(partial_error(kept, MISCONF[refusal].encode()))
