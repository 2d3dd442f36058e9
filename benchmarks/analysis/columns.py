"""Does Spark read the columns of a snapshot as fast as Parquet that it wrote itself, and what do they cost?

Four sources of the same rows: Parquet written by Spark with its own settings, the columns beside a snapshot by
`read_columns` and by format `riverbed`, and its tables.  Their row hashes are compared before anything is measured.
Sessions are from a pool of 10,000, or no two are the same: the latter are most of what there is to read, and no
dictionary helps.

    cold      the files are not in the page cache
    first     the first query of a process whose Spark has just started
    quickly   the same, after `start_quickly`: Java has an archive of Spark's classes

A snapshot is taken with columns and without.  Then a stream grows by a twentieth of its first size before each of
twenty snapshots, and a file that several of them share counts once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.analysis.spark import MAX_ENTRIES, session
from benchmarks.analysis.sparkload import STREAM, load
from benchmarks.load.toolrun import run_tool
from benchmarks.report import Answer, Budget, Measurement, below, samples_text
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig
from riverbed.store.layout import COLUMNS_DIRECTORY, SNAPSHOTS_DIRECTORY
from riverbed.store.snapshot.reader import list_snapshots
from tests.support.servers import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CORES: Final = 2
_SOURCES: Final = ("columns", "format", "Parquet", "tables")
_WRITTEN: Final = "_ms bigint, _seq bigint, _id string, user string, amount string, action string, session string"
_HASHED: Final = "_id string, user string, amount string, action string, session string"
_HOURS: Final = 20
_GROWTH: Final = 20
_HOURLY_ENTRIES: Final = 1_000_000


def _at_least(ratio: float) -> Budget:
    return Budget(f"ratio >= {ratio:g}", lambda ours, measured: measured >= ratio)


@dataclass
class Line(Measurement):
    """One line: `riverbed` is `read_columns`, and the ratio is that of the source `judged` / Parquet's."""

    judged: str = "columns"
    format: list[float] = field(default_factory=list)
    parquet: list[float] = field(default_factory=list)
    tables: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        theirs = median(self.parquet) if self.parquet else 0.0
        ours = self.of(self.judged)
        return median(ours) / theirs if ours and theirs else float("nan")

    def of(self, source: str) -> list[float]:
        return {"columns": self.riverbed, "format": self.format, "Parquet": self.parquet, "tables": self.tables}[source]

    def cells(self) -> list[str]:
        what, unit, columns, _, ratio, budget = super().cells()
        others = (self.format, self.parquet, self.tables)
        return [what, unit, columns, *map(samples_text, others), ratio, budget]


HEADINGS: Final = ("", "unit", "read_columns", "format", "Parquet", "tables", "ratio to Parquet", "budget")


@dataclass(frozen=True)
class _Query:
    what: str
    columns: str
    run: Callable[[DataFrame], object]
    least: float  # ratio to Parquet
    judged: str = "columns"


def _all(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


_QUERIES: Final = (
    _Query("count", "_ms bigint", lambda rows: rows.count(), 0.8),
    _Query("group by", "action string", lambda rows: rows.groupBy("action").count().collect(), 0.8),
    _Query("sum", "amount string", lambda rows: rows.selectExpr("sum(cast(amount as double))").collect(), 0.8),
    _Query("all columns", _HASHED, _all, 1.5, "format"),
)


@dataclass(frozen=True)
class _Data:
    """A snapshot with columns, and the same rows as Spark writes them."""

    snapshot: Path
    parquet: Path

    def rows(self, spark: SparkSession, source: str, columns: str) -> DataFrame:
        from riverbed.tools.spark.columns import read_columns

        names = [column.split(" ")[0] for column in columns.split(", ")]
        if source == "columns":
            return read_columns(spark, self.snapshot, STREAM).select(*names)
        if source == "Parquet":
            return spark.read.parquet(str(self.parquet)).select(*names)
        form = "read" if source == "format" else "ignore"
        return spark.read.format("riverbed").schema(columns).option("columns", form).load(str(self.snapshot))

    def files(self, source: str) -> Iterable[Path]:
        place = {"Parquet": self.parquet, "tables": self.snapshot}.get(source, self.snapshot / COLUMNS_DIRECTORY)
        return (file for file in place.rglob("*") if file.is_file())


def answer(rig: Rig) -> Answer:
    entries = min(rig.sizes.entries, MAX_ENTRIES)
    lines: list[Measurement] = []
    for is_unique in (False, True):
        sessions = "unique sessions" if is_unique else "pool of sessions"
        data, written = _data(rig, entries, sessions, is_unique=is_unique)
        lines += _rates(rig, data, sessions, entries)
        lines += written
    lines += _first_queries(rig, data)  # what they wait for is Java, whatever the sessions are
    lines += _hourly(rig, min(entries, _HOURLY_ENTRIES))
    return Answer(
        f"Columns: a stream of {entries:,} entries of four fields, local[{_CORES}]",
        "read_columns(spark, snapshot, 'events'); spark.read.parquet(...); spark.read.format('riverbed')...",
        lines,
        (
            "Warm: once before it counts. `format` is that of `spark.read`, over the same columns.",
            "The ratio to Parquet is that of `read_columns`, of all columns that of `format`; of rates as of times.",
            "A snapshot: with columns, and without them in the place of Parquet; the start of Python is in its time.",
            "Twenty snapshots: the columns of all, and of the first alone in the place of Parquet.",
        ),
        HEADINGS,
    )


# -- queries -----------------------------------------------------------------------------------------------------------


def _rates(rig: Rig, data: _Data, sessions: str, entries: int) -> list[Measurement]:
    warm = {
        query: Line(f"{query.what}, {sessions}", "M entries/s", _at_least(query.least), judged=query.judged)
        for query in _QUERIES
    }
    cold = {query: Line(f"{query.what}, {sessions}, cold", "M entries/s", judged=query.judged) for query in _QUERIES}
    with session(_CORES) as spark:
        _compare(rig, spark, data, entries)
        for query in _QUERIES:
            for number in range(rig.sizes.rounds + 1):
                for source in _SOURCES:
                    rig.say(f"{query.what}, {sessions}: {source}")
                    seconds = _timed(spark, data, source, query)
                    if number:
                        warm[query].of(source).append(entries / seconds / 1e6)
            for _ in range(rig.sizes.rounds):
                for source in _SOURCES:
                    _forget(data.files(source))
                    cold[query].of(source).append(entries / _timed(spark, data, source, query) / 1e6)
    return [*warm.values(), *cold.values()]


def _first_queries(rig: Rig, data: _Data) -> list[Line]:
    cache = str(rig.new_directory())
    lines = []
    for what, folder in (("first query", ""), ("first query, quickly", cache)):
        line = Line(what, "s", below(2, "s"))
        for source in _SOURCES * rig.sizes.rounds:
            rig.say(f"{what}: {source}")
            line.of(source).append(_first_query(data, source, folder))
        lines.append(line)
    return lines


def _first_query(data: _Data, source: str, cache: str) -> float:
    """The seconds of a process's first query, from the moment that its session is there.

    `cache`: where it keeps its archive of classes; empty for none.
    """
    words = [sys.executable, "-m", "benchmarks.analysis.columns", source, data.snapshot, data.parquet, cache]
    # Until Java has ended too.
    return float(subprocess.check_output(words, cwd=ROOT, stderr=subprocess.DEVNULL))


def _timed(spark: SparkSession, data: _Data, source: str, query: _Query) -> float:
    begun = time.perf_counter()
    query.run(data.rows(spark, source, query.columns))
    return time.perf_counter() - begun


def _compare(rig: Rig, spark: SparkSession, data: _Data, entries: int) -> None:
    """Write the Parquet, and compare the hashes of all rows between the sources.  AssertionError."""
    from pyspark.sql import functions as sql

    rig.say("writing Parquet, comparing the rows")
    data.rows(spark, "tables", _WRITTEN).write.parquet(str(data.parquet))
    names = [column.split(" ")[0] for column in _HASHED.split(", ")]
    found = set()
    for source in _SOURCES:
        hashes = data.rows(spark, source, _HASHED).select(sql.xxhash64(*names).cast("decimal(38,0)").alias("hash"))
        found.add(tuple(hashes.agg(sql.count("*"), sql.sum("hash")).collect()[0]))
    assert {count for count, _ in found} == {entries} and len(found) == 1, found


def _forget(files: Iterable[Path]) -> None:
    """Have the system drop the pages of files from its cache."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# -- costs -------------------------------------------------------------------------------------------------------------


def _data(rig: Rig, entries: int, sessions: str, *, is_unique: bool) -> tuple[_Data, list[Measurement]]:
    """-> the data, and what a snapshot costs with columns and without."""
    directory = rig.new_directory()
    with rig.server(Contender.RIVERBED, "everysec", directory) as server:
        rig.say(f"loading {entries:,} entries, {sessions}")
        load(server.port, entries, unique=is_unique)
        server.stop()  # so that the tables have everything
    size = Line(f"disk of a snapshot, {sessions}", "MB", Budget("ratio <= 1.16", lambda _, ratio: ratio <= 1.16))
    took = Line(f"time of a snapshot, {sessions}", "s", Budget("ratio <= 1.5", lambda _, ratio: ratio <= 1.5))
    for number in range(rig.sizes.rounds):
        for source, words in (("Parquet", []), ("columns", ["--columns"])):
            rig.say(f"snapshot, {sessions}: {' '.join(words) or 'without columns'}")
            # A folder each, so that none finds the columns of another.
            snapshot = rig.new_directory() / f"{source}-{number}"
            took.of(source).append(run_tool("snapshot", directory, snapshot, *words).seconds)
            size.of(source).append(_disk_bytes([snapshot]) / 1e6)
    return _Data(snapshot, rig.new_directory() / "rows.parquet"), [size, took]


def _hourly(rig: Rig, entries: int) -> list[Measurement]:
    total = Line(
        f"columns of {_HOURS} snapshots, each 5 % longer", "MB", Budget("ratio < 2", lambda _, ratio: ratio < 2)
    )
    took = Line("time of the snapshots after the first, and of the first", "s")
    directory = rig.new_directory()
    folder = directory / SNAPSHOTS_DIRECTORY
    server = rig.server(Contender.RIVERBED, "everysec", directory)
    server.options["snapshot-columns"] = "yes"
    with server:
        loaded = 0
        for hour in range(_HOURS):
            rig.say(f"snapshot {hour + 1} of {_HOURS}")
            more = entries // _GROWTH if hour else entries
            load(server.port, more, first=loaded, unique=True)
            loaded += more
            with server.client(timeout_s=LOAD_TIMEOUT_S) as client:
                begun = time.perf_counter()
                client.ask("RIVERBED", "SNAPSHOT")
            took.of("columns" if hour else "Parquet").append(time.perf_counter() - begun)
    columns = [snapshot.path / COLUMNS_DIRECTORY for snapshot in list_snapshots(folder)]
    assert len(columns) == _HOURS
    total.parquet.append(_disk_bytes(columns[:1]) / 1e6)
    total.riverbed.append(_disk_bytes(columns) / 1e6)
    return [total, took]


def _disk_bytes(folders: list[Path]) -> int:
    """Blocks in use; a file that has several names counts once."""
    files = [file.stat() for folder in folders for file in folder.rglob("*") if file.is_file()]
    return sum({about.st_ino: about.st_blocks * 512 for about in files}.values())


def _print_first_query(source: str, snapshot: str, parquet: str, cache: str) -> None:
    from riverbed.tools.spark.quick.start import start_quickly

    if cache:
        start_quickly(cache)
    with session(_CORES, "-Xlog:disable") as spark:  # Java would print its notes about archives too
        print(_timed(spark, _Data(Path(snapshot), Path(parquet)), source, _QUERIES[1]))


if __name__ == "__main__":
    _print_first_query(*sys.argv[1:])
