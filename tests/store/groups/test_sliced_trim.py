"""A trim of many nodes in slices leaves, answers and logs what the same trim leaves when it runs whole."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.commands.streams.options import parse_trim
from riverbed.store.groups import sliced_trim
from riverbed.store.groups.sliced_trim import SlicedTrim
from tests.support.store.stores import Store

_ENTRIES = 300


def grown(directory: Path, seed: int) -> Store:
    """A stream of short nodes, of some of which nothing is left."""
    chance = random.Random(seed)
    store = Store(directory)
    store.txn.configure_nodes(4, 4096)
    store.fill(b"s", _ENTRIES)
    for number in range(1, _ENTRIES + 1):
        if chance.random() < chance.choice([0.1, 0.9]):
            store.run("XDEL", "s", f"{number}-0")
    start = chance.randrange(1, _ENTRIES)
    for number in range(start, min(start + 20, _ENTRIES + 1)):
        store.run("XDEL", "s", f"{number}-0")
    store.commit()
    return store


def trims(seed: int) -> list[tuple[str, ...]]:
    chance = random.Random(-seed)
    words: list[tuple[str, ...]] = []
    for _ in range(3):
        mark = chance.choice(["=", "~"])
        limit = ("LIMIT", str(chance.choice([0, 1, 7, 40, 200]))) if mark == "~" else ()
        threshold = str(chance.randrange(_ENTRIES))
        strategy = chance.choice([("MAXLEN", mark, threshold), ("MINID", mark, f"{threshold}-0")])
        words.append(("XTRIM", "s", *strategy, *limit))
    return words


def outcome(directory: Path, seed: int) -> tuple[list[Any], object]:
    """What the trims answer, and what there is afterwards, also after a start."""
    store = grown(directory, seed)
    answers = [store.run(*words) for words in trims(seed)]
    store.commit()
    before = store.dump()
    assert store.violations() == []
    store.crash()
    assert store.dump() == before
    store.engine.close()
    return answers, before


@pytest.mark.parametrize("nodes", [1, 3, 10])
@pytest.mark.parametrize("quarter", range(4))
def test_a_trim_in_slices_is_as_good_as_one_that_runs_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, quarter: int
) -> None:
    slices = 0
    trim_some = sliced_trim.trimming.trim_some

    def counted(*arguments: Any) -> tuple[int, bool]:
        nonlocal slices
        slices += 1
        return trim_some(*arguments)

    monkeypatch.setattr(sliced_trim.trimming, "trim_some", counted)
    for seed in range(quarter * 10, quarter * 10 + 10):
        whole = outcome(tmp_path / f"whole{seed}", seed)
        assert slices == 0 or seed > quarter * 10
        with monkeypatch.context() as patch:
            patch.setattr(sliced_trim, "_SLICE_NODES", nodes)
            assert outcome(tmp_path / f"sliced{seed}", seed) == whole, seed
    assert slices > 20


@pytest.mark.parametrize("threshold", ["MAXLEN", "MINID"])
def test_a_slice_that_takes_all_closed_nodes_and_a_part_of_the_last_one_is_logged_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: str
) -> None:
    monkeypatch.setattr(sliced_trim, "_SLICE_NODES", 4)
    for entries in range(20, 45):
        store = Store(tmp_path / str(entries))
        store.txn.configure_nodes(4, 4096)
        store.fill(b"s", entries)
        store.run("XDEL", "s", "4-0")
        store.run("XTRIM", "s", "MINID", "4-0")  # nothing is left of the first node
        store.commit()
        store.run("XTRIM", "s", threshold, "2" if threshold == "MAXLEN" else f"{entries - 1}-0")
        store.commit()
        assert store.run("XLEN", "s") == 2
        before = store.dump()
        store.crash()
        assert store.dump() == before, entries
        store.engine.close()


def test_an_append_goes_on_to_trim_behind_a_slice_that_has_removed_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_trim, "_SLICE_NODES", 1)
    store = Store(tmp_path)
    store.txn.configure_nodes(4, 4096)
    store.fill(b"s", 24)
    store.run("XDEL", "s", "4-0")
    store.run("XTRIM", "s", "MINID", "4-0")  # nothing is left of the first node
    store.run("XADD", "s", "MAXLEN", "5", "99-0", "f", "v")
    store.commit()
    assert store.run("XLEN", "s") == 5
    before = store.dump()
    store.crash()
    assert store.dump() == before
    store.engine.close()


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("references", ["DELREF", "ACKED"])
@pytest.mark.parametrize("limit", [(), ("LIMIT", "0"), ("LIMIT", "3")])
@pytest.mark.parametrize("strategy", [("MAXLEN", "~", "2"), ("MINID", "~", "5-0")])
def test_a_trim_of_a_few_entries_is_one_slice(
    store: Store, strategy: tuple[str, ...], limit: tuple[str, ...], references: str, groups: int
) -> None:
    """Clients that append between two slices would have the next one take more."""
    store.txn.configure_nodes(3, 0)
    store.fill(b"s", 6)
    if groups:
        store.run("XGROUP", "CREATE", "s", "g", "4-0")
    words = ("XTRIM", "s", *strategy, *limit, references)
    work = SlicedTrim(parse_trim([word.encode() for word in words], 3, from_log=False))
    assert work.step(store.groups())
    assert work.removed == (3 if "3" in limit else 4)  # which are no whole node
    assert store.stream().length == 6 - work.removed
