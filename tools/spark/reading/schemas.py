"""The columns of each table, and the columns that a user's schema asks for.

Without a schema a table has its default columns.  For `entries` a schema makes columns of fields: each name that does
not begin with an underscore is a field of the entries, and metadata columns are `_key`, `_id` and so on.  For the other
tables it picks columns.  Spark's Python API does not pass on which columns a query needs, so only a schema prunes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from riverbed.tools.columns.convert import Cast, UnsupportedTypeError, converter
from riverbed.tools.spark.errors import OptionError
from riverbed.tools.spark.reading.options import ReadOptions, Table

DEFAULT: Final[dict[Table, str]] = {
    Table.ENTRIES: "key string, db int, id string, ms bigint, seq bigint, timestamp timestamp, "
    "fields map<string,binary>, snapshot string",
    Table.PENDING: "key string, db int, group string, consumer string, id string, ms bigint, seq bigint, "
    "timestamp timestamp, delivered timestamp, idle_ms bigint, deliveries bigint, entry_exists boolean, "
    "snapshot string",
    Table.GROUPS: "key string, db int, group string, last_delivered_id string, entries_read bigint, lag bigint, "
    "pending bigint, released bigint, consumers bigint, snapshot string",
    Table.CONSUMERS: "key string, db int, group string, consumer string, pending bigint, seen timestamp, "
    "active timestamp, idle_ms bigint, inactive_ms bigint, snapshot string",
    Table.STREAMS: "key string, db int, length bigint, first_id string, last_entry_id string, last_id string, "
    "max_deleted_id string, entries_added bigint, groups bigint, bytes bigint, expires timestamp, snapshot string",
}

# More columns that a schema may pick: the bytes of names that the columns above show as text, and settings.
MORE: Final[dict[Table, str]] = {
    Table.PENDING: "key_binary binary, group_binary binary, consumer_binary binary",
    Table.GROUPS: "key_binary binary, group_binary binary, policy string",
    Table.CONSUMERS: "key_binary binary, group_binary binary, consumer_binary binary",
    Table.STREAMS: "key_binary binary",
}

# The metadata columns that a schema for entries may have beside fields.
METADATA: Final[dict[str, str]] = {
    "_key": "string",
    "_key_binary": "binary",
    "_db": "int",
    "_id": "string",
    "_ms": "bigint",
    "_seq": "bigint",
    "_timestamp": "timestamp",
    "_fields": "map<string,binary>",
    "_fields_text": "map<string,string>",
    "_items": "array<struct<name:binary,value:binary>>",
    "_snapshot": "string",
}


@dataclass(frozen=True)
class EntryColumn:
    """One column of table entries: a metadata column, or a field and how its values are cast."""

    name: str  # in the result
    metadata: str | None  # without underscore
    field: bytes | None
    type: pa.DataType
    cast: Cast | None


@dataclass(frozen=True)
class EntryColumns:
    """The columns to read of entries, in the order of the result."""

    schema: pa.Schema
    columns: tuple[EntryColumn, ...]
    corrupt: int | None  # the number of the column for entries with a value that did not fit


# Spark's own parser of these texts needs a session, and the planner process has none.
_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "array<struct<name:binary,value:binary>>": ArrayType(
        StructType([StructField("name", BinaryType()), StructField("value", BinaryType())])
    ),
}


def default_schema(table: Table) -> StructType:
    """The columns of a table that a read has without a schema."""
    return StructType(_fields(DEFAULT[table]))


def _fields(text: str) -> list[StructField]:
    return [StructField(name, _TYPES[kind]) for name, kind in (column.split(" ") for column in text.split(", "))]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that Spark expects of a reader's batches.  Raises OptionError for one that no batch can have."""
    names = schema.fieldNames()
    if not names:
        raise OptionError("the schema has no columns, and rows without any cannot be counted: name one, such as _ms")
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"column {name} is in the schema twice")
    return to_arrow_schema(schema, timezone="UTC")


def entry_columns(schema: StructType, options: ReadOptions) -> EntryColumns:
    """The columns of entries that `schema` asks for.  Raises OptionError for a column that cannot be made."""
    arrow = arrow_schema(schema)
    is_default = schema == default_schema(Table.ENTRIES)
    columns = []
    corrupt = None
    for number, (spark, field) in enumerate(zip(schema.fields, arrow, strict=True)):
        if not spark.nullable:
            raise OptionError(f"column {spark.name} must be nullable")
        if spark.name == options.corrupt_column:
            if not isinstance(spark.dataType, StringType):
                raise OptionError(f"{spark.name} must be a string")
            corrupt = number
            columns.append(EntryColumn(spark.name, "corrupt", None, field.type, None))
        elif is_default or spark.name.startswith("_"):
            known = METADATA.get("_" + spark.name.removeprefix("_"))
            if known is None:
                raise OptionError(f"there is no column {spark.name}; there are {', '.join(METADATA)}")
            if spark.dataType.simpleString() != known:
                raise OptionError(f"{spark.name} is {known}, and cannot be {spark.dataType.simpleString()}")
            columns.append(EntryColumn(spark.name, spark.name.removeprefix("_"), None, field.type, None))
        else:
            columns.append(EntryColumn(spark.name, None, spark.name.encode(), field.type, _cast_to(field.type)))
    return EntryColumns(arrow, tuple(columns), corrupt)


def warn_of_default_names(schema: StructType) -> None:
    """Warn of a schema for entries that takes its names from the default columns: it asks for fields of these names."""
    names = schema.fieldNames()
    default = default_schema(Table.ENTRIES)
    if names and schema != default and set(names) <= set(default.fieldNames()):
        asked, meant = ", ".join(names), ", ".join(f"_{name}" for name in names)
        warnings.warn(
            f"the columns {asked} of the schema are fields of the entries; what an entry itself has is in {meant}",
            stacklevel=2,
        )


def _cast_to(kind: pa.DataType) -> Cast:
    try:
        return converter(kind)
    except UnsupportedTypeError as error:
        raise OptionError(str(error)) from None


def picked_columns(schema: StructType, table: Table) -> pa.Schema:
    """The columns of a table other than entries.  Raises OptionError for a column that it does not have."""
    known = {field.name: field for field in _fields(f"{DEFAULT[table]}, {MORE[table]}")}
    for field in schema.fields:
        there = known.get(field.name)
        if there is None:
            raise OptionError(f"table {table.value} has no column {field.name}; it has {', '.join(known)}")
        if there.dataType != field.dataType:
            asked = field.dataType.simpleString()
            raise OptionError(
                f"{field.name} of {table.value} is {there.dataType.simpleString()}, and cannot be {asked}"
            )
        if not field.nullable:
            raise OptionError(f"column {field.name} must be nullable")
    return arrow_schema(schema)
