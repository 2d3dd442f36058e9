"""Tables `idmp`, `idmp_ids` and `idmp_times`: which entry each idempotent id of a producer has become.

    idmp        records_no:u64                                          -> [duration_s, producers, records]
    idmp        records_no:u64 digest(pid):16                           -> [pid, records, next record_no]
    idmp        records_no:u64 digest(pid):16 record_no:u64             -> [iid, id]
    idmp_ids    records_no:u64 digest(pid):16 digest(iid):16            -> record_no:u64 id:16
    idmp_times  records_no:u64 ms:u64 seq:u64 digest(pid):16 record_no:u64

`records_no` is one of the numbers of streams, so that the purge deletes records as it deletes streams.
"""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import Final, NamedTuple

from riverbed.store.format.packing import add_checksum, pack_row, rebind_row, unpack_row, without_checksum
from riverbed.store.format.rows import unpack_ids
from riverbed.store.format.streams import stream_prefix
from riverbed.store.ids import ID_BYTES, StreamID, pack_id, unpack_id
from riverbed.store.model import Row

PRODUCER_KEY_BYTES: Final = 24
RECORD_KEY_BYTES: Final = 32

_RECORD: Final = Struct(">Q")  # record_no:u64
_IID: Final = Struct(">Q16s")  # record_no:u64 id:16


class RecordsRow(NamedTuple):
    """All records of one stream."""

    duration_s: int
    producers: int
    records: int

    def pack(self, key: bytes) -> bytes:
        return pack_row(self, key)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> RecordsRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        return cls._make(unpack_row(row, key))


class ProducerRow(NamedTuple):
    """The records of one producer, whose id is `pid`."""

    pid: bytes
    records: int
    next_record_no: int

    def pack(self, key: bytes) -> bytes:
        return pack_row(self, key)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> ProducerRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        return cls._make(unpack_row(row, key))


class RecordRow(NamedTuple):
    """One record: the idempotent id `iid` has become the entry `entry_id`."""

    iid: bytes
    entry_id: StreamID

    def pack(self, key: bytes) -> bytes:
        return pack_row([self.iid, pack_id(self.entry_id)], key)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> RecordRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        iid, packed_id = unpack_row(row, key)
        return cls(iid, *unpack_ids(packed_id))


class IidRow(NamedTuple):
    """The number of a record and its entry, by the digest of its iid."""

    record_no: int
    entry_id: StreamID

    def pack(self, key: bytes) -> bytes:
        return add_checksum(_IID.pack(self.record_no, pack_id(self.entry_id)), key)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> IidRow:
        """Raises DamagedRowError, DECODE_ERRORS."""
        record_no, packed_id = _IID.unpack(row if len(row) == _IID.size else without_checksum(row, key))
        return cls(record_no, unpack_id(packed_id))


def check_row(key: bytes, row: bytes) -> None:
    """Compare any row of `idmp` with its checksum.  Raises DamagedRowError."""
    unpack_row(row, key)


def producer_key(records_no: int, pid: bytes) -> bytes:
    """The prefix of the keys of the producer's records."""
    return stream_prefix(records_no) + _digest(pid)


def record_key(packed_producer: bytes, record_no: int) -> bytes:
    return packed_producer + _RECORD.pack(record_no)


def producer_of(packed_record: bytes) -> bytes:
    """The producer's key in the key of a record, in `idmp` or `idmp_ids`."""
    return packed_record[:PRODUCER_KEY_BYTES]


def decode_record_no(packed: bytes) -> int:
    """The record_no in the key of a record."""
    (record_no,) = _RECORD.unpack(packed[PRODUCER_KEY_BYTES:])
    return int(record_no)


def iid_key(packed_producer: bytes, iid: bytes) -> bytes:
    return packed_producer + _digest(iid)


def record_time_key(packed_record: bytes, entry_id: StreamID) -> bytes:
    return packed_record[:8] + pack_id(entry_id) + packed_record[8:]


def decode_record_time_key(packed: bytes) -> tuple[bytes, StreamID]:
    """-> (key of the record, entry_id)"""
    return packed[:8] + packed[8 + ID_BYTES :], unpack_id(packed[8 : 8 + ID_BYTES])


def with_records_no(table: str, key: bytes, row: bytes, records_no: int) -> Row:
    """The same row of one of the three tables under another number.  Raises DamagedRowError."""
    new_key = stream_prefix(records_no) + key[8:]
    if table == "idmp":
        row = rebind_row(row, key, new_key)
    elif table == "idmp_ids":
        row = IidRow.unpack(key, row).pack(new_key)
    return new_key, row


def _digest(text: bytes) -> bytes:
    """A digest of fixed length for producer and idempotent ids of any length."""
    return hashlib.blake2b(text, digest_size=16).digest()
