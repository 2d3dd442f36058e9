"""Which of both we are, primary or replica: what commands ask, and what must happen when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from riverbed.server.errors import CommandError
from riverbed.server.replication.failover import Failover
from riverbed.server.replication.follower import Follower
from riverbed.server.replication.fullsync import remove_leftovers
from riverbed.server.replication.primary import Primary

if TYPE_CHECKING:
    from riverbed.server.commands.request import Request
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.executor import Executor
    from riverbed.server.protocol.replies import Reply

log = logging.getLogger("riverbed")

CYCLE_S: Final = 1.0
NO_LINK: Final = "NOMASTERLINK Can't SYNC while not connected with my master"
READONLY: Final = "READONLY You can't write against a read only replica."
NO_LINK_IN_FAILOVER: Final = "NOMASTERLINK Can't SYNC while failing over"
NOT_IN_FAILOVER: Final = "ERR REPLICAOF not allowed while failing over."
NO_REPLICA_TO_TAKE_OVER: Final = "ERR PSYNC FAILOVER can't be sent to a master."
OTHER_LINE: Final = "ERR PSYNC FAILOVER replid must match my replid."
STALE: Final = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
TOO_FEW_REPLICAS: Final = "NOREPLICAS Not enough good replicas to write."
UNBLOCKED: Final = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"


class Replication:
    """The `Replication` of one executor; see `server/commands/request.py` for what commands may expect of it."""

    def __init__(self, executor: Executor) -> None:
        self.primary = Primary(executor)
        self.follower: Follower | None = None
        self.on_progress: Callable[[], None] = lambda: None  # a replica has acknowledged something, or left
        self.failover = Failover(executor, self.primary, self._hand_over_to, self._promote)
        self._executor = executor
        self._timer: asyncio.TimerHandle | None = None
        config = executor.config
        for name in ("min-replicas-to-write", "min-replicas-max-lag"):
            config.observe(name, self.primary.count_good)
        config.observe("replica-serve-stale-data", executor.refresh_special)
        executor.txn.follows = config.replicaof is not None

    @property
    def is_replica(self) -> bool:
        return self.follower is not None

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Follow whom the settings name, and look after replicas, from now on."""
        remove_leftovers(self._executor)
        if self._executor.config.replicaof is not None:
            self._begin_following(*self._executor.config.replicaof)
        self._cycle()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.failover.stop()
        if self.follower is not None:
            self.follower.stop()

    def _cycle(self) -> None:
        self._timer = self._executor.loop.call_later(CYCLE_S, self._cycle)
        self.primary.cycle()
        self.failover.look_soon()
        self.on_progress()
        if self.follower is not None:
            self.follower.cycle()

    def disconnect(self, session: Session) -> None:
        """A client has gone, it may have been a replica."""
        self.primary.detach(session)
        self.on_progress()

    def drained(self, session: Session) -> None:
        """A socket takes more."""
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
        executor = self._executor
        was_primary = self.follower is None
        executor.config.replicaof = host, port
        executor.txn.follows = True
        executor.engine.options.is_replica = True
        self.follower = Follower(executor, self.primary, host, port, failover)
        executor.refresh_special()
        if was_primary:
            self._unblock_all()
        self.primary.cut_off()
        self.follower.start()

    def _unblock_all(self) -> None:
        """Who waits here for what only a primary does must look for the other one.

        Commands that are under way in slices are refused or go on by themselves.
        """
        executor = self._executor
        for session in list(executor.context.sessions.values()):
            if session.blocked is not None:
                executor.wakeups.end_settled(session, CommandError(UNBLOCKED))
                executor.control.kill(session)
                executor.flush(session)

    def promote(self) -> None:
        self._refuse_in_failover()
        self._promote()

    def take_over(self, replication_id: str) -> None:
        """Our primary has us become it.  Raises CommandError when it is not ours to say so."""
        if self.follower is None:
            raise CommandError(NO_REPLICA_TO_TAKE_OVER)
        if replication_id != self._executor.engine.log.replids.replication_id:
            raise CommandError(OTHER_LINE)
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
        executor = self._executor
        follower.stop()
        self.follower = None
        executor.config.replicaof = None
        executor.txn.follows = False
        engine = executor.engine
        engine.options.is_replica = False
        engine.set_replids(engine.log.replids.branch(engine.log.end.offset))
        log.info("a primary from here on, at offset %d", engine.log.end.offset)
        self.primary.cut_off()
        executor.refresh_special()

    # -- refusing ------------------------------------------------------------------------------------------------------

    @property
    def refuses_reads(self) -> bool:
        """Whether there is nothing to be told but what may be long past."""
        return (
            self.follower is not None
            and not self.follower.is_connected
            and not self._executor.config.replica_serve_stale_data
        )

    @property
    def refuses_writes(self) -> bool:
        return self.follower is not None or self.primary.lacks_replicas

    def write_refusal(self) -> str:
        return READONLY if self.follower is not None else TOO_FEW_REPLICAS

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

    def committed(self) -> None:
        """A tick is in the log, and a client waits for replicas."""
        target = self.primary.waits.committed()
        if target is not None:
            self.primary.ask_for_acks(target)

    def role(self) -> Reply:
        return self.primary.role() if self.follower is None else self.follower.role()

    def counters(self) -> Iterator[tuple[str, object]]:
        stats = self._executor.stats
        yield "sync_full", stats.syncs_full
        yield "sync_partial_ok", stats.syncs_partial
        yield "sync_partial_err", stats.syncs_refused

    def fields(self) -> Iterator[tuple[str, object]]:
        engine = self._executor.engine
        replids, end = engine.log.replids, engine.log.end
        yield "role", "master" if self.follower is None else "slave"
        if self.follower is not None:
            yield from self.follower.fields()
        yield from self.primary.fields()
        yield "master_failover_state", self.failover.state.value
        yield "master_replid", replids.replication_id
        yield "master_replid2", replids.previous_id
        yield "riverbed_store_id", replids.store_id
        yield "master_repl_offset", end.offset
        yield "second_repl_offset", replids.branch_offset + 1 if replids.branch_offset >= 0 else -1
        # what Redis keeps in memory for this is the log here, from its first incr on
        first = engine.log.home.manifest.incrs[0].start_offset or 0
        yield "repl_backlog_active", 1
        yield "repl_backlog_size", engine.log.size_bytes
        yield "repl_backlog_first_byte_offset", first + 1
        yield "repl_backlog_histlen", end.offset - first
