"""What a compaction will make of a store, reckoned from its tables and the end of its log before anything is written.

What it says is needed is an upper bound of what will lie beside the old store at any time: the new tables, again while
a copy is made of a copy, and the new base.  The tables are opened with maps of these sizes, so they cannot take more.

Reads one LMDB transaction and the log behind the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from riverbed.store.disk.files import Files
from riverbed.store.errors import StoreError
from riverbed.store.format import rows as fmt
from riverbed.store.format.meta import META_POSITION
from riverbed.store.log.reader import LogPart, LogReader, TornTail
from riverbed.store.offline import retention
from riverbed.store.offline.live_rows import LiveRows, TableSize, room_for, sizes_of
from riverbed.store.offline.retention import Retention
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress
from riverbed.store.rewrite.state import pieces
from riverbed.store.swap import Places
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

MEASURING: Final = "measuring"
MEASURING_LOG: Final = "measuring the log to be"
_UNKNOWN: Final = 0

# Pages that are written anew by every commit, until those they replace can be used again.
CHURN_BYTES: Final = 4 << 20
_MAX_CHANGED_BYTES: Final = 64 << 20
# How many bytes of pages a byte of log may make.
_PAGES_A_LOGGED_BYTE: Final = 4
_WITHOUT_EFFECT: Final = frozenset((b"SELECT", b"PING", b"REPLCONF"))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be left out besides rows that nobody can reach."""

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
class Plan:
    """What is there, and what a compaction will make of it.  Sizes to come are upper bounds."""

    before: dict[str, TableSize]
    after: dict[str, TableSize]
    state_bytes: int  # of the file now
    log: LogSize
    expired: int  # keys whose deadline has passed, which go
    trimmed_streams: int
    trimmed_entries: int
    tail_bytes: int  # of the log behind the last checkpoint: nothing of it is counted here
    torn_tail: TornTail | None
    base_bytes: int  # of the new base
    free_bytes: int
    end: LogPosition
    has_changes: bool  # more than a copy has to be made

    @property
    def tables_bytes(self) -> int:
        """Of the living rows."""
        return sum(size.bytes for size in self.after.values())

    @property
    def copy_bytes(self) -> int:
        """Of a copy of the living rows, with what the end of the log adds."""
        return self.tables_bytes + CHURN_BYTES + _PAGES_A_LOGGED_BYTE * self.tail_bytes

    @property
    def change_bytes(self) -> int:
        """Of the tables in which keys expire and streams are trimmed."""
        return self.copy_bytes + min(2 * self.tables_bytes, _MAX_CHANGED_BYTES)

    @property
    def needed_bytes(self) -> int:
        """The most that will lie beside the old store."""
        if not self.has_changes:
            return self.copy_bytes + self.base_bytes
        return self.change_bytes + max(self.copy_bytes, self.base_bytes)

    @property
    def is_feasible(self) -> bool:
        """Whether there is that much."""
        return self.needed_bytes <= self.free_bytes


def make_plan(
    tables: Tables, parts: Sequence[LogPart], places: Places, wishes: Wishes, steps: Progress, files: Files
) -> Plan:
    """Look at everything.

    Raises StoreError when there was never a checkpoint, CorruptionError, lmdb.Error, OSError.
    """
    where = str(tables.path)
    with tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        row = reader.get("meta", META_POSITION)
        if row is None:
            raise StoreError(f"the store in {places.directory} was never checkpointed: start riverbed-server once")
        before = sizes_of(reader)
        done, total = 0, sum(size.rows for size in before.values())
        steps(MEASURING, done, total)
        *place, _ = fmt.unpack_row(row)
        commands, tail_bytes, end, torn = _read_tail(parts, LogPosition(*place), files)
        expired = 0 if wishes.keep_expired else _count_expired(reader, where, wishes.now_ms)
        streams = entries = names_bytes = 0
        live = rows_to_copy(reader, where, wishes, has_tail=commands > 0)
        for stream in live.streams():
            removed = retention.count_removals(reader, stream, wishes.keep)
            streams += removed > 0
            entries += removed
            names_bytes += stream.row.length * (len(stream.key) + 32)
        page_bytes = reader.stat("meta")["psize"]
        after = {}

        def counted(count: int) -> None:
            steps(MEASURING, min(done + count, total), total)

        for table, rows in live.tables():
            after[table] = room_for(rows, page_bytes, counted)
            done += before[table].rows
        steps(MEASURING, total, total)
        others = 0
        for piece in pieces(tables, txn, entries=False):
            others += piece.command_bytes + len(piece.data)
            steps(MEASURING_LOG, others, _UNKNOWN)
    base_bytes = after["entries"].bytes + names_bytes + others + (1 << 16)
    base_bytes += (base_bytes >> 10) + _PAGES_A_LOGGED_BYTE * tail_bytes  # annotations, and what the tail adds
    return Plan(
        before=before,
        after=after,
        state_bytes=places.data.stat().st_size,
        log=log_size(parts),
        expired=expired,
        trimmed_streams=streams,
        trimmed_entries=entries,
        tail_bytes=tail_bytes if commands else 0,
        torn_tail=torn,
        base_bytes=base_bytes,
        # where there is less of it, when log and tables are on two disks
        free_bytes=min(files.free_bytes(places.home), files.free_bytes(places.state)),
        end=end,
        has_changes=bool(commands or expired or entries),
    )


def rows_to_copy(reader: TableReader, where: str, wishes: Wishes, *, has_tail: bool) -> LiveRows:
    """The living rows, without entries that go anyway.

    With a tail to execute everything is needed: it may speak of any entry.
    """
    keep = wishes.keep
    if has_tail or not keep.is_anything or keep.acked:
        return LiveRows(reader, where)
    return LiveRows(reader, where, lambda stream: retention.first_kept(reader, stream, keep))


def _read_tail(
    parts: Sequence[LogPart], position: LogPosition, files: Files
) -> tuple[int, int, LogPosition, TornTail | None]:
    """-> (commands that change anything, bytes, the end of the log, a torn tail) behind the last checkpoint."""
    reader = LogReader(list(parts), files)
    commands = size = 0
    for batch in reader.batches(position, position):
        commands += sum(words[0].upper() not in _WITHOUT_EFFECT for words in batch.commands)
        size += batch.size
    assert reader.end is not None
    return commands, size, reader.end, reader.torn_tail


def _count_expired(reader: TableReader, where: str, now_ms: int) -> int:
    return sum(0 < stream.row.expire_ms <= now_ms for stream in LiveRows(reader, where).streams())
