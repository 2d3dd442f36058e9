from __future__ import annotations

import contextlib
import random
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import redis
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from riverbed.tools.live.redisclient import Address, RedisClient, Word
from riverbed.tools.spark.errors import OptionError, SourceError
from riverbed.tools.spark.writing.identity import Names, SortedRuns
from riverbed.tools.spark.writing.journal import Job, commit
from riverbed.tools.spark.writing.load import BulkLoad
from riverbed.tools.spark.writing.options import WriteOptions, write_options
from riverbed.tools.spark.writing.rows import Entry, row_maker
from riverbed.tools.spark.writing.server import Connection, Sender
from riverbed.tools.spark.writing.writer import stream_writer
from tests.conftest import base_seed
from tests.support.faults.proxy import Proxy
from tests.support.servers import ROOT, RedisServer, RiverbedServer


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
        ({"server": "h:1", "jobId": "nightly:3"}, "not end with a colon and digits"),
        ({"path": "/x", "jobId": "a"}, "jobId is for a server"),
        ({"server": "h:1", "retries": "-1"}, "retries must be a number from 0 to 1000"),
    ],
)
def test_an_option_that_cannot_be_is_told(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        write_options(given)


# -- names of rows -----------------------------------------------------------------------------------------------------


def test_sorted_runs_count_as_a_dictionary_does() -> None:
    chance = random.Random(4)
    runs = SortedRuns()
    seen: dict[int, int] = {}
    for _ in range(60):
        numbers = sorted(chance.randrange(40) for _ in range(chance.randrange(1, 30)))
        for number in numbers:
            seen[number] = seen.get(number, 0) + 1
        runs.add(np.array(numbers, np.uint64))
        assert runs.count(np.arange(40, dtype=np.uint64)).tolist() == [seen.get(number, 0) for number in range(40)]


def test_rows_in_another_order_and_in_other_batches_have_the_same_names() -> None:
    rows = [*some_entries(100), Entry(b"s", b"5-0", [b"n", b"0"]), Entry(b"t", None, [b"n", b"0"])]
    first = Names().of(rows)
    again = Names()
    shuffled = rows[1::2] + rows[::2]
    second = [name for at in range(0, 102, 7) for name in again.of(shuffled[at : at + 7])]

    assert len(set(first)) == 102
    assert {len(name) for name in first} == {16}
    assert set(second) == set(first)


# -- to a server -------------------------------------------------------------------------------------------------------


def append(port: int, entries: list[Entry], rows_a_pipeline: int = 100, **options: Any) -> int:
    """One attempt at partition 0 of job j; -> the lines of its journal."""
    with Connection(options_for(port, **options)) as connection:
        return send(Sender(connection, Job("j"), 0), entries, rows_a_pipeline)


def send(sender: Sender, entries: list[Entry], rows_a_pipeline: int = 100) -> int:
    for at in range(0, len(entries), rows_a_pipeline):
        sender.send(entries[at : at + rows_a_pipeline])
    return sender.finish()


def numbers_of(client: redis.Redis, key: str) -> list[int]:
    return [int(fields[b"n"]) for fields in entries_of(client, key)]


@pytest.fixture(params=["Riverbed", "Redis 7.0"])
def target(
    request: pytest.FixtureRequest, server: RiverbedServer, redis_server: RedisServer
) -> RiverbedServer | RedisServer:
    """What is written to: both are empty."""
    found: RiverbedServer | RedisServer = server if request.param == "Riverbed" else redis_server
    redis.Redis(port=found.port).flushall()
    return found


Target = RiverbedServer | RedisServer


def test_what_is_sent_twice_is_there_once_and_equal_rows_are_all_there(target: Target) -> None:
    rows = some_entries(1000)
    append(target.port, rows[:600])
    append(target.port, rows)
    append(target.port, rows[::-1])

    assert numbers_of(redis.Redis(port=target.port), "s") == [number // 2 for number in range(1000)]


def test_a_connection_that_breaks_is_made_again_and_no_row_comes_twice(target: Target) -> None:
    with Proxy(lambda: target.port) as proxy:
        # After so many bytes of answers the connection is gone, with requests under way.
        left = [400, 900, 1500]

        def cut_now_and_then(data: bytes, passed: int) -> bytes:
            if left and passed + len(data) > left[0]:
                left.pop(0)
                proxy.cut()
            return data

        proxy.alter = cut_now_and_then
        append(proxy.port, some_entries(600), 50)

        assert proxy.connections > 2
    assert numbers_of(redis.Redis(port=target.port), "s") == [number // 2 for number in range(600)]


def lose_replies(proxy: Proxy, are_lost: Callable[[], bool]) -> None:
    """Lose replies with their connections, while `are_lost`."""

    def alter(data: bytes, passed: int) -> bytes:
        if not are_lost():
            return data
        proxy.cut()
        return b""

    proxy.alter = alter


def test_rows_whose_replies_were_lost_come_once_however_long_that_lasts(target: Target) -> None:
    client = redis.Redis(port=target.port)
    with Proxy(lambda: target.port) as proxy:

        def lose(data: bytes, passed: int) -> bytes:
            if not client.xlen("s") or proxy.connections >= 4:
                return data
            if proxy.connections > 1:  # the first is silent, and given up after `timeout_s`
                proxy.cut()
            return b""

        proxy.alter = lose
        append(proxy.port, some_entries(400), timeout_s=3)

        assert proxy.connections >= 4
    assert numbers_of(client, "s") == [number // 2 for number in range(400)]


def test_two_attempts_at_a_time_write_each_row_once(target: Target) -> None:
    rows = some_entries(3000)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        # Not in the same order, so that both have something to write all the time.
        attempts = [
            pool.submit(append, target.port, each, 50) for each in (rows, rows[::-1], rows[1500:] + rows[:1500])
        ]
        lines = [attempt.result() for attempt in attempts]

    client = redis.Redis(port=target.port)
    assert sorted(numbers_of(client, "s")) == [number // 2 for number in range(3000)]
    assert max(lines) == client.xlen("riverbed:spark:j:0")


class Interrupted(RedisClient):
    """Lets `between` run behind each EXEC that was executed, before what was sent with it."""

    def __init__(self, port: int, between: Callable[[], None]) -> None:
        super().__init__(Address("127.0.0.1", port), 60)
        self._between = between
        self._other = redis.Redis(port=port)

    def send(self, commands: Sequence[Sequence[Word]]) -> None:
        if [b"EXEC"] in commands:
            end = commands.index([b"EXEC"]) + 1
            length = self._other.xlen("riverbed:spark:j:0")
            super().send(commands[:end])
            while self._other.xlen("riverbed:spark:j:0") == length:
                time.sleep(0.001)
            self._between()
            commands = commands[end:]
        super().send(commands)


def test_what_another_attempt_writes_between_exec_and_watch_is_not_written_again(target: Target) -> None:
    rows = some_entries(300)
    client = redis.Redis(port=target.port)
    with Connection(options_for(target.port)) as connection, Connection(options_for(target.port)) as late:
        other = Sender(connection, Job("j"), 0)
        left = rows[150:]

        def write_some() -> None:
            other.send(left[:50])
            del left[:50]

        interrupted = Interrupted(target.port, write_some)
        late._client = interrupted
        first = Sender(late, Job("j"), 0)
        for at in range(0, 300, 50):
            first.send(rows[at : at + 50])

    assert not left
    assert sorted(numbers_of(client, "s")) == [number // 2 for number in range(300)]


def test_rows_that_a_failover_takes_back_are_written_again_by_the_next_attempt(target: Target) -> None:
    client = redis.Redis(port=target.port)
    rows = some_entries(400)
    with Connection(options_for(target.port)) as connection:
        sender = Sender(connection, Job("j"), 0)
        send(sender, rows[:200])
        # What a replica had not been sent yet.
        [(_, _), (line, _)] = client.xrange("riverbed:spark:j:0")
        client.xdel("riverbed:spark:j:0", line)
        client.xdel("s", *[entry_id for entry_id, _ in client.xrange("s")[100:]])
        with pytest.raises(SourceError, match="riverbed:spark:j:0 has lost rows that were written to it"):
            send(sender, rows[200:])
        with pytest.raises(SourceError, match="lost rows that it had acknowledged, as after a failover"):
            connection.retried(lambda client: commit(client, Job("j"), {0: 2}))
    append(target.port, rows)

    assert numbers_of(client, "s") == [number // 2 for number in range(400)]


@pytest.mark.parametrize("seed", range(3))
def test_each_row_comes_once_whatever_becomes_of_connections_attempts_and_the_server(tmp_path: Path, seed: int) -> None:
    chance = random.Random(base_seed() + seed)
    rows = some_entries(2000)
    with (
        RiverbedServer(tmp_path / "data", tmp_path, {"appendfsync": "always"}) as server,
        Proxy(lambda: server.port) as proxy,
        ThreadPoolExecutor() as pool,
    ):

        def pass_some(data: bytes, passed: int) -> bytes:
            if chance.random() < 0.08:
                proxy.cut()
                return b""
            return data

        def attempt() -> bool:
            order = chance.sample(rows, len(rows))
            try:
                append(proxy.port, order, chance.choice((20, 50, 200)), timeout_s=5)
            except SourceError:
                return False
            return True

        proxy.alter = pass_some
        for _ in range(4):
            attempts = [pool.submit(attempt) for _ in range(2)]
            time.sleep(chance.random())
            if chance.random() < 0.7:
                server.kill()
                server.start()
            for each in attempts:
                each.result()
        proxy.alter = None
        assert attempt()
        assert sorted(numbers_of(redis.Redis(port=server.port), "s")) == [number // 2 for number in range(2000)]


def test_an_explicit_id_that_is_there_already_is_not_written_again(target: Target) -> None:
    client = redis.Redis(port=target.port)
    rows = [Entry(b"s", b"%d-0" % number, [b"n", b"%d" % number]) for number in range(1, 101)]
    for entries in (rows[:60], rows):
        append(target.port, entries, 30)

    assert [entry_id for entry_id, _ in client.xrange("s")] == [b"%d-0" % number for number in range(1, 101)]
    for row, reason in (
        (Entry(b"s", b"50-0", [b"n", b"other"]), "stream s has another entry with ID 50-0"),
        (Entry(b"s", b"50-1", [b"n", b"50"]), "stream s is beyond ID 50-1 and has no such entry: IDs must ascend"),
    ):
        with pytest.raises(SourceError, match=reason):
            append(target.port, [row])
    client.xtrim("s", maxlen=0, approximate=False)
    append(target.port, rows, 30)
    assert client.xlen("s") == 0


def test_rows_that_are_refused_are_not_taken_for_written(target: Target) -> None:
    client = redis.Redis(port=target.port)
    last = "18446744073709551615-18446744073709551615"
    client.xadd("full", {"n": 0}, id=last)
    rows = [Entry(key, None, [b"n", b"1"]) for key in (b"s", b"full", b"t")]
    for _ in range(2):
        with pytest.raises(SourceError, match="exhausted the last possible ID"):
            append(target.port, rows)
    client.delete("full")
    append(target.port, rows)

    assert [numbers_of(client, key) for key in ("s", "full", "t")] == [[1], [1], [1]]


def test_rows_that_are_refused_without_a_reply_are_not_taken_for_written(target: Target) -> None:
    client = redis.Redis(port=target.port)
    client.xadd("full", {"n": 0}, id="18446744073709551615-18446744073709551615")
    with Proxy(lambda: target.port) as proxy:
        lose_replies(proxy, lambda: bool(client.xlen("s")) and proxy.connections < 2)
        with pytest.raises(SourceError, match="exhausted the last possible ID"):
            append(proxy.port, [Entry(key, None, [b"n", b"1"]) for key in (b"s", b"full")])
        assert proxy.connections == 2


def test_refused_rows_are_taken_back_once_when_that_reply_is_lost(target: Target) -> None:
    client = redis.Redis(port=target.port)
    client.xadd("full", {"n": 0}, id="18446744073709551615-18446744073709551615")
    rows = [Entry(key, None, [b"n", b"1"]) for key in (b"s", b"full")]
    with Proxy(lambda: target.port) as proxy:
        lose_replies(proxy, lambda: client.xlen("riverbed:spark:j:0") == 2 and proxy.connections < 3)
        with pytest.raises(SourceError, match="exhausted the last possible ID"):
            append(proxy.port, rows)
        assert proxy.connections == 3
    client.delete("full")
    for _ in range(2):
        append(target.port, rows)

    assert [numbers_of(client, key) for key in ("s", "full")] == [[1], [1]]


def test_a_micro_batch_waits_for_its_server_as_often_as_it_may_retry(spark: SparkSession) -> None:
    """A server that was just starting again ended the query."""
    with pytest.raises(SourceError, match=r"Connection refused \(tried 3 times\)"):
        stream_writer(
            {"server": "127.0.0.1:1", "stream": "s", "retries": "2"}, StructType.fromDDL("n int"), overwrite=False
        )


def test_a_server_that_refuses_is_told_with_what_helps(redis_server: RedisServer) -> None:
    client = redis.Redis(port=redis_server.port)
    client.flushall()
    client.set("text", 1)
    with pytest.raises(SourceError, match="the key holds something else than a stream"):
        append(redis_server.port, [Entry(b"text", None, [b"n", b"1"])])
    with pytest.raises(SourceError, match=r"cannot be reached: Connection refused \(tried 1 times\)"):
        Connection(options_for(1), retries=0).call("PING")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(SourceError, match="the server has reached its maxmemory"):
            append(redis_server.port, some_entries(3))
    finally:
        client.config_set("maxmemory", 0)
    assert client.keys("s") == []


# -- jobs --------------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_committed_is_not_written_again(target: Target) -> None:
    client = redis.Redis(port=target.port)
    with Connection(options_for(target.port)) as connection:

        def write_batch(batch: int, partition: int = 0) -> None:
            job = Job("j", batch, is_durable=True)
            lines = send(Sender(connection, job, partition), some_entries(10))
            connection.retried(lambda client: commit(client, job, {partition: lines}))

        for batch in (3, 4, 3, 4):
            write_batch(batch)
        write_batch(4, partition=7)
        assert client.xlen("s") == 20
        assert sorted(client.keys()) == [b"riverbed:spark:j", b"s"]
        write_batch(5)
    assert client.xlen("s") == 30


def test_an_attempt_that_is_late_writes_nothing_when_the_batch_is_committed(target: Target) -> None:
    client = redis.Redis(port=target.port)
    rows = some_entries(200)
    with Connection(options_for(target.port)) as connection, Connection(options_for(target.port)) as driver:
        late = Sender(connection, Job("j"), 0)
        late.send(rows[:100])
        lines = append(target.port, rows)
        driver.retried(lambda client: commit(client, Job("j"), {0: lines}))
        send(late, rows[100:])
        append(target.port, rows)

    assert numbers_of(client, "s") == [number // 2 for number in range(200)]
    assert sorted(client.keys()) == [b"riverbed:spark:j", b"s"]
    assert client.ttl("riverbed:spark:j") > 0


def test_the_journal_of_an_earlier_batch_says_nothing_about_the_next(target: Target) -> None:
    client = redis.Redis(port=target.port)
    with Connection(options_for(target.port)) as connection:
        # A run that was interrupted had partition 1, the one that finished its batch had not.
        send(Sender(connection, Job("j", 1, is_durable=True), 1), some_entries(10))
        connection.retried(lambda client: commit(client, Job("j", 1, is_durable=True), {0: 0}))
        send(Sender(connection, Job("j", 2, is_durable=True), 1), some_entries(10))

    assert client.xlen("s") == 20


def test_a_streaming_query_has_no_job_id() -> None:
    schema = StructType().add("n", "integer")
    with pytest.raises(OptionError, match="jobId is for a batch query"):
        stream_writer({"server": "h:1", "stream": "s", "jobId": "a"}, schema, overwrite=False)


# -- with Spark --------------------------------------------------------------------------------------------------------


def write(frame: DataFrame, server: RiverbedServer, **options: object) -> None:
    asked = {"server": f"127.0.0.1:{server.port}", **options}
    frame.write.format("riverbed").mode("append").options(**asked).save()


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


def test_a_user_may_write_with_the_commands_that_the_docs_name(spark: SparkSession, redis_server: RedisServer) -> None:
    named = re.search(r"a user needs `([A-Z ]+)`", (ROOT / "docs" / "spark.md").read_text())
    assert named is not None
    client = redis.Redis(port=redis_server.port)
    client.flushall()
    allowed = [f"+{command.lower()}" for command in named[1].split()]
    client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", "~*", "-@all", *allowed)
    for ids in ({}, {"id": functions.concat("n", functions.lit("-1"))}):
        frame = spark.range(1, 11, numPartitions=1).select(functions.col("id").cast("string").alias("n"))
        where = {"server": f"localhost:{redis_server.port}", "user": "writer", "password": "secret", "db": "2"}
        frame.withColumns(ids).write.format("riverbed").mode("append").options(**where, stream=f"s{len(ids)}").save()
    other = redis.Redis(port=redis_server.port, db=2)
    assert [numbers_of(other, key) for key in ("s0", "s1")] == [list(range(1, 11))] * 2


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

    found = [number for key in ("s0", "s1", "s2") for number in numbers_of(client, key)]
    assert sorted(found) == sorted(number // 2 for number in range(4000))
    assert len(list(tmp_path.iterdir())) == 2
    # Nothing but that it has ended, which tasks that are late must know.
    assert [client.ttl(key) > 0 for key in sorted(client.keys())] == [True, False, False, False]


def test_an_outage_of_replies_doubles_no_rows(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    client.config_set("stream-idmp-duration", 1)  # so long a server that knows IDMP remembers rows
    lost = threading.Event()
    with Proxy(lambda: server.port) as proxy:

        def swallow(data: bytes, passed: int) -> bytes:
            if client.xlen("s") and not lost.is_set():
                threading.Timer(2.5, lost.set).start()
                proxy.alter = lambda data, passed: data if lost.is_set() else b""
                return b""
            return data

        proxy.alter = swallow
        frame = spark.range(0, 400, numPartitions=1).selectExpr("id n")
        frame.write.format("riverbed").mode("append").options(
            server=f"127.0.0.1:{proxy.port}", stream="s", pipelineRows=200, timeoutSeconds=1, retries=20
        ).save()
    assert lost.is_set()
    client.config_set("stream-idmp-duration", 100)

    assert numbers_of(client, "s") == list(range(400))


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
    from riverbed.store.check import check

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


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_a_new_directory_is_made_where_its_uri_says_and_for_its_user_alone(tmp_path: Path, form: str) -> None:
    options = write_options({"path": form.format(tmp_path / "new")})
    assert options.path == str(tmp_path / "new")
    load = BulkLoad(Path(options.path), 0, "0123abcd")
    load.begin()
    part = load.write_part(0, 0, [Entry(b"s", None, [b"n", b"1"])])
    assert stat.S_IMODE(load.staging.stat().st_mode) == 0o700
    assert stat.S_IMODE((load.staging / part.name).stat().st_mode) == 0o600
    load.finish([part])
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("path", ["s3://bucket/new", "hdfs://name/new", "hdfs:/new", "dbfs:/new", "file://host/new"])
def test_no_directory_is_made_for_a_uri_of_another_file_system(path: str) -> None:
    with pytest.raises(OptionError, match="is made on a disk that driver and executors share"):
        write_options({"path": path})


def test_what_a_killed_load_has_left_is_named_by_the_next_one(tmp_path: Path) -> None:
    killed, target = BulkLoad(tmp_path / "new", 0, "0123abcd"), tmp_path / "new"
    killed.begin()
    load = BulkLoad(target, 0, "4567cdef")
    load.begin()
    part = load.write_part(0, 0, [Entry(b"s", None, [b"n", b"1"])])

    with pytest.warns(UserWarning, match=r"new\.loading-0123abcd is of a load of the same directory that was killed"):
        load.finish([part])
    with pytest.raises(OptionError, match=r"is not empty.*new\.loading-0123abcd: half made"):
        BulkLoad(target, 0, "89abcdef").begin()


def test_a_new_directory_is_not_made_when_anything_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    frame = spark.range(0, 10, numPartitions=2)
    cases = {
        "there": (["id n"], "is not empty, and no file is overwritten"),
        "new": (["if(id = 7, null, id) n"], "has no field"),
        "another": (["concat(10 - id, '-0') id", "id n"], "is not above 10-0, the last one of the stream"),
    }
    for name, (columns, reason) in cases.items():
        writer = frame.selectExpr(*columns).write.format("riverbed").mode("append").option("stream", "s")
        with pytest.raises(Exception, match=reason):
            writer.save(str(tmp_path / name))

    assert [path.name for path in tmp_path.iterdir()] == ["there"]
