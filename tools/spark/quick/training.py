"""The process that makes an archive of Spark's classes: `python -m riverbed.tools.spark.quick.training FILE`.

It starts a Spark that does a little of everything: what is loaded meanwhile is in the archive.  Java writes it when it
ends, and this process waits for that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import riverbed
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.sidecar.sidecar import write_columns
from riverbed.tools.spark.columns import read_columns
from riverbed.tools.spark.quick.start import quoted
from riverbed.tools.spark.source import NAME, RiverbedSource

_STREAM: Final = "orders"
_ROWS: Final = 5_000  # enough that columns are read from their files
# Nothing runs long enough to be compiled well; and Java would name each class that no archive can have.
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -Xlog:disable"


def main() -> None:
    """Make the archive.  Raises what Spark raises; OSError when Java wrote none."""
    path = Path(sys.argv[1])
    # Workers find this package where it is, installed or not.
    root = str(Path(riverbed.__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.port", "0")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.driver.extraJavaOptions", f"{quoted(f'-XX:ArchiveClassesAtExit={path}')} {_BRIEF}")
        .getOrCreate()
    )
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java: subprocess.Popen[bytes] = gateway.proc
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        _work(spark, Path(scratch))
        spark.stop()
    assert java.stdin is not None
    java.stdin.close()  # Java ends then
    if java.wait() or not path.exists():
        raise OSError(f"Java wrote no {path}")


def _work(spark: SparkSession, scratch: Path) -> None:
    spark.dataSource.register(RiverbedSource)
    rows = spark.range(_ROWS).selectExpr("concat('u', id % 7) AS user", "id * 0.5 AS amount")
    rows.write.format(NAME).mode("append").option("stream", _STREAM).save(str(scratch / "store"))
    snapshot = take_snapshot(scratch / "store", scratch / "snapshot", program=__name__)
    write_columns(snapshot)
    read = spark.read.format(NAME).schema("_key string, _timestamp timestamp, user string, amount double")
    read = read.option("cacheDirectory", str(scratch / "cache"))  # the default one is locked while this is made
    for frame in (read_columns(spark, snapshot.path, _STREAM), read.load(str(snapshot.path))):
        frame.count()
        frame.where("user = 'u1'").orderBy("amount").limit(3).collect()
        frame.groupBy("user").count().collect()
        frame.selectExpr("sum(cast(amount AS double))", "max(user)").collect()
        frame.write.format("noop").mode("overwrite").save()
    frame.createOrReplaceTempView(_STREAM)
    spark.sql(f"SELECT user, count(*) FROM {_STREAM} GROUP BY user").toArrow()
    frame.write.parquet(str(scratch / "parquet"))
    spark.read.parquet(str(scratch / "parquet")).show(1)


if __name__ == "__main__":
    with warnings.catch_warnings(action="ignore"):
        main()
