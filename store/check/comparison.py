"""The tables beside those that their log makes: everything that clients can see, and every counter behind it.

    databases   by number         their keys in order, one beside the other
    keys        counters, deadline, settings          entries    byte for byte
    groups      by name: position, counters, policy   consumers  by name: times       pel    every entry that is pending
    records     by producer and id

How rows are laid out may differ, and is not compared: numbers that were given out, floors, nodes, runs.  Of idempotence
records the tables may lack what has expired, which no log tells.  Both sides are known to be consistent in themselves;
what only repeats something else (names, deadlines in order, the lists of `pel`) is looked after by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple, TypeVar

from riverbed.store.check.findings import Violation, show, show_id
from riverbed.store.format.groups import (
    CONSUMER_KEY_BYTES,
    GROUP_KEY_BYTES,
    ConsumerRow,
    GroupRow,
    decode_consumer_no,
    decode_group_no,
    group_key,
)
from riverbed.store.format.idempotence import IidRow, ProducerRow, producer_of, without_records_no
from riverbed.store.format.pending import UNOWNED, Run, group_prefix, release_prefix
from riverbed.store.format.resp import decode_entry
from riverbed.store.format.streams import StreamRow, encode_keyspace_no, packed_id_in, stream_prefix
from riverbed.store.ids import StreamID, id_ms, pack_id, unpack_id
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import keyspaces

Value = TypeVar("Value")

COMPARING: Final = "comparing"

# Entries compared at once.
_CHUNK: Final = 1024
# What of a stream's row both sides must have alike.
_COUNTERS: Final = (
    "length",
    "entries_added",
    "first_id",
    "last_id",
    "last_live_id",
    "max_deleted_id",
    "expire_ms",
    "group_count",
)


class Side(NamedTuple):
    """A stream on one of the two sides."""

    reader: TableReader
    row: StreamRow

    @property
    def prefix(self) -> bytes:
        return stream_prefix(self.row.stream_no)


class _Group(NamedTuple):
    """A group on one side.  `shown` is what must be alike, by name."""

    group_no: int
    shown: dict[str, Any]


class Comparison:
    """The tables and the fold of the log, each in a transaction of its own.

    `now_ms` decides which idempotence records have expired.  Without `has_times` the log says nothing of when consumers
    were seen: a Redis wrote it.
    """

    def __init__(self, tables: TableReader, folded: TableReader, *, now_ms: int, has_times: bool) -> None:
        self._tables = tables
        self._folded = folded
        self._now_ms = now_ms
        self._has_times = has_times
        self.entries = 0  # compared so far

    def violations(self) -> Iterator[Violation | None]:
        """Every difference, named by what the tables hold; None now and then, so that others may have their turn.

        Raises one of DECODE_ERRORS when a row does not decode.
        """
        for numbers in zip(keyspaces(self._tables), keyspaces(self._folded), strict=True):
            ours, theirs = (
                _keys(reader, number) for reader, number in zip((self._tables, self._folded), numbers, strict=True)
            )
            for packed, row, folded in _join(ours, theirs):
                yield None
                yield from self._key(packed, row, folded)

    def _key(self, packed: bytes, row: StreamRow | None, folded: StreamRow | None) -> Iterator[Violation | None]:
        known = row or folded
        assert known is not None
        key = show(packed[1:] if known.long_key is None else known.long_key)
        if row is None or folded is None:
            yield Violation("keys", key, _one_sided(row is not None))
            return
        for name in _COUNTERS:
            ours, theirs = getattr(row, name), getattr(folded, name)
            if ours != theirs:
                if name.endswith("_id"):
                    ours, theirs = show_id(ours), show_id(theirs)
                yield Violation("keys", key, f"{name} is {ours}, the log makes it {theirs}")
        settings = [_settings(each) for each in (row, folded)]
        if settings[0] != settings[1]:
            yield Violation("keys", key, f"idempotence is {settings[0]}, the log makes it {settings[1]}")
        sides = Side(self._tables, row), Side(self._folded, folded)
        yield from self._entries(key, *sides)
        if row.group_count or folded.group_count:
            yield from self._groups(key, *sides)
        if row.idempotence is not None and folded.idempotence is not None:
            yield from self._records(key, *sides)

    def _entries(self, key: str, ours: Side, theirs: Side) -> Iterator[Violation | None]:
        """A row holds its ID as well, so equal rows are equal entries; as long as they are, keys are not looked at."""
        left = min(ours.row.length, theirs.row.length)
        values = [_values(side) for side in (ours, theirs)]
        past = b""
        while left:
            chunks = [list(islice(each, min(left, _CHUNK))) for each in values]
            if chunks[0] != chunks[1] or not chunks[0]:
                break
            left -= len(chunks[0])
            self.entries += len(chunks[0])
            past = chunks[0][-1]
            yield None
        if not left and ours.row.length == theirs.row.length:
            return
        start = b"" if not past else _id_of(past)
        rows = [_rows_after(side, start) for side in (ours, theirs)]
        for number, (packed, has, makes) in enumerate(_join(*rows)):
            if not number % _CHUNK:
                yield None
            where = f"stream {ours.row.stream_no} ({key}), {show_id(unpack_id(packed))}"
            if has is None or makes is None:
                yield Violation("entries", where, _one_sided(has is not None))
            elif has != makes:
                yield Violation("entries", where, "has other fields than the log gives it")

    # -- groups --------------------------------------------------------------------------------------------------------

    def _groups(self, key: str, ours: Side, theirs: Side) -> Iterator[Violation | None]:
        named, folded = _groups(ours), _groups(theirs)
        for name in sorted({*named, *folded}):
            yield None
            where = f"group {show(name)} of {key}"
            group, made = named.get(name), folded.get(name)
            if group is None or made is None:
                yield Violation("groups", where, _one_sided(group is not None))
                continue
            for what, value in group.shown.items():
                if value != made.shown[what]:
                    yield Violation("groups", where, f"{what} is {value}, the log makes it {made.shown[what]}")
            numbers = []
            members = []
            for side, number in ((ours, group.group_no), (theirs, made.group_no)):
                consumers = _consumers(side, number, self._has_times)
                numbers.append({consumer_no: consumer for consumer, (consumer_no, _) in consumers.items()})
                members.append({consumer: shown for consumer, (_, shown) in consumers.items()})
            for consumer in sorted({*members[0], *members[1]}):
                has, makes = members[0].get(consumer), members[1].get(consumer)
                told = f"consumer {show(consumer)} of {where}"
                if has is None or makes is None:
                    yield Violation("groups", told, _one_sided(has is not None))
                elif has != makes:
                    differs = [what for what in has if has[what] != makes[what]]
                    for what in differs:
                        yield Violation("groups", told, f"{what} is {has[what]}, the log makes it {makes[what]}")
            pending = [
                _pending(side.reader, number, names)
                for side, number, names in zip((ours, theirs), (group.group_no, made.group_no), numbers, strict=True)
            ]
            yield from _compare_pending(where, *pending)
            released = [_released(ours.reader, group.group_no), _released(theirs.reader, made.group_no)]
            for has_id, makes_id in zip_longest(*released):
                if has_id != makes_id:
                    reason = f"{_shown_id(has_id)} is next in the order of release, the log has {_shown_id(makes_id)}"
                    yield Violation("pel_by_time", where, reason)
                    break

    # -- idempotence ---------------------------------------------------------------------------------------------------

    def _records(self, key: str, ours: Side, theirs: Side) -> Iterator[Violation | None]:
        held, made = _records(ours), _records(theirs)
        for number, (packed, has, makes) in enumerate(_join(held, made)):
            if not number % _CHUNK:
                yield None
            where = f"a record of {key}, {show(packed)}"
            if has is not None and makes is not None:
                if has != makes:
                    yield Violation("idmp_ids", where, f"is {show_id(has)}, the log makes it {show_id(makes)}")
            elif has is not None:
                if not _is_full(theirs, packed):
                    yield Violation("idmp_ids", where, _one_sided(True))
            elif makes is not None and not self._has_expired(theirs, makes):
                yield Violation("idmp_ids", where, _one_sided(False))

    def _has_expired(self, side: Side, entry_id: StreamID) -> bool:
        assert side.row.idempotence is not None
        return id_ms(entry_id) + 1000 * (side.row.idempotence.duration_s or 0) <= self._now_ms


def _one_sided(is_ours: bool) -> str:
    if is_ours:
        return "is in the tables, and the log does not make it"
    return "the log makes it, and it is not in the tables"


def _settings(row: StreamRow) -> list[int | None] | None:
    """What must be alike of the settings of idempotence; the number of the records is each side's own."""
    if row.idempotence is None:
        return None
    settings = row.idempotence
    return [settings.duration_s, settings.max_records, settings.records_added, settings.duplicates]


def _shown_id(packed: bytes | None) -> str:
    return "nothing" if packed is None else show_id(unpack_id(packed))


def _join(
    ours: Iterable[tuple[bytes, Value]], theirs: Iterable[tuple[bytes, Value]]
) -> Iterator[tuple[bytes, Value | None, Value | None]]:
    """Two ascending lists side by side, None where one has nothing."""
    left, right = iter(ours), iter(theirs)
    a, b = next(left, None), next(right, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a[0] < b[0]):
            assert a is not None
            yield a[0], a[1], None
            a = next(left, None)
        elif a is None or b[0] < a[0]:
            yield b[0], None, b[1]
            b = next(right, None)
        else:
            yield a[0], a[1], b[1]
            a, b = next(left, None), next(right, None)


def _keys(reader: TableReader, keyspace_no: int) -> Iterator[tuple[bytes, StreamRow]]:
    """The rows of one keyspace, by key, or digest."""
    prefix = encode_keyspace_no(keyspace_no)
    for packed, row in reader.rows("keys", prefix):
        yield packed[len(prefix) :], StreamRow.unpack(row)


# -- entries -----------------------------------------------------------------------------------------------------------


def _values(side: Side) -> Iterator[bytes]:
    cursor = side.reader.cursor("entries")
    if side.row.length and cursor.set_range(side.prefix + pack_id(side.row.first_id)):
        yield from cursor.iternext(keys=False)


def _id_of(row: bytes) -> bytes:
    """The packed ID in an entry's row."""
    ms, _, seq = decode_entry(row)[0].partition(b"-")
    return int(ms).to_bytes(8, "big") + int(seq).to_bytes(8, "big")


def _rows_after(side: Side, past: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(packed ID, row) of the entries above the packed ID `past`."""
    prefix = side.prefix
    cursor = side.reader.cursor("entries")
    last = prefix + pack_id(side.row.last_live_id)
    if side.row.length and cursor.set_range(prefix + max(past, pack_id(side.row.first_id))):
        for packed, row in cursor.iternext():
            if packed > last:
                return
            packed_id = packed_id_in(packed)
            if packed_id > past:
                yield packed_id, row


# -- groups ------------------------------------------------------------------------------------------------------------


def _groups(side: Side) -> dict[bytes, _Group]:
    found = {}
    for packed, row in side.reader.rows("groups", side.prefix):
        if len(packed) != GROUP_KEY_BYTES:
            continue
        group = GroupRow.unpack(row)
        shown = {
            "the last delivered ID": _shown_id(pack_id(group.last_id)),
            "entries_read": group.entries_read,
            "the number of pending entries": group.pel_count,
            "the number of released entries": group.released_count,
            "the number of consumers": group.consumer_count,
            "the policy": None if group.policy is None else list(group.policy),
        }
        found[group.name] = _Group(decode_group_no(packed), shown)
    return found


def _consumers(side: Side, group_no: int, has_times: bool) -> dict[bytes, tuple[int, dict[str, int]]]:
    """By name: number, and what must be alike."""
    found = {}
    for packed, row in side.reader.rows("groups", group_key(side.row.stream_no, group_no)):
        if len(packed) == CONSUMER_KEY_BYTES:
            name, seen_ms, active_ms, pel_count = ConsumerRow.unpack(row)
            shown = {"the number of pending entries": pel_count}
            if has_times:
                shown |= {"seen": seen_ms, "active": active_ms}
            found[name] = (decode_consumer_no(packed), shown)
    return found


class _Pending(NamedTuple):
    """A run on one side, its owner by name; None for nobody, whose run has no time."""

    owner: bytes | None
    time_ms: int
    delivery_count: int
    packed: bytes

    def entries(self) -> Iterator[tuple[bytes, _Pending]]:
        for at in range(0, len(self.packed), 16):
            yield self.packed[at : at + 16], self._replace(packed=b"")

    def told(self) -> str:
        owner = "by nobody" if self.owner is None else f"by {show(self.owner)} since {self.time_ms} ms"
        return f"owned {owner}, delivered {self.delivery_count} times"


def _pending(reader: TableReader, group_no: int, names: dict[int, bytes]) -> Iterator[_Pending]:
    """The runs that somebody has, by ID.  Those of deleted consumers are dead."""
    for _, row in reader.rows("pel", group_prefix(group_no)):
        run = Run.unpack(row)
        if run.consumer_no == UNOWNED:
            yield _Pending(None, 0, run.delivery_count, run.packed)
        elif run.consumer_no in names:
            yield _Pending(names[run.consumer_no], run.time_ms, run.delivery_count, run.packed)


def _compare_pending(where: str, ours: Iterator[_Pending], theirs: Iterator[_Pending]) -> Iterator[Violation | None]:
    """Run by run as long as they are cut alike, then entry by entry."""
    yield None
    number = 0
    for has, makes in zip_longest(ours, theirs):
        number += 1
        if has == makes:
            if not number % _CHUNK:
                yield None
            continue
        for packed, a, b in _join(_unrolled(has, ours), _unrolled(makes, theirs)):
            told = f"{where}, {_shown_id(packed)}"
            if a is None or b is None:
                yield Violation("pel", told, _one_sided(a is not None))
            elif a != b:
                yield Violation("pel", told, f"is {a.told()}; the log makes it {b.told()}")
        return


def _unrolled(first: _Pending | None, others: Iterator[_Pending]) -> Iterator[tuple[bytes, _Pending]]:
    if first is not None:
        yield from first.entries()
        for run in others:
            yield from run.entries()


def _released(reader: TableReader, group_no: int) -> Iterator[bytes]:
    """The IDs that nobody owns, in the order of their release."""
    return (row for _, row in reader.rows("pel_by_time", release_prefix(group_no)))


# -- idempotence -------------------------------------------------------------------------------------------------------


def _records(side: Side) -> Iterator[tuple[bytes, StreamID]]:
    """(digests of producer and idempotent id, entry) of every record."""
    records_no = side.row.records_no
    if records_no:
        for packed, row in side.reader.rows("idmp_ids", stream_prefix(records_no)):
            yield without_records_no(packed), IidRow.unpack(row).entry_id


def _is_full(side: Side, packed: bytes) -> bool:
    """Whether the producer of a record has as many as are kept: one that has expired may be there in its place."""
    assert side.row.idempotence is not None
    max_records = side.row.idempotence.max_records
    row = side.reader.get("idmp", producer_of(stream_prefix(side.row.records_no) + packed))
    return row is not None and max_records is not None and ProducerRow.unpack(row).records >= max_records
