from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import DATA_NAME
from riverbed.store.snapshot.reader import Snapshot, open_snapshot
from riverbed.store.snapshot.restore import WRITING_LOG, restore_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from tests.support.store.forged import fit_data
from tests.support.store.stores import Store

OpenStore = Callable[..., Store]


def freeze(store: Store) -> Snapshot:
    store.commit()
    store.engine.close()
    try:
        return take_snapshot(store.directory, program="test")
    finally:
        store.open()


def restore_into(snapshot: Snapshot, directory: Path) -> None:
    restore_snapshot(snapshot, directory, steps=lambda step, done, total: None)


@pytest.fixture
def busy(store: Store) -> Store:
    """Groups, pending entries of entries that are gone, deletions, deadlines, several databases, a long key."""
    store.fill(b"s", 50)
    store.deliver(b"s", 20)
    store.run("XDEL", "s", "3-0", "50-0")
    store.run("XTRIM", "s", "MAXLEN", "=", "30")
    store.fill(b"\xff" * 900, 3, db=3)
    store.run("PEXPIREAT", "s", 1 << 50)
    store.fill(b"empty", 1)
    store.run("XDEL", "empty", "1-0")
    store.run("XCFGSET", "s", "IDMP-DURATION", "60")
    return store


def test_a_restored_store_holds_what_the_snapshot_held(busy: Store, open_store: OpenStore) -> None:
    snapshot, before = freeze(busy), busy.dump()
    directory = busy.directory.parent / "store-1"
    restore_into(snapshot, directory)
    assert open_store().dump() == before


def test_its_log_alone_holds_the_same(busy: Store, open_store: OpenStore) -> None:
    snapshot, before = freeze(busy), busy.dump()
    restore_into(snapshot, busy.directory.parent / "store-1")
    restored = open_store()
    restored.rebuild()
    assert restored.dump() == before


def test_what_is_written_to_it_is_there_after_any_restart(busy: Store, open_store: OpenStore) -> None:
    restore_into(freeze(busy), busy.directory.parent / "store-1")
    restored = open_store()
    restored.fill(b"new", 3, db=5)
    restored.run("XADD", "s", "99-0", "f", "v")
    expected = restored.dump()
    for again in (restored.crash, restored.restart, restored.rebuild):
        again()
        assert restored.dump() == expected


def test_offsets_go_on_where_the_snapshot_was_taken_on_the_same_line(busy: Store, open_store: OpenStore) -> None:
    snapshot = freeze(busy)
    directory = busy.directory.parent / "store-1"
    restore_into(snapshot, directory)
    restored = open_store(is_replica=True)
    assert restored.engine.log.end.offset == snapshot.manifest.offset
    assert restored.engine.log.replids.replication_id == snapshot.manifest.replication_id


def test_a_primary_that_starts_on_it_begins_a_line_of_its_own(busy: Store, open_store: OpenStore) -> None:
    snapshot = freeze(busy)
    restore_into(snapshot, busy.directory.parent / "store-1")
    replids = open_store().engine.log.replids
    assert replids.replication_id != snapshot.manifest.replication_id
    assert snapshot.manifest.replication_id is not None
    assert replids.holds(snapshot.manifest.replication_id, snapshot.manifest.offset)
    assert replids.store_id == snapshot.manifest.store_id == busy.engine.log.replids.store_id


def test_an_empty_store_can_be_restored(store: Store, open_store: OpenStore) -> None:
    store.fill(b"s", 1)
    store.run("DEL", "s")
    restore_into(freeze(store), store.directory.parent / "store-1")
    assert open_store().dump() == {}


def test_the_restored_log_is_short(store: Store, open_store: OpenStore) -> None:
    """It holds what is there, not how it came to be."""
    store.fill(b"s", 500)
    store.run("XTRIM", "s", "MAXLEN", "=", "10")
    store.commit()
    before = store.engine.log.size_bytes
    restore_into(freeze(store), store.directory.parent / "store-1")
    assert open_store().engine.log.size_bytes < before / 10


def test_steps_are_told(busy: Store) -> None:
    snapshot = freeze(busy)
    told: list[tuple[str, int, int]] = []
    restore_snapshot(snapshot, busy.directory.parent / "thawed", steps=lambda *step: told.append(step))
    assert told[0][0] == "copying"
    assert told[-1] == (WRITING_LOG, snapshot.manifest.entries, snapshot.manifest.entries)


@pytest.mark.parametrize("damage", ["flip", "cut", "longer"])
def test_a_damaged_snapshot_is_not_restored(busy: Store, tmp_path: Path, damage: str) -> None:
    snapshot = freeze(busy)
    path = snapshot.path / DATA_NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= damage == "flip"
    path.write_bytes({"flip": data, "cut": data[:-4096], "longer": data + bytes(4096)}[damage])
    with pytest.raises(CorruptionError, match="CRC-32C"):
        restore_into(snapshot, tmp_path / "thawed")


def alter_value(txn: lmdb.Transaction[bytes]) -> None:
    ((key, row),) = txn.cursor()
    txn.put(key, bytes((row[0] ^ 1,)) + row[1:])


def alter_key(txn: lmdb.Transaction[bytes]) -> None:
    ((key, row),) = txn.cursor()
    txn.delete(key)
    txn.put(key[:-1] + bytes((key[-1] ^ 1,)), row)


@pytest.mark.parametrize(
    ("table", "alter"), [("idmp_ids", alter_value), ("idmp_ids", alter_key), ("idmp_times", alter_key)]
)
def test_a_row_that_checksums_of_files_do_not_show_is_not_restored(
    busy: Store, tmp_path: Path, table: str, alter: Callable[[lmdb.Transaction[bytes]], None]
) -> None:
    busy.run("XADD", "s", "IDMP", "producer", "one", "*", "f", "v")
    snapshot = freeze(busy)
    restore_into(snapshot, tmp_path / "sound")
    env = lmdb.open(str(snapshot.path), map_size=1 << 30, max_dbs=30, lock=False)
    with closing(env), env.begin(write=True, db=env.open_db(table.encode())) as txn:
        alter(txn)
    fit_data(snapshot)
    with pytest.raises(CorruptionError, match=f"{snapshot.path / DATA_NAME}: table idmp"):
        restore_into(open_snapshot(snapshot.path), tmp_path / "thawed")


class ShortOfSpace(OsFiles):
    """A disk that is full after `room` bytes more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        if self.room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return os.pwrite(fd, data, position)


def test_a_full_disk_is_told(busy: Store, tmp_path: Path) -> None:
    snapshot = freeze(busy)
    for number, room in enumerate((0, snapshot.manifest.data_file.size, snapshot.manifest.data_file.size + 2000)):
        with pytest.raises(OSError, match="No space left"):
            restore_snapshot(
                snapshot, tmp_path / str(number), steps=lambda step, done, total: None, files=ShortOfSpace(room)
            )
