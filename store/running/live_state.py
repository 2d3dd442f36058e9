"""The state in the open transaction, and the way back to it: from the last checkpoint, and the log behind it.

    restore       undoes what the log does not have, or what LMDB could not write
    make_again    executes the whole log, where the tables are damaged
    let_go, take  close the tables, and go on with others, or with another store; see `exchange.py`

Where that fails the state is lost, and is never committed: the next start has the last checkpoint, and the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from riverbed.store.errors import TABLE_DAMAGE, LogWriteError, StateLostError, text_of
from riverbed.store.log.resync import EVERYTHING
from riverbed.store.log.search import KnownOffsets
from riverbed.store.progress import ignore
from riverbed.store.recovery.replay import Execute, recover
from riverbed.store.tables.environment import Tables

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn
    from riverbed.store.log.append_log import Log
    from riverbed.store.options import Options
    from riverbed.store.running.log_keeper import LogKeeper

# The bytes of a log that is executed at once, in a second or two, when its tail meets damaged tables.
MAX_REMADE = 32 << 20
# New tables number streams from so far on: a SCAN, whose cursor is a number of the old ones, then misses no key.
NUMBERS_APART: Final = 1 << 32


class LiveState:
    """What the open transaction of one store holds, between ticks."""

    def __init__(self, directory: Path, options: Options, execute: Execute, keeper: LogKeeper, txn: WriteTxn) -> None:
        # Called with the damage for which the tables were made again of the log.
        self.on_remade: Callable[[Exception], None] = ignore
        # Called when streams and groups may have got other numbers than those that work under way remembers.
        self.on_renumbered: Callable[[], None] = ignore
        self.changes_at_commit = 0  # what `WriteTxn.changes` was
        self._directory = directory
        self._options = options
        self._execute = execute
        self._keeper = keeper
        self._txn = txn
        self._lost: str | None = None  # why the open transaction does not hold the state; then it is never committed

    def require(self) -> None:
        """Raise StateLostError if the open transaction does not hold the state."""
        if self._lost is not None:
            raise StateLostError(self._lost)

    def lose(self, reason: str) -> StateLostError:
        """Commit nothing any more: a checkpoint would say that the tables hold all of the log."""
        self._lost = reason
        return StateLostError(reason)

    @contextlib.contextmanager
    def at_risk(self, failure: str) -> Iterator[None]:
        """Lose the state where anything ends the block early: the transaction holds a part of it.

        Raises StateLostError, also for a lack of memory.
        """
        try:
            yield
        except BaseException as error:
            raise self.lose(f"{failure}: {text_of(error)}") from error

    # -- the same store ------------------------------------------------------------------------------------------------

    def restore(self, changes: int) -> None:
        """Go back to the last checkpoint and replay the log's tail.  Raises StateLostError when that fails.

        Where the map of the tables was too small, it is larger from now on.

        The counter of changes is set to `changes`: the replay does not count all commands as clients' are counted.
        """
        txn = self._txn
        # a copy takes its numbers long before its line is logged, or takes them in vain
        renumbers = txn.copied_bytes > 0
        with self.at_risk("the state could not be rebuilt"):
            self._keeper.end_quietly()  # until a begun checkpoint has ended, the durable state is the one before
            txn.abort()
            self._options.map_bytes = max(self._options.map_bytes, txn.tables.make_room())
            txn.reload()
            try:
                self._replay_tail()
            except TABLE_DAMAGE as damage:
                # Nothing is answered meanwhile, and all of it waits in memory.  A long log is for the next start.
                if self._keeper.log.size_bytes > MAX_REMADE:
                    raise
                self.make_again()
                self.on_remade(damage)
                renumbers = True
        txn.changes = self.changes_at_commit = changes
        if renumbers:
            self.on_renumbered()

    def make_again(self) -> None:
        """Empty the tables, and execute the whole log.  Raises StoreError, OSError, lmdb.Error; then call `restore`."""
        txn = self._txn
        numbered = txn.next_stream_no
        txn.abort()
        txn.reload()
        txn.empty()
        txn.next_stream_no = numbered + NUMBERS_APART
        recover(self._keeper.log, txn, self._execute, commits=False)

    def _replay_tail(self) -> None:
        """Execute what the log holds beyond the tables."""
        log = self._keeper.log
        # no commits during the replay: parts of the log are not durable, and may never be
        recover(log, self._txn, self._execute, commits=False)
        if log.end.position == 0:
            self._keeper.write_preface()

    # -- other tables, or another store --------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the tables, with what marks them as in use, while the log goes on; the open transaction is lost.

        Without the mark a start after a power cut takes missing writes of the log for damage: it is synced before.
        """
        self._keeper.end_quietly()
        self._txn.abort()
        self._keeper.log.listing.settle()
        with contextlib.suppress(LogWriteError):
            self._keeper.sync()
        self._txn.tables.close()

    def take(self, log: Log | None = None, *, may_commit: bool = True) -> None:
        """Open the tables that are in the directory now, and replay what the log, or another one, holds beyond them.

        Without `may_commit` they stay as they are, for a start that is to go back to the last commit but one: what
        opening commits would rest on the last one, and take that place.  Raises StoreError, OSError, lmdb.Error.
        """
        txn, keeper = self._txn, self._keeper
        changes = txn.changes
        txn.change_tables(Tables(self._directory, self._options.map_bytes, syncs_later=may_commit))
        self.on_renumbered()
        if log is None:
            self._replay_tail()
            txn.changes = changes
            return
        keeper.log = log
        recover(log, txn, self._execute, durable=EVERYTHING)
        txn.changes = changes
        keeper.known_offsets = KnownOffsets()
        keeper.known_offsets.add(log.end)
