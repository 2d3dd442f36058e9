"""The check of a snapshot: its manifest, the checksums of its files, and every promise of the tables in it.

manifest.json   its own checksum, versions      its counts are those of the tables
streams.jsonl   checksum, and each line agrees with the tables
data.mdb        checksum, pages, rows           the same as in a data directory
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.check.findings import Contents, Meta, Violation, show, violation_of
from riverbed.store.check.pages import check_pages
from riverbed.store.check.state import CHECKING_PAGES, check_tables
from riverbed.store.errors import CorruptionError
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.layout import DATA_NAME, STREAMS_NAME
from riverbed.store.progress import Progress, ignore
from riverbed.store.snapshot.reader import Snapshot, open_snapshot, verify_file
from riverbed.store.snapshot.stream_walk import StreamWalk
from riverbed.store.snapshot.totals import wrong_totals
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

READING: Final = "comparing checksums"
COMPARING_STREAMS: Final = "comparing streams"

_TABLE: Final = "snapshot"


class SnapshotCheck:
    """One check of the snapshot at `path`.  `contents` and `offset` are valid once `violations` is exhausted."""

    def __init__(self, path: Path, steps: Progress = ignore) -> None:
        self.path = path
        self.contents = Contents()
        self.offset: int | None = None
        self._steps = steps

    def violations(self) -> Iterator[Violation]:
        """Yield every violation.  Raises NoSnapshotError, VersionError, OSError."""
        try:
            snapshot = open_snapshot(self.path)
        except CorruptionError as error:
            yield violation_of(_TABLE, error)
            return
        self.offset = snapshot.manifest.offset
        listing = list(_caught(snapshot.check_streams))
        yield from listing
        digest, steps = snapshot.manifest.data_file, self._steps
        data = self.path / DATA_NAME
        yield from _caught(
            lambda: verify_file(data, digest, lambda done: steps(READING, min(done, digest.size), digest.size))
        )
        pages = list(check_pages(data, lambda: True, lambda: steps(CHECKING_PAGES, 0, 0)))
        yield from pages
        if pages:
            return  # LMDB might crash on these pages
        try:
            tables = snapshot.open_tables()
        except (lmdb.Error, CorruptionError) as error:
            yield Violation("lmdb", "", str(error), str(data))
            return
        try:
            yield from self._tables(snapshot, tables, has_streams=not listing)
        finally:
            tables.close()

    def _tables(self, snapshot: Snapshot, tables: Tables, *, has_streams: bool) -> Iterator[Violation]:
        meta: Meta | None = None
        for item in check_tables(tables, self.contents, self._steps):
            if isinstance(item, Violation):
                yield item
            else:
                meta = item
        if meta is None:
            yield Violation(_TABLE, "", "holds no state of a store", str(self.path / DATA_NAME))
            return
        yield from self._totals(snapshot, tables)
        if has_streams:
            yield from self._streams(snapshot, tables)

    def _totals(self, snapshot: Snapshot, tables: Tables) -> Iterator[Violation]:
        wrong = list(wrong_totals(snapshot, tables))
        if snapshot.manifest.entries != self.contents.entries:
            wrong.append(("entries", snapshot.manifest.entries, self.contents.entries))
        for what, stated, there in wrong:
            yield Violation(_TABLE, "", f"the manifest says of {what} {stated}, there is {there}", str(self.path))

    def _streams(self, snapshot: Snapshot, tables: Tables) -> Iterator[Violation]:
        file = str(self.path / STREAMS_NAME)
        total = snapshot.manifest.streams
        with tables.env.begin() as txn:
            walk = StreamWalk(TableReader(tables, txn), snapshot.manifest.split_every)
            try:
                for number, (listed, there) in enumerate(zip_longest(snapshot.streams(), walk.streams()), 1):
                    self._steps(COMPARING_STREAMS, min(number, total), total)
                    if listed != there:
                        known = listed or there
                        assert known is not None
                        yield Violation(
                            _TABLE, show(known.key), f"line {number} of {STREAMS_NAME} differs from the tables", file
                        )
            except CorruptionError as error:
                yield violation_of(_TABLE, error)
            except DECODE_ERRORS as error:
                yield Violation(_TABLE, "", f"the streams do not decode: {error}", file)


def _caught(look: Callable[[], None]) -> Iterator[Violation]:
    try:
        look()
    except CorruptionError as error:
        yield violation_of(_TABLE, error)
