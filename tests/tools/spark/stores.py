"""Random stores, what commands answer about them, and what the data source reads, in the same words."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from riverbed.server.commands.request import Context
from riverbed.server.config.config import Config
from riverbed.store.ids import MAX_HALF, StreamID, make_id, parse_id
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.columns.streams import key_text
from riverbed.tools.spark.reading.batch import SnapshotReader
from riverbed.tools.spark.reading.options import Table, read_options
from riverbed.tools.spark.reading.schemas import default_schema
from tests.support.in_process import HandClock, Product, answer
from tests.support.scripts.generators import KEYSPACE, STREAMS, Generator, KeyCommands, StreamCommands
from tests.support.scripts.group_commands import GROUP_FAMILY, NEWER_FAMILY, GroupCommands, NewerCommands

Row = dict[str, Any]
_ABOUT_NOTHING: Final = (StreamCommands.xinfo_help, GroupCommands.xgroup_help, KeyCommands.flush)


class _Commands(NewerCommands, Generator):
    """Every family on one connection."""


_FAMILIES: Final = (
    [(weight, maker) for weight, maker in STREAMS if maker not in _ABOUT_NOTHING],
    [(weight, maker) for weight, maker in GROUP_FAMILY if maker not in _ABOUT_NOTHING],
    NEWER_FAMILY,
    [(max(1, weight // 3), maker) for weight, maker in KEYSPACE if maker not in _ABOUT_NOTHING],
)


def random_store(directory: Path, seed: int, commands: int = 250) -> Product:
    """A store that a script has made, on several databases."""
    chance = random.Random(seed)
    generator = _Commands(chance, _FAMILIES)
    product = Product(directory, HandClock(time.time_ns() // 1_000_000), node_max_entries=chance.choice((2, 4, 100)))
    product.request.context = Context(Config(), product.engine, product.clock)  # commands that look a key up count that
    for _ in range(commands):
        if chance.random() < 0.04:
            product.run("SELECT", chance.choice((0, 0, 0, 1, 2)))
        words = generator.command()
        answer(lambda words=words: product.execute(words))
        product.clock.now_ms += chance.choice((0, 0, 1, 100_000))
        if chance.random() < 0.02:
            product.checkpoint()
    return product


def freeze(product: Product, out: Path, split_every: int = 65_536) -> Path:
    """A snapshot of all that the store holds, which is closed by it."""
    product.close()
    take_snapshot(product.directory, out, program="test", split_every=split_every)
    return out


# -- what commands answer ----------------------------------------------------------------------------------------------


def answers(product: Product) -> dict[Table, list[Row]]:
    """All tables of a store, without column `snapshot` and what depends on when it was frozen."""
    rows: dict[Table, list[Row]] = {table: [] for table in Table}
    for db in range(16):
        product.run("SELECT", db)
        for key in product.run("KEYS", "*"):
            about: Row = {"key": key_text(key), "db": db}
            for entry_id, words in product.run("XRANGE", key, "-", "+"):
                rows[Table.ENTRIES].append(about | _id(entry_id) | {"fields": _fields(words)})
            _about_stream(product, key, about, rows)
    return rows


def _about_stream(product: Product, key: bytes, about: Row, rows: dict[Table, list[Row]]) -> None:
    full = _dict(product.run("XINFO", "STREAM", key, "FULL", "COUNT", 0))
    ids = [entry_id.decode() for entry_id, _ in full[b"entries"]]
    deadline = product.run("PEXPIRETIME", key)
    rows[Table.STREAMS].append(
        about
        | {
            "length": full[b"length"],
            "first_id": ids[0] if ids else None,
            "last_entry_id": ids[-1] if ids else None,
            "last_id": full[b"last-generated-id"].decode(),
            "max_deleted_id": full[b"max-deleted-entry-id"].decode(),
            "entries_added": full[b"entries-added"],
            "groups": len(full[b"groups"]),
            "expires": deadline if deadline > 0 else None,
        }
    )
    for group in map(_dict, full[b"groups"]):
        name = about | {"group": key_text(group[b"name"])}
        rows[Table.GROUPS].append(
            name
            | {
                "last_delivered_id": group[b"last-delivered-id"].decode(),
                "entries_read": group[b"entries-read"],
                "lag": group[b"lag"],
                "pending": group[b"pel-count"],
                "released": group[b"nacked-count"],
                "consumers": len(group[b"consumers"]),
            }
        )
        for consumer in map(_dict, group[b"consumers"]):
            active = consumer[b"active-time"]
            rows[Table.CONSUMERS].append(
                name
                | {
                    "consumer": key_text(consumer[b"name"]),
                    "pending": consumer[b"pel-count"],
                    "seen": consumer[b"seen-time"],
                    "active": active if active >= 0 else None,
                }
            )
        owned = {row[0] for consumer in map(_dict, group[b"consumers"]) for row in consumer[b"pending"]}
        for entry_id, consumer, delivered, deliveries in group[b"pending"]:
            is_owned = entry_id in owned
            rows[Table.PENDING].append(
                name
                | _id(entry_id)
                | {
                    "consumer": key_text(consumer) if is_owned else None,
                    "delivered": delivered if is_owned else None,
                    "deliveries": deliveries,
                    "entry_exists": entry_id.decode() in ids,
                }
            )


def _dict(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _id(text: bytes) -> Row:
    found = parse_id(text)
    assert found is not None
    ms, seq = found >> 64, found & MAX_HALF
    return {
        "id": text.decode(),
        "ms": ms if ms < 1 << 63 else None,
        "seq": seq if seq < 1 << 63 else None,
        "timestamp": ms if ms * 1000 < 1 << 63 else None,
    }


def _fields(words: list[bytes]) -> dict[str, bytes]:
    """As a map of texts: names that are not UTF-8 show their bytes; the last of equal names counts."""
    return {key_text(name): value for name, value in zip(words[::2], words[1::2], strict=True)}


# -- what is read ------------------------------------------------------------------------------------------------------


def parts_in_turn(path: Path, table: Table = Table.ENTRIES, **options: object) -> Iterator[list[Row]]:
    """The rows of each partition, as an executor reads them, without Spark; each is read when it is asked for."""
    asked = {"path": str(path), "table": table.value, **{name: str(value) for name, value in options.items()}}
    reader = SnapshotReader(read_options(asked), default_schema(table))
    for partition in reader.partitions():
        yield [row for batch in reader.read(partition) for row in _rows(batch)]


def parts(path: Path, table: Table = Table.ENTRIES, **options: object) -> list[list[Row]]:
    """The rows of all partitions, by partition."""
    return list(parts_in_turn(path, table, **options))


def rows_read(path: Path, table: Table = Table.ENTRIES, **options: object) -> list[Row]:
    """The rows of all partitions in turn."""
    return list(itertools.chain.from_iterable(parts(path, table, **options)))


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """With moments as milliseconds: the last ones of Arrow are beyond Python's."""
    columns = {
        field.name: column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    moments = {field.name for field in batch.schema if pa.types.is_timestamp(field.type)}
    for row in pa.RecordBatch.from_pydict(columns).to_pylist(maps_as_pydicts="strict"):
        yield {name: value // 1000 if name in moments and value is not None else value for name, value in row.items()}


def comparable(rows: list[Row], *without: str) -> list[Row]:
    """In an order of their own: by database, key, group, consumer and ID."""
    kept = [{name: value for name, value in row.items() if name not in without} for row in rows]
    return sorted(kept, key=_place)


def _place(row: Row) -> tuple[int, str, str, StreamID, str]:
    entry_id = parse_id(row["id"].encode()) if "id" in row else None
    return row["db"], row["key"], row.get("group", ""), entry_id or make_id(0, 0), row.get("consumer") or ""
