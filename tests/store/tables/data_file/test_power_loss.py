"""The power goes at any moment of a checkpoint, and what the disk had of it is anything: nothing durable is lost."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import check
from riverbed.store.check.pages import check_pages
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import LogWriteError, NoLogError, Refusal, StoreError
from riverbed.store.format.meta import read_numbering
from riverbed.store.layout import STATE_DIRECTORY
from riverbed.store.offline.compaction import Compaction
from riverbed.store.offline.repair import mend_tables
from riverbed.store.options import Fsync
from riverbed.store.progress import ignore
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.data_file.power_loss import DoubtError, is_in_doubt
from riverbed.store.tables.environment import Tables
from tests.conftest import base_seed
from tests.support.faults.disks import tables_that_cannot_grow
from tests.support.store.stores import Store, checkpoint_twice
from tests.support.trees import tree

_PAGE = 4096
_MAP = 1 << 28
_LOG = "appendonlydir"


def settle_doubt(state: Path) -> bool:
    """Resolve a doubt and remove the mark, as tools do; -> whether the tables went back to the commit before."""
    went_back = power_loss.resolve_doubt(state)
    power_loss.end_use(state)
    return went_back is not None


def committed_twice(directory: Path) -> Store:
    """A store whose last commit has stream t beside stream s."""
    store = Store(directory)
    store.fill(b"s", 10)
    store.checkpoint()
    store.fill(b"t", 10)
    store.checkpoint()
    return store


class Disk:
    """What of a store would survive a power cut now, whatever else does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.synced()

    @property
    def _data(self) -> Path:
        return self._store.directory / STATE_DIRECTORY / "data.mdb"

    def synced(self) -> None:
        """A checkpoint was made durable."""
        self._tables = self._data.read_bytes()
        self._log = self._store.engine.log.size_bytes - self._store.engine.log.unsynced_bytes

    def cut(self, target: Path, chance: random.Random, boot: str = "another boot") -> None:
        """The store as the next boot finds it: of what was not durable some pages, and a part of the log."""
        shutil.copytree(self._store.directory, target)
        now = self._data.read_bytes()
        share = chance.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        found = bytearray()
        for at in range(0, len(now), _PAGE):
            durable = self._tables[at : at + _PAGE].ljust(_PAGE, b"\0")
            found += now[at : at + _PAGE] if chance.random() < share else durable
        if chance.random() < 0.5:  # the page that points to all the others is one of two; it may well be among them
            found[: 2 * _PAGE] = now[: 2 * _PAGE]
        (target / STATE_DIRECTORY / "data.mdb").write_bytes(found)
        (target / STATE_DIRECTORY / "lock.mdb").unlink()
        mark = target / STATE_DIRECTORY / "in-use"
        assert mark.exists()
        mark.write_text(boot)
        (incr,) = (target / _LOG).glob("*.incr.aof")
        with incr.open("r+b") as file:
            file.truncate(chance.randint(self._log, self._store.engine.log.size_bytes))


def some_commands(store: Store, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 12)):
        key = b"k%d" % chance.randrange(6)
        size = chance.choice([1, 10, 400])
        what = chance.randrange(6)
        if what < 3:
            last = store.stream(key).last_id
            for number in range(chance.choice([1, 40])):
                store.run("XADD", key, f"{(last >> 64) + 1 + number}-0", "f", b"v" * size)
        elif what == 3:
            store.run("XTRIM", key, "MAXLEN", chance.randrange(30))
        elif what == 4 and store.stream(key).length:
            store.deliver(key, chance.randrange(1, 9))
        else:
            store.run("DEL", key)
        store.commit()


@pytest.mark.parametrize("number", range(4))
def test_a_power_cut_at_any_moment_of_a_checkpoint_leaves_what_the_log_says(tmp_path: Path, number: int) -> None:
    chance = random.Random(base_seed() + number)
    store = Store(tmp_path / "d")
    disk = Disk(store)
    went_back = 0
    for step in range(25):
        some_commands(store, chance)
        if chance.random() < 0.3:
            store.engine.purge(0.0)
        if chance.random() < 0.7:
            store.engine.begin_checkpoint()
            some_commands(store, chance)
            place = tmp_path / f"cut-{step}"
            disk.cut(place, chance)
            went_back += settle_doubt(place / STATE_DIRECTORY)
            assert list(check_pages(place / STATE_DIRECTORY / "data.mdb", lambda: True, lambda: None)) == []
            found = Store(place)
            state = found.dump()
            found.rebuild()
            assert found.dump() == state
            found.engine.close()
            assert [str(violation) for violation in check(place)] == []
            shutil.rmtree(place)
        store.engine.end_checkpoint()
        if store.engine.log.unsynced_bytes:
            store.engine.checkpoint()
        disk.synced()
    assert went_back
    store.engine.close()


def test_after_a_kill_the_newer_commit_counts_and_after_a_power_cut_the_one_before(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.checkpoint()
    first = store.txn.position
    store.add(b"s", "11-0")
    store.checkpoint()
    second = store.txn.position
    places = {"killed": power_loss._boot_id(), "cut": "another boot", "failed": "failed"}
    for name, boot in places.items():
        shutil.copytree(store.directory, tmp_path / name)
        (tmp_path / name / STATE_DIRECTORY / "in-use").write_text(boot)
        (tmp_path / name / STATE_DIRECTORY / "lock.mdb").unlink()
    assert {name: settle_doubt(tmp_path / name / STATE_DIRECTORY) for name in places} == {
        "killed": False,
        "cut": True,
        "failed": True,
    }
    for name, position in (("killed", second), ("cut", first), ("failed", first)):
        found = Store(tmp_path / name)
        assert found.dump() == store.dump()
        assert found.engine.recovery.commands == (0 if position == second else 1)
        found.engine.close()
    store.engine.close()


def compact(directory: Path) -> None:
    with Compaction(directory, Replayer().execute, now_ms=1) as compaction:
        compaction.run()


def look_for_damage(directory: Path) -> None:
    assert not mend_tables(directory, Replayer().execute, now_ms=1, load_truncated=True)


@pytest.mark.parametrize("tool", [ignore, compact, look_for_damage])
@pytest.mark.parametrize("is_cut", [False, True])
def test_streams_that_have_other_numbers_since_a_power_cut_are_not_taken_for_others(
    tmp_path: Path, is_cut: bool, tool: Callable[[Path], None]
) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.checkpoint()
    store.txn.next_stream_no += 1  # as a COPY that comes to nothing
    store.fill(b"t", 10)
    store.checkpoint()
    before = numbered(store)
    store.kill()
    if is_cut:
        (store.directory / STATE_DIRECTORY / "in-use").write_text("another boot")
    tool(store.directory)
    store.open()
    store.checkpoint()
    now = numbered(store)
    assert [was == found for was, found in zip(before, now, strict=True)] == [not is_cut, not is_cut]
    store.kill()
    store.open()
    assert numbered(store) == now
    store.engine.close()


def test_a_start_on_a_full_disk_leaves_the_other_numbering_to_the_first_checkpoint(tmp_path: Path) -> None:
    store = committed_twice(tmp_path / "d")
    before, _ = numbered(store)
    store.kill()
    (store.directory / STATE_DIRECTORY / "in-use").write_text("another boot")

    with tables_that_cannot_grow():
        store.open()
    assert numbered(store)[0] == before, "nothing was saved yet"
    store.engine.check_space()
    store.checkpoint()
    assert numbered(store)[0] != before
    store.engine.close()


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first sync of a start, that of the tables, fail: the newer commit may lack pages then."""
    sync_whole, errors = power_loss.sync_whole, [OSError(errno.EIO, "Input/output error")]

    def fail(fd: int) -> None:
        if errors:
            raise errors.pop()
        sync_whole(fd)

    monkeypatch.setattr(power_loss, "sync_whole", fail)


@pytest.mark.parametrize("tool", [ignore, look_for_damage])
def test_a_commit_that_a_start_could_not_sync_is_given_up_and_its_numbers_are_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Callable[[Path], None]
) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.checkpoint()
    store.txn.next_stream_no += 1  # as a COPY that comes to nothing
    store.fill(b"t", 10)
    store.checkpoint()
    before = numbered(store)
    kill_in_use(store)
    fail_once(monkeypatch)
    tool(store.directory)
    store.open()
    assert store.engine.recovery.commands == 10
    assert [was == found for was, found in zip(before, numbered(store), strict=True)] == [False, False]
    store.engine.close()


def test_a_start_that_fails_behind_such_a_commit_leaves_it_to_the_next_one_to_give_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = committed_twice(tmp_path / "d")
    kill_in_use(store)
    home = store.directory / _LOG
    home.rename(tmp_path / "log")
    with monkeypatch.context() as patch:
        fail_once(patch)
        with pytest.raises(NoLogError):
            store.open()
    (tmp_path / "log").rename(home)
    store.open()
    assert store.engine.recovery.commands == 10
    store.engine.close()


def kill_in_use(store: Store) -> None:
    """As a kill leaves it, with the mark of this boot."""
    store.kill()
    (store.directory / STATE_DIRECTORY / "in-use").write_text(power_loss._boot_id())


def numbered(store: Store) -> tuple[str, int]:
    """The numbering of the tables, and the number that they have for stream t."""
    meta = store.txn.handles["meta"]
    return read_numbering(lambda name: store.txn.lmdb.get(name, db=meta)), store.stream(b"t").stream_no


@pytest.mark.parametrize("mark", [b"another boot", b"another boo\xf4"], ids=["whole", "with a flipped bit"])
def test_who_only_reads_refuses_what_a_power_cut_has_left_and_a_start_settles_it(tmp_path: Path, mark: bytes) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.checkpoint()
    expected = store.dump()
    store.kill()
    state = store.directory / STATE_DIRECTORY
    assert not (state / "in-use").exists()

    (state / "in-use").write_bytes(mark)
    assert is_in_doubt(state)
    with pytest.raises(DoubtError, match=r"^the machine stopped .*; start riverbed-server on them once"):
        list(check(store.directory))
    with pytest.raises(DoubtError, match=r"^the machine stopped .*; start riverbed-server on them once"):
        Tables(store.directory, _MAP, readonly=True)
    store.open()
    assert store.dump() == expected
    assert not is_in_doubt(state)
    store.engine.close()
    Tables(store.directory, _MAP, readonly=True).close()


def test_pages_that_a_power_cut_took_of_the_last_commit_pass_for_no_damage(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.checkpoint()
    state = store.directory / STATE_DIRECTORY
    durable = (state / "data.mdb").read_bytes()
    store.fill(b"t", 5000)
    store.checkpoint()
    expected = store.dump()
    store.kill()
    now = (state / "data.mdb").read_bytes()
    (state / "data.mdb").write_bytes(now[: 2 * _PAGE] + durable[2 * _PAGE :].ljust(len(now) - 2 * _PAGE, b"\0"))
    (state / "in-use").write_text("another boot")

    with pytest.raises(DoubtError, match=r"^the machine stopped .*; start riverbed-server on them once"):
        list(check(store.directory))
    store.open()
    assert store.dump() == expected
    store.engine.close()
    assert [str(violation) for violation in check(store.directory)] == []


@pytest.mark.parametrize("size", [0, 16, 151, 4096, 4200])
def test_tables_that_are_hardly_begun_are_left_for_lmdb_to_judge(tmp_path: Path, size: int) -> None:
    store = Store(tmp_path / "d")
    store.engine.close()
    data = store.directory / STATE_DIRECTORY / "data.mdb"
    data.write_bytes(data.read_bytes()[:size])
    (data.parent / "in-use").write_text("another boot")
    before = data.read_bytes()
    assert not settle_doubt(data.parent)
    assert data.read_bytes() == before
    assert not (data.parent / "in-use").exists()


def cut_while_idle(store: Store) -> None:
    """Open a store, write nothing, and cut the power."""
    store.open()
    store.kill()
    state = store.directory / STATE_DIRECTORY
    (state / "in-use").write_text("another boot")
    assert settle_doubt(state)
    store.open()


def test_a_store_that_nobody_wrote_to_since_its_start_is_whole_after_a_power_cut(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 300)
    store.deliver(b"s", 5)
    store.commit()
    expected = store.dump()
    store.engine.close()
    cut_while_idle(store)
    assert store.dump() == expected
    assert store.engine.recovery.commands == 0

    store.engine.close()
    with Compaction(store.directory, Replayer().execute, now_ms=store.clock.now_ms) as compaction:
        compaction.run()
    cut_while_idle(store)
    assert store.dump() == expected
    store.engine.close()
    assert [str(violation) for violation in check(store.directory)] == []


def test_where_boots_cannot_be_told_apart_readers_read_and_a_start_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power_loss, "_BOOT_ID", tmp_path / "missing")
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.checkpoint()
    expected = store.dump()
    power_loss.refuse_doubt(store.directory / STATE_DIRECTORY)  # as every process beside a server that runs
    shutil.copytree(store.directory, tmp_path / "killed")
    store.engine.close()
    killed = tmp_path / "killed" / STATE_DIRECTORY
    (killed / "lock.mdb").unlink()
    assert settle_doubt(killed)
    again = Store(tmp_path / "killed")
    assert again.dump() == expected
    again.engine.close()


# -- a disk that fails -------------------------------------------------------------------------------------------------


class BrokenEnvironment:
    """An LMDB environment on a disk that does not take what it is given."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    def sync(self, force: bool = False) -> None:
        raise lmdb.DiskError("Input/output error")


def kill_in_doubt(store: Store) -> None:
    """The server dies behind a disk that has failed: only a start may settle what the tables hold."""
    store.kill()
    assert is_in_doubt(store.directory / STATE_DIRECTORY)
    with pytest.raises(DoubtError, match=r"^the disk failed .*; start riverbed-server on them once"):
        list(check(store.directory))


def test_tables_that_could_not_be_synced_take_no_other_commit_and_the_next_start_goes_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 3)
    store.checkpoint()
    store.add(b"s", "4-0")
    store.commit()
    tables = store.engine.tables
    env = tables.env
    tables.env = BrokenEnvironment(env)
    store.engine.begin_checkpoint()
    with pytest.raises(lmdb.DiskError):
        store.engine.end_checkpoint()
    assert (store.engine.refusal, store.engine.checkpoints.last_ok) == (Refusal.TABLES_FAILED, False)
    tables.env = env
    with pytest.raises(lmdb.Error, match="could not be made durable"):
        store.engine.checkpoint()
    store.engine.check_space()
    assert store.engine.refusal is Refusal.TABLES_FAILED
    expected = store.dump()
    kill_in_doubt(store)

    store.open()
    assert store.engine.recovery.commands == 1
    assert store.dump() == expected
    assert store.engine.refusal is None
    store.engine.close()


def test_a_checkpoint_of_tables_that_could_not_be_synced_does_not_execute_the_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server tries every second, and a replica's log goes on."""
    store = Store(tmp_path / "d")
    store.fill(b"s", 3)
    store.checkpoint()
    store.add(b"s", "4-0")
    store.commit()
    store.engine.tables.distrust("the disk failed")

    def restore(changes: int) -> None:
        raise AssertionError("nothing is to be undone")

    monkeypatch.setattr(store.engine.state, "restore", restore)
    for _ in range(2):
        with pytest.raises(lmdb.Error, match=r"^the disk failed$"):
            store.engine.checkpoint()
    assert (store.engine.refusal, store.engine.checkpoints.last_ok) == (Refusal.TABLES_FAILED, False)
    assert store.stream().length == 4
    store.kill()


def test_tables_are_not_believed_when_the_log_that_they_cover_could_not_be_synced(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 3)
    store.checkpoint()
    store.add(b"s", "4-0")
    store.commit()
    durability = store.engine.begin_checkpoint()
    with pytest.MonkeyPatch.context() as patch:

        def fail(fd: int) -> None:
            raise OSError(5, "Input/output error")

        patch.setattr(store.engine.files, "sync", fail)
        durability.run()
    with pytest.raises(LogWriteError, match="Input/output error"):
        store.engine.end_checkpoint()
    assert store.engine.refusal is Refusal.LOG_FAILED
    with pytest.raises(LogWriteError):
        store.engine.checkpoint()
    kill_in_doubt(store)
    store.open()
    assert store.engine.recovery.commands == 1
    store.engine.close()


def test_a_second_start_goes_back_no_further_when_the_first_one_was_killed_or_wrote_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    for number in range(1, 6):
        store.add(b"s", f"{number}-0")
        store.checkpoint()
    before = store.txn.position
    store.fill(b"t", 500)
    store.checkpoint()
    store.kill()
    state = store.directory / STATE_DIRECTORY
    (state / "in-use").write_text("another boot")
    assert power_loss.resolve_doubt(state) is not None
    gone_back = (state / "data.mdb").read_bytes()
    for _ in range(3):
        assert power_loss.resolve_doubt(state) is None
    assert (state / "data.mdb").read_bytes() == gone_back
    assert list(check_pages(state / "data.mdb", lambda: True, lambda: None)) == []
    tables = Tables(store.directory, _MAP)
    txn = WriteTxn(tables)
    assert txn.position == before
    txn.abort()
    tables.close()
    store.open()
    assert store.stream(b"t").length == 500
    assert store.violations() == []
    store.kill()


def test_a_rewrite_may_delete_the_log_before_it_as_even_the_commit_before_does_not_need_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 10)
    store.checkpoint()
    store.engine.divide_log()
    store.add(b"s", "11-0")
    store.commit()
    checkpoint_twice(store.engine)
    shutil.copytree(store.directory, tmp_path / "cut")
    state = tmp_path / "cut" / STATE_DIRECTORY
    (state / "in-use").write_text("another boot")
    (state / "lock.mdb").unlink()
    assert settle_doubt(state)
    tables = Tables(tmp_path / "cut", _MAP)
    txn = WriteTxn(tables)
    assert txn.position is not None
    assert txn.position[0] == store.engine.log.end.file_seq
    txn.abort()
    tables.close()
    store.engine.close()


def test_a_mark_that_the_failed_disk_did_not_take_is_left_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "d")
    state = store.directory / STATE_DIRECTORY
    tables = store.engine.tables

    def refuse(state: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(power_loss, "distrust", refuse)
        tables.distrust("the tables could not be made durable")
    assert not is_in_doubt(state)
    with pytest.raises(lmdb.Error):
        store.engine.checkpoint()  # tried again by the server while the disk fails
    assert is_in_doubt(state)
    store.kill()


# -- a start on a full disk, which has no room for the mark ------------------------------------------------------------


def without_mark(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that was opened on a full disk, and has room since."""
    store = Store(directory, fsync=Fsync.EVERYSEC)
    store.add(b"s", "1-0")
    store.engine.close()

    def full(state: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(power_loss, "_write_new_mark", full)
        store.open()
    assert not power_loss.is_marked(directory / STATE_DIRECTORY)
    return store


def log_file(directory: Path) -> Path:
    [path] = (directory / _LOG).glob("*.1.incr.aof")
    return path


def test_without_the_mark_no_checkpoint_is_on_the_disk_before_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = without_mark(tmp_path / "store", monkeypatch)
    store.add(b"s", "2-0")
    store.commit()
    assert store.engine.log.unsynced_bytes
    store.engine.begin_checkpoint()
    shutil.copytree(store.directory, tmp_path / "cut")
    os.truncate(log_file(tmp_path / "cut"), store.engine.log.synced.position)
    store.kill()
    found = Store(tmp_path / "cut")
    assert found.stream().length == 2
    found.kill()


def test_the_mark_is_set_when_there_is_room_and_both_commits_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = without_mark(tmp_path / "store", monkeypatch)
    for number in range(2, 4):
        store.add(b"s", f"{number}-0")
        store.checkpoint()
        assert power_loss.is_marked(store.directory / STATE_DIRECTORY) is (number == 3)
    for number in range(4, 7):
        store.add(b"s", f"{number}-0", words=(b"f", b"v" * 100))
        store.commit()
    shutil.copytree(store.directory, tmp_path / "cut")
    with log_file(tmp_path / "cut").open("r+b") as file:  # the first of the late batches is lost
        file.seek(store.engine.log.synced.position)
        file.write(bytes(100))
    (tmp_path / "cut" / STATE_DIRECTORY / "in-use").write_text("another boot")
    found = Store(tmp_path / "cut")
    assert found.stream().length == 3
    found.kill()
    store.engine.close()
    assert not power_loss.is_marked(store.directory / STATE_DIRECTORY)


def refuse_all_but_copies(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the system tell that no part of the file was ever written, but for copies that take its place."""
    refused = data.stat().st_ino

    def tell(fd: int, request: int, places: bytearray) -> int:
        struct.pack_into("=I", places, 20, 1)
        struct.pack_into("=Q8xQ16xI", places, 32, 0, 1 << 40, 0x800 * (os.fstat(fd).st_ino == refused) | 1)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", tell)


def test_a_start_without_room_for_a_copy_of_the_tables_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "d")
    store.fill(b"s", 2000)
    store.checkpoint()
    store.add(b"s", "2001-0")
    store.checkpoint()
    store.kill()
    state = store.directory / STATE_DIRECTORY
    (state / "in-use").write_text("another boot")
    before = tree(state)
    refuse_all_but_copies(state / "data.mdb", monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(OsFiles, "free_bytes", lambda files, path: 0)
        with pytest.raises(StoreError, match=r"a copy needs \d+ bytes, and 0 are free"):
            store.open()
    assert tree(state) == before
    store.open()
    assert store.stream(b"s").length == 2001
    store.engine.close()


def test_tables_that_the_disk_has_refused_in_part_are_copied_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "d")
    store.add(b"s", "1-0")
    store.checkpoint()
    store.kill()
    data = store.directory / STATE_DIRECTORY / "data.mdb"
    before = data.stat().st_ino
    data.chmod(0o640)
    (data.parent / "in-use").write_text(power_loss._boot_id())
    (data.parent / "data.mdb.new").write_bytes(b"of a start that was killed")
    refuse_all_but_copies(data, monkeypatch)
    store.open()
    assert store.engine.recovery.moved_files == [data]
    assert data.stat().st_ino != before
    assert data.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in data.parent.iterdir()) == ["data.mdb", "in-use", "lock.mdb"]
    assert store.violations() == []
    store.engine.close()
    (data.parent / "in-use").write_text(power_loss._boot_id())
    store.open()
    assert store.engine.recovery.moved_files == []
    store.engine.close()


def test_a_mark_that_the_disk_does_not_take_is_there_for_the_next_start_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk that did not take the tables often does not take the mark; what is kept in memory is read by a start."""
    store = Store(tmp_path / "d")
    state = store.directory / STATE_DIRECTORY
    store.add(b"s", "1-0")
    store.checkpoint()
    store.add(b"s", "2-0")
    store.checkpoint()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(power_loss, "sync_whole", fail)
        store.engine.tables.distrust("the disk failed")
        assert is_in_doubt(state)
    store.kill()
    assert is_in_doubt(state)
    store.open()
    assert store.engine.recovery.commands == 1
    store.engine.close()
