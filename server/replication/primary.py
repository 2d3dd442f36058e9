"""The primary's side of replication: the attached replicas, how far they are, and what they are sent regularly."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from riverbed.server.background.log_rewrite import RewriteError
from riverbed.server.background.shared_turns import SharedTurns
from riverbed.server.config.kinds import is_host
from riverbed.server.errors import CommandError
from riverbed.server.numbers import TOO_LARGE, parse_digits
from riverbed.server.replication.link import STORE_CAPABILITY
from riverbed.server.replication.prefixes import Prefixes
from riverbed.server.replication.sender import GETACK, PING, Introduction, LagError, Sender, State
from riverbed.server.replication.waits import Waits
from riverbed.store.errors import NEARLY_FULL, LogWriteError

if TYPE_CHECKING:
    from riverbed.server.background.log_rewrite import Rewriting
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.execution.gate import Gate
    from riverbed.server.execution.ticks import Ticks
    from riverbed.server.protocol.replies import Reply
    from riverbed.store.log.streamed.batch import StreamedBatch

log = logging.getLogger("riverbed")

# The format of what replicas of ours are sent; they name it, and a replica that names another is refused.
STREAM_FORMAT: Final = b"1"
_MAX_ADDRESS_BYTES: Final = 255
_NOT_IN_ADDRESSES: Final = frozenset(",= ")  # a comma begins the next field of a replica's line in INFO
# A full sync sends up to so much of log, or as much as the base has, without waiting for a rewrite.
REWRITE_BYTES: Final = 64 << 20


class Primary:
    """What a server does for its replicas; a replica may have replicas too."""

    def __init__(self, core: Core, ticks: Ticks, tasks: Tasks, gate: Gate, rewriting: Rewriting) -> None:
        self.senders: dict[Session, Sender] = {}
        self.prefixes = Prefixes(core)
        self.turns = SharedTurns("sending the log", tasks)
        self.waits = Waits(core, ticks, self.senders.values)
        self.good_count = 0
        self.on_count: Callable[[], None] = lambda: None  # writing may depend on `good_count`
        self._core = core
        self._engine = core.engine
        self._config = core.config
        self._clock = core.clock
        self._ticks = ticks
        self._tasks = tasks
        self._gate = gate
        self._rewriting = rewriting
        self._introductions: dict[Session, Introduction] = {}
        self._pinged_s = 0.0
        self._asked_offset = -1

    # -- coming and going ----------------------------------------------------------------------------------------------

    def introduced(self, session: Session, option: bytes, value: bytes) -> bool:
        """Note an option that a replica sends about itself; False when it is unknown.  Raises CommandError."""
        introduction = self._introductions.setdefault(session, Introduction())
        match option:
            case b"listening-port":
                port = parse_digits(value) if value.isdigit() else TOO_LARGE
                if port > 65535:
                    raise CommandError("ERR value is not an integer or out of range")
                introduction.port = port
            case b"ip-address":
                introduction.address = _address(value)
            case b"riverbed":
                if value != STREAM_FORMAT:
                    raise CommandError(f"ERR this primary sends its log in format {STREAM_FORMAT.decode()}")
                introduction.is_ours = True
            case b"capa" if value == STORE_CAPABILITY:
                introduction.asks_store = True
            case b"capa" | b"rdb-only" | b"version" | b"rdb-filter-only":
                pass
            case _:
                return False
        return True

    def attach(self, session: Session, replication_id: str, offset: int) -> None:
        """Send `session` the log of `replication_id` from `offset` on, or everything."""
        introduction = self._introductions.get(session, Introduction())
        sender = Sender(self._core, self._tasks, self, session, introduction, self._clock.monotonic())
        self.senders[session] = sender
        session.is_replica = True
        session.account.follow()
        session.refresh()
        self._engine.batches.on_written = self.batches
        log.info("replica %s asks for offset %d of %s", session.peer.address, offset, replication_id[:40])
        # behind the replies of this tick
        self._tasks.soon("beginning to send the log", sender.begin, replication_id, offset, failed=sender.give_up)

    def detach(self, session: Session) -> None:
        """Forget a client whose connection is gone."""
        self._introductions.pop(session, None)
        sender = self.senders.pop(session, None)
        if sender is not None:
            sender.close()
            log.info("replica %s is gone", session.peer.address)
            self.count_good()
        if not self.senders:
            self._engine.batches.on_written = None

    def cut_off(self) -> None:
        """Have all replicas connect again: their offsets are not ours any more, or the replication id has changed."""
        self._asked_offset = -1
        self.prefixes.drop_all()
        for sender in list(self.senders.values()):
            sender.cut_off()

    async def make_base(self, sender: Sender) -> None:
        """Have the log rewritten before `sender` is sent all of it, if it is long, or not all of it is ours.

        Raises LogWriteError when it cannot be sent as it is.
        """
        log_ = self._engine.log
        base = log_.base
        is_ours = all(file.is_checksummed for file in log_.home.manifest.incrs) and (
            base is None or base.command_bytes is not None
        )
        if is_ours and log_.size_bytes - log_.base_bytes <= max(REWRITE_BYTES, log_.base_bytes):
            return
        log.info("replica %s: the log is rewritten before", sender.session.peer.address)
        try:
            await asyncio.shield(self._rewriting.start())
        except RewriteError as error:
            if not is_ours:
                raise LogWriteError(f"the log could not be rewritten: {error}") from error

    @property
    def awaits_return(self) -> bool:
        """Whether a foreign replica that has the base is to come back for what follows."""
        return bool(self.prefixes)

    # -- the log -------------------------------------------------------------------------------------------------------

    def batches(self, batches: Sequence[StreamedBatch]) -> None:
        """Send batches that are in the log.  A replica that cannot be sent them is cut off; the tick goes on."""
        for sender in list(self.senders.values()):
            try:
                sender.batches(batches)
            except Exception as error:  # of its file, of uvloop for a transport that is closed, or a lack of memory
                sender.give_up(error)

    def ask_for_acks(self, target: int) -> None:
        """Have foreign replicas report whether they have everything up to the offset `target`.

        They report every second without being asked, and ours report each batch, so ours are never asked.  The
        question has to be in the log: a Redis counts every byte that it is sent in its offset, and asks any other
        server to continue there after a failover, or when it has replicas.  Were the question sent beside the log, only
        this server would know how far the replica's offset is ahead; the other server would leave out as many bytes.
        So the question is logged once for each offset that is waited for, not once for each WAIT or tick.  It takes 93
        bytes with the line that ends the batch, measured; without it a WAIT takes up to a second instead of 0.1 ms.
        """
        engine, txn = self._engine, self._core.txn
        if target <= self._asked_offset or not self._may_log or self._gate.levels_replicas:
            return
        if any(not sender.introduction.is_ours and sender.acked_offset < target for sender in self.senders.values()):
            # the answer is the offset before the question: what waits for the question too needs another
            self._asked_offset = engine.log.end.offset + sum(map(len, txn.log))
            txn.log.append(GETACK)
            self._ticks.want_tick()

    def tick_was_undone(self) -> None:
        """Ask for acknowledgements again: a question in the undone tick was never sent."""
        self._asked_offset = -1

    def acknowledged(self, session: Session, offset: int, synced_offset: int | None) -> None:
        sender = self.senders.get(session)
        if sender is not None:
            was_online = sender.state is State.ONLINE
            sender.acknowledged(offset, synced_offset, self._clock.monotonic())
            if not was_online:
                self.count_good()
            self.waits.check()

    # -- every second --------------------------------------------------------------------------------------------------

    def cycle(self) -> None:
        """Ping the replicas, cut off silent ones and one that takes up space, and count the good ones."""
        now_s = self._clock.monotonic()
        config = self._config
        for sender in list(self.senders.values()):
            sender.keep_alive(now_s)
            if now_s - sender.heard_s > config.repl_timeout:
                log.warning("replica %s: not heard of for %d s", sender.session.peer.address, config.repl_timeout)
                sender.cut_off()
        self._cut_off_slowest()
        self.prefixes.drop_old(self._takes_needed_space)
        period_s = config.repl_timeout / 2  # the replicas may have the same, and take a silent primary for dead
        if not self._gate.levels_replicas:  # then seldom: each ping is one more thing to come level with
            period_s = min(period_s, config.repl_ping_replica_period)
        if self.senders and now_s - self._pinged_s >= period_s and self._may_log:
            self._pinged_s = now_s
            self._core.txn.log.append(PING)
            self._ticks.want_tick()
        self.count_good()

    def _cut_off_slowest(self) -> None:
        """Where space is short, cut off the replica for which most bytes of deleted files of the log are kept."""
        slowest = max(self.senders.values(), key=attrgetter("held_bytes"), default=None)
        if slowest is not None and self._takes_needed_space(held := slowest.held_bytes):
            slowest.give_up(LagError(f"the disk is nearly full, and it has {held:,} bytes of old log still to come"))

    def _takes_needed_space(self, held_bytes: int) -> bool:
        """Whether the disk has less to spare than the files that are kept for a replica take: as for the backlog."""
        return held_bytes > 0 and not self._engine.space.may_keep(held_bytes)

    @property
    def _may_log(self) -> bool:
        """Whether lines for replicas alone may be logged.

        While writes wait for the disk, for space, or for a replica that is to take over, they may: a replica that hears
        nothing for `repl-timeout` gives up the link.
        """
        is_refused = self._engine.refusal is not None and self._engine.refusal not in NEARLY_FULL
        return not (self._core.txn.follows or is_refused)

    def count_good(self) -> None:
        """Count the replicas that were heard of lately; writing may depend on it."""
        now_s = self._clock.monotonic()
        lag = self._config.min_replicas_max_lag
        self.good_count = sum(
            sender.state is State.ONLINE and int(now_s - sender.heard_s) <= lag for sender in self.senders.values()
        )
        self.on_count()

    @property
    def lacks_replicas(self) -> bool:
        """Whether writes must be refused because there are too few replicas."""
        config = self._config
        least = config.min_replicas_to_write
        return bool(least and config.min_replicas_max_lag and self.good_count < least)

    # -- what INFO and ROLE report -------------------------------------------------------------------------------------

    def fields(self) -> Sequence[tuple[str, object]]:
        """connected_slaves and a line for each."""
        now_s = self._clock.monotonic()
        config = self._config
        fields: list[tuple[str, object]] = [("connected_slaves", len(self.senders))]
        if config.min_replicas_to_write and config.min_replicas_max_lag:
            fields.append(("min_slaves_good_slaves", self.good_count))
        for number, sender in enumerate(self.senders.values()):
            offset, lag = max(sender.acked_offset, 0), int(now_s - sender.heard_s)
            place = f"ip={sender.address},port={sender.introduction.port}"
            fields.append((f"slave{number}", f"{place},state={sender.state.value},offset={offset},lag={lag}"))
        return fields

    def role(self) -> Reply:
        replicas = [
            [os.fsencode(sender.address), b"%d" % sender.introduction.port, b"%d" % max(sender.acked_offset, 0)]
            for sender in self.senders.values()
            if sender.state is State.ONLINE
        ]
        return [b"master", self._engine.offset, replicas]


def _address(word: bytes) -> str:
    """The address that a replica announces, for INFO and ROLE; empty for the address that it connects from."""
    if len(word) > _MAX_ADDRESS_BYTES:
        raise CommandError(f"ERR REPLCONF ip-address provided by replica instance is too long: {len(word)} bytes")
    address = word.decode(errors="surrogateescape")
    if address and not (is_host(address) and _NOT_IN_ADDRESSES.isdisjoint(address)):
        raise CommandError("ERR Invalid ip-address")
    return address
