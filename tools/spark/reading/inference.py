"""A schema for entries from a sample of them: a column for each common field, with the narrowest type that fits.

    boolean      true, false                              timestamp    a day with or without a time
    bigint       digits, without zeros in front           string       UTF-8
    double       also a fraction or an exponent           binary       all else
    date         2026-11-21

A number that would read back as another text is a string: 007, +1, and whole numbers with more digits than a bigint or
a double keeps.  A type holds for the sample alone: a value elsewhere that does not fit is handled by the mode.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from riverbed.store.tables.reader import TableReader
from riverbed.tools.columns.convert import converter
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.projection import MAX_FIELDS, column_name
from riverbed.tools.spark.errors import UNREADABLE, OptionError, SourceError
from riverbed.tools.spark.reading.locations import open_place, resolve
from riverbed.tools.spark.reading.named import require_named
from riverbed.tools.spark.reading.options import ReadOptions, Table
from riverbed.tools.spark.reading.plan import plan
from riverbed.tools.spark.reading.streamwalk import fetch_span

# Places over which a sample is spread, if the snapshot has so many.
_SPREAD: Final = 16
# A field is common when it is in one of so many sampled entries.
_COMMON: Final = 100
# Names that are looked at: a store may have another one in each entry.
_MAX_NAMES: Final = 1000
_ABOUT_ENTRY: Final = (
    StructField("_key", StringType()),
    StructField("_id", StringType()),
    StructField("_timestamp", TimestampType()),
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type, and the texts that may have it; of those the ones that its cast takes."""

    spark: DataType
    arrow: pa.DataType
    pattern: str | None

    def fits(self, values: pa.Array) -> bool:
        if self.pattern is not None and not pc.all(pc.match_substring_regex(values, self.pattern), min_count=0).as_py():
            return False
        return bool(converter(self.arrow)(values).null_count == values.null_count)


# The narrowest first.
_KINDS: Final = (
    _Kind(BooleanType(), pa.bool_(), "(?i)^(?:true|false)$"),
    _Kind(LongType(), pa.int64(), "^(?:0|-?[1-9][0-9]{0,18})$"),
    _Kind(DoubleType(), pa.float64(), r"^-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?$"),
    _Kind(DateType(), pa.date32(), "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
    _Kind(TimestampType(), pa.timestamp("us", tz="UTC"), "^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}.*)?$"),
    _Kind(StringType(), pa.string(), None),
    _Kind(BinaryType(), pa.binary(), None),
)


@dataclass(slots=True)
class _Seen:
    """What the sample shows of a field: in how many entries it is, and the types that fit all values."""

    entries: int = 0
    kinds: list[_Kind] = field(default_factory=lambda: list(_KINDS))

    def add(self, values: pa.Array) -> None:
        self.entries += len(values) - values.null_count
        while not self.kinds[0].fits(values):
            del self.kinds[0]


def inferred_schema(options: ReadOptions) -> StructType:
    """`_key _id _timestamp`, and a column for each common field of the entries that `options` ask for.

    Raises SourceError for what cannot be read.
    """
    if options.table is not Table.ENTRIES:
        raise OptionError(f"inferSchema is for entries; table {options.table.value} has its columns")
    found: dict[bytes, _Seen] = {}
    entries = 0
    try:
        for batch in _sample(options):
            entries += batch.count
            for name in batch.names():
                if name in found or len(found) < _MAX_NAMES:
                    found.setdefault(name, _Seen()).add(batch.column(name))
    except UNREADABLE as error:
        raise SourceError(f"cannot sample {', '.join(options.paths)}: {error}") from error
    common = {name: seen for name, seen in found.items() if seen.entries * _COMMON >= entries}
    return StructType([*_ABOUT_ENTRY, *_fields(common, options)])


def _fields(common: dict[bytes, _Seen], options: ReadOptions) -> list[StructField]:
    """Columns in the order of the first entries; of names that differ in case alone the first."""
    fields: dict[str, StructField] = {}
    for name, seen in common.items():
        text = column_name(name)
        if text and text != options.corrupt_column and len(fields) < MAX_FIELDS:
            fields.setdefault(text.casefold(), StructField(text, seen.kinds[0].spark))
    return list(fields.values())


def _sample(options: ReadOptions) -> Iterator[EntryBatch]:
    """About as many entries as the options say, spread over what is read."""
    spread = replace(options, min_partitions=_SPREAD, max_records=0)
    places = resolve(options)
    require_named(places, options)
    spans = plan(places, spread, os.cpu_count() or 1)
    left = options.sampled_entries
    for number, span in enumerate(spans):
        take = -(-left // (len(spans) - number))
        if not take:
            return
        tables = open_place(span.place, options)
        with tables.env.begin() as txn:
            part = replace(span, take=min(take, take if span.take is None else span.take))
            for fetched in fetch_span(TableReader(tables, txn), part, options):
                left -= fetched.batch.count
                yield fetched.batch
