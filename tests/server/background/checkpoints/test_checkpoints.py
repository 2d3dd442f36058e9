"""When checkpoints begin, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import lmdb
import pytest

from riverbed.server.background import log_rewrite
from riverbed.server.background.checkpoints import checkpoints
from riverbed.server.limits import rare_lines
from riverbed.store.engine import Engine
from riverbed.store.errors import DamagedRowError, Refusal
from riverbed.store.running.checkpoint import Durability
from riverbed.store.tables.environment import Tables
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


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        ("log", "the log could not be written or synced; restart the server"),
        ("tables", "the tables could not be synced; restart the server, or send RIVERBED REPAIR"),
    ],
)
def test_what_begins_with_a_checkpoint_says_what_to_do_after_the_disk_has_failed(
    tmp_path: Path, failed: str, told: str
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "SAVE")
        if failed == "log":
            ticks.files.fail("sync", errno.EIO)
            await ticks.ask(client, "XADD s 1-2 f v")
        else:
            ticks.engine.tables.distrust("the disk has failed")
            await ticks.ask(client, "XADD s 1-2 f v", "SAVE")
        for line, what in (
            *(("SAVE", "checkpoint"), ("BGSAVE", "checkpoint"), ("DEBUG RELOAD", "checkpoint")),
            *(("BGREWRITEAOF", "rewrite of the log"), ("RIVERBED SNAPSHOT", "snapshot")),
        ):
            assert await ticks.ask(client, line) == [f"-ERR no {what}: {told}\r\n".encode()]
        ticks.close(save=False)

    in_loop(body())


def test_a_log_that_fails_behind_tables_that_have_failed_refuses_writes_until_a_restart(tmp_path: Path) -> None:
    """Nothing makes the tables again of such a log."""

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "SAVE")
        ticks.engine.tables.distrust("the disk has failed")
        await ticks.ask(client, "XADD s 1-2 f v", "SAVE")
        assert ticks.engine.refusal is Refusal.TABLES_FAILED
        ticks.files.fail("sync", errno.EIO)
        ticks.server.checkpoints.sync_log()
        assert ticks.engine.refusal is Refusal.LOG_FAILED
        ticks.close(save=False)

    in_loop(body())


def test_tables_that_fail_behind_a_log_that_has_failed_do_not_name_a_repair_as_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails while it has a checkpoint of a log that is durable."""

    def fail(tables: Tables) -> None:
        tables.distrust("the disk has failed")
        raise lmdb.DiskError("the disk has failed")

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="always")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.engine.begin_checkpoint()
        monkeypatch.setattr(Tables, "sync", fail)
        ticks.files.fail("sync", errno.EIO)
        [reply] = await ticks.ask(client, "XADD s 1-2 f v")
        assert reply.startswith(b"-MISCONF Errors writing to the AOF file: ")
        assert ticks.engine.refusal is Refusal.LOG_FAILED
        ticks.close(save=False)

    in_loop(body())


def test_while_the_tables_cannot_be_committed_the_log_is_synced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs no space is answered meanwhile, and a power cut is to take no more of it than at other times."""

    def refuse(engine: Engine, *, divides_log: bool = False) -> Durability:
        raise lmdb.DiskError("no space")

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=10, appendfsync="everysec")
        client = ticks.connect()
        monkeypatch.setattr(Engine, "begin_checkpoint", refuse)
        await ticks.ask(client, "XADD s 1-1 f v")
        assert await ticks.ask(client, "WAITAOF 1 0 0") == []
        sent = client.sent
        await until_true(lambda: ticks.engine.log.unsynced_bytes == 0)
        assert ticks.engine.needs_checkpoint
        await until_true(lambda: client.sent > sent)  # though nobody asks for anything any more
        assert client.replies() == [b"*2\r\n:1\r\n:0\r\n"]
        monkeypatch.undo()
        ticks.close()

    in_loop(body())


def test_a_checkpoint_that_goes_on_failing_is_logged_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full for a night would have the log filled with it; another failure is logged at once."""
    errors: list[Exception] = []

    def refuse(engine: Engine, *, divides_log: bool = False) -> Durability:
        errors.append(lmdb.DiskError("no space") if len(errors) < 8 else DamagedRowError("a row"))
        raise errors[-1]

    def logged() -> list[str]:
        return [record.message for record in caplog.records if "failed, to be tried again" in record.message]

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=10, auto_repair="no")
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "RETRY_S", 0.01)
            patch.setattr(Engine, "begin_checkpoint", refuse)
            await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
            await until_true(lambda: len(errors) == 8)
            told = "checkpoint failed, to be tried again (1 since the last such line): "
            full = f"{told}no space"
            assert logged() == [full]
            await until_true(lambda: len(errors) == 12)
            damaged = f"{told}{errors[-1]}"
            assert logged() == [full, damaged]
            patch.setattr(rare_lines, "_REPORT_SECONDS", 0)
            await until_true(lambda: len(errors) == 14)
            assert logged()[2:4] == [damaged.replace("(1 ", "(4 "), damaged]
        ticks.close()

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
            "writing rows failed, to be tried again (1 since the last such line)"
        ]
        ticks.server.checkpoints.checkpoint_now()
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "write_behind", fail)
            await ticks.ask(client, *lines)
            assert len(tries) == 2  # a checkpoint has found space
        assert await ticks.ask(client, "XLEN s") == [b":1501\r\n"]
        ticks.close()

    in_loop(body())
