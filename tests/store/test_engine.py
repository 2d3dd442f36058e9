from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import lmdb
import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import check
from riverbed.store.databases.database import Database
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.engine import Engine
from riverbed.store.errors import (
    CorruptionError,
    DamagedRowError,
    LockedError,
    LogWriteError,
    Refusal,
    ReplayError,
    StateLostError,
    VersionError,
)
from riverbed.store.format.log_lines import encode_command
from riverbed.store.format.rows import FORMAT_VERSION
from riverbed.store.ids import MAX_ID, MIN_ID, id_ms
from riverbed.store.layout import LOG_DIRECTORY
from riverbed.store.log.streamed.batch import StreamedBatch
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.log.tail import LogTail
from riverbed.store.model import Strategy, Trim
from riverbed.store.options import Fsync, Options
from riverbed.store.position import LogPosition
from riverbed.store.recovery import replay
from riverbed.store.streams import trimming
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.tables.environment import Tables
from tests.store.conftest import OpenStore
from tests.support.in_process import HandClock
from tests.support.read_log import change_manifest, logged_batches
from tests.support.store.faulty_files import BEYOND_PADDING, FaultyFiles
from tests.support.store.stores import Store, dump_database, ids_of, sid


def make_something(store: Store) -> None:
    """Rows in every table, in two databases."""
    store.fill(b"a", 300)
    trimming.trim(store.stream(b"a"), Trim(Strategy.MAXLEN, 20))
    store.deliver(b"a", 6)
    store.run("XACK", "a", "g", "282-0")
    Idempotence(store.add(b"a", "900-0")).record(b"producer", b"one", sid("900-0"))
    store.fill(b"k" * 500, 9, db=1)
    store.txn.databases[1].set_expiry(store.stream(b"k" * 500, 1), store.clock.now_ms + 1_000_000)
    store.fill(b"gone", 5)
    store.db.delete(store.stream(b"gone"))


# -- one process -------------------------------------------------------------------------------------------------------


def open_engine(directory: Path) -> Engine:
    options = Options(fsync=Fsync.NO, map_bytes=1 << 28, reserve_bytes=0)
    return Engine.open(directory, execute=Replayer().execute, clock=HandClock(), options=options)


def test_a_directory_is_served_once_at_a_time(store: Store) -> None:
    with pytest.raises(LockedError, match="in use"):
        open_engine(store.directory)
    store.add(b"s", "1-0")
    store.restart()
    assert ids_of(store) == ["1-0"]


def test_a_failed_start_lets_go_of_everything(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.fill(b"s", 10)
    store.commit()
    store.engine.close()
    log = next((tmp_path / LOG_DIRECTORY).glob("*.incr.aof"))
    whole = log.read_bytes()
    log.write_bytes(whole[:-30])
    for _ in range(3):
        with pytest.raises(CorruptionError):
            open_engine(tmp_path)
    log.write_bytes(whole)
    store.open()
    assert store.stream().length == 10
    store.engine.close()


def set_version(directory: Path, version: int) -> None:
    tables = Tables(directory, 1 << 28)
    with tables.env.begin(write=True, db=tables.handles["meta"]) as txn:
        txn.put(b"format_version", bytes([version]))
    tables.close()


def test_a_directory_of_another_version_is_refused(tmp_path: Path) -> None:
    open_engine(tmp_path).close()
    set_version(tmp_path, 99)
    with pytest.raises(VersionError, match="format version 99") as refused:
        open_engine(tmp_path)
    assert "Move it away" not in str(refused.value)


def test_tables_of_an_older_version_may_be_moved_away_and_come_back_from_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.fill(b"s", 20)
    store.deliver(b"s", 5)
    held = dump_database(store.db)
    store.engine.close()
    set_version(tmp_path, 1)
    with pytest.raises(VersionError, match=r"format version 1; this program reads 6\. Move it away"):
        store.open()
    (tmp_path / "state").rename(tmp_path / "state-of-old")
    store.open()
    assert dump_database(store.db) == held
    store.engine.close()


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_the_version_is_called_what_it_may_be_or_makes_no_difference(tmp_path: Path, bit: int) -> None:
    """Rows of the present version are taken for older ones that lack nothing."""
    store = Store(tmp_path)
    store.fill(b"s", 20)
    store.deliver(b"s", 5)
    held = dump_database(store.db)
    store.engine.close()
    set_version(tmp_path, FORMAT_VERSION ^ 1 << bit)
    if bit not in (1, 2):
        with pytest.raises((VersionError, DamagedRowError), match="damaged"):
            store.open()
        (tmp_path / "state").rename(tmp_path / "state-of-old")
    store.open()
    assert dump_database(store.db) == held
    assert store.violations() == []
    store.engine.close()


# -- the same state ----------------------------------------------------------------------------------------------------


def test_every_kind_of_start_leads_to_the_same_state(store: Store) -> None:
    make_something(store)
    expected = store.dump()
    for start_again in (store.restart, store.crash, store.rebuild, store.crash, store.restart):
        start_again()
        assert store.dump() == expected
    store.checkpoint()
    store.add(b"a", "901-0")
    store.fill(b"b", 4)
    expected = store.dump()
    store.crash()
    assert store.engine.recovery.commands == 5
    assert store.dump() == expected


def test_tables_of_long_ago_catch_up_with_the_log(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(node_max_entries=4, segment_bytes=3000)
    make_something(store)
    store.commit()
    store.engine.close()
    shutil.copytree(store.directory / "state", tmp_path / "old")
    store.open()
    for number in range(50):
        store.add(b"a", f"{1000 + number}-0", words=(b"f", b"x" * 100))
        store.commit()
    store.run("XDEL", "a", "900-0")
    store.db.rename(store.stream(b"a"), b"c")
    expected = store.dump()
    store.commit()
    assert store.engine.log.incr_count > 2
    store.engine.close()
    shutil.rmtree(store.directory / "state")
    (tmp_path / "old").rename(store.directory / "state")
    store.open()
    assert store.dump() == expected


def test_a_long_rebuild_commits_on_the_way_and_goes_on_where_it_was_interrupted(store: Store) -> None:
    for number in range(1, 400):
        store.add(b"s", f"{number}-0", f"{number}-1")
        store.run("XDEL", "s", f"{number}-0")
        store.commit()
    store.kill()
    shutil.rmtree(store.directory / "state")
    executed = 0
    replayer = Replayer()

    def interrupted(txn: WriteTxn, db: Database, words: list[bytes]) -> None:
        nonlocal executed
        executed += 1
        if executed == 300:
            raise KeyboardInterrupt
        replayer.execute(txn, db, words)

    with patch.object(replay, "_BYTES_A_CHECKPOINT", 2000):
        with pytest.raises(KeyboardInterrupt):
            Engine.open(store.directory, execute=interrupted, clock=store.clock, options=store.options)
        store.open()
    assert store.engine.recovery.commands < 600
    assert store.stream().length == 399


def test_what_was_not_committed_when_the_process_died_never_was(store: Store) -> None:
    store.fill(b"s", 3)
    store.commit()
    store.add(b"s", "4-0")
    store.db.set_expiry(store.stream(), 5)
    store.kill()
    store.open()
    assert (ids_of(store), store.stream().expire_ms) == (["1-0", "2-0", "3-0"], 0)


def test_a_torn_tail_is_cut_off_and_reported(store: Store) -> None:
    store.fill(b"s", 3)
    store.commit()
    whole = store.engine.log.end.position
    store.add(b"s", "4-0")
    store.commit()
    store.kill()
    log = next((store.directory / LOG_DIRECTORY).glob("*.incr.aof"))
    os.truncate(log, log.stat().st_size - 1)
    store.open()
    torn = store.engine.recovery.torn_tail
    assert torn is not None
    assert torn.position == whole
    assert ids_of(store) == ["1-0", "2-0", "3-0"]
    assert log.stat().st_size == whole


def test_a_logged_command_that_does_not_fit_stops_the_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.txn.log_command(0, [b"XSETID", b"nothing", b"1-0"])
    store.commit()
    store.kill()
    with pytest.raises(ReplayError, match=r"byte 0: .*no such key"):
        open_engine(tmp_path)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_due_after_a_commit_or_a_purge_and_not_otherwise(store: Store) -> None:
    store.checkpoint()
    assert not store.engine.needs_checkpoint
    store.fill(b"s", 500)
    store.db.delete(store.stream())
    store.commit()
    assert store.engine.needs_checkpoint
    assert store.engine.dirty_bytes > 0
    store.checkpoint()
    assert (store.engine.needs_checkpoint, store.engine.dirty_bytes) == (False, 0)
    store.purge()
    assert store.engine.needs_checkpoint
    store.checkpoint()
    store.crash()
    assert store.engine.recovery.commands == 0
    assert store.count("entries") == 0


def test_the_position_of_a_checkpoint_is_the_end_of_the_log(store: Store) -> None:
    store.fill(b"s", 5)
    store.checkpoint()
    assert store.txn.position == store.engine.log.end
    end = store.engine.log.end
    store.restart()
    assert store.engine.log.end == end


# -- undoing -----------------------------------------------------------------------------------------------------------


class Mishap(Exception):
    """What escapes a mutator."""


class FailingReader:
    """A cursor that fails once it has deleted a row."""

    def __init__(self, cursor: lmdb.Cursor[bytes]) -> None:
        self._cursor = cursor
        self._has_deleted = False

    def __getattr__(self, name: str) -> Any:
        if self._has_deleted:
            raise Mishap
        self._has_deleted = name == "delete"
        return getattr(self._cursor, name)


@pytest.mark.parametrize("checkpoint_first", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_command_that_fails_half_way_has_changed_nothing(store: Store, kept: bool, checkpoint_first: bool) -> None:
    make_something(store)
    store.commit()
    if checkpoint_first:
        store.checkpoint()
    if kept:
        store.add(b"kept", "1-0", db=2)
        Idempotence(store.stream(b"a")).record(b"producer", b"two", sid("900-0"))
    expected = store.dump()
    mark = store.txn.mark()

    stream = store.stream(b"a")
    stream.append_entry(sid("950-0"), [b"f", b"v"])
    trimming.trim(stream, Trim(Strategy.MAXLEN, 3))
    store.deliver(b"a", 3, group="new")
    store.db.flush()
    store.txn.swap(store.db, store.txn.databases[1])
    store.add(b"other", "1-0", db=5)
    store.add(b"other", "2-0", db=5)
    store.txn.reader = cast("lmdb.Cursor[bytes]", FailingReader(store.txn.reader))
    with pytest.raises(Mishap):
        store.stream(b"other", 5).delete_entries([sid("1-0")])
    store.engine.rollback(store.clock.now_ms, mark)

    assert store.dump() == expected
    assert store.txn.log == []
    for start_again in (store.crash, store.restart, store.rebuild):
        start_again()
        assert store.dump() == expected


def test_a_batch_of_comment_lines_alone_moves_the_offset_as_well(store: Store) -> None:
    store.fill(b"s", 1)
    store.commit()
    before = store.engine.log.end.offset
    store.run("XCFGSET", "s", "IDMP-DURATION", 5)
    store.commit()
    assert store.engine.log.end.offset == before + len(encode_command([b"PING"]))
    assert logged_batches(store.directory)[-1] == [b"PING", b"XCFGSET s IDMP-DURATION 5"]


def test_the_line_is_known_without_its_place_in_the_manifest(open_store: OpenStore) -> None:
    store = open_store(is_replica=True)
    store.fill(b"s", 1)
    store.checkpoint()
    replids = store.engine.log.replids
    store.kill()
    change_manifest(store.directory, replids=None)
    store.open()
    assert store.engine.log.replids == replids


# -- what a primary sends ----------------------------------------------------------------------------------------------


def sent(primary: Store) -> list[StreamedBatch]:
    """Every batch of a store's log, as it would arrive."""
    log = primary.engine.log
    tail = LogTail(log, primary.engine.files, LogPosition(1, 0, 0), verbatim=True)
    stream = LogStream(0, 1 << 20)
    while data := tail.read(100):
        stream.feed(data)
    tail.close()
    return list(iter(stream.next, None))


def test_applied_batches_make_the_same_state_at_the_same_offset(open_store: OpenStore) -> None:
    primary, replica = open_store(segment_bytes=300), open_store(is_replica=True, segment_bytes=500)
    make_something(primary)
    primary.commit()
    primary.fill(b"b", 30)
    primary.commit()
    replica.txn.follows = True
    for batch in sent(primary):
        replica.engine.apply([batch])
    assert replica.dump() == primary.dump()
    assert replica.engine.log.end.offset == primary.engine.log.end.offset
    for start_again in (replica.crash, replica.restart, replica.rebuild):
        start_again()
        assert replica.dump() == primary.dump()
        assert replica.engine.log.end.offset == primary.engine.log.end.offset


def test_a_batch_that_memory_is_too_short_to_sync_stays_and_is_passed_on(open_store: OpenStore) -> None:
    """It is in the log: a replica of this one would miss it, and to ask the primary for everything is no help."""
    primary, replica = open_store(), open_store(is_replica=True, fsync=Fsync.ALWAYS)
    primary.fill(b"s", 3)
    primary.commit()
    batches = sent(primary)
    passed_on: list[StreamedBatch] = []
    replica.engine.batches.on_written = passed_on.extend
    with (
        patch.object(replica.engine.keeper, "sync", side_effect=MemoryError),
        pytest.raises(LogWriteError, match="Mem"),
    ):
        replica.engine.apply(batches)
    assert passed_on == batches
    assert replica.dump() == primary.dump()
    primary.fill(b"t", 3)
    primary.commit()
    replica.engine.apply(sent(primary)[1:])
    assert [batch.offset for batch in passed_on] == [batch.offset for batch in sent(primary)]
    assert replica.dump() == primary.dump()


def test_a_batch_that_does_not_fit_is_undone_with_those_it_came_with(open_store: OpenStore) -> None:
    primary, replica = open_store(), open_store(is_replica=True)
    primary.fill(b"s", 3)
    primary.commit()
    (good,) = sent(primary)
    bad = good._replace(requests=[[b"XADD", b"s", b"1-0", b"f", b"v"]])
    before = replica.dump()
    with pytest.raises(ReplayError):
        replica.engine.apply([good, bad])
    assert (replica.dump(), replica.engine.log.end.offset) == (before, 0)
    replica.engine.apply([good])
    assert replica.dump() == primary.dump()


def test_a_replica_hides_expired_keys_and_waits_for_its_primary_to_delete_them(open_store: OpenStore) -> None:
    replica = open_store(is_replica=True)
    replica.txn.follows = True
    replica.db.set_expiry(replica.fill(b"s", 1), replica.clock.now_ms + 10)
    replica.commit()
    replica.clock.now_ms += 20
    assert replica.db.stream(b"s", replica.clock.now_ms) is None
    assert replica.txn.expire_due(replica.clock.now_ms, 10) == 0
    assert not replica.txn.log
    assert replica.db.size == 1


# -- LMDB is full ------------------------------------------------------------------------------------------------------


def fill_the_map(store: Store, *, heed: bool) -> int:
    """Append until LMDB refuses, or until the engine does if that is to be heeded; -> how many entries there are."""
    number = id_ms(store.stream().last_id)
    with contextlib.suppress(lmdb.MapFullError):
        while not heed or store.engine.refusal is None:
            store.add(b"s", f"{number + 1}-0", words=(b"f", b"x" * 1000))
            store.commit()
            number += 1
            if number % 50 == 0:
                store.checkpoint()
        return store.stream().length
    store.engine.rollback(store.clock.now_ms)
    return store.stream().length


def test_a_full_map_undoes_the_write_and_keeps_all_before_it(open_store: OpenStore) -> None:
    store = open_store(map_bytes=2 << 20)
    count = fill_the_map(store, heed=False)
    assert 500 < count < 2000
    assert (store.stream().length, len(store.stream().rows(MIN_ID, MAX_ID))) == (count, count)
    expected = store.dump()
    store.kill()
    store.options.map_bytes = 4 << 20
    store.open()
    assert store.dump() == expected


def test_tables_that_are_nearly_full_still_let_entries_go_and_have_room_again_then(open_store: OpenStore) -> None:
    store = open_store(quota_bytes=2 << 20, reserve_bytes=1 << 20)
    count = fill_the_map(store, heed=True)
    assert (store.engine.refusal, count > 400) == (Refusal.MAP_NEARLY_FULL, True)
    store.checkpoint()
    trimming.trim(store.stream(), Trim(Strategy.MAXLEN, 10))
    store.checkpoint()
    store.purge()
    store.checkpoint()
    store.engine.check_space()
    assert store.engine.refusal is None
    assert store.stream().length == 10
    assert fill_the_map(store, heed=True) > 300
    store.restart()
    assert store.engine.checkpoints.last_ok


def test_a_checkpoint_that_finds_no_room_loses_nothing_and_is_made_with_a_larger_map(open_store: OpenStore) -> None:
    store = open_store(map_bytes=1 << 20)
    with contextlib.suppress(lmdb.MapFullError):
        for number in itertools.count():
            # the rows of streams reach LMDB at the checkpoint
            store.add(b"key %d" % number + b"." * 300, "1-0")
            store.commit()
            if number % 200 == 199:
                store.engine.checkpoint()
    store.engine.rollback(store.clock.now_ms)
    expected = store.dump()
    assert len(expected[0]) > 500
    store.kill()
    store.options.map_bytes = 1 << 26
    store.open()
    assert store.dump() == expected
    assert store.engine.refusal is None


# -- the log's disk is full, or broken ---------------------------------------------------------------------------------


def test_a_close_without_a_checkpoint_leaves_all_of_the_log_on_the_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = Store(tmp_path / "store", files=files, fsync=Fsync.NO)
    store.add(b"s", "1-0")
    store.commit()
    store.engine.close(save=False)
    again = Store(tmp_path / "store", files=files.crash())
    assert again.stream().length == 1
    again.kill()


def test_a_close_whose_last_batch_finds_no_room_leaves_the_rest_of_the_log_on_the_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = Store(tmp_path / "store", files=files, fsync=Fsync.NO)
    store.add(b"s", "1-0")
    store.commit()
    store.add(b"s", "2-0", words=(b"f", b"v" * BEYOND_PADDING))
    files.free = 0
    with pytest.raises(LogWriteError, match="No space left"):
        store.engine.close()
    again = Store(tmp_path / "store", files=files.crash())
    assert again.stream().length == 1
    again.kill()


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Store]:
    """A store whose log is in memory; its tables are on the disk."""
    store = Store(tmp_path / "faulty", files=FaultyFiles(), fsync=Fsync.ALWAYS)
    yield store
    store.engine.close(save=False)
    assert [str(violation) for violation in check(store.directory, files=store.files)] == []


def files_of(store: Store) -> FaultyFiles:
    assert isinstance(store.files, FaultyFiles)
    return store.files


@pytest.mark.parametrize("room", [0, 1, 30, 70])
def test_a_full_disk_undoes_the_tick_and_writing_goes_on_when_there_is_room(faulty: Store, room: int) -> None:
    make_something(faulty)
    faulty.commit()
    expected = faulty.dump()
    files_of(faulty).free = room
    faulty.add(b"a", "950-0", words=(b"f", b"v" * BEYOND_PADDING))
    faulty.db.flush()
    with pytest.raises(LogWriteError, match="No space left"):
        faulty.commit()
    assert faulty.engine.refusal is Refusal.DISK_FULL
    assert (faulty.dump(), faulty.txn.log) == (expected, [])

    files_of(faulty).free = None
    faulty.engine.check_space()
    assert faulty.engine.refusal is None
    faulty.add(b"a", "951-0")
    faulty.restart()
    assert ids_of(faulty, b"a")[-1] == "951-0"
    faulty.rebuild()
    assert ids_of(faulty, b"a")[-1] == "951-0"


@pytest.mark.parametrize("number", [errno.EIO, errno.EFBIG, errno.EAGAIN])
def test_one_write_that_fails_and_is_cut_off_again_is_no_end_of_writing(faulty: Store, number: int) -> None:
    make_something(faulty)
    faulty.commit()
    expected = faulty.dump()
    files_of(faulty).fail("write", number)
    faulty.add(b"a", "950-0")
    with pytest.raises(LogWriteError, match=os.strerror(number)):
        faulty.commit()
    assert faulty.engine.refusal is Refusal.LOG_UNWRITTEN
    assert (faulty.dump(), faulty.txn.log) == (expected, [])
    faulty.engine.check_space()
    assert faulty.engine.refusal is None
    faulty.add(b"a", "951-0")
    faulty.restart()
    assert ids_of(faulty, b"a")[-1] == "951-0"
    faulty.rebuild()
    assert ids_of(faulty, b"a")[-1] == "951-0"


def test_free_space_that_cannot_be_measured_ends_no_commit(faulty: Store) -> None:
    make_something(faulty)
    faulty.commit()
    for number in (1, 2):
        files_of(faulty).fail("free_bytes", errno.EIO)
        faulty.add(b"a", f"95{number}-0", words=(b"f", bytes(1 << 20)))
        faulty.commit()
        assert faulty.engine.refusal is None
    faulty.rebuild()
    assert ids_of(faulty, b"a")[-2:] == ["951-0", "952-0"]


def test_a_log_that_could_not_be_synced_takes_no_more_writes_and_reads_go_on(faulty: Store) -> None:
    make_something(faulty)
    faulty.commit()
    expected = faulty.dump()
    files_of(faulty).fail("sync", errno.EIO)
    faulty.add(b"a", "950-0")
    with pytest.raises(LogWriteError):
        faulty.commit()
    assert faulty.engine.refusal is Refusal.LOG_FAILED
    assert faulty.dump() == expected
    faulty.engine.check_space()
    assert faulty.engine.refusal is Refusal.LOG_FAILED
    faulty.add(b"a", "951-0")
    with pytest.raises(LogWriteError):
        faulty.commit()
    assert faulty.dump() == expected
    with pytest.raises(LogWriteError):
        faulty.engine.checkpoint()
    assert not faulty.engine.checkpoints.last_ok
    faulty.kill()
    faulty.open()
    assert faulty.dump() == expected


def test_an_expired_key_whose_deletion_is_undone_is_not_counted(faulty: Store) -> None:
    for key in (b"a", b"b", b"c"):
        faulty.add(key, "1-0")
        faulty.db.set_expiry(faulty.stream(key), 1)
    faulty.commit()
    assert faulty.db.stream(b"a", 2) is None
    files_of(faulty).fail("write", errno.EIO)
    with pytest.raises(LogWriteError):
        faulty.commit()
    assert faulty.txn.expired_keys == 0
    files_of(faulty).forgive()
    assert faulty.db.stream(b"a", 2) is None
    mark = faulty.txn.mark()
    assert faulty.db.stream(b"b", 2) is None
    faulty.engine.rollback(2, mark)
    assert faulty.txn.expired_keys == 1
    assert faulty.db.stream(b"c", 2) is None
    faulty.commit()
    assert (faulty.txn.expired_keys, faulty.db.size) == (2, 1)


def test_a_state_that_could_not_be_rebuilt_is_never_committed(faulty: Store) -> None:
    """A checkpoint would say that the tables hold the log, and they hold a part of it: the rest would be lost."""
    make_something(faulty)
    faulty.checkpoint()
    faulty.add(b"a", "949-0")
    faulty.commit()
    expected = faulty.dump()
    files_of(faulty).fail("write", errno.EIO)
    files_of(faulty).fail("open", errno.EIO)
    faulty.add(b"a", "950-0")
    with pytest.raises(StateLostError):
        faulty.commit()
    with pytest.raises(StateLostError):
        faulty.engine.checkpoint()
    with pytest.raises(StateLostError):
        faulty.engine.apply([])
    faulty.engine.abandon()
    faulty.open()
    assert faulty.dump() == expected


@pytest.mark.parametrize("fsync", Fsync)
def test_the_log_is_padded_where_each_batch_is_synced(tmp_path: Path, fsync: Fsync) -> None:
    store = Store(tmp_path, fsync=fsync)
    store.fill(b"s", 5)
    store.commit()
    (part,) = store.engine.log.home.parts()
    rest = part.path.stat().st_size - part.size
    assert rest >= 200_000 if fsync is Fsync.ALWAYS else rest == 0
    store.engine.close()
    assert part.path.stat().st_size == part.size


@pytest.mark.parametrize("kept", [0, 1, 60, 150, 10_000])
def test_a_power_cut_loses_no_more_than_what_was_not_synced(tmp_path: Path, kept: int) -> None:
    """The tables are never ahead of the log, whatever of it was left."""
    store = Store(tmp_path, files=FaultyFiles(), fsync=Fsync.NO)
    store.fill(b"s", 5)
    store.checkpoint()
    for number in range(6, 12):
        store.add(b"s", f"{number}-0")
        store.commit()
    store.kill()
    store.files = files_of(store).crash(kept)
    store.open()
    found = ids_of(store)
    assert found == [f"{number}-0" for number in range(1, len(found) + 1)]
    assert 5 <= len(found) <= 11
    assert (len(found) == 11) == (kept == 10_000)
    assert store.violations() == []
    store.engine.close()


def test_what_was_acknowledged_under_always_survives_a_power_cut(faulty: Store) -> None:
    for number in range(1, 8):
        faulty.add(b"s", f"{number}-0")
        faulty.commit()
    faulty.kill()
    faulty.files = files_of(faulty).crash()
    faulty.open()
    assert ids_of(faulty) == [f"{number}-0" for number in range(1, 8)]
