"""Replies that a turn of the loop has no time for come later, whole and in order, and nobody waits for them."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.ticks import Client, Ticks, in_loop


def hurried_ticks(directory: Path, few: int = 2) -> Ticks:
    """An executor whose turns have time for so many replies."""
    ticks = Ticks(directory)
    ticks.executor.outbox.turn_s = -1.0
    ticks.executor.outbox.few = few
    return ticks


def crowd(ticks: Ticks, count: int) -> list[Client]:
    return [ticks.connect() for _ in range(count)]


async def turn() -> None:
    await asyncio.sleep(0)


def late(ticks: Ticks, clients: list[Client]) -> int:
    return sum(ticks.executor.outbox.holds(client.session) for client in clients)


async def waiting_crowd(tmp_path: Path, count: int) -> tuple[Ticks, list[Client]]:
    """Clients that have asked for a PONG, of which two have it."""
    ticks = hurried_ticks(tmp_path)
    clients = crowd(ticks, count)
    for client in clients:
        client.send("PING")
    await turn()
    assert late(ticks, clients) == count - 2
    return ticks, clients


def test_replies_of_a_crowd_come_over_several_turns_and_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        clients = crowd(ticks, 12)
        for number, client in enumerate(clients):
            client.send(f"ECHO first-{number}", "XADD s * f v")
        await turn()
        assert late(ticks, clients) == 10
        for number, client in enumerate(clients):
            client.send(f"ECHO second-{number}")
        await ticks.settle()
        for number, client in enumerate(clients):
            first, added, second = client.replies()
            assert f"first-{number}".encode() in first
            assert added.startswith(b"$")
            assert f"second-{number}".encode() in second
        assert late(ticks, clients) == 0
        ticks.close()

    in_loop(body())


def test_a_client_that_asks_meanwhile_is_answered_before_the_crowd(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        clients, other = crowd(ticks, 30), ticks.connect()
        for client in clients:
            client.send("ECHO x")
        await turn()
        other.send("PING")
        await turn()
        assert other.replies() == [b"+PONG\r\n"]
        assert late(ticks, clients) > 20
        await ticks.settle()
        assert all(len(client.replies()) == 1 for client in clients)
        ticks.close()

    in_loop(body())


def test_a_client_that_quits_gets_its_reply_before_the_end(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        clients = crowd(ticks, 8)
        for client in clients:
            client.send("QUIT")
        await turn()
        assert not clients[-1].is_closed
        await ticks.settle()
        for client in clients:
            assert client.replies() == [b"+OK\r\n"]
            assert client.is_closed
        ticks.close()

    in_loop(body())


def test_what_is_late_for_a_client_that_has_gone_is_dropped(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        clients = crowd(ticks, 8)
        for client in clients:
            client.send("PING")
        await turn()
        clients[5].leave()
        await ticks.settle()
        assert clients[5].replies() == []
        assert clients[6].replies() == [b"+PONG\r\n"]
        ticks.close()

    in_loop(body())


def test_a_later_tick_that_fails_takes_no_late_reply_back(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        clients = crowd(ticks, 10)
        for client in clients:
            client.send("XADD s * f v")
        await turn()
        assert late(ticks, clients) > 5
        ticks.files.fail("sync", errno.EIO)
        clients[-1].send("XADD s * g w")
        await ticks.settle()
        *others, last = [client.replies() for client in clients]
        assert all(len(replies) == 1 and replies[0].startswith(b"$") for replies in others)
        assert last[0].startswith(b"$")
        assert last[1].startswith(b"-MISCONF")
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        ticks.engine.abandon()

    in_loop(body())


def test_long_replies_have_turns_with_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.server.commands.request.LONG_BYTES", 500)
    monkeypatch.setattr("riverbed.store.streams.view.PIECE_BYTES", 100)
    monkeypatch.setattr("riverbed.store.streams.view._FEW_ENTRIES", 5)

    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        clients = crowd(ticks, 6)
        await ticks.ask(clients[0], *(f"XADD s {number}-0 f v" for number in range(1, 61)))
        for client in clients:
            client.send("XRANGE s - +")
        for _ in range(20):
            await ticks.settle()
        replies = [client.replies() for client in clients]
        assert all(len(mine) == 1 and mine[0].startswith(b"*60\r\n") for mine in replies)
        ticks.close()

    in_loop(body())


def test_the_end_of_the_server_sends_what_is_late(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, clients = await waiting_crowd(tmp_path, 9)
        ticks.executor.outbox.finish()
        assert all(client.replies() == [b"+PONG\r\n"] for client in clients)
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_large_message_is_never_copied_for_those_who_are_sent_it(tmp_path: Path, is_late: bool) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path, few=0) if is_late else Ticks(tmp_path)
        clients = crowd(ticks, 3)
        sent: list[list[bytes]] = [[] for _ in clients]
        for client, pieces in zip(clients, sent, strict=True):
            await ticks.ask(client, "SUBSCRIBE c")
            client.session.send = pieces.append
        small, large = "m", "x" * 100_000
        publisher = ticks.connect()
        lines = [f"PUBLISH c {text}" for text in (small, small, large, large, small)]
        assert len(await ticks.ask(publisher, "MULTI", *lines, "EXEC")) == 7
        assert b"".join(sent[0]).count(b"message") == 5
        for first, *others in zip(*sent, strict=True):
            assert all(other is first or len(first) < 1_000 for other in others)
            assert all(other == first for other in others)
        ticks.close()

    in_loop(body())


def test_a_client_that_asks_in_the_turn_of_a_message_is_answered_before_its_subscribers(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = hurried_ticks(tmp_path)
        subscribers, publisher, other = crowd(ticks, 30), ticks.connect(), ticks.connect()
        for client in subscribers:
            client.send("SUBSCRIBE news")
        await ticks.settle()
        assert all(client.replies() for client in subscribers)
        publisher.send("PUBLISH news hello")
        other.send("PING")
        await turn()
        assert (publisher.replies(), other.replies()) == ([b":30\r\n"], [b"+PONG\r\n"])
        assert late(ticks, subscribers) == 30
        await ticks.settle()
        assert all(b"hello" in client.replies()[0] for client in subscribers)
        ticks.close()

    in_loop(body())


def test_a_late_reply_that_cannot_be_sent_costs_its_client_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would take later replies for those that are lost; and those behind it waited for other replies to be late."""

    def fail(data: bytes) -> NoReturn:
        raise MemoryError

    async def body() -> None:
        ticks, clients = await waiting_crowd(tmp_path, 8)
        clients[4].session.send = fail
        await ticks.settle()
        assert [client.is_closed for client in clients] == [number == 4 for number in range(8)]
        assert [len(client.replies()) for client in clients] == [number != 4 for number in range(8)]
        assert f"late replies to client {clients[4].session.id} are lost" in caplog.text
        ticks.close()

    in_loop(body())


def test_a_reply_that_cannot_be_sent_costs_the_clients_of_its_tick_alone(tmp_path: Path) -> None:
    """One has lost it, and those behind it waited for theirs until they asked for something else."""

    def fail(data: bytes) -> NoReturn:
        raise RuntimeError("a bug")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        clients, other = crowd(ticks, 3), ticks.connect()
        clients[1].session.send = fail
        for client in clients:
            client.send("PING")
        await ticks.settle()
        assert [client.is_closed for client in clients] == [True] * 3
        assert await ticks.ask(other, "PING") == [b"+PONG\r\n"]
        ticks.close()

    in_loop(body())
