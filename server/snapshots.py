"""Snapshots that clients ask for: taken by a process of their own, one at a time, while the client waits.

    command    checkpoint, and the client is parked      the process starts
    process    copies the last checkpoint                progress goes to INFO
    end        the client has path and offset            or why there is none

The client is told the offset that was really copied; it covers everything that ran before the command.  A client that
leaves, or is unblocked, only waits no longer.  How one is made, `store.freeze` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from server.errors import CommandError
from server.replies import Park
from store.errors import UnsafeFileError
from store.freeze import WORKING_PREFIX
from store.realfiles import require_directory
from store.snapshot import SNAPSHOTS_DIRECTORY, is_snapshot_name, list_snapshots
from store.workplace import clear_leftovers

if TYPE_CHECKING:
    from server.executor import Executor
    from server.replies import Reply
    from server.session import Request, Session

log = logging.getLogger("riverbed")

UNDER_WAY: Final = "ERR a snapshot is under way already"
BAD_NAME: Final = "ERR a snapshot's name has letters, digits and ._+- and begins with one of the first two"
_STOP_S: Final = 2.0
_SHOWN_BYTES: Final = 500


class Snapshots:
    """Those of one server."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._folder = executor.engine.directory / SNAPSHOTS_DIRECTORY
        self._status = executor.stats.snapshot
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    # -- what clients ask for ------------------------------------------------------------------------------------------

    def begin(self, request: Request, name: str | None, keep: int | None) -> Park:
        """Start one; the session waits for its end.  Raises CommandError."""
        if self._status.in_progress:
            raise CommandError(UNDER_WAY)
        if name is not None and not is_snapshot_name(name):
            raise CommandError(BAD_NAME)
        self._require_folder()
        self._executor.control.checkpoint()
        self._status.begin()
        park = Park((), None, request.argv)
        self._start(self._take(request.session, park, name, keep))
        return park

    def tell_list(self, request: Request) -> Park:
        """Look at those there are, in a thread, as there may be many; the session waits."""
        self._require_folder()
        park = Park((), None, request.argv)
        self._start(self._answer_list(request.session, park))
        return park

    def _require_folder(self) -> None:
        """What is elsewhere is not ours to write or to delete."""
        try:
            require_directory(self._folder)
        except UnsafeFileError as error:
            raise CommandError(os.fsencode(f"ERR {error}")) from None

    async def stop(self) -> None:
        """The server ends: so does what is under way, and leaves nothing behind."""
        self._stopping = True
        self._end_process()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_STOP_S)
            for task in left:
                task.cancel()

    def _end_process(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    # -- the process ---------------------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, session: Session, park: Park, name: str | None, keep: int | None) -> None:
        try:
            made, failure = await self._run(self._command(name, keep))
        except OSError as error:
            made, failure = None, f"the process that takes it cannot be started: {error}"
        self._status.end(None if made is None else str(made["name"]), 0 if made is None else int(made["offset"]))
        if made is not None:
            log.info("snapshot %s of offset %d in %.1f s", made["path"], made["offset"], self._status.last_seconds)
            self._answer(session, park, made)
            return
        log.warning("no snapshot: %s", failure)
        # a process that was killed leaves its place among LMDB's readers, which would keep pages from being used again
        self._executor.engine.tables.env.reader_check()
        with contextlib.suppress(OSError):
            await self._loop.run_in_executor(None, clear_leftovers, self._folder, WORKING_PREFIX)
        self._answer(session, park, CommandError(f"ERR no snapshot: {failure}".replace("\n", " ")))

    def _command(self, name: str | None, keep: int | None) -> list[str]:
        engine = self._executor.engine
        words = [sys.executable, "-m", "server.snapshotprocess", str(engine.directory)]
        words += ["--leave-bytes", str(engine.options.reserve_bytes)]
        words += [] if name is None else ["--name", name]
        return words if keep is None else [*words, "--keep", str(keep)]

    async def _run(self, command: list[str]) -> tuple[dict[str, Any] | None, str]:
        """-> (what was made, why not)"""
        process = self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        if self._stopping:  # it was being started just then
            self._end_process()
        assert process.stdout is not None
        made, failure, said = None, "", ""
        try:
            async for line in process.stdout:
                try:
                    values = json.loads(line)
                except ValueError:
                    said = line.decode(errors="replace").strip()[:_SHOWN_BYTES]  # the last line of a traceback
                    continue
                if "step" in values:
                    self._status.step, self._status.done, self._status.total = (
                        values["step"],
                        values["done"],
                        values["total"],
                    )
                made = values.get("made", made)
                failure = values.get("failed", failure)
            status = await process.wait()
        finally:
            self._process = None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return made, failure or f"its process {how}{said and ': '}{said}"

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _answer_list(self, session: Session, park: Park) -> None:
        found = await self._loop.run_in_executor(None, list_snapshots, self._folder)
        self._answer(
            session,
            park,
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

    def _answer(self, session: Session, park: Park, reply: Reply) -> None:
        if session.parked is park:  # else it has left, or waits for something else by now
            self._executor.wakeups.end_wait(session, reply)
