"""One request of a client, and what its handler may ask of the server.

`Context` is passed along with every `Request`; nothing is global.  Each protocol lists what commands may call of one
part of the server; no protocol names an event loop or a socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from riverbed.server.commands.core import Core
from riverbed.server.errors import NO_SUCH_KEY, CommandError
from riverbed.server.protocol.replies import LONG_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverbed.server.commands.session import Session
    from riverbed.server.protocol.replies import Block, Reply
    from riverbed.store.databases.transaction import WriteTxn
    from riverbed.store.streams.stream import Stream
    from riverbed.store.wire import Neighbours


class Control(Protocol):
    """What a command may ask of the executor."""

    def unblock(self, session: Session, *, error: bool) -> bool:
        """End a client's wait as by timeout, or with an error; -> whether it was waiting (CLIENT UNBLOCK)."""

    def refuse(self, session: Session, error: CommandError) -> None:
        """End the wait of a blocked client with an error."""

    def kill(self, session: Session, *, drops_unread: bool = False) -> None:
        """Close a client's connection now, or when it has read what was sent.  For a command: `Request.kill`.

        With `drops_unread` nothing waits for a client that may never read: not its place, the file of a long reply or
        a view.
        """

    def blocked_clients(self) -> int: ...

    def awaited_keys(self) -> int:
        """How many keys blocked clients wait for."""

    def needed_keys(self) -> int:
        """For how many keys a blocked client waits that gets an error when the key is deleted."""

    def watched_keys(self) -> int: ...

    def forget(self, session: Session) -> None:
        """Undo everything a session has under way (RESET, disconnect).

        That is its transaction, watches, wait and monitoring, and the subscriptions of one that is closing.
        """

    def views(self) -> tuple[int, int]:
        """-> (views of the tables that long replies hold, commands that wait for one)."""

    def sleep(self, seconds: float) -> None:
        """Stall everything (DEBUG SLEEP)."""


class Transactions(Protocol):
    """What a command may ask of the transactions."""

    def execute(self, request: Request) -> Reply:
        """Run what the session has queued, or `request.run`, as one transaction; -> the list of the replies (EXEC)."""

    def watch(self, session: Session, key: bytes, expire_ms: int, *, is_hidden: bool) -> None:
        """Break the session's next transaction if `key` of its database changes, or expires then (WATCH).

        `is_hidden`: it has expired, and its deletion is no change.
        """

    def unwatch(self, session: Session) -> None: ...


class Pauses(Protocol):
    """What a command may ask of the pauses."""

    def pause(self, until_ms: int, *, writes_only: bool) -> None:
        """Hold back clients' commands, or only their writes, until then (CLIENT PAUSE)."""

    def unpause(self) -> None: ...


class Monitors(Protocol):
    """The clients that see every command."""

    def __len__(self) -> int: ...

    def add(self, session: Session) -> None:
        """Show the session every command that any client sends, until `Control.forget` (MONITOR)."""


class Checkpoints(Protocol):
    """What a command may ask of the checkpoints."""

    @property
    def is_disk_behind(self) -> bool:
        """Whether so much waits for the disk that writes wait, too."""

    def checkpoint(self) -> None:
        """Checkpoint now, with the caller's own effects (SAVE).  Raises CommandError when it fails."""

    def reload(self, *, from_log: bool) -> None:
        """Checkpoint, then read the state again, or make it of the whole log (DEBUG).  Raises CommandError."""

    def checkpoint_later(self) -> None:
        """Begin a checkpoint behind this tick (BGSAVE)."""


class Snapshots(Protocol):
    """What a command may ask of the snapshots."""

    def begin(self, request: Request, name: str | None, keep: int | None) -> Block:
        """Start a snapshot of everything up to now; the client waits for its end.  Raises CommandError."""

    def list(self, request: Request) -> Block:
        """List the snapshots; the client waits for the answer."""


class Repairs(Protocol):
    """What a command may ask of the repairs of the tables."""

    def begin(self, request: Request) -> Block:
        """Make the tables again of the log; the client waits for its end.  Raises CommandError."""


class Rewriting(Protocol):
    """What a command may ask of the rewrites of the log."""

    def start(self) -> object:
        """Begin to rewrite the log (BGREWRITEAOF)."""

    def schedule(self) -> None:
        """Have a rewrite begun soon."""


class Replication(Protocol):
    """What a command may ask of replication."""

    @property
    def is_replica(self) -> bool: ...

    @property
    def is_syncing(self) -> bool:
        """Whether a full sync is under way, beside the data that are served."""

    def follow(self, host: str, port: int) -> bool:
        """Become a replica of that server; False when it is one already (REPLICAOF)."""

    def promote(self) -> None:
        """Be a primary from here on (REPLICAOF NO ONE)."""

    def fail_over(self, target: tuple[str, int] | None, timeout_ms: int | None, *, force: bool) -> None:
        """Hand over to that replica, or to the one that has everything first (FAILOVER)."""

    def abort_failover(self) -> None:
        """Abort the handover (FAILOVER ABORT)."""

    def take_over(self, replication_id: str, offset: int, *, is_forced: bool) -> None:
        """Become the primary in the place of ours, with that replication id and end of its log (PSYNC ... FAILOVER).

        When that `is_forced`, what is not here is given up (FORCE).
        """

    def role(self) -> Reply:
        """The answer to ROLE."""

    def fields(self) -> Iterator[tuple[str, object]]:
        """INFO replication."""

    def counters(self) -> Iterator[tuple[str, object]]:
        """Syncs so far, for INFO stats."""

    def introduced(self, session: Session, option: bytes, value: bytes) -> bool:
        """Note what a replica reports about itself (REPLCONF); False when the option is unknown."""

    def acknowledged(self, session: Session, offset: int, synced_offset: int | None) -> None:
        """Note the offset that a replica has reached, and the offset that is on its disk."""

    def attach(self, session: Session, replication_id: str, next_offset: int) -> None:
        """Send the session the log from `next_offset` on, the first byte that it lacks (PSYNC)."""

    def wait(self, request: Request, count: int, deadline_ms: int | None, *, local: int | None = None) -> Reply:
        """Have the client wait until `count` replicas have what it wrote (WAIT; with `local` WAITAOF)."""


class Stopping(Protocol):
    """What a command may ask about the end of the server."""

    def ask(self, request: Request, *, save: bool | None, now: bool, force: bool) -> Reply:
        """Stop the server; the client waits for the end, or for an error when there is none (SHUTDOWN)."""

    def abort(self) -> bool:
        """Go on serving; -> whether a stop was under way (SHUTDOWN ABORT)."""

    def remaining_ms(self) -> int | None:
        """How long the server still waits for replicas at most; None when it does not wait."""


class Context(Core):
    """One server, as seen by its commands.  The assembly sets the parts that they may use."""

    control: Control
    transactions: Transactions
    pauses: Pauses
    monitors: Monitors
    checkpoints: Checkpoints
    snapshots: Snapshots
    repairs: Repairs
    rewriting: Rewriting
    replication: Replication
    stopping: Stopping


class Request:
    """One command of one client.  Reused from request to request: keep nothing of it."""

    __slots__ = (
        "_stats",
        "argv",
        "context",
        "db",
        "from_log",
        "in_transaction",
        "may_block",
        "now_ms",
        "room",
        "run",
        "session",
        "txn",
    )

    context: Context

    def __init__(self, session: Session, txn: WriteTxn, context: Context | None = None) -> None:
        """`context` is None for the commands of a log, which need none."""
        if context is not None:
            self.context = context
        self._stats = None if context is None else context.stats
        self.session = session
        self.txn = txn
        self.db = session.db
        self.argv: list[bytes] = []
        self.run: Neighbours | None = None  # in the place of words, when there are none
        self.now_ms = 0
        self.from_log = False  # replayed from a log or a primary: the decisions are in the words already
        self.may_block = True
        # bytes of its reply that may be kept in memory; None for no limit, as a log gets no reply
        self.room: int | None = LONG_BYTES
        self.in_transaction = False

    def count_lookup(self, found: bool, times: int = 1) -> None:
        """Count lookups of a key as hits or misses, where Redis does.  The commands of a log are not counted."""
        if self._stats is not None:
            self._stats.count_lookup(found, times)

    def lookup(self, key: bytes) -> Stream | None:
        """The stream `key`, counted as a hit or a miss."""
        stream = self.db.stream(key, self.now_ms)
        self.count_lookup(stream is not None)
        return stream

    def existing_stream(self, key: bytes) -> Stream:
        """The stream `key`.  Raises CommandError when there is none."""
        stream = self.db.stream(key, self.now_ms)
        if stream is None:
            raise CommandError(NO_SUCH_KEY)
        return stream

    def kill(self, session: Session) -> None:
        """Close a client's connection: now, or behind the reply to this command for the client that sent it."""
        if session is self.session:
            session.begin_closing()
        else:
            self.context.control.kill(session, drops_unread=True)

    def copy(self) -> Request:
        """The same command, to be continued later."""
        own = Request(self.session, self.txn, getattr(self, "context", None))
        own.db = self.db
        own.argv = self.argv
        own.now_ms = self.now_ms
        own.from_log = self.from_log
        own.may_block = self.may_block
        own.room = self.room
        own.in_transaction = self.in_transaction
        return own
