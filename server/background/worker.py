"""A process of our own that works for the server: it is started, given orders, listened to, and always ended.

    server                                     process (`child.py`)
                                           <-  {"riverbed": module}          it is ours, and listens
    {order}                                ->
                                           <-  {answer} ...
                                           <-  {"failed": reason, "damage": whether it has met damaged tables}
                                           <-  {}                            every few seconds: it is alive

Each line is a JSON object.  Any other line is something that Python or a library printed; it goes to the server's log,
and the last one is the reason if the process ends.  Standard error goes the same way.

Whatever happens to the process, at any moment, `receive` raises WorkerError with a text, and nothing else raises.
A process ends with its server: the end of its input shows that the server has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import riverbed
from riverbed.server.background.child import HELLO
from riverbed.store.disk.priority import step_aside, step_back

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks

log = logging.getLogger("riverbed")

# Twelve times the longest silence of a process that works; else it is stopped, or the machine has no time for it.
SILENCE_S: Final = 60.0
# Many times what a process needs to say its first word, if it has a processor at all.
STARVED_S: Final = 5.0
# From SIGTERM to SIGKILL; a process needs less to delete what it has half made.
TERM_S: Final = 3.0
# A killed process that does not end hangs in the kernel, where it cannot be helped.
KILL_S: Final = 5.0
NO_RESOURCES: Final = "the system gives it no file descriptor, no memory or no process; see `ulimit -a`"
_SHOWN_BYTES: Final = 500
# A process that is started in any directory finds our package here.
_HOME: Final = Path(riverbed.__file__).resolve().parents[1]


_OF_BROKEN_PAGES: Final = frozenset((-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT))


class WorkerError(Exception):
    """A process did not do its work.  The text says why, and calls it "its process"."""


class DamageMetError(WorkerError):
    """The tables are damaged: the process has met a broken row, or was led through broken pages."""


class Worker:
    """One process, which runs `module`.  A context manager: the process lives inside.

    `on_end` is called as soon as the process has ended, for an owner that waits for something else meanwhile.  Unless
    it `is_urgent`, it gives way to the server and its clients: it runs when a processor has nothing else to do, or with
    a small share of one where that is never so, as its start shows.
    """

    def __init__(
        self,
        tasks: Tasks,
        module: str,
        *arguments: object,
        on_end: Callable[[], None] | None = None,
        is_urgent: bool = False,
    ) -> None:
        self._tasks = tasks
        self._module = module
        self._arguments = [str(argument) for argument in arguments]
        self._on_end = on_end
        self._is_urgent = is_urgent
        self._process: asyncio.subprocess.Process | None = None
        self._starved: asyncio.subprocess.Process | None = None  # the one before, which had no processor to say a word
        self._reading: asyncio.Task[None] | None = None
        self._lines: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self._said = ""  # the last line that was no object
        self._failure: str | None = None  # how it ended
        self._is_killed = False

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Raises WorkerError when it cannot be started, or is another program than ours."""
        try:
            if self._is_urgent:
                await self._start()
            else:
                await self._start(step_back)
                if not await self._has_news(STARVED_S):
                    # the system lets no process without privileges back from there, so another one takes its place
                    log.info("no processor is free for %s: it takes a small share of one", self._module)
                    self._starved = self._process
                    self._signal(signal.SIGKILL)
                    self._close()
                    await self._start(step_aside)
            if (await self.receive()).get(HELLO) != self._module:
                raise WorkerError("its process is not a program of Riverbed")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def _start(self, give_way: Callable[[int], None] | None = None) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # no package of the working directory is taken for one of ours
                "-m",
                self._module,
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=_environment(),
            )
        except OSError as error:
            # uvloop does not say which one
            reason = NO_RESOURCES if error.errno == -1 else error
            raise WorkerError(f"its process cannot be started: {reason}") from error
        if give_way is not None:
            give_way(self._process.pid)  # now: its imports would take a processor from the server for 0.1 s
        if self._is_killed:
            self.kill()
        self._reading = self._tasks.start(f"listening to {self._module}", self._read(self._process))

    async def _end(self) -> None:
        """End the process: by a request, and if that does not help by force."""
        process = self._process
        if process is None:
            return
        try:
            self._signal(signal.SIGTERM)
            if not await _has_ended(process, TERM_S):
                self.kill()
            for killed in filter(None, (process, self._starved)):
                if not await _has_ended(killed, KILL_S):
                    log.error("process %d (%s) cannot be killed", killed.pid, self._module)
        finally:
            self.kill()
            self._close()

    def _close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """End it at once, also while it is being started; `receive` raises then."""
        self._is_killed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    # -- talking -------------------------------------------------------------------------------------------------------

    def send(self, **order: object) -> None:
        """Give an order.  A process that has ended does not get it, and the next `receive` raises."""
        assert self._process is not None and self._process.stdin is not None
        # RuntimeError is what uvloop raises for a pipe whose other end is gone
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        """The next answer.  Raises WorkerError when there is none: it failed, has ended, or is silent."""
        while not self._lines:
            if self._failure is not None:
                raise DamageMetError(self._failure) if self._was_killed_by_pages else WorkerError(self._failure)
            if not await self._has_news(SILENCE_S):
                raise WorkerError(f"its process has been silent for {SILENCE_S:g} s")
        answer = self._lines.popleft()
        if "failed" in answer:
            reason = str(answer["failed"])
            raise DamageMetError(reason) if answer.get("damage") else WorkerError(reason)
        return answer

    async def _has_news(self, seconds: float) -> bool:
        """Wait until the process says anything, if only that it is alive, or ends."""
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return self._news.is_set()  # it may have come in the turn of the loop that ended the wait
        return True

    @property
    def _was_killed_by_pages(self) -> bool:
        """Whether it ended as a process does that LMDB leads through broken pages."""
        process = self._process
        return process is not None and process.returncode in _OF_BROKEN_PAGES

    def require_alive(self) -> None:
        """Raise WorkerError when the process has ended without an answer."""
        if self._failure is not None and not self._lines:
            raise WorkerError(self._failure)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Take lines as they come, until the process has ended."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # the line is longer than any of ours
                continue
            if not line:
                break
            self._take(line)
        status = await process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        self._failure = f"its process {how}{self._said and ': '}{self._said}"
        self._news.set()
        if self._on_end is not None:
            self._on_end()

    def _take(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            if answer:
                self._lines.append(answer)
            self._news.set()
        elif said := line.decode(errors="replace").strip()[:_SHOWN_BYTES]:
            self._said = said
            log.warning("%s: %s", self._module, said)


async def _has_ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _environment() -> dict[str, str]:
    """Our environment, but with our package first: the process finds the same packages, and no other of its name."""
    known = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{_HOME}{os.pathsep}{known}" if known else str(_HOME)}
