from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riverbed.tools.spark.errors import OptionError, SourceError
from riverbed.tools.spark.source import RiverbedSource
from tests.support.in_process import HandClock, Product
from tests.tools.spark.stores import freeze

ABOUT = {"_key": "string", "_id": "string", "_timestamp": "timestamp"}


def inferred(path: Path, **options: object) -> dict[str, str]:
    asked = {name: str(value) for name, value in options.items()}
    schema = RiverbedSource({"path": str(path), "inferSchema": "true", **asked}).schema()
    assert not isinstance(schema, str)
    found = {each.name: each.dataType.simpleString() for each in schema.fields}
    assert dict(list(found.items())[:3]) == ABOUT
    return {name: kind for name, kind in found.items() if name not in ABOUT}


def of_values(tmp_path: Path, *values: bytes | str) -> str:
    """The type of a field with these values."""
    product = Product(tmp_path / "data", HandClock())
    for value in values:
        product.run("XADD", "s", "*", "f", value)
    return inferred(freeze(product, tmp_path / "snapshot"))["f"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["true", "FALSE"], "boolean"),
        (["0", "-12", "9223372036854775807"], "bigint"),
        (["1", "0"], "bigint"),
        (["1", "2.50", "-0.1", "1e5"], "double"),
        (["2026-11-21", "2024-02-29"], "date"),
        (["2026-11-21", "2026-11-21T12:00:00Z"], "timestamp"),
        (["2026-11-21 12:00", "2026-11-21T12:00:00.123456+01:00"], "timestamp"),
        (["true", "1"], "string"),
        (["007", "8"], "string"),
        (["+1", "2"], "string"),
        (["00.5", "2"], "string"),
        (["1\n", "2"], "string"),
        (["9223372036854775808"], "string"),
        (["1234567890123456", "1.5"], "string"),
        (["nan", "1.5"], "string"),
        (["2026-02-30"], "string"),
        (["2026-11-21", "5"], "string"),
        (["", "1"], "string"),
        ([b"a", b"\xff"], "binary"),
        ([b"\xff", b"1"], "binary"),
    ],
)
def test_a_field_has_the_narrowest_type_that_all_samples_fit(
    tmp_path: Path, values: list[bytes | str], kind: str
) -> None:
    assert of_values(tmp_path, *values) == kind


def test_only_common_names_that_can_be_columns_become_columns(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(1000):
        words = ["all", number, "ALL", "x", "_mine", "x", "bad", "x", b"\xff", "x"]
        words += ["some", "x"] if number < 10 else []
        words += ["few", "x"] if number < 9 else []
        product.run("XADD", f"s{number % 3}", f"{1 + number}-0", *words)
    path = freeze(product, tmp_path / "snapshot")
    assert inferred(path, columnNameOfCorruptRecord="bad") == {"all": "bigint", "some": "string"}


def test_a_sample_is_bounded_and_from_all_parts_of_a_stream(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(4000):
        product.run("XADD", "s", f"{1 + number}-0", f"f{number // 250}", "1", "late", "x" if number > 3990 else "1")
    path = freeze(product, tmp_path / "snapshot", 100)
    sixteen = {f"f{number}": "bigint" for number in range(16)}
    assert inferred(path, sampledEntries=160, batchRows=3).keys() == {*sixteen, "late"}
    assert inferred(path, sampledEntries=160)["late"] == "bigint"
    assert inferred(path, sampledEntries=1) == {"f0": "bigint", "late": "bigint"}
    assert inferred(path) == {**sixteen, "late": "string"}
    assert inferred(path, startingId="1-0", endingId="250-0") == {"f0": "bigint", "late": "bigint"}


def test_many_names_make_a_bounded_schema(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    product.run("XADD", "s", "1-0", *(word for number in range(3000) for word in (f"n{number}", "1")))
    found = inferred(freeze(product, tmp_path / "snapshot"))
    assert list(found) == [f"n{number}" for number in range(200)]


def test_only_the_first_thousand_names_are_looked_at(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    product.run("XADD", "s", "1-0", *(word for number in range(1000) for word in (f"n{number}", "1")))
    for number in range(2, 300):
        product.run("XADD", "s", f"{number}-0", "n7", "1", "later", "1")
    assert inferred(freeze(product, tmp_path / "snapshot")) == {"n7": "bigint"}


def test_a_store_without_entries_has_only_what_is_about_entries(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    product.run("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    assert inferred(freeze(product, tmp_path / "snapshot")) == {}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sampledEntries": 0}, "from 1 to 1000000"),
        ({"sampledEntries": 1_000_001}, "from 1 to 1000000"),
        ({"inferSchema": "perhaps"}, "must be true or false"),
        ({"table": "groups"}, "inferSchema is for entries"),
    ],
)
def test_options_that_make_no_sample_are_refused(tmp_path: Path, options: dict[str, object], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        inferred(tmp_path, **options)


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing"):
        inferred(tmp_path / "nothing")


def test_spark_reads_with_the_inferred_schema(spark: SparkSession, tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(100):
        product.run("XADD", "s", f"{1 + number}-0", "amount", f"{number}.5", "user", f"u{number % 3}")
    path = freeze(product, tmp_path / "snapshot")
    frame = spark.read.format("riverbed").option("inferSchema", "true").load(str(path))
    assert frame.dtypes == [*ABOUT.items(), ("amount", "double"), ("user", "string")]
    assert frame.groupBy("user").sum("amount").orderBy("user").collect() == [
        ("u0", sum(number + 0.5 for number in range(0, 100, 3))),
        ("u1", sum(number + 0.5 for number in range(1, 100, 3))),
        ("u2", sum(number + 0.5 for number in range(2, 100, 3))),
    ]
