"""Where loaded entries go: a stream of a data directory, offline, or of a running server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol

from riverbed.store.ids import MAX_ID, StreamID, id_text, make_id, parse_id
from riverbed.tools.console.console import Failure, counted
from riverbed.tools.live.redisclient import RedisClient, ReplyError, Word
from riverbed.tools.offline.rebuild import Builder, SystemClock

_ENTRIES_A_BATCH: Final = 256
_BYTES_A_BATCH: Final = 1 << 20


class Refused(Exception):
    """An entry that the stream does not take; `line` is where it stands in the file."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


class LoadSink(Protocol):
    """Takes entries in order.  `loaded` of them are in the stream for good."""

    loaded: int

    def add(self, line: int, entry_id: bytes | None, words: list[bytes]) -> None:
        """Raises Refused, after everything before is loaded; Failure when it cannot go on at all."""

    def finish(self) -> StreamID | None:
        """Make all of it durable -> the ID of the last one."""


class DirectoryLoad:
    """Streams in a directory that no server uses; close it in any case.  Raises LockedError when one does."""

    def __init__(self, directory: Path, db: int, key: bytes = b"") -> None:
        """`key` is the stream that `add` appends to."""
        if directory.is_file():
            raise Failure(f"{directory} is not a directory")
        self.loaded = 0
        self._builder = Builder(directory, SystemClock())
        databases = self._builder.txn.databases
        if db >= len(databases):
            self._builder.close()
            raise Failure(f"there is no database {db}; there are {len(databases)}")
        self._db = databases[db]
        self._key = key
        self._waiting = self._waiting_bytes = 0
        self._last: StreamID | None = None

    def add(self, line: int, entry_id: bytes | None, words: list[bytes]) -> None:
        try:
            self.append(self._key, entry_id, words)
        except ValueError as error:
            self.finish()
            raise Refused(line, str(error)) from error

    def last_id(self, key: bytes) -> StreamID:
        stream = self._db.stream(key, 0)
        return StreamID(0) if stream is None else stream.last_id

    def append(self, key: bytes, entry_id: bytes | None, words: list[bytes]) -> None:
        """Raises ValueError when the stream cannot take that ID, Failure when the disk is nearly full."""
        last_id = self.last_id(key)
        self._last = next_id(last_id) if entry_id is None else explicit_id(entry_id, last_id)
        (self._db.stream(key, 0) or self._db.create(key)).append_entry(self._last, words)
        self._waiting += 1
        self._waiting_bytes += sum(map(len, words))
        if self._waiting >= _ENTRIES_A_BATCH or self._waiting_bytes >= _BYTES_A_BATCH:
            self._commit()

    def _commit(self) -> None:
        self._builder.commit()
        self.loaded += self._waiting
        self._waiting = self._waiting_bytes = 0

    def finish(self) -> StreamID | None:
        self._commit()
        self._builder.checkpoint()
        return self._last

    def close(self) -> None:
        self._builder.close()


def next_id(last_id: StreamID) -> StreamID:
    """As XADD with * chooses."""
    now = make_id(time.time_ns() // 1_000_000, 0)
    if now > last_id:
        return now
    if last_id == MAX_ID:
        raise ValueError("the stream has the largest ID there is: nothing can follow")
    return StreamID(last_id + 1)


def explicit_id(text: bytes, last_id: StreamID) -> StreamID:
    entry_id = parse_id(text)
    if entry_id is None:
        raise ValueError(f"not an ID: {text.decode(errors='replace')[:60]!r}")
    if entry_id <= last_id:
        raise ValueError(f"the ID {text.decode()} is not above {id_text(last_id).decode()}, the last one of the stream")
    return entry_id


class ServerLoad:
    """A stream of a running server; entries are sent some hundred at a time.

    IDs are looked at before anything is sent: of a batch in which the server refuses one, it takes those behind it.
    """

    def __init__(self, client: RedisClient, db: int, key: bytes) -> None:
        self.loaded = 0
        self._client = client
        self._key = key
        self._lines: list[int] = []
        self._waiting: list[list[Word]] = []
        self._waiting_bytes = 0
        self._last = self._ask_last_id(db)

    def _ask_last_id(self, db: int) -> StreamID:
        try:
            self._client.call("SELECT", db)
            if not self._client.call("EXISTS", self._key):
                return StreamID(0)
            reply = self._client.call("XINFO", "STREAM", self._key)
        except ReplyError as error:
            raise Failure(f"{self._client.address}: {error}") from error
        last_id = parse_id(dict(zip(reply[::2], reply[1::2], strict=True))[b"last-generated-id"])
        return StreamID(0) if last_id is None else last_id

    def add(self, line: int, entry_id: bytes | None, words: list[bytes]) -> None:
        if entry_id is not None:
            try:
                self._last = explicit_id(entry_id, self._last)
            except ValueError as error:
                self._send()
                raise Refused(line, str(error)) from error
        self._lines.append(line)
        self._waiting.append([b"XADD", self._key, entry_id or b"*", *words])
        self._waiting_bytes += sum(map(len, words))
        if len(self._waiting) >= _ENTRIES_A_BATCH or self._waiting_bytes >= _BYTES_A_BATCH:
            self._send()

    def _send(self) -> None:
        lines, waiting = self._lines, self._waiting
        self._lines, self._waiting, self._waiting_bytes = [], [], 0
        refused: list[tuple[int, str]] = []
        self._client.send(waiting)
        for line in lines:
            try:
                self._last = max(self._last, parse_id(self._client.receive()) or self._last)
                self.loaded += 1
            except ReplyError as error:
                refused.append((line, str(error)))
        if refused:
            (line, reason), count = refused[0], len(refused)
            raise Failure(
                f"line {line}: {self._client.address} refuses it: {reason}; {counted(count, 'entry')} of those up to "
                f"line {lines[-1]} {'is' if count == 1 else 'are'} not loaded, and nothing behind"
            )

    def finish(self) -> StreamID | None:
        self._send()
        return self._last if self.loaded else None
