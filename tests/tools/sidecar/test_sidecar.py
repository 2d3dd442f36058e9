from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from riverbed.store.ids import id_text
from riverbed.store.snapshot.manifest import FileDigest
from riverbed.store.snapshot.reader import Snapshot, open_snapshot, verify_file
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.arrow import open_store
from riverbed.tools.sidecar.sidecar import ColumnsError, stream_columns, write_columns
from tests.support.program import run
from tests.support.store.stores import Store, sid

KEY = b"../../etc/\xff orders"


def entries() -> list[tuple[str, list[bytes]]]:
    found = []
    for number in range(70_000):
        words = [b"n", b"%d" % number, b"raw", bytes([number % 256])]
        if number % 3 == 0:
            words += [b"sometimes", b"v%d" % (number % 7)]
        if number % 1000 == 0:
            words += [b"\xfe", b"odd", b"N", b"upper", b"_id", b"mine"]
        found.append((id_text(sid(f"{1 + number // 3}-{number}")).decode(), words))
    return found


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    store = Store(tmp_path / "store")
    stream = store.stream(KEY, 0)
    for entry_id, words in entries():
        stream.append_entry(sid(entry_id), words)
    store.stream(b"other", 3).append_entry(sid("1-1"), [b"a", b"b"])
    store.commit()
    store.checkpoint()
    store.run("XTRIM", b"other", "MAXLEN", 1, db=3)
    store.kill()
    return take_snapshot(tmp_path / "store", program="test")


def test_duckdb_and_polars_read_what_the_stream_has(snapshot: Snapshot) -> None:
    write_columns(snapshot)
    (file,) = stream_columns(snapshot, 0, KEY).files
    assert file.parent.parent == snapshot.path / "columns" / "streams"

    with duckdb.connect() as connection:
        rows = connection.execute(f"select _id, n, raw, sometimes, _ms, _seq from '{file}'").fetchall()
        rest = connection.execute(f"select _rest from '{file}' where cardinality(_rest) > 0").fetchall()
    frame = pl.read_parquet(file)

    expected = []
    for entry_id, words in entries():
        fields = dict(zip(words[::2], words[1::2], strict=True))
        some = fields.get(b"sometimes")
        ms, seq = map(int, entry_id.split("-"))
        expected.append((entry_id, fields[b"n"].decode(), fields[b"raw"], some and some.decode(), ms, seq))
    assert rows == expected
    assert list(frame.select("_id", "n", "raw", "sometimes", "_ms", "_seq").iter_rows()) == expected
    assert len(rest) == 70 and rest[0] == ({"\\xfe": b"odd", "N": b"upper", "_id": b"mine"},)
    with open_store(snapshot.path) as store:
        names = ["_ms", "_seq", "_id", "n", "raw", "sometimes"]
        kinds = {name: store.schema(KEY).field(name).type for name in names}
        assert store.to_arrow(KEY, columns=kinds) == pq.read_table(file, columns=names)


def test_row_groups_are_in_order_and_have_statistics_of_ids(snapshot: Snapshot) -> None:
    write_columns(snapshot)
    (path,) = stream_columns(snapshot, 0, KEY).files
    file = pq.ParquetFile(path)
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert [group.num_rows for group in groups] == [65536, 70_000 - 65536]
    bounds = [(group.column(0).statistics.min, group.column(0).statistics.max) for group in groups]
    assert bounds == [(1, 1 + 65535 // 3), (1 + 65536 // 3, 1 + 69_999 // 3)]


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest, and give it a checksum that fits."""
    values = json.loads(path.read_bytes())
    del values["crc32c"]
    change(values)
    text = json.dumps(values, indent=1).encode().removesuffix(b"\n}")
    path.write_bytes(text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def name_a_file_outside(values: dict[str, Any]) -> None:
    for stream in values["streams"]:
        stream["files"][0]["name"] = "../data.mdb"


def name_no_file(values: dict[str, Any]) -> None:
    for stream in values["streams"]:
        stream["files"] = []


def name_files_of_another_stream(values: dict[str, Any]) -> None:
    for stream in values["streams"]:
        for file in stream["files"]:
            file["name"] = file["name"].replace(f"streams/{stream['stream_no']}/", "streams/77/")


def count_without_end(values: dict[str, Any]) -> None:
    for stream in values["streams"]:
        stream["files"][0]["entries"] = float("inf")


DAMAGE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a flipped bit of a file": (lambda columns, file: flip(file, 1000), "damaged"),
    "a file cut short": (lambda columns, file: file.write_bytes(file.read_bytes()[:-9]), "damaged"),
    "a missing file": (lambda columns, file: file.unlink(), "damaged"),
    "a flipped bit of the manifest": (lambda columns, file: flip(columns / "manifest.json", 40), "damaged"),
    "half a manifest": (lambda columns, file: (columns / "manifest.json").write_bytes(b"{\n"), "damaged"),
    "no manifest": (lambda columns, file: (columns / "manifest.json").unlink(), "has no columns"),
    "another version": (
        lambda columns, file: rewritten(columns / "manifest.json", lambda values: values.update(version=3)),
        "version 3",
    ),
    "no streams": (
        lambda columns, file: rewritten(columns / "manifest.json", lambda values: values.pop("streams")),
        "does not decode",
    ),
    "a name outside": (
        lambda columns, file: rewritten(columns / "manifest.json", name_a_file_outside),
        "no name of a file",
    ),
    "none of its files": (
        lambda columns, file: rewritten(columns / "manifest.json", name_no_file),
        "do not have its entries",
    ),
    "files of another stream": (
        lambda columns, file: rewritten(columns / "manifest.json", name_files_of_another_stream),
        "files of another stream",
    ),
    "an endless count": (
        lambda columns, file: rewritten(columns / "manifest.json", count_without_end),
        "does not decode",
    ),
    "another snapshot": (
        lambda columns, file: rewritten(
            columns / "manifest.json", lambda values: values["snapshot"].update(tables=[1, "00000000"])
        ),
        "another snapshot",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_not_whole_is_refused_and_can_be_made_again(snapshot: Snapshot, what: str) -> None:
    columns = write_columns(snapshot)
    (file,) = stream_columns(snapshot, 0, KEY).files
    damage, reason = DAMAGE[what]
    damage(columns, file)
    with pytest.raises(ColumnsError, match=reason):
        stream_columns(snapshot, 0, KEY)
    write_columns(snapshot)
    assert stream_columns(snapshot, 0, KEY).entries == 70_000


def test_a_file_is_compared_with_its_checksum_once_until_it_changes(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_columns(snapshot)
    compared: list[Path] = []

    def watched(path: Path, digest: FileDigest) -> None:
        compared.append(path)
        verify_file(path, digest)

    monkeypatch.setattr("riverbed.tools.sidecar.sidecar.verify_file", watched)
    for _ in range(3):
        (file,) = stream_columns(snapshot, 0, KEY).files
    assert compared == [file]
    os.utime(file)
    stream_columns(snapshot, 0, KEY)
    assert compared == [file, file]


def test_a_writer_that_fails_leaves_nothing(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(snapshot.path.iterdir())

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", full)
        with pytest.raises(OSError, match="No space"):
            write_columns(snapshot)
    assert sorted(snapshot.path.iterdir()) == before
    with pytest.raises(ColumnsError, match="has no columns"):
        stream_columns(snapshot, 0, KEY)


def test_a_snapshot_with_columns_is_still_whole(snapshot: Snapshot, tmp_path: Path) -> None:
    write_columns(snapshot)
    assert open_snapshot(snapshot.path, verify=True).manifest == snapshot.manifest
    copied = shutil.copytree(snapshot.path, tmp_path / "copy")
    assert stream_columns(open_snapshot(copied), 3, b"other").entries == 1


def test_columns_are_for_their_user_alone(snapshot: Snapshot) -> None:
    write_columns(snapshot)
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in (snapshot.path / "columns").rglob("*")}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_the_tool_writes_columns_when_asked(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.stream(b"s", 0).append_entry(sid("1-1"), [b"a", b"b"])
    store.commit()
    store.checkpoint()
    store.kill()
    words = ["snapshot", str(tmp_path / "store"), str(tmp_path / "out"), "--columns"]
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    assert stream_columns(open_snapshot(tmp_path / "out"), 0, b"s").entries == 1


def test_without_pyarrow_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "store").kill()
    for name in ("riverbed.tools.sidecar.sidecar", "pyarrow"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    words = ["snapshot", str(tmp_path / "store"), str(tmp_path / "out"), "--columns"]
    result = run(*words)
    assert (result.exit_code, (tmp_path / "out").exists()) == (2, False)
    assert "pip install 'riverbed[sql]'" in " ".join(result.stderr.split())
