from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from riverbed.store.snapshot.reader import Snapshot, open_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.arrow import open_store
from riverbed.tools.columns import fetch
from riverbed.tools.columns.fetch import BATCH_ROWS
from riverbed.tools.sidecar import segments
from riverbed.tools.sidecar.sidecar import ColumnsError, StreamColumns, fill_columns, stream_columns, write_columns
from tests.support.store.stores import Store, sid

KEY = b"orders"


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MAX_ENTRIES", 100)
    monkeypatch.setattr(segments, "_ROW_GROUP", 40)
    monkeypatch.setattr(segments, "_SMALL", ((10, 2), (40, 64)))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "data")
    add(store, 1, 251)
    yield store
    store.kill()


def add(store: Store, first: int, end: int, *more: bytes) -> None:
    for number in range(first, end):
        store.stream(KEY).append_entry(sid(f"{number}-1"), [b"n", b"%d" % number, b"raw", b"\xff", *more])


def frozen(store: Store, name: str) -> Snapshot:
    """A snapshot with columns, beside the others."""
    store.commit()
    store.engine.close()
    snapshot = take_snapshot(store.directory, store.directory.parent / name, program="test")
    store.open()
    write_columns(snapshot)
    return snapshot


def columns_of(snapshot: Snapshot, folder: Path | None = None) -> StreamColumns:
    return stream_columns(snapshot, 0, KEY, folder)


def rows_of(columns: StreamColumns) -> list[dict[str, Any]]:
    """The fields that each entry has, in the order of the files."""
    table = pa.concat_tables([pq.read_table(file, partitioning=None) for file in columns.files])
    rows = [dict(row.pop("_rest")) | row for row in table.to_pylist()]
    as_bytes = {str: str.encode, int: str, bytes: bytes}
    return [{name: as_bytes[type(value)](value) for name, value in row.items() if value is not None} for row in rows]


def require_right(snapshot: Snapshot, folder: Path) -> None:
    """The columns have the rows that columns made of this snapshot alone have."""
    folder.mkdir()
    fill_columns(snapshot, folder)
    assert rows_of(columns_of(snapshot)) == rows_of(columns_of(snapshot, folder))


def shared(one: Snapshot, other: Snapshot) -> list[bool]:
    """For each file of `other`, whether it is a file of `one`."""
    there = {file.stat().st_ino for file in columns_of(one).files}
    return [file.stat().st_ino in there for file in columns_of(other).files]


def test_a_snapshot_writes_what_is_new_and_takes_over_the_rest(store: Store, tmp_path: Path) -> None:
    first = frozen(store, "a")
    assert [pq.read_metadata(file).num_rows for file in columns_of(first).files] == [100, 100, 50]
    add(store, 251, 271)
    second = frozen(store, "b")
    assert shared(first, second) == [True, True, True, False]
    assert pq.read_metadata(columns_of(second).files[-1]).num_rows == 20
    third = frozen(store, "c")
    assert shared(second, third) == [True] * 4
    for snapshot in (first, second, third):
        require_right(snapshot, tmp_path / f"fresh-{snapshot.name}")


CHANGES: dict[str, tuple[Callable[[Store], object], list[bool]]] = {
    "an entry in the middle is deleted": (lambda store: store.run("XDEL", KEY, "150-1"), [True, False, True]),
    "the first entry of a file is deleted": (lambda store: store.run("XDEL", KEY, "101-1"), [True, False, True]),
    "the last entry of a file is deleted": (lambda store: store.run("XDEL", KEY, "100-1"), [False, True, True]),
    "the last entry is deleted": (lambda store: store.run("XDEL", KEY, "250-1"), [True, True, False]),
    "all entries of a file are deleted": (
        lambda store: store.run("XDEL", KEY, *[f"{number}-1" for number in range(101, 201)]),
        [True, True],
    ),
    "a trim ends in a file": (lambda store: store.run("XTRIM", KEY, "MINID", "50"), [False, True, True]),
    "a trim ends between files": (lambda store: store.run("XTRIM", KEY, "MINID", "101"), [True, True]),
    "two of three files are written again": (
        lambda store: store.run("XDEL", KEY, "20-1", "180-1"),
        [False, False, True],
    ),
    "a field that is new": (lambda store: add(store, 251, 270, b"new", b"1"), [False] * 3),
    "a value that is no text": (
        lambda store: store.stream(KEY).append_entry(sid("300-1"), [b"n", b"\xfe"]),
        [False] * 3,
    ),
    "a name that differs in case alone": (lambda store: add(store, 251, 270, b"N", b"\xfe"), [True] * 3 + [False]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_file_whose_range_has_changed_is_written_again(store: Store, tmp_path: Path, what: str) -> None:
    first = frozen(store, "a")
    change, expected = CHANGES[what]
    change(store)
    second = frozen(store, "b")
    assert shared(first, second) == expected
    for snapshot in (first, second):
        require_right(snapshot, tmp_path / f"fresh-{snapshot.name}")


def test_another_stream_with_the_same_key_and_ids_shares_only_equal_files(store: Store, tmp_path: Path) -> None:
    first = frozen(store, "a")
    store.run("DEL", KEY)
    add(store, 1, 150)
    store.stream(KEY).append_entry(sid("150-1"), [b"n", b"051", b"raw", b"\xff"])
    add(store, 151, 251)
    second = frozen(store, "b")
    assert shared(first, second) == [True, False, True]
    require_right(second, tmp_path / "fresh")


def files_of_hours(store: Store, more: int) -> list[list[int]]:
    """The entries of each file of seven snapshots, before each but the first of which the stream got so many `more`."""
    found = []
    for hour in range(7):
        files = columns_of(frozen(store, f"s{hour}")).files
        found.append([pq.read_metadata(file).num_rows for file in files])
        add(store, 251 + hour * more, 251 + (hour + 1) * more)
    return found


def test_long_rows_are_in_short_groups_that_are_read_one_by_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who writes columns nor who reads them has many long rows in memory."""
    monkeypatch.setattr(segments, "_ROW_GROUP", 1000)
    monkeypatch.setattr(segments, "_ROW_GROUP_BYTES", 20_000)
    monkeypatch.setattr(fetch, "_MAX_BATCH_BYTES", 8_000)
    add(store, 251, 301, b"long", b"x" * 3000)
    snapshot = frozen(store, "a")
    sizes = []
    for path in columns_of(snapshot).files:
        with pq.ParquetFile(path) as file:
            sizes += [file.read_row_group(number).nbytes for number in range(file.num_row_groups)]
    assert len(sizes) > 50 * 3000 // 30_000
    assert max(sizes) < 30_000
    with open_store(snapshot.path) as opened:
        batches = list(opened.reader(KEY, columns={"long": pa.binary()}))
    assert sum(batch.num_rows for batch in batches) == 300
    assert max(batch.nbytes for batch in batches) < 30_000
    require_right(snapshot, tmp_path / "alone")


def test_few_short_files_stay_and_more_become_one_with_what_is_new(store: Store, tmp_path: Path) -> None:
    old = [100, 100, 50]
    assert files_of_hours(store, 3) == [
        old,
        [*old, 3],
        [*old, 3, 3],
        [*old, 3, 3, 3],
        [*old, 12],
        [*old, 12, 3],
        [*old, 12, 3, 3],
    ]
    require_right(open_snapshot(tmp_path / "s6"), tmp_path / "fresh")


def test_many_short_files_become_one(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SMALL", ((10, 2), (40, 3)))
    assert [len(files) for files in files_of_hours(store, 12)] == [3, 4, 5, 6, 7, 4, 5]
    require_right(open_snapshot(tmp_path / "s6"), tmp_path / "fresh")


def test_damage_of_a_shared_file_is_noticed_in_each_snapshot_and_goes_no_further(store: Store, tmp_path: Path) -> None:
    first = frozen(store, "a")
    second = frozen(store, "b")
    assert all(shared(first, second))
    file = columns_of(first).files[1]
    data = bytearray(file.read_bytes())
    data[200] ^= 1
    file.write_bytes(data)
    for snapshot in (first, second):
        with pytest.raises(ColumnsError, match="damaged"):
            columns_of(snapshot)
    third = frozen(store, "c")
    require_right(third, tmp_path / "fresh")
    assert [os.path.samefile(file, second.path / file.relative_to(third.path)) for file in columns_of(third).files] == [
        True,
        False,
        True,
    ]


def no_links(*_: object, **__: object) -> None:
    raise OSError(18, "Invalid cross-device link")


def swap_for_link(first: Snapshot) -> None:
    """Have one file of a snapshot be a link to another place."""
    file = columns_of(first).files[0]
    file.rename(first.path.parent / "elsewhere")
    file.symlink_to(first.path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("no hard links", [False] * 3),
        ("another user", [False] * 3),
        ("a symbolic link", [False, True, True]),
        ("half a manifest", [False] * 3),
    ],
)
def test_what_cannot_be_taken_over_is_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, expected: list[bool]
) -> None:
    first = frozen(store, "a")
    numbers = [file.stat().st_ino for file in columns_of(first).files]
    match what:
        case "no hard links":
            monkeypatch.setattr("os.link", no_links)
        case "another user":
            monkeypatch.setattr("os.geteuid", lambda: 54_321)
        case "a symbolic link":
            swap_for_link(first)
        case "half a manifest":
            (first.path / "columns" / "manifest.json").write_bytes(b"{\n")
    second = frozen(store, "b")
    files = columns_of(second).files
    assert [file.lstat().st_ino in numbers for file in files] == expected
    assert not any(file.is_symlink() for file in files)
    require_right(second, tmp_path / "fresh")


def test_a_file_more_in_the_folder_of_a_stream_is_refused(store: Store) -> None:
    snapshot = frozen(store, "a")
    folder = columns_of(snapshot).folder
    (folder / "more.parquet").write_bytes(columns_of(snapshot).files[0].read_bytes())
    with pytest.raises(ColumnsError, match="does not have the files of the manifest"):
        columns_of(snapshot)


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_between_snapshots_leave_each_with_its_own_rows(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(segments, "_MAX_ENTRIES", chance.choice((7, 30, 100)))
    monkeypatch.setattr(segments, "_SMALL", chance.choice((((40, 2),), ((10, 2), (40, 64)))))
    store = Store(tmp_path / "data")
    end = 1
    was_shared = False
    snapshots: list[Snapshot] = []
    for hour in range(12):
        more = chance.choice((0, 1, 15, 60)) + (not snapshots)
        extra = (b"f%d" % hour, chance.choice((b"x", b"\xfe"))) if chance.random() < 0.15 else ()
        add(store, end, end + more, *extra)
        end += more
        for number in chance.sample(range(1, end), min(end - 1, chance.choice((0, 0, 1, 5)))):
            store.run("XDEL", KEY, f"{number}-1")
        if chance.random() < 0.2:
            store.run("XTRIM", KEY, "MINID", str(chance.randrange(end)))
        if store.stream(KEY).length == 0:
            add(store, end, end + 1)
            end += 1
        snapshots.append(frozen(store, f"s{hour:02}"))
        was_shared = was_shared or (hour > 0 and any(shared(*snapshots[-2:])))
    store.kill()
    assert was_shared
    for snapshot in snapshots:
        require_right(snapshot, tmp_path / f"fresh-{snapshot.name}")


def test_fields_that_come_late_have_their_columns_and_entries_are_counted_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    late = BATCH_ROWS + 500
    for number in range(late + 500):
        words = [b"n", b"%d" % number] if number != late + 9 else [b"n", b"\xfe"]
        store.stream(KEY).append_entry(sid(f"1-{number + 1}"), words + ([b"late", b"1"] if number >= late else []))
    snapshot = frozen(store, "a")
    store.kill()
    folder = tmp_path / "again"
    folder.mkdir()
    done = []
    fill_columns(snapshot, folder, steps=lambda what, count, total: done.append((count, total)))
    columns = columns_of(snapshot, folder)
    assert columns.columns == {"n": pa.binary(), "late": pa.string()}
    with open_store(snapshot.path) as opened:
        table = opened.to_arrow(KEY)
    assert pa.concat_tables(map(pq.read_table, columns.files)).select(["_id", "n", "late"]) == table.select(
        ["_id", "n", "late"]
    )
    assert done == sorted(done) and done[-1] == (late + 500, late + 500)


def test_a_writer_that_fails_in_its_thread_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        frozen(store, "a")
    assert not list((store.directory.parent / "a").glob("*columns*"))
