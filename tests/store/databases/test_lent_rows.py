"""Streams that are not in memory are appended to by their rows: what that leaves is what it leaves of their objects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest

from riverbed.server.errors import CommandError
from riverbed.store.databases import transaction
from riverbed.store.databases.lent import PART_BYTES, PUT_BATCH
from riverbed.store.errors import DamagedRowError, Refusal
from riverbed.store.format.streams import key_key
from riverbed.store.wire import APPENDED, LOGGED, Run, parse
from tests.support.raw import encode
from tests.support.store.stores import Store

NOW_MS = 1_800_000_000_000
TABLES = ("keys", "names", "entries", "nodes", "expiry")
ROOM = 300  # bytes of a node
OPTIONS = ("", "", "", "", "NOMKSTREAM", "MAXLEN ~ 9", "MAXLEN 6", "MINID 3-0")
IDS = ("*", "*", "*", "1800000000000-7", "5-5")
SIZES = (1, 1, 1, 40, ROOM - 1, ROOM + 50)
CHANGES = ("XTRIM {key} MAXLEN 0", "XDEL {key} 1800000000000-3", "DEL {key}", "XLEN {key}", "XGROUP CREATE {key} g 0")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = new_store(tmp_path / "store")
    yield store
    store.engine.abandon()


def new_store(directory: Path) -> Store:
    return Store(directory, node_max_entries=4, node_max_bytes=ROOM)


def append(store: Store, *lines: str, kind: int = APPENDED) -> int:
    """Append a run of XADDs; -> how many."""
    [run] = parse(kind, b"".join(encode(tuple(line.split())) for line in lines)) or [[]]
    assert isinstance(run, Run)
    return store.db.load_run(run) if kind == LOGGED else store.db.append_run(run, NOW_MS)[0]


def forget(store: Store) -> None:
    """Have every stream read again."""
    store.txn.write_back()
    store.db.forget_cached()
    store.txn.cached_bytes = 0


def rows(store: Store) -> dict[str, list[tuple[bytes, bytes]]]:
    store.txn.write_back()
    return {name: list(store.txn.lmdb.cursor(store.txn.handles[name]).iternext()) for name in TABLES}


def test_no_object_is_made(store: Store) -> None:
    store.add(b"s", "1-1")
    forget(store)
    assert append(store, "XADD s 2-1 f v", "XADD s 2-2 f v") == 2
    assert not store.db.cached
    assert store.db.lent_count == 1
    store.db.take_all_back()
    assert not store.db.cached
    assert store.txn.cached_bytes == 0
    stream = store.stream()
    assert (stream.length, stream.entries_added, stream.last_id >> 64, stream.tail_total) == (3, 3, 2, 3)
    assert not stream.dirty


def test_streams_with_and_without_objects_in_one_pipeline(store: Store) -> None:
    for number in range(9):
        store.add(b"k%d" % number, "1-1")
    forget(store)
    store.stream(b"k3")  # of this one there is an object
    lines = [f"XADD k{number} * f v" for number in (1, 2, 1, 3, 4, 5, 6, 7, 8, 0)]
    assert append(store, "XADD k0 MAXLEN 9 * f v", *lines) == 11
    assert (store.db.lent_count, len(store.db.cached)) == (9, 0)
    assert [store.stream(b"k%d" % number).length for number in range(9)] == [3, 3, 2, 2, 2, 2, 2, 2, 2]


def test_all_streams_of_a_pipeline_are_lent_at_once(store: Store) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        store.add(key, "1-1")
    store.run("PEXPIREAT", "d", NOW_MS + 1000)
    forget(store)
    store.db.interest[b"b"] = 1
    assert append(store, *(f"XADD {key} 2-1 f v" for key in ("a", "new", "d", "b", "c"))) == 1
    assert store.db.lent_count == 2  # `a` and `c`: one is missing, one expires, for one a client waits
    store.db.interest.clear()
    assert append(store, "XADD b 2-1 f v", "XADD c 2-1 f v") == 2
    assert store.txn.cached_bytes == 3 * 1003
    assert [store.stream(key).length for key in (b"a", b"b", b"c")] == [2, 2, 2]


def test_behind_a_stream_that_cannot_be_lent_no_row_is_read(store: Store) -> None:
    for key in (b"a", b"expiring"):
        store.add(key, "1-1")
    store.run("PEXPIREAT", "expiring", NOW_MS + 1000)
    for key in ("new", "expiring"):
        forget(store)
        assert append(store, f"XADD {key} 2-1 f v", "XADD a 2-1 f v") == 0
        assert store.db.lent_count == 0


def test_behind_an_entry_that_was_refused_no_row_is_read(store: Store) -> None:
    for key in (b"a", b"b"):
        store.add(key, "1-1")
    forget(store)
    assert append(store, "XADD a 2-1 f v") == 1
    assert append(store, "XADD a 1-1 f v", "XADD b 2-1 f v") == 0
    assert store.db.lent_count == 1


def test_streams_that_are_only_appended_to_are_lent_by_their_rows(store: Store) -> None:
    for key in (b"plain", b"trimmed", b"grouped"):
        store.add(key, "1-1")
    store.run("XGROUP", "CREATE", "grouped", "g", "0")
    append(store, "XADD plain 2-1 f v", "XADD trimmed MAXLEN ~ 9 2-1 f v", "XADD grouped 2-1 f v")
    assert sorted(store.db.cached) == []
    store.db.take_part_back()
    assert sorted(store.db.cached) == [b"grouped", b"trimmed"]  # of these the objects are of use
    assert store.db.lent_count == 0
    append(store, "XADD trimmed 3-1 f v")
    store.db.take_part_back()
    assert sorted(store.db.cached) == [b"grouped"]
    store.txn.write_back()
    store.db.forget_cached()
    assert [store.stream(key).length for key in (b"plain", b"trimmed", b"grouped")] == [2, 3, 2]


def test_a_stream_that_is_lent_by_its_row_may_be_trimmed(store: Store) -> None:
    for key in (b"a", b"b"):
        store.add(key, "1-1", "1-2", "1-3")
    forget(store)
    append(store, "XADD a 2-1 f v", "XADD b 2-1 f v", "XADD a MAXLEN 2 2-2 f v")
    assert (store.db.lent_count, len(store.db.cached)) == (2, 0)
    store.db.take_part_back()
    assert (store.db.lent_count, store.db.lent_bytes) == (0, 0)
    assert [store.stream(key).length for key in (b"a", b"b")] == [2, 4]
    assert store.violations() == []


def lent_in_another_order(store: Store) -> list[bytes]:
    """Lend two hundred streams in the order of their keys; -> these in the order of the streams' numbers."""
    keys = [b"%03d" % (number * 37 % 200) for number in range(200)]
    for key in keys:
        store.add(key, "1-1")
    forget(store)
    append(store, *(f"XADD {key.decode()} 2-1 f v" for key in sorted(keys)))
    return keys


def test_rows_are_put_back_in_the_order_of_their_streams_numbers(store: Store) -> None:
    keys = lent_in_another_order(store)
    left = [store.db.lent_count]
    while store.db.lent_count:
        store.db.take_part_back()
        left.append(store.db.lent_count)
        assert store.db._lent.all_keys() == keys[len(keys) - left[-1] :]
    assert left == [200, 136, 72, 0]
    assert (store.txn.cached_bytes, store.db.lent_bytes) == (0, 0)
    assert store.violations() == []


def test_rows_that_wait_are_put_in_the_order_of_their_streams_numbers(store: Store) -> None:
    keys = lent_in_another_order(store)
    for turn in range(1, 4):
        store.db.put_lent_rows()
        assert [key for key in keys if not store.db._lent._tails[key].size] == keys[: turn * PUT_BATCH]
    assert store.db.lent_count == 200
    assert store.violations() == []


def test_no_more_bytes_are_put_back_at_once_than_a_part_has(store: Store) -> None:
    keys = [f"{number:02}" for number in range(40)]
    for key in keys:
        store.add(key.encode(), "1-1")
    forget(store)
    store.txn.configure_nodes(100, 20_000)
    append(store, *(f"XADD {key} 2-1 f {'v' * 10_000}" for key in keys))
    counts = [store.db.lent_count]
    while store.db.lent_count:
        store.db.take_part_back()
        counts.append(store.db.lent_count)
    part = -(-PART_BYTES // 10_100)
    assert counts == [*range(40, 0, -part), 0]
    assert store.db.lent_bytes == 0
    assert [store.stream(key.encode()).length for key in keys] == [2] * 40


def test_a_look_has_what_was_appended(store: Store) -> None:
    store.add(b"s", "1-1")
    forget(store)
    append(store, "XADD s 2-1 f v")
    assert store.run("XLEN", "s") == 2
    append(store, "XADD s 3-1 f v")
    assert store.run("XLEN", "s") == 3


@pytest.mark.parametrize("kind", [APPENDED, LOGGED])
def test_a_node_that_is_opened_has_its_row(store: Store, kind: int) -> None:
    store.add(b"s", "1-1", "1-2", "1-3")
    forget(store)
    lines = [f"XADD s {number}-1 f v" for number in range(2, 8)]
    assert append(store, *lines, kind=kind) == 6
    store.db.take_all_back()
    stream = store.stream()
    assert (stream.length, stream.node_count, stream.tail_total) == (9, 2, 1)
    assert store.violations() == []


@pytest.mark.parametrize(
    "command",
    [
        "PEXPIREAT s 1800000099999",
        "XCFGSET s IDMP-DURATION 7",
        "XTRIM s MAXLEN 0",
        "XSETID s 9-9 ENTRIESADDED 20 MAXDELETEDID 8-8",
        "XGROUP CREATE s g 0",
        "XDEL s 1-3",
    ],
)
def test_what_a_row_says_besides_stays(tmp_path: Path, store: Store, command: str) -> None:
    other = new_store(tmp_path / "other")
    for one in (store, other):
        one.add(b"s", "1-1", "1-2", "1-3")
        one.run(*command.split())
    forget(store)
    for one in (store, other):
        added = append(one, "XADD s 10-1 f v", "XADD s 10-2 f v")
        assert added == (0 if "EXPIRE" in command else 2)
    assert rows(store) == rows(other)
    assert store.violations() == []
    other.engine.abandon()


def test_a_client_that_waits_hears_of_it(store: Store) -> None:
    store.add(b"s", "1-1")
    forget(store)
    store.db.interest[b"s"] = 1
    assert append(store, "XADD s 2-1 f v") == 0


def test_a_damaged_row_is_refused(store: Store) -> None:
    store.add(b"s", "1-1")
    forget(store)
    key = key_key(0, b"s")
    row = bytearray(store.txn.lmdb.get(key, db=store.txn.handles["keys"]) or b"")
    row[-30] ^= 1
    store.txn.lmdb.put(key, bytes(row), db=store.txn.handles["keys"])
    logged = list(store.txn.log)
    assert append(store, "XADD s 2-1 f v", "XADD t 2-1 f v") == 0
    assert store.db.lent_count == 0
    assert store.txn.log == logged
    with pytest.raises(DamagedRowError):
        store.db.stream(b"s", 0)


def test_rows_that_are_lent_are_let_go_of(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"k%d" % number for number in range(1000)]
    for key in keys:
        store.add(key, "1-1")
    forget(store)
    monkeypatch.setattr(transaction, "CACHED_BYTES", 200_000)
    for first in range(0, len(keys), 250):  # as many as make a run
        append(store, *(f"XADD {key.decode()} 2-1 f v" for key in keys[first : first + 250]))
    assert store.db.lent_count == len(keys)
    assert store.txn.cached_bytes > 1_000_000
    store.txn.bound_caches()
    assert store.db.lent_count < 200
    assert 0 < store.txn.cached_bytes <= 200_000
    store.db.take_all_back()
    assert store.txn.cached_bytes == 0
    assert [store.stream(key).length for key in keys] == [2] * len(keys)


@pytest.mark.parametrize("seed", range(8))
def test_tables_are_the_same_as_of_objects(tmp_path: Path, store: Store, seed: int) -> None:
    rng = random.Random(seed)
    other = new_store(tmp_path / "other")
    for _ in range(60):
        lines = [
            f"XADD k{rng.randrange(4)} {rng.choice(OPTIONS)} {rng.choice(IDS)} f {'v' * rng.choice(SIZES)}"
            for _ in range(rng.randrange(1, 12))
        ]
        change = rng.choice(CHANGES).format(key=f"k{rng.randrange(4)}").split()
        for one in (store, other):
            at = 0
            while at < len(lines):
                at += append(one, *lines[at:])
                if at < len(lines):  # what is not simple, as a server does it
                    refuse(one, lines[at].split())
                    at += 1
        if rng.random() < 0.5:
            for one in (store, other):
                refuse(one, change)
        assert b"".join(store.txn.log) == b"".join(other.txn.log)
        forget(store)
        for one in (store, other):
            one.commit()
    assert rows(store) == rows(other)
    assert store.violations() == []
    other.engine.abandon()


def refuse(store: Store, words: list[str]) -> None:
    """Execute a command, which may be refused."""
    try:
        store.run(*words)
    except CommandError:
        return


def long_run(store: Store, options: str = "") -> None:
    """Append more rows to a lent stream than shall wait when the replies are sent."""
    store.add(b"s", "1-1")
    store.txn.configure_nodes(1000, 1 << 20)
    for _ in range(10):
        assert append(store, *(f"XADD s {options} * f {'v' * 40}" for _ in range(50))) == 50


def test_the_rows_of_a_long_stream_are_put_behind_the_replies(store: Store) -> None:
    long_run(store)
    store.commit()
    assert store.db.lent_bytes > 0
    store.engine.write_behind()
    assert (store.db.lent_bytes, store.db.lent_count) == (0, 1)
    assert store.count("entries") == 501
    long_run_length = store.stream().length
    store.crash()
    assert (store.stream().length, long_run_length) == (501, 501)
    assert store.violations() == []


def test_rows_that_a_trim_may_remove_wait_for_it(store: Store) -> None:
    long_run(store, "MAXLEN 1000")
    size = store.db.lent_bytes
    store.engine.write_behind()
    assert store.db.lent_bytes == size > 0
    store.txn.log.clear()


def test_bytes_that_wait_are_counted_once_where_an_exact_trim_is_behind_a_plain_entry(tmp_path: Path) -> None:
    store = Store(tmp_path / "another", node_max_entries=1000, node_max_bytes=1 << 20)
    store.add(b"s", "1-1")
    append(store, *(f"XADD s * f {'v' * 40}" for _ in range(100)))
    for _ in range(3):
        store.commit()
        store.db.take_all_back()
        trims = [f"XADD s MAXLEN 101 * f {'v' * 200}" for _ in range(200)]
        append(store, f"XADD s * f {'v' * 40}", *trims)
        store.commit()
        store.engine.write_behind()
        store.db.take_all_back()
        assert store.db.lent_bytes == 0
    store.engine.abandon()


def test_a_run_that_is_not_taken_ends_no_tick_however_much_came_since_the_last_look(store: Store) -> None:
    store.txn.configure_nodes(1000, 1 << 20)
    for key in (b"s", b"o"):
        store.add(key, "1-1")
    for _ in range(20):
        assert append(store, *(f"XADD s * f {'v' * 40}" for _ in range(50))) == 50
    store.commit()
    store.engine.write_behind()
    assert append(store, "XADD new * f v", "XADD o * f v") == 0
    assert append(store, "XADD o * f v", "XADD o * f v") == 2
    store.txn.log.clear()


def test_looks_for_long_streams_are_rare_where_there_are_none(store: Store) -> None:
    keys = [f"k{number}" for number in range(50)]
    store.txn.configure_nodes(1000, 1 << 20)
    for key in keys:
        store.add(key.encode(), "1-1")
    looks = []
    for number in range(300):
        assert append(store, *(f"XADD {key} * f {'v' * 40}" for key in keys)) == 50
        if store.txn.overfull:
            looks.append(number)
            store.engine.write_behind()
        store.txn.log.clear()
        store.db.take_all_back()
    assert [second - first for first, second in pairwise(looks)] == sorted(
        second - first for first, second in pairwise(looks)
    )
    assert 3 < len(looks) < 8
    long_run(store)
    store.commit()
    while not store.txn.overfull:
        assert append(store, *(f"XADD s * f {'v' * 40}" for _ in range(50))) == 50
    store.engine.write_behind()
    assert store.db.lent_bytes == 0


def test_a_stream_that_was_taken_back_meanwhile_has_nothing_to_put(store: Store) -> None:
    long_run(store)
    assert store.run("XLEN", "s") == 501
    store.commit()
    store.engine.write_behind()
    assert store.count("entries") == 501


def test_rows_that_cannot_be_put_behind_the_replies_are_in_the_log(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullTable:
        def putmulti(self, rows: object) -> None:
            raise lmdb.MapFullError("the map is full")

    long_run(store)
    store.commit()
    monkeypatch.setattr(store.txn, "appender", FullTable())
    with pytest.raises(lmdb.MapFullError):
        store.engine.write_behind()
    assert store.engine.refusal is Refusal.MAP_FULL
    assert not store.txn.overfull
    assert store.stream().length == 501
    assert store.violations() == []
