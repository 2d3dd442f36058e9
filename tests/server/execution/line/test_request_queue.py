"""A tick is short: a client with one request does not wait for the pipelines of others, and none waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.in_process import HandClock, PassingClock
from tests.support.ticks import Ticks, in_loop

_TICK = 8  # requests


def short_ticks(directory: Path, clock: HandClock | None = None, **settings: object) -> Ticks:
    ticks = Ticks(directory, clock=clock, **settings)
    ticks.executor.fast_path.most_requests = _TICK
    return ticks


async def turn() -> None:
    await asyncio.sleep(0)


def test_who_asks_one_thing_does_not_wait_for_the_pipelines_that_were_left_over(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = short_ticks(tmp_path / "d")
        crowd = [ticks.connect() for _ in range(4)]
        for client in crowd:
            client.send(*["PING"] * _TICK)
        await turn()
        assert [len(client.replies()) for client in crowd] == [_TICK, 0, 0, 0]
        late = ticks.connect()
        late.send("PING")
        await turn()
        assert [len(client.replies()) for client in (*crowd, late)] == [0, _TICK, 0, 0, 1]
        ticks.close()

    in_loop(body())


def test_only_so_many_go_before_those_who_were_left_over(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = short_ticks(tmp_path / "d")
        ticks.executor.queue.most_first = _TICK // 2
        patient = [ticks.connect() for _ in range(3)]
        for client in patient:
            client.send(*["PING"] * _TICK)
        answered: list[int] = []
        for _ in range(3):
            for _ in range(_TICK):
                ticks.connect().send("PING")
            await turn()
            answered.append(sum(len(client.replies()) for client in patient))
        # of newcomers half a tick goes first; a pipeline that was begun is run to its end
        assert answered == [_TICK] * 3
        ticks.close()

    in_loop(body())


def test_what_a_client_sends_behind_its_pipeline_does_not_overtake_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = short_ticks(tmp_path / "d")
        first, second = ticks.connect(), ticks.connect()
        first.send(*["PING"] * _TICK)
        second.send(*[f"XADD s {step}-0 f v" for step in range(1, _TICK)])
        await turn()
        second.send("XLEN s")
        first.send("XLEN s")
        await turn()
        assert first.replies()[-1] == b":0\r\n"
        await ticks.settle()
        assert second.replies()[-1] == b":%d\r\n" % (_TICK - 1)
        ticks.close()

    in_loop(body())


def test_everything_runs_once_and_in_its_clients_order_whatever_arrives_when(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = short_ticks(tmp_path / "d")
        clients = [ticks.connect() for _ in range(5)]
        sent = [0] * len(clients)
        for step in range(60):
            for number, client in enumerate(clients):
                size = (step * 7 + number * 3) % 11
                client.send(*[f"ECHO {sent[number] + count}" for count in range(size)])
                sent[number] += size
            await turn()
        for _ in range(sum(sent) // _TICK):
            await turn()
        await ticks.settle()
        for number, client in enumerate(clients):
            words = [reply.split(b"\r\n")[1] for reply in client.replies()]
            assert words == [b"%d" % count for count in range(sent[number])]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("password", ["", "secret"])
@pytest.mark.parametrize("data", [b"*3\r\n$4\r\nECHO\r\n$1\r\na\r\n", b"*0\r\n" * 100], ids=["unfinished", "empty"])
def test_bytes_without_a_whole_request_take_the_time_of_a_tick_as_well(
    tmp_path: Path, password: str, data: bytes
) -> None:
    async def body() -> None:
        clock = PassingClock()
        clock.step_ms = 0
        ticks = short_ticks(tmp_path / "d", clock, requirepass=password)
        crowd = [ticks.connect() for _ in range(50)]
        late = ticks.connect()
        await ticks.ask(late, "AUTH secret")
        clock.step_ms = 1
        for client in crowd:
            client.send_bytes(data)
        await turn()
        waiting = sum(client.session.in_line for client in crowd)
        assert 40 < waiting < 50
        late.send("PING")
        await turn()
        assert len(late.replies()) == 1
        assert 30 < sum(client.session.in_line for client in crowd) < waiting
        await ticks.settle()
        assert not any(client.session.in_line for client in crowd)
        ticks.close()

    in_loop(body())
