"""A stopped store made anew without what nobody can reach: smaller tables, and a log of one base.

    state/compact/       1  the living rows, copied in the order of their keys     the store is as it was
                         2  the log's tail executed, keys expired, streams trimmed
                         3  if 2 left holes: copied once more
    appendonlydir/       4  the base, the same state as commands, under a temporary name
                         5  the plan: which files are about to become the log
                         6  old tables put aside, manifest replaced, new tables moved in
                         7  old tables and old log deleted

Nothing that is served is touched before 6.  Each of the three renames there leaves a directory that a server starts on:
without tables it executes the log, the old one or the new one.  `settle` ends what a kill has left: tables that belong
to the log are moved in, the rest is deleted.

When keys were expired or streams trimmed the state is none that the old line of offsets has ever had, so the log begins
a line of its own, and replicas begin with a full sync.  Otherwise the line goes on, and replicas at its end as well.

What is said to be needed is enforced: the new tables cannot grow beyond it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import lmdb

from store import format as fmt
from store import manifest as manifests
from store import recovery, retention
from store.basefile import BaseSize, write_base
from store.engine import DEFAULT_MAP_BYTES, lock_directory
from store.errors import CorruptionError, StoreError
from store.files import Files, OsFiles
from store.keyspace import META_POSITION, META_REPLICATION, NO_DATABASE, WriteTxn
from store.lineage import Lineage
from store.liverows import LiveRows, TableSize, room_for, sizes_of
from store.log import DIRECTORY_NAME, FILE_NAME, TEMPORARY_PREFIX
from store.logreader import Batch, LogPosition, LogReader, TornTail, list_parts
from store.manifest import FileType, LogFile, Manifest
from store.recovery import Execute, RecoveryReport
from store.retention import NO_RETENTION, Retention
from store.rewrite import pieces
from store.tablereader import TableReader
from store.tables import STATE_DIRECTORY, Tables

MEASURING: Final = "measuring"
COPYING: Final = "copying the living rows"
EXECUTING: Final = "executing the end of the log"
TRIMMING: Final = "trimming"
COPYING_AGAIN: Final = "copying once more"
WRITING_LOG: Final = "writing the log"

WORK_DIRECTORY: Final = "compact"
_DATA: Final = "data.mdb"
_OLD: Final = "old.mdb"
_PLAN: Final = "plan.json"
_BASE: Final = f"{TEMPORARY_PREFIX}compact"

_COMMIT_BYTES: Final = 16 << 20
_PUT_BYTES: Final = 1 << 20
# Pages that are written anew by every commit, until those they replace can be used again.
_CHURN_BYTES: Final = 4 << 20
_MOST_CHANGED_BYTES: Final = 64 << 20
# How many bytes of pages a byte of log may make.
_PAGES_A_LOGGED_BYTE: Final = 4
_COMMANDS_A_COMMIT: Final = 256
# Below this part of free pages another copy is not worth its time.
_FREE_PART: Final = 10
_WITHOUT_EFFECT: Final = frozenset((b"SELECT", b"PING", b"REPLCONF"))

# Called with what is being done, how much of it is done, and of how much.
Steps = Callable[[str, int, int], None]


@dataclass(slots=True)
class LogSize:
    """Files of the log, and their bytes."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Plan:
    """What is there, and what a compaction will make of it.  Sizes to come are upper bounds."""

    before: dict[str, TableSize]
    after: dict[str, TableSize]
    state_bytes: int  # of the file now
    log: LogSize
    expired: int  # keys whose deadline has passed, which go
    trimmed_streams: int
    trimmed_entries: int
    tail_bytes: int  # of the log behind the last checkpoint: nothing of it is counted here
    torn_tail: TornTail | None
    needed_bytes: int
    free_bytes: int
    end: LogPosition
    has_changes: bool  # more than a copy has to be made


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


def _unwatched(step: str, done: int, total: int) -> None:
    """Nobody wants to know how far it has come."""


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
        steps: Steps = _unwatched,
        log_directory: str = DIRECTORY_NAME,
        log_filename: str = FILE_NAME,
        files: Files | None = None,
    ) -> None:
        """`execute` runs one command of the log, `keep` says which entries are kept."""
        self._directory = directory
        self._execute = execute
        self._now_ms = now_ms
        self._keep = keep
        self._keep_expired = keep_expired
        self._steps = steps
        self._files = files or OsFiles()
        self._home = directory / log_directory
        self._filename = log_filename
        self._state = directory / STATE_DIRECTORY
        self._work = self._state / WORK_DIRECTORY
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Compaction:
        """Raises LockedError, StoreError when there is no store, OSError."""
        if not self._directory.is_dir():
            raise StoreError(f"{self._directory} is not a directory")
        self._held.enter_context(lock_directory(self._directory))
        try:
            settle(self._state, self._home, self._filename, self._files)
            self._manifest = self._load_manifest()
            self._parts = list_parts(self._home, self._manifest, self._files)
            if not (self._state / _DATA).exists():
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

    def _load_manifest(self) -> Manifest:
        manifest = manifests.load(self._home / f"{self._filename}.manifest", self._files)
        if manifest is not None and manifest.files:
            return manifest
        if (self._state / _DATA).exists():
            raise StoreError(f"{self._home} has no log; `riverbed check` tells more")
        raise StoreError(f"{self._directory} holds no store")

    # -- what it will be -----------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Look at everything and write nothing.  Raises CorruptionError, lmdb.Error, OSError."""
        with self._tables.env.begin() as txn:
            reader = TableReader(self._tables, txn)
            row = reader.get("meta", META_POSITION)
            if row is None:
                raise StoreError(f"the store in {self._directory} was never checkpointed: start riverbed-server once")
            *place, _ = fmt.unpack_row(row)
            position = LogPosition(*place)
            commands, tail_bytes, end, torn = self._read_tail(position)
            expired = 0 if self._keep_expired else self._count_expired(reader)
            streams = entries = names_bytes = 0
            live = self._live(reader, commands > 0)
            for stream in live.streams():
                removed = retention.count_removals(reader, stream, self._keep)
                streams += removed > 0
                entries += removed
                names_bytes += stream.row.length * (len(stream.key) + 32)
            page_bytes = reader.stat("meta")["psize"]
            before = sizes_of(reader)
            after = {}
            done, total = 0, sum(size.rows for size in before.values())
            for table, rows in live.tables():
                after[table] = room_for(rows, page_bytes)
                done += before[table].rows
                self._steps(MEASURING, done, total)
            others = sum(piece.command_bytes + len(piece.data) for piece in pieces(self._tables, txn, entries=False))
        state_bytes = (self._state / _DATA).stat().st_size
        tables_bytes = sum(size.bytes for size in after.values())
        base_bytes = after["entries"].bytes + names_bytes + others + (1 << 16)
        base_bytes += base_bytes >> 10  # annotations
        has_changes = bool(commands or expired or entries)
        needed = tables_bytes + base_bytes + _CHURN_BYTES
        if has_changes:
            needed = tables_bytes + self._changed_bytes(tables_bytes, tail_bytes) + max(tables_bytes, base_bytes)
            needed += 2 * _CHURN_BYTES + _PAGES_A_LOGGED_BYTE * tail_bytes
        self._room = tables_bytes, base_bytes
        return Plan(
            before=before,
            after=after,
            state_bytes=state_bytes,
            log=self._log_size(),
            expired=expired,
            trimmed_streams=streams,
            trimmed_entries=entries,
            tail_bytes=tail_bytes if commands else 0,
            torn_tail=torn,
            needed_bytes=needed,
            free_bytes=self._free_bytes(),
            end=end,
            has_changes=has_changes,
        )

    @staticmethod
    def _changed_bytes(tables_bytes: int, tail_bytes: int) -> int:
        return min(2 * tables_bytes, _MOST_CHANGED_BYTES) + _PAGES_A_LOGGED_BYTE * tail_bytes

    def _live(self, reader: TableReader, has_tail: bool) -> LiveRows:
        """With a tail to execute everything is needed: it may speak of any entry."""
        keep = self._keep
        if has_tail or not keep.is_anything or keep.acked:
            return LiveRows(reader, str(self._tables.path))
        return LiveRows(reader, str(self._tables.path), lambda stream: retention.first_kept(reader, stream, keep))

    def _read_tail(self, position: LogPosition) -> tuple[int, int, LogPosition, TornTail | None]:
        """-> (commands that change anything, bytes, the end of the log, a torn tail) behind the last checkpoint."""
        reader = LogReader(self._parts, self._files)
        commands = size = 0
        for batch in reader.batches(position, position):
            commands += sum(words[0].upper() not in _WITHOUT_EFFECT for words in batch.commands)
            size += batch.size
        assert reader.end is not None
        return commands, size, reader.end, reader.torn_tail

    def _count_expired(self, reader: TableReader) -> int:
        count = 0
        live = LiveRows(reader, str(self._tables.path))
        for stream in live.streams():
            count += 0 < stream.row.expire_ms <= self._now_ms
        return count

    def _log_size(self) -> LogSize:
        return LogSize(len(self._parts), sum(part.size for part in self._parts))

    def _free_bytes(self) -> int:
        """Where there is less of it, when log and tables are on two disks."""
        return min(self._files.free_bytes(self._home), self._files.free_bytes(self._state))

    # -- doing it ------------------------------------------------------------------------------------------------------

    def run(self, plan: Plan) -> Report:
        """Do it.  Raises SpaceError before anything is begun; CorruptionError, lmdb.Error, OSError.

        The old store is whole after any of them, and nothing is left behind.
        """
        if plan.free_bytes < plan.needed_bytes:
            raise SpaceError(
                f"not enough space in {self._directory}: {plan.needed_bytes:,} bytes are needed, "
                f"{plan.free_bytes:,} are free"
            )
        report = Report(plan)
        self._files.make_directory(self._work)
        try:
            lineage = self._make_tables(plan, report)
            base, incr = self._write_log(plan, report, lineage)
            self._put_in_place(base, incr, lineage)
        except BaseException:
            with contextlib.suppress(OSError, StoreError):
                settle(self._state, self._home, self._filename, self._files)
            raise
        settle(self._state, self._home, self._filename, self._files)
        self._manifest = self._load_manifest()
        self._parts = list_parts(self._home, self._manifest, self._files)
        report.state_bytes = (self._state / _DATA).stat().st_size
        report.log = self._log_size()
        return report

    def _make_tables(self, plan: Plan, report: Report) -> Lineage | None:
        """Leave the new tables in the work directory; -> whose offsets the new log has."""
        tables_bytes, _ = self._room
        first = self._work / "first"
        seq = self._next_seq(plan)
        with self._tables.env.begin() as txn:
            reader = TableReader(self._tables, txn)
            row = reader.get("meta", META_REPLICATION)
            lineage = self._manifest.lineage or (None if row is None else Lineage(*fmt.unpack_row(row)))
            if not plan.has_changes:
                with _opened(first, tables_bytes + _CHURN_BYTES) as target:
                    self._copy(self._live(reader, False), target, COPYING, _rows_in(plan.after))
                    _set_position(target, LogPosition(seq, 0, plan.end.offset), lineage)
                self._adopt(first, report)
                return lineage
            room = tables_bytes + _CHURN_BYTES + self._changed_bytes(tables_bytes, plan.tail_bytes)
            with _opened(first, room) as target:
                self._copy(self._live(reader, plan.tail_bytes > 0), target, COPYING, _rows_in(plan.after))
        with _opened(first, room) as target:
            lineage = self._change(target, plan, report, LogPosition(seq, 0, plan.end.offset), lineage)
            report.work_bytes = (first / STATE_DIRECTORY / _DATA).stat().st_size
            with target.env.begin() as txn:
                reader = TableReader(target, txn)
                file_bytes = (target.env.info()["last_pgno"] + 1) * reader.stat("meta")["psize"]
                has_holes = (file_bytes - target.used_bytes(txn)) * _FREE_PART > file_bytes
                if reader.count("trash") or has_holes:
                    second = self._work / "second"
                    tail_bytes = _PAGES_A_LOGGED_BYTE * plan.tail_bytes
                    with _opened(second, tables_bytes + _CHURN_BYTES + tail_bytes) as copy:
                        live = LiveRows(reader, str(target.path))
                        self._copy(live, copy, COPYING_AGAIN, sum(size.rows for size in sizes_of(reader).values()))
                        _set_position(copy, LogPosition(seq, 0, plan.end.offset), lineage)
                    report.work_bytes += (second / STATE_DIRECTORY / _DATA).stat().st_size
                    first, second = second, first
        self._adopt(first, report)
        return lineage

    def _adopt(self, made: Path, report: Report) -> None:
        """What was made is the new data.mdb; whatever else lies there goes."""
        self._files.rename(made / STATE_DIRECTORY / _DATA, self._work / _DATA)
        for name in ("first", "second"):
            shutil.rmtree(self._work / name, ignore_errors=True)
        size = (self._work / _DATA).stat().st_size
        report.work_bytes = max(report.work_bytes, size)
        report.state_bytes = size

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
        self, target: Tables, plan: Plan, report: Report, position: LogPosition, lineage: Lineage | None
    ) -> Lineage | None:
        """Execute the tail, expire and trim; -> whose offsets the log has then."""
        txn = WriteTxn(target)
        try:
            place = list(txn.position or position)
            if plan.tail_bytes:
                folded = RecoveryReport()
                reader = LogReader(self._parts, self._files)
                start = LogPosition(*place)
                batches = self._metered(reader, start, plan.tail_bytes)
                recovery.fold(batches, txn, self._execute, folded)
                place = list(plan.end)
                txn.commit(place)

            def pause() -> None:
                if len(txn.log) >= _COMMANDS_A_COMMIT:
                    txn.log.clear()
                    txn.commit(place)

            if not self._keep_expired:
                before = txn.expired_keys
                while txn.expire_due(self._now_ms, _COMMANDS_A_COMMIT):
                    pause()
                report.expired = txn.expired_keys - before
            if self._keep.is_anything:
                streams = sum(db.size for db in txn.databases)
                looked = 0

                def counted(count: int) -> None:
                    nonlocal looked
                    looked += count
                    self._steps(TRIMMING, looked, max(looked, streams))

                now_ms = 0 if self._keep_expired else self._now_ms
                report.trimmed_streams, report.trimmed_entries = retention.apply(
                    txn, self._keep, counted, pause, now_ms
                )
            if report.expired or report.trimmed_entries:
                lineage = Lineage.new()
                report.has_new_line = True
            txn.log.clear()
            txn.log_db = NO_DATABASE
            txn.lineage = lineage
            txn.commit(list(position))
        finally:
            with contextlib.suppress(lmdb.Error):
                txn.abort()
        target.env.sync(True)
        return lineage

    def _metered(self, reader: LogReader, start: LogPosition, total: int) -> Iterator[Batch]:
        done = 0
        for batch in reader.batches(start, start):
            yield batch
            done += batch.size
            self._steps(EXECUTING, min(done, total), total)

    def _write_log(self, plan: Plan, report: Report, lineage: Lineage | None) -> tuple[LogFile, LogFile]:
        """Write the base under a temporary name; -> it and the incr, as the manifest will list them."""
        entries = 0
        made = self._work / "base" / STATE_DIRECTORY
        self._files.make_directory(made)
        # tables are opened by their directory; the file has to be where its name is looked for
        self._files.rename(self._work / _DATA, made / _DATA)

        def progress(size: BaseSize) -> None:
            self._steps(WRITING_LOG, size.entries, max(size.entries, entries))

        with _opened(self._work / "base", DEFAULT_MAP_BYTES, readonly=True) as tables, tables.env.begin() as txn:
            reader = TableReader(tables, txn)
            entries = reader.count("entries")
            report.after = sizes_of(reader)
            size = write_base(
                self._home / _BASE,
                pieces(tables, txn),
                self._files,
                offset=plan.end.offset,
                now_ms=self._now_ms,
                progress=progress,
            )
        self._files.rename(made / _DATA, self._work / _DATA)
        shutil.rmtree(self._work / "base", ignore_errors=True)
        report.entries = size.entries
        report.work_bytes = max(report.work_bytes, report.state_bytes + size.size)
        old = self._manifest
        names = {file.name for file in (*old.files, *old.history)}
        seq = 1 + max((file.seq for file in (old.base, *old.history) if file is not None), default=0)
        while (name := f"{self._filename}.{seq}.base.aof") in names:
            seq += 1
        base = LogFile(name, seq, FileType.BASE, size=size.size, is_checksummed=True, command_bytes=size.command_bytes)
        seq = self._next_seq(plan)
        name = f"{self._filename}.{seq}.incr.aof"
        incr = LogFile(name, seq, FileType.INCR, start_offset=plan.end.offset, is_checksummed=True)
        return base, incr

    def _put_in_place(self, base: LogFile, incr: LogFile, lineage: Lineage | None) -> None:
        files, home, work = self._files, self._home, self._work
        self._tables.close()
        plan = json.dumps({"base": base.name, "incr": incr.name}).encode()
        fd = files.create(work / _PLAN)
        try:
            files.write(fd, plan)
            files.sync(fd)
        finally:
            files.close(fd)
        files.sync_directory(work)
        files.rename(home / _BASE, home / base.name)
        files.close(files.create(home / incr.name))
        files.sync_directory(home)
        files.rename(self._state / _DATA, work / _OLD)
        files.sync_directory(self._state)
        old = self._manifest
        gone = tuple(_as_history(file) for file in (*old.files, *old.history))
        manifest = Manifest(base, gone, (incr,), lineage)
        manifests.replace(home / f"{self._filename}.manifest", manifest, files)
        files.rename(work / _DATA, self._state / _DATA)
        files.sync_directory(self._state)


def settle(state: Path, home: Path, filename: str, files: Files) -> bool:
    """End a compaction that was killed, as what the log says; -> whether there was one.

    To be called by who holds the directory.  Raises CorruptionError, OSError.
    """
    work = state / WORK_DIRECTORY
    if not files.exists(work):
        return False
    if files.exists(home / _BASE):
        files.unlink(home / _BASE)
    manifest_path = home / f"{filename}.manifest"
    manifest = manifests.load(manifest_path, files)
    names = _planned(work, files)
    if names is not None and manifest is not None:
        listed = {file.name for file in manifest.files}
        is_new = names[0] in listed
        tables = work / (_DATA if is_new else _OLD)
        if not files.exists(state / _DATA) and files.exists(tables):
            files.rename(tables, state / _DATA)
            files.sync_directory(state)
        for name in names:
            if name not in listed and files.exists(home / name):
                files.unlink(home / name)
        if is_new:
            for file in manifest.history:
                if files.exists(home / file.name):
                    files.unlink(home / file.name)
            if manifest.history:
                manifests.replace(manifest_path, Manifest(manifest.base, (), manifest.incrs, manifest.lineage), files)
    shutil.rmtree(work)
    files.sync_directory(state)
    return True


def _planned(work: Path, files: Files) -> tuple[str, str] | None:
    """The names of the new base and incr; None while nothing was to be put in place."""
    path = work / _PLAN
    if not files.exists(path):
        return None
    try:
        plan = json.loads(path.read_bytes())
        return str(plan["base"]), str(plan["incr"])
    except (ValueError, KeyError, TypeError):
        return None  # torn: it is synced before anything is moved


def _as_history(file: LogFile) -> LogFile:
    return LogFile(file.name, file.seq, FileType.HISTORY, file.start_offset, file.size, file.is_checksummed)


@contextlib.contextmanager
def _opened(directory: Path, map_bytes: int, *, readonly: bool = False) -> Iterator[Tables]:
    tables = Tables(directory, map_bytes, readonly=readonly)
    try:
        yield tables
    finally:
        tables.close()


def _set_position(tables: Tables, position: LogPosition, lineage: Lineage | None) -> None:
    with tables.env.begin(write=True, db=tables.handles["meta"]) as txn:
        txn.put(META_POSITION, fmt.pack_row([*position, NO_DATABASE]))
        if lineage is not None:
            row = [lineage.replication_id, lineage.previous_id, lineage.branch_offset]
            txn.put(META_REPLICATION, fmt.pack_row(row))
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
