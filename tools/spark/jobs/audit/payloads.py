"""What is in the entries that an audit names: the beginning of their fields, as one line of text each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from riverbed.store.errors import StoreError
from riverbed.store.format.resp import decode_entry
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.ids import StreamID
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import keyspaces, stream_row
from riverbed.tools.console.console import Failure
from riverbed.tools.console.keytext import short_text
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.jobs.command import Frozen
from riverbed.tools.spark.reading.locations import open_place
from riverbed.tools.spark.reading.options import StreamName, read_options

_SHOWN: Final = 80  # characters
_FIELDS: Final = 16  # no more of them would be visible

Entry = tuple[StreamName, StreamID]


def payloads(frozen: Frozen, entries: Iterable[Entry]) -> dict[Entry, str]:
    """The beginning of each of these entries that exists, as `name=value name=value`.  Raises Failure."""
    try:
        tables = open_place(frozen.place, read_options({"path": frozen.path}))
        with tables.env.begin() as txn:
            reader = TableReader(tables, txn)
            numbers = keyspaces(reader)
            found = {(name, entry_id): _payload(reader, numbers, name, entry_id) for name, entry_id in entries}
    except (SourceError, StoreError, *DECODE_ERRORS) as error:
        raise Failure(f"cannot read {frozen.path}: {error}") from error
    return {entry: text for entry, text in found.items() if text is not None}


def _payload(reader: TableReader, numbers: list[int], name: StreamName, entry_id: StreamID) -> str | None:
    db, key = name
    stream = stream_row(reader, numbers[db], key) if db < len(numbers) else None
    row = None if stream is None else StreamEntries(reader, stream).get(entry_id)
    return None if row is None else _beginning(row)


def _beginning(row: bytes) -> str:
    _, words = decode_entry(row)
    pairs = zip(words[: 2 * _FIELDS : 2], words[1 : 2 * _FIELDS : 2], strict=True)
    text = " ".join(f"{short_text(name)}={short_text(value)}" for name, value in pairs)
    return text if len(text) <= _SHOWN and len(words) <= 2 * _FIELDS else f"{text[:_SHOWN]}..."
