"""Clients that share a slow sync: when a tick waits for them, for how long, and whether that is worth it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from riverbed.server.commands.session import Session
from riverbed.server.execution.fast_path import MAX_REQUESTS_A_TICK
from riverbed.server.execution.line.gathering import MOST_S, SLOW_S, Gathering
from riverbed.server.execution.line.trial import ROUND, ROUNDS
from riverbed.server.stats.stats import Stats
from tests.support.faults.processes.slow_sync import SlowSync
from tests.support.in_process import HandClock
from tests.support.raw import encode
from tests.support.servers import RiverbedServer
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until

_SYNC_S = 0.004


class _Timer:
    def __init__(self, delay: float, run: Callable[[], None]) -> None:
        self.delay = delay
        self.run = run
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """Remembers what is to be called later."""

    def __init__(self) -> None:
        self.timers: list[_Timer] = []

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any) -> _Timer:
        self.timers.append(_Timer(delay, lambda: callback(*args)))
        return self.timers[-1]


class _Client:
    is_plain = True
    in_line = closing = must_wait = is_monitor = is_replica = is_confined = False


class Rounds:
    """A Gathering, and the clients that its ticks answer."""

    def __init__(self, clients: int = 4) -> None:
        self.loop = _Loop()
        self.clock = HandClock()
        self.stats = Stats()
        self.wanted = 0  # ticks
        self.clients = [cast(Session, _Client()) for _ in range(clients)]
        self.gathering = Gathering(cast(asyncio.AbstractEventLoop, self.loop), self.clock.monotonic, self.stats)
        for _ in range(2):
            self.gathering.synced(_SYNC_S, is_waited_for=True)

    def round(self, took_ms: float) -> bool:
        """A round of ticks, each for all clients; -> whether they waited for all clients."""
        waited = []
        for _ in range(ROUND):
            waited.append(self.waits([]))
            assert not self.waits(self.clients)
            self.clock.now_ms += took_ms
            self.gathering.answered(self.clients)
        assert len(set(waited)) == 1
        return waited[0]

    def waits(self, arrivals: list[Session]) -> bool:
        return self.gathering.waits(arrivals, self._want_tick)

    def _want_tick(self) -> None:
        self.wanted += 1


def waiting() -> Rounds:
    """In a trial in which ticks wait."""
    rounds = Rounds()
    assert not rounds.round(2)
    return rounds


def test_it_is_for_slow_syncs_that_replies_wait_for() -> None:
    gathering = Rounds().gathering
    for seconds, is_waited_for, is_on in (
        (SLOW_S / 2, True, False),
        (SLOW_S, True, False),  # one alone may have had to wait for something else
        (SLOW_S, True, True),
        (1.0, True, True),
        (1.0, False, False),
        (1.0, True, True),
    ):
        gathering.synced(seconds, is_waited_for=is_waited_for)
        assert gathering.is_on is is_on


def test_a_tick_waits_until_all_that_were_answered_have_sent_something() -> None:
    rounds = waiting()
    rounds.gathering.answered(rounds.clients)
    arrivals: list[Session] = []
    for client in [cast(Session, _Client()), *rounds.clients[:3]]:
        arrivals.append(client)
        assert rounds.waits(arrivals)
    arrivals.append(rounds.clients[3])
    assert not rounds.waits(arrivals)
    assert rounds.loop.timers[-1].is_cancelled
    assert rounds.wanted == 0
    assert rounds.stats.waits_for_clients == 1


@pytest.mark.parametrize(("sync_s", "wait_s"), [(0.001, 0.001), (0.004, 0.002), (0.2, MOST_S)])
def test_it_waits_for_half_of_a_sync(sync_s: float, wait_s: float) -> None:
    rounds = waiting()
    for _ in range(2):
        rounds.gathering.synced(sync_s, is_waited_for=True)
    rounds.gathering.answered(rounds.clients)
    rounds.clock.now_ms += 0.25
    assert rounds.waits([])
    assert rounds.loop.timers[-1].delay == pytest.approx(wait_s - 0.00025, abs=1e-6)


def test_a_wait_in_vain_has_the_tick_and_as_many_are_not_waited_for_in_this_round() -> None:
    rounds = waiting()
    rounds.gathering.answered(rounds.clients)
    assert rounds.waits(rounds.clients[:2])
    rounds.loop.timers[-1].run()
    assert rounds.wanted == 1
    assert not rounds.waits(rounds.clients[:2])
    rounds.gathering.answered(rounds.clients)
    assert not rounds.waits(rounds.clients[:2])
    rounds.gathering.answered(rounds.clients)
    assert rounds.waits(rounds.clients[:1])


def test_clients_that_come_when_the_time_is_over_wait_for_nobody() -> None:
    rounds = waiting()
    rounds.gathering.answered(rounds.clients)
    rounds.clock.now_ms += _SYNC_S * 1000
    timers = len(rounds.loop.timers)
    assert not rounds.waits(rounds.clients[:1])
    assert len(rounds.loop.timers) == timers


@pytest.mark.parametrize("why", ["in_line", "closing", "must_wait", "is_monitor", "is_replica", "is_confined"])
def test_clients_that_will_send_nothing_are_not_waited_for(why: str) -> None:
    rounds = waiting()
    for client in rounds.clients[:2]:
        client.is_plain = why == "in_line"
    setattr(rounds.clients[0], why, True)
    rounds.gathering.answered(rounds.clients)
    assert rounds.waits(rounds.clients[1:2])
    assert rounds.waits(rounds.clients[1:3])
    assert not rounds.waits(rounds.clients[1:4])


def test_the_last_of_the_clients_that_are_waited_for_leaves() -> None:
    rounds = waiting()
    rounds.gathering.answered(rounds.clients)
    assert not rounds.gathering.forget(rounds.clients[3])  # no tick waits yet
    assert rounds.waits(rounds.clients[:1])
    assert not rounds.gathering.forget(rounds.clients[2])
    assert rounds.gathering.forget(rounds.clients[1])
    assert not rounds.waits(rounds.clients[:1])


def test_a_new_tick_ends_the_wait_of_the_one_before() -> None:
    rounds = waiting()
    rounds.gathering.answered(rounds.clients)
    assert rounds.waits([])
    timer = rounds.loop.timers[-1]
    rounds.gathering.answered(rounds.clients)
    assert timer.is_cancelled


@pytest.mark.parametrize(("took_ms", "is_kept"), [(1.0, True), (1.7, True), (1.9, False), (2.0, False), (4.0, False)])
def test_waiting_is_kept_if_it_answers_a_tenth_more_clients_a_second(took_ms: float, is_kept: bool) -> None:
    """The time before the first tick, since the machine was started, does not count."""
    rounds = Rounds()
    assert not rounds.round(2)
    assert rounds.round(took_ms)
    assert rounds.round(took_ms) is is_kept


def test_waiting_is_not_kept_where_it_was_tried_without_clients() -> None:
    rounds = Rounds()
    for _ in range(2 * ROUND):
        rounds.gathering.answered([])
    assert not rounds.round(2)


def test_the_other_way_is_tried_again_after_a_while() -> None:
    rounds = Rounds()
    assert [rounds.round(1) for _ in range(ROUNDS + 1)] == [False, True, *[False] * (ROUNDS - 1)]
    assert [rounds.round(1) for _ in range(2)] == [False, True]
    assert [rounds.round(2) for _ in range(ROUNDS)] == [False] * ROUNDS
    assert [rounds.round(1) for _ in range(ROUNDS + 1)] == [True] * (ROUNDS + 1)
    assert [rounds.round(took_ms) for took_ms in (2, *[1] * ROUNDS)] == [False, *[True] * ROUNDS]
    assert [rounds.round(1) for _ in range(2)] == [False, False]  # as good without


# -- in the executor ---------------------------------------------------------------------------------------------------


class _SlowTicks(Ticks):
    """Ticks whose syncs take 4 ms; they do nothing else that takes time, and waits end in vain when a test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, clock=HandClock(), appendfsync="always")
        self.files.before_sync = self._sync
        self.loop = _Loop()
        self.executor._gathering = Gathering(
            cast(asyncio.AbstractEventLoop, self.loop), self.clock.monotonic, self.executor.stats
        )

    def _sync(self) -> None:
        self.clock.now_ms += _SYNC_S * 1000


async def _waiting_ticks(directory: Path) -> tuple[_SlowTicks, list[Client]]:
    """Slow ticks that wait: of two clients that take turns, and then come together, twice as many are answered."""
    ticks = _SlowTicks(directory)
    clients = [ticks.connect(), ticks.connect()]
    for _ in range(ROUND + 2):
        await ticks.ask(clients[0], "XADD s * f v")
    for _ in range(ROUND):
        for client in clients:
            client.send("XADD s * f v")
        await ticks.settle()
    for client in clients:
        client.replies()
    return ticks, clients


def test_two_clients_that_take_turns_come_to_share_their_syncs(tmp_path: Path) -> None:
    async def scenario() -> None:
        ticks, clients = await _waiting_ticks(tmp_path)
        clients[0].send("XADD s * f v")
        await ticks.settle()
        assert clients[0].replies() == []
        syncs = ticks.executor.stats.fsync.count
        clients[1].send("XADD s * f v")
        await ticks.settle()
        assert [len(client.replies()) for client in clients] == [1, 1]
        assert ticks.executor.stats.fsync.count == syncs + 1
        assert len(ticks.batches()[-1]) == 2
        ticks.close()

    in_loop(scenario())


def test_nobody_waits_where_that_costs_as_many_readers(tmp_path: Path) -> None:
    """A writer is alone, and beside it another client gets three replies for which no sync is waited for."""

    async def scenario() -> None:
        ticks = _SlowTicks(tmp_path)
        clients = [ticks.connect(), ticks.connect()]
        for _ in range(ROUND + 2):
            await ticks.ask(clients[0], "XADD s * f v")
            for _ in range(3):
                await ticks.ask(clients[1], "PING")
        for _ in range(ROUND):
            for client in clients:
                client.send("XADD s * f v")
            await ticks.settle()
        for client in clients:
            client.replies()
        assert len(await ticks.ask(clients[0], "XADD s * f v")) == 1
        ticks.close()

    in_loop(scenario())


def test_a_client_that_is_waited_for_in_vain_delays_the_others_for_a_moment_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        ticks, clients = await _waiting_ticks(tmp_path)
        clients[0].send("XADD s * f v", "PING")
        await ticks.settle()
        assert clients[0].replies() == []
        assert 0 < ticks.loop.timers[-1].delay <= MOST_S
        ticks.loop.timers[-1].run()
        await ticks.settle()
        assert len(clients[0].replies()) == 2
        ticks.close()

    in_loop(scenario())


def test_a_client_that_leaves_is_waited_for_no_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        ticks, clients = await _waiting_ticks(tmp_path)
        clients[1].leave()
        assert len(await ticks.ask(clients[0], "XADD s * f v")) == 1
        ticks.close()

    in_loop(scenario())


def test_a_client_that_leaves_while_it_is_waited_for_ends_the_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        ticks, clients = await _waiting_ticks(tmp_path)
        clients[0].send("XADD s * f v")
        await ticks.settle()
        assert clients[0].replies() == []
        clients[1].leave()
        await ticks.settle()
        assert len(clients[0].replies()) == 1
        ticks.close()

    in_loop(scenario())


@pytest.mark.parametrize("wait", ["XREAD BLOCK 0 STREAMS other $", "SUBSCRIBE channel", "MONITOR"])
def test_a_client_that_waits_for_others_is_not_waited_for(tmp_path: Path, wait: str) -> None:
    async def scenario() -> None:
        ticks, clients = await _waiting_ticks(tmp_path)
        clients[0].send("XADD s * f v")
        clients[1].send(wait)
        await ticks.settle()
        assert len(clients[0].replies()) == 1
        assert len(await ticks.ask(clients[0], "XADD s * f v")) == 1
        ticks.close()

    in_loop(scenario())


@pytest.mark.parametrize("appendfsync", ["everysec", "no"])
def test_nobody_waits_for_clients_once_no_reply_waits_for_a_sync(tmp_path: Path, appendfsync: str) -> None:
    async def scenario() -> None:
        ticks, clients = await _waiting_ticks(tmp_path)
        for client in clients:
            client.send("XADD s * f v", f"CONFIG SET appendfsync {appendfsync}")
        await ticks.settle()
        assert [len(client.replies()) for client in clients] == [2, 2]
        for _ in range(2):
            assert len(await ticks.ask(clients[0], "XADD s * f v")) == 1
        assert ticks.executor.fast_path.most_requests == MAX_REQUESTS_A_TICK
        ticks.close()

    in_loop(scenario())


def test_a_reader_that_was_answered_without_a_sync_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        ticks, clients = await _waiting_ticks(tmp_path)
        for client in clients:
            client.send("XLEN s")
        await ticks.settle()
        assert [client.replies() for client in clients] == [[b":%d\r\n" % (3 * ROUND + 2)]] * 2
        assert await ticks.ask(clients[0], "PING") == [b"+PONG\r\n"]
        ticks.close()

    in_loop(scenario())


def test_long_pipelines_share_a_slow_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        ticks = _SlowTicks(tmp_path)
        client = ticks.connect()
        for _ in range(2):
            await ticks.ask(client, "XADD s * f v")
        count = 2 * MAX_REQUESTS_A_TICK
        syncs = ticks.executor.stats.fsync.count
        assert len(await ticks.ask(client, *["XADD s * f v"] * count)) == count
        assert ticks.executor.stats.fsync.count == syncs + 1
        await ticks.ask(client, "CONFIG SET appendfsync everysec", "XADD s * f v")
        ticks.server.checkpoints.checkpoint_now()
        before = len(ticks.batches())
        assert len(await ticks.ask(client, *["XADD s * f v"] * count)) == count
        assert len(ticks.batches()) > before + 1
        ticks.close()

    in_loop(scenario())


# -- a real server -----------------------------------------------------------------------------------------------------


def test_a_server_on_a_slow_disk_answers_all_and_keeps_what_it_has_answered(tmp_path: Path) -> None:
    disk = SlowSync(tmp_path / "slow")
    directory = tmp_path / "data"
    directory.mkdir()
    server = RiverbedServer(directory, tmp_path / "logs", {"appendfsync": "always"})
    server.environment = disk.environment
    replies = [0] * 8
    with server:
        disk.delay(4)

        def append(number: int) -> None:
            request = encode(("XADD", f"s{number}", "*", "f", "v"))
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
                try:
                    while True:
                        connection.sendall(request)
                        if not connection.recv(100):
                            return
                        replies[number] += 1
                except ConnectionError:
                    return

        threads = [threading.Thread(target=append, args=(number,)) for number in range(len(replies))]
        for thread in threads:
            thread.start()
        with server.client() as client:
            until(
                lambda: int(client.info("persistence")["riverbed_waits_for_clients"]) > ROUND // 2,
                "clients share syncs",
            )
        assert server.process is not None
        server.process.send_signal(signal.SIGKILL)
        for thread in threads:
            thread.join()
        server.wait_ended()
        disk.delay(0)
        server.start()
        with server.client() as client:
            for number, count in enumerate(replies):
                assert count <= int(client.ask("XLEN", f"s{number}")[1:]) <= count + 1
                assert count
