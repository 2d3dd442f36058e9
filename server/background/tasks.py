"""Every background task of the server is started here, so that none ends unnoticed.

    start       a coroutine             an exception that ends it is logged, counted in INFO, and reported to its owner
    in_thread   a function that blocks  the same
    soon        a callback              the same
    noticed     every other callback    the event loop reports what timers and sockets raise

The owner names the exceptions that its work may end with, a full disk for instance, and reports those itself.  Any
other one is a defect, and its traceback goes to the log.  What happens next is the owner's decision, in `failed`: it
tries again, or INFO shows why there is nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from riverbed.server.stats.stats import BackgroundStatus

log = logging.getLogger("riverbed")

T = TypeVar("T")
Failed = Callable[[Exception], None]
Expected = tuple[type[Exception], ...]

# How long the last tasks of a server that stops may take to end.
CLOSE_S: Final = 10.0
# For work that blocks.
THREADS: Final = 6


def start_all(pool: ThreadPoolExecutor, count: int) -> None:
    """Start so many threads of a pool now, or as many as the system has for us.

    Where memory is short, a thread may end before it runs, and `Thread.start` waits until it does, for ever.
    """
    all_run = threading.Event()
    try:
        with contextlib.suppress(RuntimeError, MemoryError):
            for _ in range(count):
                pool.submit(all_run.wait)
    finally:
        all_run.set()


class Tasks:
    """The background tasks of one server; `status` reports them in INFO."""

    def __init__(self, loop: asyncio.AbstractEventLoop, status: BackgroundStatus) -> None:
        self._loop = loop
        self._status = status
        self._running: set[asyncio.Task[Any]] = set()
        self._pool: ThreadPoolExecutor | None = None
        self.stopping = threading.Event()  # the server stops: work in threads need not spare its clients any more

    def start_threads(self) -> None:
        """Start the threads that `in_thread` uses; without this call it uses those of the loop, which come one by one.

        They are not made the loop's: a loop that ends starts another thread, which waits for its own.
        """
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="work")
        start_all(self._pool, THREADS)

    def start(
        self, name: str, work: Coroutine[Any, Any, T], *, failed: Failed | None = None, expected: Expected = ()
    ) -> asyncio.Task[T]:
        """Run `work` beside everything else.

        An exception that ends it is passed to `failed` in the same turn of the loop, and then to those that await the
        task, if there are any.  A task that is cancelled before its first step runs nothing of `work`, no `finally`
        either: what must happen in any case is a callback of the task.
        """
        task = self._loop.create_task(self._run(name, work, failed, expected), name=name)
        self._running.add(task)
        self._status.running = len(self._running)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())  # nothing of it has run, if it was cancelled that early
        return task

    async def _run(self, name: str, work: Coroutine[Any, Any, T], failed: Failed | None, expected: Expected) -> T:
        try:
            return await work
        except Exception as error:
            self._fail(name, error, failed, expected)
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._status.running = len(self._running)
        if not task.cancelled():
            task.exception()  # it is logged already; asyncio need not complain that nothing awaits the task

    def in_thread(
        self,
        name: str,
        function: Callable[..., T],
        *arguments: object,
        executor: Executor | None = None,
        failed: Failed | None = None,
        expected: Expected = (),
    ) -> asyncio.Task[T]:
        """Call a function that blocks, in a thread of `executor`, or of ours; as `start`."""

        async def call() -> T:
            return await self._loop.run_in_executor(executor or self._pool, function, *arguments)

        return self.start(name, call(), failed=failed, expected=expected)

    def soon(
        self, name: str, callback: Callable[..., None], *arguments: object, failed: Failed, delay_s: float = 0.0
    ) -> None:
        """Call `callback` in the next turn of the loop, or after a delay; what it raises goes to `failed`."""

        def call() -> None:
            try:
                callback(*arguments)
            except Exception as error:
                self._fail(name, error, failed, ())

        if delay_s:
            self._loop.call_later(delay_s, call)
        else:
            self._loop.call_soon(call)

    # -- failures ------------------------------------------------------------------------------------------------------

    def _fail(self, name: str, error: Exception, failed: Failed | None, expected: Expected) -> None:
        if not isinstance(error, expected):
            self._note(name, error)
        if failed is None:
            return
        try:
            failed(error)
        except Exception as another:
            self._note(f"the end of {name}", another)

    def _note(self, name: str, error: BaseException) -> None:
        self._status.note_failure(f"{name}: {type(error).__name__}: {error}")
        log.error("%s failed", name, exc_info=error)

    def noticed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's exception handler: what a timer, a callback or a protocol raised."""
        error, message = context.get("exception"), str(context.get("message", "a callback"))
        if error is None:
            log.warning("event loop: %s", message)
        else:
            self._note(f"event loop: {message}", error)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel what still runs, and wait until it has ended, for `CLOSE_S` at most."""
        for task in self._running:
            task.cancel()
        if self._running:
            _, left = await asyncio.wait(self._running, timeout=CLOSE_S)
            for task in left:
                log.warning("%s has not ended %g s after it was cancelled", task.get_name(), CLOSE_S)
        if self._pool is not None:
            self._pool.shutdown(wait=False)
