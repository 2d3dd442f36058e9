"""A deleted consumer's pending entries wait for the purge, which leaves what another consumer has by then."""

from __future__ import annotations

import pytest

from riverbed.store.ids import MAX_ID, MIN_ID
from tests.support.store.stores import Store


def pending(store: Store) -> tuple[int, list[str]]:
    """What the group counts, and what it lists."""
    group = store.groups().get(b"g")
    assert group is not None
    listed = [
        f"{int.from_bytes(packed[:8], 'big')} {run.owner.name.decode() if run.owner else ''}"
        for run in group.pending_runs(MIN_ID, MAX_ID, None)
        for packed in run.packed_ids
    ]
    return group.pel_count, listed


@pytest.mark.parametrize("count", [1, 7, 100, 400])
@pytest.mark.parametrize("loads", [False, True])
def test_the_purge_of_a_deleted_consumer_leaves_what_another_has(store: Store, count: int, loads: bool) -> None:
    store.fill(b"s", 400)
    store.deliver(b"s", 400)
    store.run("XGROUP", "DELCONSUMER", "s", "g", "Alice")
    store.run("XGROUP", "SETID", "s", "g", "0")
    reads = max(200 // count, 1)
    for _ in range(reads):
        store.deliver(b"s", count, consumer="Bob")
    store.run("XCLAIM", "s", "g", "Carol", 0, "1-0", "JUSTID")
    store.run("XACK", "s", "g", "1-0")
    if loads:
        store.rebuild()
    expected = [f"{number} Bob" for number in range(2, reads * count + 1)]
    assert pending(store) == (len(expected), expected)
    store.purge()
    assert pending(store) == (len(expected), expected)
    assert store.violations() == []
    store.deliver(b"s", 50, consumer="Dave")
    assert store.run("XACK", "s", "g", *[f"{number}-0" for number in range(1, 401)]) == min(len(expected) + 50, 399)
    assert pending(store) == (0, [])
    assert store.violations() == []
