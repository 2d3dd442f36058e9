"""Entries that are looked for together, in the last commit: none that was deleted since is said to be there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.store.ids import MAX_ID, StreamID, id_text, pack_id
from riverbed.store.streams import trimming
from riverbed.store.wire import IS_NATIVE
from tests.support.store.stores import Store

PACKED = [pack_id(StreamID(number << 64)) for number in range(45)]


def numbers_of(found: bytes) -> list[int]:
    return [number for number, is_found in enumerate(found) if is_found]


def if_native(numbers: list[int]) -> list[int]:
    """Without the native module nothing is certain: the reference is slower than LMDB."""
    return numbers if IS_NATIVE else []


def certain(store: Store, key: bytes = b"s") -> list[int]:
    """The numbers of the entries that are certain, all of which are there."""
    stream = store.db.stream(key, store.clock.now_ms)
    if stream is None:
        return []
    found = numbers_of(stream.certain(PACKED))
    assert set(found) <= {number for number, packed in enumerate(PACKED) if stream.has_packed(packed)}
    return found


def test_entries_of_the_last_commit_are_certain(store: Store) -> None:
    store.fill(b"s", 20)
    assert certain(store) == []
    store.checkpoint()
    assert certain(store) == if_native(list(range(1, 21)))
    store.add(b"s", "30-0")
    assert certain(store) == if_native(list(range(1, 21)))
    store.checkpoint()
    assert certain(store) == if_native([*range(1, 21), 30])
    store.crash()
    assert certain(store) == if_native([*range(1, 21), 30])
    assert store.stream().certain(PACKED[1:4]) == bytes(3)  # a few are looked for by LMDB


DELETIONS = {
    "XDEL": (("XDEL", "s", "5-0", "40-0"),),
    "XDELEX": (("XDELEX", "s", "DELREF", "IDS", 1, "5-0"),),
    "XACKDEL": (("XACKDEL", "s", "g", "IDS", 1, "5-0"),),
    "a trim": (("XTRIM", "s", "MAXLEN", 7),),
    "a trim by ID": (("XTRIM", "s", "MINID", "12-0"),),
    "a trim of an append": (("XADD", "s", "MAXLEN", 7, "50-0", "f", "v"),),
    "a trim of the acknowledged": (("XACK", "s", "g", "3-0"), ("XTRIM", "s", "MAXLEN", 0, "ACKED")),
    "a trim of all": (("XTRIM", "s", "MAXLEN", 0),),
    "a trim of all, and a step back": (
        ("XTRIM", "s", "MAXLEN", 0),
        ("XSETID", "s", "0-0"),
        ("XADD", "s", "9-0", "f", "v"),
    ),
    "DEL": (("DEL", "s"), ("XADD", "s", "9-0", "f", "v")),
    "FLUSHALL": (("FLUSHALL",), ("XADD", "s", "9-0", "f", "v")),
    "RENAME": (("XADD", "t", "9-0", "f", "v"), ("RENAME", "t", "s")),
}


@pytest.mark.parametrize("is_left_to_the_purge", [False, True])
@pytest.mark.parametrize("commands", DELETIONS.values(), ids=DELETIONS)
def test_entries_that_were_deleted_since_are_not_certain(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    commands: tuple[tuple[str | int, ...], ...],
    *,
    is_left_to_the_purge: bool,
) -> None:
    if is_left_to_the_purge:
        monkeypatch.setattr(trimming, "INLINE_DELETES", 0)
    store.fill(b"s", 40)
    store.deliver(b"s", 10)
    store.checkpoint()
    for words in commands:
        store.run(*words)
        certain(store)
    store.purge()
    certain(store)
    store.checkpoint()
    there = certain(store)
    stream = store.stream()
    assert there == if_native([number for number, packed in enumerate(PACKED) if stream.has_packed(packed)])


def test_a_deletion_that_is_undone_is_forgotten(store: Store) -> None:
    store.fill(b"s", 20)
    store.checkpoint()
    store.txn.change_begins()
    store.stream().drop_entries([StreamID(5 << 64)])
    assert certain(store) == []
    store.txn.abort()
    store.txn.reload()
    assert certain(store) == if_native(list(range(1, 21)))


def test_nothing_is_certain_that_is_not_there_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "INLINE_DELETES", 4)
    rng = random.Random(7)
    store = Store(tmp_path)
    changes: list[Callable[[], object]] = [
        lambda: store.run("XADD", "s", "*", "f", "v" * rng.choice([1, 1, 5000])),
        lambda: store.run("XDEL", "s", f"{rng.randrange(45)}-0"),
        lambda: store.run("XTRIM", "s", "MAXLEN", rng.choice(["=", "~"]), rng.randrange(60)),
        lambda: store.run("XTRIM", "s", "MINID", f"{rng.randrange(45)}-0"),
        lambda: store.run("DEL", "s") if rng.random() < 0.2 else None,
        store.purge,
        store.checkpoint,
        store.commit,
        store.crash,
    ]
    seen = 0
    for _ in range(40):
        store.run("DEL", "s")
        store.clock.now_ms = 0
        store.add(b"s", *(f"{number}-0" for number in sorted(rng.sample(range(1, 40), 20))))
        for _ in range(20):
            rng.choice(changes)()
            seen += len(certain(store))
    assert (seen > 1000) is IS_NATIVE
    store.engine.close()


def test_entries_below_the_floor_are_not_certain(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are there until the purge has deleted them."""
    monkeypatch.setattr(trimming, "INLINE_DELETES", 0)
    store.txn.configure_nodes(10, 0)
    store.fill(b"s", 400)
    store.checkpoint()
    store.run("XTRIM", "s", "MAXLEN", "~", 370)
    assert store.stream().floor_id == StreamID(31 << 64)
    assert certain(store) == (list(range(31, 45)) if IS_NATIVE else [])


def test_the_entry_with_the_largest_id_is_not_certain_when_it_was_trimmed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No floor is above it."""
    monkeypatch.setattr(trimming, "INLINE_DELETES", 0)
    store.fill(b"s", 20)
    store.add(b"s", id_text(MAX_ID).decode())
    store.checkpoint()
    sought = [*PACKED[1:20], pack_id(MAX_ID)]
    assert store.stream().certain(sought) == bytes([IS_NATIVE] * 20)
    store.run("XTRIM", "s", "MAXLEN", 0)
    assert store.stream().certain(sought) == bytes(20)


def test_entries_of_tables_that_were_emptied_are_not_certain(store: Store) -> None:
    """The next stream gets the number of the one before."""
    store.fill(b"s", 20)
    store.checkpoint()
    number = store.stream().stream_no
    store.txn.abort()
    store.txn.reload()
    store.txn.empty()
    store.add(b"s", "3-0")
    assert store.stream().stream_no == number
    assert certain(store) == []
