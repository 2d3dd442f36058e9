"""What the server does by itself: expiry, purges, checkpoints, idle clients, and looking at the disk."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from riverbed.server.background import checkpoints, log_rewrite, maintenance
from riverbed.store.checkpoint import Durability
from riverbed.store.databases.lent import BATCH as LENT_BATCH
from riverbed.store.databases.lent import PART_BYTES
from riverbed.store.databases.transaction import FEW_CHANGED, FEW_LENT_BYTES, FEWER_CHANGED
from riverbed.store.engine import Engine
from riverbed.store.errors import Refusal
from riverbed.store.layout import SNAPSHOTS_DIRECTORY
from riverbed.store.rewrite.log_from_tables import write_base
from riverbed.store.rewrite.state import pieces
from riverbed.store.snapshot.reader import list_snapshots
from riverbed.store.tables.transaction import PART
from tests.conftest import StartRiverbed
from tests.support.read_log import LogTail
from tests.support.servers import RiverbedServer
from tests.support.ticks import Client, Ticks, in_loop

OK = b"+OK\r\n"
NEARLY_FULL = (
    b"-MISCONF The disk, or the room of lmdb-map-size, is nearly full. Commands that need space are refused until "
    b"there is some again; reading, deleting and trimming go on.\r\n"
)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something is so, for a minute at most."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0.002)


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_keys_nobody_asks_for_expire_and_are_logged_as_deleted(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD k{number} 1-1 f v" for number in range(200)))
        await ticks.ask(client, *(f"PEXPIRE k{number} {100 if number % 2 else 200}" for number in range(200)))
        ticks.server.maintenance.start()
        await asyncio.sleep(3 * maintenance.CYCLE_S)
        # no clock moved, so nothing is due
        assert await ticks.ask(client, "DBSIZE") == [b":200\r\n"]
        before = len(ticks.batches())
        ticks.clock.now_ms += 150
        await until(lambda: ticks.engine.txn.databases[0].size == 100)
        ticks.clock.now_ms += 100
        await until(lambda: ticks.engine.txn.databases[0].size == 0)
        await ticks.settle()
        lines = [line for batch in ticks.batches()[before:] for line in batch if line not in (b"MULTI", b"EXEC")]
        assert sorted(lines[:100]) == sorted(b"DEL k%d" % number for number in range(1, 200, 2))
        assert sorted(lines[100:]) == sorted(b"DEL k%d" % number for number in range(0, 200, 2))
        ticks.server.checkpoints.checkpoint()
        assert ticks.executor.stats.expired_keys == 200
        ticks.close()
        again = Ticks(tmp_path, files=ticks.files)
        assert await again.ask(again.connect(), "DBSIZE") == [b":0\r\n"]
        again.close()

    in_loop(body())


def test_a_deadline_that_was_moved_or_taken_away_is_not_the_old_one(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        for line in (
            *("XADD a 1-1 f v", "PEXPIRE a 100", "PERSIST a", "XADD b 1-1 f v", "PEXPIRE b 100", "PEXPIRE b 100000"),
            *("XADD c 1-1 f v", "PEXPIRE c 100", "RENAME c d", "XADD e 1-1 f v", "PEXPIRE e 100", "DEL e"),
            *("XADD e 1-1 f v", "XADD f 1-1 f v", "PEXPIRE f 100", "MOVE f 3", "COPY d g"),
        ):
            await ticks.ask(client, line)
        ticks.server.maintenance.start()
        ticks.clock.now_ms += 101
        await until(lambda: ticks.engine.txn.databases[0].size == 3 and not ticks.engine.txn.databases[3].size)
        assert await ticks.ask(client, "EXISTS a b e", "EXISTS d g c") == [b":3\r\n", b":0\r\n"]
        ticks.close()

    in_loop(body())


# -- purges ------------------------------------------------------------------------------------------------------------


def rows(ticks: Ticks) -> int:
    txn = ticks.engine.txn
    txn.write_back()  # appended entries may be in no table yet
    return int(txn.lmdb.stat(txn.handles["entries"])["entries"])


@pytest.mark.parametrize(
    "line", ["DEL s", "XTRIM s MAXLEN 10", "FLUSHALL", "RENAME other s", "XADD s MAXLEN ~ 1 9999999-0 f v"]
)
def test_what_was_dropped_is_purged_in_the_background(tmp_path: Path, line: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD other 1-1 f v", *(f"XADD s {number}-0 f v" for number in range(1, 3001)))
        assert rows(ticks) == 3001
        loaded = len(ticks.batches())
        await ticks.ask(client, line)
        (digest,) = await ticks.ask(client, "DEBUG DIGEST")
        await until(lambda: rows(ticks) <= 100 and not ticks.engine.txn.dead_rows.notes)
        assert await ticks.ask(client, "DEBUG DIGEST") == [digest]
        # and nothing of it is in the log twice
        assert len(ticks.batches()) == loaded + 1
        ticks.close()

    in_loop(body())


def test_a_purge_goes_on_after_a_start(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD s {number}-0 f v" for number in range(1, 3001)))
        client.send("DEL s")
        ticks.executor._tick()
        ticks.close()
        again = Ticks(tmp_path, files=ticks.files)
        again.server.maintenance.start()
        await until(lambda: rows(again) == 0)
        again.close()

    in_loop(body())


# -- checkpoints -------------------------------------------------------------------------------------------------------


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
        await until(lambda: engine.checkpoints.count == before + 1)
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
        await until(lambda: ticks.engine.checkpoints.count == before + 1)
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
            await until(lambda before=before: ticks.engine.checkpoints.count == before + 1)
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
        await until(lambda: ticks.engine.checkpoints.count == before + 1)
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
        await until(lambda: not ticks.server.checkpoints.is_writing_ahead)
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
        await until(lambda: not ticks.engine.checkpoints.is_syncing)
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
            await until(lambda: ticks.engine.log.unsynced_bytes == 0)
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
        await until(lambda: ticks.engine.checkpoints.count == before + 1)
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


# -- a slow disk -------------------------------------------------------------------------------------------------------


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
        await until(lambda: slow_disk.begun == 1)
        for number in range(2, 20):
            await ticks.ask(client, f"XADD s {number}-1 f v", "PING")
            await asyncio.sleep(0.002)
        assert (engine.checkpoints.count, slow_disk.begun, slow_disk.waited) == (0, 1, 0)
        assert waiting.replies() == []
        assert engine.log.unsynced_bytes > 0

        slow_disk.released.release()
        await until(lambda: engine.checkpoints.count == 1)
        await until(lambda: waiting.replies() == [b"*2\r\n:1\r\n:0\r\n"])
        # the others are in the next one, which was waiting for the disk
        await until(lambda: slow_disk.begun == 2)
        slow_disk.released.release()
        await until(lambda: engine.checkpoints.count == 2)
        assert (engine.log.unsynced_bytes, engine.needs_checkpoint, slow_disk.waited) == (0, False, 0)
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
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound_what_waits(monkeypatch)

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="no")
        client, other = ticks.connect(), ticks.connect()
        await write_much(ticks, client, 2)
        await until(lambda: slow_disk.begun == 1)
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
        await until(lambda: slow_disk.begun == 2)
        assert len(client.replies()) == 2
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
        await until(lambda: slow_disk.begun == 1)
        await write_much(ticks, client, 6)
        assert (len(client.replies()), ticks.server.checkpoints.is_disk_behind) == (7, True)
        ticks.files.fail("sync", errno.EIO)
        slow_disk.released.release()
        await until(lambda: not ticks.server.checkpoints.is_disk_behind)
        await ticks.settle()
        (reply,) = client.replies()
        assert reply.startswith(b"-MISCONF")
        ticks.close(save=False)

    in_loop(body())


def test_no_client_waits_for_the_disk_when_another_has_a_checkpoint_or_a_snapshot_made(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="everysec")
        client, other = ticks.connect(), ticks.connect()
        engine = ticks.engine
        assert (await ticks.ask(client, "XADD s 1-1 f v", "BGSAVE"))[1] == b"+Background saving started\r\n"
        await until(lambda: slow_disk.begun == 1)
        assert b"rdb_bgsave_in_progress:1\r\n" in (await ticks.ask(other, "INFO persistence"))[0]
        client.send("XADD s 2-1 f v", "RIVERBED SNAPSHOT")
        await ticks.settle()
        assert client.replies() == [b"$3\r\n2-1\r\n"]
        assert (await ticks.ask(other, "PING"), engine.checkpoints.count) == ([b"+PONG\r\n"], 0)
        slow_disk.released.release()
        await until(lambda: slow_disk.begun == 2)  # the snapshot is to hold what came after the first one
        assert (await ticks.ask(other, "PING"), engine.checkpoints.count) == ([b"+PONG\r\n"], 1)
        assert list_snapshots(tmp_path / SNAPSHOTS_DIRECTORY) == []
        slow_disk.released.release()
        await until(lambda: bool(client.replies()))
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
            await until(lambda replies=replies: bool(replies.extend(client.replies()) or replies))
            assert replies[0].startswith(b"-ERR no snapshot: ")
            assert ticks.engine.refusal is Refusal.LOG_FAILED
        assert list_snapshots(tmp_path / SNAPSHOTS_DIRECTORY) == []
        ticks.close(save=False)

    in_loop(body())


class Rewriter:
    """Does in this process what the process of a rewrite does."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine, self._path = engine, path
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> Rewriter:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    def send(self, **order: Any) -> None:
        engine = self._engine
        if "go" in order:
            self._answers.put_nowait({"held": tuple(engine.log.end), "total": 1})
        else:
            with engine.tables.env.begin() as txn:
                files = engine.files
                size = write_base(self._path, pieces(engine.tables, txn), files, offset=order["offset"], now_ms=1)
            self._answers.put_nowait({"entries": 1, "bytes": size.size, "command_bytes": size.command_bytes})

    async def receive(self) -> dict[str, Any]:
        return await self._answers.get()


def test_no_client_waits_for_the_checkpoints_of_a_rewrite(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000, appendfsync="everysec")
        client, engine = ticks.connect(), ticks.engine
        monkeypatch.setattr(log_rewrite, "Worker", lambda tasks, module, directory, path, size: Rewriter(engine, path))
        await ticks.ask(client, "XADD s 1-1 f v")
        adopted = ticks.server.rewriting.start()
        for number in range(1, 5):  # before the log is divided, where it is divided, and twice before the base counts
            await until(lambda number=number: slow_disk.begun == number)
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


def test_who_needs_a_checkpoint_to_be_durable_waits_for_the_disk(tmp_path: Path, slow_disk: SlowDisk) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=5, appendfsync="everysec")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        await until(lambda: slow_disk.begun == 1)
        assert await ticks.ask(client, "XADD s 2-1 f v", "SAVE") == [b"$3\r\n2-1\r\n", OK]
        assert (ticks.engine.checkpoints.count, ticks.engine.log.unsynced_bytes) == (2, 0)
        slow_disk.released.release()
        await ticks.ask(client, "XADD s 3-1 f v")
        slow_disk.released.release()
        await until(lambda: ticks.engine.checkpoints.count == 3)
        ticks.close()

    in_loop(body())


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_a_transaction_of_which_a_part_is_refused_does_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-0 f v", "MULTI", "DEL s", "XADD s 2-0 f v")
        ticks.engine.refusal = Refusal.DISK_NEARLY_FULL
        because = b"-EXECABORT Transaction discarded because of: " + NEARLY_FULL[1:]
        assert await ticks.ask(client, "EXEC", "XLEN s", "EXEC") == [because, b":1\r\n", b"-ERR EXEC without MULTI\r\n"]
        ticks.engine.refusal = None
        ticks.close()

    in_loop(body())


def test_a_disk_that_gets_full_refuses_what_needs_space_and_frees_itself(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD s {number}-0 f v" for number in range(1, 11)))
        ticks.server.maintenance.start()
        ticks.files.free = 100_000  # the reserve of these tests is 1 MB
        await until(lambda: ticks.engine.refusal is Refusal.DISK_NEARLY_FULL)
        assert await ticks.ask(client, "XADD s * f v", "xadd s * f v", "XGROUP CREATE s g 0") == [NEARLY_FULL] * 3
        # reading, deleting and trimming go on
        assert await ticks.ask(client, "XLEN s", "XDEL s 1-0", "XTRIM s MAXLEN 5", "PEXPIRE s 100000") == [
            *(b":10\r\n", b":1\r\n", b":4\r\n", b":1\r\n")
        ]
        assert (await ticks.ask(client, "MULTI", "XADD s * f v", "XDEL s 9-0", "EXEC"))[1] == NEARLY_FULL
        late = ticks.connect()
        assert await ticks.ask(late, "XADD s * f v", "XLEN s") == [NEARLY_FULL, b":5\r\n"]
        ticks.files.free = None
        await until(lambda: ticks.engine.refusal is None)
        assert await ticks.ask(client, "XADD s 50-0 f v", "XLEN s") == [b"$4\r\n50-0\r\n", b":6\r\n"]
        assert client.session.is_plain and ticks.executor.fast_path.commands
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("noticed_by", ["a commit", "the check"])
def test_the_log_says_that_writes_are_refused_and_that_they_are_taken_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, noticed_by: str
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.server.maintenance.start()
        ticks.files.free = 100_000
        if noticed_by == "a commit":
            ticks.engine.check_space()
        await until(lambda: "the disk is nearly full: writes are refused" in caplog.messages)
        ticks.files.free = None
        await until(lambda: "there is space again: writes are taken" in caplog.messages)
        ticks.close()

    with caplog.at_level("INFO", "riverbed"):
        in_loop(body())
    assert caplog.messages.count("the disk is nearly full: writes are refused") == 1


def test_a_log_that_cannot_begin_its_next_file_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "CYCLE_S", 0.001)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        looks: list[str | None] = []
        monkeypatch.setattr(ticks.engine, "check_space", lambda: looks.append(ticks.engine.log.rotate_error))
        ticks.server.maintenance.start()
        for error in ("no space left", "too many files"):
            ticks.engine.log.rotate_error = error
            await until(lambda error=error: looks.count(error) >= 3)
        ticks.close()

    in_loop(body())
    assert [record.getMessage() for record in caplog.records] == [
        "no space left; it goes on in the present one",
        "too many files; it goes on in the present one",
    ]


# -- idle clients ------------------------------------------------------------------------------------------------------


def test_clients_idle_for_too_long_are_cut_off_unless_they_wait(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, timeout=10)
        idle, busy, blocked, monitor, subscriber = (ticks.connect() for _ in range(5))
        await ticks.ask(blocked, "XREAD BLOCK 0 STREAMS s $")
        await ticks.ask(monitor, "MONITOR")
        await ticks.ask(subscriber, "PSUBSCRIBE *")
        ticks.server.maintenance.start()
        ticks.clock.now_ms += 9_000
        await ticks.ask(busy, "PING")
        ticks.clock.now_ms += 2_000
        await until(lambda: idle.is_closed)
        assert [client.is_closed for client in (busy, blocked, monitor, subscriber)] == [False] * 4
        ticks.close()

    in_loop(body())


def test_no_timeout_cuts_off_nobody(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        idle = ticks.connect()
        ticks.server.maintenance.start()
        ticks.clock.now_ms += 10**9
        await asyncio.sleep(maintenance.CYCLE_S * (maintenance.CYCLES_A_SPACE_CHECK + 2))
        assert not idle.is_closed
        ticks.close()

    in_loop(body())


# -- in a server -------------------------------------------------------------------------------------------------------


def test_a_server_expires_purges_and_checkpoints_by_itself(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 2001)])
        tail = LogTail(riverbed.directory)
        client.ask("PEXPIRE", "s", 20)
        while client.ask("DBSIZE") != b":0\r\n":
            time.sleep(0.01)
        while b"rdb_changes_since_last_save:0\r\n" not in client.ask("INFO", "persistence"):
            time.sleep(0.01)
        assert tail.lines()[-1] == b"DEL s"
        assert b"expired_keys:1\r\n" in client.ask("INFO", "stats")


def test_timeout_is_a_setting_of_the_running_server(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client, server.client() as idle:
        idle.ask("PING")
        assert client.ask("CONFIG", "SET", "timeout", 1) == OK
        assert idle.rest_until_closed() == b""


def test_a_reader_that_was_killed_is_forgotten(riverbed: RiverbedServer) -> None:
    program = (
        "import sys; from pathlib import Path; from riverbed.store.tables.environment import Tables; "
        "tables = Tables(Path(sys.argv[1]), 1 << 30, readonly=True); "
        "txn = tables.env.begin(); print('reading', flush=True); sys.stdin.read()"
    )
    with riverbed.client() as client:
        client.ask("XADD", "s", "1-1", "f", "v")
        assert client.ask("SAVE") == OK
        words = [sys.executable, "-c", program, str(riverbed.directory)]
        reader = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        assert b"riverbed_lmdb_readers:1\r\n" in client.ask("INFO", "persistence")
        reader.kill()
        reader.communicate()
        while b"riverbed_lmdb_readers:0\r\n" not in client.ask("INFO", "persistence"):
            time.sleep(0.01)
