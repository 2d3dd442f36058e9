from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riverbed.store.check import check
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import NoSnapshotError, SnapshotError
from riverbed.store.format.streams import entry_key
from riverbed.store.ids import StreamID
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, STREAMS_NAME
from riverbed.store.snapshot.manifest import encode_manifest
from riverbed.store.snapshot.reader import Snapshot, list_snapshots, open_snapshot
from riverbed.store.snapshot.writer import WORKING_PREFIX, delete_old, delete_snapshot, take_snapshot
from riverbed.store.tables.environment import Tables
from tests.support.store.dying import Reaper
from tests.support.store.stores import Store, dump_database, sid

OpenStore = Callable[..., Store]
MANY = 4000


def freeze(store: Store, out: Path | None = None, keep: int = 0, **options: Any) -> Snapshot:
    """A snapshot of the last checkpoint.  LMDB opens a file once in a process, so the store is closed meanwhile."""
    store.commit()
    store.engine.close(save=True)
    try:
        snapshot = take_snapshot(store.directory, out, program="test", **options)
        if keep:
            delete_old(snapshot, keep, store.directory)
        return snapshot
    finally:
        store.open()


def contents(snapshot: Snapshot, tmp_path: Path) -> dict[int, dict[bytes, object]]:
    """What clients would see in the tables of a snapshot."""
    place = tmp_path / "thawed"
    (place / "state").mkdir(parents=True)
    (place / "state" / DATA_NAME).write_bytes((snapshot.path / DATA_NAME).read_bytes())
    tables = Tables(place, 1 << 28)
    txn = WriteTxn(tables)
    found = {db.number: dump_database(db) for db in txn.databases if db.size}
    txn.abort()
    tables.close()
    return found


def names(folder: Path) -> list[str]:
    return [snapshot.name for snapshot in list_snapshots(folder)]


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_a_snapshot_holds_what_the_store_holds(store: Store, tmp_path: Path) -> None:
    store.fill(b"s", 50)
    store.fill(b"\xff\x00", 3, db=3)
    store.deliver(b"s", 20)
    store.run("XDEL", "s", "10-0", "11-0")
    snapshot = freeze(store)
    assert contents(snapshot, tmp_path) == store.dump()
    assert snapshot.manifest.offset == store.engine.log.end.offset
    snapshot.verify()


def test_each_stream_is_told_with_its_edges_and_counters(store: Store) -> None:
    store.fill(b"s", 50)
    store.fill(b"empty", 1)
    store.run("XDEL", "s", "50-0", "1-0")
    store.run("XDEL", "empty", "1-0")
    store.run("PEXPIREAT", "s", 1 << 50)
    store.deliver(b"s", 1)
    stream, empty = freeze(store).streams()
    assert (stream.key, stream.db, stream.length, stream.groups, stream.expire_ms) == (b"s", 0, 48, 1, 1 << 50)
    assert (stream.first_id, stream.last_live_id, stream.last_id) == (sid("2-0"), sid("49-0"), sid("50-0"))
    assert (stream.max_deleted_id, stream.entries_added) == (sid("50-0"), 50)
    assert (empty.length, empty.first_id, empty.parts, empty.entries_added) == (0, 0, (), 1)


def test_streams_of_all_databases_are_in_the_order_of_their_numbers(store: Store) -> None:
    for number in range(60):
        store.fill(b"k%d" % (number % 7), 1, db=number % 16)
    found = [stream.stream_no for stream in freeze(store).streams()]
    assert found == sorted(found)
    assert len(found) == len(store.dump()) * 7 - sum(7 - len(keys) for keys in store.dump().values())


def test_a_store_without_streams_has_a_snapshot_as_well(store: Store) -> None:
    store.fill(b"s", 1)
    store.run("DEL", "s")
    snapshot = freeze(store)
    assert (list(snapshot.streams()), snapshot.manifest.streams, snapshot.manifest.entries) == ([], 0, 0)


def test_long_keys_are_told_whole(store: Store) -> None:
    store.fill(b"k" * 3000, 2)
    assert [stream.key for stream in freeze(store).streams()] == [b"k" * 3000]


# -- parts -------------------------------------------------------------------------------------------------------------


def rows_of(snapshot: Snapshot, low: bytes, high: bytes) -> int:
    tables = snapshot.open_tables()
    with tables.env.begin(db=tables.handles["entries"]) as txn:
        cursor = txn.cursor()
        count = 0
        if cursor.set_range(low):
            for key in cursor.iternext(values=False):
                if key >= high:
                    break
                count += 1
    tables.close()
    return count


def check_parts(snapshot: Snapshot) -> None:
    """Parts lose nothing, repeat nothing, and count right."""
    for stream in snapshot.streams():
        assert sum(part.entries for part in stream.parts) == stream.length
        starts = [part.first_id for part in stream.parts]
        assert starts == sorted(set(starts))
        if not stream.parts:
            continue
        assert starts[0] == stream.first_id
        ends = [*starts[1:], StreamID(stream.last_live_id + 1)]
        for part, end in zip(stream.parts, ends, strict=True):
            low, high = entry_key(stream.stream_no, part.first_id), entry_key(stream.stream_no, end)
            assert rows_of(snapshot, low, high) == part.entries


@pytest.mark.parametrize("split_every", [1, 4, 7, 50, 10_000])
def test_parts_of_a_stream_lose_and_repeat_nothing(store: Store, split_every: int) -> None:
    store.fill(b"s", 101)
    snapshot = freeze(store, split_every=split_every)
    check_parts(snapshot)
    (stream,) = snapshot.streams()
    assert all(part.entries >= min(split_every, 101) for part in stream.parts[:-1])
    assert all(part.entries < split_every + 4 for part in stream.parts)


@pytest.mark.parametrize("seed", range(12))
def test_parts_are_right_after_any_deletions_and_trims(open_store: OpenStore, seed: int) -> None:
    store = open_store(node_max_entries=4)
    chosen = random.Random(seed)
    for key in (b"a", b"b", b"c"):
        store.fill(key, 60)
    for _ in range(60):
        key = chosen.choice(["a", "b", "c"])
        match chosen.randrange(5):
            case 0:
                store.run("XTRIM", key, "MAXLEN", "=", chosen.randrange(30, 61))
            case 1:
                store.run("XTRIM", key, "MINID", "~", f"{chosen.randrange(30)}-0")
            case _:
                store.run("XDEL", key, *(f"{chosen.randrange(1, 61)}-0" for _ in range(5)))
    check_parts(freeze(store, split_every=chosen.randrange(1, 9)))


# -- where it goes -----------------------------------------------------------------------------------------------------


def test_without_a_name_it_goes_to_the_stores_own_folder_under_time_and_offset(store: Store) -> None:
    store.fill(b"s", 1)
    snapshot = freeze(store)
    assert snapshot.path.parent == store.directory / "snapshots"
    assert snapshot.name.endswith(f"Z-{snapshot.manifest.offset}")
    assert snapshot.manifest.is_automatic


def test_two_within_a_second_have_two_names(store: Store) -> None:
    store.fill(b"s", 1)
    assert len({freeze(store).name for _ in range(4)}) == 4


@pytest.mark.needs_root
def test_what_root_puts_into_the_stores_own_folder_is_its_owners(store: Store) -> None:
    os.chown(store.directory, 65534, 65534)
    first, second = freeze(store), freeze(store)
    made = (first.path.parent, first.path, second.path, *first.path.iterdir())
    assert {path.stat().st_uid for path in made} == {65534}


def test_a_folder_that_exists_gets_it_under_such_a_name(store: Store, tmp_path: Path) -> None:
    store.fill(b"s", 1)
    (tmp_path / "folder").mkdir()
    snapshot = freeze(store, tmp_path / "folder")
    assert (snapshot.path.parent, snapshot.manifest.is_automatic) == (tmp_path / "folder", True)


def test_a_name_that_is_free_is_taken(store: Store, tmp_path: Path) -> None:
    store.fill(b"s", 1)
    snapshot = freeze(store, tmp_path / "new" / "monday")
    assert (snapshot.path, snapshot.manifest.is_automatic) == (tmp_path / "new" / "monday", False)


def test_nothing_is_written_over(store: Store, tmp_path: Path) -> None:
    store.fill(b"s", 1)
    freeze(store, tmp_path / "monday")
    (tmp_path / "file").write_text("precious")
    for name in ("monday", "file"):
        with pytest.raises(SnapshotError, match="exists already"):
            freeze(store, tmp_path / name)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("out", ["", "state", "state/new", "other/new", "snapshots/../new"])
def test_nothing_is_put_among_the_files_of_the_store(store: Store, out: str) -> None:
    store.fill(b"s", 1)
    freeze(store)
    before = sorted(store.directory.rglob("*"))
    with pytest.raises(SnapshotError, match=r"is in the data directory itself|exists already"):
        freeze(store, store.directory / out)
    assert sorted(store.directory.rglob("*")) == before
    assert freeze(store, store.directory / "snapshots" / "monday").path.exists()


# -- what cannot be frozen ---------------------------------------------------------------------------------------------


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="is not a directory"):
        take_snapshot(tmp_path / "none", program="test")


def test_a_directory_without_tables_is_said(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="holds no tables yet"):
        take_snapshot(tmp_path, program="test")


def test_a_store_that_was_never_checkpointed_is_said(open_store: OpenStore) -> None:
    store = open_store()
    store.kill()
    try:
        with pytest.raises(SnapshotError, match="never checkpointed"):
            take_snapshot(store.directory, program="test")
    finally:
        store.open()


# -- what goes wrong on the way ----------------------------------------------------------------------------------------


class ShortOfSpace(OsFiles):
    """A disk that is full after `room` bytes more."""

    def __init__(self, room: int, *, tells: bool = False) -> None:
        self.room = room
        self.tells = tells

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        if self.room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return os.pwrite(fd, data, position)

    def free_bytes(self, path: Path, /) -> int:
        return self.room if self.tells else 1 << 40


def test_a_disk_that_is_known_to_be_too_small_is_not_even_begun_to_be_filled(store: Store) -> None:
    store.fill(b"s", 100)
    with pytest.raises(SnapshotError, match=r"not enough space in .*: .* bytes are needed, 10,000 are free"):
        freeze(store, files=ShortOfSpace(10_000, tells=True))
    with pytest.raises(SnapshotError, match="and 5,000,000 must be left"):
        freeze(store, files=ShortOfSpace(6_000_000, tells=True), leave_bytes=5_000_000)
    assert not (store.directory / "snapshots").exists()


def test_half_a_snapshot_that_fills_the_disk_makes_way_for_another(store: Store) -> None:
    store.fill(b"s", 100)
    half = store.directory / "snapshots" / f"{WORKING_PREFIX}dead"
    half.mkdir(parents=True)

    class Filled(OsFiles):
        def free_bytes(self, path: Path, /) -> int:
            return 10_000 if half.exists() else 1 << 40

    assert freeze(store, files=Filled()).path.exists()


@pytest.mark.parametrize("room", [0, 10_000, 200_000])
def test_a_disk_that_fills_up_leaves_nothing_behind(store: Store, room: int) -> None:
    store.fill(b"s", MANY)
    with pytest.raises(OSError, match="No space left"):
        freeze(store, files=ShortOfSpace(room))
    assert list((store.directory / "snapshots").iterdir()) == []


def test_every_file_that_does_not_fit_leaves_nothing_behind(store: Store) -> None:
    store.fill(b"s", 10)
    whole = freeze(store)
    sizes = [(whole.path / name).stat().st_size for name in (DATA_NAME, STREAMS_NAME, MANIFEST_NAME)]
    for room in (sizes[0] - 1, sum(sizes[:2]) - 1, sum(sizes) - 1):
        with pytest.raises(OSError, match="No space left"):
            freeze(store, files=ShortOfSpace(room))
    assert [path.name for path in whole.path.parent.iterdir()] == [whole.name]


def test_an_interrupt_leaves_nothing_behind(store: Store) -> None:
    store.fill(b"s", MANY)

    def interrupt(step: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        freeze(store, steps=interrupt)
    assert list((store.directory / "snapshots").iterdir()) == []


def test_steps_are_told_up_to_the_end(store: Store) -> None:
    store.fill(b"s", MANY)
    store.fill(b"t", 1)
    told: list[tuple[str, int, int]] = []
    snapshot = freeze(store, steps=lambda *step: told.append(step))
    assert told[-1] == ("listing streams", 2, 2)
    copying = [done for step, done, total in told if step == "copying"]
    assert copying == sorted(copying)
    assert copying[-1] == snapshot.manifest.data_file.size
    assert all(done <= total for _, done, total in told)


# -- kills -------------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
from riverbed.store.snapshot.writer import WORKING_PREFIX, delete_old, take_snapshot
while True:
    made = take_snapshot(Path(sys.argv[1]), program="test")
    delete_old(made, 2, Path(sys.argv[1]))
    print("one", flush=True)
"""


@pytest.fixture
def maker(store: Store) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a process that takes snapshots without end."""
    store.fill(b"s", MANY)
    store.commit()
    store.engine.close()
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        root = Path(__file__).parents[3]
        command = [sys.executable, "-c", CHILD, str(store.directory)]
        started.append(subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
    store.open()


def test_a_kill_at_any_moment_leaves_only_whole_snapshots(
    store: Store, maker: Callable[[], subprocess.Popen[bytes]]
) -> None:
    folder = store.directory / "snapshots"
    chosen = random.Random(5)
    left_behind = 0
    for _ in range(12):
        process = maker()
        assert process.stdout is not None
        process.stdout.readline()  # it is at work
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(chosen.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for path in folder.iterdir():
            if path.name.startswith(".temp-snapshot-"):
                left_behind += 1
                continue
            assert open_snapshot(path, verify=True).manifest.entries == MANY
        assert 1 <= len(names(folder)) <= 3
    assert left_behind
    delete_old(take_snapshot(store.directory, program="test"), 1, store.directory)
    assert [path.name for path in folder.iterdir()] == names(folder)
    assert len(names(folder)) == 1


def test_a_stop_before_any_step_leaves_a_whole_snapshot_or_none(store: Store) -> None:
    store.fill(b"s", 300)
    store.checkpoint()
    store.engine.close()
    folder = store.directory / "snapshots"
    step = made = 0
    try:
        with Reaper() as reaper:
            while True:
                is_stopped = reaper.snapshot(store.directory, step=step)
                found = list(folder.iterdir()) if folder.exists() else []
                for path in found:
                    if path.name.startswith(".temp-") and not (path / MANIFEST_NAME).exists():
                        with pytest.raises(NoSnapshotError):
                            open_snapshot(path)
                assert names(folder) == [path.name for path in found if not path.name.startswith(".temp-")]
                for whole in list_snapshots(folder):
                    whole.verify()
                    assert whole.manifest.entries == 300
                    made += 1
                shutil.rmtree(folder, ignore_errors=True)
                step += 1
                if not is_stopped:
                    break
    finally:
        store.open()
    assert step > 10
    assert 1 <= made <= 5, "it has its name at the end, and then stands for what is whole"


def test_a_half_made_one_is_none_wherever_it_was_cut(store: Store, tmp_path: Path) -> None:
    """Files as a kill leaves them, but under a final name: as a copy that was broken off would be."""
    store.fill(b"s", 10)
    whole = freeze(store)
    order = (DATA_NAME, STREAMS_NAME, MANIFEST_NAME)
    for number, name in enumerate(order):
        data = (whole.path / name).read_bytes()
        for size in (0, 1, len(data) // 2, len(data) - 1):
            cut = tmp_path / "cut" / f"{number}-{size}"
            cut.mkdir(parents=True, exist_ok=True)
            for before in order[:number]:
                (cut / before).write_bytes((whole.path / before).read_bytes())
            (cut / name).write_bytes(data[:size])
            with pytest.raises(Exception, match=r"never finished|is not a snapshot"):
                open_snapshot(cut)
    assert names(tmp_path / "cut") == []


# -- retention ---------------------------------------------------------------------------------------------------------


def test_only_the_newest_are_kept(store: Store) -> None:
    folder = store.directory / "snapshots"
    made = []
    for number in range(5):
        store.fill(b"%d" % number, 1)
        made.append(freeze(store, keep=3).name)
    assert names(folder) == made[2:]


def test_what_people_have_named_stays_and_does_not_count(store: Store) -> None:
    folder = store.directory / "snapshots"
    store.fill(b"s", 1)
    freeze(store, folder / "before-upgrade")
    first = freeze(store)
    last = freeze(store, keep=1)
    assert sorted(names(folder)) == sorted(["before-upgrade", last.name])
    assert not first.path.exists()


def test_unfinished_and_foreign_ones_stay(store: Store) -> None:
    folder = store.directory / "snapshots"
    store.fill(b"s", 1)
    for name in ("20200101T000000Z-1", "notes"):
        (folder / name).mkdir(parents=True)
        (folder / name / "data.mdb").write_bytes(b"")
    freeze(store, keep=1)
    assert (folder / "20200101T000000Z-1").exists()
    assert (folder / "notes").exists()


def test_the_one_just_made_stays_when_the_clock_was_set_back(store: Store) -> None:
    store.fill(b"s", 1)
    earlier = [freeze(store) for _ in range(3)]
    for number, snapshot in enumerate(earlier):
        tomorrow = replace(snapshot.manifest, time_ms=snapshot.manifest.time_ms + 86_400_000 + number)
        (snapshot.path / MANIFEST_NAME).write_bytes(encode_manifest(tomorrow))
    made = freeze(store)
    assert delete_old(made, 2, store.directory) == [snapshot.name for snapshot in earlier[:2]]
    assert set(names(made.path.parent)) == {earlier[2].name, made.name}
    assert delete_old(made, 5, store.directory) == []


def test_another_stores_snapshots_in_the_same_folder_stay(open_store: OpenStore, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    stores = [open_store(), open_store()]
    for store in stores * 2:
        store.fill(b"t" if store.dump() else b"s", 1)
        freeze(store, folder, keep=1)
    sources = [snapshot.manifest.source for snapshot in list_snapshots(folder)]
    assert len(sources) == len(set(sources)) == 2


@pytest.mark.parametrize("is_own", [True, False])
def test_those_that_were_renamed_and_those_of_a_store_that_was_there_before_stay(
    open_store: OpenStore, tmp_path: Path, is_own: bool
) -> None:
    store = open_store()
    store.fill(b"s", 1)
    folder = None if is_own else tmp_path / "backup"
    if folder is not None:
        folder.mkdir()
    kept, former, old = (freeze(store, *([] if folder is None else [folder])) for _ in range(3))
    kept.path.rename(kept.path.with_name("keep-me"))
    other = replace(former.manifest, store_id="7" * 40)
    (former.path / MANIFEST_NAME).write_bytes(encode_manifest(other))
    newest = freeze(store, *([] if folder is None else [folder]))
    assert delete_old(newest, 1, store.directory) == [old.name]
    assert set(names(newest.path.parent)) == {"keep-me", former.name, newest.name}


def test_a_stores_own_folder_is_its_own_wherever_it_was_moved(store: Store) -> None:
    store.fill(b"s", 1)
    snapshot = freeze(store)
    elsewhere = encode_manifest(replace(snapshot.manifest, source="other:/place"))
    (snapshot.path / MANIFEST_NAME).write_bytes(elsewhere)
    newest = freeze(store)
    assert delete_old(newest, 1, store.directory) == [snapshot.name]
    assert names(snapshot.path.parent) == [newest.name]


def test_a_deleted_snapshot_is_gone_in_one_step_and_readers_read_on(store: Store) -> None:
    store.fill(b"s", 30)
    snapshot = freeze(store)
    tables = snapshot.open_tables()
    with tables.env.begin(db=tables.handles["entries"]) as txn:
        delete_snapshot(snapshot)
        with pytest.raises(NoSnapshotError):
            open_snapshot(snapshot.path)
        assert txn.stat(tables.handles["entries"])["entries"] == 30
        assert sum(1 for _ in txn.cursor()) == 30
    tables.close()
    assert list(snapshot.path.parent.iterdir()) == []


def test_the_copy_is_a_sound_store(store: Store, tmp_path: Path) -> None:
    store.fill(b"s", 200)
    store.deliver(b"s", 50)
    snapshot = freeze(store)
    contents(snapshot, tmp_path)
    found = [str(violation) for violation in check(tmp_path / "thawed")]
    assert [line for line in found if not line.startswith("log")] == []
