"""The plan of a compaction: what the store holds, about what the compaction drops, and the space that it needs.

The space is an upper bound for the tables, and an estimate for the log: rows that are put in the order of their keys
fill no more pages than they do now, and a base is about as long as the rows from which it is made.

Making a plan reads one LMDB transaction without its entries, and the log after the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from riverbed.store.disk.files import Files
from riverbed.store.errors import CorruptionError, StoreError, why_undecoded
from riverbed.store.format.meta import read_position
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.log.reader import LogPart, LogReader, TornTail
from riverbed.store.offline.retention import Retention, estimate_removals
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress
from riverbed.store.swap import Places
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import MissingRowError, streams

MEASURING: Final = "measuring"

# Pages that every commit copies, until the replaced pages can be used again.
_CHURN_BYTES: Final = 4 << 20
_MAX_CHANGED_BYTES: Final = 64 << 20
# The most bytes of pages, and of a base, for each byte of log.
_PAGES_A_LOGGED_BYTE: Final = 4
# The most bytes of a base for each byte of a row other than an entry: packed IDs become text.
_BASE_A_ROW_BYTE: Final = 4
_BASE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Wishes:
    """What to leave out besides dead rows."""

    now_ms: int
    keep: Retention
    keep_expired: bool


@dataclass(slots=True)
class LogSize:
    """Files of the log, and their bytes."""

    files: int = 0
    bytes: int = 0


def log_size(parts: Sequence[LogPart]) -> LogSize:
    return LogSize(len(parts), sum(part.size for part in parts))


@dataclass(slots=True)
class TableSize:
    """Rows of a table, and the bytes of the pages that hold them."""

    rows: int = 0
    bytes: int = 0


def sizes_of(reader: TableReader) -> dict[str, TableSize]:
    """The size of every table now, including dead rows."""
    found = {}
    for table in TABLES:
        counts = reader.stat(table)
        pages = counts["branch_pages"] + counts["leaf_pages"] + counts["overflow_pages"]
        found[table] = TableSize(counts["entries"], pages * counts["psize"])
    return found


@dataclass(slots=True)
class Plan:
    """The store at its last checkpoint, and estimates of what a compaction will change."""

    tables: dict[str, TableSize]
    state_bytes: int  # of the file
    log: LogSize
    expired: int  # keys whose deadline has passed; the compaction deletes them
    trimmed_streams: int
    trimmed_entries: int
    tail_bytes: int  # of the log after the last checkpoint, whose changes the counts here leave out
    torn_tail: TornTail | None
    copy_bytes: int  # of the tables, in the order of their keys
    base_bytes: int  # of the new base
    free_bytes: int
    end: LogPosition

    @property
    def needed_bytes(self) -> int:
        """The most space that the compaction will take beside the old store."""
        if not (self.tail_bytes or self.expired or self.trimmed_entries):
            return self.copy_bytes + self.base_bytes
        changed_bytes = min(2 * sum(size.bytes for size in self.tables.values()), _MAX_CHANGED_BYTES)
        return self.copy_bytes + changed_bytes + max(self.copy_bytes, self.base_bytes)

    @property
    def is_feasible(self) -> bool:
        """Whether that much space is free."""
        return self.needed_bytes <= self.free_bytes


def make_plan(
    tables: Tables, parts: Sequence[LogPart], places: Places, wishes: Wishes, steps: Progress, files: Files
) -> Plan:
    """Read every stream's row, and the end of the log.

    Raises StoreError when there was never a checkpoint, CorruptionError, lmdb.Error, OSError.
    """
    with tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        row = read_position(reader.meta_row)
        if row is None:
            raise StoreError(f"the store in {places.directory} was never checkpointed: start riverbed-server once")
        tail_bytes, end, torn = _read_tail(parts, row.place, files)
        sizes = sizes_of(reader)
        expired = trimmed_streams = trimmed_entries = names_bytes = 0
        try:
            for number, stream in enumerate(streams(reader), 1):
                expired += not wishes.keep_expired and 0 < stream.row.expire_ms <= wishes.now_ms
                removed = estimate_removals(reader, stream, wishes.keep)
                trimmed_streams += removed > 0
                trimmed_entries += removed
                names_bytes += (stream.row.length + _BASE_A_ROW_BYTE) * len(stream.key)
                steps(MEASURING, number, max(number, sizes["names"].rows))
        except DECODE_ERRORS as error:
            reason = error if isinstance(error, MissingRowError) else why_undecoded(error)
            raise CorruptionError(str(tables.path), None, f"{reason}; `riverbed check` shows more") from error
        tail_pages = _PAGES_A_LOGGED_BYTE * tail_bytes
        others = sum(size.bytes for table, size in sizes.items() if table != "entries")
        base_bytes = sizes["entries"].bytes + names_bytes + _BASE_A_ROW_BYTE * others + _BASE_BYTES + tail_pages
        copy_bytes = _copy_bytes(reader) + _CHURN_BYTES + tail_pages
    return Plan(
        tables=sizes,
        state_bytes=places.data.stat().st_size,
        log=log_size(parts),
        expired=expired,
        trimmed_streams=trimmed_streams,
        trimmed_entries=trimmed_entries,
        tail_bytes=tail_bytes,
        torn_tail=torn,
        copy_bytes=copy_bytes,
        base_bytes=base_bytes,
        # The smaller of the two, when log and tables are on different disks.
        free_bytes=min(files.free_bytes(places.home), files.free_bytes(places.state)),
        end=end,
    )


def _copy_bytes(reader: TableReader) -> int:
    """The bytes of the pages that the rows take in the order of their keys.

    LMDB fills the leaves one by one, which makes as few of them as possible.  It splits branches in halves.
    """
    total = 0
    for table in TABLES:
        counts = reader.stat(table)
        pages = counts["leaf_pages"] + counts["overflow_pages"] + 2 * counts["branch_pages"] + counts["depth"]
        total += pages * counts["psize"]
    return total


def _read_tail(
    parts: Sequence[LogPart], position: LogPosition, files: Files
) -> tuple[int, LogPosition, TornTail | None]:
    """-> (bytes of log after the last checkpoint, the end of the log, a torn tail)"""
    reader = LogReader(list(parts), files)
    size = sum(batch.size for batch in reader.batches(position, position))
    assert reader.end is not None
    return size, reader.end, reader.torn_tail
