"""A store with rows in every table, and ways to break it that its code would never take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from riverbed.store.check import check
from riverbed.store.errors import DamagedRowError
from riverbed.store.format.packing import pack_row, unpack_row
from riverbed.store.format.streams import NodeRow, StreamRow
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.model import Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.tables.environment import Tables
from riverbed.store.wire import seal
from tests.support.store.stores import Store, sid

Damage = Callable[["Rows"], object]


class RefusingRows:
    """Rows in memory that damage keeps from being written."""

    def write_back(self) -> None:
        raise DamagedRowError("a row")

    def write_part(self) -> bool:
        raise DamagedRowError("a row")


class Rows:
    """The tables of a store, to be damaged."""

    def __init__(self, txn: lmdb.Transaction, handles: dict[str, Any]) -> None:
        self._txn = txn
        self._handles = handles

    def all(self, table: str) -> list[tuple[bytes, bytes]]:
        with self._txn.cursor(self._handles[table]) as cursor:
            return list(cursor.iternext())

    def put(self, table: str, key: bytes, row: bytes) -> None:
        self._txn.put(key, row, db=self._handles[table])

    def delete(self, table: str, number: int = 0) -> None:
        """Delete the row at index `number`."""
        assert self._txn.delete(self.all(table)[number][0], db=self._handles[table])

    def empty(self, table: str) -> None:
        self._txn.drop(self._handles[table], delete=False)

    def change(self, table: str, row: bytes, number: int = 0) -> None:
        self.put(table, self.all(table)[number][0], row)

    def seal(self, row: bytes, number: int = 0) -> None:
        """Change the row of an entry, and seal it."""
        key = self.all("entries")[number][0]
        self.put("entries", key, seal(key[:8], row))

    def repack(self, table: str, index: int, value: Any, number: int = 0) -> None:
        """Change one element of a msgpack row."""
        key, row = self.all(table)[number]
        values = unpack_row(row, key)
        values[index] = value
        self.put(table, key, pack_row(values, b"" if table in ("meta", "trash") else key))

    def copy(self, table: str, key: bytes, number: int = 0) -> None:
        """Put a msgpack row under another key as well."""
        old, row = self.all(table)[number]
        self.put(table, key, pack_row(unpack_row(row, old), key))

    def stream(self, number: int = 0, **changes: Any) -> None:
        """Change counters of a stream's row."""
        key, row = self.all("keys")[number]
        self.put("keys", key, StreamRow.unpack(key, row)._replace(**changes).pack(key))


def make_sound(directory: Path) -> None:
    """Fill `directory`, and close the store.  Its tables end where its log does."""
    store = Store(directory, node_max_entries=4)
    store.fill(b"s", 10)
    store.commit()
    store.stream().delete_entries([sid("2-0"), sid("10-0")])
    store.deliver(b"s", 3)
    store.deliver(b"s", 2, consumer="Bob")
    store.commit()
    store.run("XREADGROUP", "GROUP", "g", "Carol", "COUNT", 1, "CLAIM", 100_000, "STREAMS", "s", ">")
    store.run("XNACK", "s", "g", "FAIL", "IDS", 1, "4-0")
    store.run("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", 9, "DEADLETTER", "dead", "CONSUMERTTL", 1000)
    store.run("XADD", "s", "IDMP", "producer", "one", "*", "f", "v")
    store.run("XADD", "s", "IDMP", "producer", "two", "*", "f", "v")
    store.db.set_expiry(store.stream(), store.clock.now_ms + 5)
    store.fill(b"t" * 450, 3, db=4)
    trimming.trim(store.fill(b"trimmed", 600), Trim(Strategy.MAXLEN, 50))
    store.commit()
    store.fill(b"gone", 20)
    store.db.delete(store.stream(b"gone"))
    store.checkpoint()
    store.engine.close()


def violations(directory: Path) -> list[str]:
    return [str(violation) for violation in check(directory)]


def damage(directory: Path, how: Damage) -> None:
    tables = Tables(directory, 1 << 28)
    with tables.env.begin(write=True) as txn:
        how(Rows(txn, tables.handles))
    tables.close()


class Do:
    """`do.put(...)` is the damage that calls `put(...)` of the rows."""

    def __getattr__(self, name: str) -> Callable[..., Damage]:
        return lambda *values, **changes: lambda rows: getattr(rows, name)(*values, **changes)


do = Do()


def node(live: int, total: int, size: int, last_id: str) -> bytes:
    return NodeRow(live, total, size, sid(last_id)).pack(b"")


def meta_rows(rows: Rows) -> dict[bytes, int]:
    return {key: number for number, (key, _) in enumerate(rows.all("meta"))}


def set_meta(name: bytes, index: int, value: Any) -> Damage:
    return lambda rows: rows.repack("meta", index, value, meta_rows(rows)[name])


def drop_database(rows: Rows) -> None:
    number = meta_rows(rows)[b"databases"]
    rows.change("meta", pack_row(unpack_row(rows.all("meta")[number][1])[1:]), number)


def flip_row(directory: Path, key: bytes, row: bytes) -> None:
    """Flip a bit at the end of a row, in the file of the tables."""
    path = directory / STATE_DIRECTORY / DATA_NAME
    data = path.read_bytes()
    assert key + row in data
    with path.open("r+b") as file:  # a store that has it mapped sees the change
        file.write(data.replace(key + row, key + row[:-1] + bytes((row[-1] ^ 1,))))
