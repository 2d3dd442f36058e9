"""Figures for monitoring a running store: of its tables, and of its largest streams and their groups.

Streams and groups are read as the last checkpoint left them, in a transaction of their own, so a look changes nothing
and caches nothing.  The cost of a look is bounded, however many streams there are: it continues where the look before
has ended,

    look 1   [ 5000 rows ]                           the best so far
    look 2                [ 5000 rows ]              the best so far
    look 3                             [ 1200 rows ] the best of all; the next look begins again

and reads the chosen streams again.  The best streams are those with consumer groups, then the longest; the best groups
are those with the most pending entries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from heapq import heappush, heapreplace, nlargest
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from riverbed.store.format.groups import consumer_key
from riverbed.store.format.pending import Run, group_prefix, last_in_key, time_prefix
from riverbed.store.format.streams import StreamRow, decode_key_key, stream_prefix
from riverbed.store.groups.lag import lag
from riverbed.store.tables.groups import group_rows
from riverbed.store.tables.places import seek
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import estimated_bytes

if TYPE_CHECKING:
    from riverbed.store.databases.transaction import WriteTxn

# Rows that one look reads to find the best streams, and the best groups of these.
STREAM_ROWS_A_LOOK: Final = 5000
GROUP_ROWS_A_LOOK: Final = 5000
GROUP_ROWS_A_STREAM: Final = 1000
# Rows between two pauses: below a millisecond.
_SLICE_ROWS: Final = 100
_SLICE_DETAILS: Final = 8
# Runs of deleted consumers that are skipped to find the oldest run of an existing consumer.
_MAX_DEAD: Final = 64


class StreamFigures(NamedTuple):
    """One stream.  `byte_count` is about the size of its entries on disk."""

    db: int
    key: bytes
    stream_no: int
    length: int
    entries_added: int
    byte_count: int
    group_count: int


class GroupFigures(NamedTuple):
    """One consumer group.

    `lag` is None when it is not known.  `oldest_ms` is the delivery time of the entry that is idle longest, and None
    when no consumer owns a pending entry.
    """

    stream: StreamFigures
    group_no: int
    name: bytes
    consumers: int
    pending: int
    lag: int | None
    oldest_ms: int | None


class Sample:
    """The best streams and groups: at most `most_streams` and `most_groups`."""

    def __init__(self, txn: WriteTxn, most_streams: int, most_groups: int) -> None:
        self._txn = txn
        self._most_streams = most_streams
        self._most_groups = most_groups
        self.streams: list[StreamFigures] = []
        self.groups: list[GroupFigures] = []
        self.looked_ms = 0
        self.groups_omitted = 0  # groups of the shown streams that are not shown
        self._place = b""  # the key of the last row that the walk has read
        # A heap of the best streams of the present walk: rank, number, packed key; the worst comes first.
        self._best: list[tuple[tuple[bool, int], int, bytes]] = []
        self._chosen: list[bytes] = []

    @property
    def streams_omitted(self) -> int:
        return max(sum(db.size for db in self._txn.databases) - len(self.streams), 0)

    def look(self, now_ms: int) -> Iterator[None]:
        """Look again, in slices of less than a millisecond; the store may change between two slices."""
        self.looked_ms = now_ms
        is_complete = yield from self._walk()
        found = [packed for _, _, packed in self._best]
        streams = yield from self._read(dict.fromkeys(found if is_complete else [*self._chosen, *found]))
        if is_complete:
            self._best = []
        groups = yield from self._groups_of(streams)
        self._chosen = list(streams)
        self.streams, self.groups = list(streams.values()), groups
        self.groups_omitted = max(sum(stream.group_count for stream in self.streams) - len(groups), 0)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[TableReader]:
        tables = self._txn.tables  # other tables after a full sync, perhaps before the next slice
        with tables.env.begin() as txn:
            yield TableReader(tables, txn)

    # -- streams -------------------------------------------------------------------------------------------------------

    def _walk(self) -> Generator[None, None, bool]:
        """Continue through the streams and keep the best; -> whether the walk has reached the last stream."""
        if not self._most_streams:
            return True
        for _ in range(STREAM_ROWS_A_LOOK // _SLICE_ROWS):
            with self._reader() as reader:
                cursor = reader.cursor("keys")
                found = seek(cursor, self._place + b"\0") if self._place else cursor.first()
                rows = list(islice(cursor.iternext(), _SLICE_ROWS)) if found else []
            homes = {db.keyspace_no for db in self._txn.databases}
            for packed, row in rows:
                if decode_key_key(packed)[0] in homes:  # else the key is one of a flushed database
                    self._offer(packed, StreamRow.unpack(packed, row))
            if len(rows) < _SLICE_ROWS:
                self._place = b""
                return True
            self._place = rows[-1][0]
            yield
        return False

    def _offer(self, packed: bytes, row: StreamRow) -> None:
        item = (_rank(row.group_count, row.length), row.stream_no, packed)
        if len(self._best) < self._most_streams:
            heappush(self._best, item)
        elif item > self._best[0]:
            heapreplace(self._best, item)

    def _read(self, candidates: Iterable[bytes]) -> Generator[None, None, dict[bytes, StreamFigures]]:
        """The best candidates that still exist, by packed key, the best first."""
        streams: dict[bytes, StreamFigures] = {}
        for number, packed in enumerate(candidates):
            if number % _SLICE_DETAILS == 0:
                yield
            with self._reader() as reader:
                stream = self._stream(reader, packed)
            if stream is not None:
                streams[packed] = stream

        def rank(packed: bytes) -> tuple[bool, int]:
            return _rank(streams[packed].group_count, streams[packed].length)

        return {packed: streams[packed] for packed in nlargest(self._most_streams, streams, key=rank)}

    def _stream(self, reader: TableReader, packed: bytes) -> StreamFigures | None:
        encoded = reader.get("keys", packed)
        keyspace_no, key = decode_key_key(packed)
        number = next((db.number for db in self._txn.databases if db.keyspace_no == keyspace_no), None)
        if encoded is None or number is None:
            return None
        row = StreamRow.unpack(packed, encoded)
        prefix = stream_prefix(row.stream_no)
        byte_count = estimated_bytes(reader.cursor("nodes"), prefix, row.length, row.node_count, row.tail_bytes)
        return StreamFigures(
            number,
            row.long_key or key or b"",
            row.stream_no,
            row.length,
            row.entries_added,
            byte_count,
            row.group_count,
        )

    # -- groups --------------------------------------------------------------------------------------------------------

    def _groups_of(self, streams: dict[bytes, StreamFigures]) -> Generator[None, None, list[GroupFigures]]:
        """The best groups of these streams, the best first."""
        groups: list[GroupFigures] = []
        left = GROUP_ROWS_A_LOOK
        for packed, stream in streams.items():
            if stream.group_count and left > 0 and self._most_groups:
                found = yield from self._groups(packed, stream, min(left, GROUP_ROWS_A_STREAM))
                left -= len(found)
                groups = nlargest(self._most_groups, [*groups, *found], key=_group_rank)
        for at in range(0, len(groups), _SLICE_DETAILS):
            yield
            with self._reader() as reader:
                few = groups[at : at + _SLICE_DETAILS]
                groups[at : at + _SLICE_DETAILS] = [each._replace(oldest_ms=_oldest_ms(reader, each)) for each in few]
        return groups

    def _groups(self, packed: bytes, stream: StreamFigures, most: int) -> Generator[None, None, list[GroupFigures]]:
        """The first groups of a stream."""
        groups: list[GroupFigures] = []
        group_no = 0
        while len(groups) < most:
            yield
            with self._reader() as reader:
                encoded = reader.get("keys", packed)
                if encoded is None:
                    break
                # read with the groups' rows: an older stream row would give a lag that never existed
                row = StreamRow.unpack(packed, encoded)
                if row.stream_no != stream.stream_no:
                    break
                each = group_rows(reader.cursor("groups"), row.stream_no, group_no)
                rows = list(islice(each, min(_SLICE_ROWS, most - len(groups))))
            for group_no, group in rows:
                behind = lag(row, group.last_id, group.entries_read)
                groups.append(
                    GroupFigures(stream, group_no, group.name, group.consumer_count, group.pel_count, behind, None)
                )
            if len(rows) < _SLICE_ROWS:
                break
            group_no += 1
        return groups


def _rank(group_count: int, length: int) -> tuple[bool, int]:
    return group_count > 0, length


def _group_rank(group: GroupFigures) -> tuple[int, int]:
    return group.pending, group.lag or 0


def _oldest_ms(reader: TableReader, group: GroupFigures) -> int | None:
    """The delivery time of the entry that is idle longest; None if there is none, or too many dead runs come first."""
    if not group.pending:
        return None
    prefix = group_prefix(group.group_no)
    cursor = reader.cursor("pel_by_time")
    if not seek(cursor, time_prefix(group.group_no, 0)):  # entries without an owner come before
        return None
    for key in islice(cursor.iternext(values=False), _MAX_DEAD):
        if not key.startswith(prefix):
            return None
        pel_key = prefix + last_in_key(key)
        row = reader.get("pel", pel_key)
        if row is not None:
            run = Run.under(pel_key, row)
            consumer = consumer_key(group.stream.stream_no, group.group_no, run.consumer_no)
            if reader.get("groups", consumer) is not None:
                return run.time_ms
    return None


# -- space -------------------------------------------------------------------------------------------------------------


class Space(NamedTuple):
    """The space that LMDB takes, in bytes of its file.

    `used_bytes` are in pages with rows.  Most other pages are free and are used before the file grows beyond
    `file_bytes`.  `oldest_reader` is how many transactions ago the oldest open reader began: pages freed since then are
    not reused before it ends.  `tables` has the rows and bytes of each table.
    """

    file_bytes: int
    used_bytes: int
    readers: int
    oldest_reader: int
    tables: dict[str, tuple[int, int]]

    @property
    def free_bytes(self) -> int:
        return max(self.file_bytes - self.used_bytes, 0)


def space(txn: WriteTxn) -> Space:
    """The space that the tables take now.  Reads in the open write transaction: readers may have taken every slot."""
    tables = txn.tables
    began = [reader.transaction_no for reader in tables.readers()]
    info = tables.env.info()
    reader = TableReader(tables, txn.lmdb)
    sizes = {}
    for name in tables.handles:
        stat = reader.stat(name)
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        sizes[name] = stat["entries"], stat["psize"] * pages
    page_bytes = stat["psize"]
    return Space(
        (info["last_pgno"] + 1) * page_bytes,
        sum(size for _, size in sizes.values()),
        len(began),
        max(info["last_txnid"] - min(began, default=info["last_txnid"]), 0),
        sizes,
    )
