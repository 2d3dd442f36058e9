from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession, functions

from riverbed.tools.spark.reading.options import Table
from tests.conftest import base_seed
from tests.support.in_process import HandClock, Product
from tests.support.servers import RiverbedServer
from tests.tools.spark.stores import Row, answers, comparable, freeze, parts, parts_in_turn, random_store, rows_read

# What no command answers, or only of the moment in which it is asked.
WITHOUT = ("snapshot", "bytes", "idle_ms", "inactive_ms")


@pytest.mark.parametrize("number", range(30))
def test_all_tables_of_a_random_store_are_what_commands_answer(tmp_path: Path, number: int) -> None:
    product = random_store(tmp_path / "data", base_seed() * 1000 + number)
    expected = answers(product)
    path = freeze(product, tmp_path / "snapshot")

    for table in Table:
        assert comparable(rows_read(path, table), *WITHOUT) == comparable(expected[table]), table
    # Streams one after the other, each in the order of IDs, without any sorting.
    for _, rows in itertools.groupby(rows_read(path), key=lambda row: (row["db"], row["key"])):
        together = list(rows)
        assert together == comparable(together)
    streams = [key for key, _ in itertools.groupby(rows_read(path), key=lambda row: (row["db"], row["key"]))]
    assert len(streams) == len(set(streams))


@pytest.mark.parametrize("split_every", [1, 10, 65_536])
def test_partitions_of_any_size_lose_and_repeat_nothing(tmp_path: Path, split_every: int) -> None:
    product = random_store(tmp_path / "data", base_seed() * 1000 + 500)
    for number in range(120):
        key = f"s{number % 3}"
        product.run("XADD", key, f"{1 + number}-{number}", "n", number)
        product.run("XGROUP", "CREATE", key, "g", 0) if number < 3 else None
    for number in range(60):
        product.run("XREADGROUP", "GROUP", "g", f"c{number % 4}", "COUNT", number % 3, "STREAMS", f"s{number % 3}", ">")
    for number in range(0, 120, 7):
        product.run("XDEL", f"s{number % 3}", f"{1 + number}-{number}")
    path = freeze(product, tmp_path / "snapshot", split_every)
    whole = {table: rows_read(path, table) for table in Table}
    assert len(whole[Table.ENTRIES]) > 100
    assert len(whole[Table.PENDING]) > 30

    for table in Table:
        for most in (1, 2, 3, 5, 11, 60):
            found = parts(path, table, maxRecordsPerPartition=most)
            rows = list(itertools.chain.from_iterable(found))
            assert comparable(rows) == comparable(whole[table]), (table, most)
            if table is Table.ENTRIES:
                assert rows == whole[table]
        for least in (2, 17, 300):
            assert comparable(rows_read(path, table, minPartitions=least)) == comparable(whole[table]), (table, least)


def test_streams_without_entries_join_no_partition_that_is_too_large(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(3):
        product.run("XGROUP", "CREATE", f"empty{number}", "g", 0, "MKSTREAM")
        for entry in range(100):
            product.run("XADD", f"s{number}", f"1-{1 + entry}", "n", entry)
    path = freeze(product, tmp_path / "snapshot")

    assert [len(rows) for rows in parts(path, maxRecordsPerPartition=40)] == 3 * [40, 40, 20]
    assert max(len(rows) for rows in parts(path, minPartitions=10)) == 30


def test_a_range_of_ids_is_what_xrange_answers(tmp_path: Path) -> None:
    product = random_store(tmp_path / "data", base_seed() * 1000 + 501, commands=400)
    expected = answers(product)[Table.ENTRIES]
    path = freeze(product, tmp_path / "snapshot", 4)
    ids = sorted({row["id"] for row in expected})

    for first, last in [(ids[0], ids[-1]), *itertools.product(ids[:4], ids[-4:]), ("0-1", "3"), ("3-1", "3-1")]:
        options = {"startingId": first, "endingId": last, "failOnDataLoss": "false"}
        if rows_bound(first) > rows_bound(last, whole=True):
            continue
        wanted = [row for row in expected if rows_bound(first) <= rows_bound(row["id"]) <= rows_bound(last, whole=True)]
        assert comparable(rows_read(path, **options), "snapshot") == comparable(wanted)
        assert comparable(rows_read(path, maxRecordsPerPartition=2, **options), "snapshot") == comparable(wanted)


def rows_bound(text: str, *, whole: bool = False) -> tuple[int, int]:
    ms, _, seq = text.partition("-")
    return int(ms), int(seq) if seq else (1 << 64) - 1 if whole else 0


def test_spark_shows_the_rows_of_random_stores_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    expected = {}
    for number in range(3):
        product = random_store(tmp_path / f"data-{number}", base_seed() * 1000 + 600 + number)
        expected[f"s{number}"] = answers(product)
        freeze(product, tmp_path / "snapshots" / f"s{number}", 5)

    for table in Table:
        read = spark.read.format("riverbed").option("table", table.value).option("minPartitions", 2)
        frame = read.load(str(tmp_path / "snapshots"))
        for name, kind in frame.dtypes:
            if kind == "timestamp":
                frame = frame.withColumn(name, functions.unix_millis(name))
        rows = [row.asDict() for row in frame.collect()]
        for name, tables in expected.items():
            of_one = [row for row in rows if row["snapshot"] == name]
            assert comparable(of_one, *WITHOUT) == comparable(tables[table]), (name, table)


def test_without_pushed_filters_spark_applies_them_itself(spark: SparkSession, tmp_path: Path) -> None:
    product = random_store(tmp_path / "data", base_seed() * 1000 + 700)
    expected = [row["id"] for row in answers(product)[Table.ENTRIES] if (row["ms"] or 0) < 8 and row["key"] == "a"]
    path = freeze(product, tmp_path / "snapshot")
    assert expected
    for setting in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", setting)
        rows = spark.read.format("riverbed").load(str(path)).where("ms < 8 and key = 'a'").collect()
        assert sorted(row.id for row in rows) == sorted(expected)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RiverbedServer]:
    with RiverbedServer(tmp_path / "data", tmp_path, {"appendfsync": "no"}) as server:
        yield server


def test_a_store_that_is_written_to_is_read_as_it_once_was(server: RiverbedServer) -> None:
    """A batch is written for each partition that is read, and while the next one is read: so fewer entries come than
    are read, however fast the one and the other are."""
    stop = threading.Event()
    allowed, written = threading.Semaphore(4), threading.Semaphore(0)

    def write() -> None:
        """One to `a` and then one to `b`, and so on: each moment of this is told apart by its lengths."""
        client = redis.Redis(port=server.port)
        numbers = itertools.count()
        while allowed.acquire() and not stop.is_set():
            with client.pipeline(transaction=False) as pipeline:
                for number in itertools.islice(numbers, 17):
                    pipeline.xadd("a", {"n": number}, id=f"{1 + number}-0")
                    pipeline.xadd("b", {"n": number}, id=f"{1 + number}-0")
                pipeline.execute()
            client.save()
            written.release()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        lengths = [0]
        for _ in range(5):
            assert written.acquire(timeout=60)
            rows: list[Row] = []
            for part in parts_in_turn(server.directory, maxRecordsPerPartition=50):
                rows += part
                allowed.release()
            found = {key: [int(row["fields"]["n"]) for row in rows if row["key"] == key] for key in ("a", "b")}
            assert found["a"] == list(range(len(found["a"])))
            assert found["b"] == found["a"][: len(found["b"])]
            assert 0 <= len(found["a"]) - len(found["b"]) <= 1
            lengths.append(len(rows))
        assert lengths == sorted(lengths)
        assert lengths[-1] > 2 * 17
    finally:
        stop.set()
        allowed.release()
        writer.join()
