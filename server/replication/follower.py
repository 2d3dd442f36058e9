"""Follows a primary: connects, connects again whenever the link is lost, and applies what the primary sends.

    CONNECT -> CONNECTING -> HANDSHAKE -> CONNECTED      the log goes on where ours ends
       ^                         |            |
       |                         '-> SYNC ----'          everything comes again, beside what we have (`fullsync.py`)
       '---- lost, refused, damaged ----

Batches are verified, executed and appended to our log as one step; then the primary is sent how far we are.  A damaged
batch is asked for again from where we are.  A sound batch that cannot be applied means that our state is wrong, and we
ask for everything.  Until a full sync is complete, clients are served from the old state.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import lmdb

from riverbed.server.replication.attempts import Attempts
from riverbed.server.replication.fullsync import FullSync, SyncError
from riverbed.server.replication.link import FullSyncHead, Introduction, Link, LinkError, RefusedError
from riverbed.server.replication.worker import NO_ROOM
from riverbed.store.errors import TABLE_DAMAGE, LacksRoomError, LogWriteError, ReplayError, StateLostError
from riverbed.store.format.log_lines import FrameError, encode_command
from riverbed.store.log.stream_reader import LogStream, StreamedBatch

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.config.config import Config
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.protocol.replies import Reply
    from riverbed.server.replication.failover import Failover
    from riverbed.server.replication.primary import Primary
    from riverbed.server.replication.replacement import Replacement

log = logging.getLogger("riverbed")

# At most so much is applied before it is the clients' turn, unless one batch is larger.  A small command takes 4 us or
# more, so a bound of bytes alone would allow 30 ms of them; XADDs of a run take 0.3 us, and a run counts as one.  Of a
# long batch, as many commands are parsed at once.
SLICE_BYTES: Final = 256 << 10
SLICE_COMMANDS: Final = 512
SLICE_S: Final = 0.004
# Time between two looks whether the disk has caught up.
DISK_AGAIN_S: Final = 0.005
# Nothing is read from the primary while so much of what it sent is not applied yet.
MAX_PENDING_BYTES: Final = 4 << 20
_DAMAGED_HERE: Final = "the state here is damaged: a full sync follows"
LACKS_ROOM: Final = "the disk is nearly full here: nothing is taken from the primary until there is more room"


class State(enum.Enum):
    """States of the link, in the words of ROLE."""

    CONNECT = "connect"
    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    SYNC = "sync"
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a follower needs of its server.

    `changed` is called when the state of the link has changed, `applied` when something of the primary is in our log.
    `damage_met` has the tables mended, `over` gives a link what is between it and the socket.  `is_writing_ahead` says
    that rows are put into the tables in turns, for a checkpoint that is about to begin: what the primary sends can wait
    for that, so that it changes none of the rows again.  It waits as well while `is_disk_behind`.
    """

    core: Core
    ticks: Ticks
    tasks: Tasks
    replacement: Replacement
    changed: Callable[[], None]
    applied: Callable[[], None]
    damage_met: Callable[[], None]
    is_writing_ahead: Callable[[], bool]
    is_disk_behind: Callable[[], bool]
    over: Callable[[asyncio.Protocol], asyncio.BaseProtocol]


class Follower:
    """The replica's side of one server."""

    def __init__(self, needs: Needs, primary: Primary, host: str, port: int, failover: Failover | None = None) -> None:
        """With `failover`, we are still the primary, and the other server is to become it."""
        self.host = host
        self.port = port
        self._needs = needs
        self._failover = failover
        self.state = State.CONNECT
        self._config = needs.core.config
        self._engine = needs.core.engine
        self._replicas = primary
        self._clock = needs.core.clock
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._stopped = False
        self._stream: LogStream | None = None
        self._full_sync: FullSync | None = None
        self._wants_all = False
        self._met_damage = False  # in our tables, by what the primary has sent
        self._is_known = False  # the primary has sent its replication id
        self._is_due = False
        self._waited_s = 0.0  # when something that has come had to wait last
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
        self._drop_full_sync()

    def cycle(self) -> None:
        """Every second: connect when it is time, give up a silent link, acknowledge our offset."""
        if self._stopped:
            return
        link = self._link
        if link is None:
            is_mending = self._met_damage and self._needs.core.repair.in_progress
            if self._connecting is None and self._attempts.is_due and not is_mending:
                if self._engine.refusals.lack_room:
                    self._lost(LinkError(LACKS_ROOM, is_lasting=True))
                else:
                    self._connect()
            return
        timeout_s = self._config.repl_timeout
        # a primary that waits for us to come level sends nothing while what it has sent waits for the disk
        if link.is_reading and self._clock.monotonic() - max(link.heard_s, self._waited_s) > timeout_s:
            link.fail(LinkError(f"no byte came for {timeout_s} s"))
        elif self.state is State.CONNECTED:
            self._acknowledge()
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
        id_to_send = replids.replication_id if self._is_known else replids.id_to_send(offset)
        if self._wants_all:
            id_to_send = "?"
        takes_over = self._failover is not None
        if takes_over:
            id_to_send = replids.replication_id  # the id by which a replica of ours knows our log
        introduction = Introduction(
            _announced_port(config),
            config.replica_announce_ip,
            config.masteruser,
            config.masterauth,
            id_to_send,
            -2 if self._wants_all else offset,
            takes_over,
        )
        link = Link(self, introduction, self._clock.monotonic)
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
        self._stream = LogStream(offset, self._config.repl_max_batch_bytes, self._engine.new_spill)
        self._connected()

    def _connected(self) -> None:
        self.state = State.CONNECTED
        self._attempts.connected()
        self._wants_all = False
        self._is_known = True
        self._needs.changed()
        self._acknowledge()

    def link_begins_anew(self, head: FullSyncHead) -> None:
        self._was_accepted()
        log.info("full sync: a base of %d bytes, and the log from offset %d on", head.base_bytes, head.start)
        self.state = State.SYNC
        self._drop_full_sync()
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

    def link_received(self, data: bytes) -> None:
        self._needs.core.stats.replication_bytes_in += len(data)
        try:
            if self._full_sync is not None:
                self._full_sync.received(data)
                self._work_soon()
                self._throttle()
            elif self._stream is not None:
                self._stream.feed(data)
                self._work_soon()
        except (SyncError, LogWriteError, OSError) as error:
            self._sync_failed(error)

    def link_lost(self, error: LinkError) -> None:
        self._lost(error)

    def _lost(self, error: LinkError) -> None:
        """End what the link was for, and try again later."""
        self._link = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._drop_full_sync()
        if self._stopped:
            return
        if self._failover is not None and isinstance(error, RefusedError):
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

    def _damaged(self, error: Exception) -> None:
        """Give up the link, as damaged bytes came; if that has happened too often, ask for everything next time."""
        if self._attempts.was_damaged():
            self._wants_all = True
        if self._link is not None:
            self.state = State.HANDSHAKE  # so that we do not connect again at once
            self._needs.changed()
            self._attempts.went_down()
            self._link.fail(LinkError(f"the primary's bytes are damaged: {error}"))

    # -- applying ------------------------------------------------------------------------------------------------------

    def _work_soon(self, delay_s: float = 0.0) -> None:
        if not self._is_due:
            self._is_due = True
            self._needs.tasks.soon("applying what the primary sends", self._work, failed=self._damaged, delay_s=delay_s)

    def _work(self) -> None:
        """Apply a slice of what has come."""
        self._is_due = False
        if self._full_sync is not None:
            self._work_on(self._full_sync)
            return
        stream, link = self._stream, self._link
        if stream is None or link is None or self._stopped:
            return
        if self._engine.txn.log:
            self._needs.ticks.want_tick()  # commands of the tick in which we became a replica
            self._work_soon()
            return
        if self._has_to_wait:
            self._waited_s = self._clock.monotonic()
            self._work_soon(DISK_AGAIN_S if self._needs.is_disk_behind() else 0.0)
            self._read_on(link, stream)
            return
        end_s = self._clock.monotonic() + SLICE_S
        try:
            while True:
                batches = stream.next_slice(SLICE_BYTES, SLICE_COMMANDS)
                if batches:
                    try:
                        if self._engine.refusals.lack_room:
                            raise LacksRoomError
                        self._apply(batches)
                    finally:
                        batches[-1].release()
                elif not stream.is_unfinished:
                    break
                if self._clock.monotonic() >= end_s or self._has_to_wait:
                    self._work_soon()
                    break
        except FrameError as error:
            self._damaged(error)
            return
        except LacksRoomError:
            self._refuse(link, LACKS_ROOM)
            return
        except TABLE_DAMAGE as error:
            self._needs.damage_met()
            self._met_damage = True
            is_mended = self._needs.core.repair.in_progress
            self._refuse(link, f"it meets damage in the tables here: {error}", is_lasting=not is_mended)
            return
        except ReplayError as error:
            log.error("the state does not fit the primary's commands, a full sync follows: %s", error)
            self._wants_all = True
            self._damaged(error)
            return
        except (LogWriteError, lmdb.Error) as error:
            reason = NO_ROOM if isinstance(error, lmdb.MapFullError) else str(error)
            self._refuse(link, f"the primary's bytes cannot be written: {reason}")
            return
        except StateLostError as error:
            self._needs.ticks.give_up(error)
            return
        except OSError as error:
            self._refuse(link, f"a long batch of the primary cannot be held: {error}")
            return
        self._read_on(link, stream)
        self._acknowledge()

    @property
    def _has_to_wait(self) -> bool:
        """Whether a checkpoint comes before what the primary sends."""
        return self._needs.is_writing_ahead() or self._needs.is_disk_behind()

    def _read_on(self, link: Link, stream: LogStream) -> None:
        """Read from the primary, unless much of what it sent is to be applied first."""
        link.set_reading(not self._is_due or stream.pending_bytes < MAX_PENDING_BYTES)

    def _work_on(self, sync: FullSync) -> None:
        """Take over a slice of the log that a full sync has received."""
        try:
            if sync.take_slice(SLICE_BYTES, SLICE_COMMANDS):
                self._work_soon()
        except FrameError as error:
            self._damaged(error)
        except (SyncError, LogWriteError, OSError) as error:
            self._sync_failed(error)
        else:
            self._throttle()

    def _refuse(self, link: Link, reason: str, *, is_lasting: bool = True) -> None:
        """Give up the link for longer than a moment, as nothing more can be applied."""
        self.state = State.HANDSHAKE  # so that we do not connect again at once
        self._attempts.went_down()
        self._needs.changed()
        link.fail(LinkError(reason, is_lasting=is_lasting))

    def _apply(self, batches: list[StreamedBatch]) -> None:
        self._engine.apply(batches)
        self._attempts.was_sound()
        self._met_damage = False
        self._needs.applied()

    def _acknowledge(self) -> None:
        if self._link is not None and self.state is State.CONNECTED:
            log_ = self._engine.log
            words = [b"REPLCONF", b"ACK", b"%d" % log_.end.offset, b"FACK", b"%d" % log_.synced_offset]
            self._link.send(encode_command(words))

    # -- full sync -----------------------------------------------------------------------------------------------------

    def _throttle(self) -> None:
        """Pause reading while the tables are far behind, or more has come than was looked at."""
        sync = self._full_sync
        if self._link is not None and sync is not None:
            is_late = self._is_due and sync.pending_bytes >= MAX_PENDING_BYTES
            self._link.set_reading(not is_late and not sync.is_behind)

    def _received_all(self, stream: LogStream) -> None:
        """The full sync is complete and its state is ours; the log goes on with `stream`."""
        self._full_sync = None
        self._stream = stream
        self._replicas.cut_off()
        log.info("full sync complete at offset %d", self._engine.log.end.offset)
        self._connected()
        if self._link is not None:
            self._link.set_reading(True)
        self._work_soon()

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
        yield "slave_read_repl_offset", offset if self._stream is None else self._stream.offset
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
