"""Compares the rows of the tables with their checksums, some at a time, while a server writes them.

Each step is given a read transaction of its own: one for the whole pass would keep LMDB from using pages again.  So a
pass meets each row that is there all the time, and may miss others.  Indexes have nothing but keys, and no checksums:
`riverbed check` compares them with what they point to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from riverbed.store.errors import CorruptionError, DamagedRowError
from riverbed.store.format import dead_rows, groups, idempotence, pending, streams
from riverbed.store.format.entries import bare_pairs, bare_row
from riverbed.store.format.meta import META_VERSION, check_row
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.model import Row
from riverbed.store.tables.reader import TableReader

_SHOWN_KEY_BYTES: Final = 80
_STEP_BYTES: Final = 1 << 20
_ROWS: Final = 4096


class Step(NamedTuple):
    """What a step has read: so many rows, the key to go on from (None at the end), and what is wrong, by row."""

    rows: int
    next_key: bytes | None
    damage: list[str]


def scrub_step(reader: TableReader, table: str, start: bytes, most_rows: int) -> Step:
    """Compare up to `most_rows` rows of a table from the key `start` on, or about a megabyte if that is less."""
    chunk: list[Row] = []
    size = 0
    for item in islice(reader.rows(table, start=start), most_rows):
        chunk.append(item)
        size += len(item[1])
        if size >= _STEP_BYTES:
            break
    is_last = len(chunk) < most_rows and size < _STEP_BYTES
    next_key = None if is_last else chunk[-1][0] + b"\0"
    if table == "entries":  # nearly all rows: together they take a fifth of the time
        with contextlib.suppress(DamagedRowError, *DECODE_ERRORS):
            bare_pairs(list(chunk))
            return Step(len(chunk), next_key, [])
    return Step(len(chunk), next_key, list(_damage(table, chunk)))


def _damage(table: str, rows: list[Row]) -> Iterator[str]:
    check = _CHECKS[table]
    for key, row in rows:
        try:
            check(key, row)
        except DamagedRowError as error:
            yield f"table {table}: {_named(error, key)} does not fit its checksum"
        except DECODE_ERRORS as error:
            yield f"table {table}: the row {key[:_SHOWN_KEY_BYTES].hex()} cannot be read: {error}"


def require_sound(reader: TableReader, compared: Callable[[int], None]) -> None:
    """Compare all rows; `compared` is called with the numbers of rows.  Raises CorruptionError."""
    for table in SCRUBBED_TABLES:
        key: bytes | None = b""
        while key is not None:
            step = scrub_step(reader, table, key, _ROWS)
            if step.damage:
                raise CorruptionError(str(reader.path), None, step.damage[0])
            compared(step.rows)
            key = step.next_key


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
    "idmp_ids": idempotence.IidRow.unpack,
    "groups": _check_group_or_consumer,
    "pel": pending.Run.under,
    "trash": _by_row(dead_rows.unpack_note),
    "meta": _check_meta,
}

SCRUBBED_TABLES: Final = tuple(_CHECKS)
