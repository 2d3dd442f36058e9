"""Two snapshots, table by table: what only one of them has, and what they have differently.

Tables of entries and of pending entries are first compared by blocks of IDs, with a count and a hash for each, so that
of two that are equal nothing is sorted or moved but these; then row by row in the blocks that differ.  Every
difference is counted, and the first ones are named.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as fn

from riverbed.tools.console.keytext import key_text
from riverbed.tools.spark.jobs.command import Frozen, Job
from riverbed.tools.spark.reading.options import Table

# About a minute, in milliseconds of IDs.
_BLOCK: Final = "ms div 65536"
_NO_BLOCK: Final = -1  # of IDs beyond 2^63 milliseconds
_SIDES: Final = ("a", "b")
_MAX_FIELDS: Final = 20
_MAX_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Compared:
    """How the rows of a table are told from each other, and what of them must be equal."""

    noun: str
    table: Table
    schema: str
    names: dict[str, str]  # of columns, as the schema has them, to those of the difference
    values: tuple[str, ...]
    times: tuple[str, ...] = ()  # left out on request: those that a replica need not have
    has_blocks: bool = False

    @property
    def plural(self) -> str:
        return f"{self.noun[:-1]}ies" if self.noun.endswith("y") else f"{self.noun}s"


_WHOSE: Final = {"db": "db", "key_binary": "key", "group_binary": "group"}
TABLES: Final = (
    Compared(
        "stream",
        Table.STREAMS,
        "db int, key_binary binary, length bigint, first_id string, last_entry_id string, last_id string, "
        "max_deleted_id string, entries_added bigint, expires timestamp",
        {"db": "db", "key_binary": "key"},
        ("length", "first_id", "last_entry_id", "last_id", "max_deleted_id", "entries_added", "expires"),
    ),
    Compared(
        "entry",
        Table.ENTRIES,
        "_db int, _key_binary binary, _id string, _ms bigint, _items array<struct<name:binary,value:binary>>",
        {"db": "db", "key_binary": "key", "id": "id"},
        ("items",),
        has_blocks=True,
    ),
    Compared(
        "group",
        Table.GROUPS,
        "db int, key_binary binary, group_binary binary, last_delivered_id string, entries_read bigint, "
        "pending bigint, released bigint, policy string",
        _WHOSE,
        ("last_delivered_id", "entries_read", "pending", "released", "policy"),
    ),
    Compared(
        "consumer",
        Table.CONSUMERS,
        "db int, key_binary binary, group_binary binary, consumer_binary binary, pending bigint, seen timestamp, "
        "active timestamp",
        {**_WHOSE, "consumer_binary": "consumer"},
        ("pending", "seen", "active"),
        times=("seen", "active"),
    ),
    Compared(
        "pending entry",
        Table.PENDING,
        "db int, key_binary binary, group_binary binary, id string, ms bigint, consumer_binary binary, "
        "delivered timestamp, deliveries bigint",
        {**_WHOSE, "id": "id"},
        ("consumer_binary", "delivered", "deliveries"),
        has_blocks=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One row.  `values` are those that differ, of both sides; a side is None that does not have the row."""

    names: dict[str, Any]
    sides: tuple[dict[str, Any] | None, dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class TableDifferences:
    """How many rows there are, how many differences, and the first of them by name."""

    compared: Compared
    rows: tuple[int, int]
    only: tuple[int, int]  # rows that one side alone has
    changed: int
    first: list[Difference]

    @property
    def count(self) -> int:
        return sum(self.only) + self.changed


def compare(
    job: Job, a: Frozen, b: Frozen, compared: Compared, *, most: int, with_times: bool, options: dict[str, str]
) -> TableDifferences:
    """Every difference of one table, of which the first `most` are named."""
    values = [name for name in compared.values if with_times or name not in compared.times]
    sides = [_rows(job, frozen, compared, values, options) for frozen in (a, b)]
    if not compared.has_blocks:
        return _differences(sides, compared, values, most)
    places = [*_places(compared), "block"]
    blocks = [
        _blocks(side, compared, values).withColumnsRenamed({"rows": f"rows_{letter}", "hash": f"hash_{letter}"})
        for side, letter in zip(sides, _SIDES, strict=True)
    ]
    differ = ~fn.col("rows_a").eqNullSafe(fn.col("rows_b")) | ~fn.col("hash_a").eqNullSafe(fn.col("hash_b"))
    joined = blocks[0].join(blocks[1], places, "fullouter").persist(StorageLevel.MEMORY_AND_DISK)
    try:
        [totals] = joined.agg(fn.sum("rows_a"), fn.sum("rows_b"), fn.count_if(differ)).collect()
        rows = (totals[0] or 0, totals[1] or 0)
        if not totals[2]:
            return TableDifferences(compared, rows, (0, 0), 0, [])
        which = joined.where(differ).select(*places)
        found = _differences([side.join(which, places, "leftsemi") for side in sides], compared, values, most)
        return replace(found, rows=rows)
    finally:
        joined.unpersist()


def _differences(sides: list[DataFrame], compared: Compared, values: list[str], most: int) -> TableDifferences:
    names = list(compared.names)
    a, b = (
        side.select(
            *names,
            fn.lit(1).alias(f"here_{letter}"),
            *(fn.col(name).alias(f"{name}_{letter}") for name in side.columns if name not in (*names, "block")),
        )
        for side, letter in zip(sides, _SIDES, strict=True)
    )
    only_a, only_b = fn.col("here_b").isNull(), fn.col("here_a").isNull()
    changed = fn.lit(False)
    for name in values:
        changed = changed | ~fn.col(f"{name}_a").eqNullSafe(fn.col(f"{name}_b"))
    changed = ~only_a & ~only_b & changed
    counting = Observation()
    joined = a.join(b, names, "fullouter").observe(
        counting,
        fn.count("here_a").alias("rows_a"),
        fn.count("here_b").alias("rows_b"),
        fn.count_if(only_a).alias("only_a"),
        fn.count_if(only_b).alias("only_b"),
        fn.count_if(changed).alias("changed"),
    )
    # At least one, for Spark takes no row for no work, and counts nothing.
    found = joined.where(only_a | only_b | changed).orderBy(*_order(compared)).limit(max(most, 1))
    first = [_difference(row, compared, values) for row in found.select(*_shortened(found)).collect()]
    counts = counting.get
    return TableDifferences(
        compared,
        (counts["rows_a"], counts["rows_b"]),
        (counts["only_a"], counts["only_b"]),
        counts["changed"],
        first[:most],
    )


# -- rows --------------------------------------------------------------------------------------------------------------


def _rows(job: Job, frozen: Frozen, compared: Compared, values: list[str], options: dict[str, str]) -> DataFrame:
    """The columns by their names in all tables; with blocks, the block and the milliseconds as well."""
    rows = job.read(frozen, compared.table, compared.schema, options)
    rows = rows.withColumnsRenamed({name: name.removeprefix("_") for name in rows.columns})
    columns = [*compared.names, *values]
    if not compared.has_blocks:
        return rows.select(*columns)
    return rows.select(*columns, "ms", fn.coalesce(fn.expr(_BLOCK), fn.lit(_NO_BLOCK)).alias("block"))


def _places(compared: Compared) -> list[str]:
    """Where a block is."""
    return [name for name in compared.names if name != "id"]


def _blocks(rows: DataFrame, compared: Compared, values: list[str]) -> DataFrame:
    """How many rows each block has, and a hash of them in which their order is of no matter."""
    return rows.groupBy(*_places(compared), "block").agg(
        fn.count(fn.lit(1)).alias("rows"), fn.bit_xor(fn.xxhash64("id", *values)).alias("hash")
    )


def _order(compared: Compared) -> list[Column]:
    """By name, and IDs as numbers."""
    order = [fn.col(name) for name in _places(compared)]
    if compared.has_blocks:
        ms = fn.coalesce("ms_a", "ms_b")
        order += [ms.asc_nulls_last(), fn.length("id"), fn.col("id")]
    return order


def _shortened(found: DataFrame) -> list[Column]:
    """Values of entries may be very long, and there are people to read them."""
    columns = []
    for name in found.columns:
        column = fn.col(name)
        if name.startswith("items_"):
            column = fn.transform(fn.slice(column, 1, _MAX_FIELDS), _short_item).alias(name)
        columns.append(column)
    return columns


def _short_item(item: Column) -> Column:
    return fn.struct(
        fn.substring(item["name"], 1, _MAX_BYTES).alias("name"),
        fn.substring(item["value"], 1, _MAX_BYTES).alias("value"),
    )


# -- differences -------------------------------------------------------------------------------------------------------


def _difference(row: Any, compared: Compared, values: list[str]) -> Difference:
    names = {shown: _plain(row[name]) for name, shown in compared.names.items()}
    sides: list[dict[str, Any] | None] = []
    is_in_both = row["here_a"] is not None and row["here_b"] is not None
    for letter in _SIDES:
        if row[f"here_{letter}"] is None:
            sides.append(None)
            continue
        differ = [name for name in values if not is_in_both or row[f"{name}_a"] != row[f"{name}_b"]]
        # Long values may begin alike; then all of them are told.
        sides.append({_shown(name): _plain(row[f"{name}_{letter}"]) for name in differ or values})
    return Difference(names, (sides[0], sides[1]))


def _shown(name: str) -> str:
    return "fields" if name == "items" else name.removesuffix("_binary")


def _plain(value: Any) -> Any:
    """For JSON, and for people."""
    if isinstance(value, (bytes, bytearray)):
        return key_text(bytes(value))
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    if isinstance(value, list):
        return [[key_text(bytes(item.name)), key_text(bytes(item.value))] for item in value]
    return value


def values_text(values: dict[str, Any]) -> str:
    """Names and values in a line."""
    return ", ".join(f"{name} {_value_text(value)}" for name, value in values.items())


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{name}={text}" for name, text in value)
    return "none" if value is None else str(value)
