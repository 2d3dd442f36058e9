"""The columns of entries that are no fields: IDs as numbers and times, bytes as text, and the map of all fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverbed.tools.columns.decode import EntryBatch

_LAST_TIMESTAMP_MS: Final = ((1 << 63) - 1) // 1000
_LIKE_BYTE: Final = re.compile(rb"\\(?=x[0-9a-f]{2})")
_MAX_LONG: Final = (1 << 63) - 1


def longs(numbers: Any) -> pa.Array:
    """Unsigned numbers of 64 bits as Spark's signed ones; null for numbers that do not fit."""
    return pa.array(numbers.astype(np.int64), mask=numbers > _MAX_LONG if (numbers > _MAX_LONG).any() else None)


def timestamps(ms: Any) -> pa.Array:
    """Unix milliseconds as timestamps of microseconds; null beyond the year 294247, where timestamps end."""
    beyond = ms > _LAST_TIMESTAMP_MS
    micros = np.where(beyond, 0, ms).astype(np.int64) * 1000
    return pa.array(micros, mask=beyond if beyond.any() else None).cast(pa.timestamp("us", tz="UTC"))


def readable(values: pa.BinaryArray) -> pa.Array:
    """Bytes as text; bytes that are not UTF-8 are written as \\xff."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="backslashreplace") for value in values.to_pylist()]
        return pa.array(texts, type=pa.string())


def field_names(names: pa.BinaryArray) -> pa.Array:
    r"""Names as `readable`, and no two alike, as keys of a map have to be: the text `\xff` is written as `\x5cxff`."""
    if not pc.any(pc.match_substring(names, "\\x")).as_py():
        return readable(names)
    return pa.array(list(map(name_in_map, names.to_pylist())), type=pa.string())


def name_in_map(name: bytes) -> str:
    """The text of a field's name where it is the key of a map."""
    return _LIKE_BYTE.sub(rb"\\x5c", name).decode(errors="backslashreplace")


def fields_map(batch: EntryBatch, *, as_text: bool = False, without: Sequence[bytes] = ()) -> pa.MapArray:
    """The fields of each entry by name, the last of several with one name; names, and maybe values, as text."""
    if without and set(batch.names()) <= set(without):
        nothing = pa.array([], type=pa.string()), pa.array([], type=pa.binary())
        return pa.MapArray.from_arrays(pa.array(np.zeros(batch.count + 1, dtype=np.int32)), *nothing)
    items = batch.items(unique=True)
    offsets, names, values = items.offsets, items.names, items.values
    if without:
        kept = pc.invert(pc.is_in(names, value_set=pa.array(without, type=pa.binary())))
        passed = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False))))
        offsets, names, values = passed[offsets].astype(np.int32), names.filter(kept), values.filter(kept)
    return pa.MapArray.from_arrays(pa.array(offsets), field_names(names), readable(values) if as_text else values)
