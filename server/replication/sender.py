"""Sends one replica the answer to its PSYNC, then the log from its offset on, for as long as the link lasts.

    SEARCHING --------> ONLINE          what it lacks is in the log: +CONTINUE
        |                  ^
        '-> SYNCING -------'            it is sent everything: +FULLRESYNC, the base, the log since

A replica that has caught up is sent each batch as it is committed.  A replica that reads more slowly is sent the log's
files, a slice at a time as its socket drains, so it costs no memory however far behind it is.

A real Redis is sent an RDB that holds nothing, and then the base as commands; its offset is set back before them by as
many bytes, possibly below zero.  These offsets are not ours, and another server that the replica may turn to must never
take them for ours.  So until the replica has all of the base, it is sent an id that only we know.  Then we cut the
link: the replica comes back with that id, and continues with the real one.
"""

from __future__ import annotations

import enum
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from riverbed.store.errors import StoreError
from riverbed.store.format.log_lines import encode_command
from riverbed.store.log.search import LogSearch
from riverbed.store.log.tail import LogTail, first_preface, start_of
from riverbed.store.position import LogPosition

if TYPE_CHECKING:
    from riverbed.server.background.shared_turns import SharedTurns
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.commands.core import Core
    from riverbed.server.commands.session import Session
    from riverbed.server.replication.prefixes import Prefixes
    from riverbed.store.log.streamed.batch import StreamedBatch

log = logging.getLogger("riverbed")

# What an empty Redis 5 to 7 would send: magic and version, end of file, no checksum.
EMPTY_RDB: Final = b"REDIS0009\xff" + bytes(8)
GETACK: Final = encode_command([b"REPLCONF", b"GETACK", b"*"])
PING: Final = encode_command([b"PING"])
# From this offset a Redis takes us for a primary of before 2.8, to which it acknowledges nothing.
UNKNOWN_OFFSET: Final = -1
SLICE_BYTES: Final = 256 << 10
# Longer batches are read from the files as the socket drains, so that they do not exceed the output limit of replicas.
LIVE_BYTES: Final = 1 << 20
# Less than a millisecond of searching.
SEARCH_BATCHES: Final = 250


class AckError(Exception):
    """A replica says that it has what was never written."""


class LagError(Exception):
    """A replica keeps files of the log from being freed that the disk needs the space of."""


class State(enum.Enum):
    """States of a replica, in the words of INFO."""

    SEARCHING = "wait_bgsave"
    SYNCING = "send_bulk"
    ONLINE = "online"


@dataclass(slots=True)
class Introduction:
    """What a replica has said about itself with REPLCONF.

    `is_ours` if it keeps the same log, `asks_store` if it wants to be sent the store's id.
    """

    port: int = 0
    address: str = ""
    is_ours: bool = False
    asks_store: bool = False


class Bases(Protocol):
    """Makes the bases with which full syncs begin, and keeps what follows them for replicas that come back."""

    prefixes: Prefixes
    turns: SharedTurns

    async def make_base(self, sender: Sender) -> None:
        """Have a base that `sender` can be sent.  Raises LogWriteError when there is none."""


class Sender:
    """Sends the log to one replica.  Offsets are those that it has acknowledged, -1 for none yet."""

    def __init__(
        self, core: Core, tasks: Tasks, bases: Bases, session: Session, introduction: Introduction, now_s: float
    ) -> None:
        self.session = session
        self.introduction = introduction
        self.state = State.SEARCHING
        self.acked_offset = self.synced_offset = -1
        self.heard_s = now_s
        self._engine = core.engine
        self._stats = core.stats
        self._tasks = tasks
        self._bases = bases
        self._verbatim = introduction.is_ours
        self._tail: LogTail | None = None
        self._search: LogSearch | None = None
        self._is_at_end = False
        self._step: Callable[[], None] | None = None  # what its turn is asked for, while it is
        self._closed = False
        self._bytes_in = 0
        # While a foreign replica takes the base: the base's own id, the bytes to send last, the offset where it ends.
        self._base_tail: LogTail | None = None
        self._prefix_id = ""
        self._prefix_tail = b""
        self._prefix_end = 0

    @property
    def address(self) -> str:
        return self.introduction.address or self.session.peer.address.rpartition(":")[0].strip("[]")

    @property
    def place(self) -> tuple[str, int]:
        """The host and port that it announces."""
        return self.address.lower(), self.introduction.port

    # -- the answer to PSYNC -------------------------------------------------------------------------------------------

    def begin(self, replication_id: str, offset: int) -> None:
        """Answer a replica that has the log of `replication_id` up to `offset`."""
        if self._closed:  # it has gone, and may come back for a prefix that is kept
            return
        engine = self._engine
        prefix = self._bases.prefixes.take(replication_id, offset)
        if prefix is not None:
            self._tail = prefix
            self._continue()
        elif engine.log.replids.holds(replication_id, offset):
            any_byte = not self._verbatim
            self._search = LogSearch(engine.log, engine.files, offset, engine.keeper.known_offsets, any_byte=any_byte)
            self._look_on(replication_id)
        else:
            self._begin_full_sync(replication_id, "it has nothing, or what another server wrote")

    def _look_on(self, replication_id: str) -> None:
        self._in_turn(lambda: self._look(replication_id))

    def _look(self, replication_id: str) -> None:
        search = self._search
        assert search is not None
        if not search.step(SEARCH_BATCHES):
            self._look_on(replication_id)
            return
        self._search = None
        if search.place is None:
            self._begin_full_sync(replication_id, "the log that is kept does not have what it lacks")
        else:
            self._stats.syncs_partial += 1
            self._tail = self._new_tail(search.place, skip=search.skip)
            self._continue()

    def _continue(self) -> None:
        replication_id = self._engine.log.replids.replication_id.encode()
        self._send(b"+CONTINUE %b%b\r\n" % (replication_id, self._store_word()))
        log.info("replica %s: goes on where it was", self.session.peer.address)
        self.state = State.ONLINE
        self._in_turn(self._pump)

    def _store_word(self) -> bytes:
        store_id = self._engine.log.replids.store_id
        return b" %b" % store_id.encode() if self.introduction.asks_store else b""

    def _new_tail(self, place: LogPosition, *, skip: int = 0, preface_of: int = 0, only_file: bool = False) -> LogTail:
        log, files, verbatim = self._engine.log, self._engine.files, self._verbatim
        return LogTail(log, files, place, verbatim=verbatim, skip=skip, preface_of=preface_of, only_file=only_file)

    # -- full sync -----------------------------------------------------------------------------------------------------

    def _begin_full_sync(self, replication_id: str, reason: str) -> None:
        if replication_id != "?":
            self._stats.syncs_refused += 1
        self._stats.syncs_full += 1
        log.info("replica %s: is sent everything: %s", self.session.peer.address, reason)
        self._tasks.start(
            "full sync of a replica", self._full_sync(), failed=self.give_up, expected=(StoreError, OSError)
        )

    async def _full_sync(self) -> None:
        await self._bases.make_base(self)
        self._in_turn(self._send_all if self._verbatim else self._send_commands)

    def _send_all(self) -> None:
        """Announce the log as it is: where it begins and ends, and how long its base is; then send its files."""
        engine = self._engine
        manifest, end = engine.log.home.manifest, engine.log.end
        start = start_of(manifest)
        base = engine.log.base
        sizes = (base.size, base.command_bytes or 0) if base is not None else (0, 0)
        head = (engine.log.replids.replication_id.encode(), start.offset, end.offset, *sizes, self._store_word())
        self._tail = self._new_tail(start, preface_of=manifest.incrs[0].seq)
        self.state = State.SYNCING
        self._send(b"+FULLRESYNC %b %d %d %d %d%b\r\n" % head)
        self._in_turn(self._pump)

    def _send_commands(self) -> None:
        """Announce what a foreign replica understands: an RDB that holds nothing, then the whole log as commands."""
        engine = self._engine
        manifest = engine.log.home.manifest
        start = start_of(manifest)
        first = manifest.incrs[0]
        self._tail = self._new_tail(LogPosition(first.seq, 0, start.offset))
        replication_id = engine.log.replids.replication_id
        offset = start.offset
        if manifest.base is not None:
            self._base_tail = self._new_tail(start, only_file=True)
            self._prefix_id = replication_id = secrets.token_hex(20)
            self._prefix_end = start.offset
            self._prefix_tail = first_preface(engine.log, engine.files) + GETACK
            assert manifest.base.command_bytes is not None  # by `make_base`
            offset -= manifest.base.command_bytes + len(self._prefix_tail)
            if offset == UNKNOWN_OFFSET:
                self._prefix_tail = PING + self._prefix_tail
                offset -= len(PING)
        self.state = State.SYNCING
        head = b"+FULLRESYNC %b %d\r\n$%d\r\n%b"
        self._send(head % (replication_id.encode(), offset, len(EMPTY_RDB), EMPTY_RDB))
        self._in_turn(self._pump)

    def _base_acknowledged(self) -> None:
        """The replica has all of the base: cut the link, so that it comes back and is sent the real id."""
        assert self._tail is not None
        self._bases.prefixes.keep(self._prefix_id, self._prefix_end, self._tail)
        self._tail = None
        self.cut_off()

    # -- the log -------------------------------------------------------------------------------------------------------

    def batches(self, batches: Sequence[StreamedBatch]) -> None:
        """Send batches that were just committed."""
        if not self._is_at_end or self._tail is None:
            return
        if self.session.congested:
            self._is_at_end = False  # they come from the files, when the replica has read what it was sent
            return
        if batches[-1].spill is not None or sum(len(batch.data) for batch in batches) > LIVE_BYTES:
            self._is_at_end = False
            self._in_turn(self._pump)
            return
        verbatim = self._verbatim
        parts = [batch.data if verbatim else batch.command_data() for batch in batches]
        self._send(parts[0] if len(parts) == 1 else b"".join(parts))
        self._tail.jump(self._engine.log.end)

    def drained(self) -> None:
        """The replica's socket takes more."""
        if self._tail is not None:
            self._in_turn(self._pump)

    def _in_turn(self, step: Callable[[], None]) -> None:
        """Take a step, which reads a slice of the log, when it is this replica's turn."""
        if self._step is None:
            self._step = step
            self._bases.turns.ask(self)

    def take_turn(self) -> None:
        step, self._step = self._step, None
        if self._closed:
            return
        assert step is not None
        try:
            step()
        except (StoreError, OSError) as error:
            self._cannot_read(error)

    def _pump(self) -> None:
        """Send a slice from the files, unless the replica reads no further, or has everything."""
        if self._is_at_end or self._tail is None or self.session.congested:
            return
        if self._prefix_id and self._base_tail is None:
            return  # the log comes when the replica has come back
        data = (self._base_tail or self._tail).read(SLICE_BYTES)
        if data == b"":
            if self._base_tail is None:
                self._is_at_end = True
                return
            self._base_tail.close()
            self._base_tail = None
            data = self._prefix_tail
        if data is not None:
            self._send(data)
        self._in_turn(self._pump)

    def _send(self, data: bytes) -> None:
        if not self._closed:
            self.session.bytes_out += len(data)
            self._stats.replication_bytes_out += len(data)
            self.session.send(data)

    # -- what comes back -----------------------------------------------------------------------------------------------

    def acknowledged(self, offset: int, synced_offset: int | None, now_s: float) -> None:
        self.heard_s = now_s
        if self._prefix_id:
            # A Redis answers the question with the offset before it, and counts it then.  Where it said so of itself,
            # and lost the question with the link, it comes back without it, and is sent everything again.
            if self._base_tail is None and offset >= self._prefix_end - len(GETACK):
                self._base_acknowledged()
            return
        end = self._engine.log.end.offset
        if max(offset, synced_offset or 0) > end:
            self.give_up(AckError(f"it says that it has offset {offset}, and the log ends at {end}"))
            return
        self.acked_offset = max(self.acked_offset, offset)
        if synced_offset is not None:
            self.synced_offset = max(self.synced_offset, synced_offset)
        if self.state is State.SYNCING:
            log.info("replica %s: has everything and follows", self.session.peer.address)
            self.state = State.ONLINE

    def keep_alive(self, now_s: float) -> None:
        """Send an empty line to a replica that waits for an answer: it says that there will be one."""
        if self.state is State.SEARCHING:
            self._send(b"\n")
            self.heard_s = now_s
        elif self.session.bytes_in != self._bytes_in:  # its own empty lines, while it takes a full sync
            self.heard_s = now_s
        self._bytes_in = self.session.bytes_in

    # -- the end -------------------------------------------------------------------------------------------------------

    def _cannot_read(self, error: Exception) -> None:
        """Cut the replica off.  If it was reading from before the log, it is sent everything the next time."""
        if self._search is not None:
            file_seq = self._search.file_seq
        else:
            file_seq = 0 if self._tail is None else self._tail.place.file_seq
        log_ = self._engine.log
        if any(file.seq == file_seq for file in log_.home.manifest.backlog):
            log_.history.end_backlog()
        self.give_up(error)

    @property
    def held_bytes(self) -> int:
        """The bytes of deleted files of the log that the replica is still to be sent."""
        return sum(tail.held_bytes for tail in (self._tail, self._base_tail) if tail is not None)

    def give_up(self, error: Exception) -> None:
        """Cut the replica off; it connects again."""
        log.warning("replica %s is cut off: %s", self.session.peer.address, error)
        self.cut_off()

    def cut_off(self) -> None:
        """Close the link now.  Nothing that the replica has said behind this is heard: it may be of another log."""
        self.close()
        self.session.abort()

    def close(self) -> None:
        self._closed = True
        if self._search is not None:
            self._search.close()
        for tail in (self._tail, self._base_tail):
            if tail is not None:
                tail.close()
        self._tail = self._base_tail = None
