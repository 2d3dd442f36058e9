"""Full sync: receives a whole state beside the one we have, and swaps it in when it is complete.

    DIR/sync-N/appendonlydir/    the primary's base, byte for byte, and behind it the log, as a log of our own
    DIR/sync-N/state/            the tables, made from that log by a process of its own while more comes

All that comes is written to the disk at once.  The primary has said where its log ended when the sync began.  Once the
tables are beyond that offset, and close to what has come since, the new store takes the place of the old one, in one
turn of the loop.  A failure before that changes nothing; its files are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.background.worker import Worker, WorkerError
from riverbed.server.replication import worker as replication_worker
from riverbed.store.disk.durable_file import write_all_at
from riverbed.store.disk.real_files import make_directory, require_only
from riverbed.store.disk.removal import remove_tree
from riverbed.store.errors import StoreError
from riverbed.store.layout import SYNC_NAMES, SYNC_PREFIX
from riverbed.store.log.append_log import Log
from riverbed.store.log.manifest import LogFile
from riverbed.store.log.streamed.batch import data_of
from riverbed.store.log.streamed.stream import LogStream
from riverbed.store.position import LogPosition
from riverbed.store.replication_id import ReplicationIds

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.replication.link import FullSyncHead
    from riverbed.server.replication.replacement import Replacement
    from riverbed.store.engine import Engine

log = logging.getLogger("riverbed")

_NAME: Final = re.compile(rf"{SYNC_PREFIX}\d+(-[0-9a-f]+)?")
# How far the tables may be behind what has come when the swap begins, and before reading pauses.
NEAR_BYTES: Final = 1 << 20
FAR_BYTES: Final = 64 << 20
# Files of the two logs must never have the same number, and the old log may begin some more files meanwhile.
SPARE_NUMBERS: Final = 1000


class SyncError(Exception):
    """The full sync cannot be finished; nothing has changed."""


# The errors that it may fail with; any other is a defect.
_EXPECTED: Final = (SyncError, WorkerError, StoreError, lmdb.Error, OSError)


class FullSync:
    """One full sync.

    `on_done` is called with the stream on which the log goes on, `on_failed` with the error; `on_progress` is called
    whenever the tables have come nearer, so that more may be read.
    """

    def __init__(
        self,
        core: Core,
        tasks: Tasks,
        replacement: Replacement,
        head: FullSyncHead,
        on_done: Callable[[LogStream], None],
        on_failed: Callable[[Exception], None],
        on_progress: Callable[[], None],
    ) -> None:
        """Raises OSError, LogWriteError when nothing can be written."""
        self.read_bytes = 0
        self.total_bytes = head.total_bytes
        self._engine = core.engine
        self._tasks = tasks
        self._replacement = replacement
        self._head = head
        self._on_done = on_done
        self._on_progress = on_progress
        self._base_bytes = self._base_left = head.base_bytes
        self._stream = LogStream(head.start, core.config.repl_max_batch_bytes, core.engine.new_spill, from_file=True)
        self._is_complete = False
        self._replayed: LogPosition | None = None
        self._news = asyncio.Event()
        # what an earlier process with the same number left may still be on its way out
        self._directory = self._engine.directory / f"{SYNC_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        with contextlib.ExitStack() as held:
            held.callback(_remove, tasks, self._directory)
            self._log = self._begin_log()
            held.callback(self._log.close)
            self._base_fd = self._begin_base()
            held.pop_all()
        self._task = tasks.start("full sync", self._run(), failed=on_failed, expected=_EXPECTED)
        self._task.add_done_callback(lambda _: self._finish())  # also when it was cancelled before its first step

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _begin_log(self) -> Log:
        engine, head = self._engine, self._head
        old = engine.log.home.manifest
        seq = max((file.seq for file in (*old.files, *old.history)), default=0) + SPARE_NUMBERS
        base = None
        if head.base_bytes:
            base = LogFile.base(seq, head.base_bytes, head.command_bytes)
        make_directory(self._directory)
        return Log.begin(
            self._directory,
            engine.files,
            start_offset=head.start,
            seq=seq,
            base=base,
            replids=ReplicationIds(head.replication_id, store_id=head.store_id or head.replication_id),
        )

    def _begin_base(self) -> int:
        base = self._log.home.manifest.base
        return -1 if base is None else self._engine.files.create(self._log.home.path / base.name)

    def received(self, data: bytes) -> None:
        """Take bytes of the base, then of the log.  Raises SyncError, OSError."""
        self.read_bytes += len(data)
        if self._engine.files.free_bytes(self._directory) < self._engine.space.reserve_bytes:
            raise SyncError("the disk is nearly full")
        if self._base_left:
            piece = data[: self._base_left]
            data = data[len(piece) :]
            at = self._base_bytes - self._base_left
            self._base_left -= len(piece)
            write_all_at(self._engine.files, self._base_fd, piece, at)
        if data:
            self._stream.feed(data)
        if not self._base_left:
            self._news.set()

    def take_slice(self, most_bytes: int, most_commands: int) -> bool:
        """Append some of the batches that have come to the log; -> whether there may be more.

        Raises FrameError, LogWriteError, OSError.
        """
        batches = self._stream.next_slice(most_bytes, most_commands)
        if batches:
            try:
                self._log.writer.append_verbatim(data_of(batches), batches[-1].offset)
            finally:
                batches[-1].release()
            self._news.set()
        return bool(batches) or self._stream.is_unfinished

    @property
    def is_behind(self) -> bool:
        """Whether the tables are so far behind that the rest should stay with the primary for a while."""
        return not self._base_left and self._behind_bytes > FAR_BYTES

    @property
    def pending_bytes(self) -> int:
        """What has come, and is in no file yet."""
        return self._stream.pending_bytes

    # -- making tables of it -------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        await self._make_tables()
        self._swap()
        self._is_complete = True
        self._on_done(self._stream)

    async def _make_tables(self) -> None:
        """Have a process replay what comes, until little is left, and sync it.  Raises WorkerError, OSError."""
        options, txn = self._engine.options, self._engine.txn
        arguments = [self._directory, options.map_bytes, options.quota_bytes]
        arguments += [txn.node_max_entries, txn.node_max_bytes]
        # the process's end is news, too: the primary may have nothing to send, or be left waiting
        worker = Worker(self._tasks, replication_worker.MODULE, *arguments, on_end=self._news.set, is_urgent=True)
        if not self._base_left:
            self._news.set()  # nothing comes from a primary whose log is empty
        async with worker:
            await self._come_near(worker)
            # The disk may need long for all of it; the turn of the swap would execute what comes meanwhile.
            await self._make_durable()
            await self._come_near(worker)
            await self._replay(worker, self._log.end)
            worker.send(close=True)
            await worker.receive()
        await self._make_durable()

    async def _come_near(self, worker: Worker) -> None:
        while not self._is_near():
            await self._news.wait()
            self._news.clear()
            worker.require_alive()
            if not self._base_left:
                await self._replay(worker, self._log.end)

    def _is_near(self) -> bool:
        """Whether the tables hold all that the primary had when this began, and nearly all that has come since."""
        is_complete = self._replayed is not None and self._replayed.offset >= self._head.end
        return is_complete and self._behind_bytes <= NEAR_BYTES

    @property
    def _behind_bytes(self) -> int:
        return self._log.end.position - (0 if self._replayed is None else self._replayed.position)

    async def _replay(self, worker: Worker, end: LogPosition) -> None:
        """Have the tables brought up to `end`."""
        worker.send(replay=end)
        await worker.receive()
        self._replayed = end
        self._on_progress()

    # -- the swap ------------------------------------------------------------------------------------------------------

    async def _make_durable(self) -> None:
        """Sync the received files, in a thread, as there may be gigabytes.  Raises OSError."""
        await self._tasks.in_thread("syncing what a full sync received", self._sync_files, expected=_EXPECTED)

    def _sync_files(self) -> None:
        files = self._engine.files
        base = self._log.home.manifest.base
        for name in [file.name for file in (base, *self._log.home.manifest.incrs) if file is not None]:
            fd = files.open_update(self._log.home.path / name)
            try:
                files.sync(fd)
            finally:
                files.close(fd)

    def _swap(self) -> None:
        """Put the new store in the place of the old one.  Raises StateLostError, LogWriteError."""
        if self._engine.txn.log:
            raise SyncError("a tick is open")
        self._log.writer.sync()
        self._log.close()
        self._close_base()
        self._replacement.adopt(self._directory)

    def _close_base(self) -> None:
        if self._base_fd >= 0:
            fd, self._base_fd = self._base_fd, -1  # it is closed even if that fails, and may be another file's then
            self._engine.files.close(fd)

    # -- the end -------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Give up the full sync."""
        self._task.cancel()

    def _finish(self) -> None:
        """Close the files, and delete the directory: it holds the old state, or an unfinished new one.

        Ending the process takes seconds at worst, so the next full sync may be under way, in a directory of its own.
        """
        self._log.close()
        self._close_base()
        if not self._is_complete:
            self._stream.close()
        _remove(self._tasks, self._directory)
        self._replacement.clear_up()


def require_room(engine: Engine, head: FullSyncHead) -> None:
    """Raise SyncError when the disk has no room for what is to come; OSError."""
    free = engine.files.free_bytes(engine.directory) - engine.space.reserve_bytes
    if free < head.total_bytes:
        raise SyncError(f"the disk is nearly full: {head.total_bytes:,} bytes come, and {max(free, 0):,} have room")


def remove_leftovers(directory: Path, tasks: Tasks) -> None:
    """Delete what the full syncs of earlier processes have left behind.

    A server may be told to work in any folder: what only has such a name, and holds other files, stays.
    """
    with contextlib.suppress(OSError):  # the next start tries again
        _remove(tasks, *(path for path in directory.iterdir() if _NAME.fullmatch(path.name) and _is_ours(path)))


def _is_ours(path: Path) -> bool:
    try:
        require_only(path, SYNC_NAMES)
    except OSError:
        return False
    return True


def _remove(tasks: Tasks, *paths: Path) -> None:
    """Delete `paths` in a thread, as there may be gigabytes; what cannot be removed is left to the next start.

    In one, however many there are: other work waits for threads of the same few.
    """

    def remove() -> None:
        for path in paths:
            remove_tree(path, tasks.stopping.wait)

    if paths:
        tasks.in_thread("removing " + ", ".join(path.name for path in paths), remove)
