"""A slow disk: which clients wait for it while checkpoints, snapshots and rewrites do."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.server.background.checkpoints import checkpoints, disk_hold, rows_ahead
from riverbed.server.protocol.replies import LONG_BYTES
from riverbed.store.databases.transaction import FEW_CHANGED
from riverbed.store.engine import Engine
from riverbed.store.errors import Refusal
from riverbed.store.layout import SNAPSHOTS_DIRECTORY
from riverbed.store.running.checkpoint import Durability
from riverbed.store.snapshot.reader import list_snapshots
from riverbed.store.tables.writing.transaction import PART
from tests.support.rewriter import rewrite_here
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until_true

OK = b"+OK\r\n"


class SlowDisk:
    """Makes checkpoints durable when it is told to, and at once for who waits in the loop's own thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.released = threading.Semaphore(0)
        self.begun = 0
        self.waited = 0
        loop = threading.current_thread()
        run = Durability.run

        def slowly(durability: Durability) -> None:
            if threading.current_thread() is loop:
                self.waited += not durability.is_over
            else:
                self.begun += 1
                self.released.acquire()
            run(durability)

        patch.setattr(Durability, "run", slowly)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.released.release(100)


def test_clients_are_served_while_the_disk_takes_its_time_and_hear_from_waitaof_when_it_has(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=5, appendfsync="everysec")
        client, waiting = ticks.connect(), ticks.connect()
        engine = ticks.engine
        assert await ticks.ask(waiting, "XADD s 1-1 f v", "WAITAOF 1 0 0") == [b"$3\r\n1-1\r\n"]
        await until_true(lambda: slow_disk.begun == 1)
        for number in range(2, 20):
            await ticks.ask(client, f"XADD s {number}-1 f v", "PING")
            await asyncio.sleep(0.002)
        assert (engine.checkpoints.count, slow_disk.begun, slow_disk.waited) == (0, 1, 0)
        assert waiting.replies() == []
        assert engine.log.unsynced_bytes > 0

        slow_disk.released.release()
        await until_true(lambda: engine.checkpoints.count == 1)
        await until_true(lambda: waiting.replies() == [b"*2\r\n:1\r\n:0\r\n"])
        # the others are in the next one, which was waiting for the disk
        await until_true(lambda: slow_disk.begun == 2)
        slow_disk.released.release()
        await until_true(lambda: engine.checkpoints.count == 2)
        assert (engine.log.unsynced_bytes, engine.needs_checkpoint, slow_disk.waited) == (0, False, 0)
        ticks.close()

    in_loop(body())


def test_a_client_that_waits_for_the_disk_is_answered_where_a_restored_state_has_ended_the_checkpoint(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=5, appendfsync="everysec")
        waiting = ticks.connect()
        assert await ticks.ask(waiting, "XADD s 1-1 f v", "WAITAOF 1 0 0") == [b"$3\r\n1-1\r\n"]
        await until_true(lambda: slow_disk.begun == 1)
        slow_disk.released.release()
        ticks.engine.end_checkpoint()  # between ticks, as the undo of a purge has it end
        await until_true(lambda: waiting.replies() == [b"*2\r\n:1\r\n:0\r\n"])
        ticks.close()

    in_loop(body())


def bound_what_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "MAX_DIRTY", 4)
    patch.setattr(checkpoints, "CHECKPOINT_BYTES", 65536)


async def write_much(ticks: Ticks, client: Client, times: int) -> None:
    """Add entries, each of nearly what a checkpoint waits for."""
    for _ in range(times):
        client.send_words("XADD", "s", "*", "f", b"x" * 60_000)
        await ticks.settle()


async def disk_fields(ticks: Ticks, client: Client) -> tuple[bool, bool]:
    """-> whether INFO says that writes wait for the disk, and that they had to once."""
    (info,) = await ticks.ask(client, "INFO persistence")
    return b"riverbed_writes_wait_for_disk:1" in info, b"aof_delayed_fsync:1" in info


def test_writes_wait_for_a_slow_disk_and_all_else_goes_on(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bound_what_waits(monkeypatch)
    monkeypatch.setattr(disk_hold, "LONG_S", 0.0)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client, other = ticks.connect(), ticks.connect()
        await write_much(ticks, client, 2)
        await until_true(lambda: slow_disk.begun == 1)
        await write_much(ticks, client, 3)
        assert ticks.engine.checkpoints.is_syncing
        assert len(client.replies()) == 5
        assert await disk_fields(ticks, other) == (False, False)
        await write_much(ticks, client, 2)
        assert len(client.replies()) == 2  # the second reaches the bound
        dirty = ticks.engine.dirty_bytes
        await write_much(ticks, client, 2)
        assert client.replies() == []
        assert await disk_fields(ticks, other) == (True, True)
        assert await ticks.ask(other, "PING", "XLEN s") == [b"+PONG\r\n", b":7\r\n"]
        assert (ticks.engine.dirty_bytes, slow_disk.waited) == (dirty, 0)

        slow_disk.released.release()
        await until_true(lambda: slow_disk.begun == 2)
        assert len(client.replies()) == 2
        assert "the disk is slow: writes have waited" in caplog.text
        assert await disk_fields(ticks, other) == (False, True)
        assert (await ticks.ask(other, "XLEN s"), slow_disk.waited) == ([b":9\r\n"], 0)
        ticks.close()

    in_loop(body())


def test_writes_that_wait_for_the_disk_are_refused_when_it_fails(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound_what_waits(monkeypatch)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client = ticks.connect()
        await write_much(ticks, client, 2)
        await until_true(lambda: slow_disk.begun == 1)
        await write_much(ticks, client, 6)
        assert (len(client.replies()), ticks.server.checkpoints.is_disk_behind) == (7, True)
        ticks.files.fail("sync", errno.EIO)
        slow_disk.released.release()
        await until_true(lambda: not ticks.server.checkpoints.is_disk_behind)
        await ticks.settle()
        (reply,) = client.replies()
        assert reply.startswith(b"-MISCONF")
        ticks.close(save=False)

    in_loop(body())


@pytest.mark.parametrize(("owner", "name"), [(Durability, "settle"), (Engine, "begin_checkpoint")])
def test_writes_do_not_wait_for_a_checkpoint_that_has_met_a_defect(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    bound_what_waits(monkeypatch)

    def fail(_: object) -> None:
        raise AssertionError("a defect")

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client = ticks.connect()
        await write_much(ticks, client, 2)
        await until_true(lambda: slow_disk.begun == 1)
        await write_much(ticks, client, 6)
        assert ticks.server.checkpoints.is_disk_behind
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            slow_disk.released.release()
            await until_true(lambda: not ticks.server.checkpoints.is_disk_behind)
        await ticks.settle()
        assert len(client.replies()) == 8
        ticks.close()

    in_loop(body())


def test_no_client_waits_for_the_disk_when_another_has_a_checkpoint_or_a_snapshot_made(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="everysec")
        client, other = ticks.connect(), ticks.connect()
        engine = ticks.engine
        assert (await ticks.ask(client, "XADD s 1-1 f v", "BGSAVE"))[1] == b"+Background saving started\r\n"
        await until_true(lambda: slow_disk.begun == 1)
        assert b"rdb_bgsave_in_progress:1\r\n" in (await ticks.ask(other, "INFO persistence"))[0]
        client.send("XADD s 2-1 f v", "RIVERBED SNAPSHOT")
        await ticks.settle()
        assert client.replies() == [b"$3\r\n2-1\r\n"]
        assert (await ticks.ask(other, "PING"), engine.checkpoints.count) == ([b"+PONG\r\n"], 0)
        slow_disk.released.release()
        await until_true(lambda: slow_disk.begun == 2)  # the snapshot is to hold what came after the first one
        assert (await ticks.ask(other, "PING"), engine.checkpoints.count) == ([b"+PONG\r\n"], 1)
        assert list_snapshots(tmp_path / SNAPSHOTS_DIRECTORY) == []
        slow_disk.released.release()
        await until_true(lambda: bool(client.replies()))
        (snapshot,) = list_snapshots(tmp_path / SNAPSHOTS_DIRECTORY)
        assert snapshot.manifest.entries == 2
        assert (engine.checkpoints.count, slow_disk.waited) == (2, 0)
        ticks.close()

    in_loop(body())


def test_a_snapshot_whose_checkpoint_fails_is_not_taken(tmp_path: Path, slow_disk: SlowDisk) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="everysec")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.fail("sync", errno.EIO)
        slow_disk.released.release(2)
        for _ in range(2):
            client.send("RIVERBED SNAPSHOT")
            replies: list[bytes] = []
            await until_true(lambda replies=replies: bool(replies.extend(client.replies()) or replies))
            assert replies[0].startswith(b"-ERR no snapshot: ")
            assert ticks.engine.refusal is Refusal.LOG_FAILED
        assert list_snapshots(tmp_path / SNAPSHOTS_DIRECTORY) == []
        ticks.close(save=False)

    in_loop(body())


def test_no_client_waits_for_the_checkpoints_of_a_rewrite(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="everysec")
        client, engine = ticks.connect(), ticks.engine
        rewrite_here(monkeypatch, engine)
        await ticks.ask(client, "XADD s 1-1 f v")
        adopted = ticks.server.rewriting.start()
        for number in range(1, 5):  # before the log is divided, where it is divided, and twice before the base counts
            await until_true(lambda number=number: slow_disk.begun == number)
            assert await ticks.ask(client, f"XADD s {number + 1}-1 f v", "PING") == [
                b"$3\r\n%d-1\r\n" % (number + 1),
                b"+PONG\r\n",
            ]
            assert not adopted.done()
            slow_disk.released.release()
        base = await adopted
        assert (engine.log.base, slow_disk.waited) == (base, 0)
        assert sum(len(batch) for batch in ticks.batches()) >= 4
        ticks.close()

    in_loop(body())


def test_no_client_waits_for_the_disk_when_a_rewrite_divides_the_log_under_load(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=1, appendfsync="everysec")
        client, engine = ticks.connect(), ticks.engine
        rewrite_here(monkeypatch, engine)
        await ticks.ask(client, "XADD s * f v")
        adopted = ticks.server.rewriting.start()
        while not adopted.done():  # another checkpoint is due each time the disk has one
            assert len(await ticks.ask(client, "XADD s * f v")) == 1
            await asyncio.sleep(0.003)
            slow_disk.released.release()
        assert (engine.log.base, slow_disk.waited) == (await adopted, 0)
        begun = slow_disk.begun
        await ticks.ask(client, "XADD s * f v")
        slow_disk.released.release(3)
        await until_true(lambda: slow_disk.begun > begun)  # they go on behind the rewrite
        ticks.close()

    in_loop(body())


def test_who_waits_for_a_checkpoint_goes_on_when_a_rewrite_has_divided_the_log(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes and long replies waited until the disk had it, too."""
    bound_what_waits(monkeypatch)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client, reader, engine = ticks.connect(), ticks.connect(), ticks.engine
        rewrite_here(monkeypatch, engine)
        client.send_words("XADD", "long", "*", "f", b"x" * LONG_BYTES)
        await until_true(lambda: slow_disk.begun == 1)
        adopted = ticks.server.rewriting.start()
        await write_much(ticks, client, 2)
        slow_disk.released.release()
        await until_true(lambda: slow_disk.begun == 2)
        await write_much(ticks, client, 2)
        slow_disk.released.release()
        await until_true(lambda: slow_disk.begun == 3)  # now the log is to be divided
        await write_much(ticks, client, 6)
        assert ticks.server.checkpoints.is_disk_behind
        client.replies()
        assert await ticks.ask(reader, "XRANGE long - +") == []
        slow_disk.released.release()
        await until_true(lambda: slow_disk.begun == 4)
        await ticks.settle()
        assert (len(reader.replies()), len(client.replies()), slow_disk.waited) == (1, 1, 0)
        slow_disk.released.release(100)
        await adopted
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("later", [0, 1])  # in one of both the snapshot's task puts the last rows into the tables first
def test_no_client_waits_for_the_disk_when_a_snapshot_is_taken_beside_a_rewrite(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    monkeypatch.setattr(rows_ahead, "_TURN_S", 0)  # one part a turn

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client, other, engine = ticks.connect(), ticks.connect(), ticks.engine
        rewrite_here(monkeypatch, engine)
        adopted = ticks.server.rewriting.start()
        await until_true(lambda: slow_disk.begun == 1)
        await ticks.ask(client, *(f"XADD k{number} 1-1 f v" for number in range(FEW_CHANGED + 9 * PART)))
        slow_disk.released.release()
        while not ticks.server.checkpoints.is_writing_ahead:
            other.send("PING")
            await asyncio.sleep(0)
        for _ in range(later):
            await asyncio.sleep(0)
        client.send("RIVERBED SNAPSHOT")
        await until_true(lambda: slow_disk.begun == 2)
        await ticks.settle()
        assert slow_disk.waited == 0
        slow_disk.released.release(100)
        await adopted
        await until_true(lambda: bool(client.replies()))
        ticks.close()

    in_loop(body())


def test_who_needs_a_checkpoint_to_be_durable_waits_for_the_disk(tmp_path: Path, slow_disk: SlowDisk) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=5, appendfsync="everysec")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        await until_true(lambda: slow_disk.begun == 1)
        assert await ticks.ask(client, "XADD s 2-1 f v", "SAVE") == [b"$3\r\n2-1\r\n", OK]
        assert (ticks.engine.checkpoints.count, ticks.engine.log.unsynced_bytes) == (2, 0)
        slow_disk.released.release()
        await ticks.ask(client, "XADD s 3-1 f v")
        slow_disk.released.release()
        await until_true(lambda: ticks.engine.checkpoints.count == 3)
        ticks.close()

    in_loop(body())
