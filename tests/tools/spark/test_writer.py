from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema

from tests.proxy import Proxy
from tests.servers import RedisServer, RiverbedServer
from tools.redisclient import Address
from tools.spark.errors import OptionError, SourceError
from tools.spark.writeidentity import Counts, Names
from tools.spark.writejournal import Attempt, Job, commit
from tools.spark.writeoptions import WriteOptions, write_options
from tools.spark.writerows import Entry, row_maker
from tools.spark.writeserver import Connection, Sender, require_idempotence


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RiverbedServer]:
    directory = tmp_path_factory.mktemp("writer")
    with RiverbedServer(directory / "data", directory, {"appendfsync": "no"}) as server:
        yield server


@pytest.fixture
def client(server: RiverbedServer) -> redis.Redis:
    client = redis.Redis(port=server.port)
    client.flushall()
    return client


def entries_of(client: redis.Redis, key: str) -> list[dict[bytes, bytes]]:
    return [fields for _, fields in client.xrange(key)]


def options_for(port: int, **more: Any) -> WriteOptions:
    return WriteOptions(server=Address("127.0.0.1", port), retries=3, **more)


def some_entries(count: int) -> list[Entry]:
    return [Entry(b"s", None, [b"n", b"%d" % (number // 2)]) for number in range(count)]


# -- rows to entries ---------------------------------------------------------------------------------------------------


ITEMS = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))


def rows_of(rows: list[dict[str, Any]], schema: list[tuple[str, Any]], stream: bytes | None = None) -> list[Entry]:
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(schema))
    maker = row_maker(from_arrow_schema(batch.schema), stream)
    # Slices have offsets of their own, and a writer cuts batches into slices.
    return [entry for at in range(batch.num_rows) for entry in maker.entries(batch.slice(at, 1))]


def test_a_map_gives_the_fields_and_nulls_are_left_out() -> None:
    rows = [
        {"key": "a", "id": "5-1", "fields": [("x", b"\xff\x00"), ("y", None)]},
        {"key": "b", "id": None, "fields": [("", b"")]},
    ]

    assert rows_of(
        rows, [("key", pa.string()), ("id", pa.string()), ("fields", pa.map_(pa.string(), pa.binary()))]
    ) == [
        Entry(b"a", b"5-1", [b"x", b"\xff\x00"]),
        Entry(b"b", None, [b"", b""]),
    ]


def test_items_give_names_that_come_twice_and_are_not_text() -> None:
    items = [{"name": b"\xff", "value": b"1"}, {"name": b"\xff", "value": b"2"}]

    assert rows_of([{"key": b"\xfe", "items": items}], [("key", pa.binary()), ("items", ITEMS)]) == [
        Entry(b"\xfe", None, [b"\xff", b"1", b"\xff", b"2"])
    ]


def test_with_a_column_that_is_called_as_a_reader_calls_it_the_plain_name_is_a_field() -> None:
    schema = [("_key", pa.string()), ("_id", pa.string()), ("key", pa.string()), ("id", pa.int32())]

    assert rows_of([{"_key": "s", "_id": "5-0", "key": "k", "id": 7}], schema) == [
        Entry(b"s", b"5-0", [b"key", b"k", b"id", b"7"])
    ]


def test_fields_that_are_no_map_are_a_field() -> None:
    assert rows_of([{"fields": "x", "items": 2}], [("fields", pa.string()), ("items", pa.int64())], b"s") == [
        Entry(b"s", None, [b"fields", b"x", b"items", b"2"])
    ]


@pytest.mark.parametrize(
    ("schema", "stream", "reason"),
    [
        ([("n", pa.int32())], None, "no stream: give option stream, or a column key"),
        ([("key", pa.string()), ("n", pa.int32())], b"s", "both a column key and option stream"),
        ([("key", pa.int32()), ("n", pa.int32())], None, "key is int, and must be string or binary"),
        ([("id", pa.int64()), ("n", pa.int32())], b"s", "id is bigint, and IDs of entries are texts"),
        ([("n", pa.list_(pa.int32()))], b"s", r"take to_json\(n\)"),
        ([("_ms", pa.int64())], b"s", "names with an underscore are about the entry"),
        ([("_fields", pa.int32())], b"s", "_fields is int, and must be a map"),
        ([("items", ITEMS), ("n", pa.int32())], b"s", "beside items, which has all fields, there are n"),
        ([("key", pa.string())], None, "no column to make fields of"),
    ],
)
def test_a_schema_that_makes_no_entries_is_told(
    schema: list[tuple[str, Any]], stream: bytes | None, reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        rows_of([], schema, stream)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": "5-0", "n": "x"}, "a row without a key: n x"),
        ({"key": "s", "id": "yesterday", "n": "x"}, "'yesterday' is no ID of an entry, such as"),
        ({"key": "s", "id": "0-0", "n": "x"}, "'0-0' is no ID of an entry"),
        ({"key": "s"}, "a row for stream s has no field"),
    ],
)
def test_a_row_that_is_no_entry_is_told(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        rows_of([row], [("key", pa.string()), ("id", pa.string()), ("n", pa.string())])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "say where to write"),
        ({"server": "h:1", "path": "/x"}, "not both"),
        ({"server": "somewhere"}, "server must be host:port"),
        ({"server": "h:70000"}, "not a number up to 65535"),
        ({"server": "redis://h:1/3"}, "name the database with option db"),
        ({"server": "h:1", "sream": "s"}, "there is no option 'sream'"),
        ({"server": "h:1", "user": "u"}, "a user without a password"),
        ({"server": "h:1", "jobId": "a b"}, "jobId must be printable"),
        ({"path": "/x", "jobId": "a"}, "jobId is for a server"),
        ({"server": "h:1", "retries": "-1"}, "retries must be a number from 0 to 1000"),
    ],
)
def test_an_option_that_cannot_be_is_told(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        write_options(given)


# -- names of rows -----------------------------------------------------------------------------------------------------


def test_counts_are_those_of_a_dictionary() -> None:
    chance = random.Random(4)
    counts = Counts()
    seen: dict[int, int] = {}
    for _ in range(60):
        numbers = [chance.randrange(40) for _ in range(chance.randrange(1, 30))]
        expected = []
        for number in numbers:
            expected.append(seen.get(number, 0))
            seen[number] = seen.get(number, 0) + 1
        assert counts.count(pa.array(numbers, pa.uint64()).to_numpy()).tolist() == expected


def test_rows_in_another_order_and_in_other_batches_have_the_same_names() -> None:
    rows = some_entries(100)
    first = Names("job", 3).of(rows)
    again = Names("job", 3)
    shuffled = rows[1::2] + rows[::2]
    second = [name for at in range(0, 100, 7) for name in again.of(shuffled[at : at + 7])]

    assert len(set(first)) == 100
    assert set(second) == set(first)
    assert not set(Names("job", 4).of(rows)) & set(first)


# -- to a server -------------------------------------------------------------------------------------------------------


def test_what_is_sent_twice_is_there_once_and_equal_rows_are_all_there(
    server: RiverbedServer, client: redis.Redis
) -> None:
    rows = some_entries(1000)
    for entries in (rows[:600], rows):
        with Connection(options_for(server.port)) as connection:
            sender, names = Sender(connection, Attempt(connection, Job("j"), 0)), Names("j", 0)
            for at in range(0, len(entries), 100):
                sender.send(entries[at : at + 100], names.of(entries[at : at + 100]))

    assert [int(fields[b"n"]) for fields in entries_of(client, "s")] == [number // 2 for number in range(1000)]


def test_a_connection_that_breaks_is_made_again_and_no_row_comes_twice(
    server: RiverbedServer, client: redis.Redis
) -> None:
    with Proxy(lambda: server.port) as proxy:
        # After so many bytes of answers the connection is gone, with requests under way.
        left = [400, 900, 1500]

        def cut_now_and_then(data: bytes, passed: int) -> bytes:
            if left and passed + len(data) > left[0]:
                left.pop(0)
                proxy.cut()
            return data

        proxy.alter = cut_now_and_then
        rows = some_entries(600)
        with Connection(options_for(proxy.port)) as connection:
            sender, names = Sender(connection, Attempt(connection, Job("j"), 0)), Names("j", 0)
            for at in range(0, 600, 50):
                sender.send(rows[at : at + 50], names.of(rows[at : at + 50]))

        assert proxy.connections > 2
    assert [int(fields[b"n"]) for fields in entries_of(client, "s")] == [number // 2 for number in range(600)]


def test_an_explicit_id_that_is_there_already_is_not_written_again(server: RiverbedServer, client: redis.Redis) -> None:
    rows = [Entry(b"s", b"%d-0" % number, [b"n", b"%d" % number]) for number in range(1, 101)]
    for entries in (rows[:60], rows):
        with Connection(options_for(server.port)) as connection:
            Sender(connection, None).send(entries, None)

    assert [entry_id for entry_id, _ in client.xrange("s")] == [b"%d-0" % number for number in range(1, 101)]
    for row, reason in (
        (Entry(b"s", b"50-0", [b"n", b"other"]), "stream s has another entry with ID 50-0"),
        (Entry(b"s", b"50-1", [b"n", b"50"]), "stream s is beyond ID 50-1 and has no such entry: IDs must ascend"),
    ):
        with Connection(options_for(server.port)) as connection, pytest.raises(SourceError, match=reason):
            Sender(connection, None).send([row], None)


def test_a_server_that_refuses_is_told_with_what_helps(server: RiverbedServer, client: redis.Redis) -> None:
    client.xadd("small", {"a": 1})
    client.execute_command("XCFGSET", "small", "IDMP-MAXSIZE", 99)
    with Connection(options_for(server.port)) as connection:
        sender = Sender(connection, Attempt(connection, Job("j"), 0))
        entries = [Entry(b"small", None, [b"a", b"1"])]
        with pytest.raises(SourceError, match="stream small remembers 99 rows of a producer, and 100 are needed"):
            sender.send(entries, Names("j", 0).of(entries))
    with pytest.raises(SourceError, match=r"cannot be reached: Connection refused \(tried 1 times\)"):
        Connection(options_for(1), retries=0).call("PING")


def test_a_server_without_idempotent_production_is_refused_and_taken_without(redis_server: RedisServer) -> None:
    with Connection(options_for(redis_server.port)) as connection:
        with pytest.raises(SourceError, match="the server knows no idempotent production"):
            require_idempotence(connection)
        Sender(connection, None).send(some_entries(3), None)
        assert connection.call("XLEN", "s") == 3


# -- who may send ------------------------------------------------------------------------------------------------------


def test_after_the_server_may_have_forgotten_only_the_one_attempt_there_was_may_send(
    server: RiverbedServer, client: redis.Redis
) -> None:
    with Connection(options_for(server.port)) as connection:
        job = Job("j")
        first, other = Attempt(connection, job, 1), Attempt(connection, job, 2)
        long_ago = connection.now_ms + 100_000
        first.require_may_send(long_ago, 100_000)
        second = Attempt(connection, job, 1)

        second.require_may_send(connection.now_ms, 100_000)
        with pytest.raises(SourceError, match="the first attempt at this partition began 100 s ago"):
            second.require_may_send(long_ago, 100_000)
        first.require_may_send(connection.now_ms, 100_000)
        with pytest.raises(SourceError, match="another attempt has taken this partition over"):
            first.require_may_send(long_ago, 100_000)
        other.require_may_send(long_ago, 100_000)

        commit(connection, job, [1, 2])
        with pytest.raises(SourceError, match="another attempt has taken this partition over"):
            other.require_may_send(long_ago, 100_000)
    assert client.keys() == []


def test_a_batch_that_is_committed_is_not_begun_again(server: RiverbedServer, client: redis.Redis) -> None:
    with Connection(options_for(server.port)) as connection:
        for batch in (3, 4):
            assert not Attempt(connection, Job("j", batch, is_durable=True), 0).is_committed
            commit(connection, Job("j", batch, is_durable=True), [0])
        assert Attempt(connection, Job("j", 3, is_durable=True), 0).is_committed
        assert Attempt(connection, Job("j", 4, is_durable=True), 7).is_committed
        assert not Attempt(connection, Job("j", 5, is_durable=True), 0).is_committed
    assert sorted(client.keys()) == [b"j", b"j:0"]


# -- with Spark --------------------------------------------------------------------------------------------------------


def write(frame: DataFrame, server: RiverbedServer, **options: object) -> None:
    asked = {"server": f"127.0.0.1:{server.port}", **options}
    frame.write.format("riverbed").mode("append").options(**asked).save()  # type: ignore[arg-type]


def test_typed_columns_that_are_written_are_read_back_as_they_were(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis
) -> None:
    schema = (
        "_id string, t string, b binary, flag boolean, small tinyint, big bigint, f float, d double, "
        "price decimal(20,5), day date, at timestamp, local timestamp_ntz"
    )
    rows: list[tuple[object, ...]] = [
        (
            "5-1",
            "ö\x00",
            b"\xff",
            True,
            -7,
            -(2**63),
            0.1,
            1e-300,
            Decimal("-1.50000"),
            date(1969, 1, 2),
            datetime(2026, 1, 2, 3, 4, 5, 678901),
            datetime(1850, 1, 2, 3, 4, 5, 1),
        ),
        ("5-2", "", None, None, None, None, float("inf"), None, Decimal("0.00001"), None, None, None),
    ]
    frame = spark.createDataFrame(rows, schema)
    write(frame.coalesce(1), server, stream="s", db=3)
    redis.Redis(port=server.port, db=3).save()

    read = spark.read.format("riverbed").schema(schema).option("db", 3).load(str(server.directory))

    assert read.collect() == frame.collect()


def test_a_task_that_is_tried_again_writes_each_row_once(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    def fail_once(number: int) -> int:
        mark = tmp_path / f"failed-{number}"
        if number in (1500, 3100) and not mark.exists():
            mark.touch()
            raise ValueError("once")
        return number // 2

    half = functions.udf(fail_once, "int", useArrow=False)("id").alias("n")
    write(spark.range(0, 4000, numPartitions=2).select(functions.expr("concat('s', id % 3) key"), half), server)

    found = [int(fields[b"n"]) for key in ("s0", "s1", "s2") for fields in entries_of(client, key)]
    assert sorted(found) == sorted(number // 2 for number in range(4000))
    assert len(list(tmp_path.iterdir())) == 2
    assert sorted(client.keys()) == [b"s0", b"s1", b"s2"]


def test_a_job_with_a_name_is_written_once_also_when_it_is_run_again(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis
) -> None:
    frame = spark.range(0, 100, numPartitions=2).selectExpr("cast(id as string) n")
    for _ in range(2):
        write(frame, server, stream="s", jobId="nightly-7")
    write(frame, server, stream="s", jobId="nightly-8")

    assert client.xlen("s") == 200


def test_a_write_that_cannot_be_is_refused_before_anything_runs(spark: SparkSession, server: RiverbedServer) -> None:
    frame = spark.range(3).selectExpr("id n")

    with pytest.raises(Exception, match="overwrite"):
        frame.write.format("riverbed").mode("overwrite").option("server", f"127.0.0.1:{server.port}").save()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1 cannot be reached"):
        frame.write.format("riverbed").mode("append").option("server", "127.0.0.1:1").option("stream", "s").save()


# -- to a new directory ------------------------------------------------------------------------------------------------


def test_a_new_directory_has_the_rows_and_is_a_sound_store(spark: SparkSession, tmp_path: Path) -> None:
    from store.check import check

    target = tmp_path / "store"
    frame = spark.range(0, 3000, numPartitions=3).selectExpr(
        "concat('s', id % 4) key",
        "if(id % 4 = 0, concat(id + 1, '-0'), null) id",
        "id n",
        "if(id % 2 = 0, 'even', null) e",
    )
    frame.write.format("riverbed").mode("append").save(str(target))

    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert list(check(target)) == []
    rows = spark.read.format("riverbed").schema("_key string, _ms bigint, n int, e string").load(str(target)).collect()
    assert sorted((row._key, row.n, row.e) for row in rows) == sorted(
        (f"s{number % 4}", number, "even" if number % 2 == 0 else None) for number in range(3000)
    )
    assert [row._ms for row in rows if row._key == "s0"] == [number + 1 for number in range(0, 3000, 4)]


def test_a_new_directory_is_not_made_when_anything_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    frame = spark.range(0, 10, numPartitions=2)
    cases = {
        "there": (["id n"], "is not empty, and nothing is written over"),
        "new": (["if(id = 7, null, id) n"], "has no field"),
        "another": (["concat(10 - id, '-0') id", "id n"], "is not above 10-0, the last one of the stream"),
    }
    for name, (columns, reason) in cases.items():
        writer = frame.selectExpr(*columns).write.format("riverbed").mode("append").option("stream", "s")
        with pytest.raises(Exception, match=reason):
            writer.save(str(tmp_path / name))

    assert [path.name for path in tmp_path.iterdir()] == ["there"]
