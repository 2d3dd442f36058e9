"""Compact a stopped store: write it again without dead rows, as smaller tables and a log of one base.

    state/data.mdb       1  purge dead rows, if there are any                state and log do not change
    state/compact/       2  copy the rows in the order of their keys
                         3  execute the log's tail, expire keys, trim streams, purge the dead rows of all this
                         4  if 3 left holes: copy once more
    appendonlydir/       5  write the base, the same state as commands, under a temporary name
                         6  put tables and log in place of the old ones (`store/swap.py`), which are deleted

The old store stays in use until step 6.  After a kill in step 6 the next program that opens the store completes the
swap or takes it back: the result is the new store or the old one.

If keys were expired or streams trimmed, the state is one that the old replication id never had.  Then the log gets a
new id, and replicas begin with a full sync.  Otherwise the id stays, and the end of the old log is kept as history for
replicas that lack it, as behind a rewrite.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from riverbed.store.disk.durable_file import cut_file
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.locks.lock import lock_directory
from riverbed.store.disk.ownership import give
from riverbed.store.disk.real_files import is_directory, is_there
from riverbed.store.errors import CorruptionError, StoreError
from riverbed.store.format.log_lines import encode_preface
from riverbed.store.layout import DATA_NAME, LOCK_NAME, STATE_DIRECTORY
from riverbed.store.log import manifest as manifests
from riverbed.store.log.base_file import BaseSize, write_base
from riverbed.store.log.manifest import LogFile
from riverbed.store.log.reader import LogReader, list_parts
from riverbed.store.log.takeover import require_ours
from riverbed.store.offline.compaction_plan import (
    MEASURING,
    LogSize,
    Plan,
    TableSize,
    Wishes,
    log_size,
    make_plan,
    sizes_of,
)
from riverbed.store.offline.power_cut import settle_after_power_cut
from riverbed.store.offline.replaced import Action
from riverbed.store.offline.retention import NO_RETENTION, Retention, apply_retention
from riverbed.store.options import DEFAULT_MAP_BYTES
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress, counter, ignore
from riverbed.store.recovery.replay import Execute
from riverbed.store.recovery.tables_from_log import TablesFromLog
from riverbed.store.replication_id import ReplicationIds
from riverbed.store.rewrite.state import pieces
from riverbed.store.swap import Places, end_compaction, put_in_place
from riverbed.store.tables.data_file import power_loss
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.purge import purge_all
from riverbed.store.tables.reader import TableReader

__all__ = [
    "COPYING",
    "COPYING_AGAIN",
    "EXECUTING",
    "MEASURING",
    "PURGING",
    "TRIMMING",
    "WRITING_LOG",
    "Compaction",
    "Plan",
    "Report",
    "SpaceError",
    "TableSize",
]

PURGING: Final = "purging dead rows"
COPYING: Final = "copying the rows"
EXECUTING: Final = "executing the end of the log"
TRIMMING: Final = "trimming"
COPYING_AGAIN: Final = "copying once more"
WRITING_LOG: Final = "writing the log"

_COMMIT_BYTES: Final = 16 << 20
_PUT_BYTES: Final = 1 << 20
_COMMANDS_A_COMMIT: Final = 256
# Of the old log that is kept for replicas; the server deletes what its `repl-backlog-size` does not keep.
MAX_BACKLOG_BYTES: Final = 64 << 20
# Copy once more if more than one page in this many is free.
_FREE_PART: Final = 10


class _LogStart(NamedTuple):
    """How the new log begins: its ids, and the SELECT in its incr, as what comes next has none of its own."""

    replids: ReplicationIds | None
    preface: bytes


@dataclass(slots=True)
class Report:
    """What the compaction did, and what the store holds now."""

    tables: dict[str, TableSize] = field(default_factory=dict)
    state_bytes: int = 0
    log: LogSize = field(default_factory=LogSize)
    expired: int = 0
    trimmed_streams: int = 0
    trimmed_entries: int = 0
    entries: int = 0
    has_new_id: bool = False  # for replication
    backlog_bytes: int = 0  # of the old log that is kept for replicas
    work_bytes: int = 0  # the most space taken beside the old store


class SpaceError(StoreError):
    """There is less space than a compaction needs.  Nothing but dead rows was touched."""


class Compaction:
    """Compacts one store.  A context manager: it holds the lock of the directory."""

    def __init__(
        self,
        directory: Path,
        execute: Execute,
        *,
        now_ms: int,
        keep: Retention = NO_RETENTION,
        keep_expired: bool = False,
        is_trial: bool = False,
        steps: Progress = ignore,
        files: Files | None = None,
    ) -> None:
        """`execute` runs one command of the log, `keep` says which entries are kept.  A trial is not to be `run`."""
        self._directory = directory
        self._execute = execute
        self._wishes = Wishes(now_ms, keep, keep_expired)
        self._steps = steps
        self._files = files or OsFiles()
        self._places = Places(directory)
        self._held = contextlib.ExitStack()
        self._is_trial = is_trial
        self.has_settled = False  # an earlier compaction that was killed
        self.lost: Action | None = None  # what a power cut had left of the log was cut off

    def __enter__(self) -> Compaction:
        """Raises LockedError, StoreError when there is no store, OSError."""
        if not is_directory(self._directory):
            raise StoreError(f"{self._directory} is not a directory")
        self._held.enter_context(lock_directory(self._directory))
        try:
            self._places.require_plain()
            require_ours(self._directory, self._files)
            if self._is_trial and power_loss.may_follow_power_cut(self._places.state):
                raise StoreError(
                    f"a power cut has ended the use of {self._directory}: start riverbed-server on it, or "
                    "`riverbed check --repair` it, which cuts off what the log has lost; that is no part of a trial"
                )
            self.has_settled, self.lost = settle_after_power_cut(self._places, self._files)
            self._load_log()
            if not is_there(self._places.data):
                raise StoreError(
                    f"{self._directory} has no tables: start riverbed-server on it once, which makes them from the log"
                )
            with self._old_tables():
                pass
        except lmdb.NotFoundError:
            self._held.close()
            raise StoreError(f"the store in {self._directory} has no checkpoint, and so no data") from None
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def _load_log(self) -> None:
        manifest = manifests.load(self._places.manifest, self._files)
        if manifest is None or not manifest.files:
            if is_there(self._places.data):
                raise StoreError(f"{self._places.home} has no log; `riverbed check` shows more")
            raise StoreError(f"{self._directory} holds no store")
        self._manifest = manifest
        self._parts = list_parts(self._places.home, manifest, self._files)

    def _old_tables(self) -> contextlib.AbstractContextManager[Tables]:
        return _opened(self._directory, readonly=True)

    def plan(self) -> Plan:
        """Read every stream's row, and write nothing.  Raises StoreError, lmdb.Error, OSError."""
        with self._old_tables() as tables:
            return make_plan(tables, self._parts, self._places, self._wishes, self._steps, self._files)

    def run(self) -> Report:
        """Compact the store.  Raises SpaceError, CorruptionError, lmdb.Error, OSError.

        After any error the old store holds the same data as before, and no work files are left.
        """
        self._purge_old()
        plan = self.plan()
        if not plan.is_feasible:
            raise SpaceError(
                f"not enough space in {self._directory}: {plan.needed_bytes:,} bytes are needed, "
                f"{plan.free_bytes:,} are free"
            )
        report = Report()
        self._files.make_directory(self._places.work)
        try:
            made, start = self._make_tables(plan, report)
            base, incr = self._write_log(made, plan, report)
            self._files.rename(made / STATE_DIRECTORY / DATA_NAME, self._places.work / DATA_NAME)
            shutil.rmtree(made)
            backlog = [] if report.has_new_id else self._backlog(plan)
            report.backlog_bytes = sum(file.size or 0 for file in backlog)
            self._cut_padding({file.name for file in backlog})
            put_in_place(
                self._places,
                self._manifest,
                base,
                incr,
                start.replids,
                self._files,
                preface=start.preface,
                backlog=backlog,
            )
        except BaseException:
            with contextlib.suppress(OSError, StoreError):
                end_compaction(self._places, self._files)
            raise
        end_compaction(self._places, self._files)
        self._load_log()
        report.log = log_size(self._parts)
        return report

    # -- tables --------------------------------------------------------------------------------------------------------

    def _purge_old(self) -> None:
        """Delete the dead rows of the old tables, so that they are not copied.  The position stays, so the log fits."""
        with self._old_tables() as tables, tables.env.begin() as reading:
            if not TableReader(tables, reading).count("trash"):
                return
        with TablesFromLog(self._directory, self._execute, self._files, is_draft=False) as old:
            give(self._places.state / LOCK_NAME, self._places.data.stat())
            assert old.txn.position is not None, "rows come with a position"
            purge_all(old.txn, old.txn.position, synced=old.txn.synced, purged=self._purged)

    def _purged(self, done: int, total: int) -> None:
        self._steps(PURGING, done, total)

    def _make_tables(self, plan: Plan, report: Report) -> tuple[Path, _LogStart]:
        """-> the directory of the new tables, and how the new log begins."""
        first, second = self._places.work / "first", self._places.work / "second"
        with self._old_tables() as tables:
            report.work_bytes = self._copy(tables, first, COPYING)
        with TablesFromLog(first, self._execute, self._files) as made:
            start = self._change(made, plan, report)
            has_holes = _has_holes(made.tables)
            if has_holes:
                report.work_bytes = (made.tables.path / DATA_NAME).stat().st_size
                report.work_bytes += self._copy(made.tables, second, COPYING_AGAIN)
        if has_holes:
            shutil.rmtree(first)
        return second if has_holes else first, start

    def _copy(self, source: Tables, directory: Path, step: str) -> int:
        """Copy every row into new tables in `directory`, in the order of the keys; -> the size of their file.

        Raises CorruptionError when the keys are not in order.
        """
        with source.env.begin() as reading, _opened(directory) as target:
            reader = TableReader(source, reading)
            done, total = 0, sum(size.rows for size in sizes_of(reader).values())
            writing = target.begin()
            try:
                uncommitted = 0
                for table, handle in target.handles.items():
                    for chunk, size in _chunks(reader.rows(table)):
                        _, added = writing.cursor(handle).putmulti(chunk, append=table != "meta")
                        if added != len(chunk) and table != "meta":  # `meta` already has the row of the version
                            raise CorruptionError(str(source.path), None, f"{table}: keys that do not ascend")
                        done += len(chunk)
                        uncommitted += size
                        self._steps(step, done, total)
                        if uncommitted >= _COMMIT_BYTES:
                            writing.commit()
                            uncommitted = 0
                            writing = target.begin()
                writing.commit()
            except BaseException:
                with contextlib.suppress(lmdb.Error):  # a failed commit has ended the transaction
                    writing.abort()
                raise
            target.env.sync(True)
            return (target.path / DATA_NAME).stat().st_size

    def _change(self, made: TablesFromLog, plan: Plan, report: Report) -> _LogStart:
        """Execute the log's tail, expire keys and trim streams; -> how the new log begins."""
        wishes, txn = self._wishes, made.txn
        place = txn.position
        assert place is not None, "the plan has seen to it"
        if plan.tail_bytes:
            batches = LogReader(self._parts, self._files).batches(place, place)
            made.replay(batches, counter(self._steps, EXECUTING, plan.tail_bytes))
            place = plan.end
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
            looked_at = counter(self._steps, TRIMMING, sum(db.size for db in txn.databases))
            now_ms = 0 if wishes.keep_expired else wishes.now_ms
            report.trimmed_streams, report.trimmed_entries = apply_retention(txn, wishes.keep, looked_at, pause, now_ms)
        replids = self._manifest.replids or txn.replids
        if report.expired or report.trimmed_entries:
            replids = ReplicationIds.new("" if replids is None else replids.with_store().store_id)
            report.has_new_id = True
        txn.log.clear()
        txn.log_db = selected  # the next commands of a primary go to this database
        txn.replids = replids
        preface = encode_preface(selected, plan.end.offset, wishes.now_ms)
        position = LogPosition(self._manifest.next_seq(plan.end.file_seq), len(preface), plan.end.offset)
        purge_all(txn, position, purged=self._purged)
        made.make_durable()
        return _LogStart(replids, preface)

    # -- log -----------------------------------------------------------------------------------------------------------

    def _write_log(self, made: Path, plan: Plan, report: Report) -> tuple[LogFile, LogFile]:
        """Write the base under a temporary name; -> the base and the incr, as the manifest will list them."""
        with _opened(made, readonly=True) as tables, tables.env.begin() as txn:
            report.tables = sizes_of(TableReader(tables, txn))
            report.state_bytes = (tables.path / DATA_NAME).stat().st_size
            entries = report.tables["entries"].rows
            size = write_base(
                self._places.base,
                pieces(tables, txn),
                self._files,
                offset=plan.end.offset,
                now_ms=self._wishes.now_ms,
                progress=lambda size: self._steps(WRITING_LOG, size.entries, max(size.entries, entries)),
            )
        report.entries = size.entries
        report.work_bytes = max(report.work_bytes, report.state_bytes + size.size)
        return self._new_files(plan, size)

    def _backlog(self, plan: Plan) -> list[LogFile]:
        """The last files of the old log, as history up to where the new log begins."""
        if plan.torn_tail is not None:
            return []
        sizes = {part.file.name: part.size for part in self._parts}
        kept: list[LogFile] = []
        end, left = plan.end.offset, MAX_BACKLOG_BYTES
        for file in reversed(self._manifest.streamed):
            size = sizes.get(file.name, file.size)
            if not file.is_checksummed or file.start_offset is None or size is None or size > left:
                break
            if file.start_offset < end:
                kept.insert(0, replace(file.as_history(end), size=size))
                end, left = file.start_offset, left - size
        return kept

    def _cut_padding(self, kept: set[str]) -> None:
        """Have the file that was appended to, if it is `kept`, be as long as the manifest will say.  Raises OSError."""
        last = self._parts[-1]
        if last.file.name in kept:
            cut_file(last.path, last.size, self._files)

    def _new_files(self, plan: Plan, size: BaseSize) -> tuple[LogFile, LogFile]:
        """The base and the incr that the manifest will list, under names that no file of the old log has."""
        base = self._manifest.next_base(size.size, size.command_bytes)
        return base, LogFile.incr(self._manifest.next_seq(plan.end.file_seq), plan.end.offset)


@contextlib.contextmanager
def _opened(directory: Path, *, readonly: bool = False) -> Iterator[Tables]:
    tables = Tables(directory, DEFAULT_MAP_BYTES, readonly=readonly, checks_pages=True)
    try:
        yield tables
    finally:
        tables.close()


def _has_holes(tables: Tables) -> bool:
    with tables.env.begin() as txn:
        file_bytes = (tables.env.info()["last_pgno"] + 1) * tables.env.stat()["psize"]
        return (file_bytes - tables.used_bytes(txn)) * _FREE_PART > file_bytes


def _chunks(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[list[tuple[bytes, bytes]], int]]:
    """Rows in chunks of about a megabyte, and the bytes of each chunk."""
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
