"""One client as commands see it.  No sockets here."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.limits.accounts import Account
    from riverbed.server.protocol.replies import Block, LongReply, Push
    from riverbed.server.protocol.request_reader import RequestReader
    from riverbed.store.databases.database import Database
    from riverbed.store.tables.namespace import Namespace


# A word's own share of memory: the object and its place in a list; and that of the list.
_WORD_BYTES: Final = 48
_LIST_BYTES: Final = 80
# What remembering a key that a client waits for takes, measured, besides the words of the command that waits.
_BLOCKED_KEY_BYTES: Final = 770
# Replies that are late, of which there are so many, are waited for before there are more.
_MAX_LATE_BYTES: Final = 64 << 10


def request_bytes(argv: list[bytes]) -> int:
    """What a kept request takes, about."""
    return sum(map(len, argv)) + _WORD_BYTES * len(argv) + _LIST_BYTES


def _batch_bytes(requests: list[list[bytes]]) -> int:
    """What several take, about; in C, as there may be a hundred, and more than once a tick."""
    if not requests:
        return 0
    words = list(chain.from_iterable(requests))
    return sum(map(len, words)) + _WORD_BYTES * len(words) + _LIST_BYTES * len(requests)


def _block_bytes(block: Block) -> int:
    return request_bytes(block.argv) + _BLOCKED_KEY_BYTES * len(block.keys)


class Peer(Protocol):
    """What a session may ask of the connection it belongs to."""

    address: str
    local_address: str
    fd: int

    def close_soon(self) -> None:
        """Close unless replies are waiting for the tick; `attend` closes behind those."""

    def attend(self) -> None:
        """The session needs attention after a tick: close it if it is closing, cut it off beyond its output limit."""

    def set_reading(self, on: bool) -> None:
        """Read from the client, or leave what it sends with it."""

    def read_small_pieces(self, on: bool) -> None:
        """Take only a little from the client's socket at a time, or all there is."""

    def abort(self) -> None:
        """Close now, dropping what was not sent."""

    def output_bytes(self) -> int:
        """Reply bytes that its connection holds because the client has not read them yet."""


class Session:
    """A client's state between its requests.

    `is_plain` is False when the executor must take its slow path for this client (not authenticated, inside MULTI,
    replies switched off, blocked, subscribed ...); `refresh` derives it.
    """

    __slots__ = (
        "_backlog_bytes",
        "_closing",
        "account",
        "attention",
        "authenticated",
        "backlog",
        "blocked",
        "bytes_in",
        "bytes_out",
        "channels",
        "commands_processed",
        "congested",
        "created_ms",
        "db",
        "held_push_bytes",
        "held_pushes",
        "id",
        "in_line",
        "input",
        "is_held",
        "is_monitor",
        "is_plain",
        "is_replica",
        "last_command",
        "last_interaction_ms",
        "late_bytes",
        "library_name",
        "library_version",
        "long_reply",
        "name",
        "no_evict",
        "no_touch",
        "out",
        "patterns",
        "paused",
        "peer",
        "queue_failed",
        "queued",
        "queued_bytes",
        "replies_off",
        "resp",
        "send",
        "shard_channels",
        "skip_replies",
        "sliced_bytes",
        "watch_broken",
        "watch_until_ms",
        "watched",
        "written_offset",
    )

    def __init__(self, client_id: int, peer: Peer, db: Database, now_ms: int) -> None:
        self.id = client_id
        self.peer = peer
        self.db = db
        self.resp = 2
        self.name = b""
        self.library_name = b""
        self.library_version = b""
        self.authenticated = False
        self.created_ms = now_ms
        self.last_interaction_ms = now_ms
        self.last_command = b""
        self.commands_processed = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.no_evict = False
        self.no_touch = False
        self.is_monitor = False
        self.is_replica = False
        self.written_offset = 0  # where the log ended when the client's last write was in it, or later
        # CLIENT REPLY
        self.replies_off = False
        self.skip_replies = 0
        # MULTI
        self.queued: list[list[bytes]] | None = None
        self.queued_bytes = 0
        self.queue_failed = False
        self.watched: dict[Namespace, dict[bytes, None]] = {}  # none for a database without a watched key
        self.watch_broken = False
        self.watch_until_ms = 0  # when the first of those keys expires, 0 for never
        # subscriptions, oldest first; `server.commands.channels` keeps them
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.shard_channels: dict[bytes, None] = {}
        self.held_pushes: list[Push] = []  # not to be put into the middle of a reply
        self.held_push_bytes = 0
        # blocking
        self.blocked: Block | None = None
        self.paused = False  # by CLIENT PAUSE
        self.congested = False  # does not read what it is sent
        self.long_reply: LongReply | None = None
        self.sliced_bytes = 0  # of the words of a command under way in slices; `SlicedCommands` keeps it
        # what it has sent; requests of it that were taken out to be run and could not; whether it has a place in the
        # line of those whose requests run next, or is to have it back when it may go on (`is_held`)
        self.input: RequestReader  # set by `Executor.connect`
        self.backlog: list[list[bytes]] = []
        self._backlog_bytes = 0
        self.in_line = False
        self.is_held = False
        self.late_bytes = 0  # of replies that no turn had time to send
        self.account: Account  # set by `Executor.connect`
        # replies of this tick, in order, one element a request
        self.out: list[bytes] = []
        self._closing = False
        self.is_plain = False
        # closing, or not reading its replies: look at it after each tick
        self.attention = False
        self.send: Callable[[bytes], None]  # hands replies over to be sent

    @property
    def closing(self) -> bool:
        """The connection is about to close: no request of the client runs any more."""
        return self._closing

    def begin_closing(self) -> None:
        """Run no further request of the client, of whatever kind.

        The fast path closes with it: left open, it would run fast commands without the MULTI or SELECT before them.
        """
        self._closing = True
        self.refresh()

    def authenticate(self, on: bool) -> None:
        """The client may do everything from now on, or only what strangers may."""
        self.authenticated = on
        self.input.authenticated = on
        self.account.trust(on)
        self.peer.read_small_pieces(self.account.pool.is_pressed)
        self.refresh()

    def refresh(self) -> None:
        """Derive what depends on several of the fields above; call it after changing one."""
        self.is_plain = (
            self.authenticated
            and self.queued is None
            and not self.replies_off
            and not self.skip_replies
            and not self.is_monitor
            and not self.is_replica
            and not self.is_confined
            and not self._closing
            and not self.must_wait
        )
        self.attention = bool(self._closing or self.congested or self.is_held or self.long_reply)

    # -- names ---------------------------------------------------------------------------------------------------------

    def rename(self, name: bytes) -> None:
        """CLIENT SETNAME; b"" is no name."""
        self.account.keep(len(name) - len(self.name))
        self.name = name

    def name_library(self, name: bytes) -> None:
        self.account.keep(len(name) - len(self.library_name))
        self.library_name = name

    def name_library_version(self, version: bytes) -> None:
        self.account.keep(len(version) - len(self.library_version))
        self.library_version = version

    def forget_names(self) -> None:
        """The client has gone; its session may be garbage for a while."""
        self.rename(b"")
        self.name_library(b"")
        self.name_library_version(b"")

    def spare(self, on: bool) -> None:
        """CLIENT NO-EVICT."""
        self.no_evict = on
        self.account.spare(on)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    @property
    def is_subscriber(self) -> bool:
        return bool(self.channels or self.patterns or self.shard_channels)

    @property
    def is_confined(self) -> bool:
        """A subscriber in RESP2 cannot tell messages from replies, so there are to be no replies of most commands."""
        return self.resp == 2 and self.is_subscriber

    def hold_push(self, push: Push) -> None:
        """Keep a push until the reply under way is complete."""
        self.held_pushes.append(push)
        self.held_push_bytes += len(push)
        self.account.add(len(push))

    def release_pushes(self) -> None:
        """The reply is complete: what was kept goes out behind it."""
        self.out += self.held_pushes
        self.drop_pushes()

    def drop_pushes(self) -> None:
        """None of what was kept goes out."""
        self.held_pushes.clear()
        self.account.add(-self.held_push_bytes)
        self.held_push_bytes = 0

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def must_wait(self) -> bool:
        """The client's next request may not run yet."""
        # what a replica sends are acknowledgements, and they matter most when it is slow
        is_congested = self.congested and not self.is_replica
        is_late = self.late_bytes > _MAX_LATE_BYTES
        return bool(self.must_wait_for_others or is_congested or is_late or self.long_reply)

    @property
    def must_wait_for_others(self) -> bool:
        """It waits for a key, for the end of a pause or of its own command, not for itself."""
        return self.blocked is not None or self.paused or self.is_sliced

    def hold_back(self, requests: list[list[bytes]]) -> None:
        """Keep `requests`, the rest of a batch, and what arrives behind them, until the client may go on."""
        self.put_back(requests)
        self.in_line = self.is_held = True
        self.refresh()

    def put_back(self, requests: list[list[bytes]]) -> None:
        """Keep `requests`, which were taken to be run, for later."""
        self.backlog = requests
        self._backlog_bytes = _batch_bytes(requests)

    def take_backlog(self) -> list[list[bytes]]:
        """What was held back, to be run now."""
        backlog, self.backlog = self.backlog, []
        self._backlog_bytes = 0
        return backlog

    @property
    def watched_keys(self) -> int:
        return sum(map(len, self.watched.values()))

    def queue(self, argv: list[bytes]) -> None:
        """Keep a command for EXEC."""
        assert self.queued is not None
        self.queued.append(argv)
        size = request_bytes(argv)
        self.queued_bytes += size
        self.account.grow(size)

    def end_transaction(self) -> None:
        """Forget what was kept for EXEC."""
        self.queued = None
        self.queue_failed = False
        if self.queued_bytes:
            self.account.grow(-self.queued_bytes)
            self.queued_bytes = 0
        self.refresh()

    def block(self, block: Block) -> None:
        """The client waits with this command from now on."""
        self.blocked = block
        self.account.add(_block_bytes(block))
        self.refresh()

    def unblock(self) -> Block | None:
        """The client waits no longer; -> what it waited with."""
        block, self.blocked = self.blocked, None
        if block is not None:
            self.account.add(-_block_bytes(block))
        self.refresh()
        return block

    @property
    def is_sliced(self) -> bool:
        """A command of the client is under way in slices."""
        return self.sliced_bytes > 0

    def begin_slices(self, argv: list[bytes]) -> None:
        """The client waits for the end of the command with these words."""
        self.sliced_bytes = request_bytes(argv)
        self.account.add(self.sliced_bytes)
        self.refresh()

    def end_slices(self) -> None:
        self.account.add(-self.sliced_bytes)
        self.sliced_bytes = 0
        self.refresh()

    def drop_input(self) -> None:
        """None of what the client has sent will run."""
        self.put_back([])
        self.input.drop()
        self.settle()

    # -- what it has the server keep -----------------------------------------------------------------------------------

    @property
    def taken_bytes(self) -> int:
        """Bytes of requests that were taken out of the input and could not run, and of the one that it waits with."""
        size = self._backlog_bytes + self.sliced_bytes
        return size if self.blocked is None else size + _block_bytes(self.blocked)

    @property
    def output_bytes(self) -> int:
        """Bytes of replies and messages that the client has not read."""
        return self.late_bytes + self.held_push_bytes + self.peer.output_bytes()

    def settle(self) -> None:
        """Count what the server keeps for the client: whenever something is left over, and whenever that changes."""
        self.account.settle(
            waiting=self.input.unread_bytes,
            growing=self.input.pending_bytes + self.queued_bytes,
            other=self.taken_bytes + self.output_bytes,
        )

    def begin_long_reply(self, reply: LongReply, now_s: float) -> None:
        self.long_reply = reply
        reply.progress_s = now_s
        self.refresh()

    def end_long_reply(self) -> None:
        if self.long_reply is not None:
            self.long_reply.close()
            self.long_reply = None
            self.refresh()
