"""The rows of a stream end a page where another stream follows: pages stay full, and no row is touched for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from riverbed.store.databases import alignment
from riverbed.store.databases.alignment import PART, filler_key, row_behind, split_behind
from riverbed.store.errors import Refusal
from riverbed.store.format.streams import id_in_key, stream_prefix
from riverbed.store.ids import MAX_ID, MIN_ID, id_text
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.recovery import replay
from riverbed.store.tables.data_file.pages import walk_pages
from tests.support.store.stores import Store

KEY_BYTES = 24
PAGE_BYTES = 4096
ENTRY = ("f1", "v1", "f2", "v2")
ROW_BYTES = 24 + 64 + 10  # about: the key, the row of such an entry, and what LMDB adds
FULL = 1.12  # bytes of pages for a byte of rows where LMDB leaves pages full; in half, nearly 2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", node_max_entries=20)
    yield store
    store.engine.abandon()


def key_of(number: int) -> bytes:
    return b"k%03d" % number


def append_in_turn(store: Store, streams: int, rounds: int, first: int = 0, *options: str) -> None:
    """Append to each stream in turn, and checkpoint as a server does."""
    for number in range(first, first + rounds):
        for stream in range(streams):
            store.run("XADD", key_of(stream), *options, f"{number + 1}-0", *ENTRY)
        if number % 10 == 9:
            write_parts(store)
            store.checkpoint()


def write_parts(store: Store) -> None:
    while store.txn.unwritten_parts:
        store.engine.write_part()


def page_bytes(store: Store) -> float:
    """Of the leaves of table `entries`, for each byte of their rows."""
    counts = store.txn.lmdb.stat(store.txn.handles["entries"])
    return float(counts["leaf_pages"] * PAGE_BYTES / counts["entries"] / ROW_BYTES)


class Splits:
    """Counts the splits; the row behind a stream can be made one that cannot be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[int] = []
        self.looked_at: list[int] = []
        self.unreadable: int | None = None
        monkeypatch.setattr(alignment, "split_behind", self._split_behind)
        monkeypatch.setattr(alignment, "row_behind", self._row_behind)

    def _split_behind(self, txn: Any, stream_no: int) -> None:
        self.streams.append(stream_no)
        split_behind(txn, stream_no)

    def _row_behind(self, txn: Any, stream_no: int) -> bytes | None:
        self.looked_at.append(stream_no)
        if stream_no == self.unreadable:
            raise lmdb.CorruptedError("a page is damaged")
        return row_behind(txn, stream_no)


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> Splits:
    return Splits(monkeypatch)


# -- when --------------------------------------------------------------------------------------------------------------


def test_streams_that_grow_in_turn_leave_their_pages_full(store: Store, splits: Splits) -> None:
    append_in_turn(store, 20, 60)
    assert len(splits.streams) == 19, "all but the last"
    before = store.txn.lmdb.stat(store.txn.handles["entries"])
    append_in_turn(store, 20, 800, 60)
    after = store.txn.lmdb.stat(store.txn.handles["entries"])
    pages, entries = (after[name] - before[name] for name in ("leaf_pages", "entries"))
    assert entries == 16_000
    assert pages * PAGE_BYTES < FULL * entries * ROW_BYTES
    assert len(splits.streams) == 19, "once"
    assert len(splits.looked_at) < 860 // 20 / 4 * 20, "aligned streams are looked at now and then"
    assert store.violations() == []


def test_replayed_streams_leave_their_pages_full(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append_in_turn(store, 10, 1000)
    monkeypatch.setattr(replay, "_BYTES_A_CHECKPOINT", 1 << 16)
    monkeypatch.setattr(alignment, "_A_COMMIT", 0)  # that is a bound for servers
    store.rebuild()
    assert page_bytes(store) < 1.2


def test_streams_that_are_loaded_one_after_the_other_are_not_touched(store: Store, splits: Splits) -> None:
    for number in range(20):
        store.fill(key_of(number), 100)
    write_parts(store)
    store.checkpoint()
    assert splits.looked_at
    assert not splits.streams


def test_short_streams_are_not_looked_at(store: Store, splits: Splits) -> None:
    append_in_turn(store, 100, 20)
    store.checkpoint()
    assert not splits.looked_at


def test_nothing_is_put_behind_the_last_stream_of_the_table(store: Store, splits: Splits) -> None:
    append_in_turn(store, 1, 500)
    assert splits.looked_at
    assert not splits.streams


def test_behind_trims_of_the_next_stream_nothing_is_done_again(store: Store, splits: Splits) -> None:
    append_in_turn(store, 5, 100)
    assert len(splits.streams) == 4
    append_in_turn(store, 5, 2000, 100, "MAXLEN", "~", "60")
    assert len(splits.streams) == 4
    assert store.violations() == []


def test_a_row_that_came_in_between_has_the_stream_aligned_again(store: Store, splits: Splits) -> None:
    append_in_turn(store, 3, 100)
    assert sorted(splits.streams) == [store.stream(key_of(number)).stream_no for number in (0, 1)]
    store.run("DEL", key_of(1))
    store.purge()
    splits.streams.clear()
    for number in range(100, 600):
        for stream in (0, 2):
            store.run("XADD", key_of(stream), f"{number + 1}-0", *ENTRY)
        if number % 10 == 9:
            store.checkpoint()
    assert splits.streams == [store.stream(key_of(0)).stream_no]


def test_many_streams_are_looked_at_in_parts(store: Store, splits: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_A_COMMIT", 2 * PART)
    streams = 4 * PART + 3
    for first in (0, 21):
        for number in range(first, first + 21):
            for stream in range(streams):
                store.run("XADD", key_of(stream), f"{number + 1}-0", *ENTRY)
        parts = store.txn.alignment.parts
        assert parts > 0
        splits.looked_at.clear()
        while store.txn.unwritten_parts:
            before = len(splits.looked_at), store.txn.unwritten_parts
            store.engine.write_part()
            assert len(splits.looked_at) - before[0] <= PART
            assert store.txn.unwritten_parts < before[1]
        assert len(splits.looked_at) >= parts * PART
        store.checkpoint()
        if not first:
            store.checkpoint()
    assert 2 * PART <= len(splits.streams) <= 2 * PART + PART  # the others have their turn behind the commit


def test_a_server_short_of_space_does_without(store: Store, splits: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    append_in_turn(store, 5, 19)
    store.txn.is_short_of_space = True
    monkeypatch.setattr(alignment, "PART", 1)
    append_in_turn(store, 5, 3, 19)
    assert store.txn.unwritten_parts == 0
    append_in_turn(store, 5, 98, 22)
    assert not splits.looked_at
    store.txn.is_short_of_space = False
    append_in_turn(store, 5, 200, 120)
    assert len(splits.streams) == 4


# -- what happens to the rows ------------------------------------------------------------------------------------------


def rows_of(store: Store) -> list[tuple[bytes, bytes]]:
    return list(store.txn.lmdb.cursor(store.txn.handles["entries"]).iternext())


def cursor_at(store: Store, key: bytes) -> lmdb.Cursor[bytes]:
    cursor = store.txn.lmdb.cursor(store.txn.handles["entries"])
    assert cursor.set_key(key)
    return cursor


@pytest.mark.parametrize("large", [0, 1, 2], ids=["small rows", "rows of half a page", "rows with pages of their own"])
@pytest.mark.parametrize("seed", range(12))
def test_no_row_changes_and_pages_are_sound(tmp_path: Path, seed: int, large: int) -> None:
    """Split behind any stream at any time, between any changes of it and its neighbours."""
    rng = random.Random(seed)
    sizes = [(1, 30, 200), (1, 100, 1900, 1980, 2000), (1, 500, 1000, 2100, 9000)][large]
    store = Store(tmp_path / "store", node_max_entries=5)
    last = 0
    for _ in range(400):
        key = key_of(rng.randrange(6))
        kind = rng.random()
        if kind < 0.7:
            for _ in range(rng.randrange(1, 12)):
                last += 1
                store.run("XADD", key, f"{last}-0", "f", "v" * rng.choice(sizes))
        elif kind < 0.8:
            store.run("XTRIM", key, "MAXLEN", rng.choice(["=", "~"]), rng.randrange(40))
        elif kind < 0.93:
            stream = store.stream(key)
            ids = [id_text(id_in_key(row_key)) for row_key in stream.keys(MIN_ID, MAX_ID)]
            if ids:
                store.run("XDEL", key, *rng.sample(ids, min(len(ids), rng.randrange(1, 9))))
        elif kind < 0.95:
            store.run("DEL", key)
        elif kind < 0.97:
            store.purge()
        else:
            store.checkpoint()
        before = rows_of(store)
        stream_no = store.stream(key).stream_no
        left = [(cursor_at(store, row[0]), row) for row in rng.sample(before, min(len(before), 4))]
        split_behind(store.txn, stream_no)
        assert rows_of(store) == before
        assert all(cursor.item() == row for cursor, row in left)  # where others have left them
    assert all(len(row_key) == KEY_BYTES for row_key, _ in rows_of(store))
    assert store.violations() == []
    assert walk_pages(store.directory / STATE_DIRECTORY / DATA_NAME) == []
    store.engine.abandon()


def test_a_filler_lies_between_all_rows_of_two_streams() -> None:
    assert stream_prefix(7) + b"\xff" * 16 < filler_key(7, 0) < filler_key(7, 2) < stream_prefix(8) + bytes(16)


@pytest.mark.parametrize("rows", range(1, 60))
def test_the_next_page_begins_with_the_next_stream(store: Store, rows: int) -> None:
    """However many rows of each share the page: what the first stream gets then leaves pages full."""
    store.add(b"a", *(f"{number}-0" for number in range(1, rows)), words=(b"f", b"v" * 20))
    store.add(b"b", *(f"{number}-0" for number in range(1, 62 - rows)), words=(b"f", b"v" * 20))
    first = store.add(b"a", f"{rows}-0", words=(b"f", b"v" * 20))
    split_behind(store.txn, first.stream_no)
    before = store.txn.lmdb.stat(store.txn.handles["entries"])["leaf_pages"]
    store.add(b"a", *(f"{number}-0" for number in range(100, 1100)), words=(b"f", b"v" * 20))
    pages = store.txn.lmdb.stat(store.txn.handles["entries"])["leaf_pages"] - before
    row_bytes = len(rows_of(store)[0][1]) + KEY_BYTES + 12  # up to
    assert pages <= 1000 // (PAGE_BYTES // row_bytes - 1) + 1


# -- what fails --------------------------------------------------------------------------------------------------------


class FailingDeletes:
    """A transaction of LMDB whose n-th delete fails."""

    def __init__(self, txn: lmdb.Transaction[bytes], deletes: int, error: BaseException) -> None:
        self._txn, self._left, self._error = txn, deletes, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def delete(self, key: bytes, db: Any) -> bool:
        if len(key) > KEY_BYTES:
            if not self._left:
                raise self._error
            self._left -= 1
        return self._txn.delete(key, db=db)


class FailingPuts:
    """A cursor that has put some of the fillers when it fails."""

    def __init__(self, cursor: lmdb.Cursor[bytes], puts: int) -> None:
        self._cursor, self._puts = cursor, puts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def putmulti(self, rows: list[tuple[bytes, bytes]]) -> None:
        if len(rows[0][0]) == KEY_BYTES:
            self._cursor.putmulti(rows)
            return
        self._cursor.putmulti(rows[: self._puts])
        raise lmdb.MapFullError("the map is full")


def grown(store: Store) -> None:
    """Have two streams grow so that the first one is aligned with the next part."""
    append_in_turn(store, 2, 29)
    store.checkpoint()
    for number in range(29, 45):
        for stream in range(2):
            store.run("XADD", key_of(stream), f"{number + 1}-0", *ENTRY)
    store.commit()


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["write_part", "checkpoint"])
def test_a_failure_in_the_midst_loses_nothing(
    store: Store, splits: Splits, monkeypatch: pytest.MonkeyPatch, at: int, name: str
) -> None:
    grown(store)
    assert not splits.streams
    dump, stream_no = store.dump(), store.stream(key_of(0)).stream_no
    monkeypatch.setattr(alignment, "PART", 1)
    if at < 3:
        monkeypatch.setattr(store.txn, "appender", FailingPuts(store.txn.appender, at))
    else:
        failing = FailingDeletes(store.txn.lmdb, at - 3, lmdb.MapFullError("the map is full"))
        monkeypatch.setattr(store.txn, "lmdb", failing)
    with pytest.raises(lmdb.MapFullError):
        getattr(store.engine, name)()
    assert store.engine.refusal is Refusal.MAP_FULL
    assert splits.streams == [stream_no]
    assert all(len(key) == KEY_BYTES for key, _ in rows_of(store))
    assert store.dump() == dump
    splits.looked_at.clear()
    append_in_turn(store, 2, 200, 45)
    assert stream_no not in splits.looked_at, "it is given up"
    assert store.violations() == []


def test_an_unexpected_error_leaves_no_filler_to_be_committed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    grown(store)
    dump = store.dump()
    monkeypatch.setattr(store.txn, "lmdb", FailingDeletes(store.txn.lmdb, 1, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        store.txn.alignment.align_part()
    with pytest.raises(lmdb.Error):
        store.engine.checkpoint()
    assert store.dump() == dump
    assert store.violations() == []


def test_a_damaged_neighbour_stops_one_attempt(store: Store, splits: Splits) -> None:
    grown(store)
    dump = store.dump()
    splits.unreadable = store.stream(key_of(0)).stream_no
    with pytest.raises(lmdb.CorruptedError):
        store.engine.checkpoint()
    assert store.dump() == dump
    append_in_turn(store, 2, 200, 45)
    assert splits.looked_at.count(splits.unreadable) == 2
    assert store.violations() == []


def test_only_a_place_between_two_streams_is_split(store: Store) -> None:
    """A flipped bit in the tree leads to another page than the right one, to rows of others."""
    append_in_turn(store, 3, 20)
    first, middle, last = (store.stream(key_of(number)).stream_no for number in range(3))
    assert row_behind(store.txn, first) == rows_of(store)[20][0]
    assert row_behind(store.txn, last) is None
    store.run("DEL", key_of(1))
    store.purge()
    assert row_behind(store.txn, middle) is None, "no rows of it"
    assert row_behind(store.txn, first) == rows_of(store)[20][0]
