"""Rewrites the log while the server serves: starts a process for it, and adopts the file that the process writes.

    start    a process of its own is started (`background/rewrite_worker.py`); nothing waits for it
    go       one moment: the log is divided, and LMDB is checkpointed where the new file begins
    write    the process has its read transaction of that checkpoint; the server goes on
    end      its file becomes the base of the log, in one step; what came before is deleted

Until that step a failure costs nothing but the time: the log is as it was.  A checkpoint may come between `go` and the
transaction; the process reports which one it sees, and has to be sent `go` again then.

Starting, failing and stopping are tasks of the event loop; what touches the store happens in its turns, and what waits
for the disk in the thread of checkpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.background.checkpoints.manifest_changes import ManifestChanges
from riverbed.server.background.worker import DamageMetError, Worker, WorkerError
from riverbed.server.background.worker_modules import REWRITE
from riverbed.store.disk.real_files import is_there
from riverbed.store.disk.removal import remove_file
from riverbed.store.errors import DISK_LACKS_ROOM, DamagedRowError, LogWriteError, StateLostError, text_of
from riverbed.store.log.home import TEMPORARY_PREFIX, Base

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from riverbed.server.background.checkpoints.checkpoints import Checkpoints
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.execution.failures import Failures
    from riverbed.server.execution.ticks import Ticks
    from riverbed.store.log.appending.replacement import Replacement

log = logging.getLogger("riverbed")

MAX_DIVISIONS: Final = 20
# An automatic rewrite that failed is tried again after so many seconds, twice as many each time, up to an hour.
RETRY_S: Final = 10.0
MAX_RETRY_S: Final = 3600.0
_MAX_DOUBLINGS: Final = 9  # to more than an hour
_REPLACED: Final = "the store was replaced"


class RewriteError(Exception):
    """The log was not rewritten; it is as it was."""


# The errors that a rewrite may end with; any other is a defect.
_EXPECTED: Final = (RewriteError, WorkerError, DamagedRowError, LogWriteError, StateLostError, lmdb.Error, OSError)


class Rewriting:
    """The rewrites of one server.  `status` is what INFO shows of them."""

    def __init__(self, core: Core, ticks: Ticks, tasks: Tasks, checkpoints: Checkpoints, failures: Failures) -> None:
        self.status = core.rewrite
        self._core = core
        self._engine = core.engine
        self._monotonic = core.clock.monotonic
        self._ticks = ticks
        self._tasks = tasks
        self._checkpoints = checkpoints
        self._manifest = ManifestChanges(core.engine, checkpoints)
        self._failures = failures
        self._loop = asyncio.get_running_loop()
        self._adopted: asyncio.Future[Base] | None = None
        self._task: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        self._removal: asyncio.Task[None] | None = None
        self._stopped = False
        self._abandoned = False
        self._held_for = ""  # why no rewrite may be under way
        self._wait_until_s = 0.0
        self._offset_at_full_disk = -1  # of the log, when the last rewrite began for want of space
        self._removal_s = 0.0

    @property
    def in_progress(self) -> bool:
        return self._task is not None

    # -- when ----------------------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Future[Base]:
        """Begin a rewrite, or join the one under way; -> its base, once that is adopted.

        The future raises RewriteError when there is none.  Await it with `asyncio.shield`: others may await it as well.
        """
        if self._adopted is None or self._task is None:
            self.status.scheduled = False
            self.status.begin(self._monotonic())
            self._abandoned = False
            self._adopted = self._loop.create_future()
            # an automatic rewrite has no caller that asks for the outcome
            self._adopted.add_done_callback(lambda future: future.cancelled() or future.exception())
            self._task = self._tasks.start(
                "rewriting the log", self._run(self._adopted), failed=self._failed, expected=_EXPECTED
            )
        return self._adopted

    def schedule(self) -> None:
        """Begin a rewrite soon, if none is under way by then."""
        self.status.scheduled = True

    def begin_if_due(self) -> None:
        """Start a rewrite that is scheduled, or due because the log has grown or the disk is full."""
        if self._task is not None or self._stopped or self._held_for:
            return
        if self.status.scheduled or self._has_grown():
            self.start()
        elif self._would_make_space():
            self._offset_at_full_disk = self._engine.offset
            self._wait_until_s = self._monotonic() + RETRY_S
            log.info("the log is rewritten, as that makes space on the disk")
            self.start()

    def _has_grown(self) -> bool:
        """Whether the log has grown by `auto-aof-rewrite-percentage` since the last rewrite.

        Measured from the log's size after that rewrite, so that a rewrite which could not make the log smaller is not
        followed by another before there is something new.
        """
        config, engine = self._core.config, self._engine
        percentage, size = config.auto_aof_rewrite_percentage, engine.log.size_bytes
        if not percentage or size <= config.auto_aof_rewrite_min_size or engine.log.broken:
            return False
        before = max(self.status.grown_from, engine.log.base_bytes, 1)
        return 100 * (size - before) >= percentage * before and self._monotonic() >= self._wait_until_s

    def _would_make_space(self) -> bool:
        """Whether writes are refused for want of space that a rewrite would make.

        Trimming and deleting make none: the log gets longer by them, and the tables keep their pages for other rows.
        """
        engine = self._engine
        if engine.refusal not in DISK_LACKS_ROOM or not self._core.config.auto_aof_rewrite_percentage:
            return False
        if engine.offset == self._offset_at_full_disk or self._monotonic() < self._wait_until_s:
            return False
        return engine.space.is_won_by_rewrite(engine.txn, engine.log.size_bytes)

    @contextlib.asynccontextmanager
    async def held(self, reason: str) -> AsyncIterator[None]:
        """Have no rewrite inside, neither the one under way nor another, for `reason`: the files of the log stay.

        A base that is being listed counts before that: a repair that had read the list without it would miss files.
        """
        self.abandon()
        self._held_for, self.status.is_held = reason, True
        try:
            await self._manifest.wait()
            yield
        finally:
            self._held_for, self.status.is_held = "", False

    # -- how -----------------------------------------------------------------------------------------------------------

    async def _run(self, adopted: asyncio.Future[Base]) -> None:
        """One rewrite, from beginning to end."""
        begun = self._monotonic()
        # in a container, the process before had the same number, and what it left may still be on its way out
        path = self._engine.log.home.path / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}.aof"
        try:
            base, before = await self._rewrite(path)
        finally:
            try:
                with contextlib.suppress(OSError):
                    if is_there(path):
                        what = "deleting an unfinished log"
                        await self._tasks.in_thread(what, self._unlink, [path], expected=(OSError,))
            finally:
                self._task = None  # also where no thread can be started
        status = self.status
        status.end(self._monotonic(), ok=True)
        status.grown_from = self._engine.log.size_bytes
        self._wait_until_s = 0.0
        log.info(
            "the log was rewritten in %.1f s: %d entries in %d bytes, %d bytes with what came since instead of %d",
            self._monotonic() - begun,
            status.entries,
            status.size,
            self._engine.log.size_bytes,
            before,
        )
        adopted.set_result(base)
        self.remove_leftovers()

    def _failed(self, error: Exception) -> None:
        """The log is as it was; an automatic rewrite is tried again later."""
        reason = text_of(error)
        status = self.status
        status.end(self._monotonic(), ok=False)
        self._wait_until_s = self._monotonic() + min(
            RETRY_S * 2 ** min(status.failures - 1, _MAX_DOUBLINGS), MAX_RETRY_S
        )
        if self._adopted is not None and not self._adopted.done():
            self._adopted.set_exception(RewriteError(reason))
        if isinstance(error, StateLostError):
            self._ticks.give_up(error)
            return
        if isinstance(error, DamageMetError):
            self._failures.damage_met()
        log.warning("the log was not rewritten: %s", reason)
        self.remove_leftovers()

    async def _rewrite(self, path: Path) -> tuple[Base, int]:
        """Have `path` written and adopt it; -> what it is, and the bytes of the whole log before it was adopted.

        Raises what `_EXPECTED` lists.
        """
        self._go_on()
        engine = self._engine
        arguments = [engine.directory, path, engine.options.map_bytes]
        self._worker = Worker(self._tasks, REWRITE, *arguments)
        try:
            async with self._worker as worker:
                self._go_on()
                from_seq = await self._hand_over(worker)
                entries, size, command_bytes = await self._follow(worker)
        except WorkerError:
            self._go_on()  # raises the reason if we have killed the process
            raise
        finally:
            self._worker = None
            engine.tables.env.reader_check()  # a killed reader would keep pages from being used again
        # A power loss may undo the last checkpoint, see `power_loss.py`.  The files that the one before goes on
        # from are about to be deleted.
        for _ in range(2):
            await self._checkpoints.checkpoint_in_thread()
            self._go_on()
        log_ = engine.log
        before = log_.size_bytes

        def begin() -> Replacement:
            self._go_on()  # the store may be another one by now
            return log_.history.begin_adoption(path, size, command_bytes, from_seq)

        await self._manifest.make(begin)
        if engine.log is not log_:
            raise RewriteError(_REPLACED)
        self.status.note(entries, size)
        assert engine.log.base is not None
        return engine.log.base, before

    async def _hand_over(self, worker: Worker) -> int:
        """Agree on a checkpoint; -> the number of the file of the log that begins there."""
        for _ in range(MAX_DIVISIONS):
            # the turn that divides the log then has little to wait for
            await self._checkpoints.checkpoint_in_thread()
            async with self._checkpoints.kept_off():
                await self._checkpoints.write_ahead()
                await self._reach_end_of_tick()
                start = self._checkpoints.divide_log()
            worker.send(go=True)
            answer = await worker.receive()
            await self._checkpoints.wait_for_disk()
            self._go_on()
            if not self._engine.log.home.has_incr(start.file_seq):
                raise RewriteError(self._engine.log.rotate_error)
            _, _, offset = answer["held"]
            if offset == start.offset:
                self.status.total = answer["total"]
                worker.send(offset=offset, now_ms=self._core.now_ms(), room_bytes=self._room())
                return start.file_seq
        raise RewriteError("no checkpoint stayed the last one for long enough")

    async def _reach_end_of_tick(self) -> None:
        """Wait until no tick is open: a checkpoint must not commit one, which commits and answers by itself."""
        while self._engine.txn.log:
            self._ticks.want_tick()
            await asyncio.sleep(0)
            self._go_on()  # no tick comes any more in a server that has given up
        self._go_on()

    def _room(self) -> int:
        """How many bytes must stay free on the disk.

        A rewrite must not cause writes to be refused; when they are refused already, it may be the cure.
        """
        reserve = self._engine.space.reserve_bytes
        return reserve + (reserve >> 2) if self._engine.refusal is None else reserve >> 2

    async def _follow(self, worker: Worker) -> tuple[int, int, int]:
        """Listen until the process is done; -> entries, bytes, bytes of commands."""
        while True:
            answer = await worker.receive()
            self._go_on()
            entries, size = answer["entries"], answer["bytes"]
            if "command_bytes" in answer:
                return entries, size, answer["command_bytes"]
            self.status.note(entries, size)

    def _go_on(self) -> None:
        """Raise RewriteError if a reason to stop has come up while something was awaited."""
        if self._stopped:
            raise RewriteError("the server is stopping")
        if self._held_for:
            raise RewriteError(self._held_for)
        if self._abandoned:
            raise RewriteError(_REPLACED)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def remove_leftovers(self) -> None:
        """Delete the files that the log needs no more, in a thread: a gigabyte takes the file system a while.

        The file of a rewrite under way looks like one of them; so they stay until the end of the rewrite.
        """
        if self._removal is None and self._task is None and not self._stopped:
            with contextlib.suppress(OSError):
                if self._engine.log.home.leftovers(self._backlog_start()):
                    self._removal = self._tasks.start(
                        "removing old files of the log",
                        self._remove(),
                        failed=lambda error: log.warning("old files of the log are still there: %s", error),
                        expected=(LogWriteError, OSError),
                    )

    def remove_superseded(self) -> None:
        """Delete the files before the base that no replica may ask for any more: the log has grown, or space is short.

        Called often; when files could not be deleted, the next try is later.
        """
        home, now_s = self._engine.log.home, self._monotonic()
        if self._removal is not None or not home.manifest.history or now_s < self._removal_s:
            return
        if home.superseded(self._backlog_start()):
            self._removal_s = now_s + RETRY_S
            self.remove_leftovers()

    def _backlog_start(self) -> int:
        """Replicas may ask for what lies behind this offset, as far as there are files: `repl-backlog-size` bytes."""
        engine, size = self._engine, self._core.config.repl_backlog_size
        kept_bytes = sum(file.size or 0 for file in engine.log.home.manifest.backlog)
        return engine.log.end.offset - (size if engine.space.may_keep(kept_bytes) else 0)

    def _unlink(self, paths: Iterable[Path]) -> None:
        """In a thread, a piece at a time."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                remove_file(path, self._tasks.stopping.wait)

    async def _remove(self) -> None:
        try:
            await self._manifest.wait()
            if self._task is not None or self._stopped:
                return
            log_ = self._engine.log
            paths = log_.history.begin_removal(self._backlog_start())
            if not paths:
                return
            await self._tasks.in_thread("deleting old files of the log", self._unlink, paths, expected=(OSError,))
            if not self._stopped:
                await self._manifest.make(
                    # a full sync may have replaced the log meanwhile, and its manifest is another one's
                    lambda: log_.history.begin_to_forget_deleted() if self._engine.log is log_ else None
                )
        finally:
            self._removal = None

    def abandon(self) -> None:
        """Give up the rewrite under way, if any: the store is about to be another one."""
        self._abandoned = True
        self.status.grown_from = 0
        if self._worker is not None:
            self._worker.kill()

    async def stop(self) -> None:
        """Stop a rewrite, and delete its file, because the server stops."""
        self._stopped = True
        self.abandon()
        for task in (self._task, self._removal):
            if task is not None:
                await asyncio.wait([task])
