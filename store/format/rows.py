"""Every byte of the LMDB tables: pure functions from values to keys and rows, and back.

`FORMAT.md` says the same in prose with worked examples; a test decodes those with this module.  Integers inside keys
are big-endian so that byte order is number order.  The log's bytes are `log_lines.py`'s.
"""

from __future__ import annotations

import hashlib
import struct
from struct import Struct
from typing import Any, Final, NamedTuple

import msgpack

from riverbed.store.ids import ID_BYTES, MAX_HALF, SEQ_BITS, StreamID, pack_id, unpack_id
from riverbed.store.model import DeliveryPolicy

FORMAT_VERSION: Final = 2

# What decoding raises when the bytes are not what was encoded.
DECODE_ERRORS: Final = (struct.error, ValueError, TypeError, IndexError)

# LMDB refuses keys above 511 bytes; client keys longer than this are stored under their digest.
MAX_PLAIN_KEY: Final = 400
DIGEST_BYTES: Final = 32
GROUP_KEY_BYTES: Final = 16
RUN_HEAD_BYTES: Final = 20
CONSUMER_KEY_BYTES: Final = 20
PRODUCER_KEY_BYTES: Final = 24
RECORD_KEY_BYTES: Final = 32
_PLAIN: Final = 0
_DIGEST: Final = 1

_KEYSPACE_KIND = Struct(">IB")  # keyspace_no:u32 kind:u8, then the client's key or its digest
_KEYSPACE_STREAM = Struct(">IQ")  # keyspace_no:u32 stream_no:u64
_STREAM = Struct(">Q")  # stream_no:u64
_NODE = Struct(">IIQ16s")  # live:u32 total:u32 bytes:u64 last_id:16
_NODE_LIVE = Struct(">I28x")  # the first of these alone
_DEADLINE = Struct(">QQ")  # deadline_ms:u64 stream_no:u64
_KEYSPACE = Struct(">I")  # keyspace_no:u32
_TRASH = Struct(">Q")  # trash_no:u64, in order of arrival
_GROUP = Struct(">QQ")  # stream_no:u64 group_no:u64
_CONSUMER = Struct(">QQI")  # stream_no:u64 group_no:u64 consumer_no:u32
_LOOK = Struct(">QQQ")  # look_ms:u64 stream_no:u64 group_no:u64
_OWNER = Struct(">QI")  # group_no:u64 consumer_no:u32
_MOMENT = Struct(">QQ")  # group_no:u64 time:u64
_RUN = Struct(">IQQ")  # consumer_no:u32 delivery_time_ms:u64 delivery_count:u64, then the IDs, 16 bytes each
_RECORD = Struct(">Q")  # record_no:u64
_RECORD_ID = Struct(">Q16s")  # record_no:u64 id:16
_ID = Struct(">QQ")  # ms:u64 seq:u64

assert _KEYSPACE_KIND.size == 5
assert _KEYSPACE_STREAM.size == 12
assert _NODE.size == _NODE_LIVE.size == 32
assert _DEADLINE.size == 16
assert _GROUP.size == GROUP_KEY_BYTES == 16
assert _CONSUMER.size == CONSUMER_KEY_BYTES == 20
assert _LOOK.size == 24
assert _OWNER.size == 12
assert _RUN.size == RUN_HEAD_BYTES == 20
assert _ID.size == ID_BYTES

# -- RESP pieces: entries are stored as the array a reader will be sent ------------------------------------------------

# `$n` for every short word: a table look-up is a third of a `%` format (40 ns against 130).
BULK_HEADS: Final = [b"$%d" % size for size in range(1024)]
ARRAY_HEADS: Final = [b"*%d\r\n" % size for size in range(1024)]


def bulk(word: bytes) -> bytes:
    """One RESP bulk string."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def array_head(count: int) -> bytes:
    return ARRAY_HEADS[count] if count < 1024 else b"*%d\r\n" % count


_SEQ_TAILS: Final = [b"%d\r\n" % seq for seq in range(1000)]
_SEQ_DIGITS: Final = [len(b"%d" % seq) - 1 for seq in range(1000)]


class _IdHeads:
    """The bytes of a bulk ID up to its sequence number, of the millisecond used last, by that number's digits."""

    __slots__ = ("heads", "ms")

    def __init__(self) -> None:
        self.ms = -1
        self.heads: list[bytes] = []


_id_heads: Final = _IdHeads()


def id_bulk(entry_id: StreamID) -> bytes:
    """An ID as a RESP bulk string.

    IDs come by the dozen in one millisecond: keeping what they share takes 0.15 us an ID instead of 0.33.
    """
    ms = entry_id >> SEQ_BITS
    seq = entry_id & MAX_HALF
    if seq >= 1000:
        return bulk(b"%d-%d" % (ms, seq))
    if ms != _id_heads.ms:
        text = b"%d-" % ms
        _id_heads.heads = [b"$%d\r\n%b" % (len(text) + digits, text) for digits in (1, 2, 3)]
        _id_heads.ms = ms
    return _id_heads.heads[_SEQ_DIGITS[seq]] + _SEQ_TAILS[seq]


def id_bulks(rows: list[tuple[bytes, bytes]]) -> bytes:
    """The IDs of entries as RESP bulk strings, one after the other; `rows` are (key, value) of the table of entries.

    Values begin with them.  Neighbours' are mostly as long as each other: 0.07 us each, 0.15 where they are not.
    """
    size = rows[0][1].index(b"*")  # no ID has one
    bulks = b"".join([row[:size] for _, row in rows])
    if b"*" in bulks or bulks.count(b"\n") != 2 * len(rows):
        bulks = b"".join([row[: row.index(b"*")] for _, row in rows])
    return bulks


def encode_words(words: list[bytes]) -> bytes:
    """RESP bulk strings of `words`, one after the other, without an array header.

    The short arities are spelled out: joining nine pieces takes 0.37 us, a comprehension that makes them 0.6 us.
    """
    count = len(words)
    heads = BULK_HEADS
    try:
        if count == 2:
            a, b = words
            return b"\r\n".join((heads[len(a)], a, heads[len(b)], b, b""))
        if count == 4:
            a, b, c, d = words
            return b"\r\n".join((heads[len(a)], a, heads[len(b)], b, heads[len(c)], c, heads[len(d)], d, b""))
        pieces = [piece for word in words for piece in (heads[len(word)], word)]
    except IndexError:  # a word of 1 KB or more
        pieces = [piece for word in words for piece in (b"$%d" % len(word), word)]
    pieces.append(b"")
    return b"\r\n".join(pieces)


def encode_command(words: list[bytes]) -> bytes:
    """A command as RESP, the form in which the log holds it."""
    return b"*%d\r\n%b" % (len(words), encode_words(words))


def encode_entry(entry_id: StreamID, words: list[bytes]) -> bytes:
    """An entry's row: `[id [field value ...]]` as RESP, without the outermost header, which is the same for all."""
    return id_bulk(entry_id) + encode_command(words)


def decode_entry(row: bytes) -> tuple[bytes, list[bytes]]:
    """-> (the ID's text, the words).  ValueError if the row is not what a reader can be sent."""
    head, star, fields = row.partition(b"*")  # no ID has one
    parts = head.split(b"\r\n")
    if len(parts) != 3 or parts[2] or parts[0] != b"$%d" % len(parts[1]):
        raise ValueError("does not begin with an ID")
    return parts[1], decode_words(star + fields)


def decode_words(wire: bytes) -> list[bytes]:
    """Read a RESP array of bulk strings, as stored for an entry.  ValueError if it is not one."""
    if wire[:1] != b"*":
        raise ValueError("not a RESP array")
    end = wire.index(b"\r\n")
    count = int(wire[1:end])
    position = end + 2
    words = []
    for _ in range(count):
        if wire[position : position + 1] != b"$":
            raise ValueError("not a RESP bulk string")
        end = wire.index(b"\r\n", position)
        start = end + 2
        size = int(wire[position + 1 : end])
        if size < 0:
            raise ValueError("a negative length")
        position = start + size + 2
        words.append(wire[start : position - 2])
        if wire[position - 2 : position] != b"\r\n":
            raise ValueError("a bulk string does not end where its length says")
    if position != len(wire):
        raise ValueError("bytes after the last word")
    return words


# -- keys --------------------------------------------------------------------------------------------------------------


def key_key(keyspace_no: int, key: bytes) -> bytes:
    """`keyspace_no:u32 kind:u8 key` (kind 0) or, past 400 bytes, `keyspace_no:u32 kind:u8 blake2b-256` (kind 1)."""
    if len(key) <= MAX_PLAIN_KEY:
        return _KEYSPACE_KIND.pack(keyspace_no, _PLAIN) + key
    return _KEYSPACE_KIND.pack(keyspace_no, _DIGEST) + hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()


def decode_key_key(packed: bytes) -> tuple[int, bytes | None]:
    """-> (keyspace_no, key), the key None when it stands in the row.  ValueError if it is neither."""
    keyspace_no, kind = _KEYSPACE_KIND.unpack_from(packed)
    name = packed[_KEYSPACE_KIND.size :]
    if kind == _PLAIN and len(name) <= MAX_PLAIN_KEY:
        return keyspace_no, name
    if kind == _DIGEST and len(name) == DIGEST_BYTES:
        return keyspace_no, None
    raise ValueError(f"a key of kind {kind} with {len(name)} bytes")


def name_key(keyspace_no: int, stream_no: int) -> bytes:
    return _KEYSPACE_STREAM.pack(keyspace_no, stream_no)


def decode_name_key(packed: bytes) -> tuple[int, int]:
    """-> (keyspace_no, stream_no)"""
    keyspace_no, stream_no = _KEYSPACE_STREAM.unpack(packed)
    return keyspace_no, stream_no


def stream_prefix(stream_no: int) -> bytes:
    """What the keys of all rows of one stream (or of one group) begin with."""
    return _STREAM.pack(stream_no)


def decode_stream_prefix(packed: bytes) -> int:
    (stream_no,) = _STREAM.unpack_from(packed)
    return int(stream_no)


def entry_key(stream_no: int, entry_id: StreamID) -> bytes:
    """`stream_no:u64 ms:u64 seq:u64`; nodes are keyed alike, by the ID of their first entry."""
    return _STREAM.pack(stream_no) + pack_id(entry_id)


def decode_entry_key(packed: bytes) -> tuple[int, StreamID]:
    """-> (stream_no, entry_id)"""
    return decode_stream_prefix(packed), unpack_id(packed[8:])


def expiry_key(deadline_ms: int, stream_no: int) -> bytes:
    return _DEADLINE.pack(deadline_ms, stream_no)


def decode_expiry_key(packed: bytes) -> tuple[int, int]:
    """-> (deadline_ms, stream_no)"""
    deadline_ms, stream_no = _DEADLINE.unpack(packed)
    return deadline_ms, stream_no


def encode_keyspace_no(keyspace_no: int) -> bytes:
    return _KEYSPACE.pack(keyspace_no)


def decode_keyspace_no(packed: bytes) -> int:
    (keyspace_no,) = _KEYSPACE.unpack(packed)
    return int(keyspace_no)


def trash_key(trash_no: int) -> bytes:
    return _TRASH.pack(trash_no)


def decode_trash_key(packed: bytes) -> int:
    (trash_no,) = _TRASH.unpack(packed)
    return int(trash_no)


# -- keys of consumer groups -------------------------------------------------------------------------------------------


def group_key(stream_no: int, group_no: int) -> bytes:
    """The key of a group's row, which its consumers' keys begin with."""
    return _GROUP.pack(stream_no, group_no)


def consumer_key(stream_no: int, group_no: int, consumer_no: int) -> bytes:
    return _CONSUMER.pack(stream_no, group_no, consumer_no)


def decode_group_no(packed: bytes) -> int:
    """The group_no in the key of a group or of a consumer."""
    _, group_no = _GROUP.unpack_from(packed)
    return int(group_no)


def decode_consumer_no(packed: bytes) -> int:
    """The consumer_no in the key of a consumer."""
    _, _, consumer_no = _CONSUMER.unpack(packed)
    return int(consumer_no)


def look_key(look_ms: int, stream_no: int, group_no: int) -> bytes:
    """In `consumer_ttls`: when to look for consumers of a group that have stayed away."""
    return _LOOK.pack(look_ms, stream_no, group_no)


def decode_look_key(packed: bytes) -> tuple[int, int, int]:
    """-> (look_ms, stream_no, group_no)"""
    look_ms, stream_no, group_no = _LOOK.unpack(packed)
    return look_ms, stream_no, group_no


def group_prefix(group_no: int) -> bytes:
    """What the keys of all rows of one group's pending entries begin with; in `pel` a run's last ID follows."""
    return _STREAM.pack(group_no)


def owner_prefix(group_no: int, consumer_no: int) -> bytes:
    """In `pel_by_consumer` a run's last ID follows."""
    return _OWNER.pack(group_no, consumer_no)


def decode_owner_no(packed: bytes) -> int:
    """The consumer_no in a key of `pel_by_consumer`."""
    _, consumer_no = _OWNER.unpack_from(packed)
    return int(consumer_no)


def moment_prefix(group_no: int, moment: int) -> bytes:
    """In `pel_by_time` 16 bytes follow: a run's last ID, or the number of a release; see `store/groups/pending.py`."""
    return _MOMENT.pack(group_no, moment)


# -- keys of idempotence records; `idempotence.py` shows how they hang together ----------------------------------------


def digest16(text: bytes) -> bytes:
    """A fixed-length stand-in for producer and idempotence ids of any length inside keys."""
    return hashlib.blake2b(text, digest_size=16).digest()


def producer_key(records_no: int, pid: bytes) -> bytes:
    """`records_no:u64 digest(pid):16`, which the keys of the producer's records begin with."""
    return _STREAM.pack(records_no) + digest16(pid)


def record_key(packed_producer: bytes, record_no: int) -> bytes:
    """`records_no:u64 digest(pid):16 record_no:u64`"""
    return packed_producer + _RECORD.pack(record_no)


def decode_record_no(packed: bytes) -> int:
    """The record_no in the key of a record."""
    (record_no,) = _RECORD.unpack(packed[PRODUCER_KEY_BYTES:])
    return int(record_no)


def iid_key(packed_producer: bytes, iid: bytes) -> bytes:
    """`records_no:u64 digest(pid):16 digest(iid):16`, in `idmp_ids`."""
    return packed_producer + digest16(iid)


def record_time_key(packed_record: bytes, entry_id: StreamID) -> bytes:
    """`records_no:u64 ms:u64 seq:u64 digest(pid):16 record_no:u64`, in `idmp_times`."""
    return packed_record[:8] + pack_id(entry_id) + packed_record[8:]


def decode_record_time_key(packed: bytes) -> tuple[bytes, StreamID]:
    """-> (key of the record, entry_id)"""
    return packed[:8] + packed[8 + ID_BYTES :], unpack_id(packed[8 : 8 + ID_BYTES])


# -- rows --------------------------------------------------------------------------------------------------------------


def encode_node(live: int, total: int, size: int, last_id: StreamID) -> bytes:
    return _NODE.pack(live, total, size, pack_id(last_id))


def decode_live_counts(rows: list[bytes]) -> list[int]:
    """`live` of many nodes: 0.1 us each, a fifth of `decode_node`, for trims that pass over thousands of them."""
    return [live for (live,) in _NODE_LIVE.iter_unpack(b"".join(rows))]


def decode_node(row: bytes) -> tuple[int, int, int, StreamID]:
    """-> (live, total, bytes, last_id)"""
    live, total, size, last_id = _NODE.unpack(row)
    return live, total, size, unpack_id(last_id)


def encode_run(consumer_no: int, delivery_time_ms: int, delivery_count: int, packed_ids: bytes) -> bytes:
    """A run of pending entries; `consumer_no` 0 is no consumer.  `packed_ids` are ascending, 16 bytes each."""
    return _RUN.pack(consumer_no, delivery_time_ms, delivery_count) + packed_ids


decode_run_head = _RUN.unpack_from  # -> (consumer_no, delivery_time_ms, delivery_count)


def pack_row(values: Any) -> bytes:
    """msgpack, the form of every row that is not on the hot path."""
    return bytes(msgpack.packb(values))


def unpack_row(row: bytes) -> Any:
    return msgpack.unpackb(row, strict_map_key=False)


def pack_ids(*ids: StreamID) -> bytes:
    return b"".join([pack_id(entry_id) for entry_id in ids])


def unpack_ids(packed: bytes) -> list[StreamID]:
    return [unpack_id(packed[at : at + ID_BYTES]) for at in range(0, len(packed), ID_BYTES)]


def unpack_id_texts(packed: bytes) -> list[bytes]:
    """IDs as clients write them: 0.25 us each, half of what it takes by way of numbers."""
    return [b"%d-%d" % halves for halves in _ID.iter_unpack(packed)]


class StreamRow(NamedTuple):
    """A row of `keys`; `streams.py` says what the values mean."""

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
    idempotence: list[Any] | None  # [duration_s, max_records, records_no, records_added, duplicates]

    @property
    def records_no(self) -> int:
        """The number under which the stream's idempotence records stand, 0 when there are none."""
        records_no: int = 0 if self.idempotence is None else self.idempotence[2]
        return records_no


def encode_stream(row: StreamRow) -> bytes:
    stream_no, long_key, length, entries_added, expire_ms = row[:5]
    group_count, *nodes, idempotence = row[12:]
    ids = pack_ids(*row[5:12])
    return pack_row([stream_no, long_key, length, entries_added, expire_ms, ids, group_count, nodes, idempotence])


def decode_stream(row: bytes) -> StreamRow:
    stream_no, long_key, length, entries_added, expire_ms, ids, group_count, nodes, idempotence = unpack_row(row)
    first_id, last_id, last_live_id, max_deleted_id, floor_id, tail_first_id, tail_last_id = unpack_ids(ids)
    node_count, tail_total, tail_dead, tail_bytes = nodes
    return StreamRow(
        stream_no,
        long_key,
        length,
        entries_added,
        expire_ms,
        first_id,
        last_id,
        last_live_id,
        max_deleted_id,
        floor_id,
        tail_first_id,
        tail_last_id,
        group_count,
        node_count,
        tail_total,
        tail_dead,
        tail_bytes,
        idempotence,
    )


class GroupRow(NamedTuple):
    """A group's row in `groups`; `consumers.py` says what the values mean."""

    name: bytes
    last_id: StreamID
    entries_read: int | None
    pel_count: int
    released_count: int
    consumer_count: int
    next_consumer_no: int
    next_release_no: int
    policy: DeliveryPolicy | None
    look_ms: int  # 0 without a policy


def encode_group(row: GroupRow) -> bytes:
    name, last_id, *counts, policy, look_ms = row
    return pack_row([name, pack_ids(last_id), *counts, None if policy is None else [*policy, look_ms]])


def decode_group(row: bytes) -> GroupRow:
    name, last_id, *counts, policy = unpack_row(row)
    values, look_ms = (None, 0) if policy is None else (DeliveryPolicy(*policy[:-1]), policy[-1])
    return GroupRow._make((name, unpack_id(last_id), *counts, values, look_ms))


class ConsumerRow(NamedTuple):
    """A consumer's row in `groups`."""

    name: bytes
    seen_ms: int
    active_ms: int
    pel_count: int


def encode_consumer(row: ConsumerRow) -> bytes:
    return pack_row(list(row))


def decode_consumer(row: bytes) -> ConsumerRow:
    return ConsumerRow(*unpack_row(row))


def encode_record_id(record_no: int, entry_id: StreamID) -> bytes:
    return _RECORD_ID.pack(record_no, pack_id(entry_id))


def decode_record_id(row: bytes) -> tuple[int, StreamID]:
    """-> (record_no, entry_id)"""
    record_no, packed_id = _RECORD_ID.unpack(row)
    return record_no, unpack_id(packed_id)
