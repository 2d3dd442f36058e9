"""The tables as the last checkpoint left them, for long replies: whatever happens in the meantime, they stay the same.

A view is shared by all long replies that begin between two changes of the store: it takes two of LMDB's reader slots,
and it keeps pages from being used again, once for all of them.

Knows tables and cursors, nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverbed.store.progress import ignore

if TYPE_CHECKING:
    import lmdb

    from riverbed.store.tables.environment import Tables


class View:
    """Open until its last holder releases it; the maker is the first.  Until then freed pages are not used again."""

    def __init__(self, tables: Tables, on_close: Callable[[View], None] = ignore) -> None:
        """Between two checkpoints.  Raises lmdb.Error, ReadersFullError when every slot is taken."""
        self.tables = tables
        self._on_close = on_close
        self._handles = tables.handles
        self._holders = 1
        self._cursors: dict[str, lmdb.Cursor[bytes]] = {}
        self._txn, self._mapped = self._begin()
        self.has_large_entries = self._txn.stat(self._handles["entries"])["overflow_pages"] > 0

    def _begin(self) -> tuple[lmdb.Transaction[bytes], lmdb.Transaction[memoryview] | lmdb.Transaction[bytes]]:
        env = self.tables.env
        txn: lmdb.Transaction[bytes] = env.begin()
        try:
            # Its rows are LMDB's memory, so that no copy is made of one that is sent in parts.
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
    def is_latest(self) -> bool:
        """Nothing was committed since it was made."""
        return self.is_open and self._txn.id() == self.tables.env.info()["last_txnid"]

    def hold(self) -> View:
        """One more holder; each calls `release`."""
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
        """The cursor over `table`; its place is lost to the next user of the cursor."""
        cursor = self._cursors.get(table)
        if cursor is None:
            cursor = self._cursors[table] = self.new_cursor(table)
        return cursor

    def new_cursor(self, table: str) -> lmdb.Cursor[bytes]:
        return self._txn.cursor(self._handles[table])

    def new_mapped_cursor(self, table: str) -> lmdb.Cursor[memoryview] | lmdb.Cursor[bytes]:
        """A cursor that copies nothing.  Keep no value of it: ask again, for the tables may be closed by then."""
        return self._mapped.cursor(self._handles[table])


class OpenView(View):
    """The tables as the write transaction has them that is open, checkpoint or none: good until the next change.

    It must be let go of before the turn of the loop ends.  Its values are all copies.
    """

    def __init__(self, tables: Tables, txn: lmdb.Transaction[bytes]) -> None:
        self._open = txn
        super().__init__(tables)

    def _begin(self) -> tuple[lmdb.Transaction[bytes], lmdb.Transaction[bytes]]:
        return self._open, self._open

    def _end(self) -> None:
        """The transaction goes on."""
