"""Rows that are put into the tables in turns, before the checkpoint that commits them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from riverbed.server.background.checkpoints import rows_ahead
from riverbed.store.databases.lent import BATCH as LENT_BATCH
from riverbed.store.databases.lent import PART_BYTES
from riverbed.store.databases.transaction import FEW_CHANGED, FEW_LENT_BYTES, FEWER_CHANGED
from riverbed.store.engine import Engine
from riverbed.store.running.checkpoint import Durability
from riverbed.store.tables.writing.transaction import PART
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_true

OK = b"+OK\r\n"


def test_a_tick_beside_a_checkpoint_puts_as_many_rows_into_the_tables_as_it_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It put all that waited, whose number no part seemed to make less: 2 MB in one turn."""
    monkeypatch.setattr(rows_ahead, "_TURN_S", 0)  # one part a turn

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        engine, client = ticks.engine, ticks.connect()
        keys = [f"k{number}" for number in range(4 * LENT_BATCH)]
        added = [f"XADD {key} * f {'x' * 1000}" for key in keys]
        for _ in range(3):
            await ticks.ask(client, *(line for line in added for _ in range(4)))
        txn = engine.txn

        def waiting() -> int:
            return sum(db.lent_bytes for db in txn.databases)

        left = [waiting()]
        assert left[0] > FEW_LENT_BYTES + 4 * PART_BYTES
        client.send("CONFIG SET checkpoint-interval-ms 1")
        while not engine.checkpoints.is_syncing:
            client.send(*added[:16])
            await asyncio.sleep(0)
            left.append(waiting())
        assert len(left) > 5
        assert max(first - second for first, second in pairwise(left[:-1])) <= 3 * PART_BYTES
        assert left[-2] < FEW_LENT_BYTES + 2 * PART_BYTES  # the commit's
        ticks.close()

    in_loop(body())


def test_a_server_that_stops_does_not_seem_to_put_rows_into_the_tables(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD k{number} 1-1 f v" for number in range(FEW_CHANGED + 9 * PART)))
        ticks.server.checkpoints.checkpoint_soon()
        assert ticks.server.checkpoints.is_writing_ahead
        ticks.server.checkpoints.stop()
        assert not ticks.server.checkpoints.is_writing_ahead
        ticks.close()

    in_loop(body())


def test_a_replica_does_not_wait_for_rows_whose_writing_has_met_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Engine) -> None:
        raise AssertionError("a defect")

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD k{number} 1-1 f v" for number in range(FEW_CHANGED + 9 * PART)))
        monkeypatch.setattr(Engine, "write_part", fail)
        ticks.server.checkpoints.checkpoint_soon()
        assert ticks.server.checkpoints.is_writing_ahead
        await until_true(lambda: not ticks.server.checkpoints.is_writing_ahead)
        monkeypatch.undo()
        ticks.close()

    in_loop(body())


def test_clients_are_served_while_many_rows_are_put_into_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_ahead, "_TURN_S", 0)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        engine, client = ticks.engine, ticks.connect()
        await ticks.ask(client, *(f"XADD k{number} 1-1 f v" for number in range(FEW_CHANGED + 9 * PART)))
        before, changed = engine.checkpoints.count, engine.txn.changed_streams
        assert changed > FEW_CHANGED
        client.send("CONFIG SET checkpoint-interval-ms 1")
        answered: list[int] = []  # replies in each turn in which rows were put
        left = [changed]
        while engine.checkpoints.count == before:
            client.send("XADD s * f v")
            await asyncio.sleep(0)
            left.append(engine.txn.changed_streams)
            replies = len(client.replies())
            if left[-1] < left[-2]:
                answered.append(replies)
        assert len(answered) > 10
        assert all(answered[1:])
        *_, second, most = sorted(first - second for first, second in pairwise(left))
        assert second <= PART
        assert most <= FEWER_CHANGED  # what the commit writes at once
        assert not engine.txn.unwritten_parts
        ticks.close()
        client = (ticks := Ticks(tmp_path, files=ticks.files)).connect()
        assert await ticks.ask(client, "DBSIZE") == [b":%d\r\n" % (FEW_CHANGED + 9 * PART + 1)]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("asked", ["CONFIG SET checkpoint-interval-ms 1", "BGSAVE"])
def test_streams_that_change_faster_than_rows_are_written_leave_few_to_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """With ten thousand streams under full load a checkpoint gave up, and wrote nearly all rows in one turn."""
    monkeypatch.setattr(rows_ahead, "_TURN_S", 0)  # one part a turn
    streams, at_once = 3 * FEW_CHANGED, 300
    begin_checkpoint, write_part = Engine.begin_checkpoint, Engine.write_part
    left: list[int] = []  # rows that each checkpoint has found
    parts = 0

    def begin(engine: Engine) -> Durability:
        left.append(engine.txn.changed_streams)
        return begin_checkpoint(engine)

    def write(engine: Engine) -> None:
        nonlocal parts
        parts += 1
        write_part(engine)

    async def body() -> None:
        nonlocal parts
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        keys = [f"k{number}" for number in range(streams)]
        for _ in range(2):  # the second time they are lent
            await ticks.ask(client, *(f"XADD {key} * f v" for key in keys))
        assert ticks.engine.txn.changed_streams > 2 * FEW_CHANGED
        monkeypatch.setattr(Engine, "begin_checkpoint", begin)
        monkeypatch.setattr(Engine, "write_part", write)
        client.send(asked)
        turns, most = 0, 0
        while not left:
            client.send(*(f"XADD {keys[(at_once * turns + number) % streams]} * f v" for number in range(at_once)))
            parts = 0
            await asyncio.sleep(0)
            turns, most = turns + 1, max(most, parts)
        assert left[0] <= FEWER_CHANGED
        assert 0 < most <= 2 + at_once // LENT_BATCH  # a turn's, and what a tick has changed
        assert turns < 2 * streams // LENT_BATCH
        await until_true(lambda: not ticks.engine.checkpoints.is_syncing)
        ticks.close()

    in_loop(body())
