"""One machine with a disk and a server: it starts, stops, is killed, and loses power."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from riverbed.server.assembly import Server, open_server
from riverbed.server.config.config import Config
from riverbed.server.network.listener import serve_at
from riverbed.store.errors import Refusal
from riverbed.store.replication_id import ReplicationIds
from tests.support.simulation.children import Children, Forks
from tests.support.simulation.disk import Disk
from tests.support.simulation.history import History
from tests.support.simulation.loop import Clock, Loop, Scheduler
from tests.support.simulation.network import Address, Network
from tests.support.simulation.plan import Plan
from tests.support.simulation.tables import Environments

PORT = 6379


class _Addresses:
    """In the place of the bound sockets of `server/network/addresses.py`."""

    def __init__(self, host: str) -> None:
        self.clients = [Address(host, PORT)]
        self.tls: list[Any] = []
        self.metrics: list[Any] = []

    def close(self) -> None:
        pass


class Stamp:
    """Where the log of a server ended when it sent something."""

    __slots__ = ("machine", "offset", "replication_id")

    def __init__(self, machine: str, replication_id: str, offset: int) -> None:
        self.machine = machine
        self.replication_id = replication_id
        self.offset = offset

    @property
    def line(self) -> tuple[str, str]:
        """What one machine says at later offsets of one replication id was said later."""
        return self.machine, self.replication_id


class Machine:
    """A server has the plan's settings at every start, and what CONFIG REWRITE has written."""

    def __init__(
        self,
        name: str,
        folder: Path,
        scheduler: Scheduler,
        network: Network,
        environments: Environments,
        history: History,
        plan: Plan,
        forks: Forks,
    ) -> None:
        self.name = name
        self.settings = plan.settings
        self.clock = Clock(scheduler)
        self.disk = Disk(scheduler.random, folder / f"{name}-0", partial(scheduler.pass_time, plan.sync_s))
        self.server: Server | None = None
        self.loop: Loop | None = None
        self.is_silent = False  # without power
        self.starts = 0
        self.power_cuts: list[float] = []
        self.waits_until_s: float | None = None  # a stop is under way, which waits for replicas until then
        self.on_stop: Callable[[Machine], None] = lambda machine: None  # it has ended its wait before that
        self.on_failed_start: Callable[[Machine, Exception], None] = lambda machine, error: None
        self.children = Children(Random(f"{plan.seed}/children of {name}"), forks)
        self.look: Callable[[ReplicationIds], None] = lambda ids: None  # called with each change of them
        self._ids: ReplicationIds | None = None
        self._file = folder / f"{name}.conf"
        self._folder = folder
        self._file.touch()
        self._scheduler = scheduler
        self._network = network
        self._environments = environments
        self._history = history
        self._task: asyncio.Task[int] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    @property
    def is_broken(self) -> bool:
        """Whether its server takes no writes until it is started again."""
        refusal = None if self.server is None else self.server.engine.refusal
        return refusal in (Refusal.LOG_FAILED, Refusal.TABLES_FAILED)

    @property
    def is_serving(self) -> bool:
        return self.server is not None and self.server.engine.is_loaded and not self.server.stopping.is_ending

    @property
    def is_stopping(self) -> bool:
        return self.server is not None and self.server.stopping.is_ending

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.is_running
        self.starts += 1
        self._history.note(self.name, "starts")
        if self.is_silent:
            self.is_silent = False
            self._network.machine_is_back(self.name)
        self.loop = loop = self._scheduler.loop(self.name)
        loop.network = self._network
        loop.children = self.children
        loop.stamp = self._stamp
        loop.after_turn = self._look
        self._task = loop.start(self._serve(self.disk))
        self._task.add_done_callback(self._ended)

    async def _serve(self, disk: Disk) -> int:
        config = Config.load([str(self._file), *self.settings, "--dir", str(disk.directory)])
        self.server = open_server(config, disk.directory, self.clock, disk.files)
        addresses: Any = _Addresses(self.name)
        return await serve_at(addresses, self.server)

    def _stamp(self) -> Stamp | None:
        if self.server is None or not self.server.engine.is_loaded:
            return None
        log = self.server.engine.log
        return Stamp(self.name, log.replids.replication_id, log.end.offset)

    def _look(self) -> None:
        if self.waits_until_s is not None and self.is_stopping:
            is_early, self.waits_until_s = self._scheduler.now < self.waits_until_s, None
            if is_early:
                self.on_stop(self)
        if self.server is not None and self.server.engine.is_loaded:
            ids = self.server.engine.log.replids
            if ids is not self._ids:
                self._ids = ids
                self.look(ids)

    def _ended(self, task: asyncio.Task[int]) -> None:
        """The server has stopped, or could not start."""
        if task is not self._task or task.cancelled():
            return
        error = task.exception()
        self._history.note(self.name, f"ended: {task.result()}" if error is None else f"failed: {type(error).__name__}")
        self._end_process(power_cut=False)
        if isinstance(error, Exception):
            self.on_failed_start(self, error)

    # -- faults --------------------------------------------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        assert self.loop is not None
        if number == signal.SIGTERM and self.is_serving and self.waits_until_s is None:
            timeout_s = self.server.context.config.shutdown_timeout if self.server is not None else 0
            self.waits_until_s = self._scheduler.now + timeout_s
        elif number != signal.SIGTERM:
            self.waits_until_s = None  # it ends the wait at once
        if not self.loop.send_signal(number):  # the server loads, and `main` ends the process at once
            self.kill()

    def stop(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what was written stays."""
        self._end_process(power_cut=False)

    def cut_power(self) -> None:
        """What is not durable may be lost."""
        self.power_cuts.append(self._scheduler.now)
        if self.is_running:
            self._end_process(power_cut=True)
        elif not self.is_silent:
            self.disk = self._next_disk(power_cut=True)
        self.is_silent = True

    def cut_power_after(self, operations: int) -> None:
        """Cut the power in the middle of what the server does, when it has done so much to its disk."""
        self.disk.cut_power_after(operations, self.cut_power)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT so much later."""
        if self.loop is not None:
            self.loop.paused_until_s = self._scheduler.now + seconds

    def _end_process(self, *, power_cut: bool) -> None:
        loop, disk, server = self.loop, self.disk, self.server
        assert loop is not None
        self._look()
        if server is not None and server.context.stats.background.failures:
            self._history.violation(f"{self.name}: a defect: {server.context.stats.background.last_failure}")
        # Before the files are copied: closing LMDB's lock file takes the locks of this process away, and a child that
        # opened the tables then would take itself for the only one, and begin their mutexes again.
        self.children.kill_all()
        self.disk = self._next_disk(power_cut=power_cut)
        self.waits_until_s = None
        disk.is_gone = True
        loop.die()
        self._network.process_ended(self.name, is_silent=power_cut)
        self._task = self.loop = self.server = None
        # not now: the server may be in the middle of it
        self._scheduler.later.append(lambda: self._bury(disk, server))

    def _next_disk(self, *, power_cut: bool) -> Disk:
        return self.disk.after(
            self._folder / f"{self.name}-{self.starts}-{self._scheduler.count()}", power_cut=power_cut
        )

    def _bury(self, disk: Disk, server: Server | None) -> None:
        self._environments.close_all(disk)
        disk.close_all()
        if server is not None:
            server.checkpoints.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(disk.directory)


def quiet() -> None:
    """The product's log says what it should; here only violations count."""
    logging.getLogger("riverbed").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # of the tasks of killed servers, when they are deleted
    sys.unraisablehook = lambda unraisable: None
