"""Compares what a manifest says of its snapshot with the tables, before it is used.

Checksums find damage.  They do not find a manifest that was forged, with checksums of its own.  What is compared here
takes the same short time for any number of entries; their number is compared by those that read them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from riverbed.store.errors import CorruptionError, why_undecoded
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.layout import MANIFEST_NAME
from riverbed.store.snapshot.reader import Snapshot
from riverbed.store.snapshot.stream_walk import StreamWalk
from riverbed.store.tables.environment import TABLES, Tables
from riverbed.store.tables.reader import TableReader


def wrong_totals(snapshot: Snapshot, tables: Tables) -> Iterator[tuple[str, Any, Any]]:
    """What the manifest says of position, IDs and counts, and what there is, where the two differ.

    Raises one of DECODE_ERRORS when a row does not decode.
    """
    manifest = snapshot.manifest
    with tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        rows = {table: reader.count(table) for table in TABLES}
        walk = StreamWalk(reader)
        position, replids, numbering = walk.position(), walk.replids(), walk.numbering()
        streams = walk.stream_count
    for what, stated, there in (
        ("position", tuple(manifest.position), tuple(position)),
        ("replication_id", manifest.replication_id, None if replids is None else replids.replication_id),
        ("store_id", manifest.store_id, None if replids is None else replids.store_id or None),
        ("numbering", manifest.numbering, numbering),
        ("streams", manifest.streams, streams),
        *((f"rows of {table}", manifest.rows.get(table, 0), count) for table, count in rows.items()),
    ):
        if stated != there:
            yield what, stated, there


def open_compared(snapshot: Snapshot) -> Tables:
    """The tables of a snapshot, read only, with what its manifest says of them compared; the caller closes them.

    Raises CorruptionError, VersionError, OSError.
    """
    tables = snapshot.open_tables()
    try:
        require_totals(snapshot, tables)
    except BaseException:
        tables.close()
        raise
    return tables


def require_totals(snapshot: Snapshot, tables: Tables) -> None:
    """Raise CorruptionError when the manifest contradicts the tables."""
    try:
        for wrong in wrong_totals(snapshot, tables):
            raise contradiction(snapshot, *wrong)
    except DECODE_ERRORS as error:
        raise CorruptionError(str(tables.path), None, why_undecoded(error)) from error


def contradiction(snapshot: Snapshot, what: str, stated: object, there: object) -> CorruptionError:
    """The error of a manifest that says `stated` of something of which `there` is."""
    return CorruptionError(str(snapshot.path / MANIFEST_NAME), None, f"it says of {what} {stated}, there is {there}")
