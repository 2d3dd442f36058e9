"""What failed to be synced is not believed because it can be read: a start writes it again before it builds on it."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from riverbed.store.errors import LogWriteError, Refusal
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.options import Fsync
from riverbed.store.recovery import replay
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import FIRST, ROOT, SELECT, append, commands_of, open_log, reopened, told, xadd
from tests.support.store.stores import Store, checkpoint_twice, text_of


def ids_of(store: Store) -> list[str]:
    return [text_of(row_key) for row_key, _ in store.stream().rows(MIN_ID, MAX_ID)]


def add(store: Store, *ids: str) -> None:
    store.add(b"s", *ids)
    store.commit()


def fail_to_sync(store: Store, files: FaultyFiles) -> None:
    """Let the next checkpoint meet a disk that does not take the log."""
    files.fail("sync", errno.EIO)
    with pytest.raises(LogWriteError):
        store.engine.checkpoint()
    assert store.engine.refusal is Refusal.LOG_FAILED


def killed(store: Store) -> None:
    """The process dies; the page cache stays, and says that all is well."""
    store.txn.log.clear()
    store.engine.abandon()


def power_cut(store: Store, files: FaultyFiles, target: Path) -> Store:
    """The store as the next boot finds it: the tables have all of their commits, and the log what was durable of it."""
    shutil.copytree(store.directory / "state", target / "state")
    (target / "state" / "in-use").write_text("another boot")
    after = FaultyFiles()
    crashed = files.crash()
    for path in crashed.paths():
        after.put(target / path.relative_to(store.directory), bytes(crashed.data(path)))
    return Store(target, files=after, fsync=store.options.fsync)


@pytest.mark.parametrize("policy", [Fsync.ALWAYS, Fsync.EVERYSEC, Fsync.NO])
def test_after_a_failed_sync_and_a_restart_a_power_cut_loses_nothing_that_was_checkpointed(
    tmp_path: Path, policy: Fsync
) -> None:
    files = FaultyFiles()
    store = Store(tmp_path / "d", files=files, fsync=policy)
    add(store, "1-0", "2-0")
    store.engine.checkpoint()
    if policy is Fsync.ALWAYS:
        files.fail("sync", errno.EIO)
        store.add(b"s", "3-0")
        with pytest.raises(LogWriteError):
            store.commit()
    else:
        add(store, "3-0")
        fail_to_sync(store, files)
    kept = ids_of(store)
    killed(store)

    store.open()
    assert ids_of(store) == kept
    add(store, "4-0")
    for _ in range(2):  # not even the commit before the last is behind the log
        store.engine.txn.swept = True
        store.engine.checkpoint()
    after = power_cut(store, files, tmp_path / "cut")
    assert ids_of(after) == [*kept, "4-0"]
    assert after.violations() == []
    after.engine.close()
    store.engine.close()


def test_a_restart_that_is_followed_by_a_power_cut_at_once_keeps_what_it_has_shown(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = Store(tmp_path / "d", files=files, fsync=Fsync.EVERYSEC)
    add(store, "1-0")
    fail_to_sync(store, files)
    killed(store)
    store.open()
    assert ids_of(store) == ["1-0"]
    after = power_cut(store, files, tmp_path / "cut")
    assert ids_of(after) == ["1-0"]
    after.engine.close()
    store.engine.close()


def test_a_failed_sync_of_which_no_mark_could_be_left_is_survived_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk that took no log took no mark beside the tables either, so the newer checkpoint counts."""
    files = FaultyFiles()
    store = Store(tmp_path / "d", files=files, fsync=Fsync.EVERYSEC)
    add(store, "1-0")
    store.engine.checkpoint()
    add(store, "2-0")
    with monkeypatch.context() as patch:
        patch.setattr("riverbed.store.tables.data_file.power_loss.distrust", _refuse)
        fail_to_sync(store, files)
        killed(store)
    store.open()
    assert store.engine.recovery.commands == 0, "the checkpoint that claims what was lost counts"
    add(store, "3-0")
    checkpoint_twice(store.engine)
    after = power_cut(store, files, tmp_path / "cut")
    assert ids_of(after) == ["1-0", "2-0", "3-0"]
    after.engine.close()
    store.engine.close()


def _refuse(state: Path) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_start_that_cannot_write_again_what_it_found_does_not_start(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = Store(tmp_path / "d", files=files, fsync=Fsync.EVERYSEC)
    add(store, "1-0")
    fail_to_sync(store, files)
    killed(store)
    for operation in ("write", "sync", "sync_directory"):
        files.fail(operation, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            store.open()
    store.open()
    assert ids_of(store) == ["1-0"]
    store.engine.close()


def test_undoing_a_long_tick_checkpoints_nothing_of_a_log_that_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_BYTES_A_CHECKPOINT", 50)
    files = FaultyFiles()
    store = Store(tmp_path / "d", files=files, fsync=Fsync.EVERYSEC)
    store.engine.checkpoint()
    for number in range(1, 6):
        add(store, f"{number}-0")
    position = store.txn.position
    store.add(b"s", "9-0")
    store.engine.rollback(store.clock.now_ms)
    assert store.txn.position == position
    assert ids_of(store) == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    killed(store)
    after = power_cut(store, files, tmp_path / "cut")
    assert ids_of(after) == []
    after.engine.close()


# -- the log alone -----------------------------------------------------------------------------------------------------


def test_only_what_is_not_known_to_be_durable_is_written_again() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files, segment_bytes=250)
    for number in range(4):
        append(log, [SELECT, xadd(number, b"x" * 100)])
        log.rotate_if_needed()
    append(log, [SELECT, xadd(5)])
    log.writer.sync()
    known = log.synced
    append(log, [xadd(6)])
    log.close()
    assert known.file_seq > 2

    written: dict[int, bytes] = {}
    whole = bytes(files.data(FIRST.with_name(f"appendonly.aof.{known.file_seq}.incr.aof")))

    def write_at(fd: int, data: bytes | memoryview, position: int, /) -> int:
        written[position] = bytes(data)
        return FaultyFiles.write_at(files, fd, data, position)

    files.write_at = write_at
    again = open_log(ROOT, files)
    found = list(again.read(durable=known))
    assert written == {known.position: whole[known.position :]}
    assert again.synced == again.end == found[-1].end
    written.clear()
    assert told(list(open_log(ROOT, files).read())) == told(found)
    assert written == {0: whole}


@pytest.mark.parametrize("limit", [None, 1, 7])
def test_short_writes_are_completed_when_a_tail_is_written_again(limit: int | None) -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    files.fail("sync", errno.EIO)
    with pytest.raises(LogWriteError):
        log.writer.sync()
    log.close()
    files.write_limit = limit
    _, found = reopened(files)
    files.write_limit = None
    _, after = reopened(files.crash())
    assert commands_of(after) == commands_of(found) == [[SELECT, xadd(1)]]


def test_a_file_that_a_crash_has_left_gives_the_next_one_nothing_of_its_own() -> None:
    """Emptied, it would have its old bytes back after a power cut that the new ones do not survive."""
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    files.put(ROOT / "appendonlydir" / "appendonly.aof.2.incr.aof", b"of another life")
    log.rotate()
    append(log, [xadd(2)])
    after = files.crash()
    assert after.data(ROOT / "appendonlydir" / "appendonly.aof.2.incr.aof") == b""
    assert len(commands_of(reopened(after)[1])) == 1


def test_a_start_says_which_files_it_has_moved_and_moves_them_once() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    files.fail("sync", errno.EIO)
    with pytest.raises(LogWriteError):
        log.writer.sync()
    log.close()
    moved = []
    for _ in range(2):
        log = open_log(ROOT, files)
        list(log.read())
        moved.append([path.name for path in log.moved_files])
        log.close()
    assert moved == [["appendonly.aof.1.incr.aof"], []]


def test_padding_that_the_disk_has_refused_is_not_written_over() -> None:
    files = FaultyFiles()
    log = open_log(ROOT, files)
    append(log, [SELECT, xadd(1)])
    log.writer.sync()
    known = log.synced
    log.writer.pad()
    files.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        files.sync(log.writer.fd)  # as the thread does that begins the next file

    files = files.kill()
    log = open_log(ROOT, files)
    assert len(list(log.read(durable=known))) == 1
    append(log, [xadd(3)])
    log.writer.sync()
    assert len(commands_of(reopened(files.crash())[1])) == 2
