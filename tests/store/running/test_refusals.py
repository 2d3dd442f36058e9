from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import lmdb
import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import DamagedRowError, LogWriteError, Refusal, StateLostError
from riverbed.store.ids import StreamID
from riverbed.store.running.space import MAX_UNCOMMITTED_BYTES
from tests.support.faults.disks import tables_that_cannot_grow
from tests.support.store.faulty_files import BEYOND_PADDING, FaultyFiles
from tests.support.store.planting import RefusingRows
from tests.support.store.stores import Store, ids_of


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Store]:
    """A store whose log, and whose free space, are in memory."""
    store = Store(tmp_path / "faulty", files=FaultyFiles())
    yield store
    store.engine.close(save=False)


def refuse_commit(store: Store, error: lmdb.Error) -> None:
    """Have LMDB refuse the next commit of the tables."""
    store.txn.lmdb = MagicMock(wraps=store.txn.lmdb, **{"commit.side_effect": error})


def test_a_refused_checkpoint_refuses_writes_and_says_so(store: Store) -> None:
    store.fill(b"s", 3)
    store.commit()
    refuse_commit(store, lmdb.MapFullError("full"))
    with pytest.raises(lmdb.MapFullError):
        store.engine.checkpoint()
    assert (store.engine.refusal, store.engine.checkpoints.last_ok) == (Refusal.MAP_FULL, False)
    assert ids_of(store) == ["1-0", "2-0", "3-0"]
    store.engine.check_space()
    store.checkpoint()
    assert (store.engine.refusal, store.engine.checkpoints.last_ok) == (None, True)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (lmdb.MapFullError("mdb_put: MDB_MAP_FULL"), Refusal.MAP_FULL),
        (lmdb.DiskError(f"mdb_txn_commit: {os.strerror(errno.ENOSPC)}"), Refusal.DISK_FULL),
        (lmdb.DiskError(f"mdb_txn_commit: {os.strerror(errno.EIO)}"), Refusal.TABLES_UNWRITTEN),
    ],
)
def test_the_refusal_after_a_checkpoint_names_what_failed(store: Store, error: lmdb.Error, refusal: Refusal) -> None:
    store.fill(b"s", 3)
    store.commit()
    refuse_commit(store, error)
    with pytest.raises(type(error)):
        store.engine.checkpoint()
    assert store.engine.refusal is refusal
    store.engine.check_space()
    store.checkpoint()
    assert store.engine.refusal is None


SHORT_WRITE = f"mdb_txn_commit: {os.strerror(errno.EIO)}"


def failing_checkpoint(store: Store, free: int | None) -> tuple[str, Refusal | None]:
    """What a checkpoint says of a short write when so much is free, and why writes are refused then."""
    store.commit()
    assert isinstance(store.files, FaultyFiles)
    store.files.free = free
    refuse_commit(store, lmdb.DiskError(SHORT_WRITE))
    with pytest.raises(lmdb.DiskError) as caught:
        store.engine.checkpoint()
    return str(caught.value), store.engine.refusal


def test_a_commit_that_fails_on_a_disk_without_room_says_how_much_is_free(faulty: Store) -> None:
    """LMDB has no word for a write of which the disk took a part."""
    faulty.fill(b"s", 3)
    told = f"{SHORT_WRITE}; the disk may be full: 12288 bytes are free"
    assert failing_checkpoint(faulty, free=12_288) == (told, Refusal.DISK_FULL)


@pytest.mark.parametrize(("size", "is_short"), [(1, False), (1 << 20, True)])
def test_whether_a_disk_has_room_for_a_commit_depends_on_what_was_logged(
    faulty: Store, size: int, is_short: bool
) -> None:
    faulty.fill(b"s", 1).append_entry(StreamID(2 << 64), [b"f", b"x" * size])
    told, refusal = failing_checkpoint(faulty, free=2 << 20)
    assert told.endswith("; the disk may be full: 2097152 bytes are free") == is_short
    assert refusal is (Refusal.DISK_FULL if is_short else Refusal.TABLES_UNWRITTEN)


def test_a_commit_behind_which_lmdb_takes_no_other_is_told_with_its_own_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it could not write a meta page."""
    store.fill(b"s", 3)
    store.commit()
    refuse_commit(store, lmdb.DiskError(SHORT_WRITE))
    panic = "mdb_txn_begin: MDB_PANIC: Update of meta page failed or environment had fatal error"
    monkeypatch.setattr(store.engine.tables, "begin", MagicMock(side_effect=lmdb.PanicError(panic)))
    told = f"the tables could not be written: {SHORT_WRITE}; the state could not be rebuilt: {panic}"
    for _ in range(2):
        with pytest.raises(StateLostError, match=f"^{re.escape(told)}$"):
            store.engine.checkpoint()
    store.kill()
    monkeypatch.undo()
    store.open()
    assert ids_of(store) == ["1-0", "2-0", "3-0"]


class FailingDisk(OsFiles):
    """A disk whose free space cannot be measured: the reason for a refusal stays."""

    def free_bytes(self, path: Path) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_start_whose_tables_the_disk_does_not_take_does_not_pass_for_one_on_a_full_disk(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.commit()
    store.kill()
    store.files = FailingDisk()
    with tables_that_cannot_grow():
        store.open()
    assert (store.engine.refusal, store.engine.checkpoints.last_ok) == (Refusal.TABLES_UNWRITTEN, False)
    assert str(store.engine.recovery.unsaved).startswith("mdb_txn_commit: ")
    assert len(ids_of(store)) == 10
    store.checkpoint()
    assert store.engine.checkpoints.last_ok
    store.engine.close()


def test_a_full_disk_behind_tables_that_have_failed_does_not_end_their_refusal(faulty: Store) -> None:
    """A replica's log goes on behind them, and a disk has room again."""
    assert isinstance(faulty.files, FaultyFiles)
    faulty.fill(b"s", 3)
    faulty.commit()
    faulty.engine.tables.distrust("the disk failed")
    with pytest.raises(lmdb.Error, match=r"^the disk failed$"):
        faulty.engine.checkpoint()
    faulty.add(b"s", "4-0", words=(b"f", b"x" * BEYOND_PADDING))
    faulty.files.free = 0
    with pytest.raises(LogWriteError):
        faulty.commit()
    assert faulty.engine.refusal is Refusal.TABLES_FAILED
    faulty.files.free = None
    faulty.engine.check_space()
    assert faulty.engine.refusal is Refusal.TABLES_FAILED


def test_a_full_map_has_writes_wait_for_a_checkpoint_when_much_is_in_no_table(store: Store) -> None:
    """Each undo executes all of that once more."""
    stream = store.fill(b"s", 1)
    for number in range(2, 10):
        stream.append_entry(StreamID(number << 64), [b"f", b"x" * (MAX_UNCOMMITTED_BYTES // 8)])
        store.commit()
    refuse_commit(store, lmdb.MapFullError("full"))
    with pytest.raises(lmdb.MapFullError):
        store.engine.checkpoint()
    store.engine.check_space()
    assert store.engine.refusal is Refusal.MAP_FULL
    store.checkpoint()
    store.engine.check_space()
    assert (store.engine.refusal, store.stream().length) == (None, 9)


def test_damage_in_the_way_of_checkpoints_refuses_writes_when_much_is_in_no_table(store: Store) -> None:
    refusing = RefusingRows()
    store.txn.dirty.append(refusing)

    def judged() -> Refusal | None:
        with pytest.raises(DamagedRowError):
            store.engine.checkpoint()
        assert not store.engine.checkpoints.last_ok
        store.engine.check_space()
        return store.engine.refusal

    size = MAX_UNCOMMITTED_BYTES // 8
    stream = store.fill(b"s", 1)
    for number in range(2, 9):
        stream.append_entry(StreamID(number << 64), [b"f", b"x" * size])
        store.commit()
    assert judged() is None
    stream.append_entry(StreamID(9 << 64), [b"f", b"x" * size])
    store.commit()
    assert judged() is Refusal.TABLES_UNWRITTEN
    store.txn.dirty.remove(refusing)
    store.checkpoint()
    store.engine.check_space()
    assert (store.engine.refusal, store.engine.checkpoints.last_ok) == (None, True)
    assert store.stream(b"s").length == 9
