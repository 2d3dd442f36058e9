"""Tables `pel`, `pel_by_consumer` and `pel_by_time`: the runs of pending entries; see `groups/pending_runs.py`.

pel              group_no:u64 last_id                       -> a run
pel_by_consumer  group_no:u64 consumer_no:u32 last_id       -> nothing
pel_by_time      group_no:u64 time:u64 last_id              -> nothing      time = delivery_time_ms + 1
                 group_no:u64 0:u64 release_no:u128         -> last_id      an entry without an owner
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from riverbed.store.errors import DamagedRowError
from riverbed.store.format.packing import add_checksum
from riverbed.store.ids import ID_BYTES, StreamID, unpack_id
from riverbed.store.wire import find_id, open_run

# The consumer_no of entries without an owner.
UNOWNED: Final = 0
OWNER_KEY_BYTES: Final = 28
TIME_KEY_BYTES: Final = 32
# Fewer IDs than this are looked for in a run one by one.
_FEW: Final = 8

_PREFIX: Final = Struct(">Q")  # group_no:u64
_OWNER: Final = Struct(">QI")  # group_no:u64 consumer_no:u32
_MOMENT: Final = Struct(">QQ")  # group_no:u64 time:u64
_RUN: Final = Struct(">IQQ")  # consumer_no:u32 delivery_time_ms:u64 delivery_count:u64, then the IDs, 16 bytes each
_HEAD: Final = 20

assert _OWNER.size + ID_BYTES == OWNER_KEY_BYTES
assert _MOMENT.size + ID_BYTES == TIME_KEY_BYTES
assert _RUN.size == _HEAD


class PelRow(NamedTuple):
    """One pending entry.  `time_ms` of an entry without an owner is the number of its release."""

    entry_id: StreamID
    consumer_no: int
    time_ms: int
    delivery_count: int


class Run:
    """A row of `pel`.  `packed` are its IDs, ascending, 16 bytes each."""

    __slots__ = ("consumer_no", "delivery_count", "packed", "time_ms")

    def __init__(self, consumer_no: int, time_ms: int, delivery_count: int, packed: bytes) -> None:
        self.consumer_no = consumer_no
        self.time_ms = time_ms
        self.delivery_count = delivery_count
        self.packed = packed

    def pack(self, prefix: bytes) -> bytes:
        """`prefix` is that of the group: a flipped bit of it in the key makes this no run of another group."""
        return add_checksum(_RUN.pack(self.consumer_no, self.time_ms, self.delivery_count) + self.packed, prefix)

    @classmethod
    def unpack(cls, key: bytes, row: bytes) -> Run:
        """Raises DamagedRowError.  A row of format version 2 has no checksum."""
        try:
            return cls(*open_run(key, row))
        except ValueError:
            raise DamagedRowError(f"the row {key.hex()}") from None

    @classmethod
    def under(cls, key: bytes, row: bytes) -> Run:
        """As `unpack`, of a row whose key must end with the last ID of the run."""
        run = cls.unpack(key, row)
        if not key.endswith(run.packed[-ID_BYTES:]):
            raise DamagedRowError("the key of a row")
        return run

    def __len__(self) -> int:
        return len(self.packed) // ID_BYTES

    @property
    def first(self) -> bytes:
        return self.packed[:ID_BYTES]

    @property
    def last(self) -> bytes:
        return self.packed[-ID_BYTES:]

    @property
    def delivery(self) -> tuple[int, int, int]:
        """Owner, delivery time, delivery count."""
        return self.consumer_no, self.time_ms, self.delivery_count

    def is_like(self, other: Run) -> bool:
        """Whether the two have one owner, time and count."""
        return (
            self.consumer_no == other.consumer_no != UNOWNED
            and self.time_ms == other.time_ms
            and self.delivery_count == other.delivery_count
        )

    def ids(self) -> list[bytes]:
        packed = self.packed
        return [packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]

    def rows(self) -> Iterator[PelRow]:
        for packed in self.ids():
            yield PelRow(unpack_id(packed), self.consumer_no, self.time_ms, self.delivery_count)

    def within(self, first: bytes, last: bytes) -> Run | None:
        """The part of the run with first <= id <= last, None when there is none."""
        if self.packed[:ID_BYTES] >= first and self.last <= last:
            return self
        packed = b"".join([packed for packed in self.ids() if first <= packed <= last])
        return Run(self.consumer_no, self.time_ms, self.delivery_count, packed) if packed else None

    def held(self, order: list[bytes]) -> list[bytes]:
        """The IDs of the ascending list `order` that the run has."""
        if len(order) < _FEW:
            return [packed for packed in order if self.find(packed) >= 0]
        if b"".join(order) == self.packed:
            return order
        here = set(self.ids())
        return [packed for packed in order if packed in here]

    def find(self, packed_id: bytes) -> int:
        """Where in `packed` an ID begins, -1 when the run does not have it."""
        return find_id(self.packed, packed_id)


def first_in_run(row: bytes) -> bytes:
    """The first packed ID of a run, without decoding the rest."""
    return row[_HEAD : _HEAD + ID_BYTES]


def last_in_run(row: bytes) -> bytes:
    """The last packed ID of a run, without decoding the rest."""
    end = len(row) - (len(row) - _HEAD) % ID_BYTES  # the checksum is behind it
    return row[end - ID_BYTES : end]


def owner_of_run(row: bytes) -> int:
    """The consumer_no of a run, without decoding the rest."""
    consumer_no, _, _ = _RUN.unpack_from(row)
    return int(consumer_no)


def group_prefix(group_no: int) -> bytes:
    """The prefix of the keys of one group's pending entries; in `pel` a run's last ID follows."""
    return _PREFIX.pack(group_no)


def decode_group_prefix(packed: bytes) -> int:
    (group_no,) = _PREFIX.unpack_from(packed)
    return int(group_no)


def owner_prefix(group_no: int, consumer_no: int) -> bytes:
    """The prefix of a consumer's keys in `pel_by_consumer`; a run's last ID follows."""
    return _OWNER.pack(group_no, consumer_no)


def decode_owner_no(packed: bytes) -> int:
    """The consumer_no in a key of `pel_by_consumer`."""
    _, consumer_no = _OWNER.unpack_from(packed)
    return int(consumer_no)


def time_prefix(group_no: int, delivery_time_ms: int) -> bytes:
    """The prefix of the keys of a delivery time in `pel_by_time`; a run's last ID follows."""
    return _MOMENT.pack(group_no, delivery_time_ms + 1)


def release_prefix(group_no: int) -> bytes:
    """The prefix of the keys in `pel_by_time` of entries without an owner; the number of the release follows."""
    return _MOMENT.pack(group_no, 0)


def time_key(group_no: int, run: Run) -> bytes:
    """The key of a run in `pel_by_time`."""
    if run.consumer_no == UNOWNED:
        return release_prefix(group_no) + run.time_ms.to_bytes(ID_BYTES, "big")
    return time_prefix(group_no, run.time_ms) + run.last


def last_in_key(packed: bytes) -> bytes:
    """The packed ID that ends a key of `pel`, `pel_by_consumer` or, where the run has an owner, `pel_by_time`."""
    return packed[-ID_BYTES:]
