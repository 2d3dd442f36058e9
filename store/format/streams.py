"""Tables `keys`, `names`, `entries`, `nodes` and `expiry`: streams.

keys     keyspace_no:u32 kind:u8 key or its digest    -> the stream's row
names    keyspace_no:u32 stream_no:u64                -> key
entries  stream_no:u64 ms:u64 seq:u64                 -> an entry, see `resp.py`
nodes    stream_no:u64 ms:u64 seq:u64                 -> a node, under the ID of its first entry
expiry   deadline_ms:u64 stream_no:u64                -> keyspace_no:u32
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import astuple
from struct import Struct
from typing import Final, NamedTuple

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.packing import add_checksum, is_bound, pack_row, unpack_row, without_checksum
from riverbed.store.format.rows import pack_ids, unpack_ids
from riverbed.store.ids import StreamID, pack_id, unpack_id
from riverbed.store.model import IdempotenceSettings, Row
from riverbed.store.wire import open_stream, pack_stream

# LMDB refuses keys above 511 bytes; client keys longer than this are stored under their digest.
MAX_PLAIN_KEY: Final = 400
ENTRY_KEY_BYTES: Final = 24
MAX_COUNT: Final = (1 << 63) - 1  # of what was added, read or delivered: the numbers of a log have a sign

_FAR_FROM_MAX: Final = 1 << 61  # compared faster by compiled code

_DIGEST_BYTES: Final = 32
_PLAIN: Final = 0
_DIGEST: Final = 1
_PREFIX_BYTES: Final = 8

_KEYSPACE_KIND: Final = Struct(">IB")  # keyspace_no:u32 kind:u8, then the client's key or its digest
_KEYSPACE_STREAM: Final = Struct(">IQ")  # keyspace_no:u32 stream_no:u64
_STREAM: Final = Struct(">Q")  # stream_no:u64
_NODE: Final = Struct(">IIQ16s")  # live:u32 total:u32 bytes:u64 last_id:16
_NODE_LIVE: Final = Struct(">I28x")  # the first field alone
_DEADLINE: Final = Struct(">QQ")  # deadline_ms:u64 stream_no:u64
_KEYSPACE: Final = Struct(">I")  # keyspace_no:u32

assert _KEYSPACE_KIND.size == 5
assert _KEYSPACE_STREAM.size == 12
assert _STREAM.size == _PREFIX_BYTES
assert _NODE.size == _NODE_LIVE.size == 32
assert _DEADLINE.size == 16


def add_counts(count: int, more: int) -> int:
    """-> their sum, at most MAX_COUNT.  A client may set a count as high as that, and go on from there."""
    total = count + more
    return total if total < _FAR_FROM_MAX else min(total, MAX_COUNT)


class StreamRow(NamedTuple):
    """A stream: `[stream_no, long_key, length, entries_added, expire_ms, 7 IDs, group_count, 4 numbers, idempotence]`.

    `streams/stream.py` says what the values mean.
    """

    stream_no: int
    long_key: bytes | None  # the key, when it is too long to stand in the row's key
    length: int
    entries_added: int
    expire_ms: int
    first_id: StreamID
    last_id: StreamID
    last_live_id: StreamID
    max_deleted_id: StreamID
    floor_id: StreamID
    tail_first_id: StreamID
    tail_last_id: StreamID
    group_count: int
    node_count: int
    tail_total: int
    tail_dead: int
    tail_bytes: int
    idempotence: IdempotenceSettings | None

    @property
    def records_no(self) -> int:
        """The number under which the stream's idempotence records stand, 0 when there are none."""
        return 0 if self.idempotence is None else self.idempotence.records_no

    @property
    def tail(self) -> NodeRow | None:
        """The last node, which has no row of its own."""
        if not self.tail_total:
            return None
        return NodeRow(self.tail_total - self.tail_dead, self.tail_total, self.tail_bytes, self.tail_last_id)

    def pack(self, key: bytes) -> bytes:
        row = pack_stream(key, self)
        if row is not None:
            return row
        idempotence = None if self.idempotence is None else astuple(self.idempotence)
        return pack_row([*self[:5], pack_ids(*self[5:12]), self.group_count, self[13:17], idempotence], key)

    @staticmethod
    def is_bound(key: bytes, row: bytes) -> bool:
        """Whether a row has a checksum that fits its key; older ones have no such checksum."""
        return is_bound(row, key)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> StreamRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        values = open_stream(key, row)
        if values is not None:
            return cls._make(values)
        *head, ids, group_count, nodes, idempotence = unpack_row(row, key)
        if idempotence is not None:
            duration_s, max_records, records_no, records_added, duplicates = idempotence
            idempotence = IdempotenceSettings(duration_s, max_records, records_no, records_added, duplicates)
        return cls._make((*head, *unpack_ids(ids), group_count, *nodes, idempotence))


class NodeRow(NamedTuple):
    """A node: how many of its entries are left, and its numbers when it was closed."""

    live: int
    total: int
    size: int  # bytes
    last_id: StreamID

    @property
    def live_bytes(self) -> int:
        """About how many of its bytes are left."""
        return self.size * self.live // max(self.total, 1)

    def pack(self, key: bytes) -> bytes:
        live, total, size, last_id = self
        return add_checksum(_NODE.pack(live, total, size, pack_id(last_id)), key)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> NodeRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        live, total, size, last_id = _NODE.unpack(row if len(row) == _NODE.size else without_checksum(row, key))
        return cls(live, total, size, unpack_id(last_id))


def decode_live_counts(rows: list[Row]) -> list[int]:
    """`live` of many nodes, cheaper than `NodeRow`, for trims that pass over thousands of them."""
    bare = [row if len(row) == _NODE.size else without_checksum(row, key) for key, row in rows]
    return [live for (live,) in _NODE_LIVE.iter_unpack(b"".join(bare))]


# -- keys --------------------------------------------------------------------------------------------------------------


def key_key(keyspace_no: int, key: bytes) -> bytes:
    """`keyspace_no:u32 kind:u8 key` (kind 0) or, past 400 bytes, `keyspace_no:u32 kind:u8 blake2b-256` (kind 1)."""
    if len(key) <= MAX_PLAIN_KEY:
        return _KEYSPACE_KIND.pack(keyspace_no, _PLAIN) + key
    return _KEYSPACE_KIND.pack(keyspace_no, _DIGEST) + hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


def decode_key_key(packed: bytes) -> tuple[int, bytes | None]:
    """-> (keyspace_no, key); the key is None when it stands in the row.  Raises ValueError for any other kind."""
    keyspace_no, kind = _KEYSPACE_KIND.unpack_from(packed)
    name = packed[_KEYSPACE_KIND.size :]
    if kind == _PLAIN and len(name) <= MAX_PLAIN_KEY:
        return keyspace_no, name
    if kind == _DIGEST and len(name) == _DIGEST_BYTES:
        return keyspace_no, None
    raise ValueError(f"a key of kind {kind} with {len(name)} bytes")


def name_key(keyspace_no: int, stream_no: int) -> bytes:
    return _KEYSPACE_STREAM.pack(keyspace_no, stream_no)


def decode_name_key(packed: bytes) -> tuple[int, int]:
    """-> (keyspace_no, stream_no).  Raises DamagedRowError."""
    if len(packed) != _KEYSPACE_STREAM.size:
        raise DamagedRowError("the key of a name")
    keyspace_no, stream_no = _KEYSPACE_STREAM.unpack(packed)
    return keyspace_no, stream_no


def stream_prefix(stream_no: int) -> bytes:
    """The prefix of the keys of all rows of one stream (or of one group)."""
    return _STREAM.pack(stream_no)


def decode_stream_prefix(packed: bytes) -> int:
    (stream_no,) = _STREAM.unpack_from(packed)
    return int(stream_no)


def entry_key(stream_no: int, entry_id: StreamID) -> bytes:
    """The key of an entry; a node has the key of its first entry."""
    return _STREAM.pack(stream_no) + pack_id(entry_id)


def decode_entry_key(packed: bytes) -> tuple[int, StreamID]:
    """-> (stream_no, entry_id)"""
    return decode_stream_prefix(packed), unpack_id(packed[_PREFIX_BYTES:])


def id_in_key(packed: bytes) -> StreamID:
    """The entry_id in the key of an entry or of a node."""
    return unpack_id(packed[_PREFIX_BYTES:])


def packed_id_in(packed: bytes) -> bytes:
    """The packed ID in the key of an entry or of a node."""
    return packed[_PREFIX_BYTES:]


def packed_ids_in(keys: Iterable[bytes]) -> list[bytes]:
    """The packed IDs in the keys of entries."""
    return [key[_PREFIX_BYTES:] for key in keys]


def packed_ids_of(rows: list[Row]) -> list[bytes]:
    """The packed IDs of entries, given as (key, row)."""
    return [key[_PREFIX_BYTES:] for key, _ in rows]


def by_packed_id(rows: list[Row]) -> dict[bytes, bytes]:
    """The rows of entries by packed ID, given as (key, row)."""
    return {key[_PREFIX_BYTES:]: row for key, row in rows}


def expiry_key(deadline_ms: int, stream_no: int) -> bytes:
    return _DEADLINE.pack(deadline_ms, stream_no)


def decode_expiry_key(packed: bytes) -> tuple[int, int]:
    """-> (deadline_ms, stream_no)"""
    deadline_ms, stream_no = _DEADLINE.unpack(packed)
    return deadline_ms, stream_no


def encode_keyspace_no(keyspace_no: int) -> bytes:
    return _KEYSPACE.pack(keyspace_no)


def pack_expiry(key: bytes, keyspace_no: int) -> bytes:
    """The row of a deadline."""
    return add_checksum(encode_keyspace_no(keyspace_no), key)


def unpack_expiry(key: bytes, row: bytes) -> int:
    """Raises DamagedRowError, DECODE_ERRORS."""
    (keyspace_no,) = _KEYSPACE.unpack(row if len(row) == _KEYSPACE.size else without_checksum(row, key))
    return int(keyspace_no)
