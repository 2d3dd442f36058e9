"""How many entries a second does Spark read from a snapshot, beside the same rows in Parquet and in JSON lines?

And beside a program without Spark: redis-py reads all entries from a redis-server with XRANGE and does the same
work.  Spark runs on one core and on two (`local[1]`, `local[2]`); its workers in Python share them with its JVM.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import redis

from benchmarks.analysis.sparkload import A_MS, FIELDS, FIRST_MS, STREAM, load
from benchmarks.report import Answer, Budget, Measurement, samples_text
from benchmarks.rig import Contender, Rig
from riverbed.store.layout import SNAPSHOTS_DIRECTORY
from riverbed.store.snapshot.reader import list_snapshots
from tests.support.servers import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_ENTRIES: Final = 3_000_000
CORES: Final = (1, 2)
SOURCES: Final = ("Riverbed", "Parquet", "JSON")
_XRANGE_COUNT: Final = 1000
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_COLUMNS: Final = "_id string, _ms bigint, user string, amount string, action string, session string"


def fast(rate: float) -> Budget:
    """At least so many million entries a second."""
    return Budget(f">= {rate:g} M/s", lambda ours, measured: ours >= rate)


def fast_as_parquet(rate: float, times: float) -> Budget:
    return Budget(
        f">= {rate:g} M/s, {times:g}x Parquet's time", lambda ours, measured: ours >= rate and measured >= 1 / times
    )


@dataclass
class Line(Measurement):
    """One line, of which the ratio is ours / Parquet's."""

    parquet: list[float] = field(default_factory=list)
    json: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        if not self.parquet or not self.riverbed or not median(self.parquet):
            return float("nan")
        return median(self.riverbed) / median(self.parquet)

    def of(self, source: str) -> list[float]:
        return {"Riverbed": self.riverbed, "Parquet": self.parquet, "JSON": self.json}[source]

    def cells(self) -> list[str]:
        what, unit, riverbed, _, ratio, budget = super().cells()
        return [what, unit, riverbed, *map(samples_text, (self.parquet, self.json, self.redis)), ratio, budget]


HEADINGS: Final = ("", "unit", "Riverbed", "Parquet", "JSON", "XRANGE", "ratio to Parquet", "budget")


@dataclass(frozen=True)
class Job:
    """What is asked of each source: columns as a schema names them, and what is done with them."""

    what: str
    columns: str
    run: Callable[[DataFrame, Path], object]
    budget: Budget | None = None
    is_slow: bool = False


def _sum(rows: DataFrame, _: Path) -> object:
    return rows.selectExpr("sum(cast(amount as double))").collect()


def _all(rows: DataFrame, _: Path) -> object:
    rows.write.format("noop").mode("overwrite").save()
    return None


def _to_parquet(rows: DataFrame, out: Path) -> object:
    rows.write.mode("overwrite").parquet(str(out))
    return None


JOBS: Final = (
    Job("count", "_ms bigint", lambda rows, _: rows.count()),
    Job("group by", "action string", lambda rows, _: rows.groupBy("action").count().collect(), fast(4)),
    Job("sum of one of two columns", "user string, amount double", _sum, fast(4)),
    Job(
        "ID and all fields",
        "_id string, user string, amount string, action string, session string",
        _all,
        fast_as_parquet(2.5, 1.5),
    ),
    Job("all to Parquet files", _COLUMNS, _to_parquet, is_slow=True),
)


def answer(rig: Rig) -> Answer:
    entries = min(rig.sizes.entries, MAX_ENTRIES)
    snapshot = _snapshot(rig, entries)
    out = rig.new_directory()
    rates = [_rate_line(job, cores) for cores in CORES for job in JOBS]
    costs = [Line(f"{job.what}, local[{cores}]: CPU", "us/entry") for cores in CORES for job in JOBS]
    scanned = Line("rows scanned for 1 % of the time", "% of all", Budget("<= 2 %", lambda ours, _: ours <= 2))
    for cores in CORES:
        with session(cores) as spark:
            sources = _Sources(spark, snapshot, out)
            if cores == CORES[0]:
                rig.say("writing Parquet and JSON lines")
                sources.write()
            at = CORES.index(cores) * len(JOBS)
            for job, line, cost in zip(JOBS, rates[at:], costs[at:], strict=False):
                for source, number in _turns(job, rig.sizes.rounds):
                    rig.say(f"{line.what}: {source}")
                    seconds, cpu_seconds = _timed(job, sources.rows(source, job.columns), out / "scan")
                    if number or job.is_slow:  # the first of others starts workers and compiles
                        line.of(source).append(entries / seconds / 1e6)
                        cost.of(source).append(cpu_seconds / entries * 1e6)
            for source in SOURCES if cores == CORES[-1] else ():
                scanned.of(source).append(sources.scanned(source, entries) / entries * 100)
    _ask_redis(rig, entries, dict(zip([job.what for job in JOBS], rates, strict=False)))
    return Answer(
        f"Spark: a stream of {entries:,} entries of four fields",
        "spark.read.format('riverbed').schema(...).load(snapshot); redis-py: XRANGE events id + COUNT 1000",
        [*rates, *costs, scanned],
        (
            "Every query but the last is run once before it counts; JSON then has one round.",
            "CPU is that of the JVM and of all its Python workers.",
            "The ratio is Riverbed's number divided by Parquet's.",
        ),
        HEADINGS,
    )


def _rate_line(job: Job, cores: int) -> Line:
    return Line(f"{job.what}, local[{cores}]", "M entries/s", job.budget if cores == CORES[-1] else None)


def _turns(job: Job, rounds: int) -> Iterator[tuple[str, int]]:
    """-> (source, how often it has had its turn)"""
    for number in range(1 if job.is_slow else rounds + 1):
        for source in SOURCES if number < 2 else SOURCES[:2]:
            yield source, number


# -- data --------------------------------------------------------------------------------------------------------------


def _snapshot(rig: Rig, entries: int) -> Path:
    directory = rig.new_directory()
    with rig.server(Contender.RIVERBED, "everysec", directory) as server:
        rig.say(f"loading {entries:,} entries: Riverbed")
        load(server.port, entries)
        with server.client(timeout_s=600) as client:
            client.ask("RIVERBED", "SNAPSHOT")
    [snapshot] = list_snapshots(directory / SNAPSHOTS_DIRECTORY)
    assert snapshot.manifest.entries == entries
    return snapshot.path


class _Sources:
    """The same rows, three times."""

    def __init__(self, spark: SparkSession, snapshot: Path, directory: Path) -> None:
        self._spark = spark
        self._snapshot = snapshot
        self._parquet = directory / "rows.parquet"
        self._json = directory / "rows.json"

    def write(self) -> None:
        rows = self.rows("Riverbed", _COLUMNS)
        rows.write.parquet(str(self._parquet))
        rows.write.json(str(self._json))

    def rows(self, source: str, columns: str) -> DataFrame:
        if source == "Riverbed":
            return self._spark.read.format("riverbed").schema(columns).load(str(self._snapshot))
        names = [column.split(" ")[0] for column in columns.split(", ")]
        if source == "Parquet":
            return self._spark.read.parquet(str(self._parquet)).select(*names)
        return self._spark.read.schema(_COLUMNS).json(str(self._json)).select(*names)

    def scanned(self, source: str, entries: int) -> int:
        """Rows that leave the scan for a hundredth of the time."""
        first = FIRST_MS + entries // A_MS // 2
        rows = self.rows(source, "_ms bigint, action string")
        rows = rows.where(f"_ms >= {first} and _ms < {first + entries // A_MS // 100}")
        found = rows.collect()
        assert len(found) == entries // A_MS // 100 * A_MS, (source, len(found))
        scan: Any = rows._jdf.queryExecution().executedPlan().collectLeaves().head()
        return int(scan.metrics().apply("numOutputRows").value())


# -- Spark -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def session(cores: int, java_options: str = "") -> Iterator[SparkSession]:
    """Spark on so many cores of this machine, in a Java with these options, and the Python source beside it."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    sys.path.append(str(ROOT / "src"))
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


def _timed(job: Job, rows: DataFrame, out: Path) -> tuple[float, float]:
    """-> seconds, seconds of CPU of this process and all below it."""
    cpu = _cpu_seconds(os.getpid())
    begun = time.perf_counter()
    job.run(rows, out)
    return time.perf_counter() - begun, _cpu_seconds(os.getpid()) - cpu


def _cpu_seconds(pid: int) -> float:
    """Of a process and those below it, also those that have ended and were waited for."""
    total = 0.0
    with contextlib.suppress(OSError):
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total = sum(map(int, values[11:15])) / _TICKS
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                    total += _cpu_seconds(int(child))
    return total


# -- without -----------------------------------------------------------------------------------------------------------


def _ask_redis(rig: Rig, entries: int, lines: dict[str, Line]) -> None:
    """The same by redis-py, in one process: each is put beside Spark on one core."""
    with rig.server(Contender.REDIS, "everysec") as server:
        rig.say(f"loading {entries:,} entries: Redis")
        load(server.port, entries)
        client = redis.Redis(port=server.port)
        for what, work in _REDIS_JOBS.items():
            rig.say(f"{what}: redis-py")
            begun = time.perf_counter()
            counted = work(_all_of(client))
            assert counted == entries, (what, counted)
            lines[what].redis.append(entries / (time.perf_counter() - begun) / 1e6)


def _all_of(client: redis.Redis) -> Iterator[list[tuple[bytes, dict[bytes, bytes]]]]:
    at = b"-"
    while found := client.xrange(STREAM, at, "+", _XRANGE_COUNT):
        yield found
        at = b"(" + found[-1][0]


_Pages = Iterator[list[tuple[bytes, dict[bytes, bytes]]]]


def _count_them(pages: _Pages) -> int:
    return sum(map(len, pages))


def _group_them(pages: _Pages) -> int:
    actions: Counter[bytes] = Counter()
    for page in pages:
        actions.update([fields[b"action"] for _, fields in page])
    return actions.total()


def _sum_them(pages: _Pages) -> int:
    count, total = 0, 0.0
    for page in pages:
        total += sum([float(fields[b"amount"]) for _, fields in page])
        count += len(page)
    return count if total > 0 else 0


def _lists_of_them(pages: _Pages) -> int:
    names = [name.encode() for name in FIELDS]
    rows = 0
    for page in pages:
        columns = [[fields[name].decode() for _, fields in page] for name in names]
        rows += len(columns[0])
    return rows


_REDIS_JOBS: Final[dict[str, Callable[[_Pages], int]]] = {
    "count": _count_them,
    "group by": _group_them,
    "sum of one of two columns": _sum_them,
    "ID and all fields": _lists_of_them,
}
