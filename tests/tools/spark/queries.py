"""Streaming queries that read all there is, and end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def read_all(spark: SparkSession, source: Path, work: Path, schema: str, **options: str | int) -> list[Any]:
    """Read into a Parquet sink, from where the query before it in `work` has ended; -> the progress of each batch."""
    query = (
        spark.readStream.format("riverbed")
        .options(**options)
        .schema(schema)
        .load(str(source))
        .writeStream.format("parquet")
        .option("path", str(work / "sink"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return list(query.recentProgress)
