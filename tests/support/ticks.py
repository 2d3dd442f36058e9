"""The executor without sockets: clients that submit requests and keep what they are sent, on a log that can fail.

Several clients' requests reach one tick here because a test says so, not because the kernel happened to deliver them
together; and what was in the log when a reply went out can be looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from riverbed.server.assembly import Server
from riverbed.server.commands.channels import CHANNEL_BYTES
from riverbed.server.commands.client_state import Watched
from riverbed.server.commands.replay import Replayer
from riverbed.server.commands.session import Session
from riverbed.server.config.config import Config
from riverbed.server.execution.control.watches import WATCH_BYTES
from riverbed.store.engine import Engine
from riverbed.store.options import Fsync, Options
from tests.support.in_process import HandClock
from tests.support.raw import Frames, Word, encode
from tests.support.read_log import logged_batches, without_select
from tests.support.store.faulty_files import FaultyFiles

_TURNS = 50  # of the loop; more than any chain of ticks in these tests needs


class Files(FaultyFiles):
    """A file system in memory that tells when the log is made durable."""

    def __init__(self) -> None:
        super().__init__()
        self.before_sync: Callable[[], None] = lambda: None

    def sync(self, fd: int, /) -> None:
        self.before_sync()
        super().sync(fd)


class Client:
    """A peer that reads everything at once."""

    address = local_address = "test"
    fd = -1

    def __init__(self, ticks: Ticks) -> None:
        self._executor = ticks.executor
        self._frames = Frames()
        self.sent = 0  # bytes that have reached the client
        self.is_closed = False
        self.session = self._executor.clients.connect(self)
        self.session.send = self._receive

    def _receive(self, data: bytes) -> None:
        self.sent += len(data)
        self._frames.feed(data)

    def send(self, *commands: str) -> None:
        """Have these commands arrive in one piece, each a line of words."""
        self.send_bytes(b"".join(encode(line.split()) for line in commands))

    def send_words(self, *words: Word) -> None:
        self.send_bytes(encode(words))

    def send_bytes(self, data: bytes) -> None:
        if data:
            self._executor.receive(self.session, data)

    def end(self) -> None:
        """Send nothing more."""
        self._executor.receive_end(self.session)

    def replies(self) -> list[bytes]:
        """What came since the last look."""
        replies = []
        while (reply := self._frames.next()) is not None:
            replies.append(reply)
        return replies

    def leave(self) -> None:
        self._executor.clients.disconnect(self.session)

    # -- Peer

    def close_soon(self) -> None:
        if not self.session.out and not self._executor.outbox.holds(self.session):
            self.is_closed = True

    def attend(self) -> None:
        if self.session.closing:
            self.close_soon()

    def set_reading(self, on: bool) -> None: ...

    def read_small_pieces(self, on: bool) -> None: ...

    def abort(self) -> None:
        self.is_closed = True

    def has_hung_up(self) -> bool:
        return False

    def output_bytes(self) -> int:
        return 0


class Ticks:
    """An executor over a store in `directory` with its log in memory.  Make it inside of a running loop."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Files | None = None,
        clock: HandClock | None = None,
        segment_bytes: int = 1 << 30,
        map_bytes: int = 1 << 28,
        **settings: object,
    ) -> None:
        self.directory = directory
        self.files = files or Files()
        self.clock = clock or HandClock()
        debug = settings.pop("enable_debug_command", "yes")
        self.config = Config.load(["--enable-debug-command", str(debug)])
        self.config.set([(name.replace("_", "-"), str(value)) for name, value in settings.items()])
        options = Options(
            fsync=Fsync(self.config.appendfsync),
            map_bytes=map_bytes,
            reserve_bytes=1 << 20,
            segment_bytes=segment_bytes,
        )
        self.engine = Engine.open(
            directory, execute=Replayer().execute, clock=self.clock, files=self.files, options=options
        )
        self.server = Server(self.config, self.engine, self.clock)
        self.executor = self.server.executor

    def connect(self) -> Client:
        return Client(self)

    async def settle(self) -> None:
        """Let everything run that is due."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def ask(self, client: Client, *commands: str) -> list[bytes]:
        """The replies to commands that arrive together, once nothing is left to do."""
        client.send(*commands)
        await self.settle()
        return client.replies()

    def keep_transaction(self) -> None:
        """From now on, have only an undo begin another transaction: no repair, and no checkpoint by the clock.

        A slow machine comes to those that the commits before have armed, and to those that later ones would arm.
        """
        self.executor.events.damaged.clear()
        self.executor.events.committed.clear()
        self.server.checkpoints.stop()

    def batches(self) -> list[list[bytes]]:
        """Every batch of the log as lines of words, SELECT left out."""
        return without_select(logged_batches(self.directory, self.files))

    def check_accounts(self) -> None:
        """What is counted for each client is what the server keeps for it, and the total is their sum."""
        sessions = list(self.executor.context.sessions.values())
        book = self.executor.accounts
        assert book.total + book.replicas_total == sum(session.account.bytes for session in sessions)
        pools = (book.clients, book.strangers, book.replicas)
        assert sum(pool.bytes for pool in pools) == sum(session.account.owed for session in sessions)
        for session in sessions:
            account = session.account
            counted = account.owed
            session.settle()
            assert account.owed == counted, session.id
            assert account.kept == self._bytes_of_names(session), session.id
            assert account.bucket == (0 if session.no_evict else (account.bytes >> 10).bit_length())

    def _bytes_of_names(self, session: Session) -> int:
        """What a client has the server remember."""
        pubsub = self.executor.context.pubsub
        listens = session.subscriptions
        watched = session.transaction.watched or Watched(session)
        return (
            len(session.names.client)
            + len(session.names.library)
            + len(session.names.library_version)
            + sum(len(key) + WATCH_BYTES for keys in watched.keys.values() for key in keys)
            + sum(len(name) + CHANNEL_BYTES for name in (*listens.channels, *listens.shard_channels))
            + sum(pubsub.patterns.bytes_of(name) for name in listens.patterns)
        )

    def close(self, *, save: bool = True) -> None:
        self.check_accounts()
        self.server.maintenance.stop()
        self.server.checkpoints.stop()
        self.server.checkpoints.close()
        self.engine.close(save=save)


def in_loop(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's body on a loop of its own."""
    asyncio.run(test)
