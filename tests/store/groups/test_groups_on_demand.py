"""Of a stream with many groups only those that a command names are made objects."""

from __future__ import annotations

import gc

import pytest

from riverbed.store.databases import transaction
from riverbed.store.format import groups as names
from riverbed.store.groups.group import Group
from riverbed.store.tables.writing import transaction as tables_transaction
from tests.support.effort import undisturbed
from tests.support.store.stores import Store

GROUPS = 50


def test_a_group_is_read_when_it_is_named(store: Store) -> None:
    store.fill(b"s", 10)
    for number in range(GROUPS):
        store.run("XGROUP", "CREATE", "s", f"g{number}", "3-0")
    store.checkpoint()
    store.db.forget_cached()
    groups = store.groups()
    count = len(groups)
    assert count == GROUPS
    assert groups._by_name == {}
    found = groups.get(b"g7")
    assert found is not None
    assert groups.get(b"g7") is found
    assert groups.get(b"other") is None
    assert list(groups._by_name) == [b"g7"]
    assert len(groups) == count
    names = [group.name for group in groups]
    assert len(names) == count
    assert names == sorted(names)
    assert groups.get(b"g7") is found


def test_a_group_whose_name_has_the_digest_of_one_that_waits_to_be_written_is_told_from_it(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(names, "_digest", lambda name: bytes(8))
    store.fill(b"s", 10)
    store.run("XGROUP", "CREATE", "s", "written", "0")
    store.checkpoint()
    store.db.forget_cached()
    store.run("XGROUP", "CREATE", "s", "new", "0")
    assert store.groups().get(b"other") is None
    assert store.run("XGROUP", "DESTROY", "s", "written") == 1


def test_a_group_that_was_not_read_yet_can_be_destroyed_and_made_again(store: Store) -> None:
    store.fill(b"s", 10)
    for number in range(GROUPS):
        store.run("XGROUP", "CREATE", "s", f"g{number}", "3-0")
    store.checkpoint()
    store.db.forget_cached()
    assert store.run("XGROUP", "DESTROY", "s", "g7") == 1
    assert store.run("XGROUP", "DESTROY", "s", "g7") == 0
    store.run("XGROUP", "CREATE", "s", "g7", "5-0")
    assert len(list(store.groups())) == store.stream().group_count


def test_a_checkpoint_lets_go_of_very_many_groups(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "CACHED_GROUPS", GROUPS - 10)
    store.fill(b"s", 300)
    for number in range(GROUPS):
        store.run("XGROUP", "CREATE", "s", f"g{number}", "0")
        store.run("XREADGROUP", "GROUP", f"g{number}", "Alice", "COUNT", number, "STREAMS", "s", ">")
    for number in range(200):
        store.run("XGROUP", "CREATECONSUMER", "s", "g5", f"c{number}")
    before = [described(group) for group in store.groups()]
    assert len(in_memory(store)) == GROUPS
    store.checkpoint()
    assert in_memory(store) == []
    assert store.txn.consumer_bytes == 0
    assert [described(group) for group in store.groups()] == before
    assert len(in_memory(store)) == GROUPS
    assert store.run("XACK", "s", "g7", "1-0") == 1
    store.checkpoint()
    assert store.violations() == []


def test_the_memory_of_a_group_that_was_let_go_is_free_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "CACHED_GROUPS", 1)
    store.fill(b"s", 10)
    for name in ("g", "h"):
        store.run("XGROUP", "CREATE", "s", name, "0")
        store.run("XREADGROUP", "GROUP", name, "Alice", "COUNT", 3, "STREAMS", "s", ">")
    groups = {id(group) for group in store.groups()}  # there are no weak references to compiled objects
    with undisturbed():  # by a garbage collection, which would take long with very many
        assert {id(one) for one in gc.get_objects() if type(one) is Group} >= groups
        store.checkpoint()
        assert [one for one in gc.get_objects() if type(one) is Group and id(one) in groups] == []


def test_what_consumers_keep_of_a_long_key_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "CACHED_BYTES", 1 << 20)
    key = b"k" * 100_000
    store.add(key, *(f"{number}-0" for number in range(1, 50)))
    store.run("XGROUP", "CREATE", key, "g", "0")
    for number in range(40):
        assert store.run("XREADGROUP", "GROUP", "g", f"c{number}", "COUNT", 1, "STREAMS", key, ">")
        store.commit()
        store.txn.bound_caches()
        group = store.groups(key).get(b"g")
        assert group is not None
        heads = [(each.claim_head or (b"", b""), each.delivery_head) for each in group.consumers.in_order()]
        assert sum(len(claim[1]) + len(delivery[1]) for claim, delivery in heads) < 2 << 20
    assert len(heads) == 40


def test_the_consumers_of_groups_in_memory_are_bounded_by_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "CACHED_CONSUMER_BYTES", 1 << 20)
    store.fill(b"s", 300)
    for number in range(10):
        store.run("XGROUP", "CREATE", "s", f"g{number}", "0")
        store.run("XREADGROUP", "GROUP", f"g{number}", "Alice", "COUNT", number, "STREAMS", "s", ">")
        for consumer in range(150):
            store.run("XGROUP", "CREATECONSUMER", "s", f"g{number}", b"%d" % consumer + b"c" * 1000)
        store.checkpoint()
        assert with_consumers(store)[-1] == b"g%d" % number
        assert store.txn.consumer_bytes < (1 << 20) + 200 * 2500
        assert store.txn.consumer_bytes == sum(group.consumers.byte_count for group in store.groups()._by_name.values())
    kept = with_consumers(store)
    assert kept == [b"g%d" % number for number in range(10 - len(kept), 10)]
    assert 1 < len(kept) < 10
    store.run("XGROUP", "CREATECONSUMER", "s", kept[0], "Alice")  # used again, so it stays
    for consumer in range(150):
        store.run("XGROUP", "CREATECONSUMER", "s", "g0", b"%d" % consumer + b"d" * 1000)
    store.checkpoint()
    assert with_consumers(store) == sorted([b"g0", kept[0], *kept[2:]])
    for number in range(10):
        assert store.run("XGROUP", "DELCONSUMER", "s", f"g{number}", "Alice") == (number or 300)
        store.checkpoint()
    assert store.violations() == []


def test_a_group_of_very_many_consumers_stays_while_it_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "CACHED_CONSUMER_BYTES", 1 << 16)
    for name in ("g", "h"):
        store.run("XGROUP", "CREATE", "s", name, "0", "MKSTREAM")
    for number in range(400):
        store.run("XGROUP", "CREATECONSUMER", "s", "g", f"c{number}")
        if number % 100 == 0:
            store.checkpoint()
            group = store.groups()._by_name[b"g"]
    for _ in range(3):
        store.run("XADD", "s", "*", "f", "v")
        store.run("XREADGROUP", "GROUP", "g", "c7", "COUNT", 1, "STREAMS", "s", ">")
        store.checkpoint()
    assert store.groups()._by_name[b"g"] is group
    for number in range(400):
        store.run("XGROUP", "DELCONSUMER", "s", "g", f"c{number}")
    assert group.consumers.byte_count == 0


def in_memory(store: Store) -> list[bytes]:
    return sorted(store.groups()._by_name)


def with_consumers(store: Store) -> list[bytes]:
    """The groups that have consumers in memory."""
    return sorted(name for name, group in store.groups()._by_name.items() if group.consumers.byte_count)


def described(group: Group) -> tuple[object, ...]:
    consumers = [(each.name, each.seen_ms, each.pel_count) for each in group.consumers.in_order()]
    return group.row(), consumers, list(group.pending())[:3] == [] or group.pel_count


@pytest.mark.parametrize("end", ["XGROUP DESTROY s many", "DEL s", "FLUSHALL"])
def test_very_many_objects_are_freed_by_the_purge(store: Store, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(tables_transaction, "FREED_AT_ONCE", 100)
    store.fill(b"s", 3)
    for name in ("many", "few"):
        store.run("XGROUP", "CREATE", "s", name, "0")
    for number in range(450):
        store.run("XGROUP", "CREATECONSUMER", "s", "many", f"c{number}")
        store.run("XGROUP", "CREATE", "s", f"g{number}", "0")
    store.run("XGROUP", "CREATECONSUMER", "s", "few", "c")
    store.checkpoint()
    store.run(*end.split())
    left = [len(objects) for objects in store.txn.leftovers]
    assert left[:3] == [450, 450, 451]  # by name, by number, and their names, one of which is of no consumer
    assert len(left) == (3 if end.startswith("XGROUP") else 4)
    while store.engine.purge(0):
        assert sum(left) - sum(map(len, store.txn.leftovers)) <= 100
        left = [len(objects) for objects in store.txn.leftovers]
    assert store.txn.leftovers == []
