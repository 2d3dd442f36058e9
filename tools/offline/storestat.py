"""The streams of a store on disk: of a data directory at its last checkpoint, or of a snapshot."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.check.pages import require_sound_pages
from riverbed.store.check.state import CHECKING_PAGES
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import is_directory, is_there
from riverbed.store.errors import CorruptionError
from riverbed.store.format.groups import GroupRow
from riverbed.store.format.pending import UNOWNED
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.groups.lag import lag
from riverbed.store.ids import id_text
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, MANIFEST_NAME, STATE_DIRECTORY, store_around
from riverbed.store.log.takeover import refuse_redis
from riverbed.store.progress import Progress, ignore
from riverbed.store.snapshot.reader import list_snapshots, open_snapshot
from riverbed.store.snapshot.stream_lines import StreamSummary
from riverbed.store.snapshot.stream_walk import StreamWalk
from riverbed.store.snapshot.totals import open_compared
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.groups import LiveGroup, live_groups
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import keyspaces, stream_row
from riverbed.tools.console.console import Failure
from riverbed.tools.live.target import server_address
from riverbed.tools.stream_stat import READING, GroupStat, StreamStat

_MAP_BYTES: Final = 1 << 40
_URL: Final = re.compile("rediss?:/")  # a path has lost one of the slashes
VERIFYING: Final = "comparing with checksums"


@contextlib.contextmanager
def tables_at_rest(path: Path, progress: Progress = ignore, *, verify: bool = True) -> Iterator[tuple[Tables, int]]:
    """Open the tables of a data directory or a snapshot; also yields their moment in unix milliseconds.

    With `verify` a snapshot is compared with its checksums first, so that no damaged value is shown.  Raises Failure
    when `path` is neither, or holds nothing yet; StoreError, OSError, lmdb.Error.
    """
    now_ms = time.time_ns() // 1_000_000
    if is_there(path / STATE_DIRECTORY / DATA_NAME):
        try:
            tables = Tables(path, _MAP_BYTES, readonly=True, checks_pages=True)
        except lmdb.NotFoundError:
            raise _without_checkpoint(path) from None
    elif (reason := _is_no_store(path)) is not None:
        raise Failure(reason)
    elif is_directory(path / LOG_DIRECTORY):
        refuse_redis(path, OsFiles())
        raise Failure(f"{path} has a log and no tables: start riverbed-server on it once, which makes them")
    elif is_directory(path) and any(path.iterdir()):
        if not is_there(path / MANIFEST_NAME):
            refuse_redis(path, OsFiles())
        snapshot = open_snapshot(path)
        if verify:
            snapshot.verify(lambda done: progress(VERIFYING, done, snapshot.size_bytes))
            require_sound_pages(snapshot.path / DATA_NAME, lambda: progress(CHECKING_PAGES, 0, 0))
        tables, now_ms = open_compared(snapshot), snapshot.manifest.time_ms
    else:
        raise Failure(
            f"{path} is {'empty' if is_directory(path) else 'a file'}: neither a data directory nor a snapshot"
        )
    try:
        with tables.env.begin(db=tables.handles["meta"]) as txn:
            if txn.get(b"databases") is None:
                raise _without_checkpoint(path)
        yield tables, now_ms
    finally:
        tables.close()


def _without_checkpoint(path: Path) -> Failure:
    return Failure(
        f"the tables of {path} were never filled: nothing was written, or no checkpoint has it yet; send SAVE to "
        "its server, or start riverbed-server on it once, which reads its log"
    )


def _is_no_store(path: Path) -> str | None:
    """What to name in the place of `path`, if it is a server, is in a store or holds snapshots, or is not there."""
    if not is_there(path):
        if _URL.match(str(path)) or server_address(str(path)) is not None:
            return (
                f"{path} is a server, and this reads files: name its data directory, while it runs too, or a snapshot"
            )
        return f"there is no {path}: name a data directory or a snapshot"
    if (home := store_around(path)) is not None:
        return f"{path} is in the data directory {home}: name that, or a snapshot"
    if is_directory(path) and not is_there(path / MANIFEST_NAME) and (inside := list_snapshots(path)):
        return f"{path} is a folder of snapshots: name one of them, such as {inside[-1].path}"
    return None


def store_stats(path: Path, is_wanted: Callable[[bytes], bool], progress: Progress) -> Iterator[StreamStat]:
    """Every stream whose key is wanted, in the order of creation.

    Raises what `tables_at_rest` does, and CorruptionError.
    """
    with tables_at_rest(path, progress) as (tables, now_ms), tables.env.begin() as txn:
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
        except DECODE_ERRORS as error:
            raise CorruptionError(str(tables.path / DATA_NAME), None, f"a row does not decode: {error!r}") from error


def _groups(reader: TableReader, stream: StreamSummary, now_ms: int) -> Iterator[GroupStat]:
    """The groups of a stream, by name."""
    for group in live_groups(reader, stream.stream_no):
        row = group.row
        oldest_ms, tries = _longest_pending(reader, group, now_ms)
        yield GroupStat(
            row.name,
            len(group.consumers),
            row.pel_count,
            oldest_ms,
            tries,
            _lag(reader, stream, row),
            id_text(row.last_id).decode(),
            row.entries_read,
        )


def _lag(reader: TableReader, stream: StreamSummary, group: GroupRow) -> int | None:
    """The lag of a group, counted where its counters do not give it, as after XGROUP CREATE with an ID."""
    known = lag(stream, group.last_id, group.entries_read)
    if known is not None:
        return known
    row = stream_row(reader, keyspaces(reader)[stream.db], stream.key)
    return None if row is None else StreamEntries(reader, row).count_after(group.last_id)


def _longest_pending(reader: TableReader, group: LiveGroup, now_ms: int) -> tuple[int | None, int]:
    """-> `oldest_ms` and `tries` of a GroupStat."""
    first_ms, tries = None, 0
    for run in group.runs(reader):
        tries = max(tries, run.delivery_count)
        if run.consumer_no != UNOWNED and (first_ms is None or run.time_ms < first_ms):
            first_ms = run.time_ms
    return None if first_ms is None else max(now_ms - first_ms, 0), tries
