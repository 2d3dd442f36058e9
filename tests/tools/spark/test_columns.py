from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.columns.sidecar import stream_columns, write_columns
from riverbed.tools.spark.columns import read_columns
from tests.support.store.stores import Store, sid


def row_hash(frame: DataFrame) -> tuple[int, int]:
    """The number of rows, and a sum of the hashes of whole rows."""
    with_rest = frame.withColumn("_rest", sql.sort_array(sql.map_entries("_rest")))
    names = ["`{}`".format(name.replace("`", "``")) for name in with_rest.columns]
    row = with_rest.select(sql.xxhash64(*names).cast("decimal(38,0)").alias("h"))
    found = row.agg(sql.count("*"), sql.sum("h")).collect()[0]
    return found[0], int(found[1])


def test_columns_and_tables_have_equal_rows(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    stream = store.stream(b"orders", 2)
    for number in range(5000):
        words = [b"user", b"u%d" % (number % 50), b"raw", bytes([number % 256]), b"a `b`", b"x"]
        words += [b"now and then", b"1", b"USER", b"2", b"\xff", b"3"] if number % 5 == 0 else []
        stream.append_entry(sid(f"{1 + number // 3}-{number}"), words)
    store.commit()
    store.checkpoint()
    store.kill()
    snapshot = take_snapshot(tmp_path / "store", program="test")

    with pytest.warns(UserWarning, match="has no columns; reading the tables") as caught:
        tables = read_columns(spark, snapshot.path, "orders", db=2)
    assert len(caught) == 1
    write_columns(snapshot)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = read_columns(spark, snapshot.path, "orders", db=2)
    assert "Parquet" in columns._jdf.queryExecution().toString()
    assert columns.dtypes == tables.dtypes
    expected = row_hash(tables)
    assert row_hash(columns) == expected
    assert expected[0] == 5000
    asked = "_ms between 100 and 200 and user = 'u7'"
    assert sorted(columns.where(asked).select("_id").collect()) == sorted(tables.where(asked).select("_id").collect())

    (file,) = stream_columns(open_snapshot(snapshot.path), 2, b"orders").files
    data = bytearray(file.read_bytes())
    data[500] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="is damaged"):
        again = read_columns(spark, snapshot.path, "orders", db=2)
    assert row_hash(again) == expected
