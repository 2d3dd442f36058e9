from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from riverbed.store.ids import MAX_ID, StreamID, id_ms, make_id, parse_id
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.tables.reader import TableReader
from riverbed.tools.spark.reading.locations import series
from riverbed.tools.spark.reading.options import ReadOptions
from riverbed.tools.spark.reading.plan import Span
from riverbed.tools.spark.reading.streamwalk import streams_of
from riverbed.tools.spark.streaming.counting import EntryCounts, Unread, common_cut
from tests.support.in_process import HandClock, Product
from tests.tools.spark.stores import freeze


@contextmanager
def counted(product: Product, out: Path) -> Iterator[dict[bytes, EntryCounts]]:
    """Each stream of a store, which is closed."""
    snapshot = open_snapshot(freeze(product, out / "snapshot"))
    [place] = series(str(out))
    tables = snapshot.open_tables()
    everything = Span(place, 0, StreamID(0), (1 << 64) - 1, None, 0)
    with tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        yield {
            each.key: EntryCounts(reader, each.row) for each in streams_of(reader, everything, ReadOptions((str(out),)))
        }
    tables.close()


def random_streams(tmp_path: Path, chance: random.Random) -> tuple[Product, dict[bytes, list[StreamID]]]:
    """Streams with small nodes, trimmed and with holes, and the IDs of what they have."""
    product = Product(tmp_path / "data", HandClock(), node_max_entries=chance.choice((2, 4, 100)))
    for key in [b"s%d" % number for number in range(chance.randrange(1, 6))]:
        at = chance.randrange(1, 60)
        for _ in range(chance.randrange(1, 120)):
            at += chance.choice((0, 0, 1, 1, 5, 40))
            product.run("XADD", key, f"{at}-*", "n", 1)
        ids = [entry_id for entry_id, _ in product.run("XRANGE", key, "-", "+")]
        for entry_id in chance.sample(ids, chance.randrange(len(ids)) // 2):
            product.run("XDEL", key, entry_id)
        if chance.random() < 0.5:
            product.run("XTRIM", key, "MAXLEN", chance.choice(("=", "~")), chance.randrange(len(ids)))
    left = {}
    for key in product.run("KEYS", "*"):
        left[key] = [parse_id(entry_id) or StreamID(0) for entry_id, _ in product.run("XRANGE", key, "-", "+")]
    return product, left


@pytest.mark.parametrize("seed", range(30))
def test_counts_and_cuts_are_those_of_counting_one_by_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    product, left = random_streams(tmp_path, chance)
    with counted(product, tmp_path / "out") as counts:
        for key, ids in left.items():
            for at in [0, *chance.choices(range(300), k=5)]:
                first = make_id(at, chance.randrange(2))
                assert counts[key].after(first) == sum(each > first for each in ids)
                assert list(counts[key].ids(first)) == [each for each in ids if each >= first]
                assert sum(run.live for run in counts[key].runs(first)) == sum(each >= first for each in ids)
        for most in (1, 2, 7, 50, 1000):
            assert_cuts(counts, left, dict.fromkeys(left, MAX_ID), most)
            assert_cuts(counts, left, {key: make_id(chance.randrange(300), 0) for key in left}, most)


def assert_cuts(
    counts: dict[bytes, EntryCounts], left: dict[bytes, list[StreamID]], ends: dict[bytes, StreamID], most: int
) -> None:
    """Batches one after the other have all entries up to `ends`, in time, none of them more than they may have."""
    merged = sorted(each for key, ids in left.items() for each in ids if each <= ends[key])
    read = 0
    at = StreamID(0)
    while at < MAX_ID:
        unread = [Unread(each, StreamID(at + 1), ends[key]) for key, each in counts.items() if at < ends[key]]
        cut = common_cut(unread, most)
        batch = [each for each in merged if at < each <= cut]
        assert batch or cut == MAX_ID
        is_one_id = len(set(batch)) == 1
        assert len(batch) <= most or is_one_id
        if cut < MAX_ID and not is_one_id:
            rest = [each for each in merged if each > cut]
            whole = [each for each in rest if id_ms(each) == id_ms(rest[0])]
            # Nothing more would have fitted in, and a millisecond is cut only when it is too large by itself.
            assert len(batch) + len(whole) > most
            assert id_ms(batch[-1]) != id_ms(rest[0]) or len({id_ms(each) for each in batch}) == 1
        read += len(batch)
        at = cut
    assert read == len(merged)


def test_an_id_that_is_in_more_streams_than_a_batch_may_have_rows_is_read_whole(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(5):
        product.run("XADD", f"s{number}", "7-7", "n", 1)
        product.run("XADD", f"s{number}", "7-8", "n", 1)
    with counted(product, tmp_path / "out") as counts:
        unread = [Unread(each, StreamID(1), MAX_ID) for each in counts.values()]
        assert common_cut(unread, 2) == make_id(7, 7)
        assert common_cut(unread, 5) == make_id(7, 7)
        assert common_cut(unread, 9) == make_id(7, 7)
        assert common_cut(unread, 10) == MAX_ID


def test_what_is_beyond_the_end_that_is_asked_for_does_not_count(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(1, 300):
        product.run("XADD", "a", f"{number}-0", "n", 1)
        product.run("XADD", "b", f"{number}-0", "n", 1)
    with counted(product, tmp_path / "out") as counts:
        unread = [Unread(counts[b"a"], make_id(1, 0), make_id(20, 0)), Unread(counts[b"b"], make_id(1, 0), MAX_ID)]
        assert common_cut(unread, 50) == make_id(31, 0) - 1
