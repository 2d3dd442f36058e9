"""What is told of a command that is not over at once: one call, and one line of the slow log, with all of its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from riverbed.server.commands.session import Session
from riverbed.server.execution import sliced_commands
from riverbed.server.protocol.replies import LONG_BYTES
from riverbed.server.stats.stats import CommandCounters
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until_turn

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
    await asyncio.sleep(0)
    await until_turn(lambda: client.session.is_idle)


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


def test_the_slow_log_names_the_client_of_each_command(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        clients = [ticks.connect() for _ in range(3)]
        for number, client in enumerate(clients):
            await ticks.ask(client, f"CLIENT SETNAME c{number}")
        await ticks.ask(clients[0], "CONFIG SET slowlog-log-slower-than 0", "SLOWLOG RESET")
        clients[0].send("XLEN a", "XLEN a")
        clients[1].send("XPENDING s g")
        clients[2].send("XLEN a", "CLIENT ID")
        await ticks.settle()
        calls = [(call.words[0], call.client_name) for call in ticks.executor.stats.slowlog.calls]
        assert calls[3::-1] == [(b"XLEN", b"c0"), (b"XPENDING", b"c1"), (b"XLEN", b"c2"), (b"CLIENT", b"c2")]
        ticks.close()

    in_loop(body())


def test_a_command_of_many_words_is_timed_alone(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "CONFIG SET slowlog-log-slower-than 0", "SLOWLOG RESET", "CONFIG RESETSTAT")
        many = " ".join(f"k{number}" for number in range(100))
        client.send("EXISTS a", "EXISTS b", f"EXISTS {many}", "EXISTS c", "EXISTS d")
        await ticks.settle()
        assert [words[1] for words in slow(ticks, "EXISTS")] == [b"b", b"k0", b"d"]
        assert counters(ticks, "exists").calls == 5
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


# -- long replies ------------------------------------------------------------------------------------------------------

BIG = 12  # entries of a stream whose reply is sent in pieces
LONG = {
    "XRANGE": "XRANGE big - +",
    "XREAD": "XREAD STREAMS big 0",
    "XINFO": "XINFO STREAM big FULL COUNT 0",
    "XREADGROUP": "XREADGROUP GROUP g Al STREAMS big >",
    "XREADGROUP history": "XREADGROUP GROUP told Al STREAMS big 0",
}


async def fill_big(ticks: Ticks, client: Client) -> None:
    for number in range(1, BIG + 1):
        client.send_words("XADD", "big", f"{number}-1", "f", b"v" * (LONG_BYTES // 4))
    await until_idle(ticks, client)
    await ticks.ask(client, "XGROUP CREATE big g 0", "XGROUP CREATE big told 0")
    client.send("XREADGROUP GROUP told Al STREAMS big >")
    await until_idle(ticks, client)
    client.send("CONFIG SET slowlog-log-slower-than 0", "CONFIG RESETSTAT", "SLOWLOG RESET")
    await until_idle(ticks, client)


def made_slowly(session: Session, nanoseconds: int) -> None:
    """Have the reply under way take so much more time."""
    reply = session.long_reply
    assert reply is not None
    pieces = reply.pieces

    def slower() -> Generator[bytes, None, None]:
        time.sleep(nanoseconds / 1e9)
        yield from pieces

    reply.pieces = slower()


async def until_long(client: Client) -> None:
    await until_turn(lambda: client.session.long_reply is not None)


@pytest.mark.parametrize("name", LONG)
def test_a_long_reply_is_one_call_with_the_time_of_its_pieces(tmp_path: Path, name: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await fill_big(ticks, client)
        await ticks.ask(client, "CONFIG SET latency-monitor-threshold 50")
        client.send(LONG[name])
        await until_long(client)
        full_name = "xinfo|stream" if name == "XINFO" else name.split()[0]
        assert (counters(ticks, full_name).calls, slow(ticks, name.split()[0])) == (0, [])
        made_slowly(client.session, 60_000_000)
        await until_idle(ticks, client)
        told = counters(ticks, full_name)
        assert (told.calls, sum(told.buckets), slow(ticks, name.split()[0])) == (1, 1, [LONG[name].encode().split()])
        assert told.usec >= 60_000
        assert told.buckets[told.usec.bit_length()] == 1
        assert ticks.executor.stats.latency.events[b"command"].max_ms >= 60
        ticks.close()

    in_loop(body())


def test_a_long_reply_whose_client_goes_is_a_call(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await fill_big(ticks, client)
        client.send("XRANGE big - +")
        await until_long(client)
        client.leave()
        await ticks.settle()
        assert (counters(ticks, "xrange").calls, slow(ticks, "XRANGE")) == (1, [[b"XRANGE", b"big", b"-", b"+"]])
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("writes", [False, True])
def test_the_long_replies_of_a_transaction_are_calls_with_their_time(tmp_path: Path, writes: bool) -> None:
    """One that only reads makes them when it is sent, one that writes before that."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await fill_big(ticks, client)
        key = "k" * 2000
        commands = ["XRANGE big - +", "XREAD STREAMS big 0", f"XREAD STREAMS big {key} 0 0"]
        client.send("MULTI", *commands, *["XADD s * f v"] * writes, "EXEC")
        await until_long(client)
        made_slowly(client.session, 60_000_000)
        await until_idle(ticks, client)
        names = ("exec", "xrange", "xread")
        assert [counters(ticks, name).calls for name in names] == [1, 1, 2]
        assert [len(slow(ticks, name)) for name in ("XRANGE", "XREAD")] == [1, 2]
        of_exec, of_xrange, of_xread = (counters(ticks, name).usec for name in names)
        assert of_exec >= of_xrange + of_xread + 60_000
        ticks.close()

    in_loop(body())


def test_a_transaction_times_a_reply_that_it_makes_when_it_is_sent(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await fill_big(ticks, client)
        client.send("MULTI", "XRANGE big - +", "EXEC")
        await until_long(client)
        assert counters(ticks, "xrange").calls == 0
        reply = client.session.long_reply
        assert reply is not None
        next(reply.pieces)  # the reply to XRANGE is the second part
        await until_idle(ticks, client)
        assert counters(ticks, "xrange").calls == counters(ticks, "exec").calls == 1
        ticks.close()

    in_loop(body())


def test_words_of_the_slow_log_are_shortened_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await fill_big(ticks, client)
        key = "k" * 300
        client.send(f"XREAD STREAMS big {key} 0 0")
        await until_idle(ticks, client)
        await ticks.ask(client, f"XLEN {key}")
        shown = b"k" * 128 + b"... (172 more bytes)"
        assert (slow(ticks, "XREAD")[0][3], slow(ticks, "XLEN")[0][1]) == (shown, shown)
        ticks.close()

    in_loop(body())
