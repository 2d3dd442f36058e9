"""What Spark calls: the data source, its schema, its readers and writers.

`reader` and `partitions` run in a planner process beside the driver, `read` in the workers of executors; objects that
they share are pickled.  So nothing is opened before `read`.  Before the first row of a first query, Spark starts a
process that looks for sources, one that makes this one, one that plans, and the workers.  Each imports this module
again, so what does the work is imported by the functions that need it.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

NAME = "riverbed"


class RiverbedSource(DataSource):
    """`spark.read.format("riverbed")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        from riverbed.tools.spark.reading.options import read_options

        options = read_options(self.options)
        if options.infer_schema:
            from riverbed.tools.spark.garbage import settle
            from riverbed.tools.spark.reading.inference import inferred_schema

            settle()
            return inferred_schema(options)
        from riverbed.tools.spark.reading.schemas import default_schema

        return default_schema(options.table)

    def reader(self, schema: StructType) -> DataSourceReader:
        from riverbed.tools.spark.reading.batch import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from riverbed.tools.spark.reading.options import read_options
        from riverbed.tools.spark.reading.schemas import warn_of_default_names
        from riverbed.tools.spark.streaming.streaming import EntryStreamReader

        reader = EntryStreamReader(read_options(self.options), schema)
        warn_of_default_names(schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from riverbed.tools.spark.writing.writer import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from riverbed.tools.spark.writing.writer import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
