"""Read the entries of one stream from a store on disk or a server, oldest first, with one page in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from riverbed.store.errors import CorruptionError
from riverbed.store.format.resp import decode_entry
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.format.streams import StreamRow
from riverbed.store.ids import StreamID, id_text, parse_id
from riverbed.store.layout import DATA_NAME
from riverbed.store.progress import Progress
from riverbed.store.tables import streams
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import keyspaces
from riverbed.tools.console.console import Failure
from riverbed.tools.console.keytext import name_text
from riverbed.tools.live.livestream import fewer
from riverbed.tools.live.redisclient import LongReplyError, RedisClient, ReplyError
from riverbed.tools.offline.storestat import tables_at_rest

Entry = tuple[bytes, list[bytes]]  # the ID as text; names and values in turn

READING: Final = "reading entries"
_PAGE: Final = 1000


def store_entries(
    path: Path, db: int, key: bytes, first: StreamID, last: StreamID, progress: Progress
) -> Iterator[Entry]:
    """The entries of a stream on disk.  Raises Failure without such a stream, what `tables_at_rest` raises,
    CorruptionError.
    """
    with tables_at_rest(path, progress) as (tables, _), tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        try:
            row = stream_row(reader, db, key)
            if row is None:
                raise Failure(f"there is no stream {name_text(key)} in database {db} of {path}")
            for done, (_, entry) in enumerate(StreamEntries(reader, row).rows(first, last)):
                if not done % _PAGE:
                    progress(READING, done, row.length)
                yield decode_entry(entry)
        except DECODE_ERRORS as error:
            raise CorruptionError(str(tables.path / DATA_NAME), None, f"a row does not decode: {error!r}") from error


def stream_row(reader: TableReader, db: int, key: bytes) -> StreamRow | None:
    """The row of a stream, or None.  Raises Failure for a database that there is not."""
    numbers = keyspaces(reader)
    if db >= len(numbers):
        raise Failure(f"there is no database {db}; there are {len(numbers)}")
    return streams.stream_row(reader, numbers[db], key)


def server_entries(
    client: RedisClient, db: int, key: bytes, first: StreamID, last: StreamID, progress: Progress
) -> Iterator[Entry]:
    """The entries of a server's stream.  Raises Failure without such a stream or connection, ReplyError."""
    client.call("SELECT", db)
    try:
        length = client.call("XLEN", key)
        if not client.call("EXISTS", key):
            raise Failure(f"there is no stream {name_text(key)} in database {db} of {client.address}")
    except ReplyError as error:
        if error.code == "WRONGTYPE":
            raise Failure(f"{name_text(key)} in database {db} of {client.address} is not a stream") from error
        raise
    end = id_text(last)
    done, count = 0, _PAGE
    while True:
        progress(READING, done, max(done, length))
        try:
            page: list[Entry] = client.call("XRANGE", key, id_text(first), end, "COUNT", count)
        except LongReplyError:
            if count == 1:
                raise
            count = fewer(count)
            client.reconnect()
            continue
        for entry in page:
            yield entry[0], entry[1]
        done += len(page)
        if not page:
            if not client.call("EXISTS", key):
                raise Failure(f"{name_text(key)} in database {db} of {client.address} is gone since its {done}th entry")
            return
        newest = parse_id(page[-1][0])
        if newest is None or newest < first:  # a server that answers so might do it for ever
            raise Failure(f"{client.address}: XRANGE from {id_text(first).decode()} on ends with {page[-1][0]!r}")
        if len(page) < count or newest >= last:
            return
        first = StreamID(newest + 1)
