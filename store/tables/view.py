"""The tables as the last checkpoint left them, for long replies: later changes do not show in them.

All long replies that begin between two changes of the store share one view, which takes two of LMDB's reader slots and
keeps LMDB from reusing freed pages.

This module knows tables and cursors, but not the meaning of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverbed.store.progress import ignore

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.tables.environment import Tables


class View:
    """Open until its last holder releases it; the maker is the first holder.  Until then freed pages are not reused."""

    def __init__(self, tables: Tables, on_close: Callable[[View], None] = ignore) -> None:
        """Begin the read transactions, between two checkpoints.

        Raises lmdb.Error, ReadersFullError when every slot is taken.
        """
        self.tables = tables
        self._on_close = on_close
        self._handles = tables.handles
        self._holders = 1
        self._cursors: dict[str, lmdb.Cursor[bytes]] = {}
        self._rewinds = tables.rewinds
        self._txn, self._mapped = self._begin()
        self.has_large_entries = self._txn.stat(self._handles["entries"])["overflow_pages"] > 0

    def _begin(self) -> tuple[lmdb.Transaction[bytes], lmdb.Transaction[memoryview] | lmdb.Transaction[bytes]]:
        env = self.tables.env
        txn: lmdb.Transaction[bytes] = env.begin()
        try:
            # Its rows are LMDB's memory, so that a row that is sent in parts is not copied.
            mapped: lmdb.Transaction[memoryview] = env.begin(buffers=True)
        except BaseException:
            txn.abort()
            raise
        return txn, mapped

    def _end(self) -> None:
        self._txn.abort()
        self._mapped.abort()

    @property
    def is_open(self) -> bool:
        return self._holders > 0

    @property
    def may_have_other_entries(self) -> bool:
        """Whether an ID in the view may be that of a newer entry: XSETID has set the last ID of a stream back since."""
        return self.tables.rewinds != self._rewinds

    @property
    def is_latest(self) -> bool:
        """Whether the view is open and nothing was committed since it was made."""
        return self.is_open and self._txn.id() == self.tables.env.info()["last_txnid"]

    def hold(self) -> View:
        """Add a holder; each holder calls `release`."""
        assert self._holders > 0, "a view that is closed"
        self._holders += 1
        return self

    def release(self) -> None:
        self._holders -= 1
        assert self._holders >= 0, "a view was let go of twice"
        if not self._holders:
            self._cursors.clear()
            self._end()
            self._on_close(self)

    def cursor(self, table: str) -> lmdb.Cursor[bytes]:
        """The cursor over `table`; the next user of the cursor moves it."""
        cursor = self._cursors.get(table)
        if cursor is None:
            cursor = self._cursors[table] = self.new_cursor(table)
        return cursor

    def new_cursor(self, table: str) -> lmdb.Cursor[bytes]:
        return self._txn.cursor(self._handles[table])

    def new_mapped_cursor(self, table: str) -> lmdb.Cursor[memoryview] | lmdb.Cursor[bytes]:
        """A cursor that copies nothing.  Do not keep its values: the tables may be closed by the next use."""
        return self._mapped.cursor(self._handles[table])


class OpenView(View):
    """The tables as the open write transaction sees them, committed or not; valid until the next change.

    Release it before the turn of the event loop ends.  All its values are copies.
    """

    def __init__(self, tables: Tables, txn: lmdb.Transaction[bytes]) -> None:
        self._open = txn
        super().__init__(tables)

    def _begin(self) -> tuple[lmdb.Transaction[bytes], lmdb.Transaction[bytes]]:
        return self._open, self._open

    def _end(self) -> None:
        """Do nothing: the write transaction stays open."""
