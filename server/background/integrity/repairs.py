"""Makes the tables again of the log while the server serves: for a client, or because they were found damaged.

    process     executes the log into DIR/repair/state       `repair_worker.py`; progress goes to INFO
                compares it with its checksums
                executes what has come meanwhile             again and again, until little is left
    one turn    DIR/state -> DIR/repair/damaged, DIR/repair/state -> DIR/state
                executes the rest of the log
    end         DIR/repair is deleted

Clients notice the one turn, in which a megabyte of log is executed at most, and those whose long reply is still being
read from the damaged tables are cut off.  The log has all that the tables have, and every batch of it is compared with
its checksum, so nothing of the old tables is kept.  A replica whose log is damaged as well asks its primary for
everything.  The log is not rewritten meanwhile.

After a kill at any moment the next start finds the old tables, the new ones, or the log alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb

from riverbed.server.background.worker import Worker, WorkerError
from riverbed.server.background.worker_modules import REPAIR
from riverbed.server.errors import CommandError
from riverbed.server.protocol.replies import Block
from riverbed.store.disk.real_files import make_directory, require_only
from riverbed.store.disk.removal import remove_tree
from riverbed.store.errors import LogWriteError, StateLostError, StoreError
from riverbed.store.layout import DAMAGED_TABLES, REPAIR_DIRECTORY, REPAIR_NAMES, STATE_DIRECTORY
from riverbed.store.position import LogPosition
from riverbed.store.running.live_state import NUMBERS_APART

if TYPE_CHECKING:
    from riverbed.server.background.checkpoints.checkpoints import Checkpoints
    from riverbed.server.background.log_rewrite import Rewriting
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.tables.environment import Tables

log = logging.getLogger("riverbed")

# How much of the log the turn that exchanges the tables may execute.
NEAR_BYTES: Final = 1 << 20
# A server that logs faster than the process executes is never caught up with.
MAX_ROUNDS: Final = 50
# How long the exchange waits for clients that read the old tables: ten seconds.
_READERS_STEPS: Final = 1000
_WAIT_S: Final = 0.01
# After a repair that has failed, damage that commands meet begins no other one for so long.
AGAIN_S: Final = 600.0


class RepairError(Exception):
    """The tables were not repaired; they are as they were."""


class DamagedLogError(RepairError):
    """Nor can they be, from this log."""


# The errors that a repair may end with; any other is a defect.
_EXPECTED: Final = (RepairError, WorkerError, LogWriteError, StateLostError, lmdb.Error, OSError)


class Repairs:
    """The repairs of one server.

    `exchange` puts the tables of a directory in the place of ours and moves ours to another; `resync` has a replica ask
    its primary for everything, and returns whether this is a replica.
    """

    def __init__(
        self,
        core: Core,
        ticks: Ticks,
        tasks: Tasks,
        checkpoints: Checkpoints,
        *,
        rewriting: Rewriting,
        exchange: Callable[[Path, Path], None],
        resync: Callable[[], bool],
    ) -> None:
        self._core = core
        self._engine = core.engine
        self._status = core.repair
        self._directory = core.engine.directory / REPAIR_DIRECTORY
        self._ticks = ticks
        self._tasks = tasks
        self._checkpoints = checkpoints
        self._rewriting = rewriting
        self._exchange = exchange
        self._resync = resync
        self._task: asyncio.Task[None] | None = None
        self._waiting: tuple[Session, Block] | None = None
        self._again_s = 0.0
        self._removal: asyncio.Task[None] | None = None

    # -- when ----------------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Block:
        """Start a repair; the client waits for its end.  Raises CommandError."""
        if self._status.in_progress:
            raise CommandError("ERR a repair is under way already")
        if self._engine.log.broken:  # it may lack what the tables have
            raise CommandError("ERR the tables are not made again of a log that could not be written or synced")
        try:
            require_only(self._directory, REPAIR_NAMES)
        except OSError as error:  # a stranger's files are there, or it is another user's
            raise CommandError(f"ERR {error}") from None
        block = Block((), None, request.argv, is_for_work=True)
        self._waiting = request.session, block
        self._start()
        return block

    def damage_met(self) -> None:
        """Mend what a command has met, if that is wanted; what cannot be mended is not tried all the time."""
        if self._core.clock.monotonic() >= self._again_s:
            self.damage_found(in_tables=True)

    def damage_found(self, in_tables: bool) -> None:
        """Mend what a scrub has found, if that is wanted: the tables by the log, or the log by the tables."""
        if not self._core.config.auto_repair or self._engine.log.broken:
            return
        if not in_tables:
            self._rewriting.schedule()
        elif not self._status.in_progress:
            self._start()

    def _start(self) -> None:
        self._status.begin()
        log.info("the tables are being made again of the log")
        self._task = self._tasks.start("repairing the tables", self._run(), failed=self._failed, expected=_EXPECTED)

    async def stop(self) -> None:
        """Stop what is under way, because the server stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def remove_leftovers(self) -> None:
        """Delete what a repair has left, in a thread, as there may be gigabytes."""
        with contextlib.suppress(OSError):  # an UnsafeFileError is told when a repair wants the place
            require_only(self._directory, REPAIR_NAMES)
            if self._engine.files.exists(self._directory):
                self._removal = self._remove()

    # -- how -----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        begun_s = self._core.clock.monotonic()
        try:
            async with self._rewriting.held("the tables are being repaired"):
                end = await self._repair()
        finally:
            self.remove_leftovers()
        seconds = self._core.clock.monotonic() - begun_s
        self._status.end(seconds)
        self._core.scrub.tables_repaired()
        log.info("the tables were made again of the log, up to offset %d, in %.1f s", end.offset, seconds)
        self._answer({"offset": end.offset, "seconds": f"{seconds:.1f}"})

    def _failed(self, error: Exception) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, StateLostError):
            self._status.end(0.0, reason)
            self._ticks.give_up(error)
            return
        if isinstance(error, DamagedLogError) and self._resync():
            reason = f"{reason}; the primary is asked for everything"
        self._status.end(0.0, reason)
        self._again_s = self._core.clock.monotonic() + AGAIN_S
        log.error("the tables were not repaired: %s; not tried again without a command for %d s", reason, AGAIN_S)
        self._answer(CommandError(f"ERR the tables were not repaired: {reason}"))

    async def _repair(self) -> LogPosition:
        """Make the tables again; -> the place in the log that they cover.  Raises what `_EXPECTED` lists."""
        engine = self._engine
        tables, txn = engine.tables, engine.txn
        await self._make_directory()
        arguments = [engine.directory, engine.options.map_bytes, txn.node_max_entries, txn.node_max_bytes]
        arguments += [engine.space.reserve_bytes, txn.next_stream_no + NUMBERS_APART]
        try:
            async with Worker(self._tasks, REPAIR, *arguments, is_urgent=True) as worker:
                await self._make_tables(worker)
        except (WorkerError, DamagedLogError):
            self._require_same(tables)  # else the process met another log than the one it had begun with
            raise
        while engine.txn.log:  # a tick is open
            self._ticks.want_tick()
            await asyncio.sleep(0)
        self._require_same(tables)
        self._exchange(self._directory / STATE_DIRECTORY, self._directory / DAMAGED_TABLES)
        self._checkpoints.checkpoint_later()  # the one that the damage was in the way of
        return engine.log.end

    def _require_same(self, tables: Tables) -> None:
        if self._engine.tables is not tables:
            raise RepairError("a full sync has replaced the tables")

    async def _make_tables(self, worker: Worker) -> None:
        """Have tables made of the log, until little is left.  Raises WorkerError, RepairError.

        Clients that read the old tables are waited for before the last round, as others write meanwhile.
        """
        await self._replay(worker)
        worker.send(check=True)
        await self._answer_of(worker, "sound")
        have_readers_gone = False
        for _ in range(MAX_ROUNDS):
            end = await self._replay(worker)
            if self._engine.log.end.offset - end.offset <= NEAR_BYTES:
                if have_readers_gone:
                    return
                await self._wait_for_readers()
                have_readers_gone = True
        raise RepairError("more was written than could be executed; try again with fewer writes")

    async def _make_directory(self) -> None:
        if self._removal is not None:
            await asyncio.wait([self._removal])
        require_only(self._directory, REPAIR_NAMES)
        if self._engine.files.exists(self._directory):
            await self._remove()
        if self._engine.files.exists(self._directory):
            raise RepairError(f"{self._directory} cannot be deleted")
        make_directory(self._directory)

    def _remove(self) -> asyncio.Task[None]:
        return self._tasks.in_thread(
            "removing a repair's files", remove_tree, self._directory, self._tasks.stopping.wait
        )

    async def _replay(self, worker: Worker) -> LogPosition:
        """Have the tables brought up to what is on the disk; -> up to where."""
        # new tables must not be ahead of a log that a power cut may shorten
        try:
            await self._checkpoints.checkpoint_in_thread()
        except (StoreError, lmdb.Error):  # the damage may be in the way of a checkpoint
            self._checkpoints.sync_log()
        end = min(self._engine.log.synced, self._engine.log.lasting_end)
        worker.send(replay=end)
        await self._answer_of(worker, "at")
        return end

    async def _answer_of(self, worker: Worker, kind: str) -> dict[str, Any]:
        while kind not in (answer := await worker.receive()):
            if "damaged" in answer:
                raise DamagedLogError(answer["damaged"])
            self._status.note(answer["step"], answer["done"], answer["total"])
        return answer

    async def _wait_for_readers(self) -> None:
        """Wait for a while until no client reads the old tables."""
        for _ in range(_READERS_STEPS):
            if not self._has_readers():
                return
            await asyncio.sleep(_WAIT_S)

    def _has_readers(self) -> bool:
        sessions = self._core.sessions.values()
        return any(session.long_reply is not None or session.is_sliced for session in sessions)

    def _answer(self, reply: Reply) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[0].blocked is waiting[1]:
            self._ticks.end_wait(waiting[0], reply)
