"""State is the fold of the log: what each mutator logs, executed on an empty store, leads to the same state.

Compared is everything a client can see and every counter behind it, not how rows are laid out (numbers, floors, nodes).
"""

from __future__ import annotations

import contextlib
import inspect
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.store.databases.database import Database
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.groups.consumers import Members
from riverbed.store.groups.group import Group
from riverbed.store.groups.groups import Groups
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.streams.stream import Stream
from tests.support.scripts.random_commands import run_at_random
from tests.support.store.mutations import CASES, Case
from tests.support.store.stores import Store

CLASSES = (Stream, Database, WriteTxn, Idempotence, Members, Group, Groups)


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


def mutators() -> Iterator[tuple[type, str]]:
    """Every method whose docstring says that it logs something."""
    for owner in CLASSES:
        for name, function in vars(owner).items():
            if inspect.isfunction(function) and re.search(r"\bLogs (?!nothing)", function.__doc__ or ""):
                yield owner, name


def test_every_mutator_is_called_by_a_case(store: Store) -> None:
    called = set()

    def watch(owner: type, name: str) -> Any:
        original = getattr(owner, name)

        def spy(*args: Any, **options: Any) -> Any:
            called.add((owner, name))
            return original(*args, **options)

        return patch.object(owner, name, spy)

    expected = set(mutators())
    assert len(expected) >= 25
    with contextlib.ExitStack() as spies:
        for owner, name in expected:
            spies.enter_context(watch(owner, name))
        for number, case in enumerate(CASES):
            for db in store.txn.databases:
                db.flush()
            case(store)
            assert store.dump(), number
    assert called == expected


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
