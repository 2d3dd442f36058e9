"""A full sync is put in place: stopped before each thing it does, it leaves the old store or the new one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from riverbed.store.check import check
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.errors import Refusal, StateLostError
from riverbed.store.exchange import adopt
from riverbed.store.layout import LOG_DIRECTORY, LOG_FILE
from riverbed.store.log.append_log import Log
from riverbed.store.log.base_file import write_base
from riverbed.store.log.home import TEMPORARY_PREFIX
from riverbed.store.log.manifest import FileType, LogFile
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.rewrite.state import pieces
from riverbed.store.running.space import MAX_UNCOMMITTED_BYTES
from tests.support.store.logs import adopt_base
from tests.support.store.stores import Store, begin_file

SOURCE = "sync-1"
SEQ = 1001
REPLIDS = ReplicationIds("7c2a8d3f" * 5)


class WatchedFiles(OsFiles):
    """The disk, and what a power cut would leave of the names in it.

    `before` is called with the number of each step that changes something.
    """

    def __init__(self, before: Callable[[int], None]) -> None:
        self._before = before
        self._numbers = count()
        # Source and target of each renaming, what was at the target, and the directories that were synced since.
        self._renamed: list[tuple[Path, Path, bytes | None, set[Path]]] = []

    def create(self, path: Path, /) -> int:
        self._before(next(self._numbers))
        return super().create(path)

    def rename(self, source: Path, target: Path, /) -> None:
        self._before(next(self._numbers))
        replaced = target.read_bytes() if target.is_file() else None
        super().rename(source, target)
        self._renamed.append((source, target, replaced, set()))

    def sync_directory(self, path: Path, /) -> None:
        self._before(next(self._numbers))
        super().sync_directory(path)
        for *_, synced in self._renamed:
            synced.add(path)

    def cut_power(self, directory: Path, image: Path) -> None:
        """Take back in `image`, a copy of `directory`, what was not synced; half a renaming loses what was moved."""
        for source, target, replaced, synced in reversed(self._renamed):
            old, new = image / source.relative_to(directory), image / target.relative_to(directory)
            if target.parent in synced:
                continue
            if source.parent not in synced:
                new.rename(old)
            elif new.is_dir():
                shutil.rmtree(new)
            else:
                new.unlink()
            if replaced is not None:
                new.write_bytes(replaced)


def grow(store: Store, number: int) -> None:
    """Something in the log and in the tables, and something in the log alone."""
    key = b"k%d" % number
    store.fill(key, 30)
    store.deliver(key, 7)
    store.run("XACK", key, "g", "2-0")
    store.run("XADD", key, "IDMP", "pid", "iid", "*", "f", "v")
    store.checkpoint()
    store.fill(b"later %d" % number, 5, db=3)
    store.commit()


def begin_with_base(store: Store) -> None:
    """What a rewrite does."""
    log = store.engine.log
    end = store.engine.divide_log()
    path = log.home.path / f"{TEMPORARY_PREFIX}1.aof"
    with store.engine.tables.env.begin() as txn:
        size = write_base(path, pieces(store.engine.tables, txn), OsFiles(), offset=end.offset, now_ms=1)
    adopt_base(log, path, size.size, size.command_bytes, end.file_seq)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a base, history and two files, and a full sync in it that has come to its end."""
    home = tmp_path_factory.mktemp("adoption")
    store = Store(home / "data")
    grow(store, 1)
    begin_with_base(store)
    begin_file(store.engine)
    grow(store, 2)
    store.engine.close()
    primary = Store(home / "primary")
    grow(primary, 10)
    grow(primary, 11)
    primary.checkpoint()
    source, tables, offset = store.directory / SOURCE, primary.engine.tables, primary.engine.log.end.offset
    name = f"{LOG_FILE}.{SEQ}.base.aof"
    (source / LOG_DIRECTORY).mkdir(parents=True)
    with tables.env.begin() as txn:
        size = write_base(source / LOG_DIRECTORY / name, pieces(tables, txn), OsFiles(), offset=offset, now_ms=1)
    primary.engine.close()
    base = LogFile(name, SEQ, FileType.BASE, size=size.size, is_checksummed=True, command_bytes=size.command_bytes)
    options: dict[str, Any] = {"seq": SEQ, "replids": REPLIDS}
    Log.begin(source, OsFiles(), start_offset=offset, base=base, **options).close()
    arriving = Store(source, is_replica=True)
    grow(arriving, 12)
    arriving.engine.close()
    return store.directory


def contents(directory: Path) -> tuple[str, Any]:
    """(replication id, everything that clients can see), as the next start finds it; the store is sound and goes on."""
    store = Store(directory, is_replica=True)
    found = store.engine.log.replids.replication_id, store.dump()
    store.fill(b"after", 3)
    store.restart()
    assert store.stream(b"after").length == 3
    for path in store.engine.log.home.leftovers():
        path.unlink(missing_ok=True)
    store.engine.log.history.forget_deleted()
    names = {file.name for file in store.engine.log.home.manifest.files}
    assert {path.name for path in store.engine.log.home.path.glob("*.aof")} == names, "files that nobody needs are left"
    store.engine.close()
    assert [str(violation) for violation in check(directory)] == []
    return found


@pytest.fixture(scope="module")
def old(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    return contents(shutil.copytree(template, tmp_path_factory.mktemp("old") / "data"))


@pytest.fixture(scope="module")
def new(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    found = contents(shutil.copytree(template / SOURCE, tmp_path_factory.mktemp("new") / "data"))
    assert found[0] == REPLIDS.replication_id
    return found


def opened(directory: Path, files: Files) -> Store:
    return Store(directory, files=files, is_replica=True)


def test_a_store_that_is_adopted_serves_at_once(template: Path, tmp_path: Path, new: tuple[str, Any]) -> None:
    store = Store(shutil.copytree(template, tmp_path / "data"))
    txn, database = store.txn, store.db
    adopt(store.engine, store.directory / SOURCE)
    assert (store.engine.log.replids.replication_id, store.dump()) == new
    assert (store.txn, store.db) == (txn, database), "others hold on to them"
    store.fill(b"s", 3)
    store.restart()
    assert store.stream().length == 3
    store.engine.close()


def test_writes_are_taken_again_when_the_log_and_the_tables_that_failed_are_replaced(
    template: Path, tmp_path: Path
) -> None:
    store = Store(shutil.copytree(template, tmp_path / "data"))
    engine = store.engine
    engine.tables.distrust("the disk failed")
    engine.refusals.log_failed(engine.log.condition.break_log("the disk failed"), is_broken=True)
    assert engine.refusal is Refusal.LOG_FAILED
    engine.checkpoints.last_ok = False
    engine.space.take(MAX_UNCOMMITTED_BYTES)
    adopt(engine, store.directory / SOURCE)
    assert engine.refusal is None
    assert not engine.lacks_checkpoint
    store.fill(b"s", 3)
    store.restart()
    assert store.stream().length == 3
    store.engine.close()


def test_stopped_before_any_step_it_leaves_the_old_store_or_the_new_one(
    template: Path, tmp_path: Path, old: tuple[str, Any], new: tuple[str, Any]
) -> None:
    """As a process that is killed leaves it, and as a power cut does, which takes back what was not synced."""
    directory = shutil.copytree(template, tmp_path / "data")
    images: list[Path] = []

    def copy(number: int) -> None:
        images.extend(shutil.copytree(directory, tmp_path / f"{number}, {how}") for how in ("killed", "power cut"))
        files.cut_power(directory, images[-1])

    files = WatchedFiles(lambda number: None)
    store = opened(directory, files)
    files._before = copy
    adopt(store.engine, directory / SOURCE)
    copy(1000)
    store.engine.close()
    assert len(images) > 30
    seen = [found == new for found in map(contents, images) if found in (old, new)]
    assert len(seen) == len(images), "neither the one nor the other"
    assert not seen[0] and seen[-1]
    assert sorted(seen[0::2]) == seen[0::2], "what was new became old again"


def test_a_step_that_fails_ends_the_server_and_the_next_start_finds_one_of_both(
    template: Path, tmp_path: Path, old: tuple[str, Any], new: tuple[str, Any]
) -> None:
    def fail(number: int) -> None:
        if number == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    for failing in count():
        directory = shutil.copytree(template, tmp_path / str(failing))
        files = WatchedFiles(lambda number: None)
        store = opened(directory, files)
        begun = next(files._numbers)
        failing += begun + 1
        files._before = fail
        try:
            adopt(store.engine, directory / SOURCE)
        except StateLostError:
            store.engine.abandon()
            assert contents(directory) in (old, new), failing
        else:
            store.engine.close()
            assert next(files._numbers) <= failing, "that step was never taken"
            assert failing > begun + 15
            return


def test_a_sync_that_cannot_stand_beside_the_store_changes_nothing(
    template: Path, tmp_path: Path, old: tuple[str, Any]
) -> None:
    directory = shutil.copytree(template, tmp_path / "data")
    shutil.rmtree(directory / SOURCE / LOG_DIRECTORY)
    shutil.copytree(directory / LOG_DIRECTORY, directory / SOURCE / LOG_DIRECTORY)
    store = opened(directory, OsFiles())
    with pytest.raises(StateLostError, match="cannot stand beside"):
        adopt(store.engine, directory / SOURCE)
    store.engine.abandon()
    assert contents(directory) == old


def test_the_old_log_is_durable_when_its_tables_are_closed(template: Path, tmp_path: Path) -> None:
    """Their mark says that a power cut may have taken writes; the next start may find the old store without it."""
    store = Store(shutil.copytree(template, tmp_path / "data"))
    store.fill(b"s", 3)
    store.commit()
    old_log = store.engine.log
    assert old_log.unsynced_bytes
    adopt(store.engine, store.directory / SOURCE)
    assert not old_log.unsynced_bytes
    store.engine.close()
