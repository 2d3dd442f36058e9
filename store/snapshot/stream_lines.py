"""streams.jsonl of a snapshot: one line a stream, with its key, length, IDs, and where to cut it.

IDs are texts: JSON's numbers lose their last digits in most readers.  FORMAT.md has every field.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from riverbed.store.ids import StreamID, id_text, parse_id
from riverbed.store.snapshot.manifest import checked_number, checked_text

_encode_line = json.JSONEncoder(separators=(",", ":")).encode


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


def encode_stream_line(stream: StreamSummary) -> bytes:
    """One line of streams.jsonl."""
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
    length, first_id = checked_number(values["length"]), _parse_id(values["first_id"])
    if "parts" in values:
        parts = tuple(
            StreamPart(_parse_id(start), checked_number(entries), checked_number(size))
            for start, entries, size in values["parts"]
        )
    else:
        parts = (StreamPart(first_id, length, checked_number(values["bytes"])),) if length else ()
    return StreamSummary(
        stream_no=checked_number(values["stream_no"]),
        db=checked_number(values["db"]),
        key=_decode_key(values),
        length=length,
        first_id=first_id,
        last_live_id=_parse_id(values["last_live_id"]),
        last_id=_parse_id(values["last_id"]),
        max_deleted_id=_parse_id(values["max_deleted_id"]),
        entries_added=checked_number(values["entries_added"]),
        expire_ms=checked_number(values["expire_ms"]),
        groups=checked_number(values["groups"]),
        parts=parts,
    )


def _decode_key(values: dict[str, Any]) -> bytes:
    if "key" in values:
        return checked_text(values["key"]).encode()
    try:
        return base64.b64decode(checked_text(values["key_base64"]), validate=True)
    except binascii.Error as error:
        raise ValueError(f"key_base64: {error}") from error


def _id_text(entry_id: StreamID) -> str:
    return id_text(entry_id).decode()


def _parse_id(text: str) -> StreamID:
    entry_id = parse_id(checked_text(text).encode())
    if entry_id is None:
        raise ValueError(f"not an ID: {text!r}")
    return entry_id
