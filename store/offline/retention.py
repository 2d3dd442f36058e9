"""Remove entries that a store no longer has to keep: by age, by number, and by what every group has acknowledged.

`apply_retention` trims with the store's mutators, and so leaves what XTRIM leaves: pending records of removed entries
stay, unless only acknowledged entries go, and counters do not go back.  `estimate_removals` estimates the number of
removed entries in a read transaction, without reading an entry.

Only groups acknowledge: with `acked`, streams without groups keep everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from riverbed.store.databases.database import Database
from riverbed.store.databases.names import scan_keys
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.format.streams import StreamRow
from riverbed.store.groups.groups import Groups
from riverbed.store.groups.sliced_trim import trim_in_slices
from riverbed.store.ids import MIN_ID, StreamID
from riverbed.store.model import References, Strategy, Trim
from riverbed.store.streams import trimming
from riverbed.store.streams.stream import Stream
from riverbed.store.tables.groups import group_rows
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import LiveStream, nodes_of

# Keys that one step of the scan returns.
_KEYS_A_SLICE: Final = 256


@dataclass(frozen=True, slots=True)
class Retention:
    """Which entries to keep, of the streams that it concerns.

    Kept are entries from `min_id` on, the newest `max_length`, and with `acked` all that some group has not yet
    acknowledged.  None sets no limit.  `acked` alone drops all entries that every group has acknowledged.
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


# -- estimate ----------------------------------------------------------------------------------------------------------


def estimate_removals(reader: TableReader, stream: LiveStream, retention: Retention) -> int:
    """About how many entries of `stream` will be removed, by whole nodes and the group with the most pending."""
    row = stream.row
    if not row.length or not retention.concerns(stream.db, stream.key):
        return 0
    wanted = []
    if retention.min_id is not None:
        wanted.append(_count_below(reader, row, retention.min_id))
    if retention.max_length is not None or not wanted:
        wanted.append(max(row.length - (retention.max_length or 0), 0))
    return min(max(wanted), _count_acked(reader, row)) if retention.acked else max(wanted)


def _count_acked(reader: TableReader, row: StreamRow) -> int:
    """About how many entries were delivered to every group and are pending in none."""
    groups = [group for _, group in group_rows(reader.cursor("groups"), row.stream_no)]
    if not groups:
        return 0
    given = _count_below(reader, row, StreamID(min(group.last_id for group in groups) + 1))
    return max(given - max(group.pel_count for group in groups), 0)


def _count_below(reader: TableReader, row: StreamRow, end: StreamID) -> int:
    """The number of entries in nodes that are wholly below `end`."""
    if row.last_live_id < end:
        return row.length
    whole = takewhile(lambda node: node.last_id < end, (node for _, node in nodes_of(reader, row)))
    return sum(node.live for node in whole)


# -- trim --------------------------------------------------------------------------------------------------------------


def apply_retention(
    txn: WriteTxn, retention: Retention, counted: Callable[[int], None], pause: Callable[[], None], now_ms: int
) -> tuple[int, int]:
    """Trim every stream that `retention` concerns; -> (streams trimmed, entries removed)

    `counted` is called with the number of streams visited.  `pause` is called between commands, and may commit.
    """
    streams = entries = 0
    for db in txn.databases:
        cursor = 0
        while True:
            cursor, keys = scan_keys(db, cursor, _KEYS_A_SLICE, now_ms)
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
    if retention.acked and not stream.group_count:
        return 0
    trims = []
    if retention.min_id is not None:
        trims.append(Trim(Strategy.MINID, retention.min_id))
    if retention.max_length is not None or not trims:
        trims.append(Trim(Strategy.MAXLEN, retention.max_length or 0))
    if retention.acked:
        return sum(_trim_acked(db, stream.key, trim, pause) for trim in trims)
    return sum(trimming.trim(stream, trim) for trim in trims)


def _trim_acked(db: Database, key: bytes, trim: Trim, pause: Callable[[], None]) -> int:
    """Trim in portions, so that memory does not grow with the stream: whole nodes first, then the rest."""
    portion = replace(trim, approximate=True, references=References.ACKED)
    removed = 0
    while True:
        removed += trim_in_slices(_groups_at(db, key), portion)
        pause()
        groups = _groups_at(db, key)  # `pause` may have dropped cached groups
        if groups.acked_trim_start == MIN_ID:
            return removed + trim_in_slices(groups, replace(trim, references=References.ACKED))


def _groups_at(db: Database, key: bytes) -> Groups:
    stream = db.stream(key, 0)
    assert stream is not None
    return db.groups(stream)
