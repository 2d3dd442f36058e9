"""Tables `pel`, `pel_by_consumer` and `pel_by_time`: the runs of pending entries; see `groups/pending/runs.py`.

pel              group_no:u64 last_id                       -> a run
pel_by_consumer  group_no:u64 consumer_no:u32 last_id       -> nothing
pel_by_time      group_no:u64 time:u64 last_id                    -> nothing      time = delivery_time_ms + 1
                 group_no:u64 time:u64 ff*16 turn:u16 last_id     -> nothing      where the turn is not 0
                 group_no:u64 0:u64 release_no:u128               -> last_id      an entry without an owner

Entries that were delivered in the same millisecond are in the order of their turns, and of their IDs within a turn:
`groups/pending/insertions.py` gives the turns.  A **moment** is both in one number, as a row has it: the time, and from
bit 48 on the turn.  The moment of an entry without an owner is the number of its release.
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
TURN_KEY_BYTES: Final = 50  # of a key with a turn
# Later times are taken for this one, in the year 10889.
MAX_TIME_MS: Final = (1 << 48) - 1
MAX_TURN: Final = (1 << 16) - 1
# What the next turn of a moment is more.
ONE_TURN: Final = MAX_TIME_MS + 1
# Fewer IDs than this are looked for in a run one by one.
_FEW: Final = 8

_PREFIX: Final = Struct(">Q")  # group_no:u64
_OWNER: Final = Struct(">QI")  # group_no:u64 consumer_no:u32
_MOMENT: Final = Struct(">QQ")  # group_no:u64 time:u64
_TURN: Final = Struct(">16sH")  # what sorts behind all IDs, turn:u16
_BEHIND: Final = b"\xff" * ID_BYTES
_RUN: Final = Struct(">IQQ")  # consumer_no:u32 moment:u64 delivery_count:u64, then the IDs, 16 bytes each
_HEAD: Final = 20

assert _OWNER.size + ID_BYTES == OWNER_KEY_BYTES
assert _MOMENT.size + ID_BYTES == TIME_KEY_BYTES
assert _MOMENT.size + _TURN.size + ID_BYTES == TURN_KEY_BYTES
assert _RUN.size == _HEAD


class PelRow(NamedTuple):
    """One pending entry.  `time_ms` of an entry without an owner is the number of its release."""

    entry_id: StreamID
    consumer_no: int
    time_ms: int
    delivery_count: int


class Run:
    """A row of `pel`.  `packed` are its IDs, ascending, 16 bytes each."""

    __slots__ = ("consumer_no", "delivery_count", "moment", "packed")

    def __init__(self, consumer_no: int, moment: int, delivery_count: int, packed: bytes) -> None:
        self.consumer_no = consumer_no
        self.moment = moment
        self.delivery_count = delivery_count
        self.packed = packed

    def pack(self, prefix: bytes) -> bytes:
        """`prefix` is that of the group: a flipped bit of it in the key makes this no run of another group."""
        return add_checksum(_RUN.pack(self.consumer_no, self.moment, self.delivery_count) + self.packed, prefix)

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
    def time_ms(self) -> int:
        """When the entries were delivered; of an entry without an owner the number of its release."""
        return time_of(self.consumer_no, self.moment)

    @property
    def turn(self) -> int:
        """Of those that were delivered in that millisecond; 0 for an entry without an owner."""
        return 0 if self.consumer_no == UNOWNED else self.moment // ONE_TURN

    @property
    def delivery(self) -> tuple[int, int, int]:
        """Owner, moment, delivery count."""
        return self.consumer_no, self.moment, self.delivery_count

    def is_like(self, other: Run) -> bool:
        """Whether the two have one owner, moment and count."""
        return (
            self.consumer_no == other.consumer_no != UNOWNED
            and self.moment == other.moment
            and self.delivery_count == other.delivery_count
        )

    def ids(self, most: int | None = None) -> list[bytes]:
        """The packed IDs, or the first of them."""
        packed = self.packed if most is None else self.packed[: most * ID_BYTES]
        return [packed[at : at + ID_BYTES] for at in range(0, len(packed), ID_BYTES)]

    def rows(self) -> Iterator[PelRow]:
        time_ms = self.time_ms
        for packed in self.ids():
            yield PelRow(unpack_id(packed), self.consumer_no, time_ms, self.delivery_count)

    def within(self, first: bytes, last: bytes) -> Run | None:
        """The part of the run with first <= id <= last, None when there is none."""
        if self.packed[:ID_BYTES] >= first and self.last <= last:
            return self
        packed = b"".join([packed for packed in self.ids() if first <= packed <= last])
        return Run(self.consumer_no, self.moment, self.delivery_count, packed) if packed else None

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


def time_of(consumer_no: int, moment: int) -> int:
    """The delivery time in a moment; the number of the release when there is no owner."""
    return moment & MAX_TIME_MS if consumer_no != UNOWNED else moment


def first_in_run(row: bytes) -> bytes:
    """The first packed ID of a run, without decoding the rest."""
    return row[_HEAD : _HEAD + ID_BYTES]


def last_in_run(row: bytes) -> bytes:
    """The last packed ID of a run, without decoding the rest."""
    end = len(row) - (len(row) - _HEAD) % ID_BYTES  # the checksum is behind it
    return row[end - ID_BYTES : end]


def length_of_run(row: bytes) -> int:
    """How many IDs a run has, without decoding it."""
    return (len(row) - _HEAD) // ID_BYTES


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
    """The prefix of the keys of a delivery time in `pel_by_time`; a run's turn and last ID follow."""
    return _MOMENT.pack(group_no, delivery_time_ms + 1)


def release_prefix(group_no: int) -> bytes:
    """The prefix of the keys in `pel_by_time` of entries without an owner; the number of the release follows."""
    return _MOMENT.pack(group_no, 0)


def time_key(group_no: int, run: Run) -> bytes:
    """The key of a run in `pel_by_time`."""
    if run.consumer_no == UNOWNED:
        return release_prefix(group_no) + run.moment.to_bytes(ID_BYTES, "big")
    turn = run.turn
    prefix = time_prefix(group_no, run.time_ms)
    return prefix + _TURN.pack(_BEHIND, turn) + run.last if turn else prefix + run.last


def last_in_key(packed: bytes) -> bytes:
    """The packed ID that ends a key of `pel`, `pel_by_consumer` or, where the run has an owner, `pel_by_time`."""
    return packed[-ID_BYTES:]
