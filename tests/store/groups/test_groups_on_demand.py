"""Of a stream with many groups only those that a command names are made objects."""

from __future__ import annotations

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


def test_a_group_that_was_not_read_yet_can_be_destroyed_and_made_again(store: Store) -> None:
    store.fill(b"s", 10)
    for number in range(GROUPS):
        store.run("XGROUP", "CREATE", "s", f"g{number}", "3-0")
    store.checkpoint()
    store.db.forget_cached()
    assert store.run("XGROUP", "DESTROY", "s", "g7") == 1
    assert store.run("XGROUP", "DESTROY", "s", "g7") == 0
    store.run("XGROUP", "CREATE", "s", "g7", "5-0")
    assert len(store.groups()) == store.db.stream(b"s", 0).group_count  # type: ignore[union-attr]
