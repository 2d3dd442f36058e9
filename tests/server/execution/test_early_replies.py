"""Long replies of a tick that has changed nothing leave before its end, and none that rests on a change does."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from riverbed.server.execution.fast_path import EARLY_BYTES
from riverbed.store.engine import Engine
from tests.support.in_process import PassingClock
from tests.support.ticks import Ticks, in_loop

_ENTRIES = 100
_VALUE = "x" * (2 * EARLY_BYTES // _ENTRIES)
_READ = "XRANGE s - +"


class _Tick:
    """What three clients had been sent when the tick's commands were committed."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ticks = Ticks(directory, appendfsync="always")
        self.clients = [self.ticks.connect() for _ in range(3)]
        self.sent: list[int] = []
        commit = Engine.commit

        def look(engine: Engine, now_ms: int) -> bool:
            self.sent = [client.sent for client in self.clients]
            return commit(engine, now_ms)

        self._patch = lambda: monkeypatch.setattr(Engine, "commit", look)

    async def fill(self) -> None:
        await self.ticks.ask(self.clients[0], *(f"XADD s 1-{number + 1} f {_VALUE}" for number in range(_ENTRIES)))
        for client in self.clients:
            client.replies()
            client.sent = 0
        self._patch()

    async def run(self, *commands: str) -> list[list[bytes]]:
        """Have each client send one of these lines in one tick; -> the replies."""
        for client, line in zip(self.clients, commands, strict=True):
            client.send(*line.split(";"))
        await self.ticks.settle()
        return [client.replies() for client in self.clients]


def test_a_long_reply_leaves_before_the_tick_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        tick = _Tick(tmp_path, monkeypatch)
        await tick.fill()
        first, second, third = await tick.run(_READ, "XLEN s", "PING")
        assert tick.sent[0] == len(first[0]) > EARLY_BYTES
        assert tick.sent[1:] == [0, 0]
        assert (second, third) == ([b":100\r\n"], [b"+PONG\r\n"])
        tick.ticks.close()

    in_loop(body())


def test_what_waits_in_front_of_a_long_reply_leaves_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        tick = _Tick(tmp_path, monkeypatch)
        await tick.fill()
        replies = await tick.run("XLEN s;PING", f"PING;{_READ};PING", "PING")
        assert tick.sent[0] == len(b":100\r\n+PONG\r\n")
        assert tick.sent[1] == len(b"+PONG\r\n") + len(replies[1][1])  # the last one came behind it
        assert [len(each) for each in replies] == [2, 3, 1]
        assert replies[1][::2] == [b"+PONG\r\n"] * 2
        tick.ticks.close()

    in_loop(body())


def test_few_replies_of_one_client_leave_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        tick = _Tick(tmp_path, monkeypatch)
        await tick.fill()
        third = f"{_READ} COUNT {_ENTRIES // 6}"  # of what leaves early
        first, second, _ = await tick.run(f"{third};{third}", f"{third};{third};PING", "PING")
        assert sum(map(len, first)) < EARLY_BYTES < sum(map(len, first + second))
        assert tick.sent == [sum(map(len, first)), sum(map(len, second)), 0]
        tick.ticks.close()

    in_loop(body())


@pytest.mark.parametrize("write", ["XADD s 2-1 f v", "XADD t 2-1 f v", "DEL s", "XGROUP CREATE s g 0", "XDEL s 1-1"])
def test_no_reply_behind_a_change_leaves_before_it_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    async def body() -> None:
        tick = _Tick(tmp_path, monkeypatch)
        await tick.fill()
        replies = await tick.run(write, _READ, "PING")
        assert tick.sent == [0, 0, 0]
        assert [len(each) for each in replies] == [1, 1, 1]
        tick.ticks.close()

    in_loop(body())


def test_a_client_that_is_sent_messages_too_waits_for_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        tick = _Tick(tmp_path, monkeypatch)
        await tick.fill()
        await tick.ticks.ask(tick.clients[0], "HELLO 3", "SUBSCRIBE c")
        tick.clients[0].replies()
        tick.clients[0].sent = 0
        replies = await tick.run(_READ, _READ, "PING")
        assert tick.sent[0] == 0
        assert tick.sent[1] > EARLY_BYTES
        assert [len(each) for each in replies] == [1, 1, 1]
        tick.ticks.close()

    in_loop(body())


def test_a_commit_that_fails_takes_back_no_reply_that_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        tick = _Tick(tmp_path, monkeypatch)
        await tick.fill()

        tick.ticks.files.fail("write", errno.ENOSPC)
        reads, writes, behind = await tick.run(_READ, "XADD s 2-1 f v", _READ)
        assert len(reads) == 1
        assert reads[0].startswith(b"*100\r\n")
        assert [reply.partition(b" ")[0] for reply in (*writes, *behind)] == [b"-MISCONF"] * 2
        tick.ticks.files.forgive()
        assert await tick.ticks.ask(tick.clients[1], "XLEN s") == [b":100\r\n"]
        tick.ticks.close()

    in_loop(body())


def test_a_tick_ends_in_time_however_many_replies_have_left(tmp_path: Path) -> None:
    """Each look at the clock takes a millisecond here, and each reply leaves by itself."""

    async def body() -> None:
        ticks = Ticks(tmp_path, clock=PassingClock(), checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        client.send(*(f"XADD s 1-{number + 1} f {_VALUE}" for number in range(_ENTRIES)))
        while ticks.engine.txn.databases[0].size == 0 or not client.session.is_idle:
            await ticks.settle()
        client.replies()
        counts = [0]
        client.send(*[_READ] * 40)
        while sum(counts) < 40:
            await asyncio.sleep(0)
            counts.append(len(client.replies()))
        assert 0 < max(counts) <= 3
        ticks.close()

    in_loop(body())
