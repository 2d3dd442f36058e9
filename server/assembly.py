"""The one place where the parts of a server are made and tied to each other, started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.background.checkpoints.checkpoints import Checkpoints
from riverbed.server.background.expiry import Expiry
from riverbed.server.background.integrity.repairs import Repairs
from riverbed.server.background.integrity.scrub import Scrub
from riverbed.server.background.log_rewrite import Rewriting
from riverbed.server.background.maintenance import Maintenance
from riverbed.server.background.snapshots import Snapshots
from riverbed.server.background.tasks import Tasks
from riverbed.server.commands.access.users import configured
from riverbed.server.commands.replay import Replayer
from riverbed.server.commands.request import Context
from riverbed.server.config_changes import apply_settings
from riverbed.server.execution.executor import Executor
from riverbed.server.limits.eviction import Evictor
from riverbed.server.replication.replacement import Replacement
from riverbed.server.replication.role import Replication
from riverbed.server.stopping import Stopping
from riverbed.server.tls.tls import Tls
from riverbed.store.disk import removal
from riverbed.store.engine import Engine
from riverbed.store.errors import DISK_HAS_FAILED, DamagedRowError, LogWriteError, StateLostError
from riverbed.store.layout import DATA_NAME, STATE_DIRECTORY
from riverbed.store.options import Fsync, Options, SystemClock, map_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from riverbed.server.config.config import Config
    from riverbed.store.disk.files import Files
    from riverbed.store.options import Clock

log = logging.getLogger("riverbed")

# Clients find no server during a shorter load, as they always did; during a longer one they are answered.
_LONG_LOAD_S: Final = 0.5
_LOAD_SLICE_S: Final = 0.005


def open_server(config: Config, directory: Path, clock: Clock | None = None, files: Files | None = None) -> Server:
    """Open the store at `directory`; -> its server, which is to `load` the store.  Raises what `Engine.open` raises."""
    clock = clock or SystemClock()
    options = Options(
        fsync=Fsync(config.appendfsync),
        quota_bytes=config.lmdb_map_size,
        map_bytes=map_for(config.lmdb_map_size, _bytes_of_tables(directory)),
        segment_bytes=config.log_segment_bytes,
        load_truncated=config.aof_load_truncated,
        reserve_bytes=config.disk_reserve_bytes,
        node_max_entries=config.stream_node_max_entries,
        node_max_bytes=config.stream_node_max_bytes,
        is_replica=config.replicaof is not None,
    )
    replayer = Replayer(int(clock.time() * 1000))
    return Server(config, Engine(directory, options, replayer.execute, clock, files), clock)


def _bytes_of_tables(directory: Path) -> int:
    """The bytes of the tables' file, 0 when there is none."""
    try:
        return (directory / STATE_DIRECTORY / DATA_NAME).stat().st_size
    except OSError:
        return 0


class Server:
    """All parts of one server but its sockets.  Needs a running asyncio loop."""

    def __init__(self, config: Config, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.context = core = Context(config, engine, clock)
        core.users = configured(config)
        self.tls = tls = Tls(config, clock.monotonic)
        core.tls_handshakes = lambda: tls.handshakes_under_way
        self.tasks = tasks = Tasks(asyncio.get_running_loop(), core.stats.background)
        self.executor = executor = Executor(core)
        apply_settings(core, executor.timing)
        self.evictor = Evictor(core.accounts.holders, core.stats, executor.clients.cut_off)
        self.checkpoints = Checkpoints(
            core,
            executor,
            tasks,
            executor.gate,
            pauses=executor.pauses,
            failures=executor.failures,
            sliced_commands=executor.sliced_commands,
        )
        self.expiry = Expiry(core, executor, failures=executor.failures, blocking=executor.blocking)
        self.maintenance = Maintenance(
            core,
            executor,
            executor.gate,
            self.checkpoints,
            failures=executor.failures,
            sliced_commands=executor.sliced_commands,
            expiry=self.expiry,
            evictor=self.evictor,
            kill=executor.control.kill,
            leave=executor.departures.begin,
        )
        self.rewriting = Rewriting(core, executor, tasks, self.checkpoints, executor.failures)
        self.scrub = Scrub(core, tasks)
        self.snapshots = Snapshots(core, executor, tasks, self.checkpoints, executor.failures)
        replacement = Replacement(core, executor.sliced_commands, executor.blocking, self.rewriting)
        self.replication = Replication(
            core,
            executor,
            tasks,
            executor.gate,
            pauses=executor.pauses,
            kill=executor.control.kill,
            rewriting=self.rewriting,
            replacement=replacement,
            applied=self._applied,
            damage_met=executor.failures.damage_met,
            is_writing_ahead=lambda: self.checkpoints.is_writing_ahead,
            is_disk_behind=lambda: self.checkpoints.is_disk_behind,
            over=self.tls.to_primary,
        )
        self.repairs = Repairs(
            core,
            executor,
            tasks,
            self.checkpoints,
            rewriting=self.rewriting,
            exchange=replacement.exchange_tables,
            resync=self.replication.resync,
        )
        self.stopping = Stopping(
            core,
            executor,
            pauses=executor.pauses,
            sliced_commands=executor.sliced_commands,
            replication=self.replication,
            checkpoint=self.checkpoints.checkpoint,
            let_go=executor.let_go,
        )
        self._tie()

    def _tie(self) -> None:
        """Register each part for the events that it acts on, and give commands the parts that they use."""
        events, replication = self.executor.events, self.replication
        events.tick_over.append(replication.tick_over)
        events.committed += [self.checkpoints.committed, self.maintenance.purge_soon]
        events.undone.append(replication.primary.tick_was_undone)
        events.disconnected.append(replication.disconnect)
        events.drained.append(replication.drained)
        events.command_over.append(self.stopping.look_soon)
        events.gave_up += [self.maintenance.stop, self.checkpoints.stop, self.stopping.give_up]
        self.engine.state.on_remade = self._remade
        self.engine.state.on_renumbered = self.executor.sliced_commands.renumbered
        self.checkpoints.on_durable.append(replication.primary.waits.check)
        self.maintenance.periodic += [
            self.rewriting.begin_if_due,
            self.rewriting.remove_superseded,
            self.scrub.forget_gone,
        ]
        events.damaged.append(self.repairs.damage_met)
        self.scrub.mend.append(self.repairs.damage_found)
        replication.on_progress = self.stopping.look_soon
        self.executor.views.checkpoint_soon = self.checkpoints.checkpoint_soon
        context = self.context
        context.checkpoints = self.checkpoints
        context.snapshots = self.snapshots
        context.repairs = self.repairs
        context.rewriting = self.rewriting
        context.replication = replication
        context.stopping = self.stopping

    def _applied(self) -> None:
        """Called when a part of the primary's log is in our log, without a tick."""
        self.checkpoints.committed()
        self.maintenance.purge_soon()
        self.executor.blocking.serve_soon()

    def _remade(self, damage: Exception) -> None:
        """Called when the engine has made the tables again of the log, as its tail had met damage."""
        log.error("the tables were made again of the log, whose tail had met damage: %s", damage)
        self.checkpoints.checkpoint_later()

    def start_threads(self) -> None:
        """Start all threads of Python's that this process will have, while there is memory for them."""
        self.tasks.start_threads()
        self.checkpoints.start_thread()
        removal.start_thread()

    async def load(self, listen: Callable[[], Awaitable[None]]) -> None:
        """Load the store in slices.  When that takes long, `listen` is called, and clients are answered in between.

        Raises what `Engine.load` and `listen` raise.
        """
        monotonic = self.context.clock.monotonic
        loading = self.context.loading
        assert loading is not None
        end_s = monotonic() + _LONG_LOAD_S
        listens = False
        with contextlib.closing(self.engine.load(loading.note)) as steps:
            for _ in steps:
                if monotonic() < end_s:
                    continue
                if not listens:
                    listens = True
                    await listen()
                await asyncio.sleep(0)
                end_s = monotonic() + _LOAD_SLICE_S
        self.context.loading = None
        for session in self.context.sessions.values():
            if session.transaction.watched:  # the load reports no changes
                session.transaction.watch_broken = True
        self.executor.gate.loaded()

    def start(self) -> None:
        """Start the background work."""
        if not self.engine.checkpoints.last_ok:  # that of the start; while writes are refused, no commit brings another
            self.checkpoints.arm()
        self.maintenance.start()
        self.replication.start()
        self.rewriting.remove_leftovers()
        self.repairs.remove_leftovers()
        self.snapshots.start()
        self.scrub.start()

    async def finish(self) -> int:
        """End the background work, checkpoint and release the directory; -> the process's exit status."""
        gave_up = self.executor.gave_up
        saves = self.stopping.saves and not gave_up
        log.info("stopping%s", "" if saves else " without a checkpoint")
        await self.end_work()
        if gave_up:
            self.engine.abandon()
            return 1
        try:
            self.engine.close(save=saves)
        except (DamagedRowError, LogWriteError, StateLostError, lmdb.Error) as error:
            log.warning("the last checkpoint failed; the next start replays the log: %s", error)
            return 1
        refusal = self.engine.refusal
        if refusal is not None and refusal in DISK_HAS_FAILED:
            log.warning("%s: the next start executes the log behind the last checkpoint that is durable", refusal.value)
        log.info("stopped")
        return self.stopping.status

    async def end_work(self) -> None:
        """End the work in the background, and wait for it."""
        self.tasks.stopping.set()
        self.maintenance.stop()
        self.checkpoints.stop()
        self.scrub.stop()
        await self.replication.stop()
        await self.rewriting.stop()
        await self.snapshots.stop()
        await self.repairs.stop()
        await self.tasks.close()
        self.checkpoints.close()
        await asyncio.sleep(0)
