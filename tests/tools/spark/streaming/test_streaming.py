from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from riverbed.store.ids import make_id
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.source import RiverbedSource
from riverbed.tools.spark.streaming.offsets import Mark, Offset, Progress
from tests.support.servers import RiverbedServer
from tests.tools.spark.queries import read_all


def run(spark: SparkSession, source: Path, work: Path, rows_a_batch: int, **options: str) -> list[int]:
    """Read all there is into a Parquet sink; -> the rows of each batch."""
    schema = "_key string, _id string, n int"
    batches = read_all(spark, source, work, schema, maxRowsPerTrigger=rows_a_batch, **options)
    return [progress["numInputRows"] for progress in batches]


def test_a_restarted_query_reads_each_entry_once(spark: SparkSession, server: RiverbedServer, tmp_path: Path) -> None:
    client = redis.Redis(port=server.port)
    for number in range(500):
        client.xadd(f"stream {number % 3}", {"n": number}, id=f"{1 + number}-0")
    client.save()
    first = run(spark, server.directory, tmp_path, 200)
    for number in range(500, 700):
        client.xadd(f"stream {number % 3}", {"n": number}, id=f"{1 + number}-0")
    client.save()
    second = run(spark, server.directory, tmp_path, 1000)

    assert first == [200, 200, 100]
    assert second == [200]
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(row.n for row in rows) == list(range(700))


def test_a_query_that_ends_with_an_id_goes_on_from_there_with_another(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=server.port)
    for number in range(1, 301):
        client.xadd(f"stream {number % 3}", {"n": number}, id=f"{number}-0")
    client.save()
    assert sum(run(spark, server.directory, tmp_path, 80, endingId="100-0")) == 100
    assert sum(run(spark, server.directory, tmp_path, 80, endingId="100-0")) == 0
    assert sum(run(spark, server.directory, tmp_path, 80, endingId="50-0")) == 0
    assert sum(run(spark, server.directory, tmp_path, 1000, endingId="250-5")) == 150
    assert sum(run(spark, server.directory, tmp_path, 1000)) == 50
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(row.n for row in rows) == list(range(1, 301))


@pytest.mark.parametrize("rows_a_batch", [None, 500])
def test_no_row_is_too_late_for_a_watermark_because_another_stream_was_read_further(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path, rows_a_batch: int | None
) -> None:
    client = redis.Redis(port=server.port)
    first_ms, hour_ms = 1_700_000_000_000, 3_600_000
    # The same time, in streams that have more or less to tell of it.
    with client.pipeline(transaction=False) as pipeline:
        for stream, rows in enumerate((6000, 1200, 900, 300)):
            for number in range(rows):
                pipeline.xadd(f"s{stream}", {"n": number}, id=f"{first_ms + number * hour_ms // rows}-{number}")
        pipeline.execute()
    client.save()
    read = spark.readStream.format("riverbed").schema("_timestamp timestamp, _key string, n int")
    if rows_a_batch is not None:
        read = read.option("maxRowsPerTrigger", rows_a_batch)
    rows = read.load(str(server.directory)).withWatermark("_timestamp", "10 seconds")
    query = (
        rows.dropDuplicates(["_timestamp", "_key", "n"])
        .writeStream.format("memory")
        .queryName(f"late_{rows_a_batch}")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert spark.table(f"late_{rows_a_batch}").count() == 8400
    if rows_a_batch is not None:
        assert max(progress["numInputRows"] for progress in query.recentProgress) <= rows_a_batch


def test_a_stream_may_begin_with_what_comes_from_now_on(server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    client.xadd("s", {"n": 1}, id="1-0")
    client.save()
    source = RiverbedSource({"path": str(server.directory), "startingOffsets": "latest"})
    reader = source.streamReader(StructType().add("n", "integer"))
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    client.xadd("s", {"n": 2}, id="2-0")
    client.save()
    end = reader.latestOffset(begin, ReadAllAvailable())
    batches = [batch for part in reader.partitions(begin, end) for batch in reader.read(part)]
    assert [row for batch in batches for row in batch.to_pydict()["n"]] == [2]


def test_a_query_waits_for_a_stream_that_is_not_there_yet_and_says_so_once(
    server: RiverbedServer, recwarn: pytest.WarningsRecorder
) -> None:
    client = redis.Redis(port=server.port)
    client.xadd("s", {"n": 1}, id="1-0")
    client.save()
    reader = RiverbedSource({"path": str(server.directory), "streams": "s,t"}).streamReader(
        StructType().add("n", "integer")
    )
    begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    for _ in range(2):
        assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    [warning] = [str(each.message) for each in recwarn]
    assert warning == f"there is no stream t in {server.directory}: the query reads it as soon as it is there"
    client.xadd("t", {"n": 2}, id="1-0")
    client.save()
    end = reader.latestOffset(begin, ReadAllAvailable())
    batches = [batch for part in reader.partitions(begin, end) for batch in reader.read(part)]
    assert [row for batch in batches for row in batch.to_pydict()["n"]] == [2]
    assert len(recwarn) == 1


def test_what_was_trimmed_before_it_was_read_is_told(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=server.port)
    for number in range(10):
        client.xadd("s", {"n": number})
    client.save()
    run(spark, server.directory, tmp_path, 1000)
    for number in range(10, 20):
        client.xadd("s", {"n": number})
    client.xtrim("s", maxlen=5, approximate=False)
    client.save()

    with pytest.raises(Exception, match="stream s was trimmed"):
        run(spark, server.directory, tmp_path, 1000)


def test_a_stream_that_was_trimmed_before_the_first_batch_begins_with_what_is_left(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=server.port)
    for number in range(20):
        client.xadd("s", {"n": number}, id=f"{1 + number}-0")
    client.xtrim("s", maxlen=12, approximate=False)
    client.save()

    assert run(spark, server.directory, tmp_path, 8) == [8, 4]
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    assert sorted(row.n for row in rows) == list(range(8, 20))


def test_an_offset_keeps_any_key() -> None:
    marked = Progress(make_id(5, 7), 3, 8, Mark(make_id(5, 6), "c0ffee"), True, "9b44", 2, make_id(6, 0))
    offset = Offset("a", {(0, b"\xff/%"): marked, (15, b"s"): Progress()}, 1234, "8c1f")

    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_a_checkpoint_of_a_newer_version_is_refused() -> None:
    with pytest.raises(SourceError, match="its offsets have version 4, and this one knows 3"):
        Offset.from_json(Offset().to_json() | {"version": 4})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"snapshot": "", "streams": {"x": {}}},
        {"snapshot": "", "streams": 5},
        {"snapshot": "", "streams": {}, "taken_ms": float("inf")},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(SourceError, match="not one of this source"):
        Offset.from_json(values)
