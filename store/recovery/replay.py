"""From a checkpoint to the running state: execute the log's tail.

State is the result of replaying the log.  Recovery continues the replay where the last checkpoint stopped; without a
checkpoint it replays the whole log.  The caller passes the function that executes a command: it belongs to the server,
and the store knows no server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import lmdb

from riverbed.store.databases.database import Database
from riverbed.store.databases.transaction import WriteTxn
from riverbed.store.errors import ReplayError
from riverbed.store.format.meta import NO_DATABASE
from riverbed.store.log.append_log import Log
from riverbed.store.log.reader import Batch, TornTail
from riverbed.store.position import LogPosition
from riverbed.store.progress import Progress, ignore
from riverbed.store.recovery.bulk_load import load_run
from riverbed.store.wire import LoggedRequest, Run, count_of

EXECUTING: Final = "executing the log"
VERIFYING: Final = "verifying the log"

# A step takes up to some milliseconds, unless one batch alone is longer.
STEP_BYTES: Final = 32 << 10

# A start from nothing commits this often, so that dirty pages do not pile up in memory; see `start_changes.py`.
_BYTES_A_CHECKPOINT: Final = 32 << 20

# Commands for replicas alone, and MULTI and EXEC, whose commands a batch keeps together anyway.
_WITHOUT_EFFECT: Final = frozenset((b"MULTI", b"EXEC", b"PING", b"REPLCONF"))
# The same whichever database is selected; the FLUSHALL is one of Redis.
_OF_NO_DATABASE: Final = frozenset((b"SWAPDB", b"FLUSHALL"))

Execute = Callable[[WriteTxn, Database, list[bytes]], None]


@dataclass(slots=True)
class RecoveryReport:
    """What recovery did, for the server's log."""

    commands: int = 0
    refused: int = 0  # commands of a log made by another server that do not fit: Redis ignores them as well
    seconds: float = 0.0
    uncommitted_bytes: int = 0  # of the log that was executed, but is not in LMDB yet
    unsaved: lmdb.Error | None = None  # why the tables could not take what was executed: they are behind the log
    torn_tail: TornTail | None = None
    moved_files: list[Path] = field(default_factory=list)  # in other places of the disk, which had refused part of them


def recover(
    log: Log, txn: WriteTxn, execute: Execute, *, commits: bool = True, durable: LogPosition | None = None
) -> None:
    """Execute what `log` holds beyond `txn.position`; `commits` says whether `txn` may commit on the way.

    The log is known to be durable up to `durable`, by default what the tables say; the first pass makes the rest
    durable.  A torn tail is cut from the file.  Raises ReplayError, and what `Log.read` raises.
    """
    for _ in recovering(log, txn, execute, RecoveryReport(), commits=commits, durable=durable):
        pass


def recovering(
    log: Log,
    txn: WriteTxn,
    execute: Execute,
    report: RecoveryReport,
    *,
    commits: bool,
    durable: LogPosition | None = None,
    progress: Progress = ignore,
) -> Iterator[None]:
    """As `recover`, in steps of about `STEP_BYTES` of the log: between two steps commands may read the tables.

    `progress` is called after each step with the bytes of the log that are verified or executed, and all of them.
    """
    begun = time.monotonic()
    start = txn.position
    total = log.home.bytes_from(start)
    if commits and not txn.tables.is_new and total >= _BYTES_A_CHECKPOINT:
        # damage must be found before the first of several commits; it takes a quarter of the time
        for done in _in_steps(log.read_only(start)):
            progress(VERIFYING, done, total)
            yield
    batches = log.read(start, durable=durable or txn.synced)
    for done in replaying(batches, txn, execute, report, commits=commits, is_durable=True):
        progress(EXECUTING, done, total)
        yield
    report.moved_files += log.moved_files
    report.torn_tail = log.cut_tail()
    report.seconds = time.monotonic() - begun


def _in_steps(batches: Iterable[Batch]) -> Iterator[int]:
    """Read `batches`, and yield how many bytes were read so far, now and then."""
    done = 0
    step = STEP_BYTES
    for batch in batches:
        done += batch.size
        if done >= step:
            step = done + STEP_BYTES
            yield done


def replay(batches: Iterable[Batch], txn: WriteTxn, execute: Execute, report: RecoveryReport) -> None:
    """Execute `batches` on `txn`, commit now and then, and count in `report`.  Raises ReplayError."""
    for _ in replaying(batches, txn, execute, report):
        pass


def replaying(
    batches: Iterable[Batch],
    txn: WriteTxn,
    execute: Execute,
    report: RecoveryReport,
    *,
    commits: bool = True,
    is_durable: bool = False,
) -> Iterator[int]:
    """As `replay`, in steps of about `STEP_BYTES`; yields how many bytes are executed so far.

    With `commits` it commits now and then.  `is_durable` says that the disk has the batches; the commits note that.
    """
    keep_expired, txn.keep_expired = txn.keep_expired, True  # the log says itself when a key expired
    notify, txn.notify = txn.notify, lambda change, db, key: None
    done = uncommitted = 0
    step = STEP_BYTES
    try:
        for batch in batches:
            report.commands += count_of(batch.requests)
            try:
                # Redis ignores commands of its own logs that do not fit
                report.refused += execute_requests(txn, execute, batch.requests, is_foreign=batch.time_ms is None)
            except ReplayError as error:
                raise ReplayError(f"{batch.file} at byte {batch.start}: {error}") from error
            txn.drop_log()
            size = batch.end.position - batch.start
            done += size
            uncommitted += size
            if commits and uncommitted >= _BYTES_A_CHECKPOINT:
                txn.alignment.align_all()
                txn.commit(batch.end, synced=batch.end if is_durable else None)
                uncommitted = 0
            if done >= step:
                step = done + STEP_BYTES
                yield done
    finally:
        txn.keep_expired = keep_expired
        txn.notify = notify
    report.uncommitted_bytes = uncommitted
    yield done


def execute_requests(
    txn: WriteTxn, execute: Execute, requests: Sequence[LoggedRequest], *, is_foreign: bool = False
) -> int:
    """Execute requests of a log in order; -> how many were refused, which only those of a foreign log may be.

    Raises ReplayError, which does not name the place; those before it are executed then.
    """
    left = [*requests]  # the rests of runs take their place here
    at = refused = 0
    while at < len(left):
        begun, at = at, load_run(txn, left, at)
        if at > begun:
            continue
        words = left[at]
        if isinstance(words, Run):
            left[at : at + 1] = [words.request(0), words.rest(1)] if len(words) > 1 else words.requests()
            continue
        try:
            execute_logged(txn, execute, words)
        except ReplayError:
            # a database that is missing is an error in any log
            if not is_foreign or words[0].upper() == b"SELECT":
                raise
            refused += 1
        at += 1
    return refused


def require_selected(txn: WriteTxn, requests: Sequence[LoggedRequest]) -> None:
    """Raise ReplayError when a command is to run on a database and no SELECT has come before it."""
    if txn.log_db != NO_DATABASE:
        return
    for words in requests:
        name = b"" if isinstance(words, Run) else words[0].upper()
        if name == b"SELECT":
            return
        if name not in _WITHOUT_EFFECT and name not in _OF_NO_DATABASE:
            raise ReplayError("no SELECT came before a command that needs it")


def execute_logged(txn: WriteTxn, execute: Execute, words: list[bytes]) -> None:
    """Execute one command of a log.  Raises ReplayError, which does not name the place."""
    name = words[0].upper()
    if name == b"SELECT":
        number = int(words[1]) if len(words) == 2 and words[1].isdigit() and len(words[1]) < 10 else -1
        if not 0 <= number < len(txn.databases):
            raise ReplayError(f"{b' '.join(words)[:64]!r}: there are {len(txn.databases)} databases")
        txn.log_db = number
    elif name not in _WITHOUT_EFFECT:
        selected = txn.log_db
        try:
            execute(txn, txn.databases[max(selected, 0)], words)
        finally:
            txn.log_db = selected if name in _OF_NO_DATABASE else max(selected, 0)
