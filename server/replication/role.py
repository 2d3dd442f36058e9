"""The server's role, primary or replica: what commands ask about it, and what happens when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from riverbed.server.errors import CommandError
from riverbed.server.replication.failover import LACKS_LOG, NO_REPLICA_TO_TAKE_OVER, Failover
from riverbed.server.replication.follower import Follower
from riverbed.server.replication.fullsync import remove_leftovers
from riverbed.server.replication.needs import Needs
from riverbed.server.replication.primary import Primary
from riverbed.store.replication_id import NO_ID, ReplicationIds

if TYPE_CHECKING:
    from riverbed.server.background.log_rewrite import Rewriting
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.control.pauses import Pauses
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.replication.replacement import Replacement

log = logging.getLogger("riverbed")

CYCLE_S: Final = 1.0
_NO_IDS: Final = ReplicationIds(NO_ID)  # until the store is loaded
NO_LINK: Final = "NOMASTERLINK Can't SYNC while not connected with my master"
READONLY: Final = "READONLY You can't write against a read only replica."
NO_LINK_IN_FAILOVER: Final = "NOMASTERLINK Can't SYNC while failing over"
NOT_IN_FAILOVER: Final = "ERR REPLICAOF not allowed while failing over."
OTHER_LINE: Final = "ERR PSYNC FAILOVER replid must match my replid."
STALE: Final = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
TOO_FEW_REPLICAS: Final = "NOREPLICAS Not enough good replicas to write."
UNBLOCKED: Final = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"


class Replication:
    """The `Replication` of one server; see `server/commands/request.py` for what commands may expect of it."""

    def __init__(
        self,
        core: Core,
        ticks: Ticks,
        tasks: Tasks,
        gate: Gate,
        *,
        pauses: Pauses,
        kill: Callable[[Session], None],
        rewriting: Rewriting,
        replacement: Replacement,
        applied: Callable[[], None],
        damage_met: Callable[[], None],
        is_writing_ahead: Callable[[], bool],
        is_disk_behind: Callable[[], bool],
        over: Callable[[asyncio.Protocol], asyncio.BaseProtocol],
    ) -> None:
        """`applied` is called when something that came from a primary is in our log, for a checkpoint for instance.

        Nothing of a primary is applied while `is_writing_ahead`, as rows are put into the tables for a checkpoint, and
        while `is_disk_behind`, as too much waits for the disk.
        `over` gives the link to a primary what is between it and the socket: TLS, if it is asked for.
        """
        self.primary = Primary(core, ticks, tasks, gate, rewriting)
        self.primary.on_count = self._refuse
        self.on_progress: Callable[[], None] = lambda: None  # a replica has acknowledged something, or left
        self.failover = Failover(core, ticks, pauses, self.primary, self._hand_over_to, self._promote)
        self._core = core
        self._config = core.config
        self._engine = core.engine
        self._ticks = ticks
        self._tasks = tasks
        self._gate = gate
        self._kill = kill
        self.needs = Needs(
            core,
            ticks,
            tasks,
            replacement,
            changed=self._refuse,
            applied=applied,
            damage_met=damage_met,
            is_writing_ahead=is_writing_ahead,
            is_disk_behind=is_disk_behind,
            over=over,
        )
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        primary = self._config.replicaof
        self.follower = None if primary is None else Follower(self.needs, self.primary, *primary)
        for name in ("min-replicas-to-write", "min-replicas-max-lag"):
            self._config.observe(name, self.primary.count_good)
        self._config.observe("replica-serve-stale-data", self._refuse)
        core.engine.set_role(is_replica=self.is_replica)
        self._refuse()

    @property
    def is_replica(self) -> bool:
        return self.follower is not None

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Follow the primary that the settings name, and look after replicas, from now on."""
        remove_leftovers(self._engine.directory, self._tasks)
        if self.follower is not None:
            self.follower.start()
        self._cycle()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.failover.stop()
        if self.follower is not None:
            self.follower.stop()

    def _cycle(self) -> None:
        self._timer = self._loop.call_later(CYCLE_S, self._cycle)
        self.primary.cycle()
        self.failover.look_soon()
        self.on_progress()
        if self.follower is not None:
            self.follower.cycle()

    def disconnect(self, session: Session) -> None:
        """Forget a client that has gone; it may have been a replica."""
        self.primary.detach(session)
        self.on_progress()

    def drained(self, session: Session) -> None:
        """Go on with a client whose socket takes more, if it is a replica."""
        sender = self.primary.senders.get(session)
        if sender is not None:
            sender.drained()

    # -- changing roles ------------------------------------------------------------------------------------------------

    def follow(self, host: str, port: int) -> bool:
        self._refuse_in_failover()
        follower = self.follower
        if follower is not None:
            if (follower.host, follower.port) == (host, port):
                return False
            follower.stop()
        log.info("to be a replica of %s:%d", host, port)
        self._begin_following(host, port)
        return True

    def _refuse_in_failover(self) -> None:
        if self.failover.is_under_way:
            raise CommandError(NOT_IN_FAILOVER)

    def _hand_over_to(self, host: str, port: int) -> None:
        self._begin_following(host, port, self.failover)

    def _begin_following(self, host: str, port: int, failover: Failover | None = None) -> None:
        was_primary = self.follower is None
        self._config.replicaof = host, port
        self._engine.set_role(is_replica=True)
        self.follower = Follower(self.needs, self.primary, host, port, failover)
        self._refuse()
        if was_primary:
            self._unblock_all()
        self.primary.cut_off()
        self.follower.start()

    def _unblock_all(self) -> None:
        """Close blocked clients, which must look for the new primary.

        Sliced commands need nothing here: at their next slice they are refused, or go on.
        """
        for session in list(self._core.sessions.values()):
            if session.blocked is not None:
                self._ticks.end_wait(session, CommandError(UNBLOCKED))
                self._kill(session)
                self._ticks.flush(session)

    def resync(self) -> bool:
        """Ask the primary for everything, if there is one; -> whether there is."""
        if self.follower is not None:
            self.follower.ask_for_everything()
        return self.follower is not None

    def promote(self) -> None:
        self._refuse_in_failover()
        self._promote()

    def take_over(self, replication_id: str, offset: int, *, is_forced: bool) -> None:
        """Become the primary, as our primary asks, whose log ends at `offset`.

        Raises CommandError when the request is not from our primary, or something of its log is not here: a power cut
        may have taken what was acknowledged, as it was not synced.
        """
        if self.follower is None:
            raise CommandError(NO_REPLICA_TO_TAKE_OVER)
        if replication_id != self._engine.log.replids.replication_id:
            raise CommandError(OTHER_LINE)
        if offset > self._engine.log.end.offset and not is_forced:
            raise CommandError(LACKS_LOG)
        log.info("the primary hands over to us")
        self._promote()

    def fail_over(self, target: tuple[str, int] | None, timeout_ms: int | None, *, force: bool) -> None:
        self.failover.begin(target, timeout_ms, force=force)

    def abort_failover(self) -> None:
        self.failover.abort()

    def _promote(self) -> None:
        follower = self.follower
        if follower is None:
            return
        engine = self._engine
        # first: nothing is to be written with the id before
        engine.statements.set_replids(engine.log.replids.branch(engine.log.end.offset))
        follower.stop()
        self.follower = None
        self._config.replicaof = None
        engine.set_role(is_replica=False)
        log.info("a primary from here on, at offset %d", engine.log.end.offset)
        self.primary.cut_off()
        self._refuse()

    # -- refusing ------------------------------------------------------------------------------------------------------

    def _refuse(self) -> None:
        """Set what the gate refuses in the present state."""
        follower = self.follower
        no_writes = no_reads = ""
        if follower is not None:
            no_writes = READONLY
            if not follower.is_connected and not self._config.replica_serve_stale_data:
                no_reads = STALE  # all that could be shown may be out of date
        elif self.primary.lacks_replicas:
            no_writes = TOO_FEW_REPLICAS
        self._gate.replicate(no_writes=no_writes, no_reads=no_reads)

    # -- what commands ask ---------------------------------------------------------------------------------------------

    def introduced(self, session: Session, option: bytes, value: bytes) -> bool:
        return self.primary.introduced(session, option, value)

    def acknowledged(self, session: Session, offset: int, synced_offset: int | None) -> None:
        self.primary.acknowledged(session, offset, synced_offset)
        self.failover.look_soon()
        self.on_progress()

    def attach(self, session: Session, replication_id: str, next_offset: int) -> None:
        if self.failover.is_under_way:
            raise CommandError(NO_LINK_IN_FAILOVER)
        if self.follower is not None and not self.follower.is_connected:
            raise CommandError(NO_LINK)
        self.primary.attach(session, replication_id, next_offset - 1)

    def wait(self, request: Request, count: int, deadline_ms: int | None, *, local: int | None = None) -> Reply:
        return self.primary.waits.wait(request, count, deadline_ms, local)

    def tick_over(self) -> None:
        """A tick is in the log, and clients may wait until replicas have it."""
        if self.primary.waits:
            target = self.primary.waits.committed()
            if target is not None:
                self.primary.ask_for_acks(target)

    @property
    def is_syncing(self) -> bool:
        return self.follower is not None and self.follower.is_syncing

    def role(self) -> Reply:
        return self.primary.role() if self.follower is None else self.follower.role()

    def counters(self) -> Iterator[tuple[str, object]]:
        stats = self._core.stats
        yield "sync_full", stats.syncs_full
        yield "sync_partial_ok", stats.syncs_partial
        yield "sync_partial_err", stats.syncs_refused

    def fields(self) -> Iterator[tuple[str, object]]:
        engine = self._engine
        manifest = engine.log.home.manifest
        replids = manifest.replids or _NO_IDS
        yield "role", "master" if self.follower is None else "slave"
        if self.follower is not None:
            yield from self.follower.fields()
        yield from self.primary.fields()
        yield "master_failover_state", self.failover.state.value
        yield "master_replid", replids.replication_id
        yield "master_replid2", replids.previous_id
        yield "riverbed_store_id", replids.store_id
        yield "master_repl_offset", engine.offset
        yield "second_repl_offset", replids.branch_offset + 1 if replids.branch_offset >= 0 else -1
        # Redis keeps this backlog in memory; here it is the log, from the first of its files that has an offset
        first = (manifest.streamed[0].start_offset or 0) if engine.is_loaded else 0
        yield "repl_backlog_active", 1
        yield "repl_backlog_size", engine.log.size_bytes
        yield "repl_backlog_first_byte_offset", first + 1
        yield "repl_backlog_histlen", engine.offset - first
