from __future__ import annotations

from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from riverbed.tools.spark.reading.options import Table
from riverbed.tools.spark.reading.schemas import default_schema, warn_of_default_names
from tests.support.in_process import HandClock, Product
from tests.support.servers import RiverbedServer
from tests.tools.spark.stores import freeze, rows_read


def test_entries_are_what_xrange_answers(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for number in range(1000):
        client.xadd("events", {"n": number, b"\xff": bytes([number % 256])}, id=f"{1000 + number // 3}-{number}")
    client.save()

    rows = spark.read.format("riverbed").load(str(server.directory)).collect()

    answered = client.xrange("events")
    assert [row.id.encode() for row in rows] == [entry_id for entry_id, _ in answered]
    assert [row.fields for row in rows] == [{"n": fields[b"n"], "\\xff": fields[b"\xff"]} for _, fields in answered]
    assert [(row.ms, row.seq) for row in rows] == [(1000 + n // 3, n) for n in range(1000)]


def test_streams_side_by_side_do_not_mix(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for number in range(300):
        client.xadd(f"s{number % 4}", {"n": number}, id=f"{1 + number}-0")
    client.save()
    read = spark.read.format("riverbed").schema("_key string, _ms bigint, n int")

    for partitions in (1, 7, 50):
        rows = read.option("minPartitions", partitions).load(str(server.directory)).collect()
        assert sorted((row._key, row._ms, row.n) for row in rows) == sorted(
            (f"s{number % 4}", 1 + number, number) for number in range(300)
        )


def test_journals_of_writers_are_read_only_when_they_are_named(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for key in ("s", "riverbed:spark:job", "riverbed:spark:job:0"):
        product.run("XADD", key, "1-0", "n", 1)
    snapshot = freeze(product, tmp_path / "snapshot")

    for options, keys in (
        ({}, ["s"]),
        ({"streamPattern": "*"}, ["s"]),
        ({"streamPattern": "riverbed:spark:*"}, ["riverbed:spark:job", "riverbed:spark:job:0"]),
        ({"stream": "riverbed:spark:job"}, ["riverbed:spark:job"]),
    ):
        for table in (Table.ENTRIES, Table.STREAMS):
            assert sorted(row["key"] for row in rows_read(snapshot, table, **options)) == keys


def test_values_that_do_not_fit_are_dealt_with_as_the_mode_says(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for value in ("1", "x", "3"):
        client.xadd("s", {"n": value})
    client.save()
    read = spark.read.format("riverbed").schema("n int, _corrupt_record string")

    rows = read.load(str(server.directory)).collect()
    assert [row.n for row in rows] == [1, None, 3]
    assert [row._corrupt_record is not None for row in rows] == [False, True, False]
    rows = read.option("mode", "DROPMALFORMED").load(str(server.directory)).collect()
    assert [row.n for row in rows] == [1, 3]
    with pytest.raises(Exception, match="n is b'x', which is no int32"):
        read.option("mode", "FAILFAST").load(str(server.directory)).collect()


def test_a_filter_on_time_reads_only_what_it_asks_for(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for number in range(1, 200):
        client.xadd("s", {"n": number}, id=f"{1000 * number}-0")
    client.save()
    entries = spark.read.format("riverbed").load(str(server.directory))

    asked = entries.where("timestamp >= timestamp'1970-01-01 00:01:00Z' and ms < 70000 and key = 's'")
    assert [row.ms for row in asked.collect()] == [1000 * number for number in range(60, 70)]
    assert entries.where("id = '5000-0'").count() == 1
    assert entries.where("key = 'another'").count() == 0


def test_pending_groups_and_consumers_are_what_redis_commands_answer(
    spark: SparkSession, server: RiverbedServer
) -> None:
    client = redis.Redis(port=server.port)
    for number in range(10):
        client.xadd("s", {"n": number}, id=f"{1 + number}-0")
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "alice", {"s": ">"}, count=4)
    client.xreadgroup("g", "bob", {"s": ">"}, count=2)
    client.xdel("s", "2-0")
    client.save()
    read = spark.read.format("riverbed")

    pending = read.option("table", "pending").load(str(server.directory)).orderBy("ms").collect()
    assert [(row.id.encode(), row.consumer.encode(), row.deliveries) for row in pending] == [
        (each["message_id"], each["consumer"], each["times_delivered"])
        for each in client.xpending_range("s", "g", "-", "+", 100)
    ]
    assert [row.entry_exists for row in pending] == [True, False, True, True, True, True]
    [group] = read.option("table", "groups").load(str(server.directory)).collect()
    [answered] = client.xinfo_groups("s")
    assert (group.group, group.pending, group.lag, group.last_delivered_id) == (
        "g",
        answered["pending"],
        answered["lag"],
        answered["last-delivered-id"].decode(),
    )
    consumers = read.option("table", "consumers").load(str(server.directory)).orderBy("consumer").collect()
    assert [(row.consumer, row.pending) for row in consumers] == [("alice", 4), ("bob", 2)]
    [stream] = read.option("table", "streams").load(str(server.directory)).collect()
    assert (stream.key, stream.length, stream.max_deleted_id, stream.groups) == ("s", 9, "2-0", 1)


@pytest.mark.parametrize(
    ("options", "schema", "reason"),
    [
        ({"tabel": "entries"}, None, "there is no option 'tabel'"),
        ({"startingId": "1", "startingOffsets": "2"}, None, "only one of startingId and startingOffsets can be given"),
        ({"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "2"}, None, "only one of maxRowsPerTrigger and max"),
        ({"table": "entrys"}, None, "table must be one of entries, pending"),
        ({"startingId": "yesterday"}, None, "startingId must be an ID"),
        ({"startingId": "5-0", "endingId": "4-0"}, None, "ends before it begins"),
        ({"table": "groups", "startingId": "5-0"}, None, "a range of IDs is for the tables entries and pending"),
        ({"table": "streams", "startingOffsets": '{"0/s": "5-0"}'}, None, "a range of IDs is for the tables entries"),
        ({}, "_nothing string", "there is no column _nothing"),
        ({}, "_ms string", "_ms is bigint, and cannot be string"),
        ({}, "n array<int>", "a field cannot be read as"),
        ({"table": "groups"}, "nothing string", "table groups has no column nothing"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], schema: str | None, reason: str
) -> None:
    read = spark.read.format("riverbed").options(**options)
    if schema is not None:
        read = read.schema(schema)

    with pytest.raises(Exception, match=reason):
        read.load(str(tmp_path / "no such snapshot")).collect()


def test_a_path_without_a_snapshot_is_told(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no snapshot"):
        spark.read.format("riverbed").load(str(tmp_path / "nothing")).collect()


def test_sql_reads_by_a_view_and_a_table_says_so(spark: SparkSession, tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    product.run("XADD", "s", "1-0", "n", 7)
    snapshot = freeze(product, tmp_path / "snapshot")

    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW one (n int, _ms bigint) USING riverbed OPTIONS (path '{snapshot}')")
    assert spark.sql("SELECT n, _ms FROM one").collect() == [(7, 1)]
    with pytest.raises(
        Exception, match=r"CREATE TABLE keeps no path .*; take CREATE TEMPORARY VIEW name USING riverbed"
    ):
        spark.sql(f"CREATE TABLE two USING riverbed OPTIONS (path '{snapshot}')").collect()
    with pytest.raises(Exception, match=r"no path: .* in SQL CREATE TEMPORARY VIEW name USING riverbed"):
        spark.sql("CREATE OR REPLACE TEMPORARY VIEW three USING riverbed").collect()


@pytest.mark.parametrize(
    "schema", ["key string, id string", "id string", "timestamp timestamp, fields map<string,binary>"]
)
def test_a_schema_with_names_of_the_default_columns_is_warned_of(schema: str) -> None:
    parsed = StructType.fromDDL(schema)
    meant = ", ".join(f"_{name}" for name in parsed.fieldNames())

    with pytest.warns(UserWarning, match=f"are fields of the entries; what an entry itself has is in {meant}"):
        warn_of_default_names(parsed)


@pytest.mark.parametrize("schema", ["_key string, _id string", "id string, user string", "_id string, id string"])
def test_a_schema_with_a_name_of_its_own_is_not_warned_of(schema: str) -> None:
    warn_of_default_names(StructType.fromDDL(schema))
    warn_of_default_names(default_schema(Table.ENTRIES))
