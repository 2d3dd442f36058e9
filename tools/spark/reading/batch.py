"""The batch reader: a planner process makes it and asks it for partitions, workers ask it for their rows.

What only workers need is imported by the functions that read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from riverbed.store.errors import StoreError
from riverbed.store.ids import id_text
from riverbed.store.snapshot.reader import Snapshot
from riverbed.store.tables.reader import TableReader
from riverbed.tools.columns.streams import Range, key_text
from riverbed.tools.spark.errors import UNREADABLE, DataLossError, OptionError, SourceError
from riverbed.tools.spark.garbage import settle
from riverbed.tools.spark.reading.filters import push
from riverbed.tools.spark.reading.locations import Place, may_have_columns, open_place, resolve
from riverbed.tools.spark.reading.named import require_named
from riverbed.tools.spark.reading.options import ReadOptions, Table, read_options
from riverbed.tools.spark.reading.plan import Span, plan
from riverbed.tools.spark.reading.schemas import (
    EntryColumns,
    default_schema,
    entry_columns,
    picked_columns,
    warn_of_default_names,
)

if TYPE_CHECKING:
    import pyarrow as pa


def batch_reader(given: Mapping[str, str], schema: StructType) -> SnapshotReader:
    """The reader of a query with these options.  Raises OptionError."""
    settle()
    options = read_options(given)
    reader = SnapshotReader(options, schema)
    if options.table is Table.ENTRIES:
        warn_of_default_names(schema)
    return reader


class _PushFilters:
    """`pushFilters` of a reader.

    Spark refuses readers with their own `pushFilters` while `spark.sql.python.filterPushdown.enabled` is false: it
    checks whether `pushFilters` is the function of the base class.  This object passes the check, and is called only
    when the setting is on.
    """

    # Not bound to this object: Spark compares the function by identity.
    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.options, left = push(self._reader.options, filters, prefix=self._reader.prefix)
        return left


class SnapshotReader(DataSourceReader):
    """Reads one table of some snapshots."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.starts_at_end:
            raise OptionError("startingOffsets=latest is for readStream: a batch read would find no entry behind it")
        self.options = options
        self.spark_schema = schema
        # Checked here, so that the user sees the error before any task starts.
        self._columns(schema)

    @property
    def prefix(self) -> str:
        """What the names of metadata columns begin with."""
        is_projection = self.options.table is Table.ENTRIES and self.spark_schema != default_schema(Table.ENTRIES)
        return "_" if is_projection else ""

    def _columns(self, schema: StructType) -> Any:
        if self.options.table is Table.ENTRIES:
            return entry_columns(schema, self.options)
        return picked_columns(schema, self.options.table)

    @property
    def pushFilters(self) -> _PushFilters:
        return _PushFilters(self)

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        try:
            places = resolve(options)
            require_named(places, options)
            if options.table is Table.ENTRIES and options.starts_at_id and options.fail_on_data_loss:
                _require_beginning(places, options)
            if options.table is Table.ENTRIES:
                columns = entry_columns(self.spark_schema, options)
                places = [(_over_columns(place, snapshot, options, columns), snapshot) for place, snapshot in places]
            return plan(places, options, os.cpu_count() or 1)
        except (StoreError, OSError) as error:
            raise SourceError(f"cannot plan the read: {error}") from error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        if not isinstance(partition, Span):  # Spark passes its own partition when there are none
            return
        options = self.options
        try:
            tables = open_place(partition.place, options)
            with tables.env.begin() as txn:
                yield from self._batches(TableReader(tables, txn), partition)
        except DataLossError:
            if options.fail_on_data_loss:
                raise
        except UNREADABLE as error:
            raise SourceError(f"cannot read {partition.place.name}: {error}") from error

    def _batches(self, reader: TableReader, span: Span) -> Iterator[pa.RecordBatch]:
        columns = self._columns(self.spark_schema)
        if self.options.table is Table.ENTRIES:
            from riverbed.tools.spark.reading.entries import entry_batches

            return entry_batches(reader, span, self.options, columns)
        from riverbed.tools.spark.reading.groups import group_batches

        return group_batches(reader, span, self.options, columns)


def _over_columns(place: Place, snapshot: Snapshot, options: ReadOptions, columns: EntryColumns) -> Place:
    if not may_have_columns(place, options):
        return place
    from riverbed.tools.spark.reading.over_columns import over_columns

    wanted = (
        (stream.stream_no, options.range_of(stream.db, stream.key).cut(Range(stream.first_id, stream.last_live_id)))
        for stream in snapshot.streams()
        if stream.length and options.wants(stream.db, stream.key)
    )
    return over_columns(place, options, columns, wanted)


def _require_beginning(places: list[tuple[Place, Snapshot]], options: ReadOptions) -> None:
    """Raise DataLossError when a stream has lost entries from the requested first ID on.

    A stream has lost some when its first entry is younger than that ID and the stream once had more entries.  Single
    entries deleted after its first one do not count as lost: a client deleted them on purpose.
    """
    first = options.range.first
    if options.range.is_empty:  # a filter fits nothing
        return
    for place, snapshot in places:
        for stream in snapshot.streams():
            had_more = stream.entries_added > stream.length
            begins_later = stream.first_id > first if stream.length else stream.last_id >= first
            if options.wants(stream.db, stream.key) and had_more and begins_later:
                now = f"begins with {id_text(stream.first_id).decode()}" if stream.length else "is empty"
                raise DataLossError(
                    f"stream {key_text(stream.key)} in {place.name} {now}: the entries before that, from "
                    f"{id_text(first).decode()} on, were trimmed; failOnDataLoss=false reads the entries that are left"
                )
