"""Reads a stream of a snapshot at the speed of Parquet: over its columns where they are whole, else over the tables."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from riverbed.store.snapshot.reader import open_snapshot
from riverbed.tools.arrow import open_store
from riverbed.tools.columns.metadata import name_in_map
from riverbed.tools.columns.projection import METADATA, REST
from riverbed.tools.sidecar.segments import all_columns
from riverbed.tools.sidecar.sidecar import ColumnsError, StreamColumns, stream_columns
from riverbed.tools.spark.reading.cache import Cache
from riverbed.tools.spark.reading.options import CACHE_BYTES, names_text
from riverbed.tools.spark.reading.over_columns import columns_folder


def read_columns(
    spark: SparkSession,
    snapshot: str | Path,
    stream: str | bytes,
    *,
    db: int = 0,
    cache_directory: str | Path | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> DataFrame:
    """The entries of a stream: `_ms _seq _id`, a column for each of its fields, and `_rest` with the others.

    Spark plans over plain Parquet, without Python and without a jar.  Columns that are missing, damaged, of another
    version or of another snapshot are not read: one warning says so, and the tables give the same rows.

    With `cache_directory`, a snapshot without columns gets them there, at its first query; the snapshot stays as it is.
    All machines must share that directory.  It keeps at most `cache_bytes` beside what is in use.

    Raises StoreError, OSError for what is no snapshot; Failure for a stream that it does not have; SourceError for a
    cache of another user.
    """
    path = Path(snapshot).absolute()
    key = stream.encode() if isinstance(stream, str) else stream
    try:
        cache = None if cache_directory is None else Cache(str(cache_directory), cache_bytes)
        found = open_snapshot(path)
        columns = stream_columns(found, db, key, columns_folder(found, cache))
        # With a schema, Spark need not ask a file for it, in a job.
        return spark.read.schema(_schema(columns)).parquet(_literal(columns.folder))
    except ColumnsError as error:
        warnings.warn(f"{error}; reading the tables", stacklevel=2)
    return _over_tables(spark, path, key, db)


def _literal(path: Path) -> str:
    """A path for Spark, which expands what it is given as a glob, and decodes no `%20`."""
    return "file://" + re.sub(r"([\\*?{}\[\]])", r"\\\1", str(path))


def _schema(columns: StreamColumns) -> StructType:
    return from_arrow_schema(pa.schema(list(all_columns(columns.columns).items())))


def _over_tables(spark: SparkSession, path: Path, key: bytes, db: int) -> DataFrame:
    with open_store(path) as store:
        kinds = {field.name: str(field.type) for field in store.schema(key, db=db)}
    fields = [name for name in kinds if name not in METADATA]
    quoted = ["`{}` {}".format(name.replace("`", "``"), kinds[name]) for name in fields]
    schema = ", ".join(["_ms bigint, _seq bigint, _id string", *quoted, "_fields map<string,binary>"])
    read = (
        spark.read.format("riverbed")
        .schema(schema)
        .option("streams", names_text([(db, key)]))
        .option("columns", "ignore")
    )
    in_map = [name_in_map(name.encode()) for name in fields]
    rest = sql.map_filter("_fields", lambda name, _: ~name.isin(in_map)).alias(REST)
    columns = [sql.col("`{}`".format(name.replace("`", "``"))) for name in ("_ms", "_seq", "_id", *fields)]
    return read.load(str(path)).select(*columns, rest)
