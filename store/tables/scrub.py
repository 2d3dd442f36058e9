"""Compares the rows of the tables with their checksums, some at a time, while a server writes them.

Each step is given a read transaction of its own: one for the whole pass would keep LMDB from using pages again.  So a
pass meets each row that is there all the time, and may miss others.  Indexes have nothing but keys, and no checksums:
`riverbed check` compares them with what they point to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from riverbed.store.errors import DamagedRowError
from riverbed.store.format import dead_rows, groups, idempotence, pending, streams
from riverbed.store.format.entries import bare_row
from riverbed.store.format.meta import META_VERSION, check_row
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.tables.reader import TableReader

_SHOWN_KEY_BYTES: Final = 80


class Step(NamedTuple):
    """What a step has read: so many rows, the key to go on from (None at the end), and what is wrong, by row."""

    rows: int
    next_key: bytes | None
    damage: list[str]


def scrub_step(reader: TableReader, table: str, start: bytes, most_rows: int) -> Step:
    """Compare up to `most_rows` rows of a table from the key `start` on."""
    check = _CHECKS[table]
    damage: list[str] = []
    key, rows = start, 0
    for key, row in islice(reader.rows(table, start=start), most_rows):
        rows += 1
        try:
            check(key, row)
        except DamagedRowError as error:
            damage.append(f"table {table}: {_named(error, key)} does not fit its checksum")
        except DECODE_ERRORS as error:
            damage.append(f"table {table}: the row {key[:_SHOWN_KEY_BYTES].hex()} cannot be read: {error}")
    return Step(rows, None if rows < most_rows else key + b"\0", damage)


def _named(error: DamagedRowError, key: bytes) -> str:
    if error.stream_no:
        return f"{error.what} of stream {error.stream_no}"
    return f"the row {key[:_SHOWN_KEY_BYTES].hex()}"


def _check_group_or_consumer(key: bytes, row: bytes) -> None:
    if len(key) == groups.CONSUMER_KEY_BYTES:
        groups.ConsumerRow.unpack(row)
    else:
        groups.GroupRow.unpack(row)


def _check_idempotence(key: bytes, row: bytes) -> None:
    if len(key) == idempotence.RECORD_KEY_BYTES:
        idempotence.RecordRow.unpack(row)
    elif len(key) == idempotence.PRODUCER_KEY_BYTES:
        idempotence.ProducerRow.unpack(row)
    else:
        idempotence.RecordsRow.unpack(row)


def _check_meta(key: bytes, row: bytes) -> None:
    if key != META_VERSION:  # every version reads it, so that it has no checksum
        check_row(row)


def _by_row(unpack: Callable[[bytes], object]) -> Callable[[bytes, bytes], object]:
    return lambda key, row: unpack(row)


_CHECKS: Final[Mapping[str, Callable[[bytes, bytes], object]]] = {
    "keys": streams.StreamRow.unpack,
    "entries": bare_row,
    "nodes": _by_row(streams.NodeRow.unpack),
    "expiry": _by_row(streams.unpack_expiry),
    "idmp": _check_idempotence,
    "idmp_ids": _by_row(idempotence.IidRow.unpack),
    "groups": _check_group_or_consumer,
    "pel": pending.Run.under,
    "trash": _by_row(dead_rows.unpack_note),
    "meta": _check_meta,
}

SCRUBBED_TABLES: Final = tuple(_CHECKS)
