"""Snapshots that clients ask for: taken by a process of their own, one at a time, while the client waits.

    command    the client is blocked                      a thread makes a checkpoint durable
    process    copies the last checkpoint                progress goes to INFO; with `snapshot-columns` another one
                                                         writes it as Parquet too: the snapshot is whole without
    end        the client has path and offset            or why there is none

The client is sent the offset that was really copied; it covers everything that ran before the command.  If the client
leaves, or is unblocked, the snapshot goes on.  `store.snapshot.writer` makes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import lmdb

from riverbed.server.background.worker import DamageMetError, Worker, WorkerError
from riverbed.server.background.worker_modules import COLUMNS, SNAPSHOT
from riverbed.server.config.kinds import BadValueError
from riverbed.server.errors import CommandError, require_sound_disk
from riverbed.server.protocol.replies import Block
from riverbed.store.disk.real_files import require_directory
from riverbed.store.disk.working_directory import clear_leftovers
from riverbed.store.errors import DamagedRowError, LogWriteError, StateLostError, UnsafeFileError
from riverbed.store.layout import SNAPSHOTS_DIRECTORY
from riverbed.store.snapshot.reader import is_snapshot_name, list_snapshots
from riverbed.store.snapshot.writer import WORKING_PREFIX

if TYPE_CHECKING:
    from riverbed.server.background.checkpoints.checkpoints import Checkpoints
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.failures import Failures
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.protocol.replies import Reply

log = logging.getLogger("riverbed")

UNDER_WAY: Final = "ERR a snapshot is under way already"
# From the start on; a process that outlives its server ends within a second.
CLEAR_S: Final = 3.0
# The errors that a snapshot may end with; any other is a defect.
_EXPECTED: Final = (WorkerError, DamagedRowError, LogWriteError, StateLostError, lmdb.Error, OSError)
BAD_NAME: Final = "ERR a snapshot's name has letters, digits and ._+- and begins with one of the first two"


class Snapshots:
    """The snapshots of one server."""

    def __init__(self, core: Core, ticks: Ticks, tasks: Tasks, checkpoints: Checkpoints, failures: Failures) -> None:
        self._engine = core.engine
        self._folder = core.engine.directory / SNAPSHOTS_DIRECTORY
        self._status = core.stats.snapshot
        self._ticks = ticks
        self._tasks = tasks
        self._checkpoints = checkpoints
        self._failures = failures
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._config = core.config
        if self._config.snapshot_columns and find_spec("pyarrow") is None:
            log.warning("snapshots will have no columns: pyarrow is not installed: pip install 'riverbed[sql]'")
        self._config.prepare(["snapshot-columns"], self._require_library)

    def _require_library(self) -> None:
        """Refuse a change that cannot come true.  Raises BadValueError."""
        if self._config.snapshot_columns and find_spec("pyarrow") is None:
            raise BadValueError("pyarrow is not installed: pip install 'riverbed[sql]'")

    # -- what clients ask for ------------------------------------------------------------------------------------------

    def begin(self, request: Request, name: str | None, keep: int | None) -> Block:
        """Start a snapshot; the session waits for its end.  Raises CommandError."""
        if self._status.in_progress:
            raise CommandError(UNDER_WAY)
        if name is not None and not is_snapshot_name(name):
            raise CommandError(BAD_NAME)
        require_sound_disk(self._engine.refusal, "snapshot")
        self._require_folder()
        self._status.begin()
        block = Block((), None, request.argv, is_for_work=True)
        self._start("snapshot", self._take(request.session, block, name, keep), request.session, block)
        return block

    def list(self, request: Request) -> Block:
        """List the snapshots, in a thread, as there may be many; the session waits."""
        self._require_folder()
        block = Block((), None, request.argv, is_for_work=True)
        self._start("list of snapshots", self._answer_list(request.session, block), request.session, block)
        return block

    def _require_folder(self) -> None:
        """Raise CommandError if the folder leads elsewhere: files there are not ours to write or to delete."""
        try:
            require_directory(self._folder)
        except UnsafeFileError as error:
            raise CommandError(os.fsencode(f"ERR {error}")) from None

    def _start(self, what: str, work: Coroutine[Any, Any, None], session: Session, block: Block) -> None:
        def failed(error: Exception) -> None:
            if isinstance(error, StateLostError):
                self._ticks.give_up(error)
                return
            if isinstance(error, DamageMetError):
                self._failures.damage_met()
            log.warning("no %s: %s", what, error)
            self._answer(session, block, CommandError(f"ERR no {what}: {error}".replace("\n", " ")))

        task = self._tasks.start(what, work, failed=failed, expected=_EXPECTED)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def start(self) -> None:
        """Delete what a killed server has left, once its process, which may be deleting it, has ended."""

        def clear() -> None:
            with contextlib.suppress(OSError):  # there is no folder, or it leads elsewhere
                require_directory(self._folder)
                if any(name.startswith(WORKING_PREFIX) for name in os.listdir(self._folder)):
                    self._tasks.start("clearing away snapshots", self._clear_leftovers(), expected=_EXPECTED)

        self._timer = asyncio.get_running_loop().call_later(CLEAR_S, clear)

    async def stop(self) -> None:
        """Stop what is under way, which leaves nothing behind, because the server stops."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    # -- the process ---------------------------------------------------------------------------------------------------

    async def _take(self, session: Session, block: Block, name: str | None, keep: int | None) -> None:
        made: dict[str, Any] | None = None
        try:
            await self._checkpoints.checkpoint_in_thread()
            made = await self._run(name, keep)
        finally:
            self._status.end(None if made is None else str(made["name"]), 0 if made is None else int(made["offset"]))
            if made is None:
                await self._clear_leftovers()
        log.info("snapshot %s of offset %d in %.1f s", made["path"], made["offset"], self._status.last_seconds)
        self._answer(session, block, made)

    async def _clear_leftovers(self) -> None:
        # a process that was killed leaves its place among LMDB's readers, which would keep pages from being used again
        self._engine.tables.env.reader_check()
        with contextlib.suppress(OSError):
            await self._tasks.in_thread(
                "clearing away a snapshot",
                clear_leftovers,
                self._folder,
                WORKING_PREFIX,
                self._tasks.stopping.wait,
                expected=(OSError,),
            )

    def _note_step(self, answer: dict[str, Any]) -> None:
        self._status.step, self._status.done, self._status.total = answer["step"], answer["done"], answer["total"]

    async def _run(self, name: str | None, keep: int | None) -> dict[str, Any]:
        """-> what was made.  Raises WorkerError, OSError."""
        engine = self._engine
        arguments = [engine.directory, "--leave-bytes", engine.space.reserve_bytes]
        arguments += [] if name is None else ["--name", name]
        arguments += [] if keep is None else ["--keep", keep]
        wants_columns = self._config.snapshot_columns
        async with Worker(self._tasks, COLUMNS if wants_columns else SNAPSHOT, *arguments) as worker:
            while "made" not in (answer := await worker.receive()):
                self._note_step(answer)
        made: dict[str, Any] = answer["made"]
        if answer["not_deleted"] is not None:
            log.warning("older snapshots than %s could not be deleted: %s", made["path"], answer["not_deleted"])
        status = self._status
        status.columns_ok, status.columns_bytes = None, 0
        if wants_columns:
            status.columns_ok, status.columns_bytes = answer["failed_columns"] is None, answer["columns"]
            if not status.columns_ok:
                log.warning("snapshot %s has no columns: %s", made["path"], answer["failed_columns"])
        return made

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _answer_list(self, session: Session, block: Block) -> None:
        found = await self._tasks.in_thread("listing snapshots", list_snapshots, self._folder, expected=(OSError,))
        self._answer(
            session,
            block,
            [
                {
                    "name": snapshot.name,
                    "offset": snapshot.manifest.offset,
                    "time": snapshot.manifest.time_ms,
                    "streams": snapshot.manifest.streams,
                    "entries": snapshot.manifest.entries,
                    "bytes": snapshot.size_bytes,
                }
                for snapshot in found
            ],
        )

    def _answer(self, session: Session, block: Block, reply: Reply) -> None:
        if session.blocked is block:  # else the client has left, or waits for something else by now
            self._ticks.end_wait(session, reply)
