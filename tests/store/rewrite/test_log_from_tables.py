from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import LockedError, StoreError
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.rewrite.log_from_tables import rebuild_log
from tests.support.store.mutations import CASES, Case
from tests.support.store.stores import Store, sid


@pytest.fixture
def closed(store: Store) -> Store:
    """A store with some state, checkpointed and closed, whose log is lost."""
    store.fill(b"s", 30)
    store.deliver(b"s", 5)
    store.stream().delete_entries([sid("2-0")])
    store.fill(b"t", 3, db=7)
    store.checkpoint()
    store.engine.close()
    shutil.rmtree(store.directory / LOG_DIRECTORY)
    return store


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_tables_alone_make_a_log_that_makes_the_same_tables(store: Store, case: Case) -> None:
    case(store)
    before = store.dump()
    store.checkpoint()
    store.engine.close()
    shutil.rmtree(store.directory / LOG_DIRECTORY)
    rebuild_log(store.directory, now_ms=1)
    store.open()
    assert store.dump() == before
    assert store.violations() == []
    store.rebuild()
    assert store.dump() == before


def test_the_database_that_was_selected_stays_selected(closed: Store) -> None:
    rebuild_log(closed.directory, now_ms=1)
    closed.open()
    assert closed.txn.log_db == 7


def test_what_is_written_afterwards_follows(closed: Store) -> None:
    rebuilt = rebuild_log(closed.directory, now_ms=1)
    closed.open()
    assert closed.engine.log.end.offset == rebuilt.offset > 0
    assert rebuilt.base.entries == 32
    closed.add(b"s", "99-0")
    closed.crash()
    assert closed.stream().length == 30
    closed.rebuild()
    assert closed.stream().length == 30


def test_a_log_that_exists_is_not_touched(store: Store) -> None:
    store.fill(b"s", 3)
    store.checkpoint()
    store.engine.close()
    before = {path.name: path.read_bytes() for path in (store.directory / LOG_DIRECTORY).iterdir()}
    with pytest.raises(StoreError, match="a log that exists is not rebuilt"):
        rebuild_log(store.directory, now_ms=1)
    assert {path.name: path.read_bytes() for path in (store.directory / LOG_DIRECTORY).iterdir()} == before
    store.open()


def test_a_directory_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no tables"):
        rebuild_log(tmp_path, now_ms=1)
    assert list(tmp_path.iterdir()) == []


def test_tables_that_were_never_checkpointed_are_refused(store: Store) -> None:
    store.kill()
    shutil.rmtree(store.directory / LOG_DIRECTORY)
    with pytest.raises(StoreError, match="never checkpointed"):
        rebuild_log(store.directory, now_ms=1)
    store.open()


def test_a_directory_in_use_is_refused(store: Store) -> None:
    store.checkpoint()
    shutil.move(store.directory / LOG_DIRECTORY, store.directory / "away")
    with pytest.raises(LockedError):
        rebuild_log(store.directory, now_ms=1)
    shutil.move(store.directory / "away", store.directory / LOG_DIRECTORY)


class Failing(OsFiles):
    """Fails at the given operation."""

    def __init__(self, at: int) -> None:
        self.left = at
        for name in ("create", "write_at", "sync", "rename", "sync_directory"):
            setattr(self, name, self._counted(getattr(OsFiles(), name)))

    def _counted(self, operation: Callable[..., object]) -> Callable[..., object]:
        def run(*words: object) -> object:
            if not self.left:
                raise OSError(errno.EIO, "no more")
            self.left -= 1
            return operation(*words)

        return run


def test_a_failure_at_any_operation_can_be_tried_again(closed: Store) -> None:
    closed_state = closed.directory.with_name("kept")
    shutil.copytree(closed.directory, closed_state)
    for at in range(100):
        shutil.rmtree(closed.directory)
        shutil.copytree(closed_state, closed.directory)
        try:
            rebuild_log(closed.directory, now_ms=1, files=Failing(at))
        except OSError:
            if (closed.directory / LOG_DIRECTORY / LOG_MANIFEST).exists():
                continue  # in place, but nobody knows for how long
            rebuild_log(closed.directory, now_ms=1)
            closed.open()
            assert closed.stream().length == 29
            closed.engine.close()
        else:
            break
    assert at > 8, "too few operations were seen"
    closed.open()
