"""Follows a primary: connects, connects again whenever the link is lost, and has what comes applied (`applier.py`).

    CONNECT -> CONNECTING -> HANDSHAKE -> CONNECTED      the log goes on where ours ends
       ^                         |            |
       |                         '-> SYNC ----'          everything comes again, beside what we have (`fullsync.py`)
       '---- lost, refused, damaged ----

When batches were applied, the primary is sent how far we are.  A damaged batch is asked for again from where we are.  A
sound batch that cannot be applied means that our state is wrong, and we ask for everything.  Until a full sync is
complete, clients are served from the old state.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from riverbed.server.replication.applier import (
    MAX_PENDING_BYTES,
    SLICE_BYTES,
    SLICE_COMMANDS,
    Applier,
    why_nothing_is_taken,
)
from riverbed.server.replication.attempts import Attempts
from riverbed.server.replication.failover import LACKS_LOG, NO_REPLICA_TO_TAKE_OVER
from riverbed.server.replication.fullsync import FullSync, SyncError, require_room
from riverbed.server.replication.link import FullSyncHead, Introduction, Link, LinkError, RefusedError
from riverbed.store.errors import LogWriteError, ReplayError, StateLostError
from riverbed.store.format.log_lines import FrameError, encode_command
from riverbed.store.log.streamed.stream import LogStream

if TYPE_CHECKING:
    from riverbed.server.config.config import Config
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.replication.failover import Failover
    from riverbed.server.replication.needs import Needs
    from riverbed.server.replication.primary import Primary

log = logging.getLogger("riverbed")

_DAMAGED_HERE: Final = "the state here is damaged: a full sync follows"


class State(enum.Enum):
    """States of the link, in the words of ROLE."""

    CONNECT = "connect"
    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    SYNC = "sync"
    CONNECTED = "connected"


class Follower:
    """The replica's side of one server."""

    def __init__(self, needs: Needs, primary: Primary, host: str, port: int, failover: Failover | None = None) -> None:
        """With `failover`, we are still the primary, and the other server is to become it."""
        self.host = host
        self.port = port
        self._needs = needs
        self._failover = failover
        # The replica was asked to take over and gave no answer; when asked again it said that it is a primary.
        self._may_have_taken_over = self._seems_primary = False
        self._latest: Link | None = None
        self.state = State.CONNECT
        self._config = needs.core.config
        self._engine = needs.core.engine
        self._replicas = primary
        self._clock = needs.core.clock
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._stopped = False
        self._applier: Applier | None = None
        self._full_sync: FullSync | None = None
        self._wants_all = False
        self._met_damage = False  # in our tables, by what the primary has sent
        self._is_due = False  # a slice of what a full sync has received
        self._attempts = Attempts(self._clock)

    @property
    def is_connected(self) -> bool:
        return self.state is State.CONNECTED

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        # behind the tick that asks for it, whose commands are in the log then
        self._loop.call_soon(self.cycle)

    def stop(self) -> None:
        self._stopped = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.fail(LinkError("not wanted any more"))
        self._drop_applier()  # before the link is lost, as nothing more may be applied
        self._drop_full_sync()

    def cycle(self) -> None:
        """Every second: connect when it is time, give up a silent link, acknowledge our offset."""
        if self._stopped:
            return
        link = self._link
        if link is None:
            is_mending = self._met_damage and self._needs.core.repair.in_progress
            if self._connecting is None and self._attempts.is_due and not is_mending:
                reason = why_nothing_is_taken(self._engine, takes_all=self._wants_all)
                # handing over takes nothing: it may be the cure
                if reason and self._failover is None:
                    self._lost(LinkError(reason, is_lasting=True))
                else:
                    self._connect()
            return
        timeout_s = self._config.repl_timeout
        # a primary that waits for us to come level sends nothing while what it has sent waits for the disk
        heard_s = link.heard_s if self._applier is None else max(link.heard_s, self._applier.waited_s)
        if link.is_reading and self._clock.monotonic() - heard_s > timeout_s:
            link.fail(LinkError(f"no byte came for {timeout_s} s (repl-timeout)"))
        elif self.state is State.CONNECTED:
            self.acknowledge()
        elif self.state is State.SYNC:
            link.send(b"\n")

    def ask_for_everything(self) -> None:
        """Take a full sync, because our own state is damaged."""
        self._wants_all = True
        if self._link is not None and self._full_sync is None:
            self._link.fail(LinkError(_DAMAGED_HERE))

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.state = State.CONNECTING
        self._connecting = self._needs.tasks.start(
            "connecting to the primary", self._open(), failed=lambda error: self._lost(LinkError(str(error)))
        )

    async def _open(self) -> None:
        config, log_ = self._config, self._engine.log
        offset = log_.end.offset
        replids = log_.replids
        id_to_send = replids.id_to_send(offset)
        if self._wants_all:
            id_to_send = "?"
        if self._failover is not None:
            id_to_send = replids.replication_id  # the id by which a replica of ours knows our log
        introduction = Introduction(
            _announced_port(config),
            config.replica_announce_ip,
            config.masteruser,
            config.masterauth,
            id_to_send,
            -2 if self._wants_all and self._failover is None else offset,
            takes_over=self._failover is not None and not self._seems_primary,
            gives_up_rest=self._failover is not None and self._failover.gives_up_rest,
        )
        link = self._latest = Link(self, introduction, self._clock.monotonic)
        try:
            async with asyncio.timeout(config.repl_timeout):
                await self._loop.create_connection(lambda: self._needs.over(link), self.host, self.port)
        except (OSError, TimeoutError, UnicodeError) as error:  # there are names that cannot even be looked up
            self._lost(LinkError(f"cannot connect: {str(error) or 'no answer'}"))
        except asyncio.CancelledError:
            link.fail(LinkError("not wanted any more"))
            raise
        else:
            if self._stopped:
                link.fail(LinkError("not wanted any more"))
            elif not link.is_over:
                self._link = link
        finally:
            self._connecting = None

    # -- LinkUser ------------------------------------------------------------------------------------------------------

    def link_made(self) -> None:
        self.state = State.HANDSHAKE

    def _was_accepted(self) -> None:
        if self._failover is not None:
            self._failover.taken_over()
            self._failover = None

    def link_continues(self, replication_id: str, store_id: str) -> None:
        self._was_accepted()
        if self._wants_all:
            raise LinkError(_DAMAGED_HERE)  # the damage was found while we asked for the rest
        engine = self._engine
        offset = engine.log.end.offset
        replids = engine.log.replids.follow(replication_id, offset, store_id)
        if replids != engine.log.replids:
            engine.statements.set_replids(replids)
            self._replicas.cut_off()  # they connect again and are sent the new id
        log.info("the primary continues at offset %d", offset)
        self._apply(LogStream(offset, self._config.repl_max_batch_bytes, self._engine.new_spill))
        self._connected()

    def _apply(self, stream: LogStream) -> None:
        self._applier = Applier(self._needs, stream, self)

    def _drop_applier(self) -> None:
        if self._applier is not None:
            self._applier.close()
            self._applier = None

    def _connected(self) -> None:
        self.state = State.CONNECTED
        self._attempts.connected()
        self._wants_all = False
        self._needs.changed()
        self.acknowledge()

    def link_begins_anew(self, head: FullSyncHead) -> None:
        if self._failover is not None and not self._is_late_one(head):
            raise LinkError("it is a primary that lacks what is here, and nothing is given up for it", is_lasting=True)
        self._was_accepted()
        log.info("full sync: a base of %d bytes, and the log from offset %d on", head.base_bytes, head.start)
        self.state = State.SYNC
        self._drop_full_sync()
        self._require_room(head)
        try:
            self._full_sync = FullSync(
                self._needs.core,
                self._needs.tasks,
                self._needs.replacement,
                head,
                self._received_all,
                self._sync_failed,
                on_progress=self._throttle,
            )
        except (OSError, LogWriteError) as error:
            raise LinkError(f"the full sync cannot be received: {error}", is_lasting=True) from error

    def _require_room(self, head: FullSyncHead) -> None:
        """Raise LinkError for a full sync without room, once one has failed: each would take what room there is.

        The first one is tried, as a file system may make files smaller.
        """
        if not self._attempts.failed_syncs:
            return
        try:
            require_room(self._engine, head)
        except (SyncError, OSError) as error:
            self._attempts.sync_failed(error)
            raise LinkError(f"the full sync failed: {error}", is_lasting=True) from error

    def _is_late_one(self, head: FullSyncHead) -> bool:
        """Whether it is the replica that was forced, with an earlier state of this store."""
        is_ours = head.store_id == self._engine.log.replids.store_id
        return self._failover is not None and self._failover.gives_up_rest and is_ours

    def link_received(self, data: bytes) -> None:
        self._needs.core.stats.replication_bytes_in += len(data)
        try:
            if self._full_sync is not None:
                self._full_sync.received(data)
                self._take_soon()
                self._throttle()
            elif self._applier is not None:
                self._applier.received(data)
        except (SyncError, LogWriteError, OSError) as error:
            self._sync_failed(error)

    def link_lost(self, error: LinkError) -> None:
        self._lost(error)

    def _lost(self, error: LinkError) -> None:
        """End what the link was for, and try again later."""
        self._link = None
        self._drop_applier()
        self._drop_full_sync()
        if self._stopped:
            return
        if self._failover is not None and self._is_refused(error):
            self._failover.refused(error)  # which stops this follower
            return
        was_connected = self.is_connected
        if was_connected:
            self._attempts.went_down()
        if self._attempts.failed(error, was_connected=was_connected):
            log.warning("the link to %s:%d is down: %s", self.host, self.port, error)
        self.state = State.CONNECT
        self._needs.changed()
        if was_connected:
            self._loop.call_soon(self.cycle)  # at once, before the primary's log moves on

    def _is_refused(self, error: LinkError) -> bool:
        """Whether the replica that was to take over has surely not done it."""
        is_refused = isinstance(error, RefusedError)
        if is_refused and (not self._may_have_taken_over or LACKS_LOG in error.answer):
            return True
        self._seems_primary = NO_REPLICA_TO_TAKE_OVER in error.answer
        if not is_refused and self._latest is not None and self._latest.has_asked_to_take_over:
            self._may_have_taken_over = True
        return False

    # -- ApplierUser ---------------------------------------------------------------------------------------------------

    def applied(self) -> None:
        self._attempts.was_sound()
        self._met_damage = False
        self._needs.applied()

    def acknowledge(self) -> None:
        """Tell the primary how far we are."""
        if self._link is not None and self.state is State.CONNECTED:
            log_ = self._engine.log
            words = [b"REPLCONF", b"ACK", b"%d" % log_.end.offset, b"FACK", b"%d" % log_.synced_offset]
            self._link.send(encode_command(words))

    def set_reading(self, on: bool) -> None:
        if self._link is not None:
            self._link.set_reading(on)

    def damaged(self, error: Exception) -> None:
        """Give up the link, as damaged bytes came; if that has happened too often, ask for everything next time."""
        if self._attempts.was_damaged():
            self._wants_all = True
        self._give_up(f"the primary's bytes are damaged: {error}", is_lasting=False)

    def does_not_fit(self, error: ReplayError) -> None:
        log.error("the state does not fit the primary's commands, a full sync follows: %s", error)
        self._wants_all = True
        self.damaged(error)

    def met_damage(self, error: Exception) -> None:
        self._needs.damage_met()
        self._met_damage = True
        is_mended = self._needs.core.repair.in_progress
        self._give_up(f"it meets damage in the tables here: {error}", is_lasting=not is_mended)

    def refuse(self, reason: str) -> None:
        self._give_up(reason, is_lasting=True)

    def _give_up(self, reason: str, *, is_lasting: bool) -> None:
        """Give up the link, for longer than a moment: nothing more can be applied."""
        if self._link is not None:
            self.state = State.HANDSHAKE  # so that we do not connect again at once
            self._attempts.went_down()
            self._needs.changed()
            self._link.fail(LinkError(reason, is_lasting=is_lasting))

    # -- full sync -----------------------------------------------------------------------------------------------------

    def _take_soon(self) -> None:
        if not self._is_due:
            self._needs.tasks.soon("taking over what a full sync brings", self._take, failed=self.damaged)
            self._is_due = True

    def _take(self) -> None:
        """Take over a slice of the log that the full sync has received."""
        self._is_due = False
        sync = self._full_sync
        if sync is None:
            return
        try:
            if sync.take_slice(SLICE_BYTES, SLICE_COMMANDS):
                self._take_soon()
        except FrameError as error:
            self._attempts.sync_failed(error)  # it may come again with each full sync
            self.damaged(error)
        except (SyncError, LogWriteError, OSError) as error:
            self._sync_failed(error)
        else:
            self._throttle()

    def _throttle(self) -> None:
        """Pause reading while the tables are far behind, or more has come than was looked at."""
        sync = self._full_sync
        if self._link is not None and sync is not None:
            is_late = self._is_due and sync.pending_bytes >= MAX_PENDING_BYTES
            self._link.set_reading(not is_late and not sync.is_behind)

    def _received_all(self, stream: LogStream) -> None:
        """The full sync is complete and its state is ours; the log goes on with `stream`."""
        self._full_sync = None
        self._apply(stream)
        self._replicas.cut_off()
        log.info("full sync complete at offset %d", self._engine.log.end.offset)
        self._connected()
        self.set_reading(True)
        assert self._applier is not None
        self._applier.work_soon()

    def _sync_failed(self, error: Exception) -> None:
        """Give up a full sync that cannot be finished here, for lack of space for instance; the next one waits."""
        self._attempts.sync_failed(error)
        if isinstance(error, StateLostError):
            self._needs.ticks.give_up(error)
        elif self._link is not None:
            self._link.fail(LinkError(f"the full sync failed: {error}"))

    def _drop_full_sync(self) -> None:
        if self._full_sync is not None:
            self._full_sync.cancel()
            self._full_sync = None

    # -- what INFO and ROLE report -------------------------------------------------------------------------------------

    def role(self) -> Reply:
        offset = self._engine.offset if self.is_connected else -1
        return [b"slave", self.host.encode(), self.port, self.state.value.encode(), offset]

    @property
    def is_syncing(self) -> bool:
        """Whether a full sync is under way, beside the data that are served."""
        return self._full_sync is not None

    def fields(self) -> Iterator[tuple[str, object]]:
        now_s = self._clock.monotonic()
        offset = self._engine.offset
        link, sync = self._link, self._full_sync
        yield "master_host", self.host
        yield "master_port", self.port
        yield "master_link_status", "up" if self.is_connected else "down"
        yield "master_last_io_seconds_ago", -1 if link is None else int(now_s - link.heard_s)
        yield "master_sync_in_progress", int(sync is not None)
        yield "slave_read_repl_offset", offset if self._applier is None else self._applier.stream.offset
        yield "slave_repl_offset", offset
        if sync is not None:
            yield "master_sync_total_bytes", sync.total_bytes
            yield "master_sync_read_bytes", sync.read_bytes
            yield "master_sync_left_bytes", max(sync.total_bytes - sync.read_bytes, 0)
            yield "master_sync_perc", f"{min(100 * sync.read_bytes / max(sync.total_bytes, 1), 100):.2f}"
            yield "master_sync_last_io_seconds_ago", -1 if link is None else int(now_s - link.heard_s)
        if not self.is_connected:
            yield from self._attempts.fields(is_syncing=sync is not None)
        config = self._config
        yield "slave_priority", config.replica_priority
        yield "slave_read_only", 1
        yield "replica_announced", int(config.replica_announced)


def _announced_port(config: Config) -> int:
    """The port at which the primary and Sentinel are to find us."""
    own = config.tls_port if config.tls_replication and config.tls_port else config.port
    return config.replica_announce_port or own
