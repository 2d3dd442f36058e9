"""Tables that are used only when they are durable: no commit waits for the disk, and no failed sync is forgotten."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.disk.files import OsFiles
from riverbed.store.position import LogPosition
from riverbed.store.recovery.draft_tables import DraftTables
from riverbed.store.recovery.tables_from_log import TablesFromLog


class Disk:
    """An environment whose syncs wait for `may_sync`, are noted with the commit that they cover, and may fail."""

    def __init__(self, env: lmdb.Environment) -> None:
        self.env = env
        self.may_sync = threading.Event()
        self.fails_once = False
        self.synced: list[int] = []
        self.is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    @property
    def last_commit(self) -> int:
        return int(self.env.info()["last_txnid"])

    def sync(self, force: bool = False) -> None:
        assert self.may_sync.wait(60), "a commit has waited for the disk"
        assert force, "LMDB would not sync an environment whose commits do not"
        assert not self.is_closed
        if self.fails_once:
            self.fails_once = False
            raise lmdb.DiskError("mdb_env_sync: Input/output error")
        self.env.sync(True)
        self.synced.append(self.last_commit)

    def close(self) -> None:
        self.is_closed = True
        self.env.close()


def disk_of(tables: DraftTables) -> Disk:
    disk = Disk(tables.env)
    tables.env = cast(lmdb.Environment, disk)
    return disk


def put(tables: DraftTables, name: bytes) -> None:
    """A commit, as a transaction of the store makes it."""
    with tables.env.begin(write=True, db=tables.handles["trash"]) as txn:
        txn.put(name, b"row")
    tables.sync()


def test_a_commit_does_not_wait_for_the_disk_and_the_next_one_but_one_does(tmp_path: Path) -> None:
    tables = DraftTables(tmp_path, 1 << 30)
    assert not tables.env.flags()["sync"]
    disk = disk_of(tables)
    put(tables, b"first")
    assert disk.synced == []
    first = disk.last_commit
    threading.Timer(0.05, disk.may_sync.set).start()
    put(tables, b"second")
    assert disk.synced[0] in (first, first + 1)
    tables.make_durable()
    assert disk.synced[-1] == disk.last_commit == first + 1
    tables.close()


def test_a_failed_sync_is_told_though_the_next_one_succeeds(tmp_path: Path) -> None:
    tables = DraftTables(tmp_path, 1 << 30)
    disk = disk_of(tables)
    disk.may_sync.set()
    disk.fails_once = True
    put(tables, b"first")
    with pytest.raises(lmdb.DiskError):
        put(tables, b"second")
    with pytest.raises(lmdb.DiskError):
        tables.make_durable()
    tables.close()


def test_tables_are_not_closed_under_a_sync(tmp_path: Path) -> None:
    tables = DraftTables(tmp_path, 1 << 30)
    disk = disk_of(tables)
    put(tables, b"first")
    threading.Timer(0.05, disk.may_sync.set).start()
    tables.close()
    assert disk.synced


def test_the_last_commit_of_tables_from_a_log_is_durable(tmp_path: Path) -> None:
    with TablesFromLog(tmp_path, Replayer().execute, OsFiles()) as made:
        assert isinstance(made.tables, DraftTables)
        disk = disk_of(made.tables)
        disk.may_sync.set()
        made.commit(LogPosition(1, 1, 1))
        assert disk.synced[-1] == disk.last_commit


def test_tables_in_their_place_are_durable_with_every_commit(tmp_path: Path) -> None:
    with TablesFromLog(tmp_path, Replayer().execute, OsFiles(), is_draft=False) as made:
        assert made.tables.env.flags()["sync"]
