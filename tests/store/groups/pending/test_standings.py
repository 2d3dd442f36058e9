"""Pending entries that are looked for together, in the last commit first: what has changed since is seen."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.store.groups.pending import pel as pel_module
from riverbed.store.ids import StreamID, pack_id
from riverbed.store.wire import IS_NATIVE
from tests.support.store.stores import Store

ENTRIES = 60
PACKED = [pack_id(StreamID(number << 64)) for number in range(ENTRIES + 5)]


def require_same(store: Store) -> int:
    """Look for all entries together and one by one; -> how many the last commit has answered for."""
    stream = store.db.stream(b"s", store.clock.now_ms)
    group = None if stream is None else store.groups().get(b"g")
    if group is None:
        return 0
    pel, asked = group.pel, []
    standing = pel.standing

    def asking(packed: bytes) -> object:
        asked.append(packed)
        return standing(packed)

    # the compiled form calls its own method, so that this is seen in the other one alone
    counted = pytest.MonkeyPatch()
    with counted.context() as patch:
        if not pel_module.__file__.endswith(".so"):
            patch.setattr(type(pel), "standing", lambda _, packed: asking(packed))
        together = pel.standings(PACKED)
    assert together == [pel.standing(packed) for packed in PACKED]
    return len(PACKED) - len(asked)


def answered(count: int) -> int:
    """For so many the last commit answers, where there is the native module: the reference is slower than LMDB."""
    return count if IS_NATIVE else 0


CHANGES: dict[str, tuple[tuple[str | int, ...], ...]] = {
    "nothing": (),
    "XACK": (("XACK", "s", "g", "5-0"), ("XACK", "s", "g", "7-0")),
    "XACK of many": (("XACK", "s", "g", *(f"{number}-0" for number in range(3, 30))),),
    "XACK of a run": (("XACK", "s", "g", *(f"{number}-0" for number in range(1, 21))),),
    "XCLAIM": (("XCLAIM", "s", "g", "Bob", 0, "5-0", "JUSTID"),),
    "XCLAIM of many": (("XCLAIM", "s", "g", "Bob", 0, "5-0", "9-0", "33-0"),),
    "XCLAIM FORCE": (("XACK", "s", "g", "5-0"), ("XCLAIM", "s", "g", "Bob", 0, "5-0", "FORCE")),
    "XAUTOCLAIM": (("XAUTOCLAIM", "s", "g", "Bob", 0, "9-0", "COUNT", 15),),
    "XNACK": (("XNACK", "s", "g", "FAIL", "IDS", 2, "5-0", "6-0"),),
    "XDEL and XAUTOCLAIM": (("XDEL", "s", "5-0"), ("XAUTOCLAIM", "s", "g", "Bob", 0, "0")),
    "XREADGROUP": (("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 9, "STREAMS", "s", ">"),),
    "XREADGROUP again": (
        ("XACK", "s", "g", *(f"{number}-0" for number in range(11, 21))),
        ("XGROUP", "SETID", "s", "g", "8-0"),
        ("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 9, "STREAMS", "s", ">"),
    ),
    "XREADGROUP CLAIM": (("XREADGROUP", "GROUP", "g", "Bob", "CLAIM", 0, "COUNT", 7, "STREAMS", "s", ">"),),
    "DELCONSUMER": (("XGROUP", "DELCONSUMER", "s", "g", "Alice"),),
    "DELCONSUMER, and read again": (
        ("XGROUP", "DELCONSUMER", "s", "g", "Alice"),
        ("XGROUP", "SETID", "s", "g", "0"),
        ("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 9, "STREAMS", "s", ">"),
    ),
    "DESTROY": (
        ("XGROUP", "DESTROY", "s", "g"),
        ("XGROUP", "CREATE", "s", "g", "0"),
        ("XREADGROUP", "GROUP", "g", "Bob", "COUNT", 9, "STREAMS", "s", ">"),
    ),
    "RENAME": (("XADD", "t", "9-0", "f", "v"), ("RENAME", "s", "u"), ("RENAME", "u", "s")),
    "COPY": (("COPY", "s", "u"), ("RENAME", "u", "s")),
    "a trim": (("XTRIM", "s", "MAXLEN", 30, "DELREF"),),
}


@pytest.mark.parametrize("writes_at_once", [False, True])
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_since_the_last_commit_is_seen(
    store: Store, changes: tuple[tuple[str | int, ...], ...], *, writes_at_once: bool
) -> None:
    store.fill(b"s", ENTRIES)
    for _ in range(2):
        store.deliver(b"s", 20)
    store.checkpoint()
    if not writes_at_once:
        require_same(store)
    for words in changes:
        store.run(*words)
        if writes_at_once:
            while store.txn.unwritten_parts or store.txn.changed_ids:
                store.engine.write_part()
        require_same(store)
    store.purge()
    require_same(store)
    store.checkpoint()
    require_same(store)


def test_entries_of_a_deleted_consumer_are_dead_before_the_purge(store: Store) -> None:
    store.fill(b"s", 300)
    store.deliver(b"s", 300)
    store.checkpoint()
    require_same(store)
    store.run("XGROUP", "DELCONSUMER", "s", "g", "Alice")
    assert store.count("pel") > 0
    require_same(store)


def test_a_group_that_is_read_again_knows_what_has_changed(store: Store) -> None:
    store.fill(b"s", ENTRIES)
    store.deliver(b"s", 40)
    store.checkpoint()
    store.run("XACK", "s", "g", "5-0")
    store.txn.write_back()
    store.db.let_go_of_groups()
    require_same(store)
    group = store.groups().get(b"g")
    assert group is not None
    assert group.pel.standings(PACKED)[5] is None


@pytest.mark.once  # it is not seen which method the compiled form calls
def test_the_last_commit_answers_for_what_has_not_changed(store: Store) -> None:
    store.fill(b"s", ENTRIES)
    store.deliver(b"s", 40)
    assert require_same(store) == 0
    store.checkpoint()
    assert require_same(store) == answered(40)
    store.run("XACK", "s", "g", "5-0")
    store.run("XCLAIM", "s", "g", "Bob", 0, "7-0", "JUSTID")
    assert require_same(store) == answered(38)
    while store.txn.changed_ids:
        store.engine.write_part()
    assert require_same(store) == answered(38)
    store.run("XCLAIM", "s", "g", "Bob", 0, "9-0", "10-0")
    assert require_same(store) == answered(36)
    store.run("XCLAIM", "s", "g", "Bob", 0, *(f"{number}-0" for number in range(11, 25)))
    assert require_same(store) == 0  # what has changed is not noted
    store.checkpoint()
    assert require_same(store) == answered(39)


def test_what_is_written_during_the_search_is_seen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for a young entry writes the acknowledgements, in passes: one of them finds that there are too many."""
    monkeypatch.setattr(pel_module, "_MOST_REWRITTEN", 300)
    store.fill(b"s", 1400)
    store.run("XGROUP", "CREATE", "s", "g", "0")
    for number in range(700):  # runs of two: a pass writes 128 of them
        consumer = ("Alice", "Bob")[number % 2]
        store.run("XREADGROUP", "GROUP", "g", consumer, "COUNT", 2, "STREAMS", "s", ">")
    store.checkpoint()
    acknowledged = range(1, 1400, 2)
    for part in (acknowledged[:350], acknowledged[350:]):
        store.run("XACK", "s", "g", *(f"{number}-0" for number in part))
    store.run("XADD", "s", "1401-0", "f", "v")
    store.run("XREADGROUP", "GROUP", "g", "Alice", "COUNT", 1, "STREAMS", "s", ">")
    group = store.groups().get(b"g")
    assert group is not None
    found = group.pel.standings([pack_id(StreamID(number << 64)) for number in (1401, *acknowledged[-8:])])
    assert [standing is not None for standing in found] == [True] + 8 * [False]


def test_a_commit_forgets_what_had_changed(store: Store) -> None:
    """A group that is not used again would keep the IDs in memory."""
    store.fill(b"s", ENTRIES)
    store.deliver(b"s", 40)
    store.checkpoint()
    store.run("XACK", "s", "g", "5-0", "7-0")
    while store.txn.changed_ids:
        store.engine.write_part()
    assert list(store.txn.rewritten.values()) == [{PACKED[5], PACKED[7]}]
    store.checkpoint()
    assert store.txn.rewritten == {}


def test_what_is_undone_has_not_changed(store: Store) -> None:
    store.fill(b"s", ENTRIES)
    store.deliver(b"s", 40)
    store.checkpoint()
    store.run("XACK", "s", "g", "5-0")
    while store.txn.changed_ids:
        store.engine.write_part()
    store.txn.abort()
    store.txn.reload()
    require_same(store)
    group = store.groups().get(b"g")
    assert group is not None
    assert group.pel.standings(PACKED)[5] is not None


@pytest.mark.once  # it is not seen which method the compiled form calls
def test_groups_that_change_very_much_are_not_asked_of_the_last_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pel_module, "_MOST_REWRITTEN", 3)
    store.fill(b"s", ENTRIES)
    store.deliver(b"s", 40)
    store.checkpoint()
    for number in range(1, 9):
        store.run("XACK", "s", "g", f"{number}-0")
        while store.txn.changed_ids:
            store.engine.write_part()
        assert require_same(store) == answered(40 - number if number <= 3 else 0)


def test_entries_are_found_together_as_one_by_one_whatever_happens(tmp_path: Path) -> None:
    rng = random.Random(5)
    store = Store(tmp_path)

    def ids(count: int) -> list[str]:
        return [f"{rng.randrange(1, ENTRIES)}-0" for _ in range(count)]

    def write_part() -> None:
        store.engine.write_part()

    def name() -> str:
        return rng.choice(["Alice", "Bob", "Carol"])

    changes: list[Callable[[], object]] = [
        lambda: store.run("XACK", "s", "g", *ids(rng.choice([1, 1, 1, 12]))),
        lambda: store.run("XCLAIM", "s", "g", name(), 0, *ids(1), "JUSTID"),
        lambda: store.run("XCLAIM", "s", "g", name(), 0, *ids(4), *rng.choice([[], ["FORCE"]])),
        lambda: store.run("XAUTOCLAIM", "s", "g", name(), 0, ids(1)[0], "COUNT", 5),
        lambda: store.run("XNACK", "s", "g", "FAIL", "IDS", 1, *ids(1)),
        lambda: store.run("XGROUP", "DELCONSUMER", "s", "g", name()) if rng.random() < 0.3 else None,
        lambda: store.run("XGROUP", "SETID", "s", "g", ids(1)[0]),
        lambda: store.run("XREADGROUP", "GROUP", "g", name(), "COUNT", rng.choice([1, 9]), "STREAMS", "s", ">"),
        lambda: store.run("XDEL", "s", ids(1)[0]) if rng.random() < 0.3 else None,
        write_part,
        store.checkpoint,
        store.commit,
        lambda: store.purge() if rng.random() < 0.3 else None,
        lambda: store.crash() if rng.random() < 0.3 else None,
    ]
    seen = 0
    for _ in range(40):
        store.run("DEL", "s")
        store.fill(b"s", ENTRIES)
        store.deliver(b"s", 40)
        for _ in range(25):
            rng.choice(changes)()
            store.clock.now_ms += rng.randrange(2)
            seen += require_same(store)
    assert seen > 5000 or not IS_NATIVE
    store.engine.close()
