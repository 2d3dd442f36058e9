"""The rows of a store that somebody can still reach, table by table, in the order of their keys.

What the purge would delete in its own time is left out: rows of deleted streams and groups, entries below a stream's
floor, keys of flushed databases, what deleted consumers had pending.  The other way round it is the list of what a
compaction has to copy, and how many pages that will take.

Reads one LMDB transaction and holds a number for each group and each stream with idempotence records.  Writes nothing.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from riverbed.store.errors import CorruptionError
from riverbed.store.format import rows as fmt
from riverbed.store.groups.pending import UNOWNED
from riverbed.store.ids import StreamID, id_text, pack_id
from riverbed.store.model import Row
from riverbed.store.progress import ignore
from riverbed.store.tables.dead_rows import Kind
from riverbed.store.tables.environment import TABLES
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import LiveStream, MissingRowError, keyspaces, node_rows, streams

# How LMDB lays out pages.  Rows that come in order fill a page before the next one is begun.
_PAGE_HEADER_BYTES: Final = 16
_ROW_BYTES: Final = 8 + 2  # the row's header and its place in the page's index
_CHUNK_ROWS: Final = 1000


# From which ID on the entries of a stream matter; those of nodes below it are left out.
FirstKept = Callable[[LiveStream], StreamID]


class LiveRows:
    """The living rows that `reader` sees."""

    def __init__(self, reader: TableReader, where: str, first_kept: FirstKept | None = None) -> None:
        """`where` names the tables in errors."""
        self._reader = reader
        self._where = where
        self._first_kept = first_kept
        self._homes = sorted(keyspaces(reader))
        self._dead_consumers: dict[int, set[int]] = {}  # by group number
        for _, note in reader.rows("trash"):
            kind, *values = fmt.unpack_row(note)
            if kind == Kind.CONSUMER:
                self._dead_consumers.setdefault(values[0], set()).add(values[1])
        # Both in ascending order, which is not that of the streams they belong to.
        self._group_nos = array("Q")
        self._records_nos = array("Q")

    def streams(self) -> Iterator[LiveStream]:
        """Every stream, in the order of their numbers.  Raises CorruptionError."""
        try:
            yield from streams(self._reader)
        except MissingRowError as error:
            raise self._wrong(str(error)) from error

    def tables(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """(table, its rows) for every table; each must be read to its end before the next."""
        group_nos, records_nos = array("Q"), array("Q")
        for stream in self.streams():
            if stream.row.group_count:
                prefix = fmt.stream_prefix(stream.row.stream_no)
                group_nos.extend(group_no for group_no, _ in self._groups(prefix))
            if stream.row.idempotence is not None and stream.row.idempotence[2]:
                records_nos.append(stream.row.idempotence[2])
        self._group_nos, self._records_nos = array("Q", sorted(group_nos)), array("Q", sorted(records_nos))
        makers: dict[str, Callable[[], Iterator[Row]]] = {
            "keys": lambda: self._of_homes("keys"),
            "names": lambda: self._of_homes("names"),
            "entries": self._entries,
            "nodes": self._nodes,
            "expiry": self._expiry,
            "idmp": lambda: self._of_records("idmp"),
            "idmp_ids": lambda: self._of_records("idmp_ids"),
            "idmp_times": lambda: self._of_records("idmp_times"),
            "groups": self._all_groups,
            "pel": self._pel,
            "pel_by_consumer": self._pel_by_consumer,
            "pel_by_time": self._pel_by_time,
            "consumer_ttls": self._consumer_ttls,
            "trash": lambda: iter(()),
            "meta": lambda: self._reader.rows("meta"),
        }
        for table in TABLES:
            yield table, makers[table]()

    # -- one table each ------------------------------------------------------------------------------------------------

    def _of_homes(self, table: str) -> Iterator[Row]:
        for home in self._homes:
            yield from self._reader.rows(table, fmt.encode_keyspace_no(home))

    def _entries(self) -> Iterator[Row]:
        cursor = self._reader.cursor("entries")
        for stream in self.streams():
            row = stream.row
            if not row.length:
                continue
            prefix = fmt.stream_prefix(row.stream_no)
            first_kept = row.floor_id if self._first_kept is None else self._first_kept(stream)
            if first_kept > row.first_id:
                yield from self._reader.rows("entries", prefix, prefix + pack_id(first_kept))
                continue
            first = prefix + pack_id(row.first_id)
            if not cursor.set_range(first) or cursor.key() != first:
                raise self._wrong(f"stream {row.stream_no}: its first entry is not there")
            yield from islice(cursor.iternext(), row.length)
            if cursor.key() != prefix + pack_id(row.last_live_id):
                told = f"it has not {row.length} entries up to {id_text(row.last_live_id).decode()}"
                raise self._wrong(f"stream {row.stream_no}: {told}")

    def _nodes(self) -> Iterator[Row]:
        for stream in self.streams():
            yield from node_rows(self._reader, stream.row)

    def _expiry(self) -> Iterator[Row]:
        for packed, row in self._reader.rows("expiry"):
            if fmt.decode_keyspace_no(row) in self._homes:
                yield packed, row

    def _of_records(self, table: str) -> Iterator[Row]:
        for records_no in self._records_nos:
            yield from self._reader.rows(table, fmt.stream_prefix(records_no))

    def _groups(self, prefix: bytes) -> Iterator[tuple[int, list[Row]]]:
        """(group_no, rows) of a stream's groups: each one's own and those of its consumers."""
        rows: list[Row] = []
        group_no = 0
        for packed, row in self._reader.rows("groups", prefix):
            if len(packed) == fmt.GROUP_KEY_BYTES:
                if rows:
                    yield group_no, rows
                group_no, rows = fmt.decode_group_no(packed), [(packed, row)]
            elif rows and fmt.decode_group_no(packed) == group_no:  # not one of a group that is gone
                rows.append((packed, row))
        if rows:
            yield group_no, rows

    def _all_groups(self) -> Iterator[Row]:
        for stream in self.streams():
            if stream.row.group_count:
                for _, rows in self._groups(fmt.stream_prefix(stream.row.stream_no)):
                    yield from rows

    def _pel(self) -> Iterator[Row]:
        for group_no in self._group_nos:
            rows = self._reader.rows("pel", fmt.group_prefix(group_no))
            dead = self._dead_consumers.get(group_no)
            if dead is None:
                yield from rows
            else:
                yield from (item for item in rows if fmt.decode_run_head(item[1])[0] not in dead)

    def _pel_by_consumer(self) -> Iterator[Row]:
        for group_no in self._group_nos:
            rows = self._reader.rows("pel_by_consumer", fmt.group_prefix(group_no))
            dead = self._dead_consumers.get(group_no)
            if dead is None:
                yield from rows
            else:
                yield from (item for item in rows if fmt.decode_owner_no(item[0]) not in dead)

    def _pel_by_time(self) -> Iterator[Row]:
        for group_no in self._group_nos:
            prefix = fmt.group_prefix(group_no)
            dead = self._dead_consumers.get(group_no)
            for packed, row in self._reader.rows("pel_by_time", prefix):
                if dead is not None:
                    run = self._reader.get("pel", prefix + (row or packed[16:]))
                    owner = UNOWNED if run is None else fmt.decode_run_head(run)[0]
                    if owner in dead:
                        continue
                yield packed, row

    def _consumer_ttls(self) -> Iterator[Row]:
        for packed, name in self._reader.rows("consumer_ttls"):
            _, stream_no, group_no = fmt.decode_look_key(packed)
            is_alive = any(self._reader.get("names", fmt.name_key(home, stream_no)) is not None for home in self._homes)
            if is_alive and self._reader.get("groups", fmt.group_key(stream_no, group_no)) is not None:
                yield packed, name

    def _wrong(self, reason: str) -> CorruptionError:
        return CorruptionError(self._where, None, f"{reason}; `riverbed check` shows more")


# -- how much room they take -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TableSize:
    """Rows of a table, and the bytes of the pages that hold them."""

    rows: int = 0
    bytes: int = 0


def sizes_of(reader: TableReader) -> dict[str, TableSize]:
    """What every table takes now, dead rows included."""
    found = {}
    for table in TABLES:
        counts = reader.stat(table)
        pages = counts["branch_pages"] + counts["leaf_pages"] + counts["overflow_pages"]
        found[table] = TableSize(counts["entries"], pages * counts["psize"])
    return found


def room_for(rows: Iterable[Row], page_bytes: int, counted: Callable[[int], None] = ignore) -> TableSize:
    """What `rows` take at most when they are put into an empty table in the order of their keys.

    `counted` is called with how many were looked at so far, now and then.  0.3 us a row.
    """
    rows = iter(rows)
    count = overflow_pages = longest_key = 0
    leaf_pages = 0.0
    room = page_bytes - _PAGE_HEADER_BYTES
    most_in_page = (room // 2 & -2) - 2  # larger rows have pages of their own
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        count += len(chunk)
        counted(count)
        sizes = [(len(key) + len(row) + _ROW_BYTES + 1) & -2 for key, row in chunk]
        longest = max(sizes)
        if longest > most_in_page:
            for number, (key, row) in enumerate(chunk):
                if sizes[number] > most_in_page:
                    overflow_pages += -(-(len(row) + _PAGE_HEADER_BYTES) // page_bytes)
                    sizes[number] = (len(key) + 8 + _ROW_BYTES + 1) & -2
            longest = max(sizes)
        longest_key = max(longest_key, *(len(key) for key, _ in chunk))
        # what is left at the end of a page is less than the row that did not fit
        leaf_pages += sum(sizes) / (room - longest)
    pages = math.ceil(leaf_pages) + (count > 0)
    # branch pages are split in halves, and have pages above them
    branches = math.ceil(pages * (longest_key + _ROW_BYTES) * 2.2 / room) + 2 if pages > 1 else 0
    return TableSize(count, (pages + branches + overflow_pages) * page_bytes)
