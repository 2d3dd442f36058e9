from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import DoubleType, StructField, StructType

from riverbed.store.snapshot.reader import Snapshot, open_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.sidecar import segments
from riverbed.tools.sidecar.sidecar import write_columns
from riverbed.tools.spark.errors import MalformedValueError, SourceError
from riverbed.tools.spark.reading import over_columns, schemas
from riverbed.tools.spark.reading.batch import SnapshotReader
from riverbed.tools.spark.reading.cache import Cache
from riverbed.tools.spark.reading.options import read_options
from riverbed.tools.spark.reading.plan import Span
from riverbed.tools.spark.streaming.streaming import EntryStreamReader
from tests.conftest import base_seed
from tests.support.store.stores import Store, sid
from tests.tools.spark.queries import read_all
from tests.tools.spark.reading.test_cache import let_go
from tests.tools.spark.stores import freeze, random_store

pytestmark = pytest.mark.once  # columns are never compiled

IDS = "_key string, _key_binary binary, _db int, _id string, _ms bigint, _seq bigint, _snapshot string"
SCHEMA = "_id string, user string, amount double, raw binary, maybe int, no_such_field string"
Rows = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size are worth it, and have several row groups."""
    monkeypatch.setattr(over_columns, "_MIN_ROWS_A_FILE", 0)
    monkeypatch.setattr(segments, "_ROW_GROUP", 700)
    monkeypatch.setattr(segments, "_MAX_ENTRIES", 2000)


@pytest.fixture
def columns_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each partition that was read from columns."""
    read: list[int] = []
    rows_of = over_columns.rows_of

    def watched(*given: Any, **options: Any) -> Any:
        read.append(len(read))
        return rows_of(*given, **options)

    monkeypatch.setattr(over_columns, "rows_of", watched)
    return read


def parts(path: Path, schema: str, **options: object) -> list[Rows]:
    """The rows of each partition, without Spark."""
    asked = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    reader = SnapshotReader(read_options(asked), _struct(schema))
    return [[row for batch in reader.read(partition) for row in _tuples(batch)] for partition in reader.partitions()]


def _struct(text: str) -> StructType:
    """A schema, without a session."""
    types = schemas._TYPES | {"double": DoubleType()}
    return StructType([StructField(name, types[kind]) for name, kind in (each.split(" ") for each in text.split(", "))])


def _tuples(batch: pa.RecordBatch) -> Rows:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def both(path: Path, schema: str, **options: object) -> tuple[list[Rows], list[Rows]]:
    return parts(path, schema, **options), parts(path, schema, columns="ignore", **options)


def taken(folder: Path, entries: int = 9000, value: bytes = b"x") -> Snapshot:
    """A snapshot of two streams, with columns.  Fields are missing, there twice, or do not fit their columns."""
    store = Store(folder / "store")
    for key in (b"orders", b"\xfe other"):
        stream = store.stream(key, 2)
        for number in range(entries):
            amount = b"no number" if number % 97 == 5 else b"%d.25" % (number % 50)
            words = [
                b"user",
                b"u%d" % (number % 50),
                b"raw",
                bytes([number % 256]),
                b"amount",
                b"old",
                b"amount",
                amount,
            ]
            words += [b"maybe", b"%d" % number, b"USER", b"2", b"\xff", b"3", b"x", value] if number % 5 == 0 else []
            stream.append_entry(sid(f"{1 + number // 3}-{number}"), words)
        store.commit()
    store.checkpoint()
    store.kill()
    snapshot = take_snapshot(folder / "store", program="test", split_every=1000)
    write_columns(snapshot)
    return snapshot


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_ROW_GROUP", 700)
        patch.setattr(segments, "_MAX_ENTRIES", 2000)
        yield taken(tmp_path_factory.mktemp("taken"))


# -- equal rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(15))
def test_random_stores_have_equal_rows_in_the_same_order(tmp_path: Path, number: int, columns_read: list[int]) -> None:
    chance = random.Random(number)
    path = freeze(random_store(tmp_path / "data", base_seed() * 1000 + number), tmp_path / "snapshot", 5)
    manifest = json.loads((write_columns(open_snapshot(path)) / "manifest.json").read_text())
    found = {name for stream in manifest["streams"] for name, _ in stream["columns"]}
    # Words of the scripts that are no names of fields give columns of nulls.
    names = [name for name in sorted(found | {"f", "field", "nothing"}) if name.isidentifier()]
    schema = ", ".join([IDS, *(f"{name} {chance.choice(('string', 'binary', 'double', 'bigint'))}" for name in names)])
    for options in ({}, {"maxRecordsPerPartition": 3}, {"minPartitions": 7}, {"startingId": "0-1"}, {"db": 1}):
        options = {"failOnDataLoss": "false", **options}
        columns, tables = both(path, schema, **options)
        assert columns == tables, options
    assert columns_read


@pytest.mark.parametrize(
    "schema", [SCHEMA, f"{IDS}, USER string", "_seq bigint", "_key string", "raw string", "_timestamp timestamp"]
)
@pytest.mark.parametrize("options", [{}, {"maxRecordsPerPartition": 333}, {"minPartitions": 40}, {"batchRows": 17}])
def test_partitions_of_any_size_have_equal_rows(
    snapshot: Snapshot, schema: str, options: dict[str, object], columns_read: list[int]
) -> None:
    columns, tables = both(snapshot.path, schema, **options)
    assert columns == tables and sum(map(len, columns)) == 18_000
    assert len(columns_read) == len(columns)


@pytest.mark.parametrize("first", ["0", "234-700", "667", "667-2001", "2500-3"])
@pytest.mark.parametrize("last", ["667-1999", "667", "2400-7199", "9999"])
def test_ranges_of_ids_have_equal_rows(snapshot: Snapshot, first: str, last: str, columns_read: list[int]) -> None:
    if int(first.split("-")[0]) > int(last.split("-")[0]) or (first, last) == ("667-2001", "667-1999"):
        return
    options = {"startingId": first, "endingId": last, "failOnDataLoss": "false", "streams": "orders"}
    columns, tables = both(snapshot.path, "_id string, user string", **options)
    assert list(itertools.chain(*columns)) == list(itertools.chain(*tables))
    assert columns_read


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_values_that_do_not_fit_are_handled_equally(snapshot: Snapshot, mode: str, columns_read: list[int]) -> None:
    columns, tables = both(snapshot.path, SCHEMA, mode=mode)
    assert columns == tables and columns_read
    assert (None in [row[2] for part in columns for row in part]) == (mode == "PERMISSIVE")


def test_the_first_value_that_does_not_fit_is_named_equally(snapshot: Snapshot, columns_read: list[int]) -> None:
    told = []
    for columns in ("read", "ignore"):
        with pytest.raises(MalformedValueError, match="is b'no number', which is no double") as caught:
            parts(snapshot.path, "amount double", mode="FAILFAST", columns=columns)
        told.append(str(caught.value))
    assert told[0] == told[1] and "entry 2-5 of stream orders" in told[0] and columns_read


@pytest.mark.parametrize(
    "schema",
    [
        "_fields map<string,binary>",
        "user string, _items array<struct<name:binary,value:binary>>",
        "amount double, _corrupt_record string",
    ],
)
def test_what_columns_do_not_have_is_read_from_tables(snapshot: Snapshot, schema: str, columns_read: list[int]) -> None:
    columns, tables = both(snapshot.path, schema)
    assert columns == tables and not columns_read


def test_ids_beyond_signed_numbers_are_equal(tmp_path: Path, columns_read: list[int]) -> None:
    store = Store(tmp_path / "store")
    stream = store.stream(b"s", 0)
    ids = ["1-5", "1-9223372036854775807", "1-9223372036854775808", "1-18446744073709551615", "9223372036854775807-0"]
    ids += ["9223372036854775808-0", "18446744073709551615-18446744073709551615"]
    for entry_id in ids:
        stream.append_entry(sid(entry_id), [b"f", entry_id.encode()])
    store.commit()
    store.checkpoint()
    store.kill()
    snapshot = take_snapshot(tmp_path / "store", program="test")
    write_columns(snapshot)
    for first in ids:
        for last in ids[ids.index(first) :]:
            asked = {"startingId": first, "endingId": last, "failOnDataLoss": "false"}
            columns, tables = both(
                snapshot.path, "_id string, _ms bigint, _seq bigint, _timestamp timestamp, f string", **asked
            )
            assert columns == tables and sum(map(len, columns)) == ids.index(last) - ids.index(first) + 1
    assert columns_read


def test_many_short_streams_are_read_from_tables(
    tmp_path: Path, columns_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_columns, "_MIN_ROWS_A_FILE", 2000)
    few = taken(tmp_path, 300)
    columns, tables = both(few.path, SCHEMA)
    assert columns == tables and not columns_read


# -- columns that are not what they should be --------------------------------------------------------------------------


def _file(snapshot: Snapshot) -> Path:
    return sorted((snapshot.path / "columns").rglob("streams/*/*.parquet"))[1]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / f"{path.name}.moved"))


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Snapshot], None]:
    def write(snapshot: Snapshot) -> None:
        path = snapshot.path / "columns" / "manifest.json"
        values = json.loads(path.read_text())
        del values["crc32c"]
        change(values)
        text = json.dumps(values, indent=1).encode().removesuffix(b"\n}")
        path.write_bytes(text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text))

    return write


def _of_another(snapshot: Snapshot) -> None:
    other = taken(snapshot.path.parent / "other", value=b"y")
    shutil.rmtree(snapshot.path / "columns")
    (other.path / "columns").rename(snapshot.path / "columns")


WRONG: dict[str, tuple[Callable[[Snapshot], object], str]] = {
    "a flipped bit": (lambda snapshot: _flip(_file(snapshot)), "is damaged"),
    "a file is missing": (lambda snapshot: _file(snapshot).unlink(), "is damaged"),
    "a file is cut": (lambda snapshot: _file(snapshot).write_bytes(_file(snapshot).read_bytes()[:-9]), "is damaged"),
    "an empty folder": (
        lambda snapshot: (shutil.rmtree(snapshot.path / "columns"), (snapshot.path / "columns").mkdir()),
        "manifest is missing",
    ),
    "a link": (lambda snapshot: _link(_file(snapshot)), "is a link|is no file|damaged"),
    "a manifest that is a link": (lambda snapshot: _link(snapshot.path / "columns" / "manifest.json"), "cannot read"),
    "a damaged manifest": (lambda snapshot: _flip(snapshot.path / "columns" / "manifest.json"), "is damaged"),
    "another version": (_manifest(lambda values: values.update(version=3)), "version 3; this program reads"),
    "another format": (_manifest(lambda values: values.update(format="else")), "is else version"),
    "another snapshot": (_of_another, "belongs to another snapshot"),
    "a name elsewhere": (
        _manifest(lambda values: values["streams"][0]["files"][0].update(name="../../x.parquet")),
        "does not decode",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_columns_are_not_read_and_one_warning_says_so(tmp_path: Path, what: str, columns_read: list[int]) -> None:
    snapshot = taken(tmp_path)
    expected = parts(snapshot.path, SCHEMA, columns="ignore")
    change, reason = WRONG[what]
    change(snapshot)
    with pytest.warns(UserWarning, match=f"{reason}.*; reading the tables") as caught:
        assert parts(snapshot.path, SCHEMA, minPartitions=5) != []
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=reason):
        assert parts(snapshot.path, SCHEMA) == expected
    assert not columns_read


FORGED: dict[str, Callable[[pa.Table], pa.Table]] = {
    "fewer rows": lambda rows: rows.slice(1),
    "another type": lambda rows: rows.set_column(0, "_ms", rows.column("_ms").cast(pa.float64())),
    "a column less": lambda rows: rows.drop_columns(["_seq"]),
}


@pytest.mark.parametrize("what", FORGED)
def test_columns_that_are_forged_together_with_their_manifest_are_told(tmp_path: Path, what: str) -> None:
    snapshot = taken(tmp_path)
    path = min((snapshot.path / "columns").rglob("streams/*/*.parquet"))
    pq.write_table(FORGED[what](pq.read_table(path)), path)
    data = path.read_bytes()

    def fit(values: dict[str, Any]) -> None:
        for file in (file for stream in values["streams"] for file in stream["files"]):
            if path.match(file["name"]):
                file.update(bytes=len(data), crc32c=f"{crc32c(data):08x}")

    _manifest(fit)(snapshot)
    with pytest.raises(SourceError, match="does not have the rows and columns that its manifest says"):
        parts(snapshot.path, SCHEMA)


def test_columns_that_are_damaged_after_the_plan_are_not_read(tmp_path: Path, columns_read: list[int]) -> None:
    snapshot = taken(tmp_path)
    expected = parts(snapshot.path, SCHEMA, columns="ignore", minPartitions=6)
    reader = SnapshotReader(read_options({"path": str(snapshot.path), "minPartitions": "6"}), _struct(SCHEMA))
    planned = reader.partitions()
    _flip(_file(snapshot))
    with pytest.warns(UserWarning, match="is damaged.*; reading the tables"):
        found = [[row for batch in reader.read(part) for row in _tuples(batch)] for part in planned]
    assert found == expected
    assert columns_read  # those whose files are whole


def test_a_damaged_file_outside_of_the_range_is_not_looked_at(tmp_path: Path, columns_read: list[int]) -> None:
    snapshot = taken(tmp_path)
    _flip(_file(snapshot))
    asked = {"startingId": "2500", "failOnDataLoss": "false"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns, tables = both(snapshot.path, SCHEMA, **asked)
    assert columns == tables and columns_read


def test_damaged_tables_are_an_error_over_columns_too(tmp_path: Path) -> None:
    snapshot = taken(tmp_path)
    _flip(snapshot.path / "data.mdb")
    with pytest.raises(Exception, match="damaged snapshot"):
        parts(snapshot.path, SCHEMA)


# -- with Spark --------------------------------------------------------------------------------------------------------


def row_hash(frame: DataFrame) -> tuple[int, int]:
    hashes = frame.select(sql.xxhash64(*frame.columns).cast("decimal(38,0)").alias("h"))
    found = hashes.agg(sql.count("*"), sql.sum("h")).collect()[0]
    return found[0], int(found[1] or 0)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Of a size that is worth it in other processes, which know nothing of what is patched here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_ROW_GROUP", 2500)
        patch.setattr(segments, "_MAX_ENTRIES", 5000)
        return taken(tmp_path_factory.mktemp("large"), 12_000)


def read(spark: SparkSession, snapshot: Snapshot, schema: str, **options: str) -> DataFrame:
    return spark.read.format("riverbed").schema(schema).options(**options).load(str(snapshot.path))


@pytest.mark.parametrize(
    "where",
    [
        "true",
        "_ms between 100 and 900",
        "_timestamp > timestamp_millis(3000)",
        "_key = 'orders' and user = 'u7'",
        "_id = '5-14'",
    ],
)
def test_spark_reads_equal_rows(spark: SparkSession, large: Snapshot, where: str) -> None:
    schema = f"{IDS}, _timestamp timestamp, user string, amount double, raw binary, maybe bigint, USER2 string"
    planned = SnapshotReader(read_options({"path": str(large.path)}), _struct("user string")).partitions()
    assert all(part.place.columns for part in planned if isinstance(part, Span))
    columns = read(spark, large, schema).where(where)
    tables = read(spark, large, schema, columns="ignore").where(where)
    found = row_hash(columns)
    assert found == row_hash(tables) and found[0]


def test_a_stream_of_snapshots_reads_each_entry_once_over_columns_and_tables_in_turn(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    hashes = {}
    for hour in range(4):
        store = Store(tmp_path / "store")
        stream = store.stream(b"orders", 0)
        for number in range(hour * 4000, hour * 4000 + 4000):
            words = [b"user", b"u%d" % (number % 9), b"amount", b"%d" % number, b"raw", bytes([number % 256])]
            stream.append_entry(sid(f"{1 + number}-0"), words)
        store.commit()
        store.checkpoint()
        store.kill()
        snapshot = take_snapshot(store.directory, folder / f"hour{hour}", program="test")
        if hour != 1:
            write_columns(snapshot)
        if hour == 2:
            _flip(max((snapshot.path / "columns").rglob("streams/*/*.parquet")))
        for columns in ("read", "ignore"):
            options = {"columns": columns, "maxRowsPerTrigger": "3000"}
            schema = "_key string, _id string, user string, amount double, raw binary"
            batches = read_all(spark, folder, tmp_path / columns, schema, **options)
            assert sum(progress["numInputRows"] for progress in batches) == 4000
    for columns in ("read", "ignore"):
        rows = spark.read.parquet(str(tmp_path / columns / "sink"))
        assert rows.select("_id").distinct().count() == 16_000
        hashes[columns] = row_hash(rows)
    assert hashes["read"] == hashes["ignore"] and hashes["read"][0] == 16_000


def test_the_tasks_of_a_stream_read_columns(large: Snapshot, columns_read: list[int]) -> None:
    found = {}
    for columns in ("read", "ignore"):
        options = read_options({"path": str(large.path.parent), "columns": columns, "maxRecordsPerPartition": "7000"})
        reader = EntryStreamReader(options, _struct("_id string, user string, raw binary"))
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20_000))
        parts = reader.partitions(reader.initialOffset(), end)
        found[columns] = [row for part in parts for batch in reader.read(part) for row in _tuples(batch)]
        assert len(columns_read) == (len(parts) if columns == "read" else 0) and len(parts) > 1
        columns_read.clear()
    assert found["read"] == found["ignore"] and len(found["read"]) > 15_000


def test_columns_are_made_in_the_cache_when_they_are_asked_for(
    spark: SparkSession, large: Snapshot, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(large.path, bare, ignore=shutil.ignore_patterns("columns"))
    snapshot, cache = open_snapshot(bare), tmp_path / "cache"
    expected = row_hash(read(spark, snapshot, SCHEMA))
    made = []
    for _ in range(2):
        assert row_hash(read(spark, snapshot, SCHEMA, columns="make", cacheDirectory=str(cache))) == expected
        made.append([(path, path.stat().st_ino) for path in sorted(cache.rglob("*.parquet"))])
    assert made[0] and made[0] == made[1]
    assert not (bare / "columns").exists()


def test_columns_in_the_cache_stay_while_they_are_read(snapshot: Snapshot, tmp_path: Path) -> None:
    bare, cache = tmp_path / "bare", tmp_path / "cache"
    shutil.copytree(snapshot.path, bare, ignore=shutil.ignore_patterns("columns"))
    asked = {"path": str(bare), "columns": "make", "cacheDirectory": str(cache), "verify": "never"}
    reader = SnapshotReader(read_options(asked), _struct("_id string, user string"))
    partitions = reader.partitions()
    let_go()  # the process that has planned it ends
    assert partitions[0].place.columns is not None
    folder = Path(partitions[0].place.columns)
    rows = 0
    for partition in partitions:
        for batch in reader.read(partition):
            os.utime(folder, (time.time() - 9000,) * 2)
            Cache(str(cache), 0).evict()
            rows += batch.num_rows
    assert folder.exists() and rows == 18_000
    let_go()
    Cache(str(cache), 0).evict()
    assert not folder.exists()
