"""Targets for copied streams and loaded entries: a data directory, or a running server."""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from pathlib import Path
from typing import Any, Final, Protocol

from riverbed.server.commands.replay import Replayer
from riverbed.store.ids import MAX_ID, StreamID, id_text, make_id, parse_id
from riverbed.store.streams.stream import Stream
from riverbed.tools.console.console import Failure, counted
from riverbed.tools.live.redisclient import RedisClient, ReplyError, fields
from riverbed.tools.offline.newdirectory import PARTIAL_MARK
from riverbed.tools.offline.rebuild import Builder

_COMMANDS_A_BATCH: Final = 256
_BYTES_A_BATCH: Final = 1 << 20

Words = list[bytes]


class Sink(Protocol):
    """Takes canonical commands and entries, in order.  Every method raises Failure when it cannot continue.

    `loaded` is the number of added entries that are in their streams for good, up to the first that was refused.
    """

    loaded: int

    @property
    def takes_policies(self) -> bool:
        """Whether XGROUP POLICY is to be tried, as on a Riverbed."""

    @property
    def keeps_times(self) -> bool:
        """Whether XGROUP SEEN sets when a consumer was seen."""

    def select(self, database: int) -> None: ...

    def has(self, key: bytes) -> bool: ...

    def last_id(self, key: bytes) -> StreamID:
        """The last ID of a stream, as far as replies have shown it; 0-0 when there is no stream."""

    def run(self, words: Words) -> None: ...

    def configure(self, words: Words) -> bool:
        """Run an XCFGSET -> whether it was: a Redis before 8.6 has none, and a user may have no right to it."""

    def add(self, key: bytes, entry_id: bytes | None, words: Words, line: int = 0) -> None:
        """Append an entry, with a new ID when it has none; `line` is its line in a file, for messages.

        Raises ValueError, and appends nothing, when the stream cannot take that ID.
        """

    def begin(self, key: bytes) -> bytes:
        """The key at which to build the copy of the stream `key`."""

    def complete(self, building: bytes, key: bytes, *, may_expire: bool) -> bool:
        """Move the finished copy to `key` -> whether it is there: not when there is another stream by now.

        A copy that `may_expire` may be gone already.
        """

    def drop(self, building: bytes) -> None:
        """Delete the unfinished copy."""

    def finish(self) -> None:
        """Make everything durable."""


class DirectorySink:
    """Writes to a data directory that no server uses; always close it.  Raises LockedError when a server uses it."""

    keeps_times = takes_policies = True

    def __init__(self, directory: Path, database: int = 0) -> None:
        if directory.is_file():
            raise Failure(f"{directory} is not a directory")
        self.loaded = 0
        self._builder = Builder(directory)
        self._txn = self._builder.txn
        self._execute = Replayer(int(time.time() * 1000)).execute
        self._waiting = self._waiting_bytes = self._waiting_entries = 0
        try:
            self.select(database)
        except Failure:
            self.close()
            raise

    def select(self, database: int) -> None:
        databases = self._txn.databases
        if database >= len(databases):
            raise Failure(f"there is no database {database} here; there are {len(databases)}")
        self._db = databases[database]

    def has(self, key: bytes) -> bool:
        return self._db.stream(key, 0) is not None

    def last_id(self, key: bytes) -> StreamID:
        stream = self._live(key)
        return StreamID(0) if stream is None else stream.last_id

    def _live(self, key: bytes) -> Stream | None:
        """The stream to append to: one whose deadline has passed is deleted first, as a server deletes it."""
        stream = self._db.stream(key, 0)
        if stream is not None and 0 < stream.expire_ms <= time.time() * 1000:
            self._db.expire(stream)
            return None
        return stream

    def run(self, words: Words) -> None:
        self._execute(self._txn, self._db, words)
        self._count(words)

    def configure(self, words: Words) -> bool:
        self.run(words)
        return True

    def add(self, key: bytes, entry_id: bytes | None, words: Words, line: int = 0) -> None:
        stream = self._live(key)
        last_id = StreamID(0) if stream is None else stream.last_id
        new_id = _next_id(last_id) if entry_id is None else _explicit_id(entry_id, last_id)
        (stream or self._db.create(key)).append_entry(new_id, words)
        self._waiting_entries += 1
        self._count(words)

    def _count(self, words: Words) -> None:
        self._waiting += 1
        self._waiting_bytes += sum(map(len, words))
        if self._waiting >= _COMMANDS_A_BATCH or self._waiting_bytes >= _BYTES_A_BATCH:
            self._commit()

    def _commit(self) -> None:
        self._builder.commit()
        self.loaded += self._waiting_entries
        self._waiting = self._waiting_bytes = self._waiting_entries = 0

    def begin(self, key: bytes) -> bytes:
        return key  # the directory is read when it is complete

    def complete(self, building: bytes, key: bytes, *, may_expire: bool) -> bool:
        return True

    def drop(self, building: bytes) -> None:
        if self.has(building):
            self.run([b"DEL", building])

    def finish(self) -> None:
        self._commit()
        self._builder.checkpoint()

    def close(self) -> None:
        self._builder.close()


class ServerSink:
    """Sends to a running Riverbed, or a Redis from 7 on, some hundred commands at a time.

    IDs are checked before anything is sent: if the server refuses an entry of a batch, it still takes the later ones.
    """

    def __init__(self, client: RedisClient) -> None:
        self.loaded = 0
        self._client = client
        self._waiting: list[tuple[Words, int]] = []  # with the line of an entry
        self._waiting_bytes = 0
        self._last_ids: dict[bytes, StreamID] = {}  # of streams to which entries are added

    @functools.cached_property
    def takes_policies(self) -> bool:
        try:
            return self._client.is_riverbed
        except ReplyError:  # a user with few rights is not told what it is
            return True

    @functools.cached_property
    def keeps_times(self) -> bool:
        try:
            return self._client.is_riverbed and self._client.has_command("xgroup|seen")
        except ReplyError:
            return False

    def select(self, database: int) -> None:
        self._flush()
        self._call(b"SELECT", b"%d" % database)

    def has(self, key: bytes) -> bool:
        self._flush()
        return bool(self._call(b"EXISTS", key))

    def last_id(self, key: bytes) -> StreamID:
        if key not in self._last_ids:
            last_id = None
            if self.has(key):
                last_id = parse_id(fields(self._call(b"XINFO", b"STREAM", key))[b"last-generated-id"])
            self._last_ids[key] = last_id or StreamID(0)
        return self._last_ids[key]

    def run(self, words: Words) -> None:
        self._send(words, 0)

    def configure(self, words: Words) -> bool:
        self._flush()
        try:
            self._client.call(*words)
        except ReplyError as error:
            if error.code == "NOPERM" or str(error).startswith("ERR unknown command"):
                return False
            raise Failure(f"{self._client.address} refused {words[0].decode()}: {error}") from error
        return True

    def add(self, key: bytes, entry_id: bytes | None, words: Words, line: int = 0) -> None:
        last_id = self.last_id(key)
        if entry_id is not None:
            self._last_ids[key] = _explicit_id(entry_id, last_id)
        self._send([b"XADD", key, entry_id or b"*", *words], line)

    def _send(self, words: Words, line: int) -> None:
        self._waiting.append((words, line))
        self._waiting_bytes += sum(map(len, words))
        if len(self._waiting) >= _COMMANDS_A_BATCH or self._waiting_bytes >= _BYTES_A_BATCH:
            self._flush()

    def begin(self, key: bytes) -> bytes:
        # a killed command leaves a part, which is not to be taken for the stream
        return key + f"{PARTIAL_MARK}{secrets.token_hex(4)}".encode()

    def complete(self, building: bytes, key: bytes, *, may_expire: bool) -> bool:
        self._flush()
        try:
            is_there = bool(self._client.call(b"RENAMENX", building, key))
        except ReplyError as error:
            if str(error) == "ERR no such key" and may_expire:
                return True
            raise Failure(f"{self._client.address} refused RENAMENX: {error}") from error
        if not is_there:
            self.drop(building)
        return is_there

    def drop(self, building: bytes) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        with contextlib.suppress(Failure):
            self._call(b"DEL", building)

    def finish(self) -> None:
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        refused: list[tuple[Words, int, ReplyError]] = []
        taken_behind = 0
        self._client.send([words for words, _ in waiting])
        for words, line in waiting:
            try:
                reply = self._client.receive()
            except ReplyError as error:
                refused.append((words, line, error))
                continue
            if line:
                self._last_ids[words[1]] = max(self._last_ids[words[1]], parse_id(reply) or StreamID(0))
                if refused:
                    taken_behind += 1
                else:
                    self.loaded += 1
        if refused:
            words, line, reason = refused[0]
            if not line:
                raise Failure(f"{self._client.address} refused {words[0].decode()}: {reason}") from reason
            behind = f", but {counted(taken_behind, 'entry')} between these" if taken_behind else ""
            raise Failure(
                f"line {line}: {self._client.address} refuses it: {reason}; {counted(len(refused), 'entry')} of those "
                f"up to line {waiting[-1][1]} {'is' if len(refused) == 1 else 'are'} not loaded, nor any line behind it"
                f"{behind}"
            ) from reason

    def _call(self, *words: bytes) -> Any:
        try:
            return self._client.call(*words)
        except ReplyError as error:
            raise Failure(f"{self._client.address}: {error}") from error


def _next_id(last_id: StreamID) -> StreamID:
    """The ID that XADD with * chooses."""
    now = make_id(time.time_ns() // 1_000_000, 0)
    if now > last_id:
        return now
    if last_id == MAX_ID:
        raise ValueError("the stream has the largest ID there is: no entry can follow")
    return StreamID(last_id + 1)


def _explicit_id(text: bytes, last_id: StreamID) -> StreamID:
    entry_id = parse_id(text)
    if entry_id is None:
        raise ValueError(f"not an ID: {text.decode(errors='replace')[:60]!r}")
    if entry_id <= last_id:
        raise ValueError(f"the ID {text.decode()} is not above {id_text(last_id).decode()}, the last one of the stream")
    return entry_id
