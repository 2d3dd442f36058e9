"""Make a data directory from a log, without a server: replay all batches up to a moment.

A log of ours is copied byte for byte up to the stop, so its checksums and replication offsets do not change; the tables
are built beside it.  A log that a Redis wrote, wholly or in part, is executed, and logged again as our server would.
Neither keeps the source's replication id: after the stop, the two histories may differ.  A copy keeps the store's id,
because its streams continue the streams of the source (see FORMAT.md).

Memory use does not grow: LMDB commits every 16 MB of log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from riverbed.server.commands.replay import Replayer
from riverbed.store.databases.names import all_keys
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.disk.beside import WorkBeside
from riverbed.store.disk.files import OsFiles
from riverbed.store.engine import Engine
from riverbed.store.log.files.batch import Batch
from riverbed.store.log.files.plain import PLAIN_BATCH_COMMANDS
from riverbed.store.log.reader import LogReader, TornTail
from riverbed.store.options import Fsync, Options, SystemClock
from riverbed.store.position import LogPosition
from riverbed.store.recovery.tables_from_log import WAITING_BYTES, TablesFromLog
from riverbed.store.tables.purge import purge
from riverbed.store.wire import count_of
from riverbed.tools.console.console import Failure, ProgressBar
from riverbed.tools.offline.foreign import ForeignLog, Skipped
from riverbed.tools.offline.logcopy import LogCopy
from riverbed.tools.offline.moment import Moment, time_text
from riverbed.tools.offline.source import Source

CHECKPOINT_BYTES: Final = 16 << 20
# Streams counted before the cached streams are dropped.
_STREAMS_A_LOOK: Final = 1024


@dataclass(slots=True)
class Contents:
    """Counts of what a store holds."""

    streams: int = 0
    entries: int = 0
    groups: int = 0
    pending: int = 0


@dataclass(slots=True)
class Rebuilt:
    """The report.  `offset` and `time_ms` are of the last batch executed; a time is None if the log holds none."""

    commands: int = 0
    offset: int = 0  # in the source
    new_offset: int = 0  # where the new log ends: the same in a copy
    time_ms: int | None = None
    next_offset: int | None = None  # of the first batch left out, None at the end of the log
    next_time_ms: int | None = None
    copied: bool = True  # the log was copied byte for byte; otherwise it was written again
    torn_tail: TornTail | None = None
    contents: Contents = field(default_factory=Contents)
    skipped: Skipped = field(default_factory=Skipped)


class LogUntil:
    """The batches of a log up to a moment, and where they ended."""

    def __init__(self, source: Source, until: Moment | None, bar: ProgressBar) -> None:
        by_offset = until is not None and until.offset is not None
        self._first = source.parts[0]
        self._reader = LogReader(
            source.parts, source.files, plain_batch_commands=1 if by_offset else PLAIN_BATCH_COMMANDS
        )
        self._start = source.start
        self._until = until
        self._bar = bar
        self.end = source.start or LogPosition(source.parts[0].number, 0, 0)
        self.time_ms: int | None = None
        self.beyond: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Raises Failure when the log does not go back to the moment or has no times, CorruptionError, OSError."""
        until = self._until
        for batch in self._reader.batches(self._start, None):
            # Later commands that a Redis wrote in the same second have no time of their own; nor has a file's start.
            time_ms = batch.time_ms or batch.noted_ms or self.time_ms
            if until is not None and _is_beyond(batch, time_ms, until):
                if batch.end.file_seq < 0:
                    raise Failure(
                        f"{batch.file} holds the state at {_place(time_ms, batch.end.offset)}: "
                        f"this log does not go back to {until}"
                    )
                if self._first.number < 0 and not self.end.position:
                    raise Failure(
                        f"{self._first.path.name} holds the state of an empty store and no time: this log does not go "
                        f"back to {until} for certain"
                    )
                self.beyond = batch
                return
            self.end, self.time_ms = batch.end, time_ms
            yield batch
            self._bar.advance(batch.size, count_of(batch.requests))
        if until is not None and until.time_ms is not None and self.time_ms is None and self.end.position:
            raise Failure(
                f"{self._bar.done_items} commands and no time: `aof-timestamp-enabled` was off when this log was "
                f"written; stop at a replication offset instead"
            )

    @property
    def torn_tail(self) -> TornTail | None:
        return self._reader.torn_tail


def _is_beyond(batch: Batch, time_ms: int | None, until: Moment) -> bool:
    if until.offset is not None:
        return batch.end.offset > until.offset
    return time_ms is not None and until.time_ms is not None and time_ms > until.time_ms


def _place(time_ms: int | None, offset: int) -> str:
    at = f"replication offset {offset}"
    return at if time_ms is None else f"{time_text(time_ms)} ({at})"


def rebuild(source: Source, directory: Path, until: Moment | None, bar: ProgressBar) -> Rebuilt:
    """Build in `directory`, which must be empty, the state that `source` had at `until`, or has at its end.

    Raises Failure, StoreError, lmdb.Error, OSError; then the contents of `directory` are of no use.
    """
    batches = LogUntil(source, until, bar)
    report = _copy(source, directory, batches) if source.is_ours else _log_again(directory, batches)
    report.offset, report.time_ms = batches.end.offset, batches.time_ms
    report.torn_tail = batches.torn_tail
    if batches.beyond is not None:
        report.next_offset = batches.beyond.end.offset
        report.next_time_ms = batches.beyond.time_ms or batches.beyond.noted_ms
    return report


# -- a log of ours -----------------------------------------------------------------------------------------------------


def _copy(source: Source, directory: Path, batches: LogUntil) -> Rebuilt:
    report = Rebuilt()
    with (
        LogCopy(source, directory) as copy,
        TablesFromLog(directory, Replayer().execute, OsFiles()) as made,
    ):
        made.replay(copy.follow(batches))
        end = copy.finish(batches.end)
        made.commit(end)
        report.contents = count_contents(made.txn)
        report.commands, report.new_offset = made.commands, end.offset
    # Open the store once, as a server would: this fails unless the log ends where the tables say it does.
    _open_engine(directory).close()
    return report


def _open_engine(directory: Path) -> Engine:
    return Engine.open(directory, execute=Replayer().execute, clock=SystemClock(), options=Options(fsync=Fsync.NO))


# -- a log that a Redis wrote ------------------------------------------------------------------------------------------


def _log_again(directory: Path, batches: LogUntil) -> Rebuilt:
    replayer = Replayer(int(time.time() * 1000))
    builder = Builder(directory)
    try:
        foreign = ForeignLog(builder.txn, replayer)
        time_ms: int | None = None
        committed = 0
        for batch in batches:
            # Write one batch for all commands of one second, unless there are too many.
            if batches.time_ms != time_ms or foreign.commands - committed >= PLAIN_BATCH_COMMANDS:
                builder.commit(time_ms)
                time_ms, committed = batches.time_ms, foreign.commands
            foreign.run(batch)
        builder.commit(time_ms)
        report = builder.finish()
    finally:
        builder.close()
    report.commands, report.skipped = foreign.commands, foreign.skipped
    return report


class Builder:
    """An engine on a new directory, which executes commands offline and logs them as a server would."""

    def __init__(self, directory: Path) -> None:
        self._engine = _open_engine(directory)
        self._syncing = WorkBeside("checkpoint to disk")
        self.txn = self._engine.txn
        for db in self.txn.databases:
            db.let_rows_wait(WAITING_BYTES)
        self.txn.keep_expired = True  # a server will expire keys whose deadlines have passed

    def commit(self, time_ms: int | None = None) -> None:
        """Write the logged commands as one batch of `time_ms`, by default now; checkpoint when it is due."""
        engine = self._engine
        engine.commit(int(time.time() * 1000) if time_ms is None else time_ms)
        if engine.dirty_bytes >= CHECKPOINT_BYTES:
            purge(engine.txn, lambda: False)
            self._syncing.begin(engine.begin_checkpoint().run)  # the next checkpoint raises its errors
            engine.check_space()
            if engine.refusal is not None:
                raise Failure(engine.refusal.value)

    def checkpoint(self) -> None:
        """Commit, and make everything durable."""
        self.commit()
        purge(self._engine.txn, lambda: False)
        self._engine.checkpoint()

    def finish(self) -> Rebuilt:
        """Make everything durable -> a report with the counts of the store."""
        self.checkpoint()
        return Rebuilt(new_offset=self._engine.log.end.offset, copied=False, contents=count_contents(self.txn))

    def close(self) -> None:
        self._syncing.end()  # a thread must not use what is closed
        self._engine.abandon()


def count_contents(txn: WriteTxn) -> Contents:
    """Count streams, entries, groups and pending entries.  `txn` was just committed."""
    contents = Contents()
    for db in txn.databases:
        for key in all_keys(db, 0):
            stream = db.stream(key, 0)
            if stream is None:
                continue
            contents.streams += 1
            contents.entries += stream.length
            if stream.group_count:
                for group in db.groups(stream):
                    contents.groups += 1
                    contents.pending += group.pel_count
            if len(db.cached) >= _STREAMS_A_LOOK:
                db.forget_cached()
    return contents
