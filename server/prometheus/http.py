"""A small web server for Prometheus and a health check: one GET and one answer for each connection.

    connected --head is complete--> making the page --> answered --the client closes--> gone
        '------- 5 s, 8 kB ---------------' '---- 10 s ----' '----- 10 s, 64 kB --------^

Every connection takes one request and a bounded time and number of bytes, whatever it sends.  Bytes behind the head are
read and dropped until the client closes: closing a connection that has unread bytes may lose the answer.  Knows nothing
of metrics; pages are functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from riverbed.server.background.tasks import Tasks
    from riverbed.server.tls.handshakes import Handshakes
    from riverbed.server.tls.tls import Tls

# Makes the body of a page.
Page = Callable[[], Coroutine[Any, Any, bytes]]

# Connections at once, because descriptors are for clients.  One more takes the place of the oldest that has asked for
# nothing yet, and is cut off when all have.  As many may be in a TLS handshake.
MAX_CONNECTIONS: Final = 8
MAX_HEAD_BYTES: Final = 8192
MAX_IGNORED_BYTES: Final = 1 << 16
REQUEST_S: Final = 5.0
ANSWER_S: Final = 10.0
_TEXT: Final = "text/plain; charset=utf-8"
_HEAD_END: Final = b"\r\n\r\n"


class UnavailableError(Exception):
    """There is no such page just now; the text says why."""


class MetricsHttp:
    """The listening sockets; `pages` by path, each with its content type."""

    def __init__(self, pages: Mapping[bytes, tuple[str, Page]], tasks: Tasks) -> None:
        self._pages = pages
        self._tasks = tasks
        self.connections: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.StreamReader, asyncio.Task[None]] = {}  # have asked for nothing yet, oldest first
        self._servers: list[asyncio.Server] = []
        self._handshakes: Handshakes | None = None

    @property
    def silent_count(self) -> int:
        """How many connections have asked for nothing yet."""
        return len(self._silent)

    async def listen(self, sockets: Iterable[socket.socket], tls: Tls | None = None) -> None:
        """Answer at `sockets`, which are bound, with `tls` or in the clear.  Raises OSError."""
        loop = asyncio.get_running_loop()
        handshakes = None if tls is None else tls.new_handshakes()
        self._handshakes = handshakes

        def reader() -> asyncio.Protocol:
            stream = asyncio.StreamReader(limit=MAX_HEAD_BYTES, loop=loop)
            return asyncio.StreamReaderProtocol(stream, self._connected, loop=loop)

        def protocol() -> asyncio.BaseProtocol:
            if tls is None or handshakes is None:
                return reader()
            if len(handshakes) >= MAX_CONNECTIONS:
                handshakes.drop_oldest()
            return tls.accept(handshakes, reader)

        for sock in sockets:
            self._servers.append(await loop.create_server(protocol, sock=sock))

    def close(self) -> None:
        """Listen no more, and cut off the connected clients."""
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in self.connections:
            connection.cancel()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.connections) >= MAX_CONNECTIONS:
            if not self._silent:
                return writer.transport.abort()
            oldest = self._silent.pop(next(iter(self._silent)))
            self.connections.discard(oldest)
            oldest.cancel()
        task = self._tasks.start("a connection of the metrics port", self._serve(reader, writer))
        self.connections.add(task)
        self._silent[reader] = task
        task.add_done_callback(self.connections.discard)
        task.add_done_callback(lambda _: self._silent.pop(reader, None))
        task.add_done_callback(lambda _: writer.transport.abort())
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(_HEAD_END)
        except asyncio.LimitOverrunError:
            return await _answer(reader, writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            return None
        self._silent.pop(reader, None)
        if not _may_be_asked(writer, head):
            return await _answer(reader, writer, HTTPStatus.FORBIDDEN)
        status, page = self._find(head)
        if page is None:
            return await _answer(reader, writer, status)
        content_type, make = page
        try:
            async with asyncio.timeout(ANSWER_S) as limit:
                body = await self._tasks.start("a page of the metrics port", make(), expected=(UnavailableError,))
        except UnavailableError as error:
            return await _answer(reader, writer, HTTPStatus.SERVICE_UNAVAILABLE, body=f"{error}\n".encode())
        except Exception:  # the tasks have reported it
            return None if limit.expired() else await _answer(reader, writer, HTTPStatus.INTERNAL_SERVER_ERROR)
        return await _answer(reader, writer, status, content_type, body)

    def _find(self, head: bytes) -> tuple[HTTPStatus, tuple[str, Page] | None]:
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return HTTPStatus.BAD_REQUEST, None
        method, target, version = words
        if not version.startswith(b"HTTP/1."):
            return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, None
        page = self._pages.get(target.partition(b"?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, None
        return (HTTPStatus.OK, page) if method == b"GET" else (HTTPStatus.METHOD_NOT_ALLOWED, None)


def _may_be_asked(writer: asyncio.StreamWriter, head: bytes) -> bool:
    """Whether a request that came over the loopback interface names this machine.

    A page in a browser of this machine can send requests to 127.0.0.1 under a name of its own (DNS rebinding).
    """
    if not ipaddress.ip_address(writer.get_extra_info("sockname")[0].partition("%")[0]).is_loopback:
        return True
    headers = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return all(_is_this_machine(value.strip()) for name, _, value in headers if name.strip().lower() == b"host")


def _is_this_machine(host: bytes) -> bool:
    """Whether the Host of a request is an address or `localhost`, with or without a port."""
    name, _, port = host.rpartition(b":")
    if not name or not port.isdigit():
        name = host
    if name.lower() == b"localhost":
        return True
    try:
        ipaddress.ip_address(name.strip(b"[]").decode("ascii"))
    except ValueError:
        return False
    return True


async def _answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    status: HTTPStatus,
    content_type: str = _TEXT,
    body: bytes | None = None,
) -> None:
    """Send an answer and wait until the client closes; without a `body` it is the name of the status."""
    if body is None:
        body = f"{status.value} {status.phrase}\n".encode()
    allow = "Allow: GET\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n{allow}Connection: close\r\n\r\n"
    )
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(ANSWER_S):
            writer.transport.set_write_buffer_limits(0)  # `drain` waits until all of it is sent
            writer.write(head.encode() + body)
            await writer.drain()
            writer.write_eof()
            ignored_bytes = 0
            while ignored_bytes <= MAX_IGNORED_BYTES and (data := await reader.read(MAX_IGNORED_BYTES)):
                ignored_bytes += len(data)
