"""Makes entries of the rows of a data frame: which column is the key, which the ID, and which are fields.

    key       string or binary; not needed if option stream names the only stream
    id        string, optional: an ID such as 1700000000000-0; null or no such column: the server gives the ID
    fields    map of string or binary to string or binary: the fields, in the map's order
    items     array<struct<name,value>> instead of fields, as `_items` is read: names may come twice
    others    without `fields` and `items`, each column is a field; null: the entry does not have it

`_key`, `_id`, `_fields` and `_items`, the names of these columns in a projected read, mean the same.  If there is a
column `_key`, `key` is a field.  Entries can be read back with the same schema: numbers are written as digits, times as
ISO 8601 in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from riverbed.store.ids import parse_id
from riverbed.tools.spark.errors import OptionError, SourceError

_SPECIAL: Final = ("key", "id", "fields", "items")
_UTC: Final = pa.timestamp("us", tz="UTC")
_NAIVE: Final = pa.timestamp("us")


class Entry(NamedTuple):
    """One row: `entry_id` None lets the server choose; `words` are names and values in turn."""

    key: bytes
    entry_id: bytes | None
    words: list[bytes]


@dataclass(frozen=True)
class RowMaker:
    """Makes entries of batches of one schema.  Columns are given by their index."""

    stream: bytes | None
    key: int | None
    id: int | None
    fields: int | None
    items: int | None
    others: tuple[tuple[int, bytes], ...]

    def entries(self, batch: pa.RecordBatch) -> Iterator[Entry]:
        """The rows as entries.  Raises SourceError for a row that cannot be an entry."""
        keys = None if self.key is None else batch.column(self.key).cast(pa.binary()).to_pylist()
        ids = None if self.id is None else batch.column(self.id).to_pylist()
        for number, words in enumerate(self._words(batch)):
            key = self.stream if keys is None else keys[number]
            if key is None:
                raise SourceError(f"a row without a key: {_shown(words)}; filter it out, or name a stream")
            if not words:
                raise SourceError(
                    f"a row for stream {key.decode(errors='backslashreplace')} has no field: all columns are null, "
                    f"or the map is empty; an entry has at least one"
                )
            entry_id = None
            if ids is not None and ids[number] is not None:
                entry_id = _exact_id(ids[number], words)
            yield Entry(key, entry_id, words)

    def _words(self, batch: pa.RecordBatch) -> Iterator[list[bytes]]:
        if self.fields is not None:
            column = batch.column(self.fields)
            return _pairs(column, column.keys, column.items)
        if self.items is not None:
            column = batch.column(self.items)
            return _pairs(column, *column.values.flatten())
        columns = [(name, _texts(batch.column(at))) for at, name in self.others]
        return _flat(columns, batch.num_rows)


def _flat(columns: list[tuple[bytes, list[bytes | None]]], count: int) -> Iterator[list[bytes]]:
    for row in range(count):
        words: list[bytes] = []
        for name, values in columns:
            value = values[row]
            if value is not None:
                words += (name, value)
        yield words


def _pairs(column: Any, names: pa.Array, values: pa.Array) -> Iterator[list[bytes]]:
    """Names and values of each list of a column, without the names whose value is null."""
    offsets = column.offsets.to_pylist()
    first, count = offsets[0], offsets[-1] - offsets[0]  # of a slice the names and values are those of the whole column
    flat_names = names.slice(first, count).cast(pa.binary()).to_pylist()
    flat_values = values.slice(first, count).cast(pa.binary()).to_pylist()
    for row, is_valid in enumerate(column.is_valid().to_pylist()):
        words: list[bytes] = []
        if is_valid:
            for at in range(offsets[row] - first, offsets[row + 1] - first):
                if flat_names[at] is None:
                    raise SourceError("a field without a name")
                if flat_values[at] is not None:
                    words += (flat_names[at], flat_values[at])
        yield words


def _exact_id(text: str, words: list[bytes]) -> bytes:
    found = parse_id(text.encode())
    if not found:  # not an ID, or 0-0
        raise SourceError(f"{text[:60]!r} is no ID of an entry, such as 1700000000000-0: {_shown(words)}")
    return b"%d-%d" % (found >> 64, found & ((1 << 64) - 1))


def _shown(words: list[bytes]) -> str:
    text = " ".join(word.decode(errors="backslashreplace") for word in words)
    return text if len(text) <= 100 else f"{text[:97]}..."


# -- columns -----------------------------------------------------------------------------------------------------------


def row_maker(schema: StructType, stream: bytes | None) -> RowMaker:
    """Decide what each column is.  Raises OptionError for a schema that cannot be written as entries."""
    names = schema.fieldNames()
    if len(set(names)) != len(names):
        raise OptionError(f"two columns have the same name: {', '.join(names)}")
    place = {name: f"_{name}" if f"_{name}" in names else name for name in _SPECIAL}
    # Columns `fields` and `items` with other types are ordinary fields.
    at = {name: names.index(column) for name, column in place.items() if column in names}
    for name, is_meant in (("fields", _is_map), ("items", _is_items)):
        if name in at and not is_meant(schema[at[name]].dataType):
            if place[name].startswith("_"):
                raise _wrong(schema[at[name]], name)
            del at[name]
    if "fields" in at and "items" in at:
        raise OptionError("an entry's fields come from fields or from items, not from both")
    _check_key(schema, at, stream)
    if "id" in at and not isinstance(schema[at["id"]].dataType, StringType):
        raise OptionError(
            f"{place['id']} is {schema[at['id']].dataType.simpleString()}, and IDs of entries are texts such as "
            f"1700000000000-0; rename the column to write it as a field"
        )
    others = [number for number in range(len(names)) if number not in at.values()]
    return RowMaker(stream, at.get("key"), at.get("id"), at.get("fields"), at.get("items"), _others(schema, others, at))


def _check_key(schema: StructType, at: dict[str, int], stream: bytes | None) -> None:
    if stream is not None:
        if "key" in at:
            raise OptionError("both a column key and option stream say which stream: drop one, or rename the column")
        return
    if "key" not in at:
        raise OptionError(f"no stream: give option stream, or a column key; there are {', '.join(schema.names)}")
    if not _is_text(schema[at["key"]].dataType):
        raise _wrong(schema[at["key"]], "key")


def _others(schema: StructType, others: list[int], at: dict[str, int]) -> tuple[tuple[int, bytes], ...]:
    names = [schema[number].name for number in others]
    for whole in ("fields", "items"):
        if whole in at and others:
            raise OptionError(
                f"beside {schema[at[whole]].name}, which has all fields, there are {', '.join(names)}: select key, id "
                f"and {schema[at[whole]].name} alone, or leave that one out"
            )
    for number in others:
        field = schema[number]
        if field.name.startswith("_"):
            raise OptionError(
                f"{field.name} cannot be written: names with an underscore are about the entry; drop or rename it"
            )
        if not _is_value(field.dataType):
            raise OptionError(
                f"{field.name} is {field.dataType.simpleString()}, and a field is one value: take to_json({field.name})"
            )
    if not others and "fields" not in at and "items" not in at:
        raise OptionError("there is no column to make fields of")
    return tuple((number, name.encode()) for number, name in zip(others, names, strict=True))


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType))


def _is_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


def _is_items(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    return kind.elementType.names == ["name", "value"] and all(_is_text(each.dataType) for each in kind.elementType)


def _is_value(kind: DataType) -> bool:
    single = (BooleanType, IntegralType, FractionalType, DecimalType, DateType, TimestampType, TimestampNTZType)
    return _is_text(kind) or isinstance(kind, single)


_MEANT: Final = {
    "key": "string or binary",
    "fields": "a map of string or binary to string or binary",
    "items": "array<struct<name:binary,value:binary>>",
}


def _wrong(field: StructField, name: str) -> OptionError:
    return OptionError(f"{field.name} is {field.dataType.simpleString()}, and must be {_MEANT[name]}")


# -- values ------------------------------------------------------------------------------------------------------------


def _texts(column: pa.Array) -> list[bytes | None]:
    kind = column.type
    text: Callable[[pa.Array], pa.Array] = _TEXTS.get(kind.id, lambda values: values.cast(pa.string()))
    values: list[bytes | None] = text(column).cast(pa.binary()).to_pylist()
    return values


def _moments(values: pa.Array) -> pa.Array:
    if values.type.tz is None:
        return pc.strftime(values.cast(_NAIVE), format="%Y-%m-%dT%H:%M:%S")
    return pc.strftime(values.cast(_UTC).cast(_NAIVE), format="%Y-%m-%dT%H:%M:%SZ")


# How values of a type are written.  For the other types, the text that Arrow makes can be read back.
_TEXTS: Final[dict[int, Callable[[pa.Array], pa.Array]]] = {
    pa.binary().id: lambda values: values,
    _UTC.id: _moments,
}
