"""Reads a stream of a snapshot at the speed of Parquet: over its columns where they are whole, else over the tables."""

from __future__ import annotations

import warnings
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from riverbed.store.snapshot.reader import open_snapshot
from riverbed.tools.arrow import open_store
from riverbed.tools.columns.projection import METADATA, REST
from riverbed.tools.columns.sidecar import ColumnsError, stream_columns
from riverbed.tools.spark.reading.options import names_text


def read_columns(spark: SparkSession, snapshot: str | Path, stream: str | bytes, *, db: int = 0) -> DataFrame:
    """The entries of a stream: `_ms _seq _id`, a column for each of its fields, and `_rest` with the others.

    Spark plans over plain Parquet, without Python and without a jar.  Columns that are missing, damaged, of another
    version or of another snapshot are not read: one warning says so, and the tables give the same rows.

    Raises StoreError, OSError for what is no snapshot; Failure for a stream that it does not have.
    """
    path = Path(snapshot).absolute()
    key = stream.encode() if isinstance(stream, str) else stream
    try:
        files = stream_columns(open_snapshot(path), db, key).files
        # As a URI, since Spark takes a path for a glob.
        return spark.read.parquet(*(file.as_uri() for file in files))
    except ColumnsError as error:
        warnings.warn(f"{error}; reading the tables", stacklevel=2)
    return _over_tables(spark, path, key, db)


def _over_tables(spark: SparkSession, path: Path, key: bytes, db: int) -> DataFrame:
    with open_store(path) as store:
        kinds = {field.name: str(field.type) for field in store.schema(key, db=db)}
    fields = [name for name in kinds if name not in METADATA]
    quoted = ["`{}` {}".format(name.replace("`", "``"), kinds[name]) for name in fields]
    schema = ", ".join(["_ms bigint, _seq bigint, _id string", *quoted, "_fields map<string,binary>"])
    read = spark.read.format("riverbed").schema(schema).option("streams", names_text([(db, key)]))
    rest = sql.map_filter("_fields", lambda name, _: ~name.isin(fields)).alias(REST)
    columns = [sql.col("`{}`".format(name.replace("`", "``"))) for name in ("_ms", "_seq", "_id", *fields)]
    return read.load(str(path)).select(*columns, rest)
