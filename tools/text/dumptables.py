"""Rows of LMDB tables as lines of JSON: what stands in the key and in the row, by the names that FORMAT.md gives.

A row that does not decode is shown in hexadecimal, with the reason, and the walk goes on: who looks at rows one by one
may be looking for exactly that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from riverbed.store.format import rows as fmt
from riverbed.store.ids import ID_BYTES, StreamID, id_text, unpack_id
from riverbed.store.progress import Progress
from riverbed.store.tables.reader import TableReader
from riverbed.tools.console.keytext import key_values
from riverbed.tools.offline.storestat import frozen_tables

_encode: Final = json.JSONEncoder(separators=(", ", ": ")).encode
_STREAM_IDS: Final = (
    "first_id",
    "last_id",
    "last_live_id",
    "max_deleted_id",
    "floor_id",
    "tail_first_id",
    "tail_last_id",
)
READING: Final = "reading tables"
_ROWS_A_LOOK: Final = 1000
Row = dict[str, Any]


def table_lines(path: Path, tables: Sequence[str], limit: int | None, progress: Progress) -> Iterator[str]:
    """The rows of `tables` in a data directory or snapshot at `path`, at most `limit` of all.

    `progress` is called with how many rows were read, of how many.  Raises what `frozen_tables` does.
    """
    with frozen_tables(path) as (opened, _), opened.env.begin() as txn:
        reader = TableReader(opened, txn)
        total = sum(map(reader.count, tables))
        total = total if limit is None else min(total, limit)
        for told, line in enumerate(islice(_lines(reader, tables), limit)):
            if not told % _ROWS_A_LOOK:
                progress(READING, told, total)
            yield line


def _lines(reader: TableReader, tables: Sequence[str]) -> Iterator[str]:
    for table in tables:
        decode = _DECODERS.get(table, _any_row)
        for key, row in reader.rows(table):
            try:
                values = decode(key, row)
            except fmt.DECODE_ERRORS as error:
                values = {"key_hex": key.hex(), "row_hex": row.hex(), "error": f"does not decode: {error}"}
            yield _encode({"table": table, **values})


# -- one table each ----------------------------------------------------------------------------------------------------


def _id(entry_id: StreamID) -> str:
    return id_text(entry_id).decode()


def _packed_id(packed: bytes) -> str:
    if len(packed) != ID_BYTES:
        raise ValueError(f"{len(packed)} bytes are no ID")
    return _id(unpack_id(packed))


def _plain(value: Any) -> Any:
    """What msgpack held, for JSON: bytes as text where they are UTF-8."""
    if isinstance(value, bytes):
        return key_values("text", value).get("text", {"hex": value.hex()})
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _meta(key: bytes, row: bytes) -> Row:
    return {"name": key.decode(), "value": _plain(fmt.unpack_row(row))}


def _keys(key: bytes, row: bytes) -> Row:
    keyspace_no, name = fmt.decode_key_key(key)
    values = fmt.decode_stream(row)._asdict()
    long_key = values.pop("long_key")
    shown = {name: _id(value) if name in _STREAM_IDS else _plain(value) for name, value in values.items()}
    return {"keyspace_no": keyspace_no, **key_values("key", long_key if name is None else name), **shown}


def _names(key: bytes, row: bytes) -> Row:
    keyspace_no, stream_no = fmt.decode_name_key(key)
    return {"keyspace_no": keyspace_no, "stream_no": stream_no, **key_values("key", row)}


def _entries(key: bytes, row: bytes) -> Row:
    stream_no, entry_id = fmt.decode_entry_key(key)
    _, words = fmt.decode_entry(row)
    return {"stream_no": stream_no, "id": _id(entry_id), "words": _plain(words)}


def _nodes(key: bytes, row: bytes) -> Row:
    stream_no, first_id = fmt.decode_entry_key(key)
    live, total, size, last_id = fmt.decode_node(row)
    return {
        "stream_no": stream_no,
        "first_id": _id(first_id),
        "live": live,
        "total": total,
        "bytes": size,
        "last_id": _id(last_id),
    }


def _expiry(key: bytes, row: bytes) -> Row:
    deadline_ms, stream_no = fmt.decode_expiry_key(key)
    return {"deadline_ms": deadline_ms, "stream_no": stream_no, "keyspace_no": fmt.decode_keyspace_no(row)}


def _groups(key: bytes, row: bytes) -> Row:
    place = {"stream_no": fmt.decode_stream_prefix(key), "group_no": fmt.decode_group_no(key)}
    name, *values = fmt.unpack_row(row)
    if len(key) != fmt.GROUP_KEY_BYTES:
        seen_ms, active_ms, pel_count = values
        times = {"seen_ms": seen_ms, "active_ms": active_ms, "pel_count": pel_count}
        return {**place, "consumer_no": fmt.decode_consumer_no(key), **key_values("name", name), **times}
    last_id, entries_read, pel_count, released_count, consumer_count, *rest = values
    return {
        **place,
        **key_values("name", name),
        "last_delivered_id": _packed_id(last_id),
        "entries_read": entries_read,
        "pel_count": pel_count,
        "released_count": released_count,
        "consumer_count": consumer_count,
        "rest": _plain(rest),
    }


def _pel(key: bytes, row: bytes) -> Row:
    consumer_no, delivery_time_ms, delivery_count = fmt.decode_run_head(row)
    return {
        "group_no": fmt.decode_stream_prefix(key),
        "last_id": _packed_id(key[8:]),
        "consumer_no": consumer_no,
        "delivery_time_ms": delivery_time_ms,
        "delivery_count": delivery_count,
        "ids": [_id(entry_id) for entry_id in fmt.unpack_ids(row[fmt.RUN_HEAD_BYTES :])],
    }


def _pel_by_consumer(key: bytes, row: bytes) -> Row:
    return {
        "group_no": fmt.decode_stream_prefix(key),
        "consumer_no": fmt.decode_owner_no(key),
        "last_id": _packed_id(key[12:]),
    }


def _any_row(key: bytes, row: bytes) -> Row:
    """Numbers and digests: FORMAT.md tells them apart."""
    if not row:
        return {"key_hex": key.hex()}
    try:
        return {"key_hex": key.hex(), "row": _plain(fmt.unpack_row(row))}
    except fmt.DECODE_ERRORS:
        return {"key_hex": key.hex(), "row_hex": row.hex()}


_DECODERS: Final[dict[str, Callable[[bytes, bytes], Row]]] = {
    "meta": _meta,
    "keys": _keys,
    "names": _names,
    "entries": _entries,
    "nodes": _nodes,
    "expiry": _expiry,
    "groups": _groups,
    "pel": _pel,
    "pel_by_consumer": _pel_by_consumer,
}
