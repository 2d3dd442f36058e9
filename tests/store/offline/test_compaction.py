from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import check
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import LockedError, StoreError
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST, STATE_DIRECTORY
from riverbed.store.log.padding import LINE_BYTES, padding
from riverbed.store.offline import compaction as compaction_module
from riverbed.store.offline.compaction import Compaction, Plan, Report
from riverbed.store.offline.retention import NO_RETENTION, Retention
from tests.support.faults.disks import fill_up, small_tmpfs
from tests.support.read_log import manifest_of
from tests.support.scripts.random_commands import run_at_random
from tests.support.store.busy import busy
from tests.support.store.stores import Store, begin_file, sid


def compacted(store: Store, **options: Any) -> tuple[Plan, Report]:
    """Close, compact, open again; -> what was expected of it, and what came of it."""
    store.commit()
    store.engine.close()
    try:
        with Compaction(store.directory, Replayer().execute, now_ms=store.clock.now_ms, **options) as compaction:
            plan = compaction.plan()
            report = compaction.run()
        assert report.work_bytes <= plan.needed_bytes
        assert [str(violation) for violation in check(store.directory)] == []
        assert os.listdir(store.directory / "state") == ["data.mdb"]  # the check has made no lock file
        assert set(os.listdir(store.directory / LOG_DIRECTORY)) == {LOG_MANIFEST, *listed(store)}
    finally:
        store.open()
    return plan, report


def assert_the_log_says_the_same(store: Store) -> None:
    held = store.dump()
    store.rebuild()
    assert store.dump() == held


def listed(store: Store) -> list[str]:
    """The files of the log after a compaction: a base, an incr, and what replicas may ask for."""
    manifest = manifest_of(store.directory)
    assert (manifest.base is not None, len(manifest.incrs), manifest.history) == (True, 1, manifest.backlog)
    return [file.name for file in (*manifest.files, *manifest.backlog)]


def replids(store: Store) -> Any:
    return manifest_of(store.directory).replids


def test_the_end_of_the_log_is_kept_for_replicas(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 5):
        store.add(b"s", f"{number}-0", words=(b"f", bytes(1000)))
        store.commit()
        begin_file(store.engine)
    offset, (*closed, _) = store.engine.log.end.offset, manifest_of(store.directory).incrs
    store.add(b"s", "9-0")
    _, report = compacted(store)
    kept = manifest_of(store.directory).backlog
    assert [file.name for file in kept][:4] == [file.name for file in closed]
    assert kept[-2].end_offset == kept[-1].start_offset == offset < kept[-1].end_offset
    assert kept[-1].end_offset == manifest_of(store.directory).incrs[0].start_offset
    assert report.backlog_bytes == sum(file.size for file in kept) > 4000
    first = manifest_of(store.directory).incrs[0].name
    monkeypatch.setattr(compaction_module, "MAX_BACKLOG_BYTES", 3000)
    compacted(store)
    assert first not in listed(store), "nothing was written to it"
    assert [file.name for file in manifest_of(store.directory).backlog] == [
        closed[2].name,
        closed[3].name,
        kept[-1].name,
    ]


def test_what_is_kept_of_the_log_of_a_killed_server_is_as_long_as_the_manifest_says(store: Store) -> None:
    store.fill(b"s", 3)
    store.checkpoint()
    last = manifest_of(store.directory).incrs[-1].name
    end = store.engine.log.end.position
    store.kill()
    path = store.directory / LOG_DIRECTORY / last
    with path.open("ab") as file:
        file.write(padding(end, 8 * LINE_BYTES))
    with Compaction(store.directory, Replayer().execute, now_ms=1) as compaction:
        compaction.run()
    assert [(file.name, file.size) for file in manifest_of(store.directory).backlog] == [(last, end)]
    assert path.stat().st_size == end
    store.open()


def test_none_of_the_log_is_kept_that_leads_to_another_state(store: Store) -> None:
    store.fill(b"s", 10)
    _, report = compacted(store, keep=Retention(max_length=3))
    assert (report.trimmed_entries, report.backlog_bytes, manifest_of(store.directory).backlog) == (7, 0, ())


def test_a_replica_that_was_compacted_still_knows_the_database_its_primary_has_selected(store: Store) -> None:
    store.fill(b"s", 3)
    store.fill(b"t", 3, db=5)
    store.checkpoint()
    compacted(store)
    assert store.txn.log_db == 5


def test_what_nobody_can_reach_goes_and_the_rest_stays(store: Store) -> None:
    busy(store)
    store.checkpoint()
    before = store.dump()
    line, offset = replids(store), store.engine.log.end.offset
    plan, report = compacted(store)
    assert store.dump() == before
    assert store.count("trash") == 0
    assert not report.has_new_id
    assert report.state_bytes < plan.state_bytes
    assert report.log.bytes < plan.log.bytes
    assert all(size.rows <= plan.tables[table].rows for table, size in report.tables.items())
    assert report.entries == report.tables["entries"].rows < plan.tables["entries"].rows
    assert store.engine.log.end.offset == offset
    assert line is not None and replids(store).previous_id == line.replication_id
    assert_the_log_says_the_same(store)
    store.fill(b"after", 3)
    assert store.violations() == []


def test_every_commit_to_the_tables_in_use_waits_for_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may end a purge of the old tables, which stay; new tables count for nothing before they are whole."""
    waits: dict[str, set[bool]] = {}
    lmdb_open = lmdb.open

    def opened(path: str, **options: Any) -> Any:
        if not options["readonly"]:
            waits.setdefault(path, set()).add(options["sync"])
        return lmdb_open(path, **options)

    busy(store)
    store.engine.close()
    monkeypatch.setattr(lmdb, "open", opened)
    with Compaction(store.directory, Replayer().execute, now_ms=store.clock.now_ms) as compaction:
        compaction.run()
    monkeypatch.undo()
    store.open()
    assert waits.pop(str(store.directory / STATE_DIRECTORY)) == {True}
    assert False in set().union(*waits.values())


@pytest.mark.slow
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_random_states_stay_what_they_are(seed: int, killed: bool, purged: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="riverbed-compact-") as home:
        store = Store(Path(home), node_max_entries=4)
        for commands in run_at_random(store, seed, [25] * 6):
            if commands.chance(0.5):
                store.checkpoint()
        if purged:
            store.purge()
        store.checkpoint()
        store.fill(b"tail", 5, db=2)
        store.commit()
        before = store.dump()
        if killed:
            store.kill()
            store.open()
            store.kill()
            store.open()
        compacted(store, keep_expired=True)
        assert store.dump() == before
        assert_the_log_says_the_same(store)
        assert store.violations() == []
        store.engine.close()


def test_what_the_last_checkpoint_lacks_is_executed(store: Store) -> None:
    store.fill(b"s", 10)
    store.checkpoint()
    store.add(b"s", "11-0")
    store.run("XDEL", "s", "1-0")
    store.commit()
    before = store.dump()
    store.kill()
    try:
        with Compaction(store.directory, Replayer().execute, now_ms=1) as compaction:
            plan = compaction.plan()
            assert plan.tail_bytes > 0
            compaction.run()
    finally:
        store.open()
    assert store.dump() == before
    assert_the_log_says_the_same(store)


def test_expired_keys_go_and_begin_a_new_line(store: Store) -> None:
    store.fill(b"s", 10)
    store.fill(b"kept", 10)
    store.db.set_expiry(store.stream(), store.clock.now_ms + 5)
    store.checkpoint()
    line = replids(store)
    store.clock.now_ms += 10
    plan, report = compacted(store)
    assert (report.expired, plan.expired, report.has_new_id) == (1, 1, True)
    assert list(store.dump()[0]) == [b"kept"]
    assert line.replication_id not in (replids(store).replication_id, replids(store).previous_id)
    assert replids(store).store_id == line.store_id
    assert_the_log_says_the_same(store)


def test_expired_keys_can_be_left_to_the_server(store: Store) -> None:
    store.fill(b"s", 10)
    store.db.set_expiry(store.stream(), store.clock.now_ms + 5)
    store.checkpoint()
    store.clock.now_ms += 10
    _, report = compacted(store, keep_expired=True)
    assert (report.expired, report.has_new_id) == (0, False)
    assert store.count("expiry") == 1


RETENTIONS = [
    Retention(max_length=17),
    Retention(max_length=0),
    Retention(min_id=sid("23-0")),
    Retention(min_id=sid("1990-0")),
    Retention(min_id=sid("99999-0")),
    Retention(min_id=sid("700-0"), max_length=1500),
    Retention(min_id=sid("700-0"), max_length=60),
    Retention(acked=True),
    Retention(acked=True, max_length=1900),
    Retention(acked=True, min_id=sid("60-0")),
    Retention(acked=True, min_id=sid("90-0"), max_length=1800),
    Retention(max_length=5, databases=frozenset((4,))),
    Retention(max_length=5, matches=lambda key: key == b"s"),
]


@pytest.mark.parametrize("number", range(len(RETENTIONS)))
@pytest.mark.parametrize("has_tail", [False, True])
def test_a_retention_drops_what_it_said_and_the_log_tells_of_it(store: Store, number: int, has_tail: bool) -> None:
    keep = RETENTIONS[number]
    busy(store)
    store.run("XDEL", "s", *(f"{at}-0" for at in (5, 6, 7, 8, 21, 22, 23, 24, 500, 698, 699, 1999)))
    store.checkpoint()
    copy = shutil.copytree(store.directory, store.directory.with_name("copy"))
    plan, report = compacted(store, keep=keep)
    assert abs(report.trimmed_entries - plan.trimmed_entries) <= 4 * max(plan.trimmed_streams, 1)
    assert report.has_new_id == (report.trimmed_entries > 0)
    assert_the_log_says_the_same(store)
    if has_tail:
        # the other way to the same end: nothing is left out of the copy
        other = Store(copy, node_max_entries=4)
        other.fill(b"x", 1, db=9)
        other.commit()
        other.kill()
        other.open()
        other.commit()
        other.kill()
        with Compaction(copy, Replayer().execute, now_ms=1, keep=keep) as compaction:
            compaction.run()
        other.open()
        del other.dump()[9]
        mine, others = store.dump(), other.dump()
        others.pop(9, None)
        assert mine == others
        other.engine.close()


def test_a_running_store_is_refused(store: Store) -> None:
    store.fill(b"s", 3)
    store.checkpoint()
    with pytest.raises(LockedError), Compaction(store.directory, Replayer().execute, now_ms=1):
        pass


def test_where_nothing_is_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no store"), Compaction(tmp_path, Replayer().execute, now_ms=1):
        pass
    with pytest.raises(StoreError, match="not a directory"), Compaction(tmp_path / "no", Replayer().execute, now_ms=1):
        pass


class Poor(OsFiles):
    """Less is free than is needed."""

    def free_bytes(self, path: Path, /) -> int:
        return 1000


def test_without_the_space_nothing_is_begun(store: Store) -> None:
    store.fill(b"s", 100)
    store.checkpoint()
    store.engine.close()
    before = contents(store.directory)
    with (
        Compaction(store.directory, Replayer().execute, now_ms=1, files=Poor()) as compaction,
        pytest.raises(StoreError, match="bytes are needed, 1,000 are free"),
    ):
        compaction.run()
    assert contents(store.directory) == before
    store.open()


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock.mdb"
    }


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty tmpfs."""
    with small_tmpfs(tmp_path / "disk", 48 << 20) as disk:
        yield disk


def large(disk: Path) -> Store:
    """Two megabytes of entries, half of them deleted."""
    store = Store(disk / "data", reserve_bytes=0)
    for number in range(1, 1500):
        store.add(b"s", f"{number}-0", words=(b"f", b"x" * 1000))
    store.fill(b"t", 20_000)
    store.deliver(b"t", 5000)
    store.run("XDEL", "t", *(f"{number}-0" for number in range(1, 20_000, 2)))
    store.checkpoint()
    return store


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("keep", "has_tail"), [(NO_RETENTION, False), (Retention(max_length=700), False), (NO_RETENTION, True)]
)
def test_no_more_space_is_taken_than_was_announced(disk: Path, keep: Retention, has_tail: bool) -> None:
    store = large(disk)
    if has_tail:
        store.run("XCLAIM", "t", "g", "Bob", "0", *(f"{number}-0" for number in range(2, 4000, 6)))
        store.fill(b"u", 3000)
        store.commit()
    store.engine.close(save=not has_tail)
    with Compaction(store.directory, Replayer().execute, now_ms=1, keep=keep) as compaction:
        plan = compaction.plan()
        needed = plan.needed_bytes
        assert needed < 30_000_000
        ballast = fill_up(disk, needed)
        report = compaction.run()
    ballast.unlink()
    assert (report.trimmed_entries > 0, plan.tail_bytes > 0) == (keep is not NO_RETENTION, has_tail)
    assert [str(violation) for violation in check(store.directory)] == []


@pytest.mark.needs_root
@pytest.mark.parametrize("keep", [NO_RETENTION, Retention(max_length=700)])
def test_a_full_disk_in_the_middle_leaves_the_old_store_untouched(disk: Path, keep: Retention) -> None:
    store = large(disk)
    held = store.dump()
    store.engine.close()
    before = contents(store.directory)
    failed = 0
    for free in range(100_000, 9_000_000, 400_000):
        ballast = fill_up(disk, free)
        with Compaction(store.directory, Replayer().execute, now_ms=1, keep=keep, files=Rich()) as compaction:
            try:
                compaction.run()
            except (OSError, lmdb.Error):
                failed += 1
                ballast.unlink()
                assert contents(store.directory) == before
            else:
                ballast.unlink()
                break
    assert failed >= 3
    store.open()
    assert (store.dump() == held) == (keep is NO_RETENTION)
    assert store.violations() == []
    store.engine.close()


@pytest.mark.slow
@pytest.mark.needs_root
def test_a_full_disk_while_dead_rows_are_purged_leaves_the_state_and_the_log(disk: Path) -> None:
    store = large(disk)
    store.fill(b"dead", 20_000)
    store.run("DEL", "dead")
    store.checkpoint()
    held = store.dump()
    store.engine.close()
    log = contents(store.directory / LOG_DIRECTORY)
    failed = 0
    for free in range(0, 9_000_000, 400_000):
        copy = shutil.copytree(store.directory, disk / "copy")
        ballast = fill_up(disk, free)
        with Compaction(copy, Replayer().execute, now_ms=1, files=Rich()) as compaction:
            try:
                compaction.run()
            except (OSError, lmdb.Error):
                failed += 1
                assert contents(copy / LOG_DIRECTORY) == log
        ballast.unlink()
        is_done = contents(copy / LOG_DIRECTORY) != log
        assert [str(violation) for violation in check(copy)] == []
        left = Store(copy, reserve_bytes=0)
        assert left.dump() == held
        left.engine.close()
        shutil.rmtree(copy)
        if is_done:
            break
    assert failed >= 3


class Rich(OsFiles):
    """Says that there is space, whether or not."""

    def free_bytes(self, path: Path, /) -> int:
        return 1 << 40
