"""Of the consumers of a group with very many, memory holds those in use, and nothing else about a group shows it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from riverbed.store.databases import consumer_ttl, transaction
from riverbed.store.errors import DamagedRowError
from riverbed.store.format import groups as rows_of_groups
from riverbed.store.format.groups import ConsumerRow, consumer_key
from riverbed.store.groups import known_consumers
from riverbed.store.groups.group import Group
from riverbed.store.groups.known_consumers import KnownConsumers
from tests.support.store.stores import Store

MANY = 200_000


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group has very many consumers."""
    monkeypatch.setattr(known_consumers, "FEW", 0)


def group_of(store: Store, name: bytes = b"g", key: bytes = b"s") -> Group:
    group = store.groups(key).get(name)
    assert group is not None
    return group


def known(store: Store) -> KnownConsumers:
    return group_of(store).consumers


def in_memory(store: Store) -> list[bytes]:
    return sorted(known(store)._by_name)


def fill(store: Store, count: int) -> None:
    """A group with so many consumers, of which each fifth has one entry pending."""
    store.fill(b"s", count // 5 + 50)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    for number in range(count):
        store.run("XGROUP", "CREATECONSUMER", "s", "g", f"c{number:03}")
        if number % 5 == 0:
            store.run("XREADGROUP", "GROUP", "g", f"c{number:03}", "COUNT", 1, "STREAMS", "s", ">")
    store.checkpoint()


def many(store: Store) -> None:
    """A group of MANY consumers, made without commands."""
    store.run("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    group = group_of(store)
    for number in range(MANY):
        group.get_or_create(b"consumer-%d" % number, store.clock.now_ms)
        if number % 20_000 == 0:
            store.checkpoint()
            group = group_of(store)
    store.checkpoint()


def test_memory_holds_the_consumers_in_use_of_very_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 8 << 20
    monkeypatch.setattr(transaction, "CACHED_CONSUMER_BYTES", most)
    many(store)
    assert store.txn.consumer_bytes < most
    store.restart()
    store.purge()
    gc.collect()
    tracemalloc.start()
    try:
        store.run("XREADGROUP", "GROUP", "g", "consumer-77777", "STREAMS", "s", ">")
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
        assert in_memory(store) == [b"consumer-77777"]
    finally:
        tracemalloc.stop()
    for number in range(0, MANY, 5):
        assert known(store).named(b"consumer-%d" % number) is not None
        if number % 1000 == 0:
            store.commit()
            store.txn.bound_caches()
            assert store.txn.consumer_bytes == known(store).byte_count <= most
    assert known(store).count == MANY
    assert known(store).named(b"consumer-%d" % MANY) is None


def test_a_group_that_grows_lets_go_of_all_but_those_in_use(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_consumers, "FEW", 50)
    monkeypatch.setattr(transaction, "CACHED_CONSUMER_BYTES", 1 << 15)
    fill(store, 40)
    assert not known(store).are_many
    assert len(in_memory(store)) == 40
    for number in range(40, 200):
        store.run("XGROUP", "CREATECONSUMER", "s", "g", f"c{number:03}")
    assert known(store).are_many
    store.checkpoint()
    assert in_memory(store) == []
    for _ in range(2):
        assert store.run("XGROUP", "CREATECONSUMER", "s", "g", "c007") == 0
    assert store.run("XACK", "s", "g", "1-0", "2-0") == 2
    assert in_memory(store) == [b"c000", b"c005", b"c007"]
    assert known(store).in_order()[7].name == b"c007"
    monkeypatch.setattr(transaction, "CACHED_CONSUMER_BYTES", 0)
    for words in (("XREADGROUP", "GROUP", "g", "c008", "COUNT", 3, "STREAMS", "s", ">"), ("XACK", "s", "g", "9-0")):
        assert store.run(*words)
        store.commit()
        store.txn.bound_caches()
        assert in_memory(store) == []
    consumer = known(store).named(b"c008")
    assert consumer is not None and consumer.pel_count == 2
    assert store.violations() == []


def test_few_consumers_with_long_names_are_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_consumers, "FEW_BYTES", 50_000)
    store.run("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for number in range(20):
        store.run("XGROUP", "CREATECONSUMER", "s", "g", b"%d" % number + b"c" * 2000)
    assert known(store).are_many
    store.restart()
    assert known(store).are_many
    assert known(store).byte_count < 60_000
    monkeypatch.setattr(known_consumers, "FEW_BYTES", 200_000)
    assert not known(store).are_many


def test_consumers_with_long_names_are_not_read_for_each_of_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_consumers, "FEW_BYTES", 50_000)
    store.run("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    names = [b"%d" % number + b"c" * 2000 for number in range(100)]
    for name in names:
        store.run("XADD", "s", "*", "f", "v")
        store.run("XREADGROUP", "GROUP", "g", name, "COUNT", 1, "STREAMS", "s", ">")
    store.restart()
    with patch.object(ConsumerRow, "unpack", side_effect=ConsumerRow.unpack) as unpack:
        assert store.run("XPENDING", "s", "g", "-", "+", 100)[0].startswith(b"*100\r\n")
        store.run("XAUTOCLAIM", "s", "g", "new", 0, 0, "COUNT", 100, "JUSTID")
    assert unpack.call_count < 300


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("digest_bytes", [8, 1])
def test_groups_and_consumers_are_found_by_names_whose_digests_collide(
    store: Store, monkeypatch: pytest.MonkeyPatch, digest_bytes: int
) -> None:
    monkeypatch.setattr(rows_of_groups, "DIGEST_BYTES", digest_bytes)
    fill(store, 300)
    for number in range(300):
        store.run("XGROUP", "CREATE", "s", f"g{number}", f"{number}-0")
    store.checkpoint()
    for _ in range(2):
        store.db.forget_cached()
        assert [group_of(store, b"g%d" % number).last_id >> 64 for number in range(300)] == list(range(300))
        numbers = [each.consumer_no for number in range(300) if (each := known(store).named(b"c%03d" % number))]
        assert [*numbers[:7], *numbers[8:]] == [*range(1, 8), *range(9, 301)]
        assert store.groups().get(b"g300") is None
        store.run("XGROUP", "DELCONSUMER", "s", "g", "c007")
        store.run("XGROUP", "DESTROY", "s", "g7")
        store.checkpoint()
        store.db.forget_cached()
        assert known(store).named(b"c007") is None
        assert store.groups().get(b"g7") is None
        store.run("XGROUP", "CREATECONSUMER", "s", "g", "c007")
        store.run("XGROUP", "CREATE", "s", "g7", "7-0")
        again = known(store).named(b"c007")
        assert again is not None and again.consumer_no > 300
        assert store.violations() == []
        store.kill()
        store.open()


@pytest.mark.usefixtures("tiny")
def test_nothing_is_left_in_memory_of_a_tick_that_is_undone(store: Store) -> None:
    fill(store, 10)
    store.commit()
    mark = store.txn.mark()
    store.run("XGROUP", "CREATECONSUMER", "s", "g", "new")
    store.run("XGROUP", "DELCONSUMER", "s", "g", "c003")
    store.run("XREADGROUP", "GROUP", "g", "c004", "COUNT", 2, "STREAMS", "s", ">")
    store.engine.rollback(store.clock.now_ms, mark)
    assert known(store).named(b"new") is None
    assert known(store).count == 10
    for number in range(10):
        consumer = known(store).named(b"c%03d" % number)
        assert consumer is not None and consumer.pel_count == (number % 5 == 0)
    assert store.run("XGROUP", "CREATECONSUMER", "s", "g", "new") == 1
    assert store.violations() == []


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("is_gone", [False, True])
def test_the_row_of_one_of_very_many_that_is_not_in_its_place_is_damage(store: Store, is_gone: bool) -> None:
    fill(store, 20)
    store.txn.bound_caches()
    known(store).let_go()
    handle, stream_no, group_no = store.txn.handles["groups"], store.stream().stream_no, group_of(store).group_no
    key = consumer_key(stream_no, group_no, 6)
    row = store.txn.lmdb.get(key, db=handle)
    assert row is not None and store.txn.lmdb.delete(key, db=handle)
    if not is_gone:
        store.txn.lmdb.put(key[:-1] + bytes([key[-1] ^ 0x40]), row, db=handle)
        with pytest.raises(DamagedRowError):  # it would be an entry of no consumer
            known(store).is_alive(69)
    for words in (
        ("XREADGROUP", "GROUP", "g", "c005", "STREAMS", "s", "0"),
        ("XGROUP", "DELCONSUMER", "s", "g", "c005"),
    ):
        with pytest.raises(DamagedRowError, match="a consumer's row"):
            store.run(*words)
    assert in_memory(store) == []
    store.kill()


# -- what looks at all of them -----------------------------------------------------------------------------------------


def sweep(store: Store, expired: Iterator[bool]) -> bool:
    return consumer_ttl.sweep(store.txn, store.clock.now_ms, lambda: next(expired), lambda group: ())


def forever(value: bool) -> Iterator[bool]:
    while True:
        yield value


@pytest.mark.usefixtures("tiny")
def test_a_sweep_of_very_many_consumers_goes_on_where_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_consumers, "PART", 7)
    fill(store, 50)
    store.run("XGROUP", "CREATE", "s", "h", "0")
    store.run("XGROUP", "CREATECONSUMER", "s", "h", "Idle")
    for name in ("g", "h"):
        store.run("XGROUP", "POLICY", "s", name, "CONSUMERTTL", 1000)
    assert sweep(store, forever(False))
    store.clock.now_ms += 999
    store.run("XREADGROUP", "GROUP", "g", "c044", "COUNT", 1, "STREAMS", "s", ">")
    store.run("XACK", "s", "g", "11-0")
    store.run("XGROUP", "CREATECONSUMER", "s", "g", "new")
    store.clock.now_ms += 1
    others = []
    for _ in range(200):
        if sweep(store, forever(True)):
            break
        store.commit()
        store.txn.bound_caches()
        store.clock.now_ms += 1
        others.append(group_of(store, b"h").consumer_count)
    assert 0 in others[:4]  # the group with one consumer does not wait for the one with many
    left = [f"c{number:03}".encode() for number in range(0, 50, 5)]
    assert [each.name for each in known(store).in_order()] == sorted([*left, b"c044", b"new"])
    store.clock.now_ms += 999
    assert sweep(store, forever(False))
    assert known(store).count == 10
    assert store.violations() == []


@pytest.mark.usefixtures("tiny")
def test_a_summary_of_very_many_consumers_is_that_of_few(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 60)
    store.run("XNACK", "s", "g", "FAIL", "IDS", 1, "3-0")
    store.run("XACK", "s", "g", "1-0")
    group = group_of(store)
    owners = [[b"c%03d" % number, 1] for number in range(5, 60, 5) if number != 10]
    assert [[each.name, each.pel_count] for each in group.consumers.in_order() if each.pel_count] == owners
    assert sorted(group.consumers.owner_nos()) == [number + 1 for number in range(5, 60, 5) if number != 10]
    group.consumers.let_go()
    store.checkpoint()
    known(store).let_go()
    assert sorted(known(store).owner_nos()) == [number + 1 for number in range(5, 60, 5) if number != 10]
    assert in_memory(store) == []


@pytest.mark.parametrize("is_many", [False, True])
def test_living_entries_behind_many_dead_ones_are_found_more_than_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_many: bool
) -> None:
    if is_many:
        monkeypatch.setattr(known_consumers, "FEW", 0)
    store.fill(b"s", 1203)
    for dead, living in (("Alice", "Bob"), ("Carol", "Dave"), ("Eve", "Frank")):
        for _ in range(400):
            store.deliver(b"s", 1, consumer=dead)
            store.clock.now_ms += 1
        store.deliver(b"s", 1, consumer=living)
    store.checkpoint()
    for dead in ("Alice", "Carol", "Eve"):
        assert store.run("XGROUP", "DELCONSUMER", "s", "g", dead) == 400
    group = group_of(store)
    listed = [(entry.entry_id, entry.owner and entry.owner.name) for entry in group.pending()]
    assert [name for _, name in listed] == [b"Bob", b"Dave", b"Frank"]
    assert group.edges() == (listed[0][0], listed[-1][0])
    store.purge()
    assert store.violations() == []


@pytest.mark.parametrize("destroyed", ["a", "b", "c"])
def test_a_copy_leaves_out_consumers_that_wait_for_the_purge(store: Store, destroyed: str) -> None:
    for number, name in enumerate(("a", "b", "c"), 2):
        store.run("XGROUP", "CREATE", "s", name, "0", "MKSTREAM")
        for consumer in range(number):
            store.run("XGROUP", "CREATECONSUMER", "s", name, f"{name}{consumer}")
    store.checkpoint()
    store.run("XGROUP", "DESTROY", "s", destroyed)
    store.run("COPY", "s", "t")
    for name in {"a", "b", "c"} - {destroyed}:
        group = group_of(store, name.encode(), b"t")
        assert [each.name for each in group.consumers.in_order()] == [
            each.name for each in group_of(store, name.encode()).consumers.in_order()
        ]
    store.checkpoint()
    assert store.violations() == []
    store.purge()
    assert store.violations() == []


@pytest.mark.usefixtures("tiny")
def test_very_many_consumers_go_with_their_stream_and_their_group(store: Store, tmp_path: Path) -> None:
    fill(store, 30)
    store.run("COPY", "s", "t")
    store.run("RENAME", "t", "u")
    assert [each.name for each in group_of(store, key=b"u").consumers.in_order()] == [
        b"c%03d" % number for number in range(30)
    ]
    store.run("XGROUP", "DESTROY", "s", "g")
    store.run("XGROUP", "CREATE", "s", "g", "0")
    assert known(store).in_order() == []
    store.run("DEL", "u")
    assert store.txn.consumer_bytes >= 0
    store.purge()
    assert store.violations() == []
