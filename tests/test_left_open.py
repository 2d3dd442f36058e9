from __future__ import annotations

import gc
import threading
from pathlib import Path

import lmdb
import pytest

from tests.support.left_open import closed_at_the_end
from tests.support.store.stores import Store


def is_open(env: lmdb.Environment) -> bool:
    try:
        env.info()
    except lmdb.Error:
        return False
    return True


def test_what_a_test_leaves_open_is_closed(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path / "frozen")).close()
    with lmdb.open(str(tmp_path / "before")) as before:
        with closed_at_the_end():
            left = lmdb.open(str(tmp_path / "left"))
            left.begin(write=True).put(b"key", b"value")
            reader = lmdb.open(str(tmp_path / "frozen"), readonly=True, lock=False)
        assert not is_open(left)
        assert is_open(before) and is_open(reader)
        reader.close()


def test_a_store_that_is_left_open_may_be_collected_in_any_thread(tmp_path: Path) -> None:
    for number in range(3):
        with closed_at_the_end():
            store = Store(tmp_path / f"left-{number}")
            store.fill(b"s", 10)
            env = store.engine.tables.env
        assert not is_open(env)
        del store, env
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
    store = Store(tmp_path / "next")
    store.fill(b"s", 10)
    store.commit()
    store.kill()


@pytest.fixture
def left(tmp_path: Path) -> lmdb.Environment:
    return lmdb.open(str(tmp_path / "left"))


_environments: list[lmdb.Environment] = []


@pytest.mark.parametrize("number", range(2))
def test_each_test_is_one_that_may_leave_tables_open(left: lmdb.Environment, number: int) -> None:
    assert is_open(left)
    assert [is_open(env) for env in _environments] == [False] * len(_environments)
    _environments.append(left)
