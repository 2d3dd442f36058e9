"""The deep check: execute the log again up to the position of the tables, and compare the result with the tables.

    log, from its beginning  -- executed -->  tables in a directory of their own  <-- compared -->  the tables
    the rest of the log      -- executed -->                                       it must fit, or no server starts

The caller passes the function that executes a command: the store does not import the server.  The new tables are
written to disk, so that memory use does not grow, and deleted afterwards.  A directory that a kill leaves behind is
deleted by the next deep check that works in the same place.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from riverbed.store.check.comparison import Comparison, Difference
from riverbed.store.check.findings import Meta, Violation, show, violation_of
from riverbed.store.check.log import LogCheck
from riverbed.store.disk.files import Files, OsFiles
from riverbed.store.disk.real_files import open_file
from riverbed.store.disk.working_directory import working_directory
from riverbed.store.errors import CorruptionError, ReplayError, StoreError
from riverbed.store.format.meta import read_position
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.log.reader import Batch, LogPart, LogReader
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress, counter
from riverbed.store.recovery.replay import Execute
from riverbed.store.recovery.tables_from_log import TablesFromLog, room_for_tables
from riverbed.store.tables.environment import Tables
from riverbed.store.tables.reader import TableReader

EXECUTING: Final = "executing the log"
COMPARING: Final = "comparing"
WORK_PREFIX: Final = ".riverbed-check-"

_MAP_BYTES: Final = 1 << 40
_TRIES: Final = 5
# The table whose rows the rewrite turns into the command.
_TABLES: Final = {
    b"XADD": "entries",
    b"XGROUP": "groups",
    b"XSEEN": "groups",
    b"XCLAIM": "pel",
    b"XNACK": "pel",
    b"XIDMPRECORD": "idmp_ids",
}


class ReplayPlan(NamedTuple):
    """Where the log will be executed, and the space that this may take."""

    work: Path
    log_bytes: int
    needed_bytes: int
    free_bytes: int


class SpaceError(StoreError):
    """There is less space than executing the log may need.  Nothing was begun."""


class MovedError(StoreError):
    """A running server rewrote its log while the check read it."""


def _unannounced(plan: ReplayPlan) -> None:
    """Announce nothing."""


class DeepCheck:
    """Executes the log and compares: `execute` runs one command, the new tables go into `parent`."""

    def __init__(
        self,
        execute: Execute,
        parent: Path,
        *,
        announce: Callable[[ReplayPlan], None] = _unannounced,
    ) -> None:
        """`announce` is called with the plan before the log is executed."""
        self._execute = execute
        self._parent = parent
        self._announce = announce
        self._files = OsFiles()
        self.commands = 0  # executed

    def violations(self, directory: Path, log: LogCheck, meta: Meta | None, steps: Progress) -> Iterator[Violation]:
        """Yield every difference, and a command of the log that does not fit the state.

        Raises SpaceError, MovedError, lmdb.Error, OSError.
        """
        if log.end is None:
            return  # there is no log, or it cannot be read to its end
        with contextlib.ExitStack() as held:
            reader, position, files = self._begin(held, directory, log, meta)
            needed = room_for_tables(log.size_bytes)
            work = held.enter_context(working_directory(self._parent, WORK_PREFIX))
            free = self._files.free_bytes(work)
            self._announce(ReplayPlan(work, log.size_bytes, needed, free))
            if free < needed:
                raise SpaceError(f"{work.parent} has {free:,} bytes free, and executing the log may take {needed:,}")
            made = held.enter_context(TablesFromLog(work, self._execute, self._files))
            executed = counter(steps, EXECUTING, log.size_bytes)
            is_ours = all(part.file.is_checksummed for part in log.parts)
            batches = LogReader(log.parts, files, plain_batch_commands=256 if is_ours else 1).batches(None, None)
            cut = _Cut(batches, position)
            try:
                made.try_replay(cut.before(), executed)
                if reader is not None and position is not None:
                    made.commit(position)
                    with made.tables.env.begin() as txn:
                        replayed = TableReader(made.tables, txn)
                        yield from self._compare(reader, replayed, steps, has_times=is_ours)
                made.try_replay(cut.after(), executed)
            except ReplayError as error:
                batch = made.batch
                place = (None, None) if batch is None else (batch.file, batch.start)
                reason = error.__cause__ or error  # `place` already says where
                yield Violation("log", "", f"does not fit the log before it: {reason}", *place)
            self.commands = made.commands

    def _begin(
        self, held: contextlib.ExitStack, directory: Path, log: LogCheck, meta: Meta | None
    ) -> tuple[TableReader | None, LogPosition | None, Files]:
        """-> the tables in a transaction that `held` ends, the log position that they cover, the files to read with.

        The log may be changing: a running server may have appended to it since the check read it, or may rewrite it.
        """
        tables: Tables | None = None
        if meta is not None:
            tables = Tables(directory, _MAP_BYTES, readonly=True)
            held.callback(tables.close)
        for _ in range(_TRIES):
            is_stable = log.is_stable()
            with contextlib.ExitStack() as attempt:
                reader, position = None, None
                if tables is not None:
                    txn = tables.env.begin()
                    attempt.callback(txn.abort)
                    reader = TableReader(tables, txn)
                    row = read_position(reader.meta_row)
                    position = None if row is None else row.place
                try:
                    has_moved = not is_stable or (meta is not None and position != meta.position)
                    if has_moved and not log.reload(position):
                        continue
                    files = log.files if is_stable else attempt.enter_context(_held_files(log.parts))
                except (CorruptionError, FileNotFoundError):
                    continue
                held.push(attempt.pop_all())
                return reader, position, files
        raise MovedError("the log was rewritten again and again while it was read; try once more")

    def _compare(
        self, reader: TableReader, replayed: TableReader, steps: Progress, *, has_times: bool
    ) -> Iterator[Violation]:
        total = reader.count("entries")
        comparison = Comparison(reader, replayed, now_ms=time.time_ns() // 1_000_000, has_times=has_times)
        try:
            for difference in comparison.differences():
                if difference is not None:
                    yield _violation(difference)
                steps(COMPARING, min(comparison.entries, total), total)
        except CorruptionError as error:
            yield violation_of("keys", error)
        except DECODE_ERRORS as error:
            yield Violation("keys", "", f"cannot be compared with the log: {error}")


def _violation(difference: Difference) -> Violation:
    key = f"{show(difference.key)} of database {difference.db}"
    if difference.ours is None:
        return Violation("keys", key, "the log makes it, and it is not in the tables")
    if difference.theirs is None:
        return Violation("keys", key, "is in the tables, and the log does not make it")
    if difference.group is not None:
        key = f"group {show(difference.group)} of {key}"
    ours, theirs = difference.shown()
    return Violation(_TABLES.get(difference.command, "keys"), key, f"the tables make {ours}; the log makes {theirs}")


class _Cut:
    """Splits batches in two at a position: batches up to it, and batches after it.  Without one, all are before."""

    def __init__(self, batches: Iterator[Batch], position: LogPosition | None) -> None:
        self._batches = batches
        self._position = position
        self._beyond: list[Batch] = []

    def before(self) -> Iterator[Batch]:
        for batch in self._batches:
            if self._position is not None and batch.end > self._position:
                self._beyond.append(batch)
                return
            yield batch

    def after(self) -> Iterator[Batch]:
        return chain(self._beyond, self._batches)


class _HeldFiles(OsFiles):
    """Files that were opened before the server deletes them."""

    def __init__(self, held: dict[Path, int]) -> None:
        self._held = held

    def open_read(self, path: Path, /) -> int:
        return os.dup(self._held[path])


@contextlib.contextmanager
def _held_files(parts: list[LogPart]) -> Iterator[_HeldFiles]:
    """Keep all of `parts` open until the block ends.  Raises OSError when one is gone already."""
    held: dict[Path, int] = {}
    try:
        for part in parts:
            held[part.path] = open_file(part.path, os.O_RDONLY)
        yield _HeldFiles(held)
    finally:
        for fd in held.values():
            os.close(fd)
