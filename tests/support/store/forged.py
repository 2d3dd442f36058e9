"""Snapshots with damage that their checksums do not show."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from crc32c import crc32c

from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, STREAMS_NAME
from riverbed.store.snapshot.manifest import FileDigest, encode_manifest
from riverbed.store.snapshot.reader import Snapshot, open_snapshot


def forge_page(snapshot: Path) -> None:
    """Break a leaf page, and write a manifest whose checksums fit."""
    data = bytearray((snapshot / DATA_NAME).read_bytes())
    page = max(at for at in range(8192, len(data), 4096) if data[at + 10] & 2)  # a leaf
    data[page + 12 : page + 14] = b"\xff\xff"  # where its free space begins
    (snapshot / DATA_NAME).write_bytes(data)
    fit_data(open_snapshot(snapshot))


def fit_data(snapshot: Snapshot) -> None:
    """Write a manifest whose checksum fits the tables."""
    data = (snapshot.path / DATA_NAME).read_bytes()
    fitting = replace(snapshot.manifest, data_file=FileDigest(len(data), crc32c(data)))
    (snapshot.path / MANIFEST_NAME).write_bytes(encode_manifest(fitting))


# What no stream can have as its length, as JSON.
LENGTHS = ("1" + 30 * "0", "9" * 5000, str(1 << 60), "-1", '"100"', "1e30", "NaN", "null", "[]")


def forge_length(snapshot: Path, length: str) -> None:
    """Give the first stream a `length`, and write a manifest whose checksums fit."""
    known = open_snapshot(snapshot).manifest
    sound = (snapshot / STREAMS_NAME).read_bytes()
    lines = re.sub(rb'"length":\d+', b'"length":' + length.encode(), sound, count=1)
    (snapshot / STREAMS_NAME).write_bytes(lines)
    fitting = replace(known, streams_file=FileDigest(len(lines), crc32c(lines)))
    (snapshot / MANIFEST_NAME).write_bytes(encode_manifest(fitting))
