"""Opens and verifies snapshots: the tables as one checkpoint left them, in files that never change.

    NAME/
      data.mdb          a compact copy of state/data.mdb: an LMDB environment of its own
      streams.jsonl     one line a stream, by stream number: key, length, IDs, and where to cut it
      manifest.json     what it is, when and where it was taken, and the length and checksum of the other two

The manifest is written last, with a checksum of its own, into a directory that gets its name afterwards: a directory
without a sound manifest is no snapshot.  Streams are in a separate file, as there may be millions of them, and a reader
of one stream, or of the totals, need not hold them all.

`manifest.py` and `stream_lines.py` have the fields, `writer.py` makes snapshots; none of them knows a log or a server.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.checksum import crc32c
from riverbed.store.disk.real_files import is_directory, is_there, open_file, read_file, require_file
from riverbed.store.errors import CorruptionError, NoSnapshotError, StoreError, VersionError
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, SNAPSHOTS_DIRECTORY, STREAMS_NAME
from riverbed.store.progress import ignore
from riverbed.store.snapshot.manifest import MAX_MANIFEST_BYTES, FileDigest, SnapshotManifest, decode_manifest
from riverbed.store.snapshot.stream_lines import StreamSummary, decode_stream_line
from riverbed.store.tables.environment import Tables

# Directories whose names begin like this are being made, or deleted, or were left behind by a kill.
TEMPORARY_PREFIX: Final = ".temp-"

# A row of an entry takes more than this: a length beyond is a forgery, and a reader that plans by it would never end.
_MIN_ENTRY_BYTES: Final = 16
_MAX_LINE: Final = 64 << 20
_READ_BYTES: Final = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,126}", re.ASCII)


class Snapshot:
    """A whole snapshot on disk; made by `open_snapshot`."""

    def __init__(self, path: Path, manifest: SnapshotManifest) -> None:
        self.path = path
        self.manifest = manifest

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def size_bytes(self) -> int:
        return self.manifest.data_file.size + self.manifest.streams_file.size

    def check_streams(self) -> None:
        """Compare streams.jsonl with its checksum.  Raises CorruptionError, OSError."""
        verify_file(self.path / STREAMS_NAME, self.manifest.streams_file)

    def streams(self) -> Iterator[StreamSummary]:
        """Every stream, in the order of its number, which is that of table `entries`.

        The file's checksum is verified before the first stream.  Raises CorruptionError, OSError.
        """
        path = self.path / STREAMS_NAME
        self.check_streams()
        count = 0
        most_entries = self.manifest.data_file.size // _MIN_ENTRY_BYTES
        with open(open_file(path, os.O_RDONLY), "rb") as lines:
            while line := lines.readline(_MAX_LINE):
                count += 1
                try:
                    stream = decode_stream_line(line)
                    if stream.length > most_entries or sum(part.entries for part in stream.parts) != stream.length:
                        raise ValueError(f"{stream.length} entries, which the tables cannot hold in these parts")
                    yield stream
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    raise CorruptionError(str(path), None, f"line {count}: {error!r}") from error
        if count != self.manifest.streams:
            raise CorruptionError(str(path), None, f"{count} streams, and the manifest counts {self.manifest.streams}")

    def open_tables(self) -> Tables:
        """The tables, read only and without a lock file; the caller closes them.

        Raises CorruptionError, VersionError.
        """
        try:
            return Tables(self.path, self.manifest.data_file.size, frozen=True)
        except lmdb.Error as error:
            raise CorruptionError(str(self.path / DATA_NAME), None, str(error)) from error

    def verify(self, progress: Callable[[int], None] = ignore) -> None:
        """Compare every byte with the checksums.  Raises CorruptionError, OSError."""
        self.check_streams()
        verify_file(self.path / DATA_NAME, self.manifest.data_file, progress)


# -- opening -----------------------------------------------------------------------------------------------------------


def open_snapshot(path: Path, *, verify: bool = False) -> Snapshot:
    """Open the snapshot at `path` and check its files' presence and lengths, and every byte if `verify`.

    `path` may be a link, and nothing in it.  Raises NoSnapshotError when there is none, or one that was never finished;
    VersionError when it is of a newer version; CorruptionError when it is damaged; UnsafeFileError when anything but a
    file stands for one; OSError.
    """
    manifest_path = path / MANIFEST_NAME
    try:
        data = read_file(manifest_path, MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSnapshotError(_explain_missing(path)) from None
    manifest = decode_manifest(data, str(manifest_path))
    for name, digest in ((DATA_NAME, manifest.data_file), (STREAMS_NAME, manifest.streams_file)):
        try:
            require_file(path / name)
            size = (path / name).lstat().st_size
        except FileNotFoundError:
            raise CorruptionError(str(path / name), None, "the manifest speaks of it, and it is missing") from None
        if size != digest.size:
            raise CorruptionError(str(path / name), None, f"{size} bytes long; it must be {digest.size}")
    snapshot = Snapshot(path, manifest)
    if verify:
        snapshot.verify()
    return snapshot


def is_snapshot(path: Path) -> bool:
    """Whether there is a snapshot at `path` whose files are there, in their lengths."""
    try:
        open_snapshot(path)
    except (StoreError, OSError):
        return False
    return True


def _explain_missing(path: Path) -> str:
    if not is_there(path, follows=False):
        return f"there is no snapshot {path}"
    if not is_directory(path):
        return f"{path} is not a snapshot: it is not a directory"
    if is_there(path / "state" / DATA_NAME):
        return f"{path} is not a snapshot but a data directory; its snapshots are in {path / SNAPSHOTS_DIRECTORY}"
    if is_there(path / DATA_NAME):
        return f"{path} has no {MANIFEST_NAME}: a snapshot that was never finished, or a copy that is not whole yet"
    return f"{path} is not a snapshot: it has no {MANIFEST_NAME}"


def list_snapshots(folder: Path) -> list[Snapshot]:
    """The whole snapshots in `folder`, the oldest first.  What is unfinished, damaged, newer or a link is left out."""
    found = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for name in names:
        if name.startswith(TEMPORARY_PREFIX):
            continue
        try:
            if not stat.S_ISLNK((folder / name).lstat().st_mode):
                found.append(open_snapshot(folder / name))
        except (NoSnapshotError, VersionError, CorruptionError, OSError):
            continue
    return sorted(found, key=lambda snapshot: (snapshot.manifest.time_ms, snapshot.manifest.offset, snapshot.name))


def is_snapshot_name(name: str) -> bool:
    """Whether `name` is of letters, digits and, after the first, `._+-`: no path, and nothing hidden."""
    return _NAME.fullmatch(name) is not None


def verify_file(path: Path, expected: FileDigest, progress: Callable[[int], None] = ignore) -> None:
    """Compare a file, or a copy of it, with its digest.  Raises CorruptionError, OSError."""
    checksum = size = 0
    with open(open_file(path, os.O_RDONLY), "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            checksum = crc32c(data, checksum)
            size += len(data)
            progress(size)
    if size != expected.size:
        raise CorruptionError(str(path), None, f"{size} bytes long; it must be {expected.size}")
    if checksum != expected.checksum:
        raise CorruptionError(str(path), None, f"CRC-32C is {checksum:08x}; it must be {expected.checksum:08x}")
