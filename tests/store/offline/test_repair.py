"""Only what loses nothing is done, what is replaced is kept, and a kill at any moment leaves it to the next run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import Check, DeepCheck, check
from riverbed.store.check.deep import ReplayPlan, SpaceError
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.errors import LockedError
from riverbed.store.layout import LOG_DIRECTORY, STATE_DIRECTORY
from riverbed.store.offline.repair import Repair, RepairError, mend_tables
from riverbed.store.offline.replaced import Action
from riverbed.store.tables.data_file.power_loss import MARK_NAME
from tests.support.store.dying import Reaper
from tests.support.store.planting import Damage, damage, do, make_sound, set_meta, violations
from tests.support.store.stores import Store

TORN = b"*3\r\n$4\r\nXADD\r\n$1\r\ns"


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    directory = tmp_path / "store"
    make_sound(directory)
    return directory


@pytest.fixture(scope="module")
def reaper() -> Iterator[Reaper]:
    with Reaper() as made:
        yield made


def log_of(directory: Path) -> Path:
    return max((directory / LOG_DIRECTORY).glob("*.incr.aof"))


def tear(directory: Path) -> None:
    with log_of(directory).open("ab") as log:
        log.write(TORN)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def mend(directory: Path, *, is_deep: bool = False) -> list[Action]:
    deep = DeepCheck(Replayer().execute, directory.parent) if is_deep else None
    with Repair(directory, Replayer().execute, now_ms=1) as repair:
        found = Check(directory, is_held=True, deep_check=deep)
        actions: list[Action] = []
        repair.mend(found, list(found.violations()), actions.append)
        return actions


def is_sound(directory: Path) -> bool:
    """Nothing is wrong, and nothing torn, and the log makes what the tables are."""
    found = Check(directory, deep_check=DeepCheck(Replayer().execute, directory.parent))
    return list(found.violations()) == [] and found.torn_tail is None


def contents(directory: Path) -> object:
    copy = directory.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    store = Store(copy)
    dump = store.dump()
    store.engine.close()
    return dump


def test_the_log_of_a_killed_server_is_durable_before_its_mark_goes(sound: Path) -> None:
    store = Store(sound)
    store.add(b"s", "9000-0")
    store.commit()
    store.kill()
    mark = sound / STATE_DIRECTORY / MARK_NAME
    assert mark.exists()
    synced = set()

    class Watched(OsFiles):
        def sync(self, fd: int, /) -> None:
            super().sync(fd)
            if mark.exists():
                synced.add(os.fstat(fd).st_ino)

    with Repair(sound, Replayer().execute, now_ms=1, files=Watched()):
        assert not mark.exists()
    assert {path.stat().st_ino for path in (sound / LOG_DIRECTORY).glob("*.aof")} <= synced


# -- the tail ----------------------------------------------------------------------------------------------------------


def test_nothing_is_done_to_a_sound_store(sound: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sound.rglob("*.aof")}
    assert mend(sound) == []
    assert {path: path.stat().st_mtime_ns for path in sound.rglob("*.aof")} == before
    assert not (sound / "replaced").exists()


def test_a_torn_tail_is_cut_and_kept(sound: Path) -> None:
    before = log_of(sound).read_bytes()
    tear(sound)
    (action,) = mend(sound)
    assert action.kept == sound / "replaced" / f"{log_of(sound).name}.from-{len(before)}"
    assert action.kept.read_bytes() == TORN
    assert log_of(sound).read_bytes() == before
    assert is_sound(sound)
    tear(sound)
    (again,) = mend(sound)
    assert again.kept == action.kept.with_name(f"{action.kept.name}-2")
    assert mend(sound) == []


def test_a_tail_that_the_tables_cover_is_not_cut(sound: Path) -> None:
    log = log_of(sound)
    flip(log, log.stat().st_size - 30)
    data = log.read_bytes()
    with pytest.raises(RepairError, match=r"the log is broken .* below byte .* which a checkpoint covers"):
        mend(sound)
    assert log.read_bytes() == data


# -- the tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        do.delete("pel_by_time"),
        do.stream(length=3),
        do.empty("groups"),
        do.empty("meta"),
        set_meta(b"position", 1, 100),
        set_meta(b"replication", 0, "x"),
    ],
)
def test_broken_tables_are_made_anew_of_the_log(sound: Path, how: Damage) -> None:
    before = contents(sound)
    damage(sound, how)
    (action,) = mend(sound)
    assert action.kept == sound / "replaced" / "state"
    assert (action.kept / "data.mdb").exists()
    assert is_sound(sound)
    assert contents(sound) == before
    assert mend(sound) == []


@pytest.mark.parametrize("is_torn", [False, True])
@pytest.mark.parametrize("load_truncated", [False, True])
def test_a_start_cuts_a_torn_tail_beside_broken_tables_only_if_it_may(
    sound: Path, is_torn: bool, load_truncated: bool
) -> None:
    if is_torn:
        tear(sound)
    damage(sound, do.empty("groups"))
    before = log_of(sound).read_bytes()
    actions: list[Action] = []
    was_mended = mend_tables(sound, Replayer().execute, now_ms=1, load_truncated=load_truncated, acted=actions.append)
    if is_torn and not load_truncated:
        assert not was_mended
        assert actions == []
        assert log_of(sound).read_bytes() == before
        assert not (sound / "replaced").exists()
    else:
        assert was_mended
        assert len(actions) == 1 + is_torn
        assert is_sound(sound)


def test_pages_that_are_none_are_made_anew(sound: Path) -> None:
    before = contents(sound)
    data = sound / "state" / "data.mdb"
    for bad in (b"", bytes(data.stat().st_size), data.read_bytes()[:9000]):
        data.write_bytes(bad or b"x")
        assert len(mend(sound)) == 1
        assert is_sound(sound)
    assert contents(sound) == before
    assert sorted(os.listdir(sound / "replaced")) == ["state", "state-2", "state-3"]


def test_what_only_the_log_can_tell_is_mended_when_it_was_looked_for(sound: Path) -> None:
    store = Store(sound)
    store.run("XDEL", "s", "5-0")
    store.txn.log.clear()
    store.engine.checkpoint()
    store.engine.close()
    assert mend(sound) == []
    (action,) = mend(sound, is_deep=True)
    assert "made the tables again" in action.done
    assert is_sound(sound)


def test_what_came_after_the_last_checkpoint_is_in_the_new_tables(sound: Path) -> None:
    store = Store(sound)
    store.add(b"u", "1-0")
    store.commit()
    store.kill()
    tear(sound)
    damage(sound, do.stream(length=3))
    cut, made = mend(sound)
    assert ("cut" in cut.done, "made the tables again" in made.done) == (True, True)
    assert is_sound(sound)
    store = Store(sound)
    assert store.engine.recovery.commands == 0
    assert store.stream(b"u").length == 1
    store.engine.close()


def test_a_line_of_offsets_goes_on(sound: Path) -> None:
    damage(sound, do.stream(length=3))
    mend(sound)
    store = Store(sound)
    line = store.engine.log.replids
    assert line.branch_offset == store.engine.log.end.offset
    store.engine.close()


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_lost_log_is_made_of_the_tables(sound: Path) -> None:
    before = contents(sound)
    shutil.rmtree(sound / LOG_DIRECTORY)
    (action,) = mend(sound)
    assert "made a new log" in action.done
    assert is_sound(sound)
    assert contents(sound) == before


@pytest.mark.needs_root
def test_what_root_mends_stays_its_owners(sound: Path) -> None:
    for path in (sound, *sound.rglob("*")):
        os.chown(path, 65534, 65534)
    damage(sound, do.stream(length=3))
    mend(sound)
    assert {path.stat().st_uid for path in (sound / "state").rglob("*")} == {65534}
    shutil.rmtree(sound / LOG_DIRECTORY)
    mend(sound)
    assert {path.stat().st_uid for path in sound.rglob("*")} == {65534}


def test_a_lost_log_beside_broken_tables_is_refused(sound: Path) -> None:
    shutil.rmtree(sound / LOG_DIRECTORY)
    damage(sound, do.stream(length=3))
    with pytest.raises(RepairError, match="both halves are broken"):
        mend(sound)
    assert not (sound / LOG_DIRECTORY).exists()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["middle", "manifest", "no manifest", "older"])
def test_a_log_that_is_damaged_is_left_alone_and_the_way_out_is_said(sound: Path, what: str) -> None:
    log = log_of(sound)
    manifest = next((sound / LOG_DIRECTORY).glob("*.manifest"))
    if what == "middle":
        flip(log, 500)
    elif what == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-9])
    elif what == "no manifest":
        manifest.unlink()
    else:
        data = log.read_bytes()
        log.write_bytes(data[: data.rindex(b"#CK")])
    files = {path: path.read_bytes() for path in (sound / LOG_DIRECTORY).iterdir()}
    with pytest.raises(
        RepairError, match=r"move .*appendonlydir away and run `riverbed check --repair .*`; or restore"
    ):
        mend(sound)
    assert {path: path.read_bytes() for path in (sound / LOG_DIRECTORY).iterdir()} == files
    (sound / LOG_DIRECTORY).rename(sound / "damaged")
    assert len(mend(sound)) == 1
    assert is_sound(sound)


def test_both_halves_broken_is_refused(sound: Path) -> None:
    flip(log_of(sound), 500)
    damage(sound, do.stream(length=3))
    with pytest.raises(RepairError, match="both halves are broken"):
        mend(sound)


def test_a_broken_log_without_tables_is_refused(sound: Path) -> None:
    flip(log_of(sound), 500)
    shutil.rmtree(sound / "state")
    with pytest.raises(RepairError, match="there are no tables: restore a snapshot"):
        mend(sound)


@pytest.mark.parametrize("how", [do.stream(length=3), None])
def test_tables_ahead_of_the_log_are_not_made_anew_of_it(sound: Path, how: Damage | None) -> None:
    damage(sound, set_meta(b"position", 2, 1 << 40))
    with pytest.raises(RepairError, match=r"move .*state away; with the tables' state, move .*appendonlydir away"):
        mend(sound)
    if how is not None:
        damage(sound, how)
        with pytest.raises(RepairError, match=r"cover replication offset 1099511627776, .*state away$"):
            mend(sound)
    (sound / "state").rename(sound / "given-up")
    assert mend(sound) == []
    store = Store(sound)
    assert store.stream().length == 10
    store.engine.close()


def test_a_directory_in_use_is_refused(sound: Path) -> None:
    tear(sound)
    with lock_directory(sound), pytest.raises(LockedError):
        mend(sound)
    assert log_of(sound).read_bytes().endswith(TORN)


def test_space_is_asked_for_before_anything_is_changed(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tear(sound)
    damage(sound, do.stream(length=3))
    monkeypatch.setattr("riverbed.store.disk.files.OsFiles.free_bytes", lambda self, path: 1000)
    plans: list[ReplayPlan] = []
    with Repair(sound, Replayer().execute, now_ms=1, announce=plans.append) as repair:
        found = Check(sound, is_held=True)
        with pytest.raises(SpaceError, match="1,000 bytes free"):
            repair.mend(found, list(found.violations()))
    assert plans[0].free_bytes == 1000
    assert log_of(sound).read_bytes().endswith(TORN)
    assert not (sound / "replaced").exists()


# -- kills -------------------------------------------------------------------------------------------------------------


def test_what_the_process_of_a_killed_server_still_makes_in_its_place_is_not_in_the_way(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, names = os.rmdir, iter(("lock.mdb",))

    def rmdir(path: str, *, dir_fd: int | None = None) -> None:
        for name in names:
            (sound / "repair" / "state" / name).touch()
        remove(path, dir_fd=dir_fd)

    damage(sound, do.stream(length=3))
    (sound / "repair" / "state").mkdir(parents=True)
    monkeypatch.setattr(os, "rmdir", rmdir)
    mend(sound)
    assert next(names, None) is None
    assert is_sound(sound)


def test_a_repair_that_is_killed_anywhere_is_ended_by_the_next_one(sound: Path, reaper: Reaper) -> None:
    """Tail and tables at once.  Whenever it is stopped, a server would start on what is there, or it is as it was."""
    before = contents(sound)
    tear(sound)
    damage(sound, do.stream(length=3))
    broken = Path(shutil.copytree(sound, sound.parent / "broken"))
    step = 0
    while True:
        shutil.rmtree(sound)
        shutil.copytree(broken, sound)
        if not reaper.repair(sound, step):
            break
        kept = [path.read_bytes() for path in (sound / "replaced").glob("*.from-*") if path.suffix != ".partial"]
        assert log_of(sound).read_bytes().endswith(TORN) or kept == [TORN], step
        assert violations(sound) == [] or (sound / "state").exists(), step
        mend(sound)
        found = Check(sound)
        assert list(found.violations()) == [], step
        assert found.torn_tail is None
        assert TORN in [path.read_bytes() for path in (sound / "replaced").glob("*.from-*")], step
        assert list((sound / "replaced").glob("state*")), step
        assert not (sound / "repair").exists()
        step += 3
    assert step > 15
    assert is_sound(sound)
    assert contents(sound) == before
    assert list(check(sound)) == []
