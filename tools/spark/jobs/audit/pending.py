"""The pending entries of a snapshot: sorted into kinds, counted by consumer, and the worst of each kind listed.

    orphaned    the entry is deleted: no consumer can work on it, and only XACK or XAUTOCLAIM removes it
    poison      delivered again and again: every consumer that takes it seems to fail
    stuck       delivered long ago and never acknowledged: its consumer has died, or has forgotten it
    released    given back by XNACK: it belongs to no consumer and waits for the next reader
    in work     none of these

An entry is of the first kind that fits.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column
from pyspark.sql import functions as fn

from riverbed.store.ids import StreamID, parse_id
from riverbed.tools.spark.jobs.command import Frozen, Job
from riverbed.tools.spark.reading.options import Table

_PENDING: Final = (
    "db int, key_binary binary, group_binary binary, consumer_binary binary, id string, ms bigint, seq bigint, "
    "delivered timestamp, idle_ms bigint, deliveries bigint, entry_exists boolean"
)
_WHOSE: Final = ("db", "key_binary", "group_binary", "consumer_binary")
_WHICH: Final = ("db", "key_binary", "group_binary", "id")
# `ms` and `seq` are null above this.
_MOST: Final = (1 << 63) - 1
_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE

# (end in milliseconds, exclusive; name).  The last bin has no end.
AGES: Final = (
    (_MINUTE, "< 1 min"),
    (10 * _MINUTE, "1-10 min"),
    (_HOUR, "10-60 min"),
    (6 * _HOUR, "1-6 h"),
    (24 * _HOUR, "6-24 h"),
    (7 * 24 * _HOUR, "1-7 d"),
    (None, "> 7 d"),
)
DELIVERIES: Final = ((2, "1"), (3, "2"), (4, "3"), (5, "4"), (10, "5-9"), (20, "10-19"), (None, "20 or more"))


class Kind(enum.Enum):
    """The kind of a pending entry."""

    ORPHANED = "orphaned"
    POISON = "poison"
    STUCK = "stuck"
    RELEASED = "released"
    IN_WORK = "in work"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits from which an entry or a consumer is a problem, and the maximum length of the lists."""

    stuck_ms: int
    poison_deliveries: int
    idle_ms: int
    shown: int


class GroupName(NamedTuple):
    """A group of a stream."""

    db: int
    key: bytes
    group: bytes


class Pending(NamedTuple):
    """A pending entry.  If it has no consumer, it has no idle time."""

    group: GroupName
    consumer: bytes | None
    entry_id: str
    deliveries: int
    idle_ms: int | None


class Trouble(NamedTuple):
    """The entries of one kind that one consumer of a group holds.  Consumer None: those that belong to no consumer."""

    group: GroupName
    consumer: bytes | None
    entries: int
    deliveries: int  # of all of them together
    most_deliveries: int  # of one of them
    idle_ms: int | None  # the longest
    first_id: StreamID


@dataclass(frozen=True, slots=True)
class Held:
    """The pending entries of one consumer of a group.  Consumer None: the entries that belong to no consumer."""

    group: GroupName
    consumer: bytes | None
    counts: dict[Kind, int]
    oldest_idle_ms: int | None
    taken_last_hour: int  # entries that are still pending
    needed_id: StreamID | None  # the first that still exists in the stream
    needed_idle_ms: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """What a consumer did between two snapshots.  Pending entries show only a part: the numbers are minimums."""

    taken: int  # delivered to it since, and still pending
    settled: int  # it had them then, and no consumer has them now
    lost: int  # it had them then, and another one has them now


class PendingEntries:
    """Table `pending` of a snapshot.  Spark keeps its rows until `close`."""

    def __init__(self, job: Job, frozen: Frozen, limits: Limits, options: dict[str, str]) -> None:
        self._limits = limits
        rows = job.read(frozen, Table.PENDING, _PENDING, options)
        self._rows = rows.withColumn("kind", _kind(limits)).persist(StorageLevel.MEMORY_AND_DISK)

    def close(self) -> None:
        self._rows.unpersist()

    def held(self) -> list[Held]:
        """The pending entries, summed up by consumer."""
        here = fn.col("entry_exists")
        order = fn.struct(*_in_order(), "idle_ms")
        counts = [fn.count_if(fn.col("kind") == kind.value).alias(kind.name) for kind in Kind]
        rows = self._rows.groupBy(*_WHOSE).agg(
            *counts,
            fn.max("idle_ms").alias("oldest"),
            fn.count_if(fn.col("idle_ms") < _HOUR).alias("recent"),
            fn.min(fn.when(here, order)).alias("needed"),
        )
        return [_held(row) for row in rows.collect()]

    def worst(self, kind: Kind) -> list[Pending]:
        """The first `shown` entries of a kind: poison by most deliveries, other kinds by longest idle time."""
        oldest = [fn.col("idle_ms").desc_nulls_last(), fn.col("ms"), fn.col("seq"), *map(fn.col, _WHICH)]
        order = [fn.col("deliveries").desc(), *oldest] if kind is Kind.POISON else oldest
        rows = self._rows.where(fn.col("kind") == kind.value).orderBy(*order).limit(self._limits.shown)
        return [
            Pending(_group(row), _bytes(row.consumer_binary), row.id, row.deliveries, row.idle_ms)
            for row in rows.collect()
        ]

    def troubles(self, kind: Kind) -> list[Trouble]:
        """The entries of a kind, summed up by consumer: the first `shown`, those that cost most first.

        Each further delivery of a poison entry is work done for nothing; of other kinds each entry is a cost.
        """
        columns = [
            fn.count(fn.lit(1)).alias("entries"),
            fn.sum("deliveries").alias("together"),
            fn.max("deliveries").alias("most"),
            fn.max("idle_ms").alias("oldest"),
            fn.min(fn.struct(*_in_order())).alias("first"),
        ]
        cost = "together" if kind is Kind.POISON else "entries"
        order = [fn.col(cost).desc(), fn.col("oldest").desc_nulls_last(), *map(fn.col, _WHOSE)]
        rows = self._rows.where(fn.col("kind") == kind.value).groupBy(*_WHOSE).agg(*columns).orderBy(*order)
        return [_trouble(row) for row in rows.limit(self._limits.shown).collect()]

    def spread(self) -> tuple[dict[Kind, list[int]], dict[Kind, list[int]]]:
        """For each kind, the number of entries in each bin of AGES, and in each bin of DELIVERIES."""
        rows = self._rows.groupBy(
            "kind", _bin(fn.col("idle_ms"), AGES).alias("age"), _bin(fn.col("deliveries"), DELIVERIES).alias("often")
        ).count()
        ages = {kind: [0] * len(AGES) for kind in Kind}
        often = {kind: [0] * len(DELIVERIES) for kind in Kind}
        for kind_text, age, times, count in rows.collect():
            kind = Kind(kind_text)
            often[kind][times] += count
            if age is not None:
                ages[kind][age] += count
        return ages, often

    def work_since(self, earlier: PendingEntries, since_ms: int) -> dict[tuple[GroupName, bytes | None], Work]:
        """What each consumer did since another snapshot was taken, at `since_ms`."""
        now = self._rows.select(*_WHICH, fn.col("consumer_binary").alias("now"), "delivered", fn.lit(1).alias("there"))
        then = earlier._rows.select(*_WHICH, fn.col("consumer_binary").alias("then"))
        since = fn.timestamp_millis(fn.lit(since_ms))
        both = then.join(now, list(_WHICH), "left").select(
            "db",
            "key_binary",
            "group_binary",
            fn.col("then").alias("consumer_binary"),
            fn.lit(0).alias("taken"),
            fn.col("there").isNull().cast("int").alias("gone"),
            (~fn.col("then").eqNullSafe(fn.col("now"))).cast("int").alias("other"),
        )
        taken = now.where(fn.col("delivered") > since).select(
            "db",
            "key_binary",
            "group_binary",
            fn.col("now").alias("consumer_binary"),
            fn.lit(1).alias("taken"),
            fn.lit(0).alias("gone"),
            fn.lit(0).alias("other"),
        )
        rows = both.unionAll(taken).groupBy(*_WHOSE).agg(fn.sum("taken"), fn.sum("gone"), fn.sum("other"))
        return {
            (_group(row), _bytes(row.consumer_binary)): Work(int(row[4]), int(row[5]), int(row[6]) - int(row[5]))
            for row in rows.collect()
        }


def _kind(limits: Limits) -> Column:
    return (
        fn.when(~fn.col("entry_exists"), Kind.ORPHANED.value)
        .when(fn.col("deliveries") >= limits.poison_deliveries, Kind.POISON.value)
        .when(fn.col("consumer_binary").isNull(), Kind.RELEASED.value)
        .when(fn.col("idle_ms") >= limits.stuck_ms, Kind.STUCK.value)
        .otherwise(Kind.IN_WORK.value)
    )


def _in_order() -> list[Column]:
    """The columns by which IDs are ordered, and the ID."""
    return [*(fn.coalesce(name, fn.lit(_MOST)).alias(name) for name in ("ms", "seq")), fn.col("id")]


def _bin(column: Column, bins: tuple[tuple[int | None, str], ...]) -> Column:
    """The index of the bin that a value is in; null stays null."""
    number: Column | None = None
    for place, (end, _) in enumerate(bins):
        if end is not None:
            number = fn.when(column < end, place) if number is None else number.when(column < end, place)
    assert number is not None
    return number.when(column.isNotNull(), len(bins) - 1)


def _held(row: Any) -> Held:
    needed = row.needed
    return Held(
        _group(row),
        _bytes(row.consumer_binary),
        {kind: row[kind.name] for kind in Kind},
        row.oldest,
        row.recent,
        None if needed is None else parse_id(needed.id.encode()),
        None if needed is None else needed.idle_ms,
    )


def _trouble(row: Any) -> Trouble:
    first_id = parse_id(row.first.id.encode())
    assert first_id is not None
    return Trouble(
        _group(row),
        _bytes(row.consumer_binary),
        row.entries,
        row.together,
        row.most,
        row.oldest,
        first_id,
    )


def _group(row: Any) -> GroupName:
    return GroupName(row.db, bytes(row.key_binary), bytes(row.group_binary))


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
