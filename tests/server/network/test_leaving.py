"""Thousands of clients that leave together are forgotten a few in a turn of the loop, and those beside them served."""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from riverbed.server.commands.session import Session
from riverbed.server.network.connection import Connection
from riverbed.server.network.leaving import AT_ONCE, End, Leaving
from tests.support.raw import encode
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_true

MANY = 10 * AT_ONCE
RESET = struct.pack("ii", 1, 0)


def sessions(count: int) -> list[Session]:
    """Names of clients; nothing is asked of them."""
    return [cast(Session, number) for number in range(count)]


async def in_turns(calls: list[Any]) -> list[int]:
    """How many of `calls` each turn of the loop makes, until one makes none."""
    counts = [len(calls)]
    while not counts or counts[-1]:
        before = len(calls)
        await asyncio.sleep(0)
        counts.append(len(calls) - before)
    return counts[:-1]


def test_the_first_few_end_at_once_and_the_others_a_few_in_a_turn() -> None:
    async def body() -> None:
        leaving, ended = Leaving(), list[Session]()
        for session in sessions(MANY):
            leaving.take(ended.append, session)
        assert await in_turns(ended) == [AT_ONCE] * 10
        assert ended == sessions(MANY)
        leaving.take(ended.append, ended[0])
        assert len(ended) == MANY + 1  # nothing waits any more

    in_loop(body())


def test_those_that_come_later_come_behind_those_that_wait() -> None:
    async def body() -> None:
        leaving, ended = Leaving(), list[Session]()
        first, later = sessions(2 * AT_ONCE)[:-2], sessions(2 * AT_ONCE)[-2:]
        for session in first:
            leaving.take(ended.append, session)
        leaving.take(ended.append, later[0])
        await asyncio.sleep(0)
        leaving.take(ended.append, later[1])
        assert await in_turns(ended)
        assert ended == [*first, *later]

    in_loop(body())


def test_a_defect_costs_one_call_alone() -> None:
    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
        leaving, ended = Leaving(), list[Session]()

        def end(session: Session) -> None:
            if session == AT_ONCE + 3:
                raise ValueError("a bug")
            ended.append(session)

        for session in sessions(MANY):
            leaving.take(end, session)
        for _ in range(20):
            await asyncio.sleep(0)
        assert ended == [session for session in sessions(MANY) if session != AT_ONCE + 3]

    errors: list[Exception] = []
    in_loop(body())
    assert [str(error) for error in errors] == ["a bug"]


class Never(Leaving):
    """Has no turn for those that leave."""

    def __init__(self) -> None:
        self.left: list[tuple[End, Session]] = []

    def take(self, end: End, session: Session) -> None:
        self.left.append((end, session))


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * MANY, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("how", ["end", "reset"])
def test_clients_that_leave_together_are_forgotten_in_several_turns(tmp_path: Path, how: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        loop, executor, leaving = asyncio.get_running_loop(), ticks.executor, Leaving()
        server = await loop.create_server(lambda: Connection(executor, leaving), "127.0.0.1", 0)
        clients = []
        for _ in range(MANY):
            client = socket.socket()
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await loop.sock_sendall(client, encode(["PING"]))
            assert await loop.sock_recv(client, 100) == b"+PONG\r\n"
            clients.append(client)
        for client in clients:
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        left = [MANY]
        while left[-1]:
            await asyncio.sleep(0)
            left.append(len(executor.context.sessions))
        assert max(before - after for before, after in itertools.pairwise(left)) <= AT_ONCE
        server.close()
        ticks.close()

    in_loop(body())


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("how", ["end", "reset"])
def test_those_that_have_left_are_given_and_told_nothing(
    tmp_path: Path, how: str, factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        loop, executor = asyncio.get_running_loop(), ticks.executor
        failures: list[str] = []
        loop.set_exception_handler(lambda loop, context: failures.append(context["message"]))
        server = await loop.create_server(lambda: Connection(executor, never), "127.0.0.1", 0)
        other = ticks.connect()
        await ticks.ask(other, "XGROUP CREATE s g $ MKSTREAM")
        clients = []
        waits = ("XREADGROUP GROUP g gone BLOCK 0 STREAMS s >", "XADD behind 1-1 f v")
        for requests in (waits, ("SUBSCRIBE news",)):
            client = socket.socket()
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await loop.sock_sendall(client, b"".join([encode(request.split()) for request in requests]))
            clients.append(client)
        await until_true(lambda: len(executor.waiters) == 1 and len(executor.context.pubsub.channels) == 1)
        for client in clients:
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        await until_true(lambda: len(never.left) == 2)
        assert (await ticks.ask(other, "XADD s 1-1 f v", "PUBLISH news x"))[0] == b"$3\r\n1-1\r\n"
        assert await ticks.ask(other, "XPENDING s g") == [b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"]
        assert failures == []
        for end, session in never.left:
            end(session)
        await ticks.settle()
        assert await ticks.ask(other, "EXISTS behind") == [b":0\r\n"]
        server.close()
        await asyncio.sleep(0.05)
        ticks.close()

    never = Never()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(body())
