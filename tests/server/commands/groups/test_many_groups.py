"""Streams with very many groups or consumers: XINFO and XPENDING show them in pieces, as they show a few at once."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from riverbed.server.commands.groups import xinfo
from riverbed.server.commands.slices import Wish, wait_for_view
from riverbed.server.execution import sliced_commands
from riverbed.store.groups import known_consumers
from riverbed.store.tables.view import View
from tests.support.ticks import Client, Ticks, in_loop

GROUPS = 60
CONSUMERS = 50
SLICE = 7
QUESTIONS = (
    "XINFO GROUPS s",
    "XINFO CONSUMERS s g7",
    "XINFO CONSUMERS s g8",
    "XINFO STREAM s FULL",
    "XINFO STREAM s FULL COUNT 3",
    "XINFO STREAM s FULL COUNT 0",
    "XPENDING s g7",
)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ticks:
    """An executor that runs one slice a tick, and small ones; to be made inside of a loop."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    monkeypatch.setattr(xinfo, "_PIECE_ROWS", SLICE)
    monkeypatch.setattr("riverbed.store.groups.view._SLICE_ROWS", SLICE)
    return Ticks(tmp_path)


async def fill(ticks: Ticks, client: Client) -> None:
    await ticks.ask(client, *(f"XADD s {number}-1 f v" for number in range(1, 200)))
    for number in range(GROUPS):
        await ticks.ask(client, f"XGROUP CREATE s g{number} {number}-1")
    for number in range(CONSUMERS):
        await ticks.ask(client, f"XREADGROUP GROUP g7 c{number} COUNT 3 STREAMS s >")
        await ticks.ask(client, f"XGROUP CREATECONSUMER s g8 c{number}")
        ticks.clock.now_ms += 10
    await ticks.ask(client, "XNACK s g7 FAIL IDS 2 9-1 10-1", "XGROUP DELCONSUMER s g7 c3", "XDEL s 30-1")
    await ticks.ask(client, "XGROUP DESTROY s g9", "XGROUP CREATE other g7 0 MKSTREAM")


def count_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xinfo, "_MANY_ROWS", 5)
    monkeypatch.setattr(xinfo, "_MANY_IN_MEMORY", 5)
    monkeypatch.setattr(known_consumers, "FEW", 0)


def forget(ticks: Ticks) -> None:
    """Have the groups read again."""
    ticks.engine.checkpoint()
    ticks.engine.txn.databases[0].forget_cached()


async def answer(client: Client, command: str) -> bytes:
    client.send(command)
    for _ in range(10_000):
        await asyncio.sleep(0)
        if replies := client.replies():
            return replies[-1]
    raise AssertionError("no reply")


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize("question", QUESTIONS)
def test_many_are_shown_as_few_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest, question: str, resp: int
) -> None:
    async def body() -> None:
        ticks: Ticks = request.getfixturevalue("ticks")
        client = ticks.connect()
        await fill(ticks, client)
        await ticks.ask(client, f"HELLO {resp}")
        at_once = await answer(client, question)
        count_as_many(monkeypatch)
        forget(ticks)
        assert await answer(client, question) == at_once
        # in a transaction that only reads, and in one that has changed rows since the last checkpoint
        await ticks.ask(client, "MULTI", question)
        assert await answer(client, "EXEC") == b"*1\r\n" + at_once
        await ticks.ask(client, "MULTI", "XGROUP CREATECONSUMER s g20 new", question)
        in_pieces = await answer(client, "EXEC")
        monkeypatch.setattr(xinfo, "_MANY_ROWS", 1000)
        monkeypatch.setattr(known_consumers, "FEW", 1000)
        forget(ticks)
        assert in_pieces == b"*2\r\n:1\r\n" + await answer(client, question)
        ticks.close()

    in_loop(body())


def test_groups_in_memory_are_shown_at_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """More of them than are read at once from their table, which takes five times as long."""
    monkeypatch.setattr(xinfo, "_MANY_ROWS", 5)

    async def body() -> None:
        ticks: Ticks = request.getfixturevalue("ticks")
        client = ticks.connect()
        await fill(ticks, client)
        views = []

        def wait() -> Generator[Wish, View | None, View]:
            views.append(True)
            return wait_for_view()

        monkeypatch.setattr(xinfo, "wait_for_view", wait)
        at_once = await answer(client, "XINFO GROUPS s")
        assert not views
        monkeypatch.setattr(xinfo, "_MANY_IN_MEMORY", GROUPS - 2)
        assert await answer(client, "XINFO GROUPS s") == at_once
        assert len(views) == 1
        monkeypatch.setattr(xinfo, "_MANY_IN_MEMORY", GROUPS)
        forget(ticks)
        await ticks.ask(client, "XGROUP CREATECONSUMER s g20 new", "XGROUP DELCONSUMER s g20 new")
        assert await answer(client, "XINFO GROUPS s") == at_once
        assert len(views) == 2
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("question", QUESTIONS)
def test_others_are_served_while_many_are_shown(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, question: str
) -> None:
    count_as_many(monkeypatch)

    async def body() -> None:
        ticks: Ticks = request.getfixturevalue("ticks")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        client.send(question)
        served = 0
        while not client.replies():
            other.send("PING")
            await asyncio.sleep(0)
            served += len(other.replies())
        assert served >= CONSUMERS // SLICE
        ticks.close()

    in_loop(body())


async def turn() -> None:
    """Let the server have a turn of the loop."""
    await asyncio.sleep(0)


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_happens_to_groups_while_they_are_shown_does_not_show(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, question: str
) -> None:
    count_as_many(monkeypatch)

    async def body() -> None:
        ticks: Ticks = request.getfixturevalue("ticks")
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        before = await answer(client, question)
        await ticks.settle()
        assert client.session.long_reply is None
        client.send(question)
        while client.session.long_reply is None:
            await turn()
        other.send("XGROUP DESTROY s g7", "XGROUP DESTROY s g8", "XGROUP CREATE s new 0", "XADD s * f v", "DEL s")
        replies: list[bytes] = []
        while not replies:
            await turn()
            replies = client.replies()
        assert replies == [before]
        ticks.close()

    in_loop(body())
