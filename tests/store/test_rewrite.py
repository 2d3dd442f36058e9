from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import CommandError
from store import manifest as manifests
from store.compose import Piece
from store.files import OsFiles
from store.log import DIRECTORY_NAME, FILE_NAME
from store.logformat import CommandCollector, parse_frame
from store.rebuild import write_log
from store.rewrite import pieces
from tests.store.stores import Store
from tests.store.test_fold import CASES, Case
from tests.test_against_oracle import FAMILIES, Commands


def rewrite(store: Store, *, extensions: bool = True) -> list[Piece]:
    """What the rewrite makes of everything up to here."""
    store.checkpoint()
    tables = store.engine.tables
    with tables.env.begin() as txn:
        return list(pieces(tables, txn, extensions=extensions))


def load(state: list[Piece], directory: Path, **options: Any) -> Store:
    """A fresh store made from a rewrite."""
    home = directory / DIRECTORY_NAME
    home.mkdir(parents=True)
    manifest, _ = write_log(home, FILE_NAME, state, OsFiles(), offset=12_345, seq=1, now_ms=1)
    manifests.replace(home / f"{FILE_NAME}.manifest", manifest, OsFiles())
    return Store(directory, **options)


def text_of(state: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in state)


def commands_of(state: list[Piece]) -> list[bytes]:
    """The commands in order, as text; extensions are marked."""
    found = []
    for piece in state:
        at = 0
        collector = CommandCollector()
        while at < len(piece.data):
            words, end = parse_frame(piece.data, at)
            if words is None:
                collector.take_comment(piece.data[at:end])
                collector.finish()
                found.append(b"#" + b" ".join(collector.commands[-1]))
            else:
                found.append(b" ".join(words))
            at = end
    return found


def assert_survives(store: Store, home: Path) -> list[Piece]:
    """The state comes out of its rewrite as it was, and the rewrite of that is the same."""
    before = store.dump()
    state = rewrite(store)
    copy = load(state, home / "copy", **vars(store.options))
    try:
        assert copy.dump() == before
        assert copy.violations() == []
        again = rewrite(copy)
        assert text_of(again) == text_of(state)
        assert again == state
    finally:
        copy.engine.close()
    return state


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_mutators_work_survives_a_rewrite(store: Store, tmp_path: Path, case: Case) -> None:
    case(store)
    assert_survives(store, tmp_path)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_random_states_survive_a_rewrite(seed: int, lengths: list[int]) -> None:
    with tempfile.TemporaryDirectory(prefix="riverbed-rewrite-") as home:
        store = Store(Path(home) / "store", node_max_entries=4)
        commands = Commands(Random(seed), FAMILIES)
        for length in lengths:
            for _ in range(length):
                with contextlib.suppress(CommandError, AssertionError):
                    store.run(*commands.command(), db=commands.random.choice((0, 0, 1)))
            store.clock.now_ms += commands.random.choice((0, 1, 100_000))
            store.commit()
            if commands.chance(0.3):
                store.purge()
        assert_survives(store, Path(home))
        store.engine.close()


def test_an_empty_store_is_rewritten_as_nothing(store: Store) -> None:
    store.fill(b"s", 3)
    store.db.flush()
    assert rewrite(store) == []
