"""The streams of a store on disk: of a data directory as its last checkpoint left it, or of a snapshot."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.disk.files import OsFiles
from riverbed.store.errors import CorruptionError
from riverbed.store.format import rows as fmt
from riverbed.store.groups.lag import lag
from riverbed.store.ids import id_text
from riverbed.store.layout import DATA_NAME, DIRECTORY_NAME, FILE_NAME, MANIFEST_NAME, STATE_DIRECTORY
from riverbed.store.log.takeover import refuse_redis
from riverbed.store.progress import Progress
from riverbed.store.snapshot.reader import StreamSummary, open_snapshot
from riverbed.store.snapshot.stream_walk import StreamWalk
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader
from riverbed.tools.console.console import Failure
from riverbed.tools.stream_stat import READING, GroupStat, StreamStat

_MAP_BYTES: Final = 1 << 40
_NOBODY: Final = 0


@contextlib.contextmanager
def frozen_tables(path: Path) -> Iterator[tuple[Tables, int]]:
    """The tables of a data directory or a snapshot, and the moment they are of, in unix milliseconds.

    Raises Failure when it is neither, or holds nothing yet; StoreError, OSError, lmdb.Error.
    """
    now_ms = time.time_ns() // 1_000_000
    if (path / STATE_DIRECTORY / DATA_NAME).exists():
        try:
            tables = Tables(path, _MAP_BYTES, readonly=True)
        except lmdb.NotFoundError:
            raise Failure(f"the store in {path} was never checkpointed: there is nothing to see yet") from None
    elif (path / DIRECTORY_NAME).is_dir():
        refuse_redis(path, DIRECTORY_NAME, FILE_NAME, OsFiles())
        raise Failure(f"{path} has a log and no tables: start riverbed-server on it once, which makes them")
    elif path.is_dir() and any(path.iterdir()):
        if not (path / MANIFEST_NAME).exists():
            refuse_redis(path, DIRECTORY_NAME, FILE_NAME, OsFiles())
        snapshot = open_snapshot(path)
        tables, now_ms = snapshot.open_tables(), snapshot.manifest.time_ms
    elif path.is_dir():
        raise Failure(f"{path} is empty: neither a data directory nor a snapshot")
    elif path.exists():
        raise Failure(f"{path} is a file: neither a data directory nor a snapshot")
    else:
        raise Failure(f"there is no {path}")
    try:
        with tables.env.begin(db=tables.handles["meta"]) as txn:
            if txn.get(b"databases") is None:
                raise Failure(f"the store in {path} was never checkpointed: there is nothing to see yet")
        yield tables, now_ms
    finally:
        tables.close()


def store_stats(path: Path, is_wanted: Callable[[bytes], bool], progress: Progress) -> Iterator[StreamStat]:
    """Every stream whose key is wanted, in the order of creation.

    Raises what `frozen_tables` does, and CorruptionError.
    """
    with frozen_tables(path) as (tables, now_ms), tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        try:
            walk = StreamWalk(reader)
            for number, stream in enumerate(walk.streams(), 1):
                if is_wanted(stream.key):
                    groups = tuple(_groups(reader, stream, now_ms)) if stream.groups else ()
                    yield StreamStat(
                        stream.db, stream.key, stream.length, stream.entries_added, stream.byte_count, groups
                    )
                progress(READING, number, walk.stream_count)
        except fmt.DECODE_ERRORS as error:
            raise CorruptionError(str(tables.path / DATA_NAME), None, f"a row does not decode: {error!r}") from error


def _groups(reader: TableReader, stream: StreamSummary, now_ms: int) -> Iterator[GroupStat]:
    """By name.  A group's consumers stand behind it in the table; those that are left of a destroyed one are dead."""
    rows: dict[int, fmt.GroupRow] = {}
    consumers: dict[int, set[int]] = {}
    for key, row in reader.rows("groups", fmt.stream_prefix(stream.stream_no)):
        group_no = fmt.decode_group_no(key)
        if len(key) == fmt.GROUP_KEY_BYTES:
            rows[group_no], consumers[group_no] = fmt.decode_group(row), set()
        elif group_no in rows:
            consumers[group_no].add(fmt.decode_consumer_no(key))
    found = []
    for group_no, group in rows.items():
        found.append(
            GroupStat(
                group.name,
                len(consumers[group_no]),
                group.pel_count,
                _oldest_ms(reader, group_no, consumers[group_no], now_ms) if group.pel_count else None,
                lag(stream, group.last_id, group.entries_read),
                id_text(group.last_id).decode(),
                group.entries_read,
            )
        )
    yield from sorted(found, key=lambda group: group.name)


def _oldest_ms(reader: TableReader, group_no: int, consumers: set[int], now_ms: int) -> int | None:
    for _, row in reader.rows("pel", fmt.group_prefix(group_no)):
        owner, delivery_time_ms, _ = fmt.decode_run_head(row)
        if owner == _NOBODY:
            return None
        if owner in consumers:  # else it was deleted, and these wait for the purge
            return max(now_ms - int(delivery_time_ms), 0)
    return None
