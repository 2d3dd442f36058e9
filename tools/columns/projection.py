"""Chooses the columns of a stream's entries, and makes them of rows.

    _id string, _ms int64, _seq int64, _fields map<string, binary>      of every entry
    _rest map<string, binary>                                           the fields that have no column
    any other name                                                      a field: its last value, null where missing

Milliseconds and sequence numbers from 2^63 on are null, as no signed column has them; `_id` is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from riverbed.tools.columns.convert import Cast, converter
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.metadata import fields_map, longs

REST: Final = "_rest"
METADATA: Final = {
    "_ms": pa.int64(),
    "_seq": pa.int64(),
    "_id": pa.string(),
    "_fields": pa.map_(pa.string(), pa.binary()),
    REST: pa.map_(pa.string(), pa.binary()),
}
# Fields beyond these are in `_fields` alone: a file with a column for each of a million names helps no reader.
MAX_FIELDS: Final = 200


class Projection:
    """Columns by name, in their order, and how each is made."""

    def __init__(self, columns: Mapping[str, pa.DataType]) -> None:
        """Raises UnsupportedTypeError for a column that cannot have its type."""
        self.schema = pa.schema(list(columns.items()))
        self._casts: dict[str, Cast] = {name: converter(kind) for name, kind in columns.items() if name not in METADATA}

    def batch(self, rows: EntryBatch) -> pa.RecordBatch:
        """The columns of some rows.  Raises MalformedRowError."""
        return pa.RecordBatch.from_arrays([self._column(name, rows) for name in self.schema.names], schema=self.schema)

    def _column(self, name: str, rows: EntryBatch) -> pa.Array:
        match name:
            case "_ms":
                return longs(rows.ms())
            case "_seq":
                return longs(rows.seq())
            case "_id":
                return rows.ids().cast(pa.string())
            case "_fields":
                return fields_map(rows)
            case "_rest":
                return fields_map(rows, without=[name.encode() for name in self._casts])
        texts = rows.texts(name.encode()) if self.schema.field(name).type == pa.string() else None
        return self._casts[name](rows.column(name.encode())) if texts is None else texts


def field_types(
    batches: Iterable[EntryBatch], known: Mapping[str, pa.DataType] | None = None
) -> dict[str, pa.DataType]:
    """The fields of some entries, by their first entries: string where every value is UTF-8, else binary.

    `known`: those of earlier entries, which are found already.

    Left out, and so in `_fields` alone: names that are not UTF-8, that are empty, that begin with an underscore, or
    that differ from an earlier one in case alone, which SQL cannot tell apart; and all after the first 200.
    """
    found = dict(known or {})
    folded = {text.casefold() for text in found}
    for rows in batches:
        for name in rows.names():
            text = column_name(name)
            if text and text not in found and text.casefold() not in folded and len(found) < MAX_FIELDS:
                found[text] = pa.string()
                folded.add(text.casefold())
        for text, kind in found.items():
            if kind == pa.string() and rows.texts(text.encode()) is None:
                found[text] = pa.binary()
    return found


def column_name(name: bytes) -> str | None:
    """The column that a field may have; None for a name that is in `_fields` alone."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    return None if not text or text.startswith("_") or not text.isprintable() else text
