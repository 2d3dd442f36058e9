"""A client of the simulation: one connection to a server, whose replies are values."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import hiredis

from tests.support.raw import Word, encode
from tests.support.simulation.loop import Loop
from tests.support.simulation.machine import PORT

ErrorReply = hiredis.ReplyError
PATIENCE_S = 3.0


class Lost(Exception):
    """The connection ended before the reply, or the reply did not come: the outcome is unknown."""


class Client(asyncio.Protocol):
    """One connection.  `stamp` is what the server's machine noted beside the last reply."""

    def __init__(self, loop: Loop) -> None:
        self.stamp: Any = None
        self._loop = loop
        self._reader = hiredis.Reader()
        self._replies: collections.deque[tuple[Any, Any]] = collections.deque()
        self._news = asyncio.Event()
        self._transport: Any = None
        self._is_lost = False

    @classmethod
    async def connect(cls, loop: Loop, host: str, patience_s: float = PATIENCE_S) -> Client:
        """Raises Lost."""
        client = cls(loop)
        try:
            async with asyncio.timeout(patience_s):
                await loop.create_connection(lambda: client, host, PORT)
        except (OSError, TimeoutError):
            raise Lost from None
        return client

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._replies.append((reply, self._transport.stamp))
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._news.set()

    # -- asking --------------------------------------------------------------------------------------------------------

    def send(self, *commands: tuple[Word, ...]) -> None:
        if not self._is_lost:
            self._transport.write(b"".join([encode(words) for words in commands]))

    async def receive(self, patience_s: float = PATIENCE_S) -> Any:
        """The next reply; errors are values.  Raises Lost."""
        try:
            async with asyncio.timeout(patience_s):
                while not self._replies:
                    if self._is_lost:
                        raise Lost
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self.close()
            raise Lost from None
        reply, self.stamp = self._replies.popleft()
        return reply

    async def ask(self, *words: Word, patience_s: float = PATIENCE_S) -> Any:
        self.send(words)
        return await self.receive(patience_s)

    def close(self) -> None:
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()
