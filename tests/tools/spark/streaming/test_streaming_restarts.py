from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions

from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.spark.reading.options import Table, read_options
from riverbed.tools.spark.reading.schemas import default_schema
from riverbed.tools.spark.streaming.offsets import Offset
from riverbed.tools.spark.streaming.streaming import EntryStreamReader
from tests.conftest import base_seed
from tests.support.faults.proxy import Proxy
from tests.support.in_process import HandClock, Product
from tests.support.servers import RiverbedServer
from tests.tools.spark.stores import freeze

RESTARTS = 10
MAX_ROWS = 400


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[RiverbedServer, RiverbedServer]]:
    """Where entries come from, and where they go."""
    with (
        RiverbedServer(tmp_path / "source", tmp_path, {"appendfsync": "no"}) as source,
        RiverbedServer(tmp_path / "sink", tmp_path, {"appendfsync": "no"}) as sink,
    ):
        yield source, sink


def start(spark: SparkSession, sources: dict[str, Path], sink_port: int, work: Path, **trigger: bool) -> Any:
    """A query that copies each stream, from a place of its own, into one of the same name."""
    read = spark.readStream.format("riverbed").schema("n int").option("maxRowsPerTrigger", MAX_ROWS)
    frames = [
        read.option("stream", stream).load(str(path)).select(functions.lit(stream).alias("key"), "n")
        for stream, path in sources.items()
    ]
    write = functools.reduce(DataFrame.union, frames).writeStream.format("riverbed")
    write = write.options(server=f"127.0.0.1:{sink_port}", pipelineRows=20, checkpointLocation=work / "checkpoint")
    return (write.trigger(**trigger) if trigger else write).start()


def finish(spark: SparkSession, sources: dict[str, Path], sink: RiverbedServer, work: Path) -> None:
    """Copy all that is left.  On a busy machine a worker may be too slow for Spark: that is one more restart."""
    for _ in range(20):
        query = start(spark, sources, sink.port, work, availableNow=True)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return
    raise AssertionError("Spark cannot start its workers")


def test_each_entry_comes_once_however_often_a_query_is_stopped_and_started(
    spark: SparkSession, servers: tuple[RiverbedServer, RiverbedServer], tmp_path: Path
) -> None:
    source, sink = servers
    client, there = redis.Redis(port=source.port), redis.Redis(port=sink.port)
    snapshots = tmp_path / "snapshots"
    sources = {"live": source.directory, "series": snapshots}
    chance = random.Random(base_seed())
    added = 0

    def grow() -> None:
        """Add some to both streams; what is frozen may be trimmed."""
        nonlocal added
        with client.pipeline(transaction=False) as pipeline:
            for number in range(added, added := added + chance.randrange(100, 300)):
                pipeline.xadd("live", {"n": number})
                pipeline.xadd("series", {"n": number})
            pipeline.execute()
        client.save()
        take_snapshot(source.directory, snapshots / f"{chance.randrange(1 << 40):x}", program="test")
        client.xtrim("series", maxlen=50, approximate=False)

    snapshots.mkdir()
    for _ in range(RESTARTS):
        grow()
        copied = there.xlen("live") + there.xlen("series")
        # At any moment of a batch: while it writes, before or after it is committed, in the plan of the next.
        enough = chance.randrange(copied, 2 * added)
        query = start(spark, sources, sink.port, tmp_path)
        while query.isActive and there.xlen("live") + there.xlen("series") <= enough:
            time.sleep(0.01)
        query.stop()
    finish(spark, sources, sink, tmp_path)

    for stream in sources:
        assert sorted(int(fields[b"n"]) for _, fields in there.xrange(stream)) == list(range(added)), stream
    # There is no journal, only which batch was the last.
    assert [key.count(b":") for key in there.scan_iter("riverbed:spark:*")] == [2]


def test_a_batch_that_was_interrupted_is_finished_however_much_later(
    spark: SparkSession, servers: tuple[RiverbedServer, RiverbedServer], tmp_path: Path
) -> None:
    source, sink = servers
    client, there = redis.Redis(port=source.port), redis.Redis(port=sink.port)
    there.config_set("stream-idmp-duration", 1)  # so long a server that knows IDMP remembers rows
    with client.pipeline(transaction=False) as pipeline:
        for number in range(300):
            pipeline.xadd("live", {"n": number})
        pipeline.execute()
    client.save()
    with Proxy(lambda: sink.port) as proxy:
        proxy.alter = lambda data, passed: data if there.xlen("live") < 100 else b""
        query = start(spark, {"live": source.directory}, proxy.port, tmp_path, availableNow=True)
        while there.xlen("live") < 100:
            time.sleep(0.01)
        proxy.close()  # or its task would wait for a reply
        query.stop()
        time.sleep(1.5)
    finish(spark, {"live": source.directory}, sink, tmp_path)

    assert [int(fields[b"n"]) for _, fields in there.xrange("live")] == list(range(300))


def test_a_batch_is_read_from_its_snapshot_or_from_one_that_was_taken_later(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    # Names that do not ascend as the snapshots do.
    for number, name in enumerate(("z", "m", "b")):
        product.run("XADD", "s", f"{1 + number}-0", "n", number)
        freeze(product, tmp_path / "snapshots" / name)
        product = Product(tmp_path / "data", HandClock())
        time.sleep(0.002)
    product.close()
    asked = {"path": str(tmp_path / "snapshots"), "cacheDirectory": str(tmp_path / "cache")}
    reader = EntryStreamReader(read_options(asked), default_schema(Table.ENTRIES))
    ends: list[dict[str, Any]] = [Offset().to_json()]
    for _ in range(3):
        ends.append(reader.latestOffset(ends[-1], reader.getDefaultReadLimit()))

    assert [end["snapshot"] for end in ends[1:]] == ["z", "m", "b"]
    assert read(reader, ends[1], ends[2]) == [b"1"]
    (tmp_path / "snapshots" / "m" / "manifest.json").unlink()
    assert read(reader, ends[1], ends[2]) == [b"1"]
    assert reader.latestOffset(ends[2], reader.getDefaultReadLimit())["snapshot"] == "b"


def read(reader: EntryStreamReader, begin: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        fields["n"]
        for batch in reader.partitions(begin, end)
        for rows in reader.read(batch)
        for fields in rows.column("fields").to_pylist(maps_as_pydicts="strict")
    ]
