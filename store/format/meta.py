"""Table `meta`: the rows that describe the rest of the store.  Every checkpoint writes them.

Each `read_` function is called with a function that gets a row by its name, and returns None, or an empty value, where
the row is missing.  A row that does not decode raises one of DECODE_ERRORS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from riverbed.store.format.packing import pack_plain, pack_row, unpack_row
from riverbed.store.format.rows import FORMAT_VERSION
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds

META_VERSION: Final = b"format_version"
META_COUNTERS: Final = b"counters"
META_DATABASES: Final = b"databases"
META_POSITION: Final = b"position"
META_SYNCED: Final = b"synced"
META_REPLICATION: Final = b"replication"
META_STORE: Final = b"store"
META_NUMBERING: Final = b"numbering"

# The database of a position that has no SELECT before it in its log file.
NO_DATABASE: Final = -1

# Returns the row of a name, None where there is none.
Get = Callable[[bytes], bytes | None]


class Counters(NamedTuple):
    """`counters`: the numbers that the next stream, group and keyspace get."""

    next_stream_no: int
    next_group_no: int
    next_keyspace_no: int


class DatabaseRow(NamedTuple):
    """One element of `databases`."""

    keyspace_no: int
    size: int  # keys
    expiring: int  # keys with a deadline


class PositionRow(NamedTuple):
    """`position`: the end of the log that the tables hold, and the database that is selected there."""

    file_seq: int
    byte: int
    offset: int
    selected: int  # NO_DATABASE for none

    @property
    def place(self) -> LogPosition:
        return LogPosition(*self[:3])

    def pack(self) -> bytes:
        return pack_row(self)


class Meta(NamedTuple):
    """What a checkpoint writes."""

    counters: Counters
    databases: list[DatabaseRow]  # by the number of the database
    position: PositionRow
    synced: LogPosition | None  # up to where the log was known to be durable; None for unknown
    replids: ReplicationIds | None
    numbering: str

    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """(name, row) of each; the row is None where there must be none."""
        yield META_COUNTERS, pack_row(self.counters)
        yield META_DATABASES, pack_row(self.databases)
        yield META_POSITION, self.position.pack()
        yield META_SYNCED, None if self.synced is None else pack_row(self.synced)
        replids = self.replids
        if replids is not None:  # to which the position's offset belongs
            yield META_REPLICATION, pack_row([replids.replication_id, replids.previous_id, replids.branch_offset])
            if replids.store_id:
                yield META_STORE, pack_row(replids.store_id)
        yield META_NUMBERING, pack_row(self.numbering)


def pack_version() -> bytes:
    return pack_plain(FORMAT_VERSION)


def read_version(get: Get) -> Any:
    """The number of the format, or any other value in its row."""
    return _read(get, META_VERSION)


def read_counters(get: Get) -> Counters | None:
    values = _read(get, META_COUNTERS)
    return None if values is None else Counters._make(values)


def read_databases(get: Get) -> list[DatabaseRow]:
    """One for each database, by its number."""
    return [DatabaseRow._make(values) for values in _read(get, META_DATABASES) or ()]


def read_position(get: Get) -> PositionRow | None:
    values = _read(get, META_POSITION)
    return None if values is None else PositionRow._make(values)


def read_synced(get: Get) -> LogPosition | None:
    """Up to where the log was known to be durable."""
    values = _read(get, META_SYNCED)
    return None if values is None else LogPosition._make(values)


def read_replids(get: Get) -> ReplicationIds | None:
    """The replication ids to which the position's offset belongs."""
    found = read_replication(get)
    return None if found is None else replace(found, store_id=read_store_id(get))


def read_replication(get: Get) -> ReplicationIds | None:
    """As `read_replids`, without the id of the store."""
    values = _read(get, META_REPLICATION)
    if values is None:
        return None
    replication_id, previous_id, branch_offset = values
    return ReplicationIds(replication_id, previous_id, branch_offset)


def read_store_id(get: Get) -> str:
    """The id of this store; empty where an older version has made the tables."""
    return _read(get, META_STORE) or ""


def read_numbering(get: Get) -> str:
    """Which tables have given the streams their numbers; empty where an older version has made them."""
    return str(_read(get, META_NUMBERING) or "")


def check_row(row: bytes) -> None:
    """Raises DamagedRowError when a row of `meta`, other than the version, is not what was written."""
    unpack_row(row)


def _read(get: Get, name: bytes) -> Any:
    row = get(name)
    return None if row is None else unpack_row(row)


# The rows that every checkpoint writes.
META_OF_CHECKPOINT: Final = frozenset((META_COUNTERS, META_DATABASES, META_POSITION))
# The reader of each row.
META_READERS: Final[dict[bytes, Callable[[Get], Any]]] = {
    META_VERSION: read_version,
    META_COUNTERS: read_counters,
    META_DATABASES: read_databases,
    META_POSITION: read_position,
    META_SYNCED: read_synced,
    META_REPLICATION: read_replication,
    META_STORE: read_store_id,
    META_NUMBERING: read_numbering,
}
