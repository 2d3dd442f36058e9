from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from riverbed.server.background.tasks import Tasks
from riverbed.server.network.addresses import bind
from riverbed.server.prometheus import http as metricshttp
from riverbed.server.prometheus.http import MAX_CONNECTIONS, MAX_HEAD_BYTES, MetricsHttp, Page
from riverbed.server.stats.stats import BackgroundStatus
from tests.support.servers import free_port
from tests.support.ticks import in_loop
from tests.support.waiting import until_true


async def page() -> bytes:
    return b"page\n"


async def broken_page() -> bytes:
    raise ValueError("broken")


def served(test: Callable[[int, MetricsHttp], Coroutine[Any, Any, None]], make: Page = page) -> None:
    """Run `test` beside a server of one page, and see that nobody is left."""

    async def body() -> None:
        http = MetricsHttp({b"/page": ("text/plain", make)}, Tasks(asyncio.get_running_loop(), BackgroundStatus()))
        port = free_port()
        await http.listen(bind(["127.0.0.1"], port))
        try:
            await test(port, http)
            await until_true(lambda: not http.connections)
        finally:
            http.close()

    in_loop(body())


async def exchange(port: int, *pieces: bytes, end: bool = False) -> bytes:
    """What comes back until the server closes; nothing when it cuts the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if end:
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200 OK"),
        (b"GET /page HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /page?name[]=up HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET /page HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"200 OK"),
        (b"GET /page HTTP/1.1\r\n\r\nGET /page HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /page/../page HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET http://x/page HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405 Method Not Allowed"),
        (b"HEAD /page HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"get /page HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /page\r\n\r\n", b"400 Bad Request"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"GET  /page HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400 Bad Request"),
        (b"*1\r\n$4\r\nPING\r\n\r\n", b"400 Bad Request"),
        (b"GET /page HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES, b"431 Request Header Fields Too Large"),
        (b"GET /page HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
def test_every_request_has_one_answer_and_the_connection_ends(request_head: bytes, status: bytes) -> None:
    async def test(port: int, http: MetricsHttp) -> None:
        cut = len(request_head) // 2
        for pieces in ([request_head], [request_head[:cut], request_head[cut:]]):
            answer = await exchange(port, *pieces)
            assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"Connection: close" in head.split(b"\r\n")
            assert b"Content-Length: %d" % len(body) in head.split(b"\r\n")
            assert (body == b"page\n") is (status == b"200 OK")
            assert (b"Allow: GET" in head.split(b"\r\n")) is status.startswith(b"405")

    served(test)


def test_a_head_may_come_byte_by_byte() -> None:
    async def test(port: int, http: MetricsHttp) -> None:
        request_head = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n"
        answer = await exchange(port, *(request_head[at : at + 1] for at in range(len(request_head))))
        assert answer.endswith(b"\r\n\r\npage\n")

    served(test)


def test_who_has_ended_sending_is_answered() -> None:
    async def slow_page() -> bytes:
        await asyncio.sleep(0.01)
        return b"page\n"

    async def test(port: int, http: MetricsHttp) -> None:
        assert (await exchange(port, b"GET /page HTTP/1.1\r\n\r\n", end=True)).endswith(b"\r\n\r\npage\n")
        assert await exchange(port, b"GET /page HTTP/1.1\r\n", end=True) == b""
        assert await exchange(port, end=True) == b""

    served(test, slow_page)


def test_who_sends_no_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricshttp, "REQUEST_S", 0.01)

    async def test(port: int, http: MetricsHttp) -> None:
        assert await exchange(port) == b""
        assert await exchange(port, b"GET /page HT") == b""

    served(test)


def test_who_goes_on_sending_is_cut_off() -> None:
    async def test(port: int, http: MetricsHttp) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                writer.write(b"GET /page HTTP/1.1\r\n\r\n" + b"x" * 65536)
                await writer.drain()
        await until_true(lambda: not http.connections)
        writer.close()

    served(test)


def test_who_does_not_close_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricshttp, "ANSWER_S", 0.05)

    async def test(port: int, http: MetricsHttp) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /page HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"page\n")
        await until_true(lambda: not http.connections)
        writer.close()

    served(test)


def test_one_connection_too_many_is_cut_off_and_the_others_go_on() -> None:
    may_answer = asyncio.Event()

    async def late_page() -> bytes:
        await may_answer.wait()
        return b"page\n"

    async def test(port: int, http: MetricsHttp) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        for _, writer in held:
            writer.write(b"GET /page HTTP/1.1\r\n\r\n")
        await until_true(lambda: len(http.connections) == MAX_CONNECTIONS and not http.silent_count)
        assert await exchange(port) == b""
        may_answer.set()
        for reader, writer in held:
            assert (await reader.read()).endswith(b"page\n")
            writer.close()

    served(test, late_page)


def test_silent_connections_give_way_to_one_that_asks_the_oldest_first() -> None:
    async def test(port: int, http: MetricsHttp) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
        await until_true(lambda: len(http.connections) == MAX_CONNECTIONS)
        assert (await exchange(port, b"GET /page HTTP/1.1\r\n\r\n")).endswith(b"page\n")
        assert await held[0][0].read() == b""
        held[0][1].close()
        for reader, writer in held[1:]:
            writer.write(b"GET /page HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"page\n")
            writer.close()

    served(test)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((b"Host: 127.0.0.1:9121", 200), (b"host:localhost", 200), (b"Host: [::1]:80", 200), (b"Host: [::1]", 200)),
        *((b"Host: evil.example:9121", 403), (b"HOST : evil.example", 403), (b"Host:", 403), (b"Other: x", 200)),
        (b"Host: localhost\r\nHost: evil.example", 403),
    ],
)
def test_a_request_to_this_machine_must_name_it(host: bytes, status: int) -> None:
    async def test(port: int, _: MetricsHttp) -> None:
        answer = await exchange(port, b"GET /page HTTP/1.1\r\n" + host + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)

    served(test)


def test_who_leaves_before_the_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricshttp, "ANSWER_S", 0.05)
    waiting: list[asyncio.Event] = []

    async def endless_page() -> bytes:
        waiting.append(asyncio.Event())
        await waiting[-1].wait()
        return b""

    async def test(port: int, http: MetricsHttp) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /page HTTP/1.1\r\n\r\n")
        await until_true(lambda: bool(waiting))
        writer.transport.abort()

    served(test, endless_page)


def test_a_page_that_cannot_be_made_is_a_500_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(port: int, http: MetricsHttp) -> None:
        assert (await exchange(port, b"GET /page HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 500 ")

    served(test, broken_page)
    assert [record.getMessage() for record in caplog.records] == ["a page of the metrics port failed"]
