"""Writes what commands have logged as batches of the log, and undoes those that cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import LogWriteError, UnknownOutcomeError, text_of
from riverbed.store.format.log_lines import encode_command
from riverbed.store.log.appending.condition import caused
from riverbed.store.log.streamed.batch import StreamedBatch
from riverbed.store.options import Fsync

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn
    from riverbed.store.options import Options
    from riverbed.store.running.live_state import LiveState
    from riverbed.store.running.log_keeper import LogKeeper
    from riverbed.store.running.refusals import Refusals
    from riverbed.store.running.space import Space

# Logged in the place of commands that only comment lines contain.
_PING: Final = encode_command([b"PING"])


class Batches:
    """The batches of one store, each of which is all or nothing."""

    def __init__(
        self, keeper: LogKeeper, txn: WriteTxn, options: Options, space: Space, refusals: Refusals, state: LiveState
    ) -> None:
        # Called with batches once they are in the log, and durable if the policy says so.
        self.on_written: Callable[[Sequence[StreamedBatch]], None] | None = None
        self._keeper = keeper
        self._txn = txn
        self._options = options
        self._space = space
        self._refusals = refusals
        self._state = state

    def commit(self, now_ms: int) -> bool:
        """See `Engine.commit`; every tick calls this."""
        txn = self._txn
        txn.end_command()
        if not txn.log:
            return False
        self._state.require()
        commands = b"".join(txn.log)
        command_bytes = len(commands) - txn.extension_bytes
        if not command_bytes:
            # every batch moves the offset, so that an offset names one position between batches
            commands, command_bytes = _PING + commands, len(_PING)
        writer = self._keeper.log.writer
        appended = False
        try:
            annotation = writer.append(commands, command_bytes, now_ms)
            appended = True
            if self._options.fsync is Fsync.ALWAYS:
                self._keeper.sync()
            txn.log_is_written()
            batches: tuple[StreamedBatch, ...] = ()
            if self.on_written is not None:
                batches = (StreamedBatch(commands + annotation, len(commands), command_bytes, (), writer.offset),)
            self.written(batches, len(commands))
        except LogWriteError as error:
            self.undo(error, was_appended=appended)
            raise
        except BaseException as error:
            if not appended:
                raise
            txn.drop_log()  # its lines are in the log: a later commit must not log them again
            reason = f"a batch is in the log, and its commit has not ended: {text_of(error)}"
            raise self._state.lose(reason) from None
        return True

    def undo(self, error: LogWriteError, *, was_appended: bool) -> None:
        """Take back a batch that could not be written or synced.  Raises UnknownOutcomeError, StateLostError."""
        log = self._keeper.log
        is_gone = not was_appended or log.writer.drop_last_batch()
        self._refusals.log_failed(error, is_broken=log.broken)
        self._state.restore(self._state.changes_at_commit)
        if not is_gone:
            text = f"{error}; the next start may find the batch in the log all the same"
            raise caused(UnknownOutcomeError(text), error)

    def written(self, batches: Sequence[StreamedBatch], size: int) -> None:
        """`batches` of `size` bytes are in the log: prepare space for the next one, in the file and on the disk.

        Raises nothing: these are valid, and their clients get their replies.  A failure shows in `Engine.refusal` and
        stops the next batch.
        """
        self._state.changes_at_commit = self._txn.changes
        self._refusals.is_log_written = True
        if self.on_written is not None:
            self.on_written(batches)
        self._space.take(size)
        log = self._keeper.log
        if log.is_full:
            self._keeper.begin_file_if_needed()
        elif self._options.fsync is Fsync.ALWAYS:
            log.writer.pad()
        if self._space.is_due:
            self._refusals.check_space()
