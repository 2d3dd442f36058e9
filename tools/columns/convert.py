"""Casts the values of fields, which are bytes, to the types of a schema.  A value that does not fit becomes null.

    string       UTF-8                        boolean        true, false, 1, 0
    binary       unchanged                    date           2026-11-21, and the day of a time
    integers     digits, maybe a minus sign   timestamp      ISO 8601, UTC unless it says otherwise; or unix ms
    double ...   as Python's float            timestamp_ntz  ISO 8601, without a look at the zone
    decimal      a number, rounded half up

Texts mean what Spark's own `cast` makes of them, but for unix milliseconds, and for blanks around a value, which we do
not take off.  Digits behind the microsecond are dropped.

A whole column is cast at once by Arrow.  Where that fails, the values that fit are found by a regular expression, also
at once: 0.2 to 1 us a value.  Knows no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_PREC, ROUND_HALF_UP, Decimal, localcontext
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

Cast = Callable[[pa.Array], pa.Array]


class UnsupportedTypeError(ValueError):
    """Fields cannot be read as this type."""


_INTEGERS: Final = {pa.int8(), pa.int16(), pa.int32(), pa.int64()}
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_NAIVE: Final = pa.timestamp("us")
# In these expressions a byte is a character, since the values are binary.
_UTF8: Final = (
    r"(?s)^(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*$"
)
# Arrow would accept 0x1f as a number.
_WHOLE: Final = r"^-?[0-9]+$"
_OF_38_DIGITS: Final = r"^-?0*[0-9]{1,38}$"
_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_DECIMAL: Final = f"^{_NUMBER}(?:[eE][+-]?[0-9]{{1,4}})?$"
# What `_WIDE` holds.  With exponents and from the 39th digit on, Arrow's casts to decimals overflow unnoticed.
_PLAIN: Final = r"^[+-]?(?:0*[0-9]{1,19}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})$"
_FLOAT: Final = f"(?i)^(?:{_NUMBER}(?:e[+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity))$"
_BOOLEAN: Final = "(?i)^(?:true|false|1|0)$"
_MILLISECONDS: Final = r"^[0-9]{1,15}$"
_DAY: Final = (
    r"(?P<year>[0-9]{4})(?:-(?P<month>0?[1-9]|1[0-2])(?:-(?P<day>0?[1-9]|[12][0-9]|3[01])"
    "{rest}"
    r")?)?$"
)
_DATE: Final = "(?s)^" + _DAY.replace("{rest}", "(?:[ T].*)?")
_MOMENT: Final = "^" + _DAY.replace(
    "{rest}",
    r"(?:[ T](?P<hour>[01]?[0-9]|2[0-3])(?::(?P<minute>[0-5]?[0-9])(?::(?P<second>[0-5]?[0-9])"
    r"(?:\.(?P<fraction>[0-9]{0,6})[0-9]*)?)?)?"
    r" ?(?:Z|UTC|GMT|(?P<sign>[+-])(?P<zone_hour>[01]?[0-9]|2[0-3])(?::?(?P<zone_minute>[0-5][0-9]))?)?)?",
)
# In which decimals are rounded: Arrow rounds longer ones wrongly.
_WIDE: Final = pa.decimal128(38, 18)
_MAX_DIGITS: Final = 38


def converter(target: pa.DataType) -> Cast:
    """A cast of binary values to `target`, null where they do not fit.  Raises UnsupportedTypeError."""
    if target == pa.binary():
        return lambda values: values
    whole, fitting = _casts_of(target)

    def cast(values: pa.Array) -> pa.Array:
        try:
            return whole(values)
        except pa.ArrowInvalid:
            return _each_that_fits(values, fitting, target)

    return cast


def _casts_of(target: pa.DataType) -> tuple[Cast, Cast]:
    """A fast cast, which raises pa.ArrowInvalid when a value does not fit, and one that makes those null."""
    if target == pa.string():
        return _text, lambda values: _text(_only(values, _UTF8))
    if target in _INTEGERS:
        return lambda values: _text(_matching(values, _WHOLE)).cast(target), lambda values: _integers(values, target)
    if pa.types.is_floating(target):
        return lambda values: _plain_floats(values, target), lambda values: _text(_only(values, _FLOAT)).cast(target)
    if pa.types.is_decimal(target):
        # Of more digits Arrow would not notice an overflow.
        safe = rf"^[+-]?[0-9]{{0,{_MAX_DIGITS - target.scale}}}(?:\.[0-9]{{0,{target.scale}}})?$"
        return lambda values: _text(_matching(values, safe)).cast(target), lambda values: _decimals(values, target)
    if target == pa.bool_():
        return lambda values: _text(values).cast(target), lambda values: _text(_only(values, _BOOLEAN)).cast(target)
    if target == pa.date32():
        return lambda values: _text(values).cast(target), _dates
    if target == _MICROSECONDS:
        return _whole_moments, _moments
    if target == _NAIVE:
        return lambda values: _text(values).cast(_NAIVE), lambda values: _local_us(_parts(values, _MOMENT)).cast(_NAIVE)
    raise UnsupportedTypeError(
        f"a field cannot be read as {target}; take string, binary, boolean, a number, decimal, date or timestamp"
    )


def _each_that_fits(values: pa.Array, fitting: Cast, target: pa.DataType) -> pa.Array:
    """`fitting` of the values; where a number is too strange for Arrow, by halves."""
    try:
        return fitting(values)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, type=target)
    half = len(values) // 2
    return pa.concat_arrays([_each_that_fits(part, fitting, target) for part in (values[:half], values[half:])])


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _matching(values: pa.Array, pattern: str) -> pa.Array:
    """Return `values` if all of them match.  Raises pa.ArrowInvalid."""
    if not pc.all(pc.match_substring_regex(values, pattern), min_count=0).as_py():
        raise pa.ArrowInvalid(f"not all values match {pattern}")
    return values


def _only(values: pa.Array, pattern: str) -> pa.Array:
    """The values that match; null in the place of the others."""
    return _where(pc.match_substring_regex(values, pattern), values)


def _where(holds: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(holds, values, pa.scalar(None, values.type))


# -- numbers -----------------------------------------------------------------------------------------------------------


def _plain_floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    # Arrow takes `nan(1)` as well: by this alone it differs from the expression, which takes longer
    if pc.any(pc.match_substring(values, b"("), min_count=0).as_py():
        raise pa.ArrowInvalid("not all values are numbers")
    return _text(values).cast(target)


def _integers(values: pa.Array, target: pa.DataType) -> pa.Array:
    numbers = _text(_only(values, _OF_38_DIGITS)).cast(pa.decimal128(38))
    end = 1 << (target.bit_width - 1)
    return _where(_is_between(numbers, Decimal(-end), Decimal(end - 1)), numbers).cast(target)


def _decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    most = _most(target)
    plain = pa.nulls(len(values), target)
    if target.scale <= _WIDE.scale:
        numbers = _text(_only(values, _PLAIN)).cast(_WIDE)
        numbers = pc.round(numbers, ndigits=target.scale, round_mode="half_towards_infinity")
        end = min(most, _most(_WIDE))
        plain = _where(_is_between(numbers, end.copy_negate(), end), numbers).cast(target)
    strange = _where(pc.is_null(plain), _only(values, _DECIMAL))
    if strange.null_count == len(strange):
        return plain
    texts = strange.cast(pa.binary()).to_pylist()  # columns have them as text
    others = [None if text is None else _rounded(text.decode(), target.scale, most) for text in texts]
    return pc.coalesce(plain, pa.array(others, target))


def _most(kind: pa.DataType) -> Decimal:
    """The largest decimal of a type."""
    return Decimal((0, (9,) * kind.precision, -kind.scale))


def _rounded(text: str, scale: int, most: Decimal) -> Decimal | None:
    """A number of any form, exactly; None if it is above `most`."""
    with localcontext(prec=MAX_PREC):
        number = Decimal(text)
        if number.adjusted() > _MAX_DIGITS:
            return None
        number = number.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP)
        return number if -most <= number <= most else None


def _is_between(numbers: pa.Array, least: Decimal, most: Decimal) -> pa.Array:
    bounds = [pa.scalar(bound, numbers.type) for bound in (least, most)]
    return pc.and_(pc.greater_equal(numbers, bounds[0]), pc.less_equal(numbers, bounds[1]))


# -- times -------------------------------------------------------------------------------------------------------------


def _whole_moments(values: pa.Array) -> pa.Array:
    text = _text(values)
    for kind in (_MICROSECONDS, _NAIVE):
        try:
            return text.cast(kind).cast(_MICROSECONDS)
        except pa.ArrowInvalid:
            pass
    return _milliseconds(_matching(values, _MILLISECONDS))


def _milliseconds(values: pa.Array) -> pa.Array:
    return _text(values).cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_MICROSECONDS)


def _moments(values: pa.Array) -> pa.Array:
    parts = _parts(values, _MOMENT)
    zone_minutes = pc.add(pc.multiply(_number(parts, "zone_hour"), 60), _number(parts, "zone_minute"))
    east = pc.if_else(pc.equal(pc.struct_field(parts, "sign"), b"-"), pc.negate(zone_minutes), zone_minutes)
    moments = pc.subtract(_local_us(parts), pc.multiply(east, 60_000_000)).cast(_MICROSECONDS)
    is_number = pc.match_substring_regex(values, _MILLISECONDS)
    return pc.if_else(is_number, _milliseconds(_where(is_number, values)), moments)


def _dates(values: pa.Array) -> pa.Array:
    return _days(_parts(values, _DATE)).cast(pa.int32()).cast(pa.date32())


def _parts(values: pa.Array, pattern: str) -> pa.Array:
    """A struct of the named groups, empty where a group is not there; null where a value does not match."""
    return pc.extract_regex(values, pattern)


def _number(parts: pa.Array, name: str, missing: bytes = b"0") -> pa.Array:
    part = pc.struct_field(parts, name)
    return _text(pc.if_else(pc.equal(part, b""), missing, part)).cast(pa.int64())


def _days(parts: pa.Array) -> pa.Array:
    """Days since 1970; null where the month has no such day."""
    year, month = pc.struct_field(parts, "year"), _number(parts, "month", b"1")
    month_text = pc.utf8_lpad(month.cast(pa.string()), 2, "0")
    first = pc.binary_join_element_wise(_text(year), month_text, "01", "-").cast(pa.date32())
    days = pc.add(first.cast(pa.int32()), pc.subtract(_number(parts, "day", b"1"), 1))
    return _where(pc.equal(pc.month(days.cast(pa.int32()).cast(pa.date32())), month), days)


def _local_us(parts: pa.Array) -> pa.Array:
    """Microseconds since 1970 by the clock that the text shows."""
    sum_s = pc.multiply(_days(parts), 24)
    for name in ("hour", "minute"):
        sum_s = pc.multiply(pc.add(sum_s, _number(parts, name)), 60)
    fraction = pc.ascii_rpad(_text(pc.struct_field(parts, "fraction")), 6, "0").cast(pa.int64())
    return pc.add(pc.multiply(pc.add(sum_s, _number(parts, "second")), 1_000_000), fraction)
