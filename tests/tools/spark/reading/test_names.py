"""Names as bytes, and where each stream begins: what jobs ask of the data source."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual
from pyspark.sql.types import StructType

from riverbed.store.ids import make_id
from riverbed.tools.columns.streams import Range
from riverbed.tools.spark.errors import OptionError, SourceError
from riverbed.tools.spark.reading.batch import SnapshotReader
from riverbed.tools.spark.reading.options import Table, names_text, offsets_text, read_options
from riverbed.tools.spark.reading.schemas import default_schema
from riverbed.tools.spark.source import RiverbedSource
from tests.support.in_process import HandClock, Product
from tests.support.servers import RiverbedServer
from tests.tools.spark.stores import freeze, rows_read

STARTS = {(0, b"\xff/%"): make_id(5, 7), (3, b""): make_id(1, 0)}


def test_each_stream_begins_where_starting_offsets_say(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for number in range(1, 30):
        for key in ("a", b"\xff/%", "c"):
            client.xadd(key, {"n": number}, id=f"{number}-0")
    client.save()
    starts = offsets_text({(0, b"a"): make_id(28, 0), (0, b"\xff/%"): make_id(30, 0), (1, b"c"): make_id(30, 0)})

    read = spark.read.format("riverbed").option("startingOffsets", starts).option("minPartitions", 3)
    rows = read.option("endingOffsets", offsets_text({(0, b"c"): make_id(3, 0)})).load(str(server.directory)).collect()

    assert sorted((row.key, row.ms) for row in rows) == [
        *(("a", number) for number in (28, 29)),
        *(("c", number) for number in (1, 2, 3)),
    ]


def test_ending_offsets_without_a_sequence_number_end_behind_their_millisecond(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for entry_id in ("2-9", "3-0", "3-1", "4-0"):
        product.run("XADD", "s", entry_id, "n", 1)
    path = freeze(product, tmp_path / "monday")

    for text in ("3", '{"0/s": "3"}'):
        assert [row["id"] for row in rows_read(path, endingOffsets=text)] == ["2-9", "3-0", "3-1"]
        assert [row["id"] for row in rows_read(path, startingOffsets=text)] == ["3-0", "3-1", "4-0"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": "latest"}, "is for readStream"),
        ({"startingId": "latest"}, "startingId must be an ID"),
        ({"endingOffsets": "earliest"}, "endingId must be an ID"),
        ({"endingId": "-"}, "endingId must be an ID"),
    ],
)
def test_a_range_that_would_not_be_what_it_says_is_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        RiverbedSource({"path": "data", **options}).reader(StructType().add("_ms", "long"))


@pytest.mark.parametrize("table", ["entries", "groups"])
def test_a_schema_that_no_batch_can_have_is_refused(table: str) -> None:
    source = RiverbedSource({"path": "data", "table": table})
    with pytest.raises(OptionError, match="has no columns"):
        source.reader(StructType())
    with pytest.raises(OptionError, match="column key is in the schema twice"):
        source.reader(StructType().add("key", "string").add("key", "string"))


def test_streams_are_picked_by_any_name(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for key in ("a", "a,b", b"\xff", "\\xff"):
        client.xadd(key, {"n": 1})
    redis.Redis(port=server.port, db=1).xadd("a", {"n": 1})
    client.save()

    read = spark.read.format("riverbed").option("streams", names_text([(0, b"a,b"), (0, b"\xff"), (1, b"a")]))
    rows = read.schema("_db int, _key_binary binary").load(str(server.directory)).collect()

    assert sorted((row._db, bytes(row._key_binary)) for row in rows) == [(0, b"a,b"), (0, b"\xff"), (1, b"a")]
    read = spark.read.format("riverbed").option("stream", "\\xff").schema("_key_binary binary")
    assert [bytes(row._key_binary) for row in read.load(str(server.directory)).collect()] == [b"\\xff"]


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    product = Product(tmp_path / "data", HandClock())
    for key in ("orders:1", "orders:2", b"\xff", "other"):
        product.run("XADD", key, "1-0", "n", 1)
    product.run("SELECT", 1)
    product.run("XADD", "one", "1-0", "n", 1)
    return freeze(product, tmp_path / "monday")


@pytest.mark.parametrize("table", Table)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"stream": "order:1"}, "no stream order:1 in monday; names like it: orders:1"),
        ({"stream": "x"}, "no stream x in monday"),
        ({"stream": "orders:1,orders:2"}, "no stream orders:1,orders:2 in monday; names like it: orders:2, orders:1"),
        ({"streams": "orders:1, orders:8"}, "no stream orders:8 in monday; names like it: orders:2"),
        ({"stream": "one", "db": 0}, 'no stream one in database 0 of monday; names like it: .* \\["1/one"\\]'),
        ({"stream": "\\xff"}, r'no stream \\\\xff in monday; names like it: option streams with \["0/%FF"\]'),
        ({"streams": '["1/other"]'}, 'no stream other in database 1 of monday; names like it: .*\\["0/other"\\]'),
    ],
)
def test_a_name_that_no_stream_has_is_told_with_those_that_are_like_it(
    frozen: Path, table: Table, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(SourceError, match=reason):
        rows_read(frozen, table, **options)


def test_a_pattern_a_filter_and_a_database_may_have_no_stream(frozen: Path) -> None:
    for options in ({"streamPattern": "order:1"}, {"db": 7}):
        assert rows_read(frozen, **options) == []
    reader = SnapshotReader(read_options({"path": str(frozen), "stream": "other"}), default_schema(Table.ENTRIES))
    assert list(reader.pushFilters([EqualTo(("key",), "orders:1")])) == []
    assert reader.partitions() == []
    reader = SnapshotReader(read_options({"path": str(frozen), "stream": "other"}), default_schema(Table.ENTRIES))
    assert list(reader.pushFilters([EqualTo(("db",), 3)])) == []
    assert reader.partitions() == []


@pytest.mark.parametrize("compare", [GreaterThan, GreaterThanOrEqual])
@pytest.mark.parametrize("table", [Table.ENTRIES, Table.PENDING])
def test_a_filter_leaves_out_entries_without_a_timestamp(tmp_path: Path, table: Table, compare: type[Filter]) -> None:
    last_ms = ((1 << 63) - 1) // 1000
    product = Product(tmp_path / "data", HandClock())
    for entry_id in (f"{last_ms}-0", f"{last_ms + 1}-0"):
        product.run("XADD", "s", entry_id, "n", 1)
    product.run("XGROUP", "CREATE", "s", "g", 0)
    product.run("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    path = freeze(product, tmp_path / "monday")
    reader = SnapshotReader(read_options({"path": str(path), "table": table.value}), default_schema(table))

    assert list(reader.pushFilters([compare(("timestamp",), datetime(2026, 11, 21, tzinfo=UTC))])) == []
    ids = [batch.column("id").to_pylist() for part in reader.partitions() for batch in reader.read(part)]
    assert ids == [[f"{last_ms}-0"]]


def test_a_name_need_not_be_in_every_snapshot(tmp_path: Path) -> None:
    for key in ("s", "t"):
        product = Product(tmp_path / "data", HandClock())
        product.run("XADD", key, "1-0", "n", 1)
        freeze(product, tmp_path / "snapshots" / key)

    assert [row["snapshot"] for row in rows_read(tmp_path / "snapshots", stream="t")] == ["t"]
    with pytest.raises(SourceError, match="no stream tt in s and 1 more"):
        rows_read(tmp_path / "snapshots", stream="tt")


def test_a_schema_is_not_inferred_of_a_name_that_no_stream_has(frozen: Path) -> None:
    with pytest.raises(SourceError, match="no stream order:1 in monday"):
        RiverbedSource({"path": str(frozen), "stream": "order:1", "inferSchema": "true"}).schema()


def test_names_and_policies_can_be_picked_as_they_are(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for key in (b"\xff", "\\xff"):
        client.xadd(key, {"n": 1})
        client.xgroup_create(key, b"g\xff", id="0")
        client.xreadgroup(b"g\xff", b"c\xff", {key: ">"})
    client.execute_command("XGROUP", "POLICY", b"\xff", b"g\xff", "MAXDELIVERIES", 3, "DEADLETTER", "dead")
    client.save()

    def read(table: str, schema: str) -> list[tuple[object, ...]]:
        rows = spark.read.format("riverbed").option("table", table).schema(schema).load(str(server.directory))
        return sorted(tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in rows.collect())

    names = "key_binary binary, group_binary binary, consumer_binary binary"
    assert read("pending", names) == [(b"\\xff", b"g\xff", b"c\xff"), (b"\xff", b"g\xff", b"c\xff")]
    assert read("consumers", names) == [(b"\\xff", b"g\xff", b"c\xff"), (b"\xff", b"g\xff", b"c\xff")]
    assert read("streams", "key_binary binary") == [(b"\\xff",), (b"\xff",)]
    assert read("groups", "key_binary binary, policy string") == [
        (b"\\xff", None),
        (b"\xff", "MAXDELIVERIES 3 DEADLETTER dead"),
    ]


def test_starting_offsets_keep_any_key_and_do_not_widen_the_range() -> None:
    options = read_options({"path": "x", "startingOffsets": offsets_text(STARTS), "startingTimestamp": "6"})

    assert dict(options.starts) == STARTS
    assert options.range_of(0, b"\xff/%") == options.range_of(0, b"another") == options.range
    assert read_options({"path": "x", "startingOffsets": offsets_text(STARTS)}).range_of(3, b"") == Range(make_id(1, 0))


@pytest.mark.parametrize("text", ["[", "[5]", '["a"]', "[" * 100_000])
def test_names_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="streams must be names, or JSON such as"):
        read_options({"path": "x", "streams": text})


@pytest.mark.parametrize("text", ["{", '{"0/a": "x"}', '{"a": "1-0"}', '{"0/a": 5}', '{"0/a":' * 100_000])
def test_starting_offsets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets must be an ID, or JSON such as"):
        read_options({"path": "x", "startingOffsets": text})
