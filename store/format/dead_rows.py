"""Table `trash`: notes of rows that no command can reach any more, which the purge deletes.

A note is `[kind, number, ...]`, and each kind has a type here.  The kinds are on disk: never renumber them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from riverbed.store.format.packing import pack_row, unpack_row
from riverbed.store.format.rows import pack_ids, unpack_ids
from riverbed.store.ids import StreamID

_NOTE: Final = Struct(">Q")  # number of the note:u64, in the order of arrival


class DeadStream(NamedTuple):
    """All rows under the number of a stream, or of a stream's idempotence records."""

    stream_no: int


class DeadRange(NamedTuple):
    """Entries and nodes of a stream below an ID."""

    stream_no: int
    floor_id: StreamID


class DeadKeyspace(NamedTuple):
    """All keys of a keyspace number, and their streams."""

    keyspace_no: int


class DeadGroup(NamedTuple):
    """All pending entries of a group number, and its consumers under the stream's number."""

    group_no: int
    stream_no: int


class DeadConsumer(NamedTuple):
    """The pending entries of one consumer number of a group number."""

    group_no: int
    consumer_no: int


DeadRows: TypeAlias = DeadStream | DeadRange | DeadKeyspace | DeadGroup | DeadConsumer

_KINDS: Final[tuple[type[DeadRows], ...]] = (DeadStream, DeadRange, DeadKeyspace, DeadGroup, DeadConsumer)


def note_key(note_no: int) -> bytes:
    return _NOTE.pack(note_no)


def decode_note_key(packed: bytes) -> int:
    (note_no,) = _NOTE.unpack(packed)
    return int(note_no)


def pack_note(note: DeadRows) -> bytes:
    values = [note.stream_no, pack_ids(note.floor_id)] if isinstance(note, DeadRange) else note
    return pack_row([_KINDS.index(type(note)) + 1, *values])


def unpack_note(row: bytes) -> DeadRows:
    """Raises one of DECODE_ERRORS."""
    kind, *values = unpack_row(row)
    if not 1 <= kind <= len(_KINDS):
        raise ValueError(f"there are no notes of kind {kind}")
    note: DeadRows = _KINDS[kind - 1](*values)
    if isinstance(note, DeadRange):
        stream_no, packed_id = values
        return DeadRange(stream_no, *unpack_ids(packed_id))
    return note
