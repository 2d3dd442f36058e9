"""Casts of values to the types of a schema, beside Spark's own cast of the same texts."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from riverbed.tools.columns.convert import converter

pytestmark = pytest.mark.once  # no module that is ever compiled takes part

_TYPES: Final = {
    "string": pa.string(),
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,0)": pa.decimal128(38, 0),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NUMBERS: Final = ["tinyint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,0)"]
_TIMES: Final = ["date", "timestamp", "timestamp_ntz"]

NUMBERS: Final = [
    *("0", "7", "-7", "127", "128", "-128", "-129", "2147483647", "2147483648", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "-9223372036854775809", "0" * 50 + "7", "9" * 38, "9" * 39),
    *("x", "", "-", "--1", "1-", "0x1f", "1_000", "1,5"),
]
FRACTIONS: Final = [
    *("9" * 37 + "e2", "9" * 35 + "e4", "9" * 60, "1" * 30 + "." + "1" * 40, "1e40", "1e99"),
    *("12.345", "-12.345", "12.344999", "0.005", "-0.005", "99999999.994", "99999999.995", "-99999999.995", ".5", "5."),
    *("1e3", "1E-3", "1.5e2", "1e10", "-2.5", "3.5", ".", "e3", "1e", "1.2.3"),
]
TIMES: Final = [
    *("2026-11-21", "2026-11-21T07:08:09Z", "2026-11-21 07:08:09", "2026-11-21T07:08:09.123456789Z", "2026-11"),
    *("2026-11-21T07:08:09.123456789", "2026-11-21 07:08:09.5 UTC", "2026-11-21T07:08:09+02:00", "2026-1-5 7:3:1"),
    *("2026-11-21T07:08:09-02:30", "1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.9999999", "9999-12-31"),
    *("2026-11-21T07:08", "2024-02-29", "2026-02-29", "2026-02-30", "0000-00-00", "2026-13-01", "2026-11-21T24:00:00"),
    *("2026-11-21T07:60:00", "2026-11-21T07:08:60", "2026-11-21x", "x", "", "21.11.2026", "2026/11/21"),
    *("2026-11-21T07:08:09.", "2026-11-21T07:08:09.1Z", "2026-11-21 00:00:00 Z", "0001-01-01T00:00:00Z"),
]


def cast_by_us(kind: str, texts: list[bytes]) -> list[Any]:
    return [_comparable(value) for value in converter(_TYPES[kind])(pa.array(texts, pa.binary())).to_pylist()]


def _comparable(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        *((kind, NUMBERS) for kind in _NUMBERS),
        *((kind, FRACTIONS) for kind in _NUMBERS if kind[0] in "fd"),
        *((kind, TIMES) for kind in _TIMES),
    ],
)
def test_texts_become_what_spark_makes_of_them(spark: SparkSession, kind: str, texts: list[str]) -> None:
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    cast = fn.col("text").try_cast(kind)
    if kind == "timestamp":
        # The same moment without a look at the zone of this machine.
        found = [_utc(row.us) for row in rows.select(fn.unix_micros(cast).alias("us")).collect()]
    else:
        found = [_comparable(row.value) for row in rows.select(cast.alias("value")).collect()]

    assert dict(zip(texts, cast_by_us(kind, [text.encode() for text in texts]), strict=True)) == dict(
        zip(texts, found, strict=True)
    )


def _utc(us: int | None) -> datetime | None:
    return None if us is None else datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000)


@pytest.mark.parametrize("kind", _TYPES)
@given(st.data())
def test_a_value_is_the_same_beside_any_other_values(kind: str, data: st.DataObject) -> None:
    texts = st.sampled_from(
        [
            *NUMBERS,
            *FRACTIONS,
            *TIMES,
            "true",
            "FALSE",
            "1795257000123",
            "nan",
            "-Inf",
            "1e400",
            "1e-9999",
            "nan(1)",
            "nan()",
            "2026-11-21T03:04:05+19:00",
            "2026-11-21T03:04:05-23:59",
            "2026-11-21T03:04:05+24:00",
        ]
    )
    values = data.draw(st.lists(texts.map(str.encode) | st.binary(max_size=12) | st.none(), min_size=1, max_size=12))

    assert repr(cast_by_us(kind, values)) == repr([cast_by_us(kind, [value])[0] for value in values])


def test_what_is_no_time_for_spark_may_be_milliseconds() -> None:
    moment = datetime(2026, 11, 21, 10, 30, 0, 123000, UTC)

    assert cast_by_us("timestamp", [b"1795257000123", b"2026-11-21T10:30:00.123Z", b"x"]) == [moment, moment, None]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("bigint", b"17", b"seventeen"),
        ("tinyint", b"17", b"1700"),
        ("double", b"1.5", b"much"),
        ("decimal(10,2)", b"1.50", b"12.345"),
        ("date", b"2026-11-21", b"0000-00-00"),
        ("timestamp", b"2026-11-21T10:30:00Z", b"yesterday"),
        ("timestamp", b"2026-11-21T10:30:00Z", b"1795257000123"),
        ("timestamp_ntz", b"2026-11-21T10:30:00", b"2026-11-21T10:30:00Z"),
        ("string", b"text", b"\xff"),
    ],
)
def test_values_that_do_not_fit_cost_no_cast_each(
    monkeypatch: pytest.MonkeyPatch, kind: str, good: bytes, bad: bytes
) -> None:
    """Halving down to single values took 20,000 casts here, and 100 us for each row."""
    casts = 0
    concatenate = pa.concat_arrays

    def counted(parts: list[pa.Array]) -> pa.Array:
        nonlocal casts
        casts += 1
        return concatenate(parts)

    monkeypatch.setattr(pa, "concat_arrays", counted)
    values = pa.array([good, bad] * 5000, pa.binary())

    found = converter(_TYPES[kind])(values)

    assert len(found) == len(values)
    assert found.slice(0, 2).to_pylist() * 5000 == found.to_pylist()
    assert casts == 0


@pytest.mark.parametrize("kind", _TYPES)
def test_texts_are_cast_as_their_bytes_are(kind: str) -> None:
    """Columns have fields as text where the tables have bytes."""
    for texts in (NUMBERS, FRACTIONS, TIMES):
        by_text = converter(_TYPES[kind])(pa.array(texts, pa.string()))
        assert (
            by_text.to_pylist()
            == converter(_TYPES[kind])(pa.array([t.encode() for t in texts], pa.binary())).to_pylist()
        )


def test_decimals_are_rounded_half_up() -> None:
    assert cast_by_us("decimal(10,2)", [b"12.345", b"-12.345"]) == [Decimal("12.35"), Decimal("-12.35")]


@pytest.mark.parametrize("kind", ["decimal(38,0)", "decimal(10,2)"])
def test_decimals_never_overflow_unnoticed(kind: str) -> None:
    """Arrow makes -20847100762815390390123822295304634369 of the first of these."""
    texts = ["9" * 39, "9" * 35 + "e4", "9" * 20 + "e25", "5555555555555555.5555", "1e9999", "1" * 30 + ".5"]
    target = _TYPES[kind]

    for text, value in zip(texts, cast_by_us(kind, [text.encode() for text in texts]), strict=True):
        fits = Decimal(text).adjusted() < target.precision - target.scale
        assert (value is not None) == fits, text
        assert value is None or abs(value - Decimal(text)) <= Decimal(5).scaleb(-target.scale - 1)
