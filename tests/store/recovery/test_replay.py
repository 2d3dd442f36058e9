"""State is the fold of the log: what each mutator logs, executed on an empty store, leads to the same state.

Compared is everything a client can see and every counter behind it, not how rows are laid out (numbers, floors, nodes).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scripts.random_commands import run_at_random
from tests.support.store.mutations import CASES, Case
from tests.support.store.mutators import uncalled_mutators
from tests.support.store.stores import Store


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_log_of_a_mutator_leads_to_the_same_state(store: Store, case: Case, checkpoints: bool) -> None:
    case(store)
    if checkpoints:
        store.checkpoint()
    expected = store.dump()
    assert expected
    store.rebuild()
    assert store.dump() == expected
    store.restart()
    assert store.dump() == expected


def test_every_mutator_is_called_by_a_case(tmp_path: Path) -> None:
    count, *missing = uncalled_mutators(tmp_path / "store")
    assert int(count) >= 25
    assert missing == []


def test_a_swap_at_the_start_of_a_log_selects_no_database(store: Store) -> None:
    store.txn.swap(store.txn.databases[0], store.txn.databases[1])
    store.commit()
    store.kill()
    store.open()
    store.add(b"s", "1-1")
    store.commit()
    assert store.violations() == []


# -- and what clients do, at random ------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_the_log_of_random_commands_leads_to_the_same_state(seed: int, lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="riverbed-replay-") as home:
        store = Store(Path(home), node_max_entries=4)
        for commands in run_at_random(store, seed, lengths):
            if commands.chance(0.3):
                store.checkpoint()
            if commands.chance(0.3):
                store.purge()
        expected = store.dump()
        assert store.violations() == []
        assert store.dump() == expected
        store.rebuild()
        assert store.dump() == expected
        assert store.violations() == []
        store.engine.close()
