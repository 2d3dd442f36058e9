"""Which entries a store no longer has to keep, by age, by number, and by what every group has acknowledged.

`count_removals` says it from a read transaction, `apply` does it with the store's mutators, which leave what XTRIM
would leave: pending records of removed entries stay, unless only acknowledged ones go, counters tell of all that ever
was.  The two agree to the entry; a test holds them together.

What is acknowledged, groups know: with `acked` streams without groups keep everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from typing import Final

from riverbed.store.databases.database import Database
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.format import rows as fmt
from riverbed.store.groups.groups import Groups
from riverbed.store.groups.pending import UNOWNED, Run
from riverbed.store.groups.reference_trim import trim_with_references
from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, unpack_id
from riverbed.store.model import References, Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import LiveStream, node_rows

# Commands between two looks at whether it is time to commit.
_KEYS_A_SLICE: Final = 256


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of the streams it concerns.

    Entries from `min_id` on, the newest `max_length`, and with `acked` whatever some group has not acknowledged yet;
    None sets no limit.  `acked` alone lets everything go that all groups have acknowledged.
    """

    min_id: StreamID | None = None
    max_length: int | None = None
    acked: bool = False
    matches: Callable[[bytes], object] | None = None  # the key
    databases: frozenset[int] | None = None

    @property
    def is_anything(self) -> bool:
        return self.acked or self.min_id is not None or self.max_length is not None

    def concerns(self, db: int, key: bytes) -> bool:
        if not self.is_anything or (self.databases is not None and db not in self.databases):
            return False
        return self.matches is None or bool(self.matches(key))


NO_RETENTION: Final = Retention()


# -- how much would go -------------------------------------------------------------------------------------------------


def count_removals(reader: TableReader, stream: LiveStream, retention: Retention) -> int:
    """How many entries of `stream` are to go."""
    row = stream.row
    if not row.length or not retention.concerns(stream.db, stream.key):
        return 0
    if retention.acked:
        return _count_acked(reader, row, retention) if row.group_count else 0
    removed = 0 if retention.min_id is None else _count_below(reader, row, retention.min_id)
    if retention.max_length is not None:
        removed = max(removed, row.length - retention.max_length)
    return removed


def first_kept(reader: TableReader, stream: LiveStream, retention: Retention) -> StreamID:
    """The first ID of the first node of which anything may stay; what is below need not be copied to be trimmed.

    Nodes before it go as a whole, by what their rows say, whether or not their entries are there.
    """
    row = stream.row
    first_id = row.floor_id
    if retention.acked or not retention.concerns(stream.db, stream.key):
        return first_id
    length = row.length
    for node_id, live, last_id in _nodes(reader, row):
        first_id = node_id
        too_old = retention.min_id is not None and last_id < retention.min_id
        too_many = retention.max_length is not None and length - live >= retention.max_length
        if not (too_old or too_many):
            return node_id
        length -= live
    return StreamID(min(row.last_id + 1, MAX_ID))


def _nodes(reader: TableReader, row: fmt.StreamRow) -> Iterator[tuple[StreamID, int, StreamID]]:
    """(first ID, live entries, last ID) of the nodes in order."""
    for packed, node in node_rows(reader, row):
        live, _, _, last_id = fmt.decode_node(node)
        yield unpack_id(packed[8:]), live, last_id
    if row.tail_total:
        yield row.tail_first_id, row.tail_total - row.tail_dead, row.tail_last_id


def _count_below(reader: TableReader, row: fmt.StreamRow, end: StreamID) -> int:
    """How many entries there are below `end`."""
    count = 0
    for node_id, live, last_id in _nodes(reader, row):
        if node_id >= end:
            break
        if last_id < end:
            count += live
            continue
        cursor = reader.cursor("entries")
        stop = fmt.entry_key(row.stream_no, end)
        if cursor.set_range(fmt.entry_key(row.stream_no, node_id)):
            for packed in cursor.iternext(values=False):
                if packed >= stop:
                    break
                count += 1
        break
    return count


def _count_acked(reader: TableReader, row: fmt.StreamRow, retention: Retention) -> int:
    """As `apply`: by age first, then by number; only what every group was given and none has pending."""
    groups = list(_groups(reader, row))
    given = StreamID(min(last_id for _, last_id, _ in groups) + 1)
    if retention.min_id is None:
        removed = 0
    else:
        removed = _count_unneeded(reader, row, groups, min(given, retention.min_id))
        if retention.max_length is None:
            return removed
    excess = row.length - removed - (retention.max_length or 0)
    if excess <= 0:
        return removed
    return removed + min(excess, _count_unneeded(reader, row, groups, given) - removed)


# group_no, last_delivered_id, the numbers of its consumers
_Group = tuple[int, StreamID, set[int]]


def _groups(reader: TableReader, row: fmt.StreamRow) -> Iterator[_Group]:
    found: dict[int, _Group] = {}
    for packed, values in reader.rows("groups", fmt.stream_prefix(row.stream_no)):
        group_no = fmt.decode_group_no(packed)
        if len(packed) == fmt.GROUP_KEY_BYTES:
            found[group_no] = group_no, fmt.decode_group(values).last_id, {UNOWNED}
        elif group_no in found:
            found[group_no][2].add(fmt.decode_consumer_no(packed))
    yield from found.values()


def _count_unneeded(reader: TableReader, row: fmt.StreamRow, groups: list[_Group], end: StreamID) -> int:
    """Entries below `end` that no group has pending."""
    entries = reader.cursor("entries")
    prefix = fmt.stream_prefix(row.stream_no)
    needed = 0
    last = b""
    for packed in merge(*(_pending(reader, group) for group in groups)):
        if packed != last and row.first_id <= unpack_id(packed) < end:
            needed += entries.set_key(prefix + packed)
        last = packed
    return _count_below(reader, row, end) - needed


def _pending(reader: TableReader, group: _Group) -> Iterator[bytes]:
    group_no, _, owners = group
    for _, row in reader.rows("pel", fmt.group_prefix(group_no)):
        run = Run.decode(row)
        if run.consumer_no in owners:
            yield from run.ids()


# -- letting it go -----------------------------------------------------------------------------------------------------


def apply(
    txn: WriteTxn, retention: Retention, counted: Callable[[int], None], pause: Callable[[], None], now_ms: int
) -> tuple[int, int]:
    """Trim every stream that is concerned; -> (streams, entries) that were trimmed.

    `counted` is called with the streams that were looked at, `pause` is called between commands and may commit.
    """
    streams = entries = 0
    for db in txn.databases:
        cursor = 0
        while True:
            cursor, keys = db.scan(cursor, _KEYS_A_SLICE, now_ms)
            for key in keys:
                stream = db.stream(key, now_ms) if retention.concerns(db.number, key) else None
                removed = 0 if stream is None else _trim(db, stream, retention, pause)
                streams += removed > 0
                entries += removed
                if removed:
                    pause()
            counted(len(keys))
            if not cursor:
                break
    return streams, entries


def _trim(db: Database, stream: Stream, retention: Retention, pause: Callable[[], None]) -> int:
    if not retention.acked:
        # One trim, by number: both limits cut from the front, so the longer cut holds the other.  The reader sees what
        # was written back.
        stream.txn.write_back()
        reader = TableReader(stream.txn.tables, stream.txn.lmdb)
        live = LiveStream(db.number, stream.key, fmt.decode_stream(stream.encode()))
        removed = count_removals(reader, live, retention)
        return trimming.trim(stream, Trim(Strategy.MAXLEN, stream.length - removed)) if removed else 0
    if not stream.group_count:
        return 0
    removed = 0
    if retention.min_id is not None:
        removed += _trim_acked(db, stream.key, Trim(Strategy.MINID, retention.min_id), pause)
    if retention.max_length is not None or retention.min_id is None:
        removed += _trim_acked(db, stream.key, Trim(Strategy.MAXLEN, retention.max_length or 0), pause)
    return removed


def _trim_acked(db: Database, key: bytes, trim: Trim, pause: Callable[[], None]) -> int:
    """In portions, so that memory does not grow with the stream: whole nodes first, then what is left."""
    portion = replace(trim, approximate=True, references=References.ACKED)
    removed = 0
    while True:
        removed += trim_with_references(_groups_at(db, key), portion)
        pause()
        groups = _groups_at(db, key)  # the pause may have dropped what was cached
        if groups.acked_trim_start == MIN_ID:
            return removed + trim_with_references(groups, replace(trim, references=References.ACKED))


def _groups_at(db: Database, key: bytes) -> Groups:
    stream = db.stream(key, 0)
    assert stream is not None
    return db.groups(stream)
