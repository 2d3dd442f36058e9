from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from click.testing import Result

from riverbed.store.ids import id_text
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools import arrow
from riverbed.tools.arrow import open_store, run_sql
from riverbed.tools.columns.decode import EntryBatch
from riverbed.tools.columns.projection import field_types
from riverbed.tools.console.console import Failure
from tests.support import program
from tests.support.servers import RiverbedServer
from tests.support.store.stores import Store, sid

ENTRIES: list[tuple[str, tuple[bytes, ...]]] = [
    ("5-1", (b"user", b"anna", b"amount", b"12.5")),
    ("5-2", (b"user", b"ben", b"amount", b"x", b"raw", b"\xff\x00")),
    ("6-0", (b"raw", b"", b"user", b"anna", b"user", b"carl", b"User", b"other")),
    ("18446744073709551615-18446744073709551615", (b"_id", b"mine", b"\xfe", b"odd")),
]


def fill(store: Store) -> None:
    for entry_id, words in ENTRIES:
        store.stream(b"orders", 0).append_entry(sid(entry_id), list(words))
    store.stream(b"other", 0).append_entry(sid("1-1"), [b"user", b"eve"])
    store.commit()
    store.checkpoint()


@pytest.fixture(params=["live", "snapshot"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    fill(store)
    store.kill()  # a process opens the tables only once
    return tmp_path / "store" if request.param == "live" else take_snapshot(tmp_path / "store", program="test").path


def expected_fields() -> list[dict[bytes, bytes]]:
    return [dict(zip(words[::2], words[1::2], strict=True)) for _, words in ENTRIES]


def test_columns_are_the_fields_of_the_entries(place: Path) -> None:
    with open_store(place) as store:
        table = store.to_arrow("orders")
    assert table.schema.names == ["_ms", "_seq", "_id", "user", "amount", "raw", "_fields"]
    assert table["_id"].to_pylist() == [entry_id for entry_id, _ in ENTRIES]
    assert table["_ms"].to_pylist() == [5, 5, 6, None]
    assert table["user"].to_pylist() == ["anna", "ben", "carl", None]
    assert table["raw"].to_pylist() == [None, b"\xff\x00", b"", None]
    found = [dict(row) for row in table["_fields"].to_pylist()]
    assert found == [
        {name.decode(errors="backslashreplace"): value for name, value in fields.items()}
        for fields in expected_fields()
    ]


def test_a_range_of_ids_and_types_are_honoured(place: Path) -> None:
    with open_store(place) as store:
        table = store.to_arrow("orders", columns={"amount": pa.float64(), "_id": pa.string()}, start="5", end="5")
        assert table.to_pydict() == {"amount": [12.5, None], "_id": ["5-1", "5-2"]}
        assert store.to_arrow("orders", columns=["user"], start="5-2", end="5-2").to_pydict() == {"user": [b"ben"]}
        assert store.to_arrow("orders", columns=["none"], start="7", end="8").num_rows == 0


def test_columns_and_rows_of_a_running_server_are_of_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RiverbedServer(tmp_path / "data", tmp_path) as server, server.client() as client:
        client.ask("XADD", "s", "1-0", "a", "1")
        client.ask("SAVE")

        def types_before_a_write(batches: Iterator[EntryBatch]) -> dict[str, pa.DataType]:
            found = field_types(batches)
            client.ask("XADD", "s", "*", "b", "text")
            client.ask("SAVE")
            return found

        monkeypatch.setattr(arrow, "field_types", types_before_a_write)
        with open_store(server.directory) as store:
            assert store.to_arrow("s")["_id"].to_pylist() == ["1-0"]
            assert store.to_arrow("s", columns=["_id"]).num_rows == 2
        result = run(server.directory, "s", "--columns", "_id")
        assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)


def test_polars_and_a_dataset_have_the_same_rows(place: Path) -> None:
    with open_store(place) as store:
        table = store.to_arrow("orders")
        assert store.dataset("orders").to_table() == table
        frame: Any = pl.from_arrow(store.to_arrow("orders", columns=["_id", "user", "raw"]))
    assert frame["raw"].to_list() == table["raw"].to_pylist()


def test_what_is_not_there_is_refused(place: Path, tmp_path: Path) -> None:
    with open_store(place) as store:
        with pytest.raises(Failure, match="no stream nope"):
            store.to_arrow("nope")
        with pytest.raises(Failure, match="is not an ID"):
            store.to_arrow("orders", start="x")
        with pytest.raises(Failure, match="cannot be read as"):
            store.to_arrow("orders", columns={"user": pa.list_(pa.int8())})
        with pytest.raises(Failure, match="_ms is int64"):
            store.to_arrow("orders", columns={"_ms": pa.string()})
    with pytest.raises(Failure, match="there is no"):
        open_store(tmp_path / "none")


run = partial(program.run, "read")


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_read_prints_rows(place: Path) -> None:
    rows = lines(run(place, "orders", "--columns", "_id,user,raw", "--end", "6"))
    assert rows == [
        {"_id": "5-1", "user": "anna", "raw": None},
        {"_id": "5-2", "user": "ben", "raw": "\\xff\x00"},
        {"_id": "6-0", "user": "carl", "raw": ""},
    ]
    assert lines(run(place, "orders"))[-1]["_fields"] == {"_id": "mine", "\\xfe": "odd"}


def test_read_prints_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.stream(b"s", 0).append_entry(sid("1-1"), [b"f", "\x9b31m\x7f\u202e".encode()])
    store.commit()
    store.checkpoint()
    store.kill()
    result = run(tmp_path / "store", "s", "--columns", "f")
    assert result.stdout == '{"f": "\\u009b31m\\u007f\\u202e"}\n'


ALIKE = [b"_\xff", b"1", rb"_\xff", b"2", rb"_\x5cxff", b"3", rb"_\xFF", b"4", b"plain", b"5"]


def test_no_two_names_of_a_map_are_alike(tmp_path: Path) -> None:
    """A map with one name twice is refused by readers, or loses a value."""
    store = Store(tmp_path / "store")
    store.stream(b"", 0).append_entry(sid("1-1"), ALIKE)
    store.stream(b"", 0).append_entry(sid("1-2"), [rb"_\xff", b"alone"])
    store.commit()
    store.checkpoint()
    store.kill()
    fields = {r"_\xff": "1", r"_\x5cxff": "2", r"_\x5cx5cxff": "3", r"_\xFF": "4", "plain": "5"}
    (first, second) = lines(run(tmp_path / "store", "", "--columns", "_fields"))
    assert (first["_fields"], second["_fields"]) == (fields, {r"_\x5cxff": "alone"})
    (row, _) = lines(run(tmp_path / "store", "", "--sql", "select * from entries order by _seq"))
    assert row["_fields"] == fields


def test_every_column_of_a_query_is_printed_and_is_json(place: Path) -> None:
    query = (
        "select 1 as a, 2 as a, 3 as a_1, 'nan'::double as b, '-inf'::double as c, ['inf'::double] as d, "
        "[[1, 2], [1, 3]] as e"
    )
    result = run(place, "orders", "--sql", query)
    printed = {"a": 1, "a_2": 2, "a_1": 3, "b": "NaN", "c": "-Infinity", "d": ["Infinity"], "e": [[1, 2], [1, 3]]}
    assert lines(result) == [printed]
    assert json.loads(result.stdout, parse_constant=pytest.fail)


def test_sql_sees_the_stream_as_a_table(place: Path) -> None:
    query = "select a.user, sum(try_cast(a.amount as double)) as total from orders a join entries b using (_id) "
    query += "group by all order by all"
    assert lines(run(place, "orders", "--sql", query)) == [
        {"user": "anna", "total": 12.5},
        {"user": "ben", "total": None},
        {"user": "carl", "total": None},
        {"user": None, "total": None},
    ]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('{file}')",
        "select * from '{file}'",
        "copy entries to '{file}.copy'",
        "attach '{file}.db'",
        "set enable_external_access = true; select * from read_text('{file}')",
        "set lock_configuration = false",
        "install httpfs",
        "load httpfs",
        "select * from glob('/*')",
        "select * from table_of_python",
    ],
)
def test_sql_reaches_no_file_and_no_setting(tmp_path: Path, query: str) -> None:
    table_of_python = pa.table({"a": [1]})
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    with pytest.raises(Failure, match="DuckDB"):
        list(run_sql(table_of_python, "orders", query.format(file=tmp_path / "secret.csv")))
    assert [file.name for file in tmp_path.iterdir()] == ["secret.csv"]


ENDLESS = {
    "a product": "select count(*) from range(1000000000) a, range(1000000000) b where a.range * b.range % 7 = 3",
    "a recursion": "with recursive t(n) as (select 1 union all select n + 1 from t) select n from t where n < 0",
    "a long result": "select a.range from range(1000000000) a, range(1000000000) b",
}


@pytest.mark.parametrize("query", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_query_ends_at_its_time(query: str) -> None:
    with pytest.raises(Failure, match=r"the query has not ended within 0\.2 s; --timeout allows more"):
        for _ in run_sql(pa.table({"a": [1]}), "orders", query, timeout_s=0.2):
            pass


@pytest.mark.parametrize("query", ENDLESS.values(), ids=ENDLESS)
def test_an_interrupt_ends_a_query_at_once(query: str) -> None:
    """It comes long before the end of the query, and before its time is up."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])

    def ask() -> None:
        interrupt.start()
        for _ in run_sql(pa.table({"a": [1]}), "orders", query):
            pass

    try:
        with pytest.raises(KeyboardInterrupt):
            ask()
    finally:
        interrupt.join()
        signal.signal(signal.SIGINT, former)


def test_a_query_takes_no_more_memory_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sort = "select a.range as n, count(*) from range(100000000) a group by n order by 2, 1"
    with pytest.raises(Failure, match="DuckDB: Out of Memory"):
        list(run_sql(pa.table({"a": [1]}), "orders", sort, memory_bytes=50 << 20))
    assert not list(tmp_path.iterdir()), "nothing was written to disk instead"


def test_the_limits_of_a_query_are_options(place: Path) -> None:
    result = run(place, "orders", "--sql", ENDLESS["a product"], "--timeout", "0.2")
    assert (result.exit_code, "within 0.2 s" in result.stderr) == (2, True)
    sort = "select a.range as n, count(*) from range(100000000) a group by n order by 2, 1"
    result = run(place, "orders", "--sql", sort, "--memory-limit", "50mb")
    assert (result.exit_code, "Out of Memory" in result.stderr) == (2, True)
    assert run(place, "orders", "--sql", "select 1", "--memory-limit", "much").exit_code == 2


def test_a_lacking_library_is_named_with_what_installs_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    result = run(place, "orders", "--sql", "select 1")
    assert (result.exit_code, "pip install 'riverbed[sql]'" in result.stderr.replace("\n", " ")) == (2, True)


def test_a_clone_without_the_library_of_columns_is_told_what_installs_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "riverbed.tools.arrow", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(place, "orders")
    assert (result.exit_code, "in a clone pip install '.[sql]'" in result.stderr.replace("\n", " ")) == (2, True)


def test_every_row_is_that_of_the_stream(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    stream = store.stream(b"s", 0)
    for number in range(40_000):
        stream.append_entry(sid(f"{number // 3 + 1}-{number}"), [b"n", b"%d" % number, b"f%d" % (number % 20), b"v"])
    store.commit()
    store.checkpoint()
    store.kill()
    with open_store(tmp_path / "store") as reader:
        table = reader.to_arrow("s", columns={"n": pa.int64(), "f3": pa.string(), "_id": pa.string()})
    assert table["n"].to_pylist() == list(range(40_000))
    assert table["f3"].null_count == 38_000
    assert table["_id"].to_pylist() == [id_text(sid(f"{n // 3 + 1}-{n}")).decode() for n in range(40_000)]
