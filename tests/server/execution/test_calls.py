"""What is told of a command that is not over at once: one call, and one line of the slow log, with all of its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.server.execution import sliced_commands
from riverbed.server.stats.stats import CommandCounters
from tests.support.ticks import Client, Ticks, in_loop

ENTRIES = 600
IDS = " ".join(f"{number}-1" for number in range(1, ENTRIES + 1))
SLICED = {
    "XACK": f"XACK s g {IDS}",
    "XDEL": f"XDEL s {IDS}",
    "XCLAIM": f"XCLAIM s g Bob 0 {IDS}",
    "XREADGROUP": "XREADGROUP GROUP fresh Bob STREAMS s >",
    "WATCH": f"WATCH {IDS} {IDS}",
}


@pytest.fixture
def ticks_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Ticks]:
    """Makes executors that run one slice a tick, and a small one."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    for name in ("pending._SLICE_ACKS", "stream_read.SLICE_ENTRIES"):
        monkeypatch.setattr(f"riverbed.server.commands.groups.{name}", 20)
    return lambda: Ticks(tmp_path)


async def fill(ticks: Ticks, client: Client) -> None:
    await ticks.ask(client, *(f"XADD s {number}-1 f v" for number in range(1, ENTRIES + 1)))
    await ticks.ask(client, "XGROUP CREATE s g 0", "XGROUP CREATE s fresh 0", "XREADGROUP GROUP g Al STREAMS s >")
    await ticks.ask(client, "CONFIG SET slowlog-log-slower-than 0", "CONFIG RESETSTAT", "SLOWLOG RESET")


def slow(ticks: Ticks, name: str) -> list[list[bytes]]:
    """The words of the lines of the slow log with this command, oldest first."""
    found = [call.words for call in ticks.executor.stats.slowlog.calls if call.words[0] == name.encode()]
    return found[::-1]


def counters(ticks: Ticks, name: str) -> CommandCounters:
    return ticks.executor.stats.counters(name.lower().encode())


async def until_idle(ticks: Ticks, client: Client) -> None:
    for _ in range(2000):
        await asyncio.sleep(0)
        if client.session.is_idle:
            return
    raise AssertionError("not idle")


@pytest.mark.parametrize("name", SLICED)
def test_a_command_in_slices_is_one_call_with_all_of_its_time(ticks_of: Callable[[], Ticks], name: str) -> None:
    async def body() -> None:
        ticks = ticks_of()
        client = ticks.connect()
        await fill(ticks, client)
        client.send(SLICED[name])
        await asyncio.sleep(0)
        assert client.session.is_sliced
        assert (counters(ticks, name).calls, slow(ticks, name)) == (0, [])
        await until_idle(ticks, client)
        told = counters(ticks, name)
        assert (told.calls, sum(told.buckets), len(slow(ticks, name))) == (1, 1, 1)
        call = next(call for call in ticks.executor.stats.slowlog.calls if call.words[0] == name.encode())
        assert call.usec == told.usec > 0
        assert told.buckets[told.usec.bit_length()] == 1
        ticks.close()

    in_loop(body())


def test_the_slow_log_has_the_command_before_one_in_slices_too(ticks_of: Callable[[], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of()
        client = ticks.connect()
        await fill(ticks, client)
        client.send("XACK s g 1-1", "XACK s g 2-1", SLICED["XACK"])
        await until_idle(ticks, client)
        before, sliced = slow(ticks, "XACK")
        assert before == [b"XACK", b"s", b"g", b"2-1"]
        assert sliced[:5] == [b"XACK", b"s", b"g", b"1-1", b"2-1"]
        assert counters(ticks, "xack").calls == sum(counters(ticks, "xack").buckets) == 3
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("between", [[], ["XADD t * f v", "XADD t * f v"]])
def test_the_slow_log_names_the_client_of_the_command_before_one_in_slices(
    ticks_of: Callable[[], Ticks], between: list[str]
) -> None:
    """`between` are queued by another client, as neighbours."""

    async def body() -> None:
        ticks = ticks_of()
        first, queueing, last = (ticks.connect() for _ in range(3))
        await fill(ticks, first)
        await ticks.ask(queueing, "MULTI")
        await ticks.ask(first, "CLIENT SETNAME first")
        await ticks.ask(last, "CLIENT SETNAME last")
        first.send("XACK s g 1-1")
        queueing.send(*between)
        last.send(SLICED["XACK"])
        await until_idle(ticks, last)
        calls = [call for call in ticks.executor.stats.slowlog.calls if call.words[0] == b"XACK"]
        assert [(call.client_name, len(call.words)) for call in calls] == [(b"last", 32), (b"first", 4)]
        ticks.close()

    in_loop(body())


def test_a_command_in_slices_whose_client_goes_is_a_call(ticks_of: Callable[[], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of()
        client = ticks.connect()
        await fill(ticks, client)
        client.send(SLICED["XDEL"])
        await asyncio.sleep(0)
        assert client.session.is_sliced
        client.leave()
        await ticks.settle()
        assert (counters(ticks, "xdel").calls, len(slow(ticks, "XDEL"))) == (1, 1)
        ticks.close()

    in_loop(body())


def test_a_command_that_is_refused_between_its_slices_has_failed(ticks_of: Callable[[], Ticks]) -> None:
    async def body() -> None:
        ticks = ticks_of()
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        client.send(SLICED["XDEL"])
        await asyncio.sleep(0)
        assert client.session.is_sliced
        await ticks.ask(other, "CONFIG SET min-replicas-to-write 1")
        await until_idle(ticks, client)
        assert client.replies()[-1].startswith(b"-PARTIAL XDEL was done in part")
        told = counters(ticks, "xdel")
        assert (told.calls, told.failed, ticks.executor.stats.errors) == (1, 1, {b"NOREPLICAS": 1})
        ticks.close()

    in_loop(body())


def test_a_transaction_in_slices_is_one_call(ticks_of: Callable[[], Ticks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverbed.server.execution.control.transactions.TURN_NS", 0)

    async def body() -> None:
        ticks = ticks_of()
        client = ticks.connect()
        await fill(ticks, client)
        await ticks.ask(client, "MULTI", SLICED["XACK"], SLICED["XDEL"], "EXEC")
        await until_idle(ticks, client)
        names = ("exec", "xack", "xdel")
        assert [counters(ticks, name).calls for name in names] == [1, 1, 1]
        assert [len(slow(ticks, name)) for name in ("XACK", "XDEL")] == [1, 1]
        of_exec, of_xack, of_xdel = (counters(ticks, name) for name in names)
        assert of_exec.nanoseconds > of_xack.nanoseconds + of_xdel.nanoseconds
        assert of_exec.buckets[of_exec.usec.bit_length()] == 1
        ticks.close()

    in_loop(body())
