"""A start that fails leaves every byte and every file as it was, and what could be mended before it can be after it.

All files are compared, LMDB's lock file among them, and all directories, empty ones too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from crc32c import crc32c

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import Check, DeepCheck, check
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import OsFiles
from riverbed.store.engine import Engine
from riverbed.store.errors import CorruptionError, LockedError, ReplayError, StoreError, VersionError
from riverbed.store.offline.repair import Repair, RepairError
from riverbed.store.options import Fsync, Options
from riverbed.store.recovery import replay
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.data_file.power_loss import WentBack
from riverbed.store.tables.environment import Tables
from tests.support.in_process import HandClock
from tests.support.store.faulty_files import FaultyFiles
from tests.support.store.logs import ROOT
from tests.support.store.stores import Store, checkpoint_twice
from tests.support.trees import changes, tree

_LOG = "appendonlydir"
_MANIFEST = "appendonly.aof.manifest"
_NOBODY = 65534
# The mark of tables in use, which a tool removes when it has made the log durable.
SETTLED = "removed: state/in-use"


def start(directory: Path, *, execute: Callable[..., None] | None = None, files: OsFiles | None = None) -> Engine:
    options = Options(fsync=Fsync.NO, map_bytes=1 << 28, reserve_bytes=0, segment_bytes=3000)
    return Engine.open(
        directory, execute=execute or Replayer().execute, clock=HandClock(), options=options, files=files
    )


def incrs(directory: Path) -> list[Path]:
    return sorted((directory / _LOG).glob("*.incr.aof"))


# -- ways to break a store ---------------------------------------------------------------------------------------------


def lose_log(directory: Path) -> None:
    shutil.rmtree(directory / _LOG)


def empty_log(directory: Path) -> None:
    for path in (directory / _LOG).iterdir():
        path.unlink()


def lose_manifest(directory: Path) -> None:
    (directory / _LOG / _MANIFEST).unlink()


def lose_log_files(directory: Path) -> None:
    for path in incrs(directory):
        path.unlink()


def lose_last_file(directory: Path) -> None:
    incrs(directory)[-1].unlink()


def damage_manifest(directory: Path) -> None:
    path = directory / _LOG / _MANIFEST
    path.write_bytes(path.read_bytes().replace(b"seq 1", b"seq 7"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage_first_file(directory: Path) -> None:
    shutil.rmtree(directory / "state")
    flip(incrs(directory)[0], 30)


def damage_last_file(directory: Path) -> None:
    """Behind what the tables cover, and before a batch that is sound."""
    flip(incrs(directory)[-1], -150)


def shorten_log(directory: Path) -> None:
    """Below what the tables cover."""
    path = incrs(directory)[-1]
    os.truncate(path, path.stat().st_size // 2)


def log_nonsense(directory: Path) -> None:
    """A command that does not fit the state, behind checkpoints and one that fits."""
    store = Store(directory, segment_bytes=3000)
    checkpoint_twice(store.engine)
    store.add(b"s", "9000-0")
    store.txn.log_command(0, [b"XSETID", b"nothing", b"1-0"])
    store.commit()
    store.kill()


def log_nonsense_far_behind(directory: Path) -> None:
    """The same behind more log than a start from nothing executes between two commits."""
    store = Store(directory, segment_bytes=9 << 20)
    checkpoint_twice(store.engine)
    for number in range(9000, 9200):
        store.add(b"s", f"{number}-0", words=(b"f", b"x" * 100_000))
        store.commit()
    store.txn.log_command(0, [b"XSETID", b"nothing", b"1-0"])
    store.commit()
    store.kill()


def lack_rows_and_log_nonsense_far_behind(directory: Path) -> None:
    """Tables as a start leaves them that was killed at once."""
    log_nonsense_far_behind(directory)
    shutil.rmtree(directory / "state")
    (directory / "state").mkdir()
    lmdb.open(str(directory / "state")).close()


def scramble_tables_and_log_nonsense_far_behind(directory: Path) -> None:
    log_nonsense_far_behind(directory)
    scramble_tables(directory)


def other_version(directory: Path) -> None:
    tables = Tables(directory, 1 << 28)
    for _ in range(2):
        with tables.env.begin(write=True, db=tables.handles["meta"]) as txn:
            txn.put(b"format_version", b"\x63")
    tables.close()


def scramble_tables(directory: Path) -> None:
    data = directory / "state" / "data.mdb"
    data.write_bytes(b"\xff" * data.stat().st_size)


def cut_tables(directory: Path) -> None:
    data = directory / "state" / "data.mdb"
    os.truncate(data, data.stat().st_size // 8192 * 4096)


def lack_a_table(directory: Path) -> None:
    """As tables of a server that did not know of one; and the log's end is damaged."""
    tables = Tables(directory, 1 << 28)
    with tables.env.begin(write=True) as txn:
        txn.drop(tables.handles["consumer_ttls"])
    tables.close()
    damage_last_file(directory)


def hold_nothing(directory: Path) -> None:
    """Tables as a start leaves them that was killed at once, and a log that is damaged."""
    shutil.rmtree(directory / "state")
    (directory / "state").mkdir()
    lmdb.open(str(directory / "state")).close()
    flip(incrs(directory)[0], 30)


def have_empty_tables(directory: Path) -> None:
    hold_nothing(directory)
    os.truncate(directory / "state" / "data.mdb", 0)


BREAKS: dict[str, tuple[Callable[[Path], None], type[Exception]]] = {
    "the folder of the log is gone": (lose_log, StoreError),
    "the folder of the log is empty": (empty_log, StoreError),
    "the manifest is gone": (lose_manifest, CorruptionError),
    "the files of the log are gone": (lose_log_files, CorruptionError),
    "the last file of the log is gone": (lose_last_file, CorruptionError),
    "the manifest is damaged": (damage_manifest, CorruptionError),
    "the first file is damaged and the tables are gone": (damage_first_file, CorruptionError),
    "the end of the log is damaged": (damage_last_file, CorruptionError),
    "the log is shorter than what the tables cover": (shorten_log, CorruptionError),
    "the log holds what does not fit": (log_nonsense, ReplayError),
    "the log holds what does not fit far behind the tables": (log_nonsense_far_behind, ReplayError),
    "the tables hold nothing and the log what does not fit": (lack_rows_and_log_nonsense_far_behind, ReplayError),
    "the tables are of another version": (other_version, VersionError),
    "the tables are no tables": (scramble_tables, lmdb.Error),
    "the tables are cut off": (cut_tables, StoreError),
    "the tables lack one and the log is damaged": (lack_a_table, CorruptionError),
    "the tables hold nothing and the log is damaged": (hold_nothing, CorruptionError),
    "the file of the tables is empty and the log is damaged": (have_empty_tables, CorruptionError),
}
# What `riverbed check --repair` mends; the others take a person's decision.
MENDABLE = ["the folder of the log is gone", "the folder of the log is empty", "the tables are no tables"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of several log files, with a checkpoint in the last one and something behind it."""
    store = Store(tmp_path / "d", segment_bytes=3000)
    for number in range(65):
        store.add(b"s", f"{number + 1}-0", words=(b"f", b"x" * 100))
        store.commit()
    checkpoint_twice(store.engine)
    place = store.engine.log.end
    assert place.file_seq > 2
    assert place.position > 500
    for number in range(100, 103):
        store.add(b"s", f"{number}-0")
        store.commit()
    assert store.engine.log.end.file_seq == place.file_seq
    store.kill()
    return store.directory


@pytest.mark.parametrize("mark", [None, "failed", "another boot"])
@pytest.mark.parametrize("name", BREAKS)
def test_a_start_that_fails_leaves_every_byte_as_it_was(directory: Path, name: str, mark: str | None) -> None:
    how, error = BREAKS[name]
    how(directory)
    if mark is not None and (directory / "state").exists():
        (directory / "state" / "in-use").write_text(mark)
    assert_changes_nothing(directory, error)


def assert_changes_nothing(directory: Path, error: type[Exception] | tuple[type[Exception], ...]) -> None:
    """Start twice; either start fails with `error`."""
    before = tree(directory)
    for _ in range(2):
        with pytest.raises(error):
            start(directory)
        assert changes(before, tree(directory)) == []


# Of the manifest, the first look is the one for links.
@pytest.mark.parametrize(
    ("name", "number"), [(f"{_LOG}/{_MANIFEST}", 2), ("state", 2), ("state/data.mdb", 2), ("state/in-use", 2)]
)
def test_a_start_that_cannot_look_at_a_file_leaves_every_byte_as_it_was(
    directory: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk does not tell of for a moment is not missing."""
    (directory / "state" / "in-use").write_text("another boot")
    before = tree(directory)
    looks = {"stat": os.stat, "lstat": os.lstat}
    seen = 0

    def failing(which: str) -> Callable[..., os.stat_result]:
        def look(path: object, **how: Any) -> os.stat_result:
            nonlocal seen
            seen += str(path) == str(directory / name)
            if str(path) == str(directory / name) and seen == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return looks[which](path, **how)

        return look

    for which in looks:
        monkeypatch.setattr(os, which, failing(which))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        start(directory)
    monkeypatch.undo()
    assert changes(before, tree(directory)) == []


@pytest.mark.parametrize("lock_file", [None, b"", b"\0" * 100, b"\xff" * 70_000, b"x" * 200_000])
def test_a_start_that_fails_leaves_any_lock_file_as_it_was(directory: Path, lock_file: bytes | None) -> None:
    damage_last_file(directory)
    path = directory / "state" / "lock.mdb"
    path.unlink()
    if lock_file is not None:
        path.write_bytes(lock_file)
    assert_changes_nothing(directory, CorruptionError)


def test_a_start_that_fails_takes_nothing_from_a_reader(directory: Path) -> None:
    """One that has come since the start began is noted in the lock file, which is not as it was then."""
    log_nonsense(directory)
    hold = (
        "import lmdb, sys; e = lmdb.open(sys.argv[1], readonly=True, max_readers=1024); t = e.begin(); "
        "print(e.info()['num_readers'], flush=True); sys.stdin.read(); print(e.readers(), flush=True)"
    )
    command = [sys.executable, "-c", hold, str(directory / "state")]
    readers = []

    def execute(*words: object) -> None:
        reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        readers.append(reader)
        assert reader.stdout is not None
        assert reader.stdout.readline().strip().isdigit()
        raise ReplayError("refused")

    with pytest.raises(ReplayError):
        start(directory, execute=execute)
    (reader,) = readers
    assert str(reader.pid) in reader.communicate("")[0]


def test_what_lmdb_has_written_before_the_end_of_a_start_that_fails_is_cut_off(directory: Path) -> None:
    """Of a transaction with more than 512 MB of changed pages it writes some early, here behind the end of its file."""
    log_nonsense(directory)
    data = directory / "state" / "data.mdb"

    def execute(txn: WriteTxn, *_: object) -> None:
        assert [(reader.pid, reader.transaction_no) for reader in txn.tables.readers()] == [(os.getpid(), 0)]
        with data.open("ab") as file:
            file.write(b"x" * 8192)
        raise ReplayError("refused")

    before = tree(directory)
    for _ in range(2):
        with pytest.raises(ReplayError, match="refused"):
            start(directory, execute=execute)
        assert changes(before, tree(directory)) == []


KILLED = {"base": "appendonly.aof.7.base.aof", "incr": "appendonly.aof.70.incr.aof"}


def leave_folder(directory: Path) -> None:
    (directory / "state" / "compact").mkdir()


def leave_work(directory: Path) -> None:
    leave_folder(directory)
    (directory / "state" / "compact" / "data.mdb").write_bytes(b"not ready")
    (directory / _LOG / "temp-rewrite-compact").write_bytes(b"not ready")


def leave_old_tables(directory: Path) -> None:
    """Killed before the new log was listed."""
    leave_work(directory)
    work = directory / "state" / "compact"
    (work / "plan.json").write_text(json.dumps(KILLED))
    for name in KILLED.values():
        (directory / _LOG / name).write_bytes(b"")
    (directory / "state" / "data.mdb").rename(work / "old.mdb")
    (directory / "state" / "lock.mdb").rename(work / "old-lock.mdb")


def leave_new_tables(directory: Path) -> None:
    """Killed when it was: the log's own files stand for the new ones."""
    leave_folder(directory)
    work = directory / "state" / "compact"
    names = [path.name for path in incrs(directory)]
    (work / "plan.json").write_text(json.dumps({"base": "appendonly.aof.7.base.aof", "incr": names[-1]}))
    manifest = directory / _LOG / _MANIFEST
    lines = manifest.read_bytes().splitlines(keepends=True)[:-1]
    lines.append(b"file appendonly.aof.7.base.aof seq 7 type b size 0 checksum crc32c commandbytes 0\n")
    lines.append(b"file appendonly.aof.6.base.aof seq 6 type h\n")
    (directory / _LOG / "appendonly.aof.7.base.aof").write_bytes(b"")
    (directory / _LOG / "appendonly.aof.6.base.aof").write_bytes(b"history")
    manifest.write_bytes(b"".join(lines) + b"#CK:crc32c=%08x\n" % crc32c(b"".join(lines)))
    (directory / "state" / "data.mdb").rename(work / "data.mdb")


@pytest.mark.parametrize("left", [leave_folder, leave_work, leave_old_tables, leave_new_tables])
@pytest.mark.parametrize("mark", [None, "another boot"])
def test_a_start_that_fails_leaves_a_killed_compaction_as_it_was(
    directory: Path, left: Callable[[Path], None], mark: str | None
) -> None:
    damage_last_file(directory)
    left(directory)
    if mark is not None:
        (directory / "state" / "in-use").write_text(mark)
    assert_changes_nothing(directory, CorruptionError)


@pytest.mark.parametrize("lock_file", [b"", b"LMDB's of another process" * 3000])
@pytest.mark.parametrize("left", [leave_old_tables, leave_new_tables])
def test_a_start_that_fails_leaves_the_lock_file_of_a_killed_compaction_as_it_was(
    directory: Path, left: Callable[[Path], None], lock_file: bytes
) -> None:
    damage_last_file(directory)
    left(directory)
    (found,) = (directory / "state").rglob("*lock.mdb")
    found.write_bytes(lock_file)
    assert_changes_nothing(directory, CorruptionError)


@pytest.mark.parametrize("left", [leave_old_tables, leave_new_tables])
def test_tables_of_a_killed_compaction_that_cannot_be_moved_back_stay_where_they_are(
    directory: Path, left: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (directory / "state" / "data.mdb").read_bytes()
    damage_last_file(directory)
    left(directory)
    replace = os.replace

    def only_in(source: Path, target: Path) -> None:
        if target.parent.name == "compact":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        replace(source, target)

    monkeypatch.setattr(os, "replace", only_in)
    with pytest.raises(CorruptionError):
        start(directory)
    assert (directory / "state" / "data.mdb").read_bytes() == before


def test_a_start_that_cannot_undo_one_change_undoes_the_others(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_last_file(directory)
    (directory / "state" / "in-use").write_text("another boot")
    (directory / "state" / "lock.mdb").unlink()
    before = tree(directory)

    def refuse(self: WentBack) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(WentBack, "undo", refuse)
        with pytest.raises(CorruptionError):
            start(directory)
    assert [change for change in changes(before, tree(directory)) if "data.mdb" not in change] == []


@pytest.mark.parametrize("left", [leave_folder, leave_work, leave_old_tables, leave_new_tables])
def test_a_start_that_succeeds_ends_a_killed_compaction(directory: Path, left: Callable[[Path], None]) -> None:
    left(directory)
    engine = start(directory)
    assert engine.has_settled
    assert engine.recovery.commands == 3
    assert not engine.log.home.manifest.history
    engine.close()
    assert sorted(os.listdir(directory / "state")) == ["data.mdb", "lock.mdb"]
    assert not set(os.listdir(directory / _LOG)) & {"temp-rewrite-compact", "appendonly.aof.6.base.aof"}
    assert [str(violation) for violation in check(directory)] == []


@pytest.mark.parametrize("name", MENDABLE)
def test_what_can_be_mended_is_mended_after_a_start_that_failed(directory: Path, name: str, tmp_path: Path) -> None:
    how, error = BREAKS[name]
    how(directory)
    with pytest.raises(error):
        start(directory)
    repair(directory)
    assert [str(violation) for violation in check(directory)] == []
    engine = start(directory)
    stream = engine.txn.databases[0].stream(b"s", 0)
    assert stream is not None and stream.length >= 60
    engine.close()


def test_a_check_and_a_repair_of_a_log_that_does_not_fit_change_nothing(directory: Path) -> None:
    log_nonsense_far_behind(directory)
    before = tree(directory)
    deep_check = DeepCheck(Replayer().execute, directory.parent)
    for _ in range(2):
        assert any("does not fit" in str(violation) for violation in check(directory, deep_check=deep_check))
        with pytest.raises(ReplayError):
            start(directory)
        repair(directory)
        # a check reads the tables, and LMDB notes its readers; a repair settles what the kill has left
        assert set(changes(before, tree(directory))) - {"changed: state/lock.mdb"} == {SETTLED}


def test_a_repair_whose_log_does_not_fit_leaves_broken_tables_as_they_were(directory: Path) -> None:
    scramble_tables_and_log_nonsense_far_behind(directory)
    before = tree(directory)
    for _ in range(2):
        with pytest.raises(ReplayError):
            repair(directory)
        assert changes(before, tree(directory)) == [SETTLED]


def repair(directory: Path) -> None:
    with Repair(directory, Replayer().execute, now_ms=HandClock().now_ms) as one:
        found = Check(directory, is_held=True)
        one.mend(found, list(found.violations()))


def test_tables_without_a_log_are_refused_with_what_mends_them(directory: Path) -> None:
    lose_log(directory)
    with pytest.raises(StoreError, match=r"no log in .*, and the tables .*`riverbed check .* --repair`"):
        start(directory)


def test_tables_that_never_held_anything_may_be_without_a_log(tmp_path: Path) -> None:
    """So a start is found that was killed before it had made the log."""
    Tables(tmp_path, 1 << 28).close()
    start(tmp_path).close()
    assert incrs(tmp_path)


def test_a_directory_that_is_in_use_is_left_alone(directory: Path) -> None:
    engine = start(directory)
    before = tree(directory)
    with pytest.raises(LockedError):
        start(directory)
    assert tree(directory) == before
    engine.close()


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """With the permissions of a user who owns nothing."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mark", [None, "another boot", ""])
@pytest.mark.parametrize("closed", [".", "state", "state/data.mdb", "files of the log", "unreadable log"])
def test_a_start_without_permission_leaves_every_byte_as_it_was(directory: Path, closed: str, mark: str | None) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # those of the tests are for one user alone
        os.chmod(home, 0o755)
        place = Path(home) / "d"
        shutil.copytree(directory, place)
        if mark is not None:
            (place / "state" / "in-use").write_text(mark)
        if mark == "":  # as a clean stop leaves it
            (place / "state" / "in-use").unlink()
        everything = [place, *place.rglob("*")]
        shut = {
            "files of the log": incrs(place),
            "unreadable log": incrs(place),
            ".": everything,
        }.get(closed) or [path for path in everything if path == place / closed]
        assert shut
        for path in everything:
            path.chmod(0o777 if path.is_dir() else 0o666)
        for path in shut:
            path.chmod(0o555 if path.is_dir() else 0o444 if closed != "unreadable log" else 0o000)
        if closed == "state":
            (place / "state" / "lock.mdb").unlink(missing_ok=True)
            (place / "state").chmod(0o555)
        before = tree(place)
        with as_nobody(), pytest.raises(OSError, match=r"Permission denied") as caught:
            start(place).close()
        assert tree(place) == before
        named = Path(caught.value.filename)
        is_named = named == place / closed if closed == "state/data.mdb" else named.is_relative_to(place)
        assert is_named, caught.value
        for path in everything:
            if path.exists():
                path.chmod(0o777)


def test_a_directory_that_cannot_be_made_a_store_is_not_made_at_all(tmp_path: Path) -> None:
    before = tree(tmp_path)

    class Poor(OsFiles):
        def sync_directory(self, path: Path, /) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        start(tmp_path / "some" / "place", files=Poor())
    assert tree(tmp_path) == before


def test_a_new_log_that_cannot_be_made_leaves_nothing_of_it() -> None:
    dry = FaultyFiles()
    with_log(dry)
    for operation in sorted({*dry.operations} - {"close", "free_bytes"}):
        for after in range(dry.operations.count(operation)):
            files = FaultyFiles()
            files.fail(operation, errno.ENOSPC, after=after)
            try:
                with_log(files)
            except OSError:
                assert files.paths() == [], (operation, after)
                assert not files.exists(ROOT / _LOG)


def with_log(files: FaultyFiles) -> None:
    from riverbed.store.log.append_log import Log

    log = Log.find(ROOT, files)
    log.create()
    log.close()


def test_a_start_whose_mark_cannot_be_written_leaves_every_byte_as_it_was(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(state: Path) -> bool:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(power_loss, "prepare_use", refuse)
        assert_changes_nothing(directory, OSError)
    start(directory).close()


def test_a_new_store_whose_tables_cannot_be_put_to_use_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(state: Path) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "kept").write_text("not ours")
    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(power_loss, "begin_use", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="Permission denied"):
                start(tmp_path)
            assert changes(before, tree(tmp_path)) == []
    start(tmp_path).close()


def test_damage_behind_more_than_one_checkpoint_is_found_before_the_first_of_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory / "state", directory.parent / "old")
    store = Store(directory, segment_bytes=3000)
    for number in range(200, 260):
        store.add(b"s", f"{number}-0", words=(b"f", b"x" * 100))
        store.commit()
    store.kill()
    shutil.rmtree(directory / "state")
    shutil.move(directory.parent / "old", directory / "state")
    flip(incrs(directory)[-2], 100)
    monkeypatch.setattr(replay, "_BYTES_A_CHECKPOINT", 1000)
    before = tree(directory)
    with pytest.raises(CorruptionError):
        start(directory)
    assert tree(directory) == before


def test_a_repair_that_is_refused_after_a_failed_start_names_what_it_did_before(
    directory: Path, tmp_path: Path
) -> None:
    lose_manifest(directory)
    shutil.copytree(directory, tmp_path / "untouched")
    with pytest.raises(CorruptionError):
        start(directory)
    with pytest.raises(RepairError) as after:
        repair(directory)
    with pytest.raises(RepairError) as untouched:
        repair(tmp_path / "untouched")
    assert str(after.value) == str(untouched.value).replace(str(tmp_path / "untouched"), str(directory))


def test_directories_that_a_start_makes_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = OsFiles.sync_directory

    def noted(files: OsFiles, path: Path, /) -> None:
        synced.append(path)
        real(files, path)

    monkeypatch.setattr(OsFiles, "sync_directory", noted)
    store = Store(tmp_path / "a" / "b" / "store")
    assert synced[:3] == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    store.kill()
