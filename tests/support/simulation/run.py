"""One seed: machines and clients live through a plan of faults, everything comes to rest, and is judged."""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import Check
from riverbed.store.check.deep import DeepCheck
from tests.support.faults.ledger import Contents, read_id
from tests.support.simulation import clients
from tests.support.simulation.checker import Final, GroupContents, differences, judge
from tests.support.simulation.children import Forks
from tests.support.simulation.client import PATIENCE_S, Client, ErrorReply, Lost
from tests.support.simulation.clients import Consumer, Producer, Reader, Watcher, Worker
from tests.support.simulation.disk import Disk
from tests.support.simulation.faults import Faults, restart_broken
from tests.support.simulation.history import History
from tests.support.simulation.lines import Lines, holds
from tests.support.simulation.loop import Scheduler, Stuck
from tests.support.simulation.machine import Machine, Stamp, quiet
from tests.support.simulation.network import Network
from tests.support.simulation.plan import SENTINEL, Plan, make_plan
from tests.support.simulation.records import Records
from tests.support.simulation.sentinel import Sentinel
from tests.support.simulation.tables import Environments
from tests.support.turns import turns_of_any_length

_SHM = Path("/dev/shm")
_REST_LOOKS = 1200
_COMPARISONS = 5
_KINDS: list[type[Worker]] = [Producer, Producer, Watcher, Consumer, Consumer, Watcher]


@dataclass
class Outcome:
    """What one run has shown."""

    seed: int
    history: History
    plan: Plan
    seconds: float = 0.0
    error: str = ""
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def violations(self) -> list[str]:
        return self.history.violations


@functools.cache
def forks() -> Forks:
    """One for all simulations of this process; call this first before any tables are opened."""
    return Forks()


def run_seed(seed: int, plan: Plan | None = None) -> Outcome:
    """Run one seed, with its own plan or another one."""
    quiet()
    forks()
    plan = plan or make_plan(seed)
    folder = Path(tempfile.mkdtemp(prefix="riverbed-sim-", dir=_SHM if _SHM.is_dir() else None))
    try:
        world = World(seed, plan, folder)
        with world.environments.in_place(), turns_of_any_length():
            world.run()
        return Outcome(seed, world.history, plan, world.scheduler.now)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _without_layout(reply: Any) -> str:
    """XINFO STREAM without the numbers that depend on how the rows came to be."""
    if not isinstance(reply, list):
        return str(reply)
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return str([(name, value) for name, value in pairs if not name.startswith(b"radix-tree")])


class World:
    """All machines and clients of one seed."""

    def __init__(self, seed: int, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.scheduler = Scheduler(Random(f"{seed}/scheduler"))
        self.network = Network(Random(f"{seed}/network"))
        self.history = History(self.scheduler)
        self.records = Records()
        self.records.on_confirmed = self._confirmed
        self.environments = Environments(self._disk_of)
        self.loop = self.scheduler.loop("world")
        self.loop.network = self.network
        self.is_over = False
        self.faults = Faults(self)
        self.lines = Lines()
        self.machines = [self._machine(name) for name in plan.machines]
        loop = self.scheduler.loop("sentinel")
        loop.network = self.network
        self.sentinel = Sentinel(
            loop, plan.machines, Random(f"{seed}/sentinel"), self.history, lambda name: self.machine(name).starts
        )
        self.sentinel_loop = loop
        self.workers: list[Worker] = []
        for number, kind in enumerate([*_KINDS[: plan.clients], Reader]):
            name = f"{kind.__name__.lower()}{number}"
            loop = self.scheduler.loop(name)
            loop.network = self.network
            self.workers.append(
                kind(name, loop, Random(f"{seed}/{name}"), lambda: self.sentinel.primary, self.records, self.history)
            )
            self.workers[-1].replicas = len(plan.machines) - 1
            if isinstance(self.workers[-1], Consumer) and number % 3 == 0:
                self.workers[-1].group = clients.GROUPS[1]

    def _machine(self, name: str) -> Machine:
        machine = Machine(
            name, self.folder, self.scheduler, self.network, self.environments, self.history, self.plan, forks()
        )
        machine.on_failed_start = self._failed_start
        machine.look = self.lines.look
        machine.on_stop = self._stopped
        return machine

    @property
    def names(self) -> list[str]:
        """Of everything that has connections."""
        return [*self.plan.machines, SENTINEL, *(worker.name for worker in self.workers)]

    def machine(self, name: str) -> Machine:
        return next(machine for machine in self.machines if machine.name == name)

    def _disk_of(self, path: Path) -> Disk | None:
        for machine in self.machines:
            if path.is_relative_to(machine.disk.directory):
                return machine.disk
        return None

    def _failed_start(self, machine: Machine, error: Exception) -> None:
        self.history.violation(f"{machine.name} cannot start: {type(error).__name__}: {self._without_paths(error)}")
        self.is_over = True

    def _stopped(self, machine: Machine) -> None:
        """A stop has not waited any longer: the replicas have everything."""
        server = machine.server
        assert server is not None
        engine = server.engine
        if server.replication.is_replica or self.plan.syncs_late:
            return  # a replica that has lost power may have had it
        for sender in server.replication.primary.senders.values():
            replica = self.machine(sender.place[0])
            if replica.server is None or not replica.server.engine.is_loaded:
                continue
            its = replica.server.engine.log
            if its.replids.holds(engine.log.replids.replication_id, its.end.offset) and its.end.offset < engine.offset:
                self.history.violation(
                    f"{machine.name} stops at {engine.offset}, and its replica {replica.name} is at {its.end.offset}"
                )

    def _confirmed(self, stamp: Stamp) -> None:
        """WAIT has said that all replicas have the log up to `stamp`: those that are there have it."""
        for machine in self.machines:
            if machine.server is None or not machine.server.engine.is_loaded or self.plan.syncs_late:
                continue
            log = machine.server.engine.log
            if log.replids.replication_id == stamp.replication_id and log.end.offset < stamp.offset:
                self.history.violation(
                    f"WAIT: {machine.name} is at {log.end.offset}, and is said to have {stamp.offset}"
                )

    def _without_paths(self, error: Exception) -> str:
        return str(error).replace(str(self.folder), "")

    # -- life ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        task = self.loop.start(self._live())
        try:
            self.scheduler.run(task)
            task.result()
        except Stuck as error:
            self.history.violation(f"stuck: {error}")
        for machine in self.machines:
            if machine.is_running:
                machine.kill()
        while self.scheduler.later:
            self.scheduler.later.pop(0)()

    async def _live(self) -> None:
        for machine in self.machines:
            machine.start()
        watch = self.sentinel_loop.start(self.sentinel.run())
        tasks = [worker._loop.start(worker.run()) for worker in self.workers]
        keepers = [self.loop.start(self._keep_running()), self.loop.start(restart_broken(self))]
        for event in self.plan.events:
            await self._until(event.at_s)
            if self.is_over:
                break
            self.faults.cause(event)
        await self._until(self.plan.seconds)
        self.history.note("world", "no more faults")
        self._heal()
        await self._stop_at_work()
        for worker in self.workers:
            worker.is_over = True
        await self._joined(tasks)
        if not self.is_over:
            await self._come_to_rest()
        for task in (watch, *keepers):
            task.cancel()
        if not self.is_over:
            await self._judge()

    async def _stop_at_work(self) -> None:
        """Two seconds without faults.  In every second run the primary is stopped in the midst of the work.

        One of the replicas answers late, so that the stop has to wait for it.
        """
        if not self.plan.seed % 2:
            await asyncio.sleep(2.0)
            return
        await asyncio.sleep(1.0)
        primary = self.machine(self.sentinel.primary)
        for machine in self.machines:
            if machine is not primary and machine.is_serving:
                machine.pause(0.5)
                await asyncio.sleep(0.2)
                break
        if primary.is_serving:
            self.history.note("world", f"stops {primary.name} at work")
            primary.stop()
        await asyncio.sleep(1.0)

    async def _come_to_rest(self) -> None:
        """Wait until all servers follow the primary and have what it has."""
        for _ in range(_REST_LOOKS):
            if self.sentinel.is_settled:
                return
            await asyncio.sleep(0.1)
        self.history.violation("the servers do not come to rest")
        self.is_over = True

    async def _until(self, at_s: float) -> None:
        left_s = at_s - self.scheduler.now
        if left_s > 0 and not self.is_over:
            await asyncio.sleep(left_s)

    async def _joined(self, tasks: list[asyncio.Task[None]]) -> None:
        for _ in range(200):
            if all(task.done() for task in tasks):
                break
            await asyncio.sleep(0.1)
        for task, worker in zip(tasks, self.workers, strict=True):
            if not task.done():
                self.history.violation(f"{worker.name} hangs")
            elif task.exception() is not None:
                raise RuntimeError(f"{worker.name} failed") from task.exception()

    async def _keep_running(self) -> None:
        """Start what has ended, after a while."""
        random = Random(f"{self.plan.seed}/keeper")
        while True:
            await asyncio.sleep(random.uniform(0.02, 0.6))
            for machine in self.machines:
                if not machine.is_running and not self.is_over:
                    machine.start()

    def _heal(self) -> None:
        self.network.join_all()
        for machine in self.machines:
            machine.disk.forgive()
            if machine.loop is not None:
                machine.loop.paused_until_s = 0.0

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _judge(self) -> None:
        """Read everything, stop, check what is on the disks, and judge."""
        try:
            client = await self._judges_client(self.sentinel.primary)
            final = await self._read(client)
            client.close()
            await self._compare()
        except Lost:
            self.history.violation(f"{self.sentinel.primary} does not answer in the end")
            return
        if self.plan.syncs_late:
            self.records.confirmed.clear()  # replicas have it, and their power may be cut as well
        self._forget_lost()
        for complaint in judge(self.records, final):
            self.history.violation(complaint)
        await self._stop_all()
        for machine in self.machines:
            self._check(machine)

    def _forget_lost(self) -> None:
        """What a primary said that was cut off, or that a promoted replica had not, need not hold."""
        primary = self.machine(self.sentinel.primary)
        assert primary.server is not None
        shared = self.lines.shared(primary.server.engine.log.replids.replication_id)

        def may_be_lost(stamp: Stamp | None, told_at: float) -> bool:
            return (
                stamp is not None
                and not holds(shared, stamp)
                and (self.sentinel.may_have_lost(stamp.machine, told_at) or self._power_was_cut(told_at))
            )

        self.records.forget_lost(may_be_lost)

    def _power_was_cut(self, told_at: float) -> bool:
        """Whether a machine lost power after that was said, and its log need not have been on the disk.

        It need not be the one that has said it: a primary may have handed over to another.
        """
        cuts = [at for machine in self.machines for at in machine.power_cuts]
        return self.plan.syncs_late and any(
            at >= told_at - PATIENCE_S for at in cuts
        )  # answers are under way for so long

    async def _compare(self) -> None:
        """All servers have the same data and the same groups, when what clients have given up on has come as well."""
        for _ in range(_COMPARISONS):
            differences = [line async for line in self._differences()]
            if not differences:
                return
            await asyncio.sleep(0.5)
        for line in differences:
            self.history.violation(line)

    async def _differences(self) -> AsyncIterator[str]:
        shown = {}
        for machine in self.machines:
            client = await self._judges_client(machine.name)
            streams = [clients.WATCHED, clients.QUEUE, clients.DEAD_LETTERS, *clients.STREAMS]
            found = [await client.ask("DEBUG", "DIGEST")]
            found += [await client.ask("XINFO", "STREAM", stream, "FULL", "COUNT", 0) for stream in streams]
            shown[machine.name] = [_without_layout(reply) for reply in found]
            client.close()
        for line in differences(shown):
            yield line

    async def _judges_client(self, name: str) -> Client:
        for _ in range(100):
            try:
                client = await Client.connect(self.loop, name)
                if not isinstance(await client.ask("PING"), ErrorReply):
                    return client
            except Lost:
                pass
            await asyncio.sleep(0.1)
        raise Lost

    async def _read(self, client: Client) -> Final:
        streams: dict[bytes, Contents] = {}
        final = Final(streams)
        for stream in (*clients.STREAMS, *clients.PAIRS, clients.CAPPED, clients.WATCHED, clients.QUEUE):
            rows = await client.ask("XRANGE", stream, "-", "+")
            info = await client.ask("XINFO", "STREAM", stream)
            if isinstance(info, ErrorReply):
                continue
            found = dict(zip(info[::2], info[1::2], strict=True))
            entries = [(read_id(entry_id), fields[1]) for entry_id, fields in rows]
            streams[stream] = Contents(entries, found[b"entries-added"])
            if found[b"length"] != len(entries):
                self.history.violation(f"{stream!r} has {len(entries)} entries, and length {found[b'length']}")
            if stream == clients.WATCHED:
                final.links = [(read_id(entry_id), fields[3]) for entry_id, fields in rows]
            if stream == clients.QUEUE:
                final.queue = [entry_id for entry_id, _ in entries]
                final.groups = await self._read_groups(client)
        return final

    async def _read_groups(self, client: Client) -> dict[bytes, GroupContents]:
        groups = {}
        for row in await client.ask("XINFO", "GROUPS", clients.QUEUE):
            found: dict[bytes, Any] = dict(zip(row[::2], row[1::2], strict=True))
            rows = await client.ask("XPENDING", clients.QUEUE, found[b"name"], "-", "+", 1_000_000)
            pending = {read_id(entry_id): count for entry_id, _, _, count in rows}
            if len(pending) != found[b"pending"]:
                self.history.violation(f"{found[b'name']!r} has {len(pending)} pending, and says {found[b'pending']}")
            groups[found[b"name"]] = GroupContents(pending, read_id(found[b"last-delivered-id"]))
        for _, fields in await client.ask("XRANGE", clients.DEAD_LETTERS, "-", "+"):
            told = dict(zip(fields[::2], fields[1::2], strict=True))
            group = groups[told[b"riverbed-group"]]
            group.moved.append((read_id(told[b"riverbed-origin-id"]), int(told[b"riverbed-deliveries"])))
            group.max_deliveries = clients.MAX_DELIVERIES
        return groups

    async def _stop_all(self) -> None:
        for machine in self.machines:
            if machine.is_running:
                machine.stop()
        for _ in range(300):
            if not any(machine.is_running for machine in self.machines):
                return
            await asyncio.sleep(0.1)
        for machine in self.machines:
            if machine.is_running:
                self.history.violation(f"{machine.name} does not stop")
                machine.kill()

    def _check(self, machine: Machine) -> None:
        directory = machine.disk.directory
        deep = DeepCheck(Replayer().execute, self.folder)
        for violation in Check(directory, deep_check=deep, is_held=True).violations():
            self.history.violation(f"{machine.name}: {str(violation).replace(str(self.folder), '')}")
