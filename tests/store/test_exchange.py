"""New tables take the place of the old ones in a running store: in which order, and what is carried over."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import pytest

from riverbed.server.background.integrity.repair_worker import Remaking
from riverbed.store.disk.files import OsFiles
from riverbed.store.engine import Engine
from riverbed.store.errors import Refusal, ReplayError
from riverbed.store.exchange import exchange_tables
from riverbed.store.layout import REPAIR_DIRECTORY, STATE_DIRECTORY
from riverbed.store.options import Fsync
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.running.space import MAX_UNCOMMITTED_BYTES
from riverbed.store.tables import environment
from riverbed.store.tables.data_file import power_loss
from tests.support.store.stores import Store, sid

NO_REPORTS: Any = SimpleNamespace(step=lambda *step: None)
MAP_BYTES = 1 << 28


class Noting(OsFiles):
    """Notes what happens to directories."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.free = 1 << 40
        self.broken = ""
        self.takes_syncs = True

    def sync(self, fd: int, /) -> None:
        if not self.takes_syncs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)

    def rename(self, source: Path, target: Path, /) -> None:
        if source.name == self.broken:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        super().rename(source, target)
        if target.is_dir():
            self.notes.append(f"{source.name} to {target.name}")

    def sync_directory(self, path: Path, /) -> None:
        super().sync_directory(path)
        self.notes.append(f"sync {path.name}")

    def free_bytes(self, path: Path, /) -> int:
        return self.free


def remade(store: Store, end: LogPosition | None = None, **sizes: int) -> Path:
    """-> tables that the store's log has made, up to `end`."""
    made = store.directory / REPAIR_DIRECTORY
    made.mkdir()
    remaking = Remaking(store.directory, made, MAP_BYTES, sizes.get("entries", 100), sizes.get("size", 4096), 0, 1)
    remaking.replay(end or store.engine.log.end, NO_REPORTS)
    remaking.check(NO_REPORTS)
    return made / STATE_DIRECTORY


def filled(tmp_path: Path, **options: Any) -> Store:
    options.setdefault("fsync", Fsync.ALWAYS)
    store = Store(tmp_path / "store", **options)
    store.fill(b"s", 10)
    store.commit()
    return store


def exchange(store: Store, made: Path) -> None:
    exchange_tables(store.engine, made, store.directory / REPAIR_DIRECTORY / "old")


def test_the_exchange_is_durable_in_an_order_that_leaves_one_of_the_two(tmp_path: Path) -> None:
    files = Noting()
    store = filled(tmp_path, files=files)
    made = remade(store)
    files.notes.clear()
    exchange(store, made)
    assert files.notes[:3] == ["state to old", "state to state", "sync store"]
    assert store.stream().length == 10
    store.kill()


def test_what_the_log_holds_beyond_the_new_tables_is_executed(tmp_path: Path) -> None:
    store = filled(tmp_path)
    made = remade(store)
    store.add(b"s", "11-0", "12-0")
    store.commit()
    exchange(store, made)
    assert (store.stream().length, store.stream().last_id) == (12, sid("12-0"))
    store.checkpoint()
    store.kill()


def test_a_checkpoint_under_way_ends_before_its_tables_close(tmp_path: Path) -> None:
    store = filled(tmp_path)
    made = remade(store)
    durability = store.engine.begin_checkpoint()
    exchange(store, made)
    assert store.engine.checkpoints.syncing is not durability
    store.checkpoint()
    store.kill()


def test_a_disk_that_has_filled_up_meanwhile_is_noticed(tmp_path: Path) -> None:
    files = Noting()
    store = filled(tmp_path, files=files, reserve_bytes=1 << 20)
    made = remade(store)
    assert store.engine.refusal is None
    files.free = 1000
    exchange(store, made)
    assert store.engine.refusal is not None
    store.kill()


def test_the_ids_of_the_log_are_those_of_the_new_tables(tmp_path: Path) -> None:
    store = filled(tmp_path)
    made = remade(store)
    store.engine.statements.set_replids(ReplicationIds.new())  # as after a promotion meanwhile
    exchange(store, made)
    assert store.txn.replids == store.engine.log.replids
    store.checkpoint()
    store.engine.close()
    store.open()
    assert store.engine.log.replids.previous_id == store.txn.replids.previous_id
    store.kill()


def test_old_tables_that_cannot_be_moved_stay_in_use(tmp_path: Path) -> None:
    files = Noting()
    store = filled(tmp_path, files=files)
    made = remade(store)
    files.broken = STATE_DIRECTORY
    with pytest.raises(OSError, match="busy"):
        exchange(store, made)
    files.broken = ""
    assert store.stream().length == 10
    store.add(b"s", "11-0")
    store.checkpoint()
    store.kill()


# -- what the process makes --------------------------------------------------------------------------------------------


def test_new_tables_have_nodes_of_the_size_that_is_set(tmp_path: Path) -> None:
    store = filled(tmp_path, node_max_entries=4)
    exchange(store, remade(store, entries=4))
    assert store.stream().node_count == 2
    store.kill()


def test_new_tables_are_durable_when_the_process_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB syncs the page that makes a commit valid with the next commit, or when it is told."""
    store = filled(tmp_path)
    opened: list[Any] = []

    class Environment:
        def __init__(self, env: Any) -> None:
            self._env = env
            self.is_synced = True

        def __getattr__(self, name: str) -> Any:
            if name == "begin":
                self.is_synced = False
            if name == "sync":
                self.is_synced = True
            return getattr(self._env, name)

    open_environment = environment.open_environment

    def open_noted(*arguments: Any, **options: Any) -> Any:
        opened.append(Environment(open_environment(*arguments, **options)))
        return opened[-1]

    monkeypatch.setattr(environment, "open_environment", open_noted)
    made = store.directory / REPAIR_DIRECTORY
    made.mkdir()
    Remaking(store.directory, made, MAP_BYTES, 100, 4096, 0, 1).replay(store.engine.log.end, NO_REPORTS)
    assert opened and opened[-1].is_synced
    monkeypatch.undo()
    store.kill()


def test_new_tables_that_are_broken_are_found_by_the_process(tmp_path: Path) -> None:
    store = filled(tmp_path)
    made = remade(store)
    remaking = Remaking(store.directory, made.parent, MAP_BYTES, 100, 4096, 0, 1)
    path = made / "data.mdb"
    data = path.read_bytes()
    assert b"$1\r\nv" in data
    path.write_bytes(data.replace(b"$1\r\nv", b"$1\r\nw"))
    with pytest.raises(ReplayError, match="are broken as well"):
        remaking.check(NO_REPORTS)
    store.kill()


class LookingAtTheLog(Noting):
    """Notes how much of the log is not durable when the first file takes another's place."""

    engine: Engine | None = None
    unsynced: int | None = None

    def rename(self, source: Path, target: Path, /) -> None:
        if self.engine is not None and self.unsynced is None:
            self.unsynced = self.engine.log.unsynced_bytes
        super().rename(source, target)


def test_the_log_is_durable_before_the_tables_that_tell_of_a_power_cut_are_gone(tmp_path: Path) -> None:
    """Without the mark in them, writes that a power cut takes from the middle of the log are damage."""
    files = LookingAtTheLog()
    store = Store(tmp_path / "store", fsync=Fsync.NO, files=files)
    store.fill(b"s", 10)
    store.commit()
    made = remade(store)
    assert store.engine.log.unsynced_bytes
    files.engine = store.engine
    exchange(store, made)
    assert files.unsynced == 0
    store.kill()


@pytest.mark.parametrize("how", ["saved", "not saved", "abandoned"])
def test_a_store_that_is_closed_has_a_durable_log_and_one_that_is_abandoned_stays_marked(
    tmp_path: Path, how: str
) -> None:
    store = Store(tmp_path / "store", fsync=Fsync.NO)
    store.fill(b"s", 10)
    store.commit()
    if how == "abandoned":
        store.engine.abandon()
    else:
        store.engine.close(save=how == "saved")
    assert power_loss.is_marked(store.directory / STATE_DIRECTORY) == (how == "abandoned")
    store.open()
    assert store.stream().length == 10
    store.engine.close()
    assert not power_loss.is_marked(store.directory / STATE_DIRECTORY)


def test_tables_that_could_not_be_synced_and_stay_are_not_trusted_again(tmp_path: Path) -> None:
    files = Noting()
    store = filled(tmp_path, files=files)
    store.checkpoint()
    store.engine.tables.distrust("the disk failed")
    made = remade(store)
    data = store.directory / STATE_DIRECTORY / "data.mdb"
    before = data.read_bytes()
    files.broken = STATE_DIRECTORY
    with pytest.raises(OSError, match="busy"):
        exchange(store, made)
    assert store.engine.tables.failure == "the disk failed"
    store.engine.close(save=False)
    assert power_loss.is_in_doubt(store.directory / STATE_DIRECTORY)
    assert data.read_bytes() == before  # with another commit, a start would go back to the one that failed


def failed_tables(tmp_path: Path, files: Noting) -> Store:
    """A store that takes no writes, as its tables could not be synced."""
    store = filled(tmp_path, files=files)
    store.checkpoint()
    store.engine.tables.distrust("the disk failed")
    store.engine.checkpoints.refused(lmdb.Error(os.strerror(errno.EIO)))
    assert store.engine.refusal is Refusal.TABLES_FAILED
    return store


def test_writes_are_taken_again_when_the_tables_that_could_not_be_synced_are_replaced(tmp_path: Path) -> None:
    store = failed_tables(tmp_path, Noting())
    exchange(store, remade(store))
    assert store.engine.refusal is None
    store.add(b"s", "11-0")
    store.checkpoint()
    store.engine.close()
    assert not power_loss.is_marked(store.directory / STATE_DIRECTORY)


def test_what_the_tables_lacked_before_is_not_counted_for_the_new_ones(tmp_path: Path) -> None:
    store = failed_tables(tmp_path, Noting())
    store.engine.space.take(MAX_UNCOMMITTED_BYTES)
    assert store.engine.lacks_checkpoint
    exchange(store, remade(store))
    assert not store.engine.lacks_checkpoint
    store.engine.close()


def test_writes_stay_refused_where_such_tables_cannot_be_replaced(tmp_path: Path) -> None:
    files = Noting()
    store = failed_tables(tmp_path, files)
    made = remade(store)
    files.broken = STATE_DIRECTORY
    with pytest.raises(OSError, match="busy"):
        exchange(store, made)
    assert store.engine.refusal is Refusal.TABLES_FAILED
    store.kill()


def test_writes_stay_refused_where_the_log_that_failed_stays(tmp_path: Path) -> None:
    """It may have failed while the new tables were made of it."""
    store = failed_tables(tmp_path, Noting())
    made = remade(store)
    store.engine.log.condition.break_log("the disk failed")
    exchange(store, made)
    assert store.engine.refusal is not None
    store.kill()


def test_tables_whose_last_checkpoint_fails_as_they_are_let_go_are_not_trusted_again(tmp_path: Path) -> None:
    files = Noting()
    store = filled(tmp_path, files=files, fsync=Fsync.NO)
    made = remade(store)
    store.add(b"s", "11-0")
    store.commit()
    store.engine.begin_checkpoint()
    files.broken, files.takes_syncs = STATE_DIRECTORY, False
    with pytest.raises(OSError, match="busy"):
        exchange(store, made)
    assert store.engine.tables.failure == "the log could not be made durable: [Errno 5] Input/output error"
    assert store.engine.refusal is Refusal.LOG_FAILED
    store.kill()
