"""Casts the values of fields, which are bytes, to the types of a schema.  A value that does not fit becomes null.

    string       UTF-8                        boolean      true, false, 1, 0
    binary       unchanged                    date         2026-11-21
    integers     digits, maybe a minus sign   timestamp    ISO 8601, UTC unless it says otherwise; or unix milliseconds
    double ...   as Python's float            decimal      at most `scale` digits behind the point

A whole column is cast at once.  When that fails the column is halved, so that a few bad values cost a few more casts
and not a loop over all values.  Knows no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from riverbed.tools.spark.errors import OptionError

Cast = Callable[[pa.Array], pa.Array]

_INTEGERS: Final = {pa.int8(), pa.int16(), pa.int32(), pa.int64()}
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_NAIVE: Final = pa.timestamp("us")
# Arrow would accept 0x1f as a number.
_WHOLE: Final = r"^-?[0-9]+$"
_MILLISECONDS: Final = r"^[0-9]{1,15}$"


def converter(target: pa.DataType) -> Cast:
    """A cast of binary values to `target`, null where they do not fit.  Raises OptionError for an unsupported type."""
    if target == pa.binary():
        return lambda values: values
    cast = _cast_of(target)
    return lambda values: _cast_what_fits(values, cast, target)


def _cast_of(target: pa.DataType) -> Cast:
    """A cast of a whole array that raises pa.ArrowInvalid when any value does not fit."""
    if target == pa.string():
        return lambda values: values.cast(pa.string())
    if target in _INTEGERS:
        return lambda values: _matching(_text(values), _WHOLE).cast(target)
    if pa.types.is_floating(target):
        return lambda values: _text(values).cast(target)
    if pa.types.is_decimal(target):
        return lambda values: _text(values).cast(target)
    if target == pa.bool_():
        return lambda values: _text(values).cast(target)
    if target == pa.date32():
        return lambda values: _text(values).cast(target)
    if target == _MICROSECONDS:
        return _moments
    if target == _NAIVE:
        return lambda values: _text(values).cast(_NAIVE)
    raise OptionError(
        f"a field cannot be read as {target}; take string, binary, boolean, a number, decimal, date or timestamp"
    )


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _matching(values: pa.Array, pattern: str) -> pa.Array:
    """Return `values` if all of them match.  Raises pa.ArrowInvalid."""
    if not pc.all(pc.match_substring_regex(values, pattern), min_count=0).as_py():
        raise pa.ArrowInvalid(f"not all values match {pattern}")
    return values


def _moments(values: pa.Array) -> pa.Array:
    text = _text(values)
    try:
        return text.cast(_MICROSECONDS)
    except pa.ArrowInvalid:
        pass
    try:
        return text.cast(_NAIVE).cast(_MICROSECONDS)
    except pa.ArrowInvalid:
        return _matching(text, _MILLISECONDS).cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_MICROSECONDS)


def _cast_what_fits(values: pa.Array, cast: Cast, target: pa.DataType) -> pa.Array:
    try:
        return cast(values)
    except pa.ArrowInvalid:
        pass
    if len(values) == 1:
        return pa.nulls(1, type=target)
    half = len(values) // 2
    parts = [_cast_what_fits(values[:half], cast, target), _cast_what_fits(values[half:], cast, target)]
    return pa.concat_arrays(parts)
