from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyarrow import fs
from pyspark.sql.datasource import EqualTo

from riverbed.store.snapshot.manifest import encode_manifest
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.spark.errors import DataLossError, OptionError, SourceError
from riverbed.tools.spark.jobs.command import find_snapshots
from riverbed.tools.spark.reading import locations
from riverbed.tools.spark.reading.batch import SnapshotReader
from riverbed.tools.spark.reading.options import Table, read_options
from riverbed.tools.spark.reading.schemas import default_schema
from riverbed.tools.spark.streaming.streaming import EntryStreamReader
from tests.support.in_process import HandClock, Product
from tests.tools.spark.reading.test_cache import let_go
from tests.tools.spark.stores import freeze, rows_read


def snapshot_of(tmp_path: Path, name: str, first: int = 0) -> Path:
    """A snapshot whose stream `s` has 50 entries from `first` on."""
    product = Product(tmp_path / f"data of {name}", HandClock())
    for number in range(first, first + 50):
        product.run("XADD", "s", f"{1 + number}-0", "n", number)
    return freeze(product, tmp_path / "snap shots" / name, 7)


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["fields"]["n"]) for row in rows]


def cached(directory: Path) -> list[str]:
    return sorted(path.name for each in directory.glob("[!.]*") for path in each.iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_a_snapshot_is_fetched_when_asked_for_and_then_read_without_its_place(
    tmp_path: Path, cache: Path, form: str
) -> None:
    path = snapshot_of(tmp_path, "one")
    asked = {"path": form.format(str(path)), "fetch": "true", "cacheDirectory": str(cache)}
    reader = SnapshotReader(read_options(asked), default_schema(Table.ENTRIES))
    [partition] = reader.partitions()
    assert cached(cache) == ["streams.jsonl"]
    assert sum(batch.num_rows for batch in reader.read(partition)) == 50
    assert cached(cache) == ["data.mdb", "manifest.json", "streams.jsonl", "streams.jsonl"]

    shutil.rmtree(path)
    assert sum(batch.num_rows for batch in reader.read(partition)) == 50


def test_a_folder_of_snapshots_in_a_store_of_objects_is_read_whole(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        snapshot_of(tmp_path, f"s{number}", 50 * number)
    # A bucket: its paths mean nothing to this machine.
    bucket = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(locations, "filesystem_of", lambda uri: (bucket, "snap shots"))

    rows = rows_read("s3://bucket/snap%20shots?region=eu", cacheDirectory=cache)

    assert numbers(rows) == list(range(150))
    assert [row["snapshot"] for row in rows[::50]] == ["s0", "s1", "s2"]


def test_a_snapshot_of_a_folder_in_a_store_of_objects_has_a_uri_of_its_own(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job reads each of them by it: by that of the folder it would read all of them each time."""
    for number in range(3):
        snapshot_of(tmp_path, f"s {number}%?", 50 * number)
    bucket = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(locations, "filesystem_of", lambda uri: (bucket, unquote(urlsplit(uri).path).strip("/")))
    found = find_snapshots("s3://bucket/snap%20shots/?region=eu")

    assert [urlsplit(each.path).query for each in found] == ["region=eu"] * 3
    for number, each in enumerate(found):
        rows = rows_read(each.path, cacheDirectory=cache)
        assert numbers(rows) == list(range(50 * number, 50 * number + 50))


@pytest.mark.parametrize("name", ["one", "day=1", "day%3D1", "a+b:c", "%D0%B6"])
@pytest.mark.parametrize("slashes", [("", ""), ("/", "/"), ("", "/")])
def test_a_snapshot_that_two_uris_name_is_read_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, slashes: tuple[str, str], name: str
) -> None:
    snapshot_of(tmp_path, unquote(name))
    bucket = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(locations, "filesystem_of", lambda uri: (bucket, unquote(urlsplit(uri).path).strip("/")))
    uris = [f"s3://bucket/snap%20shots{slashes[0]}?region=eu", f"s3://bucket/snap%20shots/{name}{slashes[1]}?region=eu"]
    options = read_options({"paths": json.dumps(uris), "cacheDirectory": str(cache)})

    assert [place.name for place, _ in locations.resolve(options)] == [unquote(name)]


class Damaging(fs.FileSystemHandler):
    """A local file system whose files come as `damage` leaves them."""

    def __init__(self, damage: Callable[[str, bytes], bytes]) -> None:
        self.damage = damage
        self.local = fs.LocalFileSystem()

    def get_type_name(self) -> str:
        return "damaging"

    def get_file_info(self, paths: list[str]) -> Any:
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self.local.get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        import pyarrow as pa

        return pa.PythonFile(pa.BufferReader(self.damage(path, Path(path).read_bytes())), mode="r")

    open_input_file = open_input_stream

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise OSError("read only")

    copy_file = create_dir = delete_dir = delete_dir_contents = delete_file = delete_root_dir_contents = _refuse
    move = normalize_path = open_append_stream = open_output_stream = _refuse


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("data.mdb", lambda data: data[:-1]),
        ("data.mdb", lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]),
        ("streams.jsonl", lambda data: data.replace(b"s", b"t", 1)),
        ("manifest.json", lambda data: data[:-1]),
    ],
)
def test_what_is_damaged_on_its_way_is_told_and_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: Callable[[bytes], bytes]
) -> None:
    path = snapshot_of(tmp_path, "one")
    monkeypatch.setattr(
        locations,
        "filesystem_of",
        lambda uri: (
            fs.PyFileSystem(Damaging(lambda file, data: damage(data) if file.endswith(name) else data)),
            str(path),
        ),
    )
    with pytest.raises(SourceError, match=r"cannot (fetch|read) s3://"):
        rows_read("s3://bucket/x", cacheDirectory=cache)
    assert "data.mdb" not in cached(cache)

    monkeypatch.setattr(locations, "filesystem_of", lambda uri: (fs.LocalFileSystem(), str(path)))
    assert len(rows_read("s3://bucket/x", cacheDirectory=cache)) == 50


@pytest.mark.parametrize("fetch", ["true", "false"])
def test_another_snapshot_under_the_name_of_one_that_was_planned_is_never_read(
    tmp_path: Path, cache: Path, fetch: str
) -> None:
    path = snapshot_of(tmp_path, "one")
    other = snapshot_of(tmp_path, "two", 1000)
    asked = {"path": str(path), "fetch": fetch, "cacheDirectory": str(cache)}
    reader = SnapshotReader(read_options(asked), default_schema(Table.ENTRIES))
    lenient = SnapshotReader(read_options(asked | {"failOnDataLoss": "false"}), default_schema(Table.ENTRIES))
    [partition] = reader.partitions()
    shutil.rmtree(path)
    os.rename(other, path)

    with pytest.raises(DataLossError, match="another snapshot now"):
        list(reader.read(partition))
    assert list(lenient.read(partition)) == []
    assert numbers(rows_read(path, fetch=fetch, cacheDirectory=cache)) == list(range(1000, 1050))


def test_what_was_evicted_is_fetched_again(tmp_path: Path, cache: Path) -> None:
    path = snapshot_of(tmp_path, "one")
    for _ in range(2):
        assert len(rows_read(path, fetch="true", cacheDirectory=cache, cacheBytes=0)) == 50
        let_go()
        for entry in cache.glob("[!.]*"):
            os.utime(entry, (0, 0))
        locations.Cache(str(cache), 0).evict()
        assert cached(cache) == []


@pytest.mark.parametrize("name", ["manifest.json", "streams.jsonl", "data.mdb"])
@pytest.mark.parametrize("how", [Path.unlink, lambda file: os.truncate(file, 10)], ids=["deleted", "cut"])
def test_what_others_have_deleted_of_what_was_fetched_is_fetched_again(
    tmp_path: Path, cache: Path, name: str, how: Callable[[Path], None]
) -> None:
    path = snapshot_of(tmp_path, "one")
    for _ in range(2):
        assert len(rows_read(path, fetch="true", cacheDirectory=cache, failOnDataLoss="false")) == 50
        let_go()
        for file in cache.glob(f"riverbed-*/{name}"):
            how(file)


def test_no_folder_that_is_being_deleted_is_fetched(tmp_path: Path, cache: Path) -> None:
    path = snapshot_of(tmp_path, "one")
    shutil.copytree(snapshot_of(tmp_path, "two", 50), path.parent / ".temp-snapshot-abc")
    assert numbers(rows_read(path.parent, fetch="true", cacheDirectory=cache)) == list(range(100))


def linked(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("name", ["manifest.json", "streams.jsonl", "data.mdb"])
@pytest.mark.parametrize("how", [linked, piped, lambda file: os.truncate(file, 6 << 30)], ids=["link", "pipe", "long"])
def test_nothing_but_files_of_their_lengths_is_fetched(
    tmp_path: Path, cache: Path, name: str, how: Callable[[Path], None]
) -> None:
    """None of it hangs, fills the disk or the memory."""
    path = snapshot_of(tmp_path, "one")
    how(path / name)
    with pytest.raises(SourceError):
        rows_read(path, fetch="true", cacheDirectory=cache)
    assert sum(file.stat().st_size for file in cache.rglob("*")) < 1 << 20


def test_globs_lists_and_folders_name_the_same_snapshots(tmp_path: Path, cache: Path) -> None:
    paths = [snapshot_of(tmp_path, f"s{number}", 50 * number) for number in range(2)]
    (paths[0].parent / ".temp-half").mkdir()
    (paths[0].parent / "being copied").mkdir()
    (paths[0].parent / "being copied" / "data.mdb").touch()
    expected = list(range(100))

    assert numbers(rows_read(paths[0].parent, cacheDirectory=cache)) == expected
    assert numbers(rows_read(paths[0].parent / "s?", cacheDirectory=cache)) == expected
    assert numbers(rows_read(paths[0].parent / "s*", fetch="true", cacheDirectory=cache)) == expected
    assert numbers(rows_read(paths[1], paths=f'["{paths[0]}", "{paths[1]}/"]', cacheDirectory=cache)) == expected


@pytest.mark.parametrize("fetch", ["false", "true"])
def test_links_in_a_folder_of_snapshots_are_left_out(tmp_path: Path, cache: Path, fetch: str) -> None:
    inside = snapshot_of(tmp_path, "inside")
    outside = snapshot_of(tmp_path / "elsewhere", "outside", 50)
    link = inside.parent / "link"
    link.symlink_to(outside)
    assert numbers(rows_read(inside.parent, fetch=fetch, cacheDirectory=cache)) == list(range(50))
    assert numbers(rows_read(link, fetch=fetch, cacheDirectory=cache)) == list(range(50, 100))  # named by the user


def store_with_snapshots(tmp_path: Path, times: list[int]) -> Path:
    """A folder of snapshots of one store, each with one entry more than the one before; -> the folder."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for number, time_ms in enumerate(times):
        product = Product(tmp_path / "data", HandClock())
        product.run("XADD", "s", f"{1 + number}-0", "n", number)
        # Names say nothing about the order.
        path = freeze(product, folder / f"s{20 - number}")
        manifest = replace(open_snapshot(path).manifest, time_ms=time_ms)
        (path / "manifest.json").write_bytes(encode_manifest(manifest))
    return folder


@pytest.mark.parametrize(
    ("as_of", "expected"),
    [
        ("1001", 0),
        ("1970-01-01T00:00:01.001Z", 0),
        ("2000", 2),
        ("1970-01-01T01:00:02+01:00", 2),
        ("99999999999999", 3),
    ],
)
@pytest.mark.parametrize("fetch", ["false", "true"])
def test_as_of_reads_the_newest_snapshot_that_is_not_later(
    tmp_path: Path, cache: Path, as_of: str, expected: int, fetch: str
) -> None:
    folder = store_with_snapshots(tmp_path, [1001, 2000, 2000, 3000])
    rows = rows_read(folder, asOf=as_of, fetch=fetch, cacheDirectory=cache)
    assert numbers(rows) == list(range(expected + 1))
    assert {row["snapshot"] for row in rows} == {f"s{20 - expected}"}


def test_a_time_before_all_snapshots_is_refused_with_their_times(tmp_path: Path, cache: Path) -> None:
    folder = store_with_snapshots(tmp_path, [number * 1000 for number in range(1, 13)])
    with pytest.raises(SourceError, match="before all snapshots") as caught:
        rows_read(folder, asOf="999", cacheDirectory=cache)
    assert "asOf 1970-01-01T00:00:00.999Z" in str(caught.value)
    assert ": s20 (1970-01-01T00:00:01.000Z), s19 (1970-01-01T00:00:02.000Z), " in str(caught.value)
    assert str(caught.value).endswith(", and 2 later ones")


def test_as_of_is_refused_where_it_would_choose_between_stores(tmp_path: Path, cache: Path) -> None:
    folder = store_with_snapshots(tmp_path, [1000])
    other = snapshot_of(tmp_path, "other")
    other.rename(folder / "other")
    with pytest.raises(SourceError, match="snapshots of one store"):
        rows_read(folder, asOf="99999999999999", cacheDirectory=cache)


def test_what_names_one_snapshot_is_refused_for_a_data_directory_and_for_a_stream(tmp_path: Path, cache: Path) -> None:
    Product(tmp_path / "data", HandClock()).close()
    with pytest.raises(SourceError, match="only its last checkpoint"):
        rows_read(tmp_path / "data", asOf="99999999999999", cacheDirectory=cache)
    for option in ("asOf", "dataChecksum"):
        asked = read_options({"path": str(tmp_path), option: "1"})
        with pytest.raises(OptionError, match=f"{option} is for"):
            EntryStreamReader(asked, default_schema(Table.ENTRIES))


def test_as_of_that_is_no_time_is_refused() -> None:
    with pytest.raises(OptionError, match="asOf must be a time"):
        read_options({"path": "x", "asOf": "yesterday"})


def test_a_store_in_the_place_of_another_is_frozen_although_its_file_looks_the_same(
    tmp_path: Path, cache: Path
) -> None:
    """The file system gives the new file the inode of the old one, and both were committed as often."""
    inode: int | None = None
    for number in range(2):
        product = Product(tmp_path / "data", HandClock())
        product.run("XADD", "s", "1-0", "n", number)
        product.close()
        data = tmp_path / "data" / "state" / "data.mdb"
        if inode is None:
            inode = data.stat().st_ino
            kept = tmp_path / "kept.mdb"
            os.link(data, kept)  # or another file might get it
        else:
            kept.write_bytes(data.read_bytes())
            os.replace(kept, data)
            assert data.stat().st_ino == inode
        assert numbers(rows_read(tmp_path / "data", cacheDirectory=cache)) == [number]
        shutil.rmtree(tmp_path / "data")


def test_a_live_store_is_frozen_once_a_checkpoint(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[Path] = []

    def count(directory: Path, out: Path, *, program: str) -> object:
        frozen.append(directory)
        return take_snapshot(directory, out, program=program)

    monkeypatch.setattr("riverbed.store.snapshot.writer.take_snapshot", count)
    product = Product(tmp_path / "data", HandClock())
    for number in range(3):
        product.run("XADD", "s", f"{1 + number}-0", "n", number)
        product.close()
        for _ in range(2):
            assert numbers(rows_read(tmp_path / "data", cacheDirectory=cache)) == list(range(number + 1))
        product = Product(tmp_path / "data", HandClock())
    product.close()

    assert len(frozen) == 3


def test_entries_that_were_trimmed_are_told_unless_a_filter_fits_none(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock())
    for number in range(1, 11):
        product.run("XADD", "s", f"{number}-0", "n", number)
    product.run("XTRIM", "s", "MAXLEN", 5)
    path = freeze(product, tmp_path / "snapshot")

    def reader(first: str) -> SnapshotReader:
        options = read_options({"path": str(path), "startingId": first, "verify": "never"})
        return SnapshotReader(options, default_schema(Table.ENTRIES))

    with pytest.raises(
        DataLossError, match=r"stream s in .* begins with 6-0: the entries before that, from 5-0 on, were"
    ):
        reader("5-0").partitions()
    for wanted, rows in (("no ID", 0), ("8-0", 1)):
        filtered = reader("6-0")
        list(filtered.pushFilters([EqualTo(("id",), wanted)]))
        assert sum(batch.num_rows for part in filtered.partitions() for batch in filtered.read(part)) == rows
