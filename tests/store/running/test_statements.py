from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from riverbed.store.check import check
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError, LogWriteError, Refusal
from riverbed.store.format.meta import META_NUMBERING, META_STORE
from riverbed.store.format.packing import unpack_row
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST, incr_name
from riverbed.store.log import manifest as manifests
from riverbed.store.options import Fsync
from riverbed.store.replication_id import NO_ID
from riverbed.store.tables.environment import Tables
from tests.store.conftest import OpenStore
from tests.support.read_log import change_manifest, manifest_of
from tests.support.store.stores import Store, begin_file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


class FullFolder(OsFiles):
    """The disk has room for what is appended, and none for new files."""

    is_full = False

    def create(self, path: Path) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path)


# -- whose offsets these are -------------------------------------------------------------------------------------------


def test_a_start_begins_a_line_of_its_own_and_knows_where_it_comes_from(store: Store) -> None:
    store.fill(b"s", 1)
    store.commit()
    first, end = store.engine.log.replids, store.engine.log.end.offset
    store.crash()
    second = store.engine.log.replids
    assert (second.previous_id, second.branch_offset) == (first.replication_id, end)
    assert second.replication_id != first.replication_id
    store.restart()
    third = store.engine.log.replids
    assert (third.previous_id, third.branch_offset) == (first.replication_id, end)
    assert third.id_to_send(end) == first.replication_id
    store.fill(b"t", 1)
    store.commit()
    store.crash()
    assert store.engine.log.replids.previous_id == third.replication_id


def test_a_store_is_the_same_over_any_start_whatever_half_of_it_is_left(store: Store) -> None:
    store_id = store.engine.log.replids.store_id
    for number in range(5):
        store.fill(b"s%d" % number, 1)
        store.commit()
        (store.crash, store.restart, store.rebuild, store.crash, store.restart)[number]()
        assert store.engine.log.replids.store_id == store.engine.txn.replids.store_id == store_id


def test_a_store_of_an_older_version_gets_the_id_that_its_readers_know(store: Store) -> None:
    store.fill(b"s", 1)
    store.checkpoint()
    line = store.engine.log.replids
    store.engine.close()
    change_manifest(store.directory, replids=replace(line, store_id=""))
    tables = Tables(store.directory, 1 << 28)
    with tables.env.begin(write=True, db=tables.handles["meta"]) as txn:
        assert txn.delete(META_STORE)
        assert txn.delete(META_NUMBERING)
    tables.close()
    assert list(check(store.directory)) == []
    store.open()
    assert store.engine.log.replids.store_id == line.replication_id != store.engine.log.replids.replication_id
    store.engine.abandon()  # it is in the tables as well, for those who read nothing else
    assert list(check(store.directory)) == []
    tables = Tables(store.directory, 1 << 28, readonly=True)
    with tables.env.begin(db=tables.handles["meta"]) as txn:
        assert unpack_row(txn.get(META_STORE)) == line.replication_id
        assert txn.get(META_NUMBERING) is not None
    tables.close()
    store.open()


def test_a_store_that_an_older_version_has_served_meanwhile_is_the_same(store: Store) -> None:
    """It writes the manifest without the store's id, and leaves the row in the tables as it is."""
    store_id = store.engine.log.replids.store_id
    store.fill(b"s", 1)
    store.restart()
    store.engine.checkpoint()
    line = store.engine.log.replids
    store.engine.close()
    change_manifest(store.directory, replids=replace(line, store_id="").branch(900))
    store.open()
    assert store.engine.log.replids.store_id == store_id


def test_a_replica_stays_on_the_line_of_its_primary_over_a_start(open_store: OpenStore) -> None:
    store = open_store(is_replica=True)
    store.fill(b"s", 1)
    store.commit()
    replids = store.engine.log.replids
    for start_again in (store.crash, store.restart, store.rebuild):
        start_again()
        assert store.engine.log.replids == replids


def test_a_new_store_has_the_replication_id_that_is_its_own(place: Path) -> None:
    store = Store(place)
    replids = store.engine.log.replids
    store.kill()
    assert replids.replication_id == replids.store_id
    assert replids.previous_id == NO_ID


def test_no_batch_is_written_before_the_manifest_names_its_replication_id(place: Path) -> None:
    Store(place).kill()
    files = FullFolder()
    store = Store(place, files=files)
    ids = store.engine.log.replids.branch(0)
    files.is_full = True
    store.engine.statements.set_replids(ids)
    assert store.engine.log.replids == ids
    store.fill(b"s", 2)
    with pytest.raises(LogWriteError, match="the manifest could not be written"):
        store.commit()
    assert (place / LOG_DIRECTORY / incr_name(1)).read_bytes() == b""
    assert store.engine.refusal is Refusal.DISK_FULL
    files.is_full = False
    store.fill(b"s", 2)
    store.commit()
    assert manifest_of(place).replids == ids
    store.kill()


# -- whether replies wait for the disk ---------------------------------------------------------------------------------


def test_the_manifest_says_whether_replies_wait_for_the_disk(place: Path) -> None:
    store = Store(place, fsync=Fsync.ALWAYS)
    path = place / LOG_DIRECTORY / LOG_MANIFEST

    def noted() -> bool:
        manifest = manifest_of(place)
        assert manifests.parse(manifests.serialize(manifest), str(path)) == manifest
        return manifest.is_unsynced

    assert not noted()
    store.engine.set_fsync(Fsync.EVERYSEC)
    assert noted()
    store.fill(b"s", 3)
    store.commit()
    begin_file(store.engine)
    assert noted()
    store.engine.set_fsync(Fsync.ALWAYS)
    assert not noted()
    store.options.fsync = Fsync.NO
    store.restart()
    assert noted()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    store.kill()
    with pytest.raises(CorruptionError, match="lines are missing"):
        store.open()


def test_a_replica_writes_several_batches_at_a_time_and_says_so(place: Path) -> None:
    store = Store(place, fsync=Fsync.ALWAYS)
    store.engine.set_role(is_replica=True)
    assert manifest_of(place).is_unsynced
    store.engine.set_role(is_replica=False)
    assert not manifest_of(place).is_unsynced
    store.kill()


def test_a_log_is_durable_before_the_manifest_says_that_replies_wait_for_it(place: Path) -> None:
    store = Store(place, fsync=Fsync.NO)
    store.fill(b"s", 3)
    store.commit()
    assert store.engine.log.unsynced_bytes
    store.engine.set_fsync(Fsync.ALWAYS)
    assert not store.engine.log.unsynced_bytes
    store.kill()


def test_a_checkpoint_notes_what_a_full_disk_has_refused(place: Path) -> None:
    files = FullFolder()
    store = Store(place, fsync=Fsync.ALWAYS, files=files)
    files.is_full = True
    store.engine.set_fsync(Fsync.NO)
    assert not manifest_of(place).is_unsynced
    files.is_full = False
    store.fill(b"s", 3)
    store.checkpoint()
    assert manifest_of(place).is_unsynced
    store.kill()
