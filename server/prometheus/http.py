"""A web server just large enough for Prometheus and a health check: GET of a few pages, an answer each, and good-bye.

    connected --head is complete--> answering --> draining --the client closes--> gone
        '------- 5 s, 8 kB -------------'------------ 10 s, 64 kB ----------------^

Every connection takes one request and a bounded time and number of bytes, whatever it sends.  What arrives behind the
head is read and thrown away until the client closes, for a connection closed over unread bytes may take the answer with
it.  Knows nothing of metrics; pages are functions.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks

# Makes the body of a page.
Page = Callable[[], Awaitable[bytes]]

# At once; one more is cut off, for descriptors are there for clients.
MOST_CONNECTIONS: Final = 8
MOST_HEAD_BYTES: Final = 8192
MOST_IGNORED_BYTES: Final = 1 << 16
REQUEST_S: Final = 5.0
ANSWER_S: Final = 10.0
_TEXT: Final = "text/plain; charset=utf-8"
_HEAD_END: Final = b"\r\n\r\n"


class MetricsHttp:
    """The listening sockets; `pages` by path, each with its content type."""

    def __init__(self, pages: Mapping[bytes, tuple[str, Page]], tasks: Tasks) -> None:
        self.pages = pages
        self.tasks = tasks
        self.connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []

    async def listen(self, sockets: Iterable[socket.socket]) -> None:
        """Answer at `sockets`, which are bound.  Raises OSError."""
        loop = asyncio.get_running_loop()
        for sock in sockets:
            self._servers.append(await loop.create_server(lambda: _Connection(self), sock=sock))

    def close(self) -> None:
        """Listen no more, and cut off who is connected."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.abort()


class _Connection(asyncio.Protocol):
    """One request."""

    def __init__(self, owner: MetricsHttp) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._head = bytearray()
        self._ignored_bytes = 0
        self._is_answered = False
        self._has_ended = False  # the client sends no more
        self._task: asyncio.Task[None] | None = None

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._loop.call_later(REQUEST_S, self.abort)
        self._owner.connections.add(self)
        if len(self._owner.connections) > MOST_CONNECTIONS:
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_answered or self._task is not None:
            self._ignored_bytes += len(data)
            if self._ignored_bytes > MOST_IGNORED_BYTES:
                self.abort()
            return
        searched = max(len(self._head) - len(_HEAD_END), 0)
        self._head += data
        end = self._head.find(_HEAD_END, searched)
        if end >= 0 and end <= MOST_HEAD_BYTES:
            self._begin(bytes(self._head[:end]))
        elif len(self._head) > MOST_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def eof_received(self) -> bool:
        """A client may be done with sending and still wait for its answer."""
        self._has_ended = True
        return self._task is not None and not self._is_answered

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._owner.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    # -- requests and answers ------------------------------------------------------------------------------------------

    def _begin(self, head: bytes) -> None:
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return self._refuse(HTTPStatus.BAD_REQUEST)
        method, target, version = words
        if not version.startswith(b"HTTP/1."):
            return self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        page = self._owner.pages.get(target.partition(b"?")[0])
        if page is None:
            return self._refuse(HTTPStatus.NOT_FOUND)
        if method != b"GET":
            return self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET\r\n")
        content_type, make = page
        self._set_timer(ANSWER_S)
        self._task = self._owner.tasks.start(
            "a page of the metrics port",
            self._answer_with(content_type, make),
            failed=lambda _: self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR),
        )
        return None

    async def _answer_with(self, content_type: str, make: Page) -> None:
        self._answer(HTTPStatus.OK, content_type, await make())

    def _refuse(self, status: HTTPStatus, more: str = "") -> None:
        self._answer(status, _TEXT, f"{status.value} {status.phrase}\n".encode(), more)

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes, more: str = "") -> None:
        if self._transport.is_closing():
            return
        self._is_answered = True
        self._head.clear()
        self._set_timer(ANSWER_S)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n{more}Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        if self._has_ended:
            self._transport.close()
        else:
            self._transport.write_eof()

    def _set_timer(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        self._transport.abort()
