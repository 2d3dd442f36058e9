"""Where copied streams go: into a new data directory, or to a running server."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final, Protocol

from riverbed.server.commands.replay import Replayer
from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import RedisClient, ReplyError
from riverbed.tools.offline.rebuild import Builder, SystemClock

_COMMANDS_A_BATCH: Final = 256
_BYTES_A_BATCH: Final = 1 << 20

Words = list[bytes]


class Sink(Protocol):
    """Takes canonical commands, in order.  Every method raises Failure when it cannot go on."""

    knows_log_commands: bool  # those that only our log may hold
    is_riverbed: bool

    def select(self, database: int) -> None: ...

    def has(self, key: bytes) -> bool: ...

    def run(self, words: Words) -> None: ...

    def drop(self, key: bytes) -> None:
        """Undo what was begun with `key`."""

    def finish(self) -> None:
        """Make all of it durable."""


class DirectorySink:
    """Builds a data directory offline; close it in any case."""

    knows_log_commands = is_riverbed = True

    def __init__(self, directory: Path) -> None:
        clock = SystemClock()
        self._builder = Builder(directory, clock)
        self._txn = self._builder.txn
        self._db = self._txn.databases[0]
        self._execute = Replayer(int(time.time() * 1000)).execute

    def select(self, database: int) -> None:
        if database >= len(self._txn.databases):
            raise Failure(f"the source has streams in database {database}; here are {len(self._txn.databases)}")
        self._db = self._txn.databases[database]

    def has(self, key: bytes) -> bool:
        return self._db.stream(key, 0) is not None

    def run(self, words: Words) -> None:
        self._execute(self._txn, self._db, words)
        if len(self._txn.log) >= _COMMANDS_A_BATCH:
            self._builder.commit()

    def drop(self, key: bytes) -> None:
        if self.has(key):
            self.run([b"DEL", key])

    def finish(self) -> None:
        self._builder.finish()

    def close(self) -> None:
        self._builder.close()


class ServerSink:
    """Sends to a running Riverbed, or a Redis from 7 on."""

    knows_log_commands = False

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self.is_riverbed = client.is_riverbed
        self._waiting: list[Words] = []
        self._waiting_bytes = 0

    def select(self, database: int) -> None:
        self._flush()
        self._call(b"SELECT", b"%d" % database)

    def has(self, key: bytes) -> bool:
        self._flush()
        return bool(self._call(b"EXISTS", key))

    def run(self, words: Words) -> None:
        self._waiting.append(words)
        self._waiting_bytes += sum(map(len, words))
        if len(self._waiting) >= _COMMANDS_A_BATCH or self._waiting_bytes >= _BYTES_A_BATCH:
            self._flush()

    def drop(self, key: bytes) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        with contextlib.suppress(Failure):
            self._call(b"DEL", key)

    def finish(self) -> None:
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting:
            try:
                self._client.call_all(waiting)
            except ReplyError as error:
                raise Failure(
                    f"{self._client.address} refused {waiting[0][0].decode()} and what follows: {error}"
                ) from error

    def _call(self, *words: bytes) -> object:
        try:
            return self._client.call(*words)
        except ReplyError as error:
            raise Failure(f"{self._client.address}: {error}") from error
