"""Opens and verifies snapshots: the tables as one checkpoint left them, in files that never change.

    NAME/
      data.mdb          a compact copy of state/data.mdb: an LMDB environment of its own
      streams.jsonl     one line a stream, by stream number: key, length, IDs, and where to cut it
      manifest.json     what it is, when and where it was taken, and the length and checksum of the other two

The manifest is written last, with a checksum of its own, into a directory that gets its name afterwards: a directory
without a sound manifest is no snapshot.  Streams are in a separate file, as there may be millions of them, and a reader
of one stream, or of the totals, need not hold them all.

FORMAT.md has every field.  `writer.py` makes snapshots; this module knows no log and no server.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb
from crc32c import crc32c

from riverbed.store.disk.real_files import open_file, read_file, require_file
from riverbed.store.errors import CorruptionError, NoSnapshotError, VersionError
from riverbed.store.format.rows import FORMAT_VERSION, OLDEST_VERSION
from riverbed.store.ids import StreamID, id_text, parse_id
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, SNAPSHOTS_DIRECTORY, STREAMS_NAME
from riverbed.store.position import LogPosition
from riverbed.store.progress import ignore
from riverbed.store.tables.environment import Tables

SNAPSHOT_FORMAT: Final = "riverbed-snapshot"
SNAPSHOT_VERSION: Final = 1
# Directories whose names begin like this are being made, or deleted, or were left behind by a kill.
TEMPORARY_PREFIX: Final = ".temp-"

_MAX_MANIFEST_BYTES: Final = 1 << 20
_MAX_NUMBER: Final = (1 << 64) - 1
# Redis's protocol has replication offsets of 63 bits, and the server that is restored counts on from this one.
_MAX_OFFSET: Final = (1 << 62) - 1
# A row of an entry takes more than this: a length beyond is a forgery, and a reader that plans by it would never end.
_MIN_ENTRY_BYTES: Final = 16
_MAX_LINE: Final = 64 << 20
_READ_BYTES: Final = 1 << 20
_GUARD = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n')
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,126}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file must be: its length, and the CRC-32C of all of it."""

    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """manifest.json.  `rows` counts the rows of each table, dead ones included; `entries` is what clients see."""

    program: str
    source: str  # host and data directory, for people
    is_automatic: bool  # the server chose the name, and retention may remove it
    time_ms: int  # when the copy was begun
    position: LogPosition  # all of the log up to here is in it
    replication_id: str | None
    store_id: str | None
    numbering: str | None  # of the tables whose stream numbers these are
    split_every: int
    streams: int
    entries: int
    rows: dict[str, int]
    data_file: FileDigest
    streams_file: FileDigest

    @property
    def offset(self) -> int:
        """The replication offset: what was logged up to here is in the snapshot, and nothing else."""
        return self.position.offset


@dataclass(frozen=True, slots=True)
class StreamPart:
    """About `split_every` entries in a row, from `first_id` up to the `first_id` of the next part.

    `first_id` itself may be deleted.  `byte_count` is the size of their rows, nearly.
    """

    first_id: StreamID
    entries: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """One stream of a snapshot.  Its entries are the rows of table `entries` from `first_id` to `last_live_id`.

    Nothing below `first_id` counts: rows there are dead and wait for the purge.  `parts` is empty for a stream without
    entries, and has one element for a short one.
    """

    stream_no: int
    db: int
    key: bytes
    length: int
    first_id: StreamID  # the oldest entry; 0-0 without any
    last_live_id: StreamID  # the newest entry; 0-0 without any
    last_id: StreamID
    max_deleted_id: StreamID
    entries_added: int
    expire_ms: int  # unix time, 0 without a deadline
    groups: int
    parts: tuple[StreamPart, ...]

    @property
    def byte_count(self) -> int:
        return sum(part.byte_count for part in self.parts)


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
        data = read_file(manifest_path, _MAX_MANIFEST_BYTES + 1)
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


def _explain_missing(path: Path) -> str:
    if not os.path.lexists(path):
        return f"there is no snapshot {path}"
    if not path.is_dir():
        return f"{path} is not a snapshot: it is not a directory"
    if (path / "state" / DATA_NAME).exists():
        return f"{path} is not a snapshot but a data directory; its snapshots are in {path / SNAPSHOTS_DIRECTORY}"
    if (path / DATA_NAME).exists():
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
        if name.startswith(TEMPORARY_PREFIX) or (folder / name).is_symlink():
            continue
        try:
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


# -- manifest.json -----------------------------------------------------------------------------------------------------


def encode_manifest(manifest: SnapshotManifest, time_text: str) -> bytes:
    """The bytes of manifest.json; `time_text` is its `time_ms` for people."""
    values = {
        "format": SNAPSHOT_FORMAT,
        "version": SNAPSHOT_VERSION,
        "tables_version": FORMAT_VERSION,
        "program": manifest.program,
        "source": manifest.source,
        "automatic": manifest.is_automatic,
        "time": time_text,
        "time_ms": manifest.time_ms,
        "offset": manifest.offset,
        "position": list(manifest.position[:2]),
        "replication_id": manifest.replication_id,
        "store_id": manifest.store_id,
        "numbering": manifest.numbering,
        "split_every": manifest.split_every,
        "streams": manifest.streams,
        "entries": manifest.entries,
        "rows": manifest.rows,
        "files": {
            DATA_NAME: _digest_values(manifest.data_file),
            STREAMS_NAME: _digest_values(manifest.streams_file),
        },
    }
    text = json.dumps(values, indent=1).encode().removesuffix(b"\n}")
    return text + b',\n "crc32c": "%08x"\n}\n' % crc32c(text)


def _digest_values(digest: FileDigest) -> dict[str, Any]:
    return {"bytes": digest.size, "crc32c": f"{digest.checksum:08x}"}


def decode_manifest(data: bytes, file: str) -> SnapshotManifest:
    """The manifest in `data`; `file` names it in errors.

    Raises NoSnapshotError when it is not the manifest of a snapshot, VersionError when it is newer, CorruptionError
    when it is damaged or was never finished.
    """
    if len(data) > _MAX_MANIFEST_BYTES:
        raise NoSnapshotError(f"{file} is not the manifest of a snapshot: it is too long")
    guard = _GUARD.search(data)
    if guard is None or guard.end() != len(data) or int(guard[1], 16) != crc32c(data[: guard.start()]):
        if b'"%b"' % SNAPSHOT_FORMAT.encode() not in data and _is_json(data):
            raise NoSnapshotError(f"{file} is not the manifest of a snapshot of Riverbed")
        raise CorruptionError(file, None, "its checksum does not fit: it was damaged, or never finished")
    try:
        values = json.loads(data)
        if values["format"] != SNAPSHOT_FORMAT:
            raise NoSnapshotError(f"{file} is not the manifest of a snapshot of Riverbed")
        for name, oldest, newest in (
            ("version", SNAPSHOT_VERSION, SNAPSHOT_VERSION),
            ("tables_version", OLDEST_VERSION, FORMAT_VERSION),
        ):
            if not oldest <= _number(values[name]) <= newest:
                reason = f"has {name.replace('_', ' ')} {values[name]}; this program reads {newest}"
                raise VersionError(f"{file} {reason} (it was written by {values.get('program')})")
        return _decode_values(values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptionError(file, None, f"does not decode: {error!r}") from error


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _decode_values(values: dict[str, Any]) -> SnapshotManifest:
    file_seq, byte = values["position"]
    if type(file_seq) is not int or abs(file_seq) > _MAX_NUMBER:  # below 0 in a base
        raise ValueError(f"not a number: {file_seq!r}")
    # older versions wrote no more than the first of these
    ids = [values["replication_id"], values.get("store_id"), values.get("numbering")]
    replication_id, store_id, numbering = [None if each is None else _text(each) for each in ids]
    return SnapshotManifest(
        program=_text(values["program"]),
        source=_text(values["source"]),
        is_automatic=values["automatic"] is True,
        time_ms=_number(values["time_ms"]),
        position=LogPosition(file_seq, _number(byte), _offset(values["offset"])),
        replication_id=replication_id,
        store_id=store_id,
        numbering=numbering,
        split_every=_number(values["split_every"]),
        streams=_number(values["streams"]),
        entries=_number(values["entries"]),
        rows={_text(table): _number(count) for table, count in values["rows"].items()},
        data_file=_decode_digest(values["files"][DATA_NAME]),
        streams_file=_decode_digest(values["files"][STREAMS_NAME]),
    )


def _decode_digest(values: dict[str, Any]) -> FileDigest:
    return FileDigest(_number(values["bytes"]), int(_text(values["crc32c"]), 16))


def _offset(value: Any) -> int:
    offset = _number(value)
    if offset > _MAX_OFFSET:
        raise ValueError(f"no replication offset: {value!r}")
    return offset


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"not a number: {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r}")
    return value


# -- streams.jsonl -----------------------------------------------------------------------------------------------------

_encode_line = json.JSONEncoder(separators=(",", ":")).encode


def encode_stream_line(stream: StreamSummary) -> bytes:
    """One line of streams.jsonl.  IDs are texts: JSON's numbers lose their last digits in most readers."""
    values: dict[str, Any] = {"stream_no": stream.stream_no, "db": stream.db}
    try:
        values["key"] = stream.key.decode()
    except UnicodeDecodeError:
        values["key_base64"] = base64.b64encode(stream.key).decode()
    values |= {
        "length": stream.length,
        "first_id": _id_text(stream.first_id),
        "last_live_id": _id_text(stream.last_live_id),
        "last_id": _id_text(stream.last_id),
        "max_deleted_id": _id_text(stream.max_deleted_id),
        "entries_added": stream.entries_added,
        "expire_ms": stream.expire_ms,
        "groups": stream.groups,
        "bytes": stream.byte_count,
    }
    if len(stream.parts) > 1:
        values["parts"] = [[_id_text(part.first_id), part.entries, part.byte_count] for part in stream.parts]
    return _encode_line(values).encode() + b"\n"


def decode_stream_line(line: bytes) -> StreamSummary:
    """-> the stream of one line.  Raises ValueError, TypeError, KeyError when the line holds none."""
    values = json.loads(line)
    length, first_id = _number(values["length"]), _parse_id(values["first_id"])
    if "parts" in values:
        parts = tuple(
            StreamPart(_parse_id(start), _number(entries), _number(size)) for start, entries, size in values["parts"]
        )
    else:
        parts = (StreamPart(first_id, length, _number(values["bytes"])),) if length else ()
    return StreamSummary(
        stream_no=_number(values["stream_no"]),
        db=_number(values["db"]),
        key=_decode_key(values),
        length=length,
        first_id=first_id,
        last_live_id=_parse_id(values["last_live_id"]),
        last_id=_parse_id(values["last_id"]),
        max_deleted_id=_parse_id(values["max_deleted_id"]),
        entries_added=_number(values["entries_added"]),
        expire_ms=_number(values["expire_ms"]),
        groups=_number(values["groups"]),
        parts=parts,
    )


def _decode_key(values: dict[str, Any]) -> bytes:
    if "key" in values:
        return _text(values["key"]).encode()
    try:
        return base64.b64decode(_text(values["key_base64"]), validate=True)
    except binascii.Error as error:
        raise ValueError(f"key_base64: {error}") from error


def _id_text(entry_id: StreamID) -> str:
    return id_text(entry_id).decode()


def _parse_id(text: str) -> StreamID:
    entry_id = parse_id(_text(text).encode())
    if entry_id is None:
        raise ValueError(f"not an ID: {text!r}")
    return entry_id
