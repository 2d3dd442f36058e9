"""The tables as the last checkpoint left them, for long replies: whatever happens in the meantime, they stay the same.

Knows tables and cursors, nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lmdb

    from store.model import Row
    from store.tables import Tables


class View:
    """Open until it is closed; until then pages that are freed are not used again."""

    def __init__(self, tables: Tables) -> None:
        self._txn: lmdb.Transaction[bytes] = tables.env.begin()
        self._handles = tables.handles
        self._cursors: dict[str, lmdb.Cursor[bytes]] = {}

    def cursor(self, table: str) -> lmdb.Cursor[bytes]:
        """The cursor over `table`; its place is lost to whoever uses it next."""
        cursor = self._cursors.get(table)
        if cursor is None:
            cursor = self._cursors[table] = self._txn.cursor(self._handles[table])
        return cursor

    def rows(self, table: str, low: bytes, high: bytes) -> Iterator[Row]:
        """The rows with low <= key <= high, by a cursor of their own."""
        cursor = self._txn.cursor(self._handles[table])
        if cursor.set_range(low):
            for row in cursor.iternext():
                if row[0] > high:
                    return
                yield row

    def close(self) -> None:
        self._cursors.clear()
        self._txn.abort()
