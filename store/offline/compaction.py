"""A stopped store made anew without what nobody can reach: smaller tables, and a log of one base.

    state/compact/       1  the living rows, copied in the order of their keys     the store is as it was
                         2  the log's tail executed, keys expired, streams trimmed
                         3  if 2 left holes: copied once more
    appendonlydir/       4  the base, the same state as commands, under a temporary name
                         5  both take the place of the old ones (`store/swap.py`), which are deleted

Nothing that is served is touched before 5, and from then on a kill is ended by whoever opens the store next: with the
old store or the new one.

When keys were expired or streams trimmed the state is none that the old line of offsets has ever had, so the log begins
a line of its own, and replicas begin with a full sync.  Otherwise the line goes on, and replicas at its end as well.

What is said to be needed (`compaction_plan.py`) is enforced: the new tables cannot grow beyond it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.lock import lock_directory
from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.format import rows as fmt
from riverbed.store.format.meta import META_POSITION, NO_DATABASE, decode_replids, replid_rows
from riverbed.store.layout import DATA_NAME, DIRECTORY_NAME, FILE_NAME, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests
from riverbed.store.log.base_file import BaseSize, write_base
from riverbed.store.log.manifest import FileType, LogFile
from riverbed.store.log.reader import Batch, LogReader, list_parts
from riverbed.store.log.takeover import require_ours
from riverbed.store.offline import retention
from riverbed.store.offline.compaction_plan import (
    MEASURING,
    LogSize,
    Plan,
    Wishes,
    log_size,
    make_plan,
    rows_to_copy,
)
from riverbed.store.offline.live_rows import LiveRows, TableSize, sizes_of
from riverbed.store.offline.retention import NO_RETENTION, Retention
from riverbed.store.options import DEFAULT_MAP_BYTES
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress, counter, ignore
from riverbed.store.recovery import replay as recovery
from riverbed.store.recovery.replay import Execute, RecoveryReport
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.rewrite.state import pieces
from riverbed.store.swap import Places, put_in_place, settle
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

__all__ = [
    "COPYING",
    "COPYING_AGAIN",
    "EXECUTING",
    "MEASURING",
    "TRIMMING",
    "WRITING_LOG",
    "Compaction",
    "Plan",
    "Report",
    "SpaceError",
]

COPYING: Final = "copying the living rows"
EXECUTING: Final = "executing the end of the log"
TRIMMING: Final = "trimming"
COPYING_AGAIN: Final = "copying once more"
WRITING_LOG: Final = "writing the log"

_COMMIT_BYTES: Final = 16 << 20
_PUT_BYTES: Final = 1 << 20
_COMMANDS_A_COMMIT: Final = 256
# Below this part of free pages another copy is not worth its time.
_FREE_PART: Final = 10


@dataclass(slots=True)
class Report:
    """What was done."""

    plan: Plan
    after: dict[str, TableSize] = field(default_factory=dict)
    state_bytes: int = 0
    log: LogSize = field(default_factory=LogSize)
    expired: int = 0
    trimmed_streams: int = 0
    trimmed_entries: int = 0
    entries: int = 0
    has_new_line: bool = False
    work_bytes: int = 0  # the most that lay beside the old store


class SpaceError(StoreError):
    """There is less space than a compaction needs.  Nothing was changed."""


class Compaction:
    """One store that is compacted.  A context manager: it holds the directory."""

    def __init__(
        self,
        directory: Path,
        execute: Execute,
        *,
        now_ms: int,
        keep: Retention = NO_RETENTION,
        keep_expired: bool = False,
        steps: Progress = ignore,
        log_directory: str = DIRECTORY_NAME,
        log_filename: str = FILE_NAME,
        files: Files | None = None,
    ) -> None:
        """`execute` runs one command of the log, `keep` says which entries are kept."""
        self._directory = directory
        self._execute = execute
        self._wishes = Wishes(now_ms, keep, keep_expired)
        self._steps = steps
        self._files = files or OsFiles()
        self._places = Places(directory, log_directory, log_filename)
        self._held = contextlib.ExitStack()
        self.has_settled = False  # an earlier one, that was killed

    def __enter__(self) -> Compaction:
        """Raises LockedError, StoreError when there is no store, OSError."""
        if not self._directory.is_dir():
            raise StoreError(f"{self._directory} is not a directory")
        self._held.enter_context(lock_directory(self._directory))
        try:
            self._places.require_plain()
            require_ours(self._directory, self._places.log_directory, self._places.log_filename, self._files)
            self.has_settled = settle(self._places, self._files)
            self._load_log()
            if not self._places.data.exists():
                raise StoreError(
                    f"{self._directory} has no tables: start riverbed-server on it once, which makes them from the log"
                )
            self._tables = self._held.enter_context(_opened(self._directory, DEFAULT_MAP_BYTES, readonly=True))
        except lmdb.NotFoundError:
            self._held.close()
            raise StoreError(f"the store in {self._directory} was never checkpointed; there is nothing in it") from None
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def _load_log(self) -> None:
        manifest = manifests.load(self._places.manifest, self._files)
        if manifest is None or not manifest.files:
            if self._places.data.exists():
                raise StoreError(f"{self._places.home} has no log; `riverbed check` shows more")
            raise StoreError(f"{self._directory} holds no store")
        self._manifest = manifest
        self._parts = list_parts(self._places.home, manifest, self._files)

    def plan(self) -> Plan:
        """Look at everything and write nothing.  Raises StoreError, lmdb.Error, OSError."""
        return make_plan(self._tables, self._parts, self._places, self._wishes, self._steps, self._files)

    def run(self, plan: Plan) -> Report:
        """Do it.  Raises SpaceError, CorruptionError, lmdb.Error, OSError.

        The old store is whole after any of them, and nothing is left behind.
        """
        if not plan.is_feasible:
            raise SpaceError(
                f"not enough space in {self._directory}: {plan.needed_bytes:,} bytes are needed, "
                f"{plan.free_bytes:,} are free"
            )
        report = Report(plan)
        self._files.make_directory(self._places.work)
        try:
            replids = self._make_tables(plan, report)
            base, incr = self._write_log(plan, report, replids)
            self._tables.close()
            put_in_place(self._places, self._manifest, base, incr, replids, self._files)
        except BaseException as error:
            with contextlib.suppress(OSError, StoreError):
                settle(self._places, self._files)
            if isinstance(error, lmdb.MapFullError):
                raise SpaceError(
                    f"the end of the log makes more than {plan.needed_bytes:,} bytes of it: start riverbed-server on "
                    f"{self._directory} once, which puts it into the tables"
                ) from error
            raise
        settle(self._places, self._files)
        self._load_log()
        report.state_bytes = self._places.data.stat().st_size
        report.log = log_size(self._parts)
        return report

    # -- tables --------------------------------------------------------------------------------------------------------

    def _make_tables(self, plan: Plan, report: Report) -> ReplicationIds | None:
        """Leave the new tables in the work directory; -> whose offsets the new log has."""
        first = self._places.work / "first"
        position = LogPosition(self._next_seq(plan), 0, plan.end.offset)
        with self._tables.env.begin() as txn:
            reader = TableReader(self._tables, txn)
            replids = self._manifest.replids or decode_replids(lambda name: reader.get("meta", name))
            room = plan.change_bytes if plan.has_changes else plan.copy_bytes
            live = rows_to_copy(reader, str(self._tables.path), self._wishes, has_tail=plan.tail_bytes > 0)
            with _opened(first, room) as target:
                self._copy(live, target, COPYING, _rows_in(plan.after))
                if not plan.has_changes:
                    _set_position(target, position, replids)
        if plan.has_changes:
            with _opened(first, room) as target:
                replids = self._change(target, plan, report, position, replids)
                second = self._copy_holes(target, plan, report, position, replids)
                first = second or first
        self._adopt(first, report)
        return replids

    def _copy_holes(
        self, target: Tables, plan: Plan, report: Report, position: LogPosition, replids: ReplicationIds | None
    ) -> Path | None:
        """Copy once more what the changes have left, if they have left holes; -> where it is."""
        report.work_bytes = (target.path / DATA_NAME).stat().st_size
        with target.env.begin() as txn:
            reader = TableReader(target, txn)
            file_bytes = (target.env.info()["last_pgno"] + 1) * reader.stat("meta")["psize"]
            has_holes = (file_bytes - target.used_bytes(txn)) * _FREE_PART > file_bytes
            if not (reader.count("trash") or has_holes):
                return None
            second = self._places.work / "second"
            with _opened(second, plan.copy_bytes) as copy:
                live = LiveRows(reader, str(target.path))
                self._copy(live, copy, COPYING_AGAIN, _rows_in(sizes_of(reader)))
                _set_position(copy, position, replids)
            report.work_bytes += (second / STATE_DIRECTORY / DATA_NAME).stat().st_size
            return second

    def _adopt(self, made: Path, report: Report) -> None:
        """What was made is the new data.mdb; whatever else lies there goes."""
        work = self._places.work
        self._files.rename(made / STATE_DIRECTORY / DATA_NAME, work / DATA_NAME)
        for name in ("first", "second"):
            shutil.rmtree(work / name, ignore_errors=True)
        report.state_bytes = (work / DATA_NAME).stat().st_size
        report.work_bytes = max(report.work_bytes, report.state_bytes)

    def _next_seq(self, plan: Plan) -> int:
        files = (*self._manifest.incrs, *self._manifest.history)
        return max(0, plan.end.file_seq, *(file.seq for file in files)) + 1

    def _copy(self, live: LiveRows, target: Tables, step: str, total: int) -> None:
        """Raises CorruptionError when the rows contradict each other."""
        done = uncommitted = 0
        txn = target.env.begin(write=True)
        try:
            for table, rows in live.tables():
                for chunk, size in _chunks(rows):
                    cursor = txn.cursor(target.handles[table])
                    # meta has a row already, the version
                    _, added = cursor.putmulti(chunk, append=table != "meta")
                    if added != len(chunk) and table != "meta":
                        raise CorruptionError(str(self._tables.path), None, f"{table}: keys that do not ascend")
                    done += len(chunk)
                    uncommitted += size
                    self._steps(step, done, max(done, total))
                    if uncommitted >= _COMMIT_BYTES:
                        txn.commit()
                        uncommitted = 0
                        txn = target.env.begin(write=True)
            txn.commit()
        except BaseException:
            with contextlib.suppress(lmdb.Error):  # a commit that failed has ended it
                txn.abort()
            raise
        target.env.sync(True)

    def _change(
        self, target: Tables, plan: Plan, report: Report, position: LogPosition, replids: ReplicationIds | None
    ) -> ReplicationIds | None:
        """Execute the tail, expire and trim; -> whose offsets the log has then."""
        wishes = self._wishes
        txn = WriteTxn(target)
        try:
            place = list(txn.position or position)
            if plan.tail_bytes:
                start = LogPosition(*place)
                batches = self._metered(LogReader(self._parts, self._files), start, plan.tail_bytes)
                recovery.fold(batches, txn, self._execute, RecoveryReport())
                place = list(plan.end)
                txn.commit(place)

            selected = txn.log_db

            def pause() -> None:
                if len(txn.log) >= _COMMANDS_A_COMMIT:
                    txn.log.clear()
                    txn.commit(place)

            if not wishes.keep_expired:
                before = txn.expired_keys
                while txn.expire_due(wishes.now_ms, _COMMANDS_A_COMMIT):
                    pause()
                report.expired = txn.expired_keys - before
            if wishes.keep.is_anything:
                streams = sum(db.size for db in txn.databases)
                looked = 0

                def counted(count: int) -> None:
                    nonlocal looked
                    looked += count
                    self._steps(TRIMMING, looked, max(looked, streams))

                now_ms = 0 if wishes.keep_expired else wishes.now_ms
                report.trimmed_streams, report.trimmed_entries = retention.apply(
                    txn, wishes.keep, counted, pause, now_ms
                )
            if report.expired or report.trimmed_entries:
                replids = ReplicationIds.new("" if replids is None else replids.with_store().store_id)
                report.has_new_line = True
            txn.log.clear()
            txn.log_db = selected  # what a primary sends next goes there
            txn.replids = replids
            txn.commit(list(position))
        finally:
            with contextlib.suppress(lmdb.Error):
                txn.abort()
        target.env.sync(True)
        return replids

    def _metered(self, reader: LogReader, start: LogPosition, total: int) -> Iterator[Batch]:
        executed = counter(self._steps, EXECUTING, total)
        for batch in reader.batches(start, start):
            yield batch
            executed(batch.size)

    # -- log -----------------------------------------------------------------------------------------------------------

    def _write_log(self, plan: Plan, report: Report, replids: ReplicationIds | None) -> tuple[LogFile, LogFile]:
        """Write the base under a temporary name; -> it and the incr, as the manifest will list them."""
        work = self._places.work
        entries = 0
        made = work / "base" / STATE_DIRECTORY
        self._files.make_directory(made)
        # tables are opened by their directory; the file has to be where its name is looked for
        self._files.rename(work / DATA_NAME, made / DATA_NAME)

        def progress(size: BaseSize) -> None:
            self._steps(WRITING_LOG, size.entries, max(size.entries, entries))

        with _opened(work / "base", DEFAULT_MAP_BYTES, readonly=True) as tables, tables.env.begin() as txn:
            reader = TableReader(tables, txn)
            entries = reader.count("entries")
            report.after = sizes_of(reader)
            size = write_base(
                self._places.base,
                pieces(tables, txn),
                self._files,
                offset=plan.end.offset,
                now_ms=self._wishes.now_ms,
                progress=progress,
            )
        self._files.rename(made / DATA_NAME, work / DATA_NAME)
        shutil.rmtree(work / "base", ignore_errors=True)
        report.entries = size.entries
        report.work_bytes = max(report.work_bytes, report.state_bytes + size.size)
        return self._new_files(plan, size)

    def _new_files(self, plan: Plan, size: BaseSize) -> tuple[LogFile, LogFile]:
        """The base and the incr that the manifest will list, under names that no file of the old log has."""
        old, filename = self._manifest, self._places.log_filename
        names = {file.name for file in (*old.files, *old.history)}
        seq = 1 + max((file.seq for file in (old.base, *old.history) if file is not None), default=0)
        while (name := f"{filename}.{seq}.base.aof") in names:
            seq += 1
        base = LogFile(name, seq, FileType.BASE, size=size.size, is_checksummed=True, command_bytes=size.command_bytes)
        seq = self._next_seq(plan)
        name = f"{filename}.{seq}.incr.aof"
        return base, LogFile(name, seq, FileType.INCR, start_offset=plan.end.offset, is_checksummed=True)


@contextlib.contextmanager
def _opened(directory: Path, map_bytes: int, *, readonly: bool = False) -> Iterator[Tables]:
    tables = Tables(directory, map_bytes, readonly=readonly)
    try:
        yield tables
    finally:
        tables.close()


def _set_position(tables: Tables, position: LogPosition, replids: ReplicationIds | None) -> None:
    with tables.env.begin(write=True, db=tables.handles["meta"]) as txn:
        row = txn.get(META_POSITION)
        selected = NO_DATABASE if row is None else fmt.unpack_row(row)[-1]
        txn.put(META_POSITION, fmt.pack_row([*position, selected]))
        for name, line in replid_rows(replids):
            txn.put(name, line)
    tables.env.sync(True)


def _rows_in(sizes: dict[str, TableSize]) -> int:
    return sum(size.rows for size in sizes.values())


def _chunks(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[list[tuple[bytes, bytes]], int]]:
    """Rows in portions of about a megabyte, whatever their size, and the bytes of each."""
    chunk = []
    size = 0
    for item in rows:
        chunk.append(item)
        size += len(item[1]) + 32
        if size >= _PUT_BYTES:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size
