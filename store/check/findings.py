"""What the parts of the check share: a view of the tables at one checkpoint, the notes of dead rows, and violations.

A dead row may stay as long as a note in table `trash` names it.  `Notes` holds these notes; cursors walk everything
else, so memory does not grow with the number of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import lmdb

from riverbed.store.errors import CorruptionError
from riverbed.store.format.dead_rows import DeadConsumer, DeadGroup, DeadKeyspace, DeadRange, DeadRows, DeadStream
from riverbed.store.format.meta import DatabaseRow
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.format.streams import decode_stream_prefix, name_key, stream_prefix
from riverbed.store.ids import MIN_ID, StreamID, id_text
from riverbed.store.layout import DATA_NAME
from riverbed.store.position import LogPosition
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

Decoded = TypeVar("Decoded")

# A step of the check.  It yields at least once in a few hundred rows, so that its violations can be reported.
Pass = Iterator[None]

_SHOWN_BYTES: Final = 60


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise of the store that the data breaks: in which table, at which key, and how.

    `table` can also be `log`, `lmdb` (pages) or `snapshot`, with a place in a file instead of a key.
    """

    table: str
    key: str
    reason: str
    file: str | None = None
    offset: int | None = None  # in `file`, in bytes

    @property
    def place(self) -> str:
        """The key, or the place in a file; empty when there is neither."""
        if self.key or self.file is None:
            return self.key
        return self.file if self.offset is None else f"{self.file} at byte {self.offset}"

    def __str__(self) -> str:
        place = self.place
        return f"{self.table}: {place}: {self.reason}" if place else f"{self.table}: {self.reason}"


def violation_of(table: str, error: CorruptionError) -> Violation:
    """The violation for an error that a reader of files raised."""
    return Violation(table, "", error.reason, error.file, error.offset)


@dataclass
class Meta:
    """The rows of table `meta` that concern other tables."""

    next_stream_no: int
    next_group_no: int
    next_keyspace_no: int
    databases: list[DatabaseRow]
    position: LogPosition  # of the log, up to which the tables cover it
    log_db: int  # the database that is selected at `position`, -1 for none
    has_replids: bool
    has_store: bool  # the store's id


@dataclass
class Notes:
    """What the notes in table `trash` name: rows that are dead."""

    streams: set[int] = field(default_factory=set)
    floors: dict[int, StreamID] = field(default_factory=dict)  # by stream number
    keyspaces: set[int] = field(default_factory=set)
    groups: set[int] = field(default_factory=set)
    consumers: set[tuple[int, int]] = field(default_factory=set)  # group_no, consumer_no

    def add(self, note: DeadRows) -> None:
        match note:
            case DeadStream(stream_no):
                self.streams.add(stream_no)
            case DeadRange(stream_no, floor_id):
                self.floors[stream_no] = max(floor_id, self.floors.get(stream_no, MIN_ID))
            case DeadKeyspace(keyspace_no):
                self.keyspaces.add(keyspace_no)
            case DeadGroup(group_no, _):
                self.groups.add(group_no)
            case DeadConsumer(group_no, consumer_no):
                self.consumers.add((group_no, consumer_no))


@dataclass
class Contents:
    """Counts for the report."""

    streams: int = 0
    entries: int = 0
    groups: int = 0
    pending: int = 0


class View(TableReader):
    """The tables in one read transaction, and the violations found since the last `drain`."""

    def __init__(self, tables: Tables, txn: lmdb.Transaction[bytes], contents: Contents) -> None:
        super().__init__(tables, txn)
        self.contents = contents
        self._file = str(tables.path / DATA_NAME)
        self.walked = 0  # rows so far
        self.found: list[Violation] = []
        self.meta: Meta | None = None
        self.notes = Notes()
        self.records: set[int] = set()  # the numbers of idempotence records that rows of keys name
        self._live_keyspaces: set[int] = set()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def rows(self, table: str, prefix: bytes = b"", start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table, as any reader gives them, but counted in `walked`."""
        for item in super().rows(table, prefix, start):
            self.walked += 1
            yield item

    def heads(self, table: str) -> Iterator[int]:
        """The distinct numbers at the beginning of the keys of `table`."""
        cursor = self.cursor(table)
        found = cursor.first()
        while found:
            key = cursor.key()
            if len(key) < 8:
                self.add(table, show(key), "the key is too short")
                found = cursor.next()
                continue
            number = decode_stream_prefix(key)
            yield number
            found = number < (1 << 64) - 1 and cursor.set_range(stream_prefix(number + 1))

    def decode(self, table: str, key: str, function: Callable[..., Decoded], *values: Any) -> Decoded | None:
        """Return `function(*values)`; when it does not decode, add a violation and return None."""
        try:
            return function(*values)
        except DECODE_ERRORS as error:
            self.add(table, key, f"does not decode: {error}")
            return None

    # -- findings ------------------------------------------------------------------------------------------------------

    def add(self, table: str, key: str, reason: str) -> None:
        self.found.append(Violation(table, key, reason, self._file))

    def drain(self) -> Iterator[Violation]:
        """Yield the violations found since the last call."""
        found, self.found = self.found, []
        yield from found

    # -- live and dead -------------------------------------------------------------------------------------------------

    def set_meta(self, meta: Meta) -> None:
        self.meta = meta
        self._live_keyspaces = {keyspace_no for keyspace_no, _, _ in meta.databases}

    def is_live_keyspace(self, keyspace_no: int) -> bool:
        return keyspace_no in self._live_keyspaces

    def homes(self, stream_no: int) -> list[int]:
        """The keyspaces in which a stream of this number has a name, including keyspaces that are to be purged."""
        keyspaces = (*self._live_keyspaces, *self.notes.keyspaces)
        return [home for home in keyspaces if self.get("names", name_key(home, stream_no)) is not None]

    def is_live_stream(self, stream_no: int) -> bool:
        return any(self.get("names", name_key(home, stream_no)) is not None for home in self._live_keyspaces)

    def is_dead_number(self, number: int) -> bool:
        """Whether the purge will delete all rows under this number, of a stream or of idempotence records."""
        return number in self.notes.streams

    def is_dead_stream(self, stream_no: int) -> bool:
        """Whether the purge will delete the rows of this stream."""
        return stream_no in self.notes.streams or any(
            self.get("names", name_key(home, stream_no)) is not None for home in self.notes.keyspaces
        )


def require_integers(values: Iterable[Any]) -> None:
    """Raise ValueError unless all are integers of at least 0."""
    for value in values:
        if type(value) is not int or value < 0:
            raise ValueError(f"not a number: {value!r}")


def show(raw: bytes) -> str:
    """Bytes as readable text, shortened."""
    text = repr(raw[:_SHOWN_BYTES])[1:]
    return f"{text} and {len(raw) - _SHOWN_BYTES} bytes more" if len(raw) > _SHOWN_BYTES else text


def show_id(entry_id: StreamID) -> str:
    return id_text(entry_id).decode()
