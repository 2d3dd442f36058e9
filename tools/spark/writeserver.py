"""Entries to the streams of a running server: in pipelines, sent again when the connection breaks, each there once.

the server gives the ID     XADD key IDMP pid iid * ...: what was sent before is answered, not added
the row has one             XADD key ID ...: what is refused because the stream is beyond is looked for
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tools.console import Failure
from tools.redisclient import RedisClient, ReplyError, Word
from tools.spark.errors import SourceError
from tools.spark.writeidentity import LEAST_REMEMBERED, MOST_ROWS, Name
from tools.spark.writejournal import Attempt
from tools.spark.writeoptions import WriteOptions
from tools.spark.writerows import Entry

# The server may be able to answer in a moment.
_PASSING: Final = frozenset(("LOADING", "TRYAGAIN", "BUSY", "MASTERDOWN"))
_FIRST_PAUSE_S: Final = 0.1
_MOST_PAUSE_S: Final = 5.0
# Of a stream that is not there yet, until it is: what servers have unless told otherwise.
_USUAL_DURATION_S: Final = 100
_TOO_SMALL_ID: Final = "equal or smaller"
_NO_KEY: Final = "no such key"

_Answer = TypeVar("_Answer")


class Connection:
    """A connection that is made anew when it breaks; close it in any case.

    Every method raises SourceError when the server cannot be reached, after some tries, or refuses.
    """

    def __init__(self, options: WriteOptions, *, retries: int | None = None) -> None:
        assert options.server is not None
        self._options = options
        self._address = options.server
        self._retries = options.retries if retries is None else retries
        self._client: RedisClient | None = None
        self._clock_ms = 0.0  # the server's time less ours

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def now_ms(self) -> int:
        """By the server's clock."""
        if self._client is None:
            self.call("PING")
        return int(time.monotonic() * 1000 + self._clock_ms)

    def call(self, *words: Word) -> Any:
        """One request that may be sent twice."""
        return self.retried(lambda client: client.call(*words))

    def retried(self, ask: Callable[[RedisClient], _Answer]) -> _Answer:
        """What `ask` returns; called again, with another connection, when that fails or the server is not ready."""
        pause = _FIRST_PAUSE_S
        for tries_left in range(self._retries, -1, -1):
            try:
                return ask(self._connected())
            except Failure as failure:
                self.close()
                reason: Exception = failure
            except ReplyError as error:
                self.close()  # there may be replies that nobody has taken
                if error.code not in _PASSING:
                    raise SourceError(f"{self._address} refuses: {_advised(error)}") from error
                reason = error
            if tries_left:
                time.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)
        raise SourceError(f"{reason} (tried {self._retries + 1} times)") from reason

    def _connected(self) -> RedisClient:
        if self._client is None:
            client = RedisClient(self._address, self._options.timeout_s)
            try:
                client.call("SELECT", self._options.db)
                seconds, micros = client.call("TIME")
            except BaseException:
                client.close()
                raise
            self._clock_ms = int(seconds) * 1000 + int(micros) / 1000 - time.monotonic() * 1000
            self._client = client
        return self._client


def _advised(error: ReplyError) -> str:
    match error.code:
        case "MISCONF":
            return f"{error} (nothing is written until the server can write to its disk again)"
        case "READONLY":
            return f"{error} (name the primary as server)"
        case "OOM":
            return f"{error} (the server has reached its maxmemory)"
        case "WRONGTYPE":
            return f"{error} (the key holds something else than a stream)"
    return str(error)


def require_idempotence(connection: Connection) -> None:
    """Raise SourceError for a server that knows no IDMP."""

    def knows(client: RedisClient) -> bool:
        try:
            client.call("XCFGSET")
        except ReplyError as error:
            return "unknown command" not in str(error)
        return True

    if not connection.retried(knows):
        raise SourceError(
            "the server knows no idempotent production (XADD IDMP): take Riverbed or Redis 8.6, or idempotent=false, "
            "with which rows are written twice when a task is tried again"
        )


class Sender:
    """Appends the rows of one partition."""

    def __init__(self, connection: Connection, attempt: Attempt | None) -> None:
        """`attempt` None: rows are not named, and written again when they are sent again."""
        self._connection = connection
        self._attempt = attempt
        self._remembered_s: int | None = None  # by the stream that forgets first
        self._looked_at: set[bytes] = set()
        self._rows: dict[bytes, int] = {}

    def send(self, entries: list[Entry], names: list[Name] | None) -> None:
        """Append, in order.  Raises SourceError; then some of them may be there."""
        if names is not None:
            self._count(entries)
        waiting = deque((entry, _command(entry, names[at] if names else None)) for at, entry in enumerate(entries))

        def exchange(client: RedisClient) -> None:
            if self._attempt is not None:
                self._look_at(client, entries)
                seconds = _USUAL_DURATION_S if self._remembered_s is None else self._remembered_s
                self._attempt.require_may_send(self._connection.now_ms, seconds * 1000)
            self._exchange(client, waiting)

        self._connection.retried(exchange)

    def _exchange(self, client: RedisClient, waiting: deque[tuple[Entry, list[bytes]]]) -> None:
        """Send what is waiting, and leave in it what was not answered.  Raises Failure, ReplyError, SourceError."""
        client.send([command for _, command in waiting])
        passing: list[tuple[Entry, list[bytes]]] = []
        beyond: list[Entry] = []
        refusal: ReplyError | None = None
        reason: ReplyError | None = None
        while waiting:
            entry, command = waiting[0]
            try:
                client.receive()
            except ReplyError as error:
                if error.code in _PASSING:
                    passing.append((entry, command))
                    reason = error
                elif entry.entry_id is not None and _TOO_SMALL_ID in str(error):
                    beyond.append(entry)
                else:
                    refusal = refusal or error
            waiting.popleft()
        if refusal is not None:
            raise refusal
        self._require_there(client, beyond)
        if reason is not None:
            waiting.extend(passing)
            raise reason

    def _require_there(self, client: RedisClient, entries: list[Entry]) -> None:
        """Raise SourceError unless all of these, which have IDs, are in their streams as they are."""
        found = client.call_all([[b"XRANGE", key, entry_id or b"-", entry_id or b"-"] for key, entry_id, _ in entries])
        for entry, rows in zip(entries, found, strict=True):
            if rows and rows[0][1] == entry.words:
                continue
            assert entry.entry_id is not None
            where = f"stream {entry.key.decode(errors='backslashreplace')}"
            if rows:
                raise SourceError(f"{where} has another entry with ID {entry.entry_id.decode()}")
            raise SourceError(
                f"{where} is beyond ID {entry.entry_id.decode()} and has no such entry: IDs must ascend, so write all "
                f'rows of a stream from one partition, as repartition("key").sortWithinPartitions(...) makes them, '
                f"ordered by both numbers of the ID"
            )

    def _count(self, entries: list[Entry]) -> None:
        """Raise SourceError when there are more rows for a stream than their names are remembered of."""
        for entry in entries:
            rows = self._rows[entry.key] = self._rows.get(entry.key, 0) + 1
            if rows > MOST_ROWS:
                raise SourceError(f"a partition has more than {MOST_ROWS:,} rows for one stream: take more partitions")

    def _look_at(self, client: RedisClient, entries: list[Entry]) -> None:
        """Ask of each stream how much it remembers, when it is met for the first time."""
        keys = {entry.key for entry in entries if entry.entry_id is None} - self._looked_at
        if not keys:
            return
        asked = sorted(keys)
        client.send([[b"XINFO", b"STREAM", key] for key in asked])
        replies = [_reply_or_error(client) for _ in asked]
        for key, reply in zip(asked, replies, strict=True):
            if isinstance(reply, ReplyError):
                if _NO_KEY not in str(reply):
                    raise reply
                continue  # it is asked again when it is there
            about = dict(zip(reply[::2], reply[1::2], strict=True))
            most = about.get(b"idmp-maxsize", LEAST_REMEMBERED)
            if most < LEAST_REMEMBERED:
                raise SourceError(
                    f"stream {key.decode(errors='backslashreplace')} remembers {most} rows of a producer, and "
                    f"{LEAST_REMEMBERED} are needed: XCFGSET key IDMP-MAXSIZE {LEAST_REMEMBERED}, or idempotent=false"
                )
            seconds = about.get(b"idmp-duration", _USUAL_DURATION_S)
            self._remembered_s = min(seconds, self._remembered_s or seconds)
            self._looked_at.add(key)


def _reply_or_error(client: RedisClient) -> Any:
    try:
        return client.receive()
    except ReplyError as error:
        return error


def _command(entry: Entry, name: Name | None) -> list[bytes]:
    if entry.entry_id is not None:
        return [b"XADD", entry.key, entry.entry_id, *entry.words]
    if name is None:
        return [b"XADD", entry.key, b"*", *entry.words]
    return [b"XADD", entry.key, b"IDMP", *name, b"*", *entry.words]
