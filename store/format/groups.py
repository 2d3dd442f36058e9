"""Tables `groups` and `consumer_ttls`: consumer groups and their consumers, and when to check for absent consumers.

groups         stream_no:u64 group_no:u64                                      -> a group
groups         stream_no:u64 group_no:u64 consumer_no:u32                      -> a consumer of it
groups         stream_no:u64 group_no:u64 %xFFFFFFFF digest:8 consumer_no:u32  -> which consumer has the name
groups         stream_no:u64 %xFFFFFFFFFFFFFFFF digest:8 group_no:u64          -> which group has the name
consumer_ttls  look_ms:u64 stream_no:u64 group_no:u64                          -> name of the group

The rows of names came with format version 5.  They lead from the digest of a name to a number, so that a group or a
consumer is found without reading the others.  They stand behind what they name: no number is as high as theirs.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from riverbed.store.format.packing import add_checksum, is_bound, pack_row, unpack_row
from riverbed.store.format.rows import pack_ids, unpack_ids
from riverbed.store.ids import StreamID
from riverbed.store.model import DeliveryPolicy

GROUP_KEY_BYTES: Final = 16
CONSUMER_KEY_BYTES: Final = 20
NAME_KEY_BYTES: Final = 32
NAMED_SINCE: Final = 5  # the format version
# In the place of a group's number, and of a consumer's, in the keys of names.
NAMES_OF_GROUPS: Final = (1 << 64) - 1
NAMES_OF_CONSUMERS: Final = (1 << 32) - 1
# Of a name.  Two names share theirs by accident in none of all stores, and on purpose after days of computing; as the
# row of each number has the name itself, nothing comes of it.
DIGEST_BYTES = 8

_GROUP: Final = Struct(">QQ")  # stream_no:u64 group_no:u64
_CONSUMER: Final = Struct(">QQI")  # stream_no:u64 group_no:u64 consumer_no:u32
_LOOK: Final = Struct(">QQQ")  # look_ms:u64 stream_no:u64 group_no:u64

assert _GROUP.size == GROUP_KEY_BYTES
assert _CONSUMER.size == CONSUMER_KEY_BYTES
assert _LOOK.size == 24


class GroupRow(NamedTuple):
    """A group: `[name, last_id:16, entries_read, ... next_release_no, policy or nil]`; see `groups/consumers.py`."""

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

    def pack(self, key: bytes) -> bytes:
        name, last_id, *counts, policy, look_ms = self
        return pack_row([name, pack_ids(last_id), *counts, None if policy is None else [*policy, look_ms]], key)

    @staticmethod
    def name_in(key: bytes, row: bytes) -> bytes:
        """The name alone, in half the time.  Raises DamagedRowError, DECODE_ERRORS."""
        name: bytes = unpack_row(row, key)[0]
        return name

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> GroupRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        # each value by its name: as a list of counts they take a third longer
        name, last_id, read, pel, released, consumers, next_consumer, next_release, policy = unpack_row(row, key)
        (last_id,) = unpack_ids(last_id)
        look_ms = 0
        if policy is not None:
            max_deliveries, dead_letter, consumer_ttl_ms, look_ms = policy
            policy = DeliveryPolicy(max_deliveries, dead_letter, consumer_ttl_ms)
        return cls._make((name, last_id, read, pel, released, consumers, next_consumer, next_release, policy, look_ms))


class ConsumerRow(NamedTuple):
    """A consumer."""

    name: bytes
    seen_ms: int
    active_ms: int  # -1 for never
    pel_count: int

    @staticmethod
    def is_bound(key: bytes, row: bytes) -> bool:
        """Whether a row, of a consumer or a group, has a checksum that fits its key; older ones have no such one."""
        return is_bound(row, key)

    def pack(self, key: bytes) -> bytes:
        return pack_row(self, key)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> ConsumerRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        return cls._make(unpack_row(row, key))


def group_key(stream_no: int, group_no: int) -> bytes:
    """The key of a group's row; the keys of the group's consumers begin with it."""
    return _GROUP.pack(stream_no, group_no)


def consumer_key(stream_no: int, group_no: int, consumer_no: int) -> bytes:
    return _CONSUMER.pack(stream_no, group_no, consumer_no)


def group_name_prefix(stream_no: int, name: bytes) -> bytes:
    """What the key of a group's name begins with; its number follows."""
    return _GROUP.pack(stream_no, NAMES_OF_GROUPS) + _digest(name)


def group_name_key(stream_no: int, name: bytes, group_no: int) -> bytes:
    return group_name_prefix(stream_no, name) + group_no.to_bytes(8, "big")


def consumer_name_prefix(stream_no: int, group_no: int, name: bytes) -> bytes:
    """What the key of a consumer's name begins with; its number follows."""
    return _CONSUMER.pack(stream_no, group_no, NAMES_OF_CONSUMERS) + _digest(name)


def consumer_name_key(stream_no: int, group_no: int, name: bytes, consumer_no: int) -> bytes:
    return consumer_name_prefix(stream_no, group_no, name) + consumer_no.to_bytes(4, "big")


def _digest(name: bytes) -> bytes:
    return blake2b(name, digest_size=DIGEST_BYTES).digest().rjust(8, b"\0")  # tests make it short


def name_key_of(key: bytes, row: bytes) -> bytes:
    """The key of the row of a name, for the row of a group or consumer.  Raises DamagedRowError, DECODE_ERRORS."""
    stream_no, group_no = _GROUP.unpack_from(key)
    if len(key) == GROUP_KEY_BYTES:
        return group_name_key(stream_no, GroupRow.unpack(key, row).name, group_no)
    return consumer_name_key(stream_no, group_no, ConsumerRow.unpack(key, row).name, decode_consumer_no(key))


def name_row(key: bytes) -> bytes:
    """The row of a name: a checksum of its key, by which a changed bit is noticed."""
    return add_checksum(b"", key)


def decode_group_no(packed: bytes) -> int:
    """The group_no in the key of a group, of a consumer or of a consumer's name; else NAMES_OF_GROUPS."""
    _, group_no = _GROUP.unpack_from(packed)
    return int(group_no)


def decode_consumer_no(packed: bytes) -> int:
    """The consumer_no in the key of a consumer."""
    _, _, consumer_no = _CONSUMER.unpack(packed)
    return int(consumer_no)


def decode_digest_key(packed: bytes) -> tuple[int, int, bytes, int]:
    """-> (stream_no, group_no, digest, number), for a group's name with NAMES_OF_GROUPS and the number of the group."""
    stream_no, group_no = _GROUP.unpack_from(packed)
    end = -8 if group_no == NAMES_OF_GROUPS else -4
    return int(stream_no), int(group_no), packed[end - 8 : end], int.from_bytes(packed[end:], "big")


def look_key(look_ms: int, stream_no: int, group_no: int) -> bytes:
    """The key that says when to check a group for absent consumers."""
    return _LOOK.pack(look_ms, stream_no, group_no)


def decode_look_key(packed: bytes) -> tuple[int, int, int]:
    """-> (look_ms, stream_no, group_no)"""
    look_ms, stream_no, group_no = _LOOK.unpack(packed)
    return look_ms, stream_no, group_no
