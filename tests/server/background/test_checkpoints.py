"""When checkpoints begin, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import errno
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest

from riverbed.server.background import checkpoints, log_rewrite
from riverbed.store.databases.lent import BATCH as LENT_BATCH
from riverbed.store.databases.lent import PART_BYTES
from riverbed.store.databases.transaction import FEW_CHANGED, FEW_LENT_BYTES, FEWER_CHANGED
from riverbed.store.engine import Engine
from riverbed.store.errors import DamagedRowError, Refusal
from riverbed.store.running.checkpoint import Durability
from riverbed.store.tables.writing.transaction import PART
from tests.support.rewriter import Rewriter
from tests.support.ticks import Ticks, in_loop
from tests.support.waiting import until_true

OK = b"+OK\r\n"


def test_a_checkpoint_follows_every_write_soon_and_nothing_else_does(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=5)
        client = ticks.connect()
        engine = ticks.engine
        before = engine.checkpoints.count
        await ticks.ask(client, "PING", "XLEN s")
        await asyncio.sleep(0.05)
        assert engine.checkpoints.count == before
        await ticks.ask(client, "XADD s 1-1 f v")
        await until_true(lambda: engine.checkpoints.count == before + 1)
        assert not engine.needs_checkpoint
        await asyncio.sleep(0.05)
        assert engine.checkpoints.count == before + 1
        ticks.close()

    in_loop(body())


def test_much_that_was_written_is_a_checkpoint_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        before = ticks.engine.checkpoints.count
        client.send_words("XADD", "s", "1-1", "f", b"x" * (checkpoints.CHECKPOINT_BYTES - 1000))
        await ticks.settle()
        assert ticks.engine.checkpoints.count == before
        client.send_words("XADD", "s", "1-2", "f", b"x" * 1000)
        await until_true(lambda: ticks.engine.checkpoints.count == before + 1)
        ticks.close()

    in_loop(body())


def test_a_checkpoint_waits_for_more_when_many_streams_have_changed(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        keys = [f"k{number}" for number in range(checkpoints.STREAMS_A_CHECKPOINT)]
        for _ in range(2):  # the second time most of them are lent
            before = ticks.engine.checkpoints.count
            await ticks.ask(client, *(f"XADD {key} * f v" for key in keys for _ in range(2)))
            client.send_words("XADD", "s", "*", "f", b"x" * (checkpoints.CHECKPOINT_BYTES + 1000))
            await ticks.settle()
            assert ticks.engine.dirty_bytes > checkpoints.CHECKPOINT_BYTES
            assert ticks.engine.checkpoints.count == before
            client.send_words("XADD", "s", "*", "f", b"x" * checkpoints.CHECKPOINT_BYTES)
            await until_true(lambda before=before: ticks.engine.checkpoints.count == before + 1)
        ticks.close()

    in_loop(body())


def test_a_replica_waits_for_more_before_a_checkpoint(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        ticks.engine.txn.follows = True
        before = ticks.engine.checkpoints.count
        for _ in range(checkpoints.REPLICA_TIMES):
            await ticks.settle()
            assert ticks.engine.checkpoints.count == before
            client.send_words("XADD", "s", "*", "f", b"x" * checkpoints.CHECKPOINT_BYTES)
        await until_true(lambda: ticks.engine.checkpoints.count == before + 1)
        ticks.close()

    in_loop(body())


def test_a_tick_beside_a_checkpoint_puts_as_many_rows_into_the_tables_as_it_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It put all that waited, whose number no part seemed to make less: 2 MB in one turn."""
    monkeypatch.setattr(checkpoints, "_TURN_S", 0)  # one part a turn

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
    monkeypatch.setattr(checkpoints, "_TURN_S", 0)

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
    monkeypatch.setattr(checkpoints, "_TURN_S", 0)  # one part a turn
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


@pytest.mark.parametrize(("policy", "syncs"), [("everysec", True), ("no", False)])
def test_everysec_syncs_once_a_second_however_seldom_checkpoints_are(tmp_path: Path, policy: str, syncs: bool) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync=policy)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        assert ticks.engine.log.unsynced_bytes > 0
        if syncs:
            await until_true(lambda: ticks.engine.log.unsynced_bytes == 0)
        else:
            await asyncio.sleep(1.3)
            assert ticks.engine.log.unsynced_bytes > 0
        ticks.close()

    in_loop(body())


def test_a_shorter_interval_holds_for_the_checkpoint_that_is_due(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        before = ticks.engine.checkpoints.count
        await ticks.ask(client, "XADD s 1-1 f v", "CONFIG SET checkpoint-interval-ms 5")
        await until_true(lambda: ticks.engine.checkpoints.count == before + 1)
        ticks.close()

    in_loop(body())


def test_a_checkpoint_that_cannot_sync_the_log_refuses_writes(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.fail("sync", errno.EIO)
        (reply,) = await ticks.ask(client, "SAVE")
        assert reply.startswith(b"-")
        assert ticks.engine.refusal is Refusal.LOG_FAILED
        (info,) = await ticks.ask(client, "INFO persistence")
        assert b"rdb_last_bgsave_status:err\r\n" in info
        assert (await ticks.ask(client, "XLEN s", "XADD s 1-2 f v"))[1].startswith(b"-MISCONF ")
        ticks.close(save=False)

    in_loop(body())


@pytest.mark.parametrize("asked", ["SAVE", "RIVERBED SNAPSHOT"])
def test_a_checkpoint_that_fails_is_tried_again_whoever_has_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """What was written before was not synced any more, until something else was written."""
    begin_checkpoint = Engine.begin_checkpoint
    tries = 0

    def fail_once(engine: Engine) -> Durability:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise lmdb.DiskError("no space")
        return begin_checkpoint(engine)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="everysec")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        monkeypatch.setattr(Engine, "begin_checkpoint", fail_once)
        client.send(asked)
        await until_true(lambda: tries == 1)
        assert ticks.engine.log.unsynced_bytes > 0
        await until_true(lambda: ticks.engine.log.unsynced_bytes == 0)
        assert (tries, ticks.engine.needs_checkpoint) == (2, False)
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("asked", ["RIVERBED SNAPSHOT", "BGREWRITEAOF"])
def test_damage_that_a_checkpoint_meets_is_no_defect_of_who_has_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    def meet_damage(_: Engine) -> Durability:
        raise DamagedRowError("a row")

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, auto_repair="no")
        client, core = ticks.connect(), ticks.executor.context
        monkeypatch.setattr(log_rewrite, "Worker", lambda *arguments: Rewriter(ticks.engine, tmp_path / "made"))
        await ticks.ask(client, "XADD s 1-1 f v")
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "begin_checkpoint", meet_damage)
            client.send(asked)
            await until_true(lambda: core.stats.snapshot.last_ok is False or core.rewrite.last_ok is False)
        await ticks.settle()
        assert core.stats.background.failures == 0
        ticks.close()

    in_loop(body())


def test_rows_that_cannot_be_written_behind_replies_are_not_tried_with_each_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try with a full map undid the state and replayed the tail of the log, in 25 ms."""
    tries: list[int] = []

    def refuse() -> None:
        raise lmdb.MapFullError("the map is full")

    def fail(engine: Engine) -> None:
        tries.append(engine.txn.changes)
        engine._write_rows(refuse)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        lines = [f"XADD s * f {'v' * 40}"] * 300
        await ticks.ask(client, "XADD s * f v")
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "write_behind", fail)
            for _ in range(4):
                assert len(await ticks.ask(client, *lines)) == 300
                ticks.engine.refusals.reason = None  # as if there was space again
                ticks.executor.gate.refresh()
        assert len(tries) == 1
        assert [record.message.partition(":")[0] for record in caplog.records if record.levelno >= 30] == [
            "writing rows failed, to be tried again"
        ]
        ticks.server.checkpoints.checkpoint_now()
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "write_behind", fail)
            await ticks.ask(client, *lines)
            assert len(tries) == 2  # a checkpoint has found space
        assert await ticks.ask(client, "XLEN s") == [b":1501\r\n"]
        ticks.close()

    in_loop(body())
