"""The steps of a repair with a process that a test plays: what is asked of it, and when its tables are taken."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from riverbed.server.background.integrity import repairs as module
from riverbed.server.background.integrity.repairs import AGAIN_S, MAX_ROUNDS, NEAR_BYTES
from riverbed.server.background.worker import WorkerError
from riverbed.server.replication import replacement
from riverbed.store.engine import Engine
from riverbed.store.layout import DATA_NAME
from riverbed.store.position import LogPosition
from tests.support.ticks import Client, Ticks, in_loop

_TURNS_OF_A_TICK = 5


class Process:
    """Answers at once, and calls `between` before it says that it has executed the log."""

    between: Callable[[Ticks], None] = staticmethod(lambda ticks: None)
    failure = ""
    ticks: Ticks
    orders: list[dict[str, Any]]

    def __init__(self, tasks: object, name: str, *arguments: object, is_urgent: bool) -> None: ...

    async def __aenter__(self) -> Self:
        if self.failure:
            raise WorkerError(self.failure)
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def send(self, **order: object) -> None:
        self.orders.append(order)

    async def receive(self) -> dict[str, Any]:
        order = self.orders[-1]
        if "replay" in order:
            Process.between(self.ticks)
            for _ in range(_TURNS_OF_A_TICK):
                await asyncio.sleep(0)
            return {"at": list(order["replay"])}
        return {"sound": True}


class OtherTables:
    """Others than these, with the same in them."""

    def __init__(self, tables: object) -> None:
        self._tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)


class Repaired:
    """A server whose repairs are played."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.ticks = ticks = Ticks(directory, **settings)
        Process.ticks, Process.orders = ticks, []
        self.exchanges: list[Path] = []
        self.repairs: Any = ticks.server.repairs
        self.repairs._exchange = lambda made, aside: self.exchanges.append(made)
        self.client = ticks.connect()

    @property
    def replays(self) -> list[LogPosition]:
        return [order["replay"] for order in Process.orders if "replay" in order]

    async def repair(self) -> bytes:
        """-> the reply to a client that asks for a repair."""
        self.client.send("RIVERBED REPAIR")
        await self.end()
        (reply,) = self.client.replies()
        return reply

    async def end(self) -> None:
        """Wait for the end of the repair under way, and for what comes of it."""
        await self.ticks.settle()
        if self.repairs._task is not None:
            await asyncio.wait([self.repairs._task])
        await self.ticks.settle()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "Worker", Process)
    yield
    Process.between, Process.failure = staticmethod(lambda ticks: None), ""


def write(client: Client, size: int) -> None:
    client.send_words("XADD", "s", "*", "f", b"v" * size)


@contextmanager
def between(action: Callable[[Ticks], None]) -> Iterator[None]:
    Process.between = staticmethod(action)
    yield


def test_the_process_executes_what_is_on_the_disk_and_checks_it_before_the_exchange(
    tmp_path: Path, played: None
) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path, appendfsync="no", auto_repair="no")
        await repaired.ticks.ask(repaired.client, "XADD s 1-1 f v")
        log = repaired.ticks.engine.log
        repaired.ticks.server.checkpoints.checkpoint_in_thread = _nothing  # which would sync it
        assert log.synced.offset < log.end.offset
        synced = log.synced
        assert b"offset" in await repaired.repair()
        assert set(repaired.replays) == {synced}
        assert [next(iter(order)) for order in Process.orders] == ["replay", "check", "replay", "replay"]
        assert len(repaired.exchanges) == 1
        repaired.ticks.close()

    in_loop(body())


def test_a_checkpoint_makes_what_was_written_durable_before_the_log_is_executed(tmp_path: Path, played: None) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path, appendfsync="no")
        await repaired.ticks.ask(repaired.client, "XADD s 1-1 f v")
        assert b"offset" in await repaired.repair()
        assert repaired.replays[-1] == repaired.ticks.engine.log.end
        repaired.ticks.close()

    in_loop(body())


def test_no_rewrite_is_under_way_during_a_repair_which_ends_the_damage(tmp_path: Path, played: None) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path)
        core = repaired.ticks.server.context
        core.scrub.damage[DATA_NAME] = "a row"
        held: list[bool] = []
        with between(lambda ticks: held.append(core.rewrite.is_held)):
            assert b"offset" in await repaired.repair()
        assert held and all(held) and not core.rewrite.is_held
        assert not core.scrub.damage
        repaired.ticks.close()

    in_loop(body())


def test_the_exchange_cuts_off_a_client_that_is_still_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, other = ticks.connect(), ticks.connect()
        await ticks.ask(other, *(f"XADD s {number}-1 f {'v' * 1000}" for number in range(1, 3001)))
        await ticks.ask(other, "SAVE")
        reader.session.congested = True  # the client does not read on
        reader.send("XRANGE s - +")
        await ticks.settle()
        assert reader.session.long_reply is not None
        exchanged: list[Path] = []
        monkeypatch.setattr(replacement, "exchange_tables", lambda engine, made, aside: exchanged.append(made))
        ticks.server.repairs._exchange(tmp_path / "made", tmp_path / "aside")
        assert reader.is_closed and not other.is_closed
        assert exchanged == [tmp_path / "made"]
        ticks.close()

    in_loop(body())


async def _nothing() -> None: ...


def test_a_server_that_writes_too_fast_is_not_waited_for_in_a_tick(tmp_path: Path, played: None) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path)
        writer = repaired.ticks.connect()
        with between(lambda ticks: write(writer, NEAR_BYTES + 1000)):
            reply = await repaired.repair()
        assert b"more was written than could be executed" in reply
        assert not repaired.exchanges
        assert len(repaired.replays) == MAX_ROUNDS + 1
        repaired.ticks.close()

    in_loop(body())


def test_tables_that_a_full_sync_has_replaced_meanwhile_are_kept(tmp_path: Path, played: None) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path)
        with pytest.MonkeyPatch.context() as patch:

            def replace(ticks: Ticks) -> None:
                patch.setattr(Engine, "tables", OtherTables(ticks.engine.tables))

            with between(replace):
                reply = await repaired.repair()
        assert b"a full sync has replaced the tables" in reply
        assert not repaired.exchanges
        repaired.ticks.close()

    in_loop(body())


def test_damage_begins_no_repair_from_a_broken_log_nor_soon_after_one_that_failed(tmp_path: Path, played: None) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path)
        engine: Any = repaired.ticks.engine
        broken, engine.log.condition.broken = engine.log.broken, True
        repaired.repairs.damage_met()
        await repaired.ticks.settle()
        assert not Process.orders
        engine.log.condition.broken = broken
        Process.failure = "no process"
        repaired.repairs.damage_met()
        await repaired.end()
        Process.failure = ""
        for later_s, orders in ((0.0, 0), (AGAIN_S - 1, 0), (2.0, 4)):
            repaired.ticks.clock.now_ms += later_s * 1000
            repaired.repairs.damage_met()
            await repaired.end()
            assert len(Process.orders) == orders
        repaired.repairs.damage_met()
        await repaired.end()
        assert len(repaired.exchanges) == 2, "after one that has ended well, the next begins at once"
        repaired.ticks.close()

    in_loop(body())


def test_tables_are_not_made_again_of_a_log_that_could_not_be_synced(tmp_path: Path) -> None:
    """It may lack what they have, and the server ended when it had no place to go on from."""

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.fail("sync", errno.EIO)
        await ticks.ask(client, "SAVE")
        assert await ticks.ask(client, "RIVERBED REPAIR", "XLEN s") == [
            b"-ERR the tables are not made again of a log that could not be written or synced\r\n",
            b":1\r\n",
        ]
        ticks.close(save=False)

    in_loop(body())


def test_a_client_that_reads_the_old_tables_is_waited_for_and_then_cut_off(
    tmp_path: Path, played: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path)
        waits: list[int] = []
        monkeypatch.setattr(module, "_WAIT_S", 0.0)
        monkeypatch.setattr(module, "_READERS_STEPS", 3)
        repaired.repairs._has_readers = lambda: waits.append(1) or True
        assert b"offset" in await repaired.repair()
        assert len(waits) == 3
        assert len(repaired.replays) == 3, "what others wrote meanwhile is executed before the exchange"
        repaired.ticks.close()

    in_loop(body())


def test_the_tables_are_exchanged_between_two_ticks(
    tmp_path: Path, played: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        repaired = Repaired(tmp_path)
        txn: Any = repaired.ticks.engine.txn

        async def leave(process: Process, *error: object) -> None:
            txn.log_command(0, [b"PING"])

        open_lines: list[int] = []
        monkeypatch.setattr(Process, "__aexit__", leave)
        repaired.repairs._exchange = lambda made, aside: open_lines.append(len(txn.log))
        assert b"offset" in await repaired.repair()
        assert open_lines == [0]
        repaired.ticks.close()

    in_loop(body())
