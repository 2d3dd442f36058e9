from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from riverbed.store.check.snapshots import SnapshotCheck
from riverbed.store.errors import NoSnapshotError, VersionError
from riverbed.store.format.packing import pack_row
from riverbed.store.ids import MIN_ID
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, STREAMS_NAME
from riverbed.store.snapshot.manifest import FileDigest, decode_manifest, encode_manifest
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.snapshot.stream_lines import encode_stream_line
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.store.tables.environment import Tables
from tests.support.store.planting import Damage, Rows, do, make_sound

# One bit, the case of a letter, every bit.
FLIPS = (0x01, 0x20, 0xFF)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    make_sound(tmp_path / "store")
    return take_snapshot(tmp_path / "store", tmp_path / "snapshot", program="test", split_every=8).path


def found(path: Path) -> list[str]:
    return [str(violation) for violation in SnapshotCheck(path).violations()]


def seal(path: Path, **changes: Any) -> None:
    """Make the manifest fit to what the files are now; `changes` are what it says wrongly."""
    manifest = open_snapshot_anyway(path)
    digests = []
    for name in (DATA_NAME, STREAMS_NAME):
        data = (path / name).read_bytes()
        digests.append(FileDigest(len(data), crc32c(data)))
    sealed = replace(manifest, data_file=digests[0], streams_file=digests[1], **changes)
    (path / MANIFEST_NAME).write_bytes(encode_manifest(sealed))


def open_snapshot_anyway(path: Path) -> Any:
    return decode_manifest((path / MANIFEST_NAME).read_bytes(), "manifest")


def plant(path: Path, how: Damage) -> None:
    """Break the tables, and leave no trace of it in any checksum."""
    tables = Tables(path.parent / "other", 1 << 28)
    tables.close()
    other = path.parent / "other" / "state" / DATA_NAME
    other.write_bytes((path / DATA_NAME).read_bytes())
    tables = Tables(path.parent / "other", 1 << 28)
    with tables.env.begin(write=True) as txn:
        how(Rows(txn, tables.handles))
    tables.close()
    (path / DATA_NAME).write_bytes(other.read_bytes())
    seal(path)


def test_a_sound_snapshot_breaks_no_promise(snapshot: Path) -> None:
    check = SnapshotCheck(snapshot)
    assert list(check.violations()) == []
    assert (check.contents.streams, check.offset) == (3, open_snapshot(snapshot).manifest.offset)
    seal(snapshot)
    assert found(snapshot) == []


@pytest.mark.parametrize("name", [MANIFEST_NAME, STREAMS_NAME])
def test_any_byte_that_is_another_one_is_found(snapshot: Path, name: str) -> None:
    path = snapshot / name
    data = path.read_bytes()
    missed = []
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= FLIPS[at % len(FLIPS)]
        path.write_bytes(flipped)
        try:
            if not next(SnapshotCheck(snapshot).violations(), None):
                missed.append(at)
        except NoSnapshotError:
            assert name == MANIFEST_NAME
    assert missed == []


def test_bytes_of_the_tables_that_are_others_are_found(snapshot: Path) -> None:
    path = snapshot / DATA_NAME
    data = path.read_bytes()
    for at in range(0, len(data), 4001):
        flipped = bytearray(data)
        flipped[at] ^= 1
        path.write_bytes(flipped)
        assert "CRC-32C is" in next(iter(found(snapshot)))


@pytest.mark.parametrize("name", [MANIFEST_NAME, STREAMS_NAME, DATA_NAME])
def test_a_file_that_is_cut_is_found(snapshot: Path, name: str) -> None:
    path = snapshot / name
    data = path.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert found(snapshot), size


@pytest.mark.parametrize("name", [STREAMS_NAME, DATA_NAME])
def test_a_lost_file_is_found(snapshot: Path, name: str) -> None:
    (snapshot / name).unlink()
    (only,) = found(snapshot)
    assert only == f"snapshot: {snapshot / name}: the manifest speaks of it, and it is missing"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (do.delete("pel_by_consumer"), "is missing in the list of consumer"),
        (do.stream(length=11), "but there are"),
        (do.delete("entries", 3), "the manifest says of rows of entries"),
        (do.empty("expiry"), "is not in the list"),
        (do.empty("meta"), "holds no state of a store"),
    ],
)
def test_a_broken_promise_is_found_under_sound_checksums(snapshot: Path, how: Damage, words: str) -> None:
    plant(snapshot, how)
    assert any(words in violation for violation in found(snapshot)), found(snapshot)


def test_pages_that_are_none_are_found_under_sound_checksums(snapshot: Path) -> None:
    data = bytearray((snapshot / DATA_NAME).read_bytes())
    data[5 * 4096 : 5 * 4096 + 16] = bytes(16)
    (snapshot / DATA_NAME).write_bytes(data)
    seal(snapshot)
    assert all(violation.startswith("lmdb: ") for violation in found(snapshot))
    assert found(snapshot)


def test_what_the_manifest_counts_is_held_to_what_there_is(snapshot: Path) -> None:
    manifest = open_snapshot(snapshot).manifest
    for changes in (
        {"streams": 4},
        {"entries": manifest.entries + 1},
        {"position": manifest.position._replace(offset=7)},
        {"replication_id": "0" * 40},
        {"store_id": None},
        {"numbering": "0" * 16},
        {"rows": manifest.rows | {"trash": 99}},
    ):
        seal(snapshot, **changes)
        assert any("the manifest says of " in violation for violation in found(snapshot)), changes
        (snapshot / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    assert found(snapshot) == []


def test_a_line_about_a_stream_that_is_not_so_is_found(snapshot: Path) -> None:
    streams = list(open_snapshot(snapshot).streams())
    for wrong in (
        [*streams[:-1], replace(streams[-1], expire_ms=77)],
        [replace(streams[0], first_id=MIN_ID), *streams[1:]],
        streams[1:],
        [*streams, replace(streams[-1], stream_no=99)],
    ):
        (snapshot / STREAMS_NAME).write_bytes(b"".join(map(encode_stream_line, wrong)))
        seal(snapshot)
        assert any(STREAMS_NAME in violation for violation in found(snapshot))


def test_what_is_no_snapshot_or_a_newer_one_is_refused(snapshot: Path) -> None:
    with pytest.raises(NoSnapshotError):
        found(snapshot.parent / "store")
    tables = Tables(snapshot.parent / "other", 1 << 28)
    with tables.env.begin(write=True) as txn:
        txn.put(b"format_version", pack_row(9), db=tables.handles["meta"])
    tables.close()
    (snapshot / DATA_NAME).write_bytes((snapshot.parent / "other" / "state" / DATA_NAME).read_bytes())
    seal(snapshot)
    with pytest.raises(VersionError):
        found(snapshot)
