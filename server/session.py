"""One client as commands see it, and one request of it.  No sockets here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.context import Context
    from server.dispatch import Plain
    from server.replies import LongReply, Park, Push
    from server.slices import Slices
    from store.keyspace import Database
    from store.writetxn import WriteTxn


# What a client that waits may have sent behind the command it waits with, before its socket is left alone.
MOST_BACKLOG_BYTES: Final = 64 << 10
# A word's own share of memory: the object and its place in a list.
_WORD_BYTES: Final = 48


def request_bytes(argv: list[bytes]) -> int:
    """What a kept request takes, about."""
    return sum(map(len, argv)) + _WORD_BYTES * len(argv)


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

    def limit_requests(self, bulk_bytes: int, query_bytes: int) -> None:
        """The largest word, and the largest unfinished request, from now on."""

    def abort(self) -> None:
        """Close now, dropping what was not sent."""

    def output_bytes(self) -> int:
        """Reply bytes that the client has not read yet."""

    def query_bytes(self) -> int:
        """Bytes of a request that is not complete."""


class Session:
    """A client's state between its requests.

    `special` is True when the executor must take its careful path for this client (not authenticated, inside MULTI,
    replies switched off, blocked, subscribed ...); `refresh_special` derives it.
    """

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
        self.watched: dict[tuple[Database, bytes], int] = {}
        self.watch_broken = False
        # subscriptions, oldest first; `server.pubsub` keeps them
        self.channels: dict[bytes, None] = {}
        self.patterns: dict[bytes, None] = {}
        self.shard_channels: dict[bytes, None] = {}
        self.held_pushes: list[Push] = []  # not to be put into the middle of a reply
        self.held_push_bytes = 0
        # blocking
        self.parked: Park | None = None
        self.paused = False  # by CLIENT PAUSE
        self.congested = False  # does not read what it is sent
        self.long_reply: LongReply | None = None
        self.slices: Slices | None = None  # a command under way
        # requests that arrived while the client may not run any
        self.backlog: list[list[bytes]] = []
        self.backlog_bytes = 0
        # replies of this tick, in order, one element a request
        self.out: list[bytes] = []
        self._closing = False
        self.special = True
        # the commands that may take the executor's fast path: all plain ones, or none while `special`
        self.plain: dict[bytes, Plain] = {}
        self.fast_path: dict[bytes, Plain] = {}
        # closing, or not reading its replies: look at it after each tick
        self.attention = False
        self.send: Callable[[bytes], None]  # hands replies over to be sent
        self.request: Request  # set by whoever connects the session

    @property
    def closing(self) -> bool:
        """The connection is about to close: no request of the client runs any more."""
        return self._closing

    def begin_closing(self) -> None:
        """Run no further request of the client, of whatever kind.

        The fast path closes with it: left open, it would run fast commands without the MULTI or SELECT before them.
        """
        self._closing = True
        self.refresh_special()

    def refresh_special(self) -> None:
        """Derive what depends on several of the fields above; call it after changing one."""
        self.special = (
            not self.authenticated
            or self.queued is not None
            or self.replies_off
            or self.skip_replies > 0
            or self.is_monitor
            or self.is_replica
            or self.is_confined
            or self._closing
            or self.must_wait
        )
        self.plain = {} if self.special else self.fast_path
        self.attention = bool(self._closing or self.congested or self.backlog or self.long_reply)

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

    def release_pushes(self) -> None:
        """The reply is complete: what was kept goes out behind it."""
        self.out += self.held_pushes
        self.held_pushes.clear()
        self.held_push_bytes = 0

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def must_wait(self) -> bool:
        """The client's next request may not run yet."""
        # what a replica sends are acknowledgements, and they matter most when it is slow
        is_congested = self.congested and not self.is_replica
        return bool(self.must_wait_for_others or is_congested or self.backlog or self.long_reply)

    @property
    def must_wait_for_others(self) -> bool:
        """It waits for a key, for the end of a pause or of its own command, not for itself."""
        return self.parked is not None or self.paused or self.slices is not None

    def hold_back(self, requests: list[list[bytes]]) -> None:
        """Keep `requests` until the client may go on; much of it, and no more is read from the client until then."""
        self.backlog += requests
        self.backlog_bytes += sum(map(request_bytes, requests))
        self.peer.set_reading(self.backlog_bytes <= MOST_BACKLOG_BYTES)
        self.refresh_special()

    def queue(self, argv: list[bytes]) -> None:
        """Keep a command for EXEC."""
        assert self.queued is not None
        self.queued.append(argv)
        self.queued_bytes += request_bytes(argv)

    def take_backlog(self) -> list[list[bytes]]:
        """What was held back, to be run now."""
        backlog, self.backlog = self.backlog, []
        self.backlog_bytes = 0
        if backlog:
            self.peer.set_reading(True)
        self.refresh_special()
        return backlog

    def begin_long_reply(self, reply: LongReply, now_s: float) -> None:
        self.long_reply = reply
        reply.progress_s = now_s
        self.refresh_special()

    def end_long_reply(self) -> None:
        if self.long_reply is not None:
            self.long_reply.pieces.close()
            self.long_reply = None
            self.refresh_special()


class Request:
    """One command of one client.  Reused from request to request: keep nothing of it."""

    __slots__ = ("argv", "context", "db", "from_log", "in_transaction", "may_block", "now_ms", "session", "txn")

    context: Context

    def __init__(self, session: Session, txn: WriteTxn, context: Context | None = None) -> None:
        """Without a context for the commands of a log: none that is logged needs one."""
        if context is not None:
            self.context = context
        self.session = session
        self.txn = txn
        self.db = session.db
        self.argv: list[bytes] = []
        self.now_ms = 0
        self.from_log = False  # replayed from a log or a primary: the decisions are in the words already
        self.in_transaction = False
        self.may_block = True
