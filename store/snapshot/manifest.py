"""manifest.json of a snapshot: what it is, when and where it was taken, and what its other files must be.

Its last line is a checksum of all before it.  FORMAT.md has every field.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from riverbed.store.checksum import crc32c
from riverbed.store.errors import CorruptionError, NoSnapshotError, VersionError
from riverbed.store.format.rows import FORMAT_VERSION, OLDEST_VERSION
from riverbed.store.layout import DATA_NAME, STREAMS_NAME
from riverbed.store.position import MAX_OFFSET, LogPosition

SNAPSHOT_FORMAT: Final = "riverbed-snapshot"
SNAPSHOT_VERSION: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 20
_MAX_NUMBER: Final = (1 << 64) - 1
_MAX_TIME_MS: Final = (1 << 63) - 1  # readers compute with it in 64 bits
_GUARD = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n')


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file must be: its length, and the CRC-32C of all of it."""

    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """manifest.json.  `rows` counts the rows of each table, dead ones included; `entries` is what clients see."""

    tables_version: int  # of the format of the tables, which may be an earlier one than the program's
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


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """The bytes of manifest.json."""
    moment = datetime.fromtimestamp(manifest.time_ms // 1000, UTC)
    values = {
        "format": SNAPSHOT_FORMAT,
        "version": SNAPSHOT_VERSION,
        "tables_version": manifest.tables_version,
        "program": manifest.program,
        "source": manifest.source,
        "automatic": manifest.is_automatic,
        "time": f"{moment:%Y-%m-%dT%H:%M:%S}.{manifest.time_ms % 1000:03d}Z",
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
    if len(data) > MAX_MANIFEST_BYTES:
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
            if not oldest <= checked_number(values[name]) <= newest:
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
    replication_id, store_id, numbering = [None if each is None else checked_text(each) for each in ids]
    return SnapshotManifest(
        tables_version=checked_number(values["tables_version"]),
        program=checked_text(values["program"]),
        source=checked_text(values["source"]),
        is_automatic=values["automatic"] is True,
        time_ms=_bounded(values["time_ms"], _MAX_TIME_MS),
        position=LogPosition(file_seq, checked_number(byte), _bounded(values["offset"], MAX_OFFSET)),
        replication_id=replication_id,
        store_id=store_id,
        numbering=numbering,
        split_every=checked_number(values["split_every"]),
        streams=checked_number(values["streams"]),
        entries=checked_number(values["entries"]),
        rows={checked_text(table): checked_number(count) for table, count in values["rows"].items()},
        data_file=_decode_digest(values["files"][DATA_NAME]),
        streams_file=_decode_digest(values["files"][STREAMS_NAME]),
    )


def _decode_digest(values: dict[str, Any]) -> FileDigest:
    return FileDigest(checked_number(values["bytes"]), int(checked_text(values["crc32c"]), 16))


def _bounded(value: Any, most: int) -> int:
    number = checked_number(value)
    if number > most:
        raise ValueError(f"beyond {most}: {number}")
    return number


def checked_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError(f"not a number: {value!r}")
    return value


def checked_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not a text: {value!r}")
    return value
