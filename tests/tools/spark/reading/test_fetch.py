from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from riverbed.store.databases.names import all_keys
from riverbed.store.ids import make_id
from riverbed.store.layout import DATA_NAME
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.store.tables.reader import TableReader
from riverbed.tools.columns.pages import PageTable
from riverbed.tools.columns.streams import Range
from riverbed.tools.spark.reading.entries import entry_batches
from riverbed.tools.spark.reading.locations import open_place, resolve
from riverbed.tools.spark.reading.options import ReadOptions
from riverbed.tools.spark.reading.plan import Span, plan
from riverbed.tools.spark.reading.schemas import entry_columns
from riverbed.tools.spark.reading.streamwalk import fetch_span
from tests.support.store.stores import Store

# (database, key, row as it is stored)
Entry = tuple[int, bytes, bytes]


def fill(store: Store, rnd: random.Random) -> None:
    """Streams of all lengths, some of them trimmed, deleted, or with long values."""
    for number in range(60):
        key, db = b"s%d" % number, rnd.randrange(3)
        length = rnd.choice([0, 1, 2, 5, 30, 200, 1500])
        stream = store.stream(key, db)
        for n in range(length):
            size = rnd.choice([3, 3, 3, 3, 40, 3000]) if number % 5 == 0 else rnd.randrange(30)
            stream.append_entry(make_id(1 + n // 3, n), [b"n", b"%d" % n, b"value", rnd.randbytes(size)])
        if length > 20:
            for n in rnd.sample(range(length), length // 10):
                store.run("XDEL", key, f"{1 + n // 3}-{n}", db=db)
        if number % 7 == 0:
            store.run("XTRIM", key, "MAXLEN", length // 2, db=db)
        if number % 11 == 0:
            store.run("DEL", key, db=db)
        store.commit()
    store.checkpoint()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    fill(store, random.Random(1))
    yield store
    store.kill()


def read(options: ReadOptions, spans: list[Span] | None = None, *, by_cursor: bool = False) -> list[Entry]:
    """The entries of all spans that are planned for `options`."""
    found = []
    for span in plan(resolve(options), options, 2) if spans is None else spans:
        tables = open_place(span.place, options)
        with tables.env.begin() as txn:
            # Of what is called live no pages are read.
            asked = replace(span, place=replace(span.place, is_live=True)) if by_cursor else span
            for fetched in fetch_span(TableReader(tables, txn), asked, options):
                assert sum(count for _, count in fetched.runs) == fetched.batch.count > 0
                ids, halves = fetched.batch.ids().to_pylist(), (fetched.batch.ms(), fetched.batch.seq())
                assert ids == [b"%d-%d" % pair for pair in zip(*halves, strict=True)]
                streams = [stream for stream, count in fetched.runs for _ in range(count)]
                rows = [fetched.batch.row(number) for number in range(fetched.batch.count)]
                found += [(stream.db, stream.key, row) for stream, row in zip(streams, rows, strict=True)]
    return found


def expected(store: Store, options: ReadOptions) -> list[Entry]:
    """What clients would be answered, in the order of the streams' numbers."""
    found = []
    for database in store.txn.databases:
        for key in all_keys(database, 0):
            stream = store.stream(key, database.number)
            if options.wants(database.number, key):
                asked = options.range
                rows = [(database.number, key, row) for _, row in stream.rows(asked.first, asked.last)]
                found.append((stream.stream_no, rows))
    return [entry for _, rows in sorted(found) for entry in rows]


def options_of(store: Store, tmp_path: Path, **more: Any) -> ReadOptions:
    path = tmp_path / "snapshot"
    if not path.exists():
        store.checkpoint()
        store.engine.close()
        take_snapshot(store.directory, path, program="test", split_every=500)
        store.open()
    return ReadOptions(paths=(str(path),), **more)


def test_pages_and_a_cursor_give_what_clients_are_answered(store: Store, tmp_path: Path) -> None:
    for batch_rows in (1, 1000, 16384):
        options = options_of(store, tmp_path, batch_rows=batch_rows)
        entries = expected(store, options)
        assert len(entries) > 1000
        assert read(options) == entries
        assert read(options, by_cursor=True) == entries


def test_partitions_of_any_number_lose_and_repeat_nothing(store: Store, tmp_path: Path) -> None:
    entries = expected(store, options_of(store, tmp_path))
    for wanted in (1, 2, 3, 10, 100, 1000):
        options = options_of(store, tmp_path, min_partitions=wanted)
        assert read(options) == entries
        assert read(options, by_cursor=True) == entries


def test_a_range_of_ids_and_a_choice_of_streams_are_all_that_is_read(store: Store, tmp_path: Path) -> None:
    rnd = random.Random(3)
    for _ in range(10):
        first, last = sorted(make_id(rnd.randrange(500), rnd.randrange(1500)) for _ in range(2))
        keys = tuple(f"s{number}" for number in rnd.sample(range(60), 20))
        for chosen in (None, keys):
            for partitions in (0, 9):
                options = options_of(store, tmp_path, range=Range(first, last), keys=chosen, min_partitions=partitions)
                entries = expected(store, options)
                assert read(options) == entries
                assert read(options, by_cursor=True) == entries


def test_the_pages_of_a_snapshot_are_read_without_lmdb(store: Store, tmp_path: Path) -> None:
    [path] = options_of(store, tmp_path).paths

    with PageTable(Path(path) / DATA_NAME, b"entries", 24) as table:
        assert table.row_count == store.count("entries")


def test_a_store_without_entries_has_none(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.fill(b"s", 3)
    store.run("XTRIM", "s", "MAXLEN", 0)
    store.purge()
    store.checkpoint()
    options = options_of(store, tmp_path)
    store.kill()

    assert read(options) == read(options, by_cursor=True) == []


def test_rare_long_values_leave_their_neighbours_in_one_batch(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    stream, other = store.stream(b"s"), store.stream(b"t")
    for n in range(3000):
        stream.append_entry(make_id(1, n), [b"v", b"x" * (9000 if n % 700 == 1 else 20)])
        other.append_entry(make_id(2, n), [b"v", b"y" * (9000 if n == 0 else 20)])
    store.commit()
    options = options_of(store, tmp_path)
    entries = expected(store, options)
    store.kill()

    assert len(entries) == 6000
    assert read(options) == entries
    (span,) = plan(resolve(options), replace(options, min_partitions=1), 1)
    tables = open_place(span.place, options)
    with tables.env.begin() as txn:
        batches = [fetched.batch.count for fetched in fetch_span(TableReader(tables, txn), span, options)]
    assert len(batches) <= 2


def test_long_values_are_divided_among_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.tools.columns.fetch._MAX_BATCH_BYTES", 20_000)
    store = Store(tmp_path / "store")
    for name in (b"a", b"b"):
        stream = store.stream(name)
        for n in range(40):
            stream.append_entry(make_id(1, n), [b"v", b"%d" % n * (30_000 if n == 7 else 4000 if n % 3 else 5)])
    store.commit()
    options = options_of(store, tmp_path)
    entries = expected(store, options)
    store.kill()

    assert len(entries) == 80
    assert read(options) == entries


def test_ids_alone_are_read_without_long_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    stream = store.stream(b"s")
    for n in range(100):
        stream.append_entry(make_id(1, n), [b"v", b"x" * (1 << 20 if n % 10 == 0 else 20)])
    store.commit()
    options = options_of(store, tmp_path)
    store.kill()
    asked: list[int] = []
    long_value = PageTable.long_value

    def watched(table: PageTable, page: int, size: int) -> bytes:
        asked.append(size)
        return long_value(table, page, size)

    monkeypatch.setattr(PageTable, "long_value", watched)
    (span,) = plan(resolve(options), replace(options, min_partitions=1), 1)
    tables = open_place(span.place, options)
    with tables.env.begin() as txn:
        ids = StructType().add("_id", "string").add("_seq", "long").add("_key", "string")
        for schema in (StructType().add("_ms", "long"), ids, StructType().add("_timestamp", "timestamp")):
            columns = entry_columns(schema, options)
            batches = entry_batches(TableReader(tables, txn), span, options, columns)
            assert sum(batch.num_rows for batch in batches) == 100
    assert len(asked) == 30 and max(asked) <= 64
