"""One read transaction over the tables: rows by table, key and prefix.  Knows only the names of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lmdb

from riverbed.store.tables.environment import Tables
from riverbed.store.tables.places import seek


class TableReader:
    """The tables as one checkpoint left them, valid as long as the transaction."""

    def __init__(self, tables: Tables, txn: lmdb.Transaction[bytes]) -> None:
        self.path = tables.path
        self._handles = tables.handles
        self._txn = txn

    def cursor(self, table: str) -> lmdb.Cursor[bytes]:
        """A new cursor without a position."""
        return self._txn.cursor(self._handles[table])

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._txn.get(key, db=self._handles[table])

    def meta_row(self, name: bytes) -> bytes | None:
        return self.get("meta", name)

    def count(self, table: str) -> int:
        return self._txn.stat(self._handles[table])["entries"]

    def stat(self, table: str) -> Mapping[str, int]:
        """The table's `psize`, `depth`, `entries`, `branch_pages`, `leaf_pages` and `overflow_pages`."""
        found = self._txn.stat(self._handles[table])
        return {
            "psize": found["psize"],
            "depth": found["depth"],
            "entries": found["entries"],
            "branch_pages": found["branch_pages"],
            "leaf_pages": found["leaf_pages"],
            "overflow_pages": found["overflow_pages"],
        }

    def rows(self, table: str, prefix: bytes = b"", start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The rows whose keys begin with `prefix`, in the order of their keys, from the key `start` on."""
        cursor = self.cursor(table)
        if seek(cursor, prefix if start is None else start) if prefix or start else cursor.first():
            for key, row in cursor.iternext():
                if not key.startswith(prefix):
                    return
                yield key, row
