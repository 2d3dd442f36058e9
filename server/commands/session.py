"""One client as commands see it.  No sockets here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from riverbed.server.commands.client_state import (
    Names,
    Subscriptions,
    Transaction,
    batch_bytes,
    request_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from riverbed.server.commands.access.interface import Login
    from riverbed.server.limits.accounts import Account
    from riverbed.server.protocol.replies import Block, LongReply, Push
    from riverbed.server.protocol.request_reader import RequestReader
    from riverbed.store.databases.database import Database
    from riverbed.store.wire import Requests


# Memory of a key that a client waits for, measured, besides the words of the command that waits.
_BLOCKED_KEY_BYTES: Final = 770
# A client with more late reply bytes than this waits before its next request.
_MAX_LATE_BYTES: Final = 64 << 10


def _block_bytes(block: Block) -> int:
    return (block.argv_bytes or request_bytes(block.argv)) + _BLOCKED_KEY_BYTES * len(block.keys)


class Peer(Protocol):
    """What a session may ask of the connection it belongs to."""

    address: str

    @property
    def fd(self) -> int:
        """The number of the socket, -1 when it is closed."""

    @property
    def local_address(self) -> str:
        """The server's own end of the connection."""

    def close_soon(self) -> None:
        """Close unless replies are waiting for the tick; then `attend` closes after them."""

    def attend(self) -> None:
        """Called after a tick for a session with `attention`: close it if it is closing or beyond its output limit."""

    def set_reading(self, on: bool) -> None:
        """Read from the client, or leave its bytes in the socket."""

    def read_small_pieces(self, on: bool) -> None:
        """Take only a little from the client's socket at a time, or all there is."""

    def abort(self) -> None:
        """Close now, dropping what was not sent."""

    def has_hung_up(self) -> bool:
        """Whether the client sends nothing more; to be asked when it is not read, as its end is not seen then."""

    def output_bytes(self) -> int:
        """Reply bytes that its connection holds because the client has not read them yet."""


class Session:
    """A client's state between its requests.

    `is_plain` is False when the executor must take its slow path for this client (not authenticated, a user that may
    not do everything, inside MULTI, replies switched off, blocked, subscribed ...); `queues_runs` is True when it must
    only because of MULTI.  `refresh` derives both.
    """

    __slots__ = (
        "_backlog_bytes",
        "_closing",
        "account",
        "attempts_ns",
        "attention",
        "authenticated",
        "backlog",
        "blocked",
        "bytes_in",
        "bytes_out",
        "commands_processed",
        "congested",
        "created_ms",
        "db",
        "failed_auths",
        "guesses_from_ms",
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
        "last_wait_ms",
        "late_bytes",
        "long_reply",
        "may_do_all",
        "names",
        "no_evict",
        "no_touch",
        "out",
        "paused",
        "peer",
        "queues_runs",
        "replies_off",
        "resp",
        "rights",
        "send",
        "skip_replies",
        "sliced_bytes",
        "subscriptions",
        "transaction",
        "user",
        "written_offset",
    )

    def __init__(self, client_id: int, peer: Peer, account: Account, db: Database, now_ms: int) -> None:
        self.id = client_id
        self.peer = peer
        self.account = account
        self.db = db
        self.resp = 2
        self.names = Names(account)
        self.transaction = Transaction(account)
        self.subscriptions = Subscriptions()
        self.user: Login  # set by `Clients.connect`
        self.rights = 0  # a number that changes with what the user may do
        self.may_do_all = True  # the user may, so that no request need be looked at
        self.authenticated = False
        self.failed_auths = 0  # wrong passwords since the last right one
        self.guesses_from_ms = 0  # no password of a transaction is looked at before this time
        self.created_ms = now_ms
        self.last_interaction_ms = now_ms
        self.last_wait_ms = 0  # when it was last seen to wait for the server, or to take a long reply
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
        self.held_pushes: list[Push] = []  # must not get into the middle of a reply
        self.held_push_bytes = 0
        # blocking
        self.blocked: Block | None = None
        self.paused = False  # by CLIENT PAUSE
        self.congested = False  # does not read what it is sent
        self.long_reply: LongReply | None = None
        self.attempts_ns = 0  # how long the attempts of the command took that it waits with
        self.sliced_bytes = 0  # of the words of a command under way in slices; `SlicedCommands` keeps it
        # what it has sent; its requests that were taken out to be run and could not; whether it has a place in the
        # queue of clients whose requests run next, or is to have it back when it may go on (`is_held`)
        self.input: RequestReader  # set by `Clients.connect`
        self.backlog: Requests = []
        self._backlog_bytes = 0
        self.in_line = False
        self.is_held = False
        self.late_bytes = 0  # of replies that no turn had time to send
        # replies of this tick, in order, one element a request or a run of them
        self.out: list[bytes] = []
        self._closing = False
        self.is_plain = self.queues_runs = False
        # closing, or not reading its replies: look at it after each tick
        self.attention = False
        self.send: Callable[[bytes], None]  # hands replies over to be sent

    @property
    def closing(self) -> bool:
        """Whether the connection is about to close: no request of the client runs any more."""
        return self._closing

    def begin_closing(self) -> None:
        """Run no further request of the client, of whatever kind.

        The fast path stops too: otherwise it would run fast commands without the MULTI or SELECT before them.
        """
        self._closing = True
        self.is_plain = self.queues_runs = False
        self.attention = True

    def abort(self) -> None:
        """Close the connection at once, as some requests of the client are lost: it would mistake later replies."""
        self.begin_closing()
        self.out.clear()
        self.peer.abort()

    def be(self, user: Login) -> None:
        """Be that user, or the same one with other rights, from the next request on."""
        self.user = user
        self.may_do_all = user.is_unlimited
        self.rights += 1
        self.refresh()

    def authenticate(self, on: bool) -> None:
        """Allow the client everything from now on, or only what is allowed before AUTH."""
        self.authenticated = on
        self.input.authenticated = on
        self.account.trust(on)
        self.peer.read_small_pieces(self.account.pool.is_pressed)
        self.refresh()

    def refresh(self) -> None:
        """Derive what depends on several of the fields above; call it after changing one."""
        is_plain = (
            not self._closing
            and self.authenticated
            and self.may_do_all
            and not self.replies_off
            and not self.skip_replies
            and not self.is_monitor
            and not self.is_replica
            and not self.is_confined
            and not self.must_wait
        )
        self.queues_runs = is_plain and self.transaction.queued is not None
        self.is_plain = is_plain and not self.queues_runs
        self.attention = bool(self._closing or self.congested or self.is_held or self.long_reply)

    def spare(self, on: bool) -> None:
        """CLIENT NO-EVICT."""
        self.no_evict = on
        self.account.spare(on)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    @property
    def is_confined(self) -> bool:
        """A subscriber in RESP2 cannot tell messages from replies, so it may run few commands."""
        return self.resp == 2 and bool(self.subscriptions)

    def hold_push(self, push: Push) -> None:
        """Keep a push until the reply under way is complete."""
        self.held_pushes.append(push)
        self.held_push_bytes += len(push)
        self.account.add(len(push))

    def release_pushes(self) -> None:
        """The reply is complete: send the kept pushes after it."""
        self.out += self.held_pushes
        self.drop_pushes()

    def drop_pushes(self) -> None:
        """Drop the kept pushes."""
        if self.held_pushes:
            self.held_pushes.clear()
            self.account.add(-self.held_push_bytes)
            self.held_push_bytes = 0

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def must_wait(self) -> bool:
        """The client's next request may not run yet."""
        # a replica sends acknowledgements, which matter most when it is slow
        is_congested = self.congested and not self.is_replica
        is_late = self.late_bytes > _MAX_LATE_BYTES
        return bool(self.must_wait_for_others or is_congested or is_late or self.long_reply)

    @property
    def must_wait_for_others(self) -> bool:
        """It waits for a key, for the end of a pause or of its own command, not because of unread replies."""
        return self.blocked is not None or self.paused or self.is_sliced

    @property
    def is_idle(self) -> bool:
        """All that the client has sent was executed, and its replies were handed over; it waits for nothing."""
        return not (self.in_line or self.out or self.must_wait or self.input.has_unread or self.input.pending_bytes)

    def hold_back(self, requests: Requests) -> None:
        """Keep `requests`, the rest of a batch, and what arrives behind them, until the client may go on."""
        self.put_back(requests)
        self.in_line = self.is_held = True
        self.refresh()

    def put_back(self, requests: Requests) -> None:
        """Keep `requests`, which were taken to be run, for later."""
        self.backlog = requests
        self._backlog_bytes = batch_bytes(requests)

    def take_backlog(self) -> Requests:
        """Return the requests that were held back, to be run now."""
        backlog, self.backlog = self.backlog, []
        self._backlog_bytes = 0
        return backlog

    def end_transaction(self) -> None:
        """Forget what was kept for EXEC."""
        self.transaction.end()
        self.refresh()

    def block(self, block: Block) -> None:
        """Let the client wait with this command from now on."""
        self.blocked = block
        self.account.add(_block_bytes(block))
        self.refresh()

    def unblock(self) -> Block | None:
        """End the client's wait; -> the block that it waited with."""
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
        """Drop all requests that the client has sent."""
        self._drop_input()
        self.settle()

    def _drop_input(self) -> None:
        self.backlog, self._backlog_bytes = [], 0
        self.input.drop()

    def drop_all(self) -> None:
        """The client has gone: keep nothing for it."""
        self.out.clear()
        self.drop_pushes()
        self._drop_input()
        self.names.forget()
        self.account.close()

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
        """Count the memory kept for the client: call it when something is left over, and whenever that changes."""
        self.account.settle(
            waiting=self.input.unread_bytes,
            growing=self.input.pending_bytes + self.transaction.queued_bytes,
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
