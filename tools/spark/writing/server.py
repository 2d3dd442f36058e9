"""Appends entries to streams of a running server, in transactions.  After a retry each entry is still there once.

the server gives the ID     the transaction notes the row in the journal (`journal.py`); noted rows are not sent again
the row has an ID           if refused as too small, the entry is looked for, then noted with the next rows
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from riverbed.store.ids import MAX_ID, id_text
from riverbed.tools.console.console import Failure
from riverbed.tools.live.redisclient import RedisClient, ReplyError, Word, fields
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.writing.identity import Names
from riverbed.tools.spark.writing.journal import Command, Job, Journal
from riverbed.tools.spark.writing.options import WriteOptions
from riverbed.tools.spark.writing.rows import Entry

# Errors after which the server may answer soon.
_PASSING: Final = frozenset(("LOADING", "TRYAGAIN", "BUSY", "MASTERDOWN"))
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0
# A conflict is a transaction of another attempt, or the end of the job.
_MAX_CONFLICTS: Final = 100_000
_TOO_SMALL_ID: Final = "equal or smaller"
_NO_KEY: Final = "no such key"
_LAST_ID: Final = id_text(MAX_ID)

_Answer = TypeVar("_Answer")


class Connection:
    """A connection that is made again when it breaks.  It must be closed.

    Every method raises SourceError when the server cannot be reached, after some tries, or refuses.
    """

    def __init__(self, options: WriteOptions, *, retries: int | None = None) -> None:
        assert options.server is not None
        self._options = options
        self._address = options.server
        self._retries = options.retries if retries is None else retries
        self._client: RedisClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, *words: Word) -> Any:
        """Send one request, which may be sent twice."""
        return self.retried(lambda client: client.call(*words))

    def retried(self, ask: Callable[[RedisClient], _Answer]) -> _Answer:
        """What `ask` returns.  `ask` is called again, with a new connection, if it fails or the server is not ready."""
        pause = _FIRST_PAUSE_S
        for tries_left in range(self._retries, -1, -1):
            try:
                return ask(self._connected())
            except Failure as failure:
                self.close()
                reason: Exception = failure
            except ReplyError as error:
                self.close()  # there may be unread replies
                if error.code not in _PASSING:
                    raise SourceError(f"{self._address} refuses: {_advised(error)}") from error
                reason = error
            if tries_left:
                time.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)
        raise SourceError(f"{reason} (tried {self._retries + 1} times)") from reason

    def _connected(self) -> RedisClient:
        if self._client is None:
            client = RedisClient(self._address, self._options.timeout_s)
            try:
                client.call("SELECT", self._options.db)
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._client


def _advised(error: ReplyError) -> str:
    match error.code:
        case "MISCONF":
            return f"{error} (the server takes no write until it can write to its disk again)"
        case "READONLY":
            return f"{error} (name the primary as server)"
        case "OOM":
            return f"{error} (the server has reached its maxmemory)"
        case "WRONGTYPE":
            return f"{error} (the key holds something else than a stream)"
    return str(error)


class Sender:
    """Appends the rows of one partition, in one attempt."""

    def __init__(self, connection: Connection, job: Job, partition: int) -> None:
        self._connection = connection
        self._names = Names()
        self._journal = Journal(job, partition)
        self._found: list[bytes] = []  # written rows with IDs that are not in the journal yet
        self._refusal: ReplyError | None = None
        self._refused: list[bytes] = []
        self._streams: set[bytes] = set()  # streams that were checked

    def send(self, entries: list[Entry]) -> None:
        """Append the entries that are missing, in order.  Raises SourceError; some entries may be written then."""
        names = self._names.of(entries)
        self._connection.retried(lambda client: self._write(client, entries, names))

    def finish(self) -> int:
        """Note the last rows.  -> how many lines the journal has"""
        if self._found:
            self._connection.retried(lambda client: self._write(client, [], []))
        return self._journal.lines

    def _write(self, client: RedisClient, entries: list[Entry], names: list[bytes]) -> None:
        for _ in range(_MAX_CONFLICTS):
            self._require_accepted(client)
            self._journal.watch(client)
            if self._journal.is_committed:
                return
            missing = self._journal.missing(names)
            if len(missing) < len(entries):
                self._require_streams(client, {entry.key for entry in entries})
            rows = [(entries[at], names[at]) for at in missing]
            if not rows and not self._found:
                return
            if self._execute(client, rows):
                self._require_accepted(client)
                return
        raise SourceError("other attempts write to this partition all the time")

    def _execute(self, client: RedisClient, rows: list[tuple[Entry, bytes]]) -> bool:
        """Execute one transaction.  False if another attempt has written: then nothing was done."""
        names = [*self._found, *(name for entry, name in rows if entry.entry_id is None)]
        commands: list[Command] = [[b"XADD", key, entry_id or b"*", *words] for (key, entry_id, words), _ in rows]
        if names:
            commands.append(self._journal.line(names))
        client.send([[b"MULTI"], *commands, [b"EXEC"], *self._journal.commands_behind()])
        queued = [_reply_or_error(client) for _ in range(1 + len(commands))]
        executed, _, length = [_reply_or_error(client) for _ in range(3)]
        if executed is None:
            self._journal.must_watch_again()
            return False
        if isinstance(executed, ReplyError):
            raise next((reply for reply in queued if isinstance(reply, ReplyError)), executed)
        if names and isinstance(executed[-1], Exception):
            raise ReplyError(str(executed[-1]))
        found = self._sort_out(client, rows, executed)
        if self._refusal is not None:
            self._journal.must_watch_again()  # which reads our own line as well
            return True
        self._found = found
        self._journal.executed(client, executed[-1] if names else None, length)
        return True

    def _sort_out(self, client: RedisClient, rows: list[tuple[Entry, bytes]], replies: list[Any]) -> list[bytes]:
        """The names of the rows with IDs: all are written now, unless a row was refused.  Remembers the refusal."""
        beyond: list[Entry] = []
        for (entry, name), reply in zip(rows, replies, strict=False):
            if not isinstance(reply, Exception):
                continue
            if entry.entry_id is not None and _TOO_SMALL_ID in str(reply):
                beyond.append(entry)
                continue
            self._refusal = self._refusal or ReplyError(str(reply))
            if entry.entry_id is None:
                self._refused.append(name)
        if self._refusal is None:
            self._require_there(client, beyond)
        return [name for entry, name in rows if entry.entry_id is not None]

    def _require_accepted(self, client: RedisClient) -> None:
        """Raise the refusal of the server, if any.  First note in the journal that the refused rows are not written."""
        if self._refusal is None:
            return
        if self._refused:
            self._journal.watch(client)
            missing = set(self._journal.missing(self._refused))  # noted as refused already, if that reply was lost
            noted = [name for at, name in enumerate(self._refused) if at not in missing]
            if noted:
                client.call(*self._journal.refusal_line(noted))
                self._journal.must_watch_again()
        raise self._refusal

    def _require_streams(self, client: RedisClient, keys: set[bytes]) -> None:
        """Raise ReplyError unless each of these streams can have taken the rows that the journal has noted for it.

        The server may have refused these rows, and the attempt that sent them may not have received that reply.
        """
        asked = sorted(keys - self._streams)
        client.send([[b"XINFO", b"STREAM", key] for key in asked])
        replies = [_reply_or_error(client) for _ in asked]
        for reply in replies:
            if isinstance(reply, ReplyError):
                if _NO_KEY not in str(reply):
                    raise reply
            elif fields(reply).get(b"last-generated-id") == _LAST_ID:
                raise ReplyError("ERR The stream has exhausted the last possible ID")
        self._streams.update(asked)

    def _require_there(self, client: RedisClient, entries: list[Entry]) -> None:
        """Raise SourceError unless each of these entries, which have IDs, is in its stream with equal fields."""
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


def _reply_or_error(client: RedisClient) -> Any:
    try:
        return client.receive()
    except ReplyError as error:
        return error
