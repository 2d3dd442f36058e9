"""What `test_cluster.py` submits to a cluster: reads a snapshot in all ways, writes, and loses an executor meanwhile.

cluster_program.py SHARED ELSEWHERE HOST:PORT WORK...      -> one JSON object on standard output
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions


def main(shared: str, elsewhere: str, server: str, *work: str) -> None:
    spark = SparkSession.builder.appName("cluster test").getOrCreate()
    try:
        sys.stdout.write(json.dumps(_results(spark, shared, elsewhere, server, work)) + "\n")
    finally:
        spark.stop()


def _results(spark: SparkSession, shared: str, elsewhere: str, server: str, work: tuple[str, ...]) -> dict[str, object]:
    def read(path: str, *, fetch: bool = False) -> DataFrame:
        reader = spark.read.format("riverbed").schema("_key string, n bigint")
        return reader.options(minPartitions=4, fetch=fetch).load(path)

    results: dict[str, object] = {"code": sorted(_where_code_is(spark))}
    results["shared"] = _sums(read(shared))
    results["fetched"] = _sums(read(f"file://{elsewhere}", fetch=True))

    def slowly(value: int) -> int:
        time.sleep(0.001)
        return value

    killed: list[int] = []
    killer = threading.Thread(target=lambda: killed.extend(_kill_an_executor(server, work)))
    killer.start()
    rows = read(shared).select(functions.udf(slowly, "bigint", useArrow=False)("n").alias("n"))
    rows.write.format("riverbed").mode("append").option("server", server).options(stream="copy", pipelineRows=50).save()
    killer.join()
    results["killed"] = len(killed)
    return results


def _sums(frame: DataFrame) -> list[int]:
    [row] = frame.agg(functions.count("_key"), functions.sum("n")).collect()
    return list(row)


def _where_code_is(spark: SparkSession) -> set[str]:
    """Where executors have the packages from."""

    def look(_: object) -> list[str]:
        import pyspark_riverbed
        import riverbed.tools.spark.source
        from riverbed import store

        modules = (pyspark_riverbed, store, riverbed.tools.spark.source)
        return [str(module.__file__).partition(".zip")[1] or str(module.__file__) for module in modules]

    return set(spark.sparkContext.parallelize(range(4), 4).flatMap(look).collect())


def _kill_an_executor(server: str, work: tuple[str, ...]) -> list[int]:
    """Kill the executor of the first worker as soon as something is written -> its process."""
    from riverbed.tools.live.redisclient import RedisClient
    from riverbed.tools.live.target import server_address

    address = server_address(server)
    assert address is not None
    with RedisClient(address, 60) as client:
        deadline = time.monotonic() + 120
        while client.call("XLEN", "copy") < 100 and time.monotonic() < deadline:
            time.sleep(0.05)
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and (path / "cwd").resolve().is_relative_to(work[0]):
                os.kill(int(path.name), signal.SIGKILL)
                return [int(path.name)]
    return []


if __name__ == "__main__":
    main(*sys.argv[1:])
