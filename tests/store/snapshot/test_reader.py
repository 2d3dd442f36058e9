from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riverbed.store.errors import CorruptionError, NoSnapshotError, UnsafeFileError, VersionError
from riverbed.store.format.rows import FORMAT_VERSION
from riverbed.store.ids import MAX_ID, MIN_ID
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, STREAMS_NAME
from riverbed.store.snapshot.manifest import SNAPSHOT_VERSION, decode_manifest, encode_manifest
from riverbed.store.snapshot.reader import Snapshot, is_snapshot_name, list_snapshots, open_snapshot
from riverbed.store.snapshot.stream_lines import StreamPart, StreamSummary, decode_stream_line, encode_stream_line
from riverbed.store.snapshot.writer import take_snapshot
from tests.support.servers import ROOT
from tests.support.store.stores import Store, sid

FORMAT = (ROOT / "store" / "FORMAT.md").read_text()


def example(name: str) -> bytes:
    found = re.search(rf"^```json {name}\n(.*?)^```$", FORMAT, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1].encode()


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Two streams, taken of a closed store."""
    store = Store(tmp_path / "store", node_max_entries=4)
    store.fill(b"s", 30)
    store.fill(b"\xff", 3, db=2)
    store.commit()
    store.engine.close()
    return take_snapshot(store.directory, tmp_path / "snapshot", program="test", split_every=8)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# -- the format --------------------------------------------------------------------------------------------------------


def test_manifest_in_the_document_decodes_and_encodes_to_the_same() -> None:
    data = example("manifest")
    manifest = decode_manifest(data, "manifest.json")
    assert (manifest.offset, manifest.streams, manifest.entries, manifest.is_automatic) == (8192, 2, 131200, True)
    assert manifest.data_file.size == 17379328
    assert encode_manifest(manifest) == data
    assert manifest.streams_file.size == len(example("streams"))


def test_streams_in_the_document_decode_and_encode_to_the_same() -> None:
    lines = example("streams").splitlines(keepends=True)
    first, second = map(decode_stream_line, lines)
    assert [part.entries for part in first.parts] == [65536, 65664]
    assert (second.db, second.key, second.parts) == (3, b"\xff\x00", ())
    assert [encode_stream_line(first), encode_stream_line(second)] == lines


@pytest.mark.parametrize("key", [b"", b"plain", "schlüssel \u2028".encode(), b'"\\\n\x00', b"\xff\xfe", b"k" * 5000])
def test_any_key_survives(key: bytes) -> None:
    stream = StreamSummary(1, 15, key, 0, MIN_ID, MIN_ID, MAX_ID, MAX_ID, 1 << 63, 0, 0, ())
    line = encode_stream_line(stream)
    assert line.count(b"\n") == 1
    assert decode_stream_line(line) == stream


def test_a_short_stream_is_one_part() -> None:
    part = StreamPart(sid("1-0"), 2, 50)
    stream = StreamSummary(1, 0, b"s", 2, sid("1-0"), sid("2-0"), sid("2-0"), MIN_ID, 2, 0, 0, (part,))
    assert b"parts" not in encode_stream_line(stream)
    assert decode_stream_line(encode_stream_line(stream)) == stream


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"length": -1}, ValueError),
        ({"length": True}, ValueError),
        ({"first_id": "1"}, None),
        ({"first_id": "x"}, ValueError),
        ({"first_id": 1}, ValueError),
        ({"parts": [["1-0", 1]]}, ValueError),
        ({"parts": 7}, TypeError),
        ({"key": 7}, ValueError),
    ],
)
def test_lines_that_are_none_are_refused(changed: dict[str, Any], error: type[Exception] | None) -> None:
    values = json.loads(example("streams").splitlines()[0]) | changed
    line = json.dumps(values).encode()
    if error is None:
        decode_stream_line(line)
    else:
        with pytest.raises(error):
            decode_stream_line(line)


def test_every_flipped_bit_of_a_manifest_is_refused() -> None:
    data = example("manifest")
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises((CorruptionError, NoSnapshotError, VersionError)):
                decode_manifest(bytes(damaged), "manifest.json")


@pytest.mark.parametrize("offset", [1 << 62, (1 << 63) - 1, (1 << 64) - 1])
def test_an_offset_that_no_server_could_go_on_from_is_refused(offset: int) -> None:
    sound = decode_manifest(example("manifest"), "manifest.json")
    forged = replace(sound, position=sound.position._replace(offset=offset))
    with pytest.raises(CorruptionError, match="beyond 4611686018427387903"):
        decode_manifest(encode_manifest(forged), "manifest.json")


def test_every_truncated_manifest_is_refused() -> None:
    data = example("manifest")
    for size in range(len(data)):
        with pytest.raises((CorruptionError, NoSnapshotError)):
            decode_manifest(data[:size], "manifest.json")


@pytest.mark.parametrize("name", ["nightly", "20261121T120858Z-2869", "a", "v1.2_b+c"])
def test_names_that_may_be_given(name: str) -> None:
    assert is_snapshot_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".temp-snapshot-1", "a/b", "a\\b", "-x", "a\n", "a b", "ä", "x" * 200])
def test_names_that_are_paths_or_hidden_are_none(name: str) -> None:
    assert not is_snapshot_name(name)


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_snapshot_opens_and_tells_its_streams(snapshot: Snapshot) -> None:
    found = open_snapshot(snapshot.path, verify=True)
    first, second = found.streams()
    assert (first.key, first.db, first.length, second.key, second.db, second.length) == (b"s", 0, 30, b"\xff", 2, 3)
    assert [part.entries for part in first.parts] == [8, 8, 8, 6]
    assert (found.manifest.streams, found.manifest.entries, found.manifest.rows["entries"]) == (2, 33, 33)


def test_a_snapshot_on_read_only_storage_opens_without_a_lock_file(snapshot: Snapshot) -> None:
    tables = snapshot.open_tables()
    with tables.env.begin() as txn:
        assert txn.stat(tables.handles["entries"])["entries"] == 33
    tables.close()
    assert sorted(path.name for path in snapshot.path.iterdir()) == sorted([DATA_NAME, STREAMS_NAME, MANIFEST_NAME])


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoSnapshotError, match=r"there is no snapshot .*/none"):
        open_snapshot(tmp_path / "none")


def test_a_file_is_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoSnapshotError, match="not a directory"):
        open_snapshot(tmp_path / "file")


def test_a_data_directory_is_no_snapshot_and_told_apart(snapshot: Snapshot) -> None:
    with pytest.raises(NoSnapshotError, match="a data directory; its snapshots are in"):
        open_snapshot(snapshot.path.parent / "store")


def test_without_a_manifest_it_was_never_finished(snapshot: Snapshot) -> None:
    (snapshot.path / MANIFEST_NAME).unlink()
    with pytest.raises(NoSnapshotError, match="never finished"):
        open_snapshot(snapshot.path)


def test_a_manifest_of_something_else_is_foreign(snapshot: Snapshot) -> None:
    (snapshot.path / MANIFEST_NAME).write_text('{"name": "some app", "version": 3}')
    with pytest.raises(NoSnapshotError, match="not the manifest of a snapshot of Riverbed"):
        open_snapshot(snapshot.path)


@pytest.mark.parametrize("name", ["version", "tables_version"])
def test_a_newer_version_is_refused(snapshot: Snapshot, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("riverbed.store.snapshot.manifest.SNAPSHOT_VERSION", SNAPSHOT_VERSION + (name == "version"))
        manifest = replace(snapshot.manifest, tables_version=FORMAT_VERSION + (name == "tables_version"))
        (snapshot.path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    with pytest.raises(VersionError, match=r"version \d; this program reads \d \(it was written by test\)"):
        open_snapshot(snapshot.path)


@pytest.mark.parametrize("name", [DATA_NAME, STREAMS_NAME])
def test_truncated_files_are_refused_at_once(snapshot: Snapshot, name: str) -> None:
    path = snapshot.path / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match="bytes long; it must be"):
        open_snapshot(snapshot.path)
    path.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        open_snapshot(snapshot.path)


@pytest.mark.parametrize("at", [0, 5000, -1])
def test_flipped_bits_of_the_tables_are_found_when_asked_for(snapshot: Snapshot, at: int) -> None:
    flip(snapshot.path / DATA_NAME, at)
    open_snapshot(snapshot.path)
    with pytest.raises(CorruptionError, match="CRC-32C"):
        open_snapshot(snapshot.path, verify=True)


def test_flipped_bits_of_the_streams_are_found_before_the_first_is_told(snapshot: Snapshot) -> None:
    flip(snapshot.path / STREAMS_NAME, -20)
    with pytest.raises(CorruptionError, match="CRC-32C"):
        next(open_snapshot(snapshot.path).streams())


def test_tables_that_are_none_are_refused(snapshot: Snapshot) -> None:
    (snapshot.path / DATA_NAME).write_bytes(bytes(snapshot.manifest.data_file.size))
    with pytest.raises(CorruptionError):
        open_snapshot(snapshot.path).open_tables()


@pytest.mark.parametrize("name", [MANIFEST_NAME, STREAMS_NAME, DATA_NAME])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_anything_but_a_file_in_it_is_refused(snapshot: Snapshot, tmp_path: Path, name: str, kind: str) -> None:
    """The link leads to the very file that belongs there."""
    (snapshot.path / name).rename(tmp_path / "moved")
    if kind == "link":
        (snapshot.path / name).symlink_to(tmp_path / "moved")
    else:
        os.mkfifo(snapshot.path / name)
    with pytest.raises(UnsafeFileError, match="a symbolic link" if kind == "link" else "a pipe"):
        open_snapshot(snapshot.path)


def test_a_file_that_becomes_a_link_later_is_not_followed(snapshot: Snapshot, tmp_path: Path) -> None:
    (snapshot.path / STREAMS_NAME).rename(tmp_path / "moved")
    (snapshot.path / STREAMS_NAME).symlink_to(tmp_path / "moved")
    with pytest.raises(UnsafeFileError, match="a symbolic link"):
        next(snapshot.streams())
    (snapshot.path / DATA_NAME).rename(tmp_path / "tables")
    (snapshot.path / DATA_NAME).symlink_to(tmp_path / "tables")
    with pytest.raises(UnsafeFileError, match="a symbolic link"):
        snapshot.open_tables()


def test_a_snapshot_that_a_link_names_opens_and_is_not_listed(snapshot: Snapshot, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "latest").symlink_to(snapshot.path)
    assert open_snapshot(folder / "latest").manifest == snapshot.manifest
    assert list_snapshots(folder) == []


def test_the_list_is_in_order_of_time_and_leaves_out_what_is_not_whole(snapshot: Snapshot, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name, time_ms in (("b", 2), ("a", 3), ("c", 1), (".temp-snapshot-x", 1), ("cut", 1), ("odd", 1)):
        shutil.copytree(snapshot.path, folder / name)
        (folder / name / MANIFEST_NAME).write_bytes(encode_manifest(replace(snapshot.manifest, time_ms=time_ms)))
    (folder / "cut" / DATA_NAME).write_bytes(b"")
    (folder / "odd" / MANIFEST_NAME).write_bytes(b"{}")
    (folder / "file").write_text("")
    assert [found.name for found in list_snapshots(folder)] == ["c", "b", "a"]
    assert list_snapshots(tmp_path / "none") == []
