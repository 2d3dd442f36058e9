"""The first entries of many ranges, which are looked up together: what pipelines of XRANGE with COUNT 1 ask for.

Most ranges begin at an entry: at an ID that the client knows, or at the first of the stream.  The rows under these keys
are read by one call; only where one is missing, its range is searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverbed.store.format.entries import bare_pairs
from riverbed.store.ids import pack_id, unpack_id

if TYPE_CHECKING:
    from riverbed.store.databases.database import Database
    from riverbed.store.streams.reading import ReadableStream


def first_entries(
    db: Database, bounds: list[tuple[bytes, bytes, bytes]], now_ms: int
) -> tuple[list[bytes | None], int]:
    """The first entry of each (key, first packed ID, last packed ID), in order, None where there is none.

    -> these, and for how many of them there is no stream.  All rows are in memory together: the caller has made sure
    that they are small.  Raises DamagedRowError.
    """
    wanted: list[bytes] = []
    looks: list[tuple[ReadableStream | None, bytes]] = []
    known: bytes | None = None
    stream: ReadableStream | None = None
    begin = b""
    is_absent = False
    absent = 0
    for key, low, high in bounds:
        if key is not known:
            known, stream = key, db.readable(key, now_ms)
            is_absent = stream is None
            if stream is not None and not stream.length:
                stream = None
            if stream is not None:
                begin = pack_id(stream.first_id)
        if is_absent:
            absent += 1
        row_key = b""
        if stream is not None and low <= high and begin <= high:
            row_key = stream.prefix + max(begin, low)
            wanted.append(row_key)
        looks.append((stream, row_key))
    rows = dict(bare_pairs(db.txn.reader.getmulti(wanted)))
    entries: list[bytes | None] = []
    for (stream, row_key), (_, low, high) in zip(looks, bounds, strict=True):
        entry = None
        if stream is not None:
            entry = rows.get(row_key) or stream.first_entry(unpack_id(low), unpack_id(high))
        entries.append(entry)
    return entries, absent
