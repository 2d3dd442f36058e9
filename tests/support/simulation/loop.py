"""One asyncio loop for each machine, and the scheduler that runs them in virtual time.

    scheduler --chooses a loop that has something to do--> one turn of that loop
        |
        '-- none has: the clock jumps to the earliest timer

The loops share a clock that moves when nothing is left to do, and by a microsecond whenever it is read, so that loops
of the product which work until a time has passed come to an end.  A loop that is paused keeps its timers; a loop that
is dead runs nothing any more.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

READ_S = 1e-6  # what reading the clock takes
# Seconds that a thread takes for its work.
_THREAD_S = (0.0002, 0.02)
# Turns without a step of the clock: more of them are a loop that never ends.
_MAX_TURNS = 200_000
EPOCH_S = 1_700_000_000.0
_NEVER = float("inf")


class Stuck(AssertionError):
    """Nothing is left to wait for, or work goes on for ever without a step of the clock."""


class Scheduler:
    """Runs the turns of all loops, one at a time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.loops: list[Loop] = []
        self.later: list[Callable[[], None]] = []  # called after the turn under way
        self._count = 0

    def count(self) -> int:
        """A new number."""
        self._count += 1
        return self._count

    def pass_time(self, seconds: float) -> None:
        """Have time pass within a turn, on all machines."""
        self.now += seconds

    def loop(self, name: str) -> Loop:
        made = Loop(self, name)
        self.loops.append(made)
        return made

    def run(self, until: asyncio.Future[Any]) -> None:
        """Run until the future is done.  Raises Stuck."""
        turns = 0
        last = -1.0
        while not until.done():
            loop = self._next()
            turns = turns + 1 if self.now - last < 0.0001 else 0
            if not turns:
                last = self.now
            if turns > _MAX_TURNS:
                raise Stuck(f"{loop.name} works on without an end at {self.now:.6f}")
            loop.turn()
            while self.later:
                self.later.pop(0)()

    def _next(self) -> Loop:
        due: list[Loop] = []
        earliest = _NEVER
        for loop in self.loops:
            at = loop.next_s()
            if at <= self.now:
                due.append(loop)
            elif at < earliest:
                earliest = at
        if due:
            return due[0] if len(due) == 1 else self.random.choice(due)
        if earliest == _NEVER:
            raise Stuck(f"nothing is left to do at {self.now:.6f}")
        self.now = earliest
        return self._next()


class Loop(asyncio.BaseEventLoop):
    """The event loop of one machine.  Connections go through `network`, children through `children`."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.is_dead = False
        super().__init__()
        self.name = name
        self.scheduler = scheduler
        self.paused_until_s = 0.0
        self.signals: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self.network: Any = None
        self.children: Any = None
        # What is noted beside bytes that leave this machine.
        self.stamp: Callable[[], object] = lambda: None
        self.after_turn: Callable[[], None] = lambda: None

    # -- the scheduler's side ------------------------------------------------------------------------------------------

    def next_s(self) -> float:
        """When there is something to do; infinity when there is nothing."""
        if self.is_dead:
            return _NEVER
        if self._ready:
            return self.paused_until_s
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not scheduled:
            return _NEVER
        return max(scheduled[0]._when, self.paused_until_s)

    def turn(self) -> None:
        """Run what is due, as asyncio does: callbacks that are added meanwhile come in the next turn."""
        now = self.scheduler.now
        while self._scheduled and self._scheduled[0]._when <= now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)
        events._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                if self.is_dead:
                    break
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._run()
        except PowerCut:
            assert self.is_dead
        finally:
            events._set_running_loop(None)
        self.after_turn()

    def die(self) -> None:
        """Run nothing any more."""
        self.is_dead = True
        self._ready.clear()
        self._scheduled.clear()
        self.scheduler.loops.remove(self)

    def __del__(self, _warn: object = None) -> None:
        pass  # it has no sockets that would have to be closed

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Make a task, also from outside of the loop."""
        return self.create_task(work)

    # -- asyncio's side ------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.scheduler.now

    def is_running(self) -> bool:
        return not self.is_dead

    def _write_to_self(self) -> None:
        pass  # there are no other threads

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # `next_s` drops it

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run what blocks, after a while, in one piece."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.scheduler.random.uniform(*_THREAD_S), run)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self.signals[sig] = callback, args

    def send_signal(self, sig: int) -> bool:
        """-> whether the server listens to signals already."""
        found = self.signals.get(sig)
        if found is not None:
            self.call_soon(found[0], *found[1])
        return found is not None

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(self, factory, host, port)

    async def create_server(self, factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        return self.network.listen(self, factory, sock.address)

    async def subprocess_exec(self, factory: Any, *words: Any, **_: Any) -> Any:
        if self.children is None:
            raise OSError("there are no processes here")
        return await self.children.spawn(self, factory, words)


class PowerCut(SystemExit):
    """The machine is gone, in the middle of what it did.  A SystemExit, because a loop passes that on."""


class Clock:
    """The clock of one machine: all share the monotonic one, the time of day may be moved."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        self._scheduler.now += READ_S
        return self._scheduler.now

    def time(self) -> float:
        self._scheduler.now += READ_S
        return EPOCH_S + self._scheduler.now + self.ahead_s
