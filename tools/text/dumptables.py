"""Rows of LMDB tables as lines of JSON: the fields of key and row, by the names in FORMAT.md.

A row that does not decode is shown in hexadecimal, with the reason, and the walk continues: a user who reads single
rows may be looking for exactly this row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from riverbed.store.format import idempotence as idmp
from riverbed.store.format import streams
from riverbed.store.format.dead_rows import decode_note_key, unpack_note
from riverbed.store.format.entries import bare_row
from riverbed.store.format.groups import (
    GROUP_KEY_BYTES,
    NAME_KEY_BYTES,
    NAMES_OF_GROUPS,
    ConsumerRow,
    GroupRow,
    decode_consumer_no,
    decode_digest_key,
    decode_group_no,
)
from riverbed.store.format.meta import META_READERS
from riverbed.store.format.pending import Run, decode_group_prefix, decode_owner_no, group_prefix, last_in_key
from riverbed.store.format.resp import decode_entry
from riverbed.store.format.rows import DECODE_ERRORS, unpack_ids
from riverbed.store.ids import ID_BYTES, StreamID, id_text, unpack_id
from riverbed.store.progress import Progress
from riverbed.store.tables.reader import TableReader
from riverbed.tools.console.keytext import key_values
from riverbed.tools.offline.storestat import tables_at_rest

_encode: Final = json.JSONEncoder(separators=(", ", ": ")).encode
READING: Final = "reading tables"
_ROWS_A_LOOK: Final = 1000
Row = dict[str, Any]


def table_lines(path: Path, tables: Sequence[str], limit: int | None, progress: Progress) -> Iterator[str]:
    """The rows of `tables` in a data directory or snapshot at `path`, at most `limit` in total.

    `progress` is called with the number of rows read, and of all rows.  Raises what `tables_at_rest` does.
    """
    with tables_at_rest(path, verify=False) as (opened, _), opened.env.begin() as txn:
        reader = TableReader(opened, txn)
        total = sum(map(reader.count, tables))
        total = total if limit is None else min(total, limit)
        for done, line in enumerate(islice(_lines(reader, tables), limit)):
            if not done % _ROWS_A_LOOK:
                progress(READING, done, total)
            yield line


def _lines(reader: TableReader, tables: Sequence[str]) -> Iterator[str]:
    for table in tables:
        decode = _DECODERS.get(table, _any_row)
        for key, row in reader.rows(table):
            try:
                values = decode(key, row)
            except DECODE_ERRORS as error:
                values = {"key_hex": key.hex(), "row_hex": row.hex(), "error": f"does not decode: {error}"}
            yield _encode({"table": table, **values})


# -- one table each ----------------------------------------------------------------------------------------------------


def _id(entry_id: int) -> str:
    return id_text(StreamID(entry_id)).decode()


def _packed_id(packed: bytes) -> str:
    if len(packed) != ID_BYTES:
        raise ValueError(f"{len(packed)} bytes are no ID")
    return _id(unpack_id(packed))


def _plain(value: Any) -> Any:
    """A value for JSON: bytes as text where they are UTF-8, rows by the names of their fields, with IDs as text."""
    if isinstance(value, bytes):
        return key_values("text", value).get("text", {"hex": value.hex()})
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "_asdict"):
        return {
            name: _id(each) if name.endswith("_id") and type(each) is int else _plain(each)
            for name, each in value._asdict().items()
        }
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _with_name(row: GroupRow | ConsumerRow) -> Row:
    values = _plain(row)
    del values["name"]
    return {**key_values("name", row.name), **values}


def _meta(key: bytes, row: bytes) -> Row:
    if key not in META_READERS:
        raise ValueError("no row of this table")
    return {"name": key.decode(), "value": _plain(META_READERS[key](lambda _: row))}


def _keys(key: bytes, row: bytes) -> Row:
    keyspace_no, name = streams.decode_key_key(key)
    stream = streams.StreamRow.unpack(key, row)
    values = _plain(stream)
    del values["long_key"]
    return {"keyspace_no": keyspace_no, **key_values("key", stream.long_key or b"" if name is None else name), **values}


def _names(key: bytes, row: bytes) -> Row:
    keyspace_no, stream_no = streams.decode_name_key(key)
    return {"keyspace_no": keyspace_no, "stream_no": stream_no, **key_values("key", row)}


def _entries(key: bytes, row: bytes) -> Row:
    stream_no, entry_id = streams.decode_entry_key(key)
    _, words = decode_entry(bare_row(key, row))
    return {"stream_no": stream_no, "id": _id(entry_id), "words": _plain(words)}


def _nodes(key: bytes, row: bytes) -> Row:
    stream_no, first_id = streams.decode_entry_key(key)
    node = streams.NodeRow.unpack(key, row)
    return {
        "stream_no": stream_no,
        "first_id": _id(first_id),
        "live": node.live,
        "total": node.total,
        "bytes": node.size,
        "last_id": _id(node.last_id),
    }


def _expiry(key: bytes, row: bytes) -> Row:
    deadline_ms, stream_no = streams.decode_expiry_key(key)
    return {"deadline_ms": deadline_ms, "stream_no": stream_no, "keyspace_no": streams.unpack_expiry(key, row)}


def _idmp(key: bytes, row: bytes) -> Row:
    records_no = {"records_no": streams.decode_stream_prefix(key)}
    if len(key) == idmp.RECORD_KEY_BYTES:
        return {**records_no, "record_no": idmp.decode_record_no(key), **_plain(idmp.RecordRow.unpack(key, row))}
    kind = idmp.ProducerRow if len(key) == idmp.PRODUCER_KEY_BYTES else idmp.RecordsRow
    return {**records_no, **_plain(kind.unpack(key, row))}


def _groups(key: bytes, row: bytes) -> Row:
    place = {"stream_no": streams.decode_stream_prefix(key), "group_no": decode_group_no(key)}
    if len(key) == NAME_KEY_BYTES:
        stream_no, group_no, digest, number = decode_digest_key(key)
        owner = {} if group_no == NAMES_OF_GROUPS else {"group_no": group_no}
        named = {"consumer_no" if owner else "group_no": number}
        return {"stream_no": stream_no, **owner, "name_digest": digest.hex(), **named}
    if len(key) != GROUP_KEY_BYTES:
        return {**place, "consumer_no": decode_consumer_no(key), **_with_name(ConsumerRow.unpack(key, row))}
    values = _with_name(GroupRow.unpack(key, row))
    return {**place, "last_delivered_id": values.pop("last_id"), **values}


def _pel(key: bytes, row: bytes) -> Row:
    run = Run.unpack(key, row)
    return {
        "group_no": decode_group_prefix(key),
        "last_id": _packed_id(key.removeprefix(group_prefix(decode_group_prefix(key)))),
        "consumer_no": run.consumer_no,
        "delivery_time_ms": run.time_ms,
        "turn": run.turn,
        "delivery_count": run.delivery_count,
        "ids": [_id(entry_id) for entry_id in unpack_ids(run.packed)],
    }


def _pel_by_consumer(key: bytes, row: bytes) -> Row:
    return {
        "group_no": decode_group_prefix(key),
        "consumer_no": decode_owner_no(key),
        "last_id": _packed_id(last_in_key(key)),
    }


def _trash(key: bytes, row: bytes) -> Row:
    note = unpack_note(row)
    return {"note_no": decode_note_key(key), "kind": type(note).__name__, **_plain(note)}


def _any_row(key: bytes, row: bytes) -> Row:
    """A row of numbers and digests, in hexadecimal; FORMAT.md describes them."""
    return {"key_hex": key.hex(), "row_hex": row.hex()} if row else {"key_hex": key.hex()}


_DECODERS: Final[dict[str, Callable[[bytes, bytes], Row]]] = {
    "meta": _meta,
    "keys": _keys,
    "names": _names,
    "entries": _entries,
    "nodes": _nodes,
    "expiry": _expiry,
    "idmp": _idmp,
    "groups": _groups,
    "pel": _pel,
    "pel_by_consumer": _pel_by_consumer,
    "trash": _trash,
}
