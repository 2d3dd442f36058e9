from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from riverbed.store.snapshot.reader import Snapshot, open_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.columns.groups import CONSUMERS, GROUPS, PENDING
from riverbed.tools.columns.streams import key_text
from riverbed.tools.sidecar import segments, sidecar
from riverbed.tools.sidecar.sidecar import ColumnsError, fill_columns, stream_columns, table_columns, write_columns
from riverbed.tools.spark.columns import read_columns
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.reading.options import Table
from tests.support.store.stores import Store, sid
from tests.tools.spark.stores import answers, freeze, random_store

pytestmark = pytest.mark.once  # columns are never compiled


def row_hash(frame: DataFrame) -> tuple[int, int]:
    """The number of rows, and a sum of the hashes of whole rows."""
    with_rest = frame
    if "_rest" in frame.columns:
        with_rest = frame.withColumn("_rest", sql.sort_array(sql.map_entries("_rest")))
    names = ["`{}`".format(name.replace("`", "``")) for name in with_rest.columns]
    row = with_rest.select(sql.xxhash64(*names).cast("decimal(38,0)").alias("h"))
    found = row.agg(sql.count("*"), sql.sum("h")).collect()[0]
    return found[0], int(found[1] or 0)


def taken(folder: Path, value: bytes = b"x") -> Snapshot:
    """A snapshot whose stream has texts, bytes, fields that are missing, and names that get no column."""
    store = Store(folder / "store")
    stream = store.stream(b"orders", 2)
    for number in range(5000):
        words = [b"user", b"u%d" % (number % 50), b"raw", bytes([number % 256]), b"a `b`", value]
        words += [b"now and then", b"1", b"USER", b"2", b"\xff", b"3", rb"\xff", b"4"] if number % 5 == 0 else []
        stream.append_entry(sid(f"{1 + number // 3}-{number}"), words)
    store.commit()
    store.checkpoint()
    store.kill()
    return take_snapshot(folder / "store", program="test")


@pytest.mark.parametrize("name", ["my orders", "50%20", "a*b?c", "[ab]{c,d}", "back\\slash", "at 12:30"])
def test_a_snapshot_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    write_columns(open_snapshot(taken(tmp_path).path.rename(folder)))

    assert read_columns(spark, folder, "orders", db=2).count() == 5000


def test_columns_and_tables_have_equal_rows(spark: SparkSession, tmp_path: Path) -> None:
    snapshot = taken(tmp_path)
    with pytest.warns(UserWarning, match="has no columns; reading the tables") as caught:
        tables = read_columns(spark, snapshot.path, "orders", db=2)
    assert len(caught) == 1
    write_columns(snapshot)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = read_columns(spark, snapshot.path, "orders", db=2)
    assert is_parquet(columns)
    assert columns.dtypes == tables.dtypes
    expected = row_hash(tables)
    assert row_hash(columns) == expected
    assert expected[0] == 5000
    asked = "_ms between 100 and 200 and user = 'u7'"
    assert sorted(columns.where(asked).select("_id").collect()) == sorted(tables.where(asked).select("_id").collect())

    (file,) = stream_columns(open_snapshot(snapshot.path), 2, b"orders").files
    data = bytearray(file.read_bytes())
    data[500] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="is damaged"):
        again = read_columns(spark, snapshot.path, "orders", db=2)
    assert row_hash(again) == expected


def is_parquet(frame: DataFrame) -> bool:
    return "Parquet" in frame._jdf.queryExecution().toString()


def quietly(spark: SparkSession, snapshot: Snapshot, cache: Path) -> DataFrame:
    """The stream, read without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_columns(spark, snapshot.path, "orders", db=2, cache_directory=cache)


def files_in(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def over_tables(spark: SparkSession, snapshot: Snapshot) -> tuple[int, int]:
    with pytest.warns(UserWarning, match="has no columns; reading the tables"):
        return row_hash(read_columns(spark, snapshot.path, "orders", db=2))


def test_first_query_makes_columns_in_the_cache_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, cache = taken(tmp_path), tmp_path / "cache"
    before = files_in(snapshot.path)
    made: list[Path] = []

    def watched(of: Snapshot, folder: Path) -> None:
        made.append(folder)
        fill_columns(of, folder)

    monkeypatch.setattr("riverbed.tools.spark.reading.over_columns.fill_columns", watched)
    found = []
    for _ in range(2):
        frame = quietly(spark, snapshot, cache)
        assert is_parquet(frame)
        found.append(row_hash(frame))
    assert len(made) == 1 and not made[0].exists()
    assert files_in(snapshot.path) == before
    assert set(found) == {over_tables(spark, snapshot)}


def test_a_snapshot_that_takes_the_place_of_another_gets_its_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second = taken(tmp_path / "a"), taken(tmp_path / "b", b"y")
    one = row_hash(quietly(spark, first, cache))
    shutil.rmtree(first.path)
    second.path.rename(first.path)
    second = open_snapshot(first.path)
    two = row_hash(quietly(spark, second, cache))
    assert one != two == over_tables(spark, second)


def exchange(entry: Path, folder: Path) -> None:
    """Have the columns of another snapshot in a folder."""
    shutil.rmtree(entry)
    entry.mkdir()
    fill_columns(taken(folder / "other", b"y"), entry)


WRONG: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "half of the files": (lambda entry, folder: shutil.rmtree(entry / "streams"), "damaged"),
    "no manifest": (lambda entry, folder: (entry / "manifest.json").unlink(), "manifest is missing"),
    "another snapshot": (exchange, "another snapshot"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_columns_in_the_cache_are_refused(spark: SparkSession, tmp_path: Path, what: str) -> None:
    snapshot, cache = taken(tmp_path), tmp_path / "cache"
    quietly(spark, snapshot, cache)
    (entry,) = (path for path in cache.iterdir() if not path.name.startswith("."))
    change, reason = WRONG[what]
    change(entry, tmp_path)
    with pytest.warns(UserWarning, match=reason) as caught:
        frame = read_columns(spark, snapshot.path, "orders", db=2, cache_directory=cache)
    assert len(caught) == 1 and not is_parquet(frame)
    assert row_hash(frame) == over_tables(spark, snapshot)


def test_columns_of_another_version_are_not_looked_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, cache = taken(tmp_path), tmp_path / "cache"
    expected = row_hash(quietly(spark, snapshot, cache))
    monkeypatch.setattr("riverbed.tools.spark.reading.over_columns.VERSION", 3)
    monkeypatch.setattr(sidecar, "VERSION", 3)
    assert row_hash(quietly(spark, snapshot, cache)) == expected
    assert len([path for path in cache.iterdir() if not path.name.startswith(".")]) == 2


def test_columns_that_cannot_be_made_leave_nothing_in_the_cache(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, cache = taken(tmp_path), tmp_path / "cache"

    def full(of: Snapshot, folder: Path) -> None:
        (folder / "streams").mkdir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("riverbed.tools.spark.reading.over_columns.fill_columns", full)
        with pytest.warns(UserWarning, match="No space left on device; reading the tables") as caught:
            frame = read_columns(spark, snapshot.path, "orders", db=2, cache_directory=cache)
    assert len(caught) == 1
    assert not [path for path in cache.iterdir() if not path.name.startswith(".lock")]
    assert row_hash(frame) == row_hash(quietly(spark, snapshot, cache))


def test_damaged_columns_of_the_snapshot_are_not_made_again_in_the_cache(spark: SparkSession, tmp_path: Path) -> None:
    snapshot, cache = taken(tmp_path), tmp_path / "cache"
    (write_columns(snapshot) / "manifest.json").write_bytes(b"{\n")
    with pytest.warns(UserWarning, match="is damaged") as caught:
        frame = read_columns(spark, snapshot.path, "orders", db=2, cache_directory=cache)
    assert len(caught) == 1 and not is_parquet(frame)
    assert not list(cache.iterdir())


def test_a_cache_of_another_user_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = taken(tmp_path)
    monkeypatch.setattr("os.getuid", lambda: 54_321)
    with pytest.raises(SourceError, match="choose another cacheDirectory"):
        read_columns(spark, snapshot.path, "orders", db=2, cache_directory=tmp_path)


# -- what holds over the tables holds over the columns -----------------------------------------------------------------

FORMS = {"columns": True, "tables": False}


def fields_of(row: Row) -> dict[str, bytes]:
    """The fields of a row by name, from their columns and from `_rest`."""
    values = row.asDict()
    found = {name: value for name, value in values.items() if not name.startswith("_") and value is not None}
    return {name: value.encode() if isinstance(value, str) else bytes(value) for name, value in found.items()} | {
        name: bytes(value) for name, value in values["_rest"].items()
    }


@pytest.mark.filterwarnings("ignore:.*reading the tables")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_random_streams_have_the_rows_that_xrange_answers(
    spark: SparkSession, tmp_path: Path, seed: int, form: str
) -> None:
    product = random_store(tmp_path / "data", seed)
    expected: dict[tuple[int, str], dict[str, dict[str, bytes]]] = {}
    for row in answers(product)[Table.ENTRIES]:
        expected.setdefault((row["db"], row["key"]), {})[row["id"]] = row["fields"]
    snapshot = open_snapshot(freeze(product, tmp_path / "snapshot"))
    if FORMS[form]:
        write_columns(snapshot)
    found = {}
    for stream in snapshot.streams():
        if stream.length:
            frame = read_columns(spark, snapshot.path, stream.key, db=stream.db)
            assert is_parquet(frame) == FORMS[form]
            rows = frame.collect()
            found[stream.db, key_text(stream.key)] = {row["_id"]: fields_of(row) for row in rows}
            assert [row["_id"] for row in rows] == list(found[stream.db, key_text(stream.key)])
    assert expected and found == expected


TABLES = {"groups": GROUPS, "consumers": CONSUMERS, "pending": PENDING}


@pytest.mark.parametrize("table", TABLES)
def test_groups_consumers_and_pending_entries_are_those_of_the_tables(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    for seed in range(2):
        snapshot = open_snapshot(freeze(random_store(tmp_path / f"data{seed}", seed), tmp_path / f"snapshot{seed}"))
        write_columns(snapshot)
        file = table_columns(snapshot, table)
        schema = from_arrow_schema(TABLES[table])
        expected = spark.read.format("riverbed").schema(schema).option("table", table).load(str(snapshot.path))
        found = spark.read.parquet(file.as_uri())
        assert found.dtypes == expected.dtypes
        assert row_hash(found) == row_hash(expected)
        rows = pq.read_table(file).to_pylist()
        assert len(rows) == expected.count() > 0
        assert pl.read_parquet(file).rows(named=True) == rows
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            assert connection.sql(f"select * from '{file}'").to_arrow_table().to_pylist() == rows


def test_damaged_tables_of_groups_are_refused(tmp_path: Path) -> None:
    snapshot = taken(tmp_path)
    write_columns(snapshot)
    file = table_columns(snapshot, "pending")
    data = bytearray(file.read_bytes())
    data[9] ^= 1
    file.write_bytes(data)
    with pytest.raises(ColumnsError, match="is damaged"):
        table_columns(snapshot, "pending")
    file.unlink()
    with pytest.raises(ColumnsError, match="is damaged"):
        table_columns(snapshot, "pending")
    assert stream_columns(snapshot, 2, b"orders").entries == 5000


ASKED = [
    "true",
    "_ms between 10 and 20",
    "_ms = 12 and _seq > 34",
    "_ms > 100000",
    "_id = '5-14'",
    "user = 'u7' and _ms < 900",
    "user in ('u1', 'u2')",
    "raw = X'ff'",
    "raw < X'05'",
    "`a ``b``` is null",
    "`now and then` is null",
    "`now and then` is not null and _ms % 7 = 1",
    "_rest['USER'] = X'32'",
    "size(_rest) = 0",
]


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, DataFrame]:
    """The same rows over columns of several row groups, and over tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_ROW_GROUP", 700)
        snapshot = taken(tmp_path_factory.mktemp("both"))
        with pytest.warns(UserWarning, match="reading the tables"):
            tables = read_columns(spark, snapshot.path, "orders", db=2)
        write_columns(snapshot)
    return read_columns(spark, snapshot.path, "orders", db=2), tables


@pytest.mark.parametrize("asked", ASKED)
def test_filters_and_pruned_columns_give_equal_rows(both: tuple[DataFrame, DataFrame], asked: str) -> None:
    columns, tables = (frame.where(asked) for frame in both)
    assert row_hash(columns) == row_hash(tables)
    for pruned in (["_id"], ["raw", "_ms"], ["user", "_rest"]):
        assert row_hash(columns.select(*pruned)) == row_hash(tables.select(*pruned))
    assert columns.count() == tables.count()


@pytest.fixture
def small_splits(spark: SparkSession) -> Iterator[None]:
    """Spark cuts files into as small parts as it can."""
    names = ["spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes"]
    before = [spark.conf.get(name) for name in names]
    for name, value in zip(names, ("10000", "0"), strict=True):
        spark.conf.set(name, value)
    yield
    for name, value in zip(names, before, strict=True):
        spark.conf.set(name, str(value))


def test_each_row_is_in_one_split(spark: SparkSession, both: tuple[DataFrame, DataFrame], small_splits: None) -> None:
    (file,) = both[0].inputFiles()
    cut = spark.read.parquet(file)
    assert cut._jdf.rdd().getNumPartitions() > 3
    assert row_hash(cut) == row_hash(both[1])
    number = sql.spark_partition_id().alias("n")
    assert cut.select(number).distinct().count() > 1
