"""The streams that a read transaction sees, and their nodes, in the order of their numbers, as in every table.

Dead rows are left out.  No entry is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.meta import read_databases
from riverbed.store.format.streams import (
    NodeRow,
    StreamRow,
    decode_name_key,
    encode_keyspace_no,
    entry_key,
    id_in_key,
    key_key,
    name_key,
    stream_prefix,
)
from riverbed.store.ids import ID_BYTES, StreamID
from riverbed.store.tables.places import seek
from riverbed.store.tables.reader import TableReader

if TYPE_CHECKING:
    import lmdb

_LAST_NO: Final = (1 << 64) - 1


class LiveStream(NamedTuple):
    """A key with its row and its database."""

    db: int
    key: bytes
    row: StreamRow


class MissingRowError(ValueError):
    """A key has a number and no row."""


def keyspaces(reader: TableReader) -> list[int]:
    """The numbers of the keyspaces, by database.  Raises one of DECODE_ERRORS."""
    return [database.keyspace_no for database in read_databases(reader.meta_row)]


def streams(
    reader: TableReader,
    first_no: int = 0,
    last_no: int = _LAST_NO,
    wants: Callable[[int, bytes], bool] = lambda db, key: True,
) -> Iterator[LiveStream]:
    """The streams with numbers from `first_no` to `last_no` for which `wants(database, key)` is true.

    Raises MissingRowError or another one of DECODE_ERRORS.
    """
    each = [_names(reader, *keyspace, first_no, last_no) for keyspace in enumerate(keyspaces(reader))]
    for _, db, keyspace_no, key in merge(*each):
        if wants(db, key):
            yield LiveStream(db, key, _row(reader, keyspace_no, key))


def numbered_streams(reader: TableReader, numbers: Iterable[int]) -> Iterator[LiveStream]:
    """The streams with these numbers, in their order, without those that are not there any more.

    Raises as `streams` does.
    """
    spaces = list(enumerate(keyspaces(reader)))
    for number in numbers:
        for place, (db, keyspace_no) in enumerate(spaces):
            key = reader.get("names", name_key(keyspace_no, number))
            if key is not None:
                # Mostly the next stream is in the same database.
                spaces.insert(0, spaces.pop(place))
                yield LiveStream(db, key, _row(reader, keyspace_no, key))
                break


def _row(reader: TableReader, keyspace_no: int, key: bytes) -> StreamRow:
    row = stream_row(reader, keyspace_no, key)
    if row is None:
        raise MissingRowError(f"the key {key[:60]!r} has a number and no row")
    return row


def stream_row(reader: TableReader, keyspace_no: int, key: bytes) -> StreamRow | None:
    """The row of the stream at `key`; None without one.  Raises DamagedRowError, one of DECODE_ERRORS."""
    packed = key_key(keyspace_no, key)
    row = reader.get("keys", packed)
    return None if row is None else StreamRow.unpack(packed, row)


def _names(
    reader: TableReader, db: int, keyspace_no: int, first_no: int, last_no: int
) -> Iterator[tuple[int, int, int, bytes]]:
    first = name_key(keyspace_no, first_no)
    for packed, key in reader.rows("names", encode_keyspace_no(keyspace_no), first):
        _, stream_no = decode_name_key(packed)
        if stream_no > last_no:
            return
        yield stream_no, db, keyspace_no, key


def nodes_of(reader: TableReader, row: StreamRow) -> Iterator[tuple[StreamID, NodeRow]]:
    """(first ID, node) of a stream's nodes, in order, from its floor on, including the tail, which has no row.

    Raises DamagedRowError.
    """
    count = 0
    if row.node_count:
        for key, node in reader.rows("nodes", stream_prefix(row.stream_no), entry_key(row.stream_no, row.floor_id)):
            yield id_in_key(key), NodeRow.unpack(key, node)
            count += 1
    if count != row.node_count:
        raise DamagedRowError("a node", row.stream_no)
    if row.tail is not None:
        yield row.tail_first_id, row.tail


def estimated_bytes(nodes: lmdb.Cursor[bytes], prefix: bytes, length: int, node_count: int, tail_bytes: int) -> int:
    """The bytes that a stream's entries take on disk, estimated from its counters and those of its first nodes."""
    size = seen = 0
    if node_count and seek(nodes, prefix):
        for key, row in islice(nodes.iternext(), 64):
            if not key.startswith(prefix):
                break
            size += NodeRow.unpack(key, row).size
            seen += 1
    if node_count > seen > 0:
        size = size * node_count // seen
    return tail_bytes + size + length * (8 + ID_BYTES) + 200
