"""Clients that go and leave very many names: these are forgotten bit by bit, and no other client notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.server.commands import channels
from riverbed.server.execution.control import departures, watches
from riverbed.server.execution.control.departures import Departures
from tests.support.ticks import Client, Ticks, in_loop

COUNT = 60
NAMES = [f"k{number}" for number in range(COUNT)]
KINDS = {
    "SUBSCRIBE": ("channels", "PUBLISH k0 text"),
    "PSUBSCRIBE": ("patterns", "PUBLISH k0 text"),
    "SSUBSCRIBE": ("shard_channels", "SPUBLISH k0 text"),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few names a step, and one step a turn."""
    monkeypatch.setattr(channels, "_NAMES_A_STEP", 4)
    monkeypatch.setattr(watches, "_KEYS_A_STEP", 4)
    monkeypatch.setattr(departures, "_TURN_S", 0.0)


def left(ticks: Ticks, command: str) -> int:
    """How many names are left of clients that have gone, or are there of others."""
    if command == "WATCH":
        return len(ticks.executor.watches)
    return len(getattr(ticks.executor.context.pubsub, KINDS[command][0]))


async def listening(ticks: Ticks, command: str) -> Client:
    client = ticks.connect()
    await ticks.ask(client, f"{command} {' '.join(NAMES)}")
    assert left(ticks, command) == COUNT
    return client


@pytest.mark.parametrize("command", [*KINDS, "WATCH"])
def test_other_clients_are_served_meanwhile(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gone, other = await listening(ticks, command), ticks.connect()
        gone.leave()
        found = [left(ticks, command)]
        while found[-1]:
            other.send("PING")
            for _ in range(2):  # the tick, and a turn of what is left
                await asyncio.sleep(0)
            assert other.replies() == [b"+PONG\r\n"]
            found.append(left(ticks, command))
        assert len(found) > COUNT // 12
        assert ticks.engine.txn.databases[0].interest == {}
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("command", KINDS)
@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_a_client_that_has_gone_gets_no_message_and_counts_for_no_publisher(
    tmp_path: Path, command: str, how: str
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gone, other = await listening(ticks, command), ticks.connect()
        gone.replies()
        if how == "leaves":
            gone.leave()
        else:
            other.send(f"CLIENT KILL ID {gone.session.id}")
        other.send(KINDS[command][1])
        await asyncio.sleep(0)
        assert left(ticks, command) > 0
        await ticks.settle()
        assert other.replies()[-1] == b":0\r\n"
        if command == "SUBSCRIBE":
            assert await ticks.ask(other, "PUBSUB NUMSUB k0") == [b"*2\r\n$2\r\nk0\r\n:0\r\n"]
        assert gone.replies() == []
        gone.leave()
        await ticks.settle()
        assert left(ticks, command) == 0
        assert gone.session.account.bytes == 0
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("command", KINDS)
def test_a_client_keeps_a_name_that_it_shares_with_one_that_goes(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gone, stays, other = await listening(ticks, command), ticks.connect(), ticks.connect()
        await ticks.ask(stays, f"{command} {' '.join(NAMES[:3])}")
        gone.leave()
        late = ticks.connect()
        await ticks.ask(late, f"{command} k0")
        await ticks.settle()
        assert left(ticks, command) == 3
        assert await ticks.ask(other, KINDS[command][1]) == [b":2\r\n"]
        assert len(stays.replies()) == len(late.replies()) == 1
        ticks.close()

    in_loop(body())


def test_keys_that_a_client_has_watched_may_change_meanwhile(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        gone, stays, other = await listening(ticks, "WATCH"), ticks.connect(), ticks.connect()
        await ticks.ask(stays, f"WATCH {' '.join(NAMES[:2])}", "MULTI")
        gone.leave()
        await ticks.ask(other, "XADD k0 * f v", "XADD k59 * f v", "SWAPDB 0 1", "FLUSHALL")
        assert await ticks.ask(stays, "EXEC") == [b"*-1\r\n"]
        await ticks.settle()
        assert left(ticks, "WATCH") == 0
        assert [db.interest for db in ticks.engine.txn.databases if db.interest] == []
        assert gone.session.account.bytes == 0
        ticks.close()

    in_loop(body())


ENDINGS = {
    "UNWATCH": ["UNWATCH"],
    "EXEC": ["MULTI", "PING", "EXEC"],
    "DISCARD": ["MULTI", "DISCARD"],
    "RESET": ["RESET"],
    "refused": ["MULTI", "NONE", "EXEC"],
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_watches_that_a_client_ends_are_forgotten_while_others_are_served(tmp_path: Path, ending: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = await listening(ticks, "WATCH"), ticks.connect()
        client.replies()
        client.send(*ENDINGS[ending])
        found = [left(ticks, "WATCH")]
        while found[-1]:
            other.send("PING")
            for _ in range(2):
                await asyncio.sleep(0)
            assert other.replies() == [b"+PONG\r\n"]
            found.append(left(ticks, "WATCH"))
        assert len(found) > COUNT // 12
        assert len(client.replies()) == len(ENDINGS[ending])
        assert ticks.engine.txn.databases[0].interest == {}
        assert client.session.account.kept == 0
        ticks.close()

    in_loop(body())


def test_a_change_that_breaks_very_many_watches_holds_nobody_up(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = await listening(ticks, "WATCH"), ticks.connect()
        client.replies()
        other.send("XADD k5 1-1 f v")
        await asyncio.sleep(0)
        assert other.replies() == [b"$3\r\n1-1\r\n"]
        assert left(ticks, "WATCH") > COUNT // 2
        client.send("MULTI", "EXEC")
        await ticks.settle()
        assert client.replies() == [b"+OK\r\n", b"*-1\r\n"]
        assert left(ticks, "WATCH") == 0
        assert ticks.engine.txn.databases[0].interest == {}
        ticks.close()

    in_loop(body())


def test_watches_that_are_being_forgotten_break_no_later_transaction(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = await listening(ticks, "WATCH"), ticks.connect()
        await ticks.ask(client, "XADD k0 1-1 f v")  # has them broken, and forgotten
        await ticks.ask(client, "UNWATCH", f"WATCH {' '.join(NAMES)}")
        client.replies()
        client.send("UNWATCH", "WATCH k0 k1 k59 new")
        await asyncio.sleep(0)
        assert left(ticks, "WATCH") > COUNT // 2
        still_there = [name for name in NAMES[2:-1] if name.encode() in ticks.engine.txn.databases[0].interest]
        other.send(f"XADD {still_there[0]} 1-1 f v")
        await asyncio.sleep(0)
        client.send("MULTI", "EXEC")
        await ticks.settle()
        assert client.replies() == [b"+OK\r\n"] * 3 + [b"*0\r\n"]
        client.send("WATCH k0 k1", "UNWATCH", "WATCH k1 k59")
        await ticks.settle()
        assert (left(ticks, "WATCH"), client.session.transaction.watched_keys) == (2, 2)
        await ticks.ask(other, "XADD k59 1-1 f v")
        assert (await ticks.ask(client, "MULTI", "EXEC"))[-1] == b"*-1\r\n"
        assert ticks.engine.txn.databases[0].interest == {}
        assert client.session.account.kept == 0
        ticks.close()

    in_loop(body())


def test_a_client_that_watches_more_forgets_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is charged for no more than it may watch, however slowly the others are forgotten."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        monkeypatch.setattr(ticks.executor.watches, "_leave", lambda steps: next(steps, None))  # the first step alone
        client = await listening(ticks, "WATCH")
        most = client.session.account.kept
        for turn in range(10):
            await ticks.ask(client, "UNWATCH", *(f"WATCH {turn}:{name}" for name in NAMES))
            assert client.session.account.kept < 1.2 * most
            assert sum(ticks.engine.txn.databases[0].interest.values()) == COUNT
        ticks.close()

    in_loop(body())


def test_a_client_that_goes_while_its_watches_are_forgotten(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = await listening(ticks, "WATCH")
        client.send("UNWATCH", "WATCH k1 k2")
        await asyncio.sleep(0)
        assert left(ticks, "WATCH") > COUNT // 2
        client.leave()
        await ticks.settle()
        assert left(ticks, "WATCH") == 0
        assert ticks.engine.txn.databases[0].interest == {}
        assert client.session.account.bytes == 0
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("command", KINDS)
def test_subscriptions_that_a_client_resets_end_in_slices(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = await listening(ticks, command), ticks.connect()
        client.replies()
        client.send("RESET", f"{command} k1")
        await asyncio.sleep(0)
        assert COUNT // 2 < left(ticks, command) < COUNT
        assert await ticks.ask(other, "PING") == [b"+PONG\r\n"]
        await ticks.settle()
        assert left(ticks, command) == 1
        done, subscribed = client.replies()
        assert done == b"+RESET\r\n"
        assert subscribed.startswith(b"*3\r\n$%d\r\n%b\r\n" % (len(command), command.lower().encode()))
        client.leave()
        await ticks.settle()
        assert left(ticks, command) == 0
        ticks.close()

    in_loop(body())


def test_a_defect_ends_the_work_that_has_it_alone() -> None:
    done: list[str] = []

    def work(name: str, *, fails: bool) -> Iterator[None]:
        for _ in range(3):
            yield
        if fails:
            raise AssertionError("a defect")
        done.append(name)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        seen: list[object] = []
        loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
        goes = Departures(loop, loop.time)
        for name, fails in (("first", False), ("second", True), ("third", False)):
            goes.begin(work(name, fails=fails))
        for _ in range(20):
            await asyncio.sleep(0)
        assert done == ["first", "third"]
        assert len(seen) == 1

    in_loop(body())
