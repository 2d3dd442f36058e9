"""The processes that a server starts: real ones, forked from this one, while the virtual clock stands still.

    the server gives an order --some virtual time--> the process gets it, and works while nothing else runs
                              --some virtual time--> the server gets the answer

They have to be real: LMDB may be open only once in a process, and a rewrite reads tables that the server writes.  They
are forked, which spares them Python's start, from a process that has never opened any tables.  What they do is the
product's code from `work_for_server` on.  They see the store at the virtual moment at which their order comes, and hold
their read transactions until the next one.

Reports of progress and signs of life depend on real time, and are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from random import Random
from typing import Any

from riverbed.server.background.child import HELLO, work_for_server

_DELAY_S = (0.001, 0.05)
# A line with one of these is an answer; the process ends behind the second kind.
_ANSWERS = frozenset((HELLO, "held", "at", "sound"))
_LAST = frozenset(("command_bytes", "closed", "made", "failed"))
# It works at once, without orders.
_SNAPSHOTS = "riverbed.server.background.snapshot_worker"
_MODULES = (
    _SNAPSHOTS,
    "riverbed.server.background.integrity.repair_worker",
    "riverbed.server.background.rewrite_worker",
    "riverbed.server.replication.worker",
)


class Forks:
    """The process that the children are forked from; make it before any tables are opened."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            self._socket.close()
            _fork_on_request(theirs)
        theirs.close()

    def fork(self, module: str, arguments: list[str], orders: int, answers: int) -> int:
        """Start a child with these ends of two pipes; -> its number."""
        socket.send_fds(self._socket, [json.dumps([module, *arguments]).encode()], [orders, answers])
        return int(self._socket.recv(64))

    def wait(self, pid: int) -> int:
        """Wait for the end of a child; -> its exit status, as `subprocess` has it."""
        self._socket.send(json.dumps(pid).encode())
        return int(self._socket.recv(64))


def _fork_on_request(server: socket.socket) -> None:
    """Fork, and wait for children, until the other process has ended."""
    for module in _MODULES:
        importlib.import_module(module)
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(server, 1 << 16, 2)
        if not data:
            os._exit(0)
        asked = json.loads(data)
        if isinstance(asked, int):
            _, status = os.waitpid(asked, 0)
            server.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if not pid:
            server.close()
            _become(asked[0], asked[1:], *fds)
        for fd in fds:
            os.close(fd)
        server.send(b"%d" % pid)


class Children:
    """The processes of one server."""

    def __init__(self, random: Random, forks: Forks) -> None:
        self.alive: list[Child] = []
        self.fails_to_start = 0  # so many more
        self.forks = forks
        self._random = random

    async def spawn(self, loop: Any, factory: Callable[[], Any], words: tuple[Any, ...]) -> tuple[Child, Any]:
        """As `loop.subprocess_exec`.  Raises OSError."""
        if self.fails_to_start:
            self.fails_to_start -= 1
            raise OSError("no process can be started")
        await asyncio.sleep(self.delay())
        *_, module = words[:4]
        protocol = factory()
        child = Child(self, loop, protocol, module, [str(word) for word in words[4:]])
        self.alive.append(child)
        protocol.connection_made(child)
        child.begin()
        return child, protocol

    def delay(self) -> float:
        return self._random.uniform(*_DELAY_S)

    def kill_all(self) -> None:
        """With the machine."""
        for child in list(self.alive):
            child.end(signal.SIGKILL)


class Child(asyncio.SubprocessTransport):
    """One process, as asyncio sees it."""

    def __init__(self, children: Children, loop: Any, protocol: Any, module: str, arguments: list[str]) -> None:
        super().__init__()
        self._children = children
        self._loop = loop
        self._protocol = protocol
        self._works_at_once = module == _SNAPSHOTS
        self._status: int | None = None
        self._waiters: list[asyncio.Future[int]] = []
        self._input = _Input(self)
        self._output = _Output()
        self._rest = b""
        self._last_s = 0.0
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = children.forks.fork(module, arguments, orders, answers)
        os.close(orders)
        os.close(answers)

    def begin(self) -> None:
        """Wait for its first line, or for all of its work."""
        self._listen()
        if self._works_at_once and self._is_alive:
            self._listen()

    # -- its answers ---------------------------------------------------------------------------------------------------

    @property
    def _is_alive(self) -> bool:
        return self in self._children.alive

    def obey(self, order: bytes) -> None:
        """Give it an order after a while, and have its answer come after another while."""
        self._later(self._obey, order)

    def _obey(self, order: bytes) -> None:
        if self._is_alive:
            try:
                os.write(self._orders, order)
            except BrokenPipeError:
                self._reap()
                return
            self._listen()

    def _listen(self) -> None:
        """Read up to an answer, or to the end; nothing else happens meanwhile."""
        while True:
            line, end, rest = self._rest.partition(b"\n")
            if not end:
                data = os.read(self._answers, 1 << 16)
                if not data:
                    self._reap()
                    return
                self._rest += data
                continue
            self._rest = rest
            words = _words(line)
            if words is None:
                self._later(self._protocol.pipe_data_received, 1, line + end)
            elif words & (_ANSWERS | _LAST):
                self._later(self._protocol.pipe_data_received, 1, line + end)
                if words & _LAST:
                    self._reap()
                return

    def _later(self, call: Callable[..., None], *arguments: Any) -> None:
        """In the order in which things happened."""
        at = max(self._loop.time() + self._children.delay(), self._last_s + 1e-8)
        self._last_s = at
        self._loop.call_at(at, call, *arguments)

    # -- its end -------------------------------------------------------------------------------------------------------

    def end(self, number: int) -> None:
        """Send a signal that ends it, and wait for that."""
        if self._is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
            self._reap()

    def _reap(self) -> None:
        self._children.alive.remove(self)
        os.close(self._orders)
        os.close(self._answers)
        self._later(self._over, self._children.forks.wait(self._pid))

    def _over(self, status: int) -> None:
        self._status = status
        self._protocol.pipe_connection_lost(1, None)
        self._protocol.process_exited()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(status)

    async def _wait(self) -> int:
        if self._status is None:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        assert self._status is not None
        return self._status

    # -- asyncio.SubprocessTransport -----------------------------------------------------------------------------------

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._status

    def get_pipe_transport(self, fd: int) -> Any:
        return {0: self._input, 1: self._output}.get(fd)

    def send_signal(self, signal: int) -> None:
        self.end(signal)

    def terminate(self) -> None:
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def is_closing(self) -> bool:
        return not self._is_alive

    def close(self) -> None:
        self.end(signal.SIGKILL)


class _Input(asyncio.WriteTransport):
    def __init__(self, child: Child) -> None:
        super().__init__()
        self._child = child

    def write(self, data: Any) -> None:
        self._child.obey(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self._child.end(signal.SIGTERM)


class _Output(asyncio.ReadTransport):
    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


def _words(line: bytes) -> frozenset[str] | None:
    """The names in a line of JSON; None when it is something that a library printed."""
    try:
        return frozenset(json.loads(line))
    except (ValueError, TypeError):
        return None


def _become(module: str, arguments: list[str], orders: int, answers: int) -> None:
    """Be the process, until it ends."""
    try:
        os.dup2(orders, 0)
        os.dup2(answers, 1)
        os.dup2(answers, 2)
        os.close(orders)
        os.close(answers)
        sys.argv = [module, *arguments]
        work_for_server(module, importlib.import_module(module).work)
    finally:
        os._exit(1)
