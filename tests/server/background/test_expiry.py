"""What expires while no client asks for it: keys, records of producers, consumers that stayed away."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from riverbed.server.background import expiry, maintenance
from riverbed.store.errors import Refusal
from riverbed.store.format.idempotence import RECORD_KEY_BYTES
from riverbed.store.streams.idempotence import Idempotence
from riverbed.store.tables.dead_rows import DeadRowNotes
from tests.support.ticks import Client, Ticks, in_loop
from tests.support.waiting import until_true


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
        await until_true(lambda: ticks.engine.txn.databases[0].size == 100)
        ticks.clock.now_ms += 100
        await until_true(lambda: ticks.engine.txn.databases[0].size == 0)
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
        await until_true(lambda: ticks.engine.txn.databases[0].size == 3 and not ticks.engine.txn.databases[3].size)
        assert await ticks.ask(client, "EXISTS a b e", "EXISTS d g c") == [b":3\r\n", b":0\r\n"]
        ticks.close()

    in_loop(body())


async def fill(ticks: Ticks, client: Client) -> None:
    """200 keys, 50 records of producers and 50 consumers that are due, on a clock that stands still."""
    await ticks.ask(client, *(f"XADD k{number} 1-1 f v" for number in range(200)))
    await ticks.ask(client, *(f"PEXPIRE k{number} 100" for number in range(200)))
    await ticks.ask(client, "XADD s 1-1 f v", "XCFGSET s IDMP-DURATION 1")
    await ticks.ask(client, *(f"XADD s IDMP p{number} i * f v" for number in range(50)))
    for group in range(5):
        await ticks.ask(client, f"XGROUP CREATE s g{group} 0")
        await ticks.ask(client, *(f"XGROUP CREATECONSUMER s g{group} c{number}" for number in range(10)))
        await ticks.ask(client, f"XGROUP POLICY s g{group} CONSUMERTTL 1000")
    ticks.clock.now_ms += 2000


def left(ticks: Ticks) -> tuple[int, int, int]:
    """-> how many keys, records and consumers there are"""
    db = ticks.engine.txn.databases[0]
    stream = db.stream(b"s", 0)
    assert stream is not None
    consumers = sum(group.consumer_count for group in db.groups(stream))
    return db.size, Idempotence(stream).tracked()[1], consumers


def test_what_one_slice_leaves_is_deleted_soon_and_none_waits_for_all_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice without time deletes a batch of keys, or a record, or the consumers of a group that are due."""
    monkeypatch.setattr(expiry, "SLICE_S", 0.0)
    monkeypatch.setattr(expiry, "PAUSE_S", 0.0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        await fill(ticks, ticks.connect())
        assert left(ticks) == (201, 50, 50)
        assert ticks.server.expiry.look()  # the only one
        seen = [left(ticks)]
        while seen[-1] != (1, 0, 0):
            await asyncio.sleep(0)
            seen.append(left(ticks))
        assert any(1 < keys < 201 and 0 < records < 50 and 0 < consumers < 50 for keys, records, consumers in seen)
        ticks.close()

    in_loop(body())


def test_nothing_more_expires_in_a_pause_or_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SLICE_S", 0.0)
    monkeypatch.setattr(expiry, "PAUSE_S", 0.001)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await fill(ticks, client)
        assert ticks.server.expiry.look()
        await ticks.ask(client, "CLIENT PAUSE 100000")
        before = left(ticks)
        await asyncio.sleep(0.05)
        assert left(ticks) == before
        await ticks.ask(ticks.connect(), "CLIENT UNPAUSE")
        assert ticks.server.expiry.look()
        assert left(ticks) < before
        ticks.server.expiry.stop()
        before = left(ticks)
        await asyncio.sleep(0.05)
        assert left(ticks) == before
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("refusal", [Refusal.LOG_FAILED, Refusal.LOG_UNWRITTEN, Refusal.DISK_FULL])
def test_where_the_log_takes_nothing_what_expires_is_hidden_and_reads_go_on(tmp_path: Path, refusal: Refusal) -> None:
    """To delete it would undo the tick of each client that asks for it, and each that another asks in."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.keep_transaction()
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XADD k 1-1 f v", f"PEXPIREAT k {int(ticks.clock.now_ms) + 1000}")
        fault = {Refusal.LOG_FAILED: ("sync", errno.EIO), Refusal.LOG_UNWRITTEN: ("write", errno.EIO)}
        ticks.files.fail(*fault.get(refusal, ("write", errno.ENOSPC)))
        await ticks.ask(client, "XADD s 2-1 f v")
        assert ticks.engine.refusal is refusal
        ticks.clock.now_ms += 2000
        for _ in range(3):
            assert ticks.server.expiry.look()
            client.send("EXISTS k")
            assert await ticks.ask(other, "XLEN s", "XLEN k", "XRANGE k - +") == [b":1\r\n", b":0\r\n", b"*0\r\n"]
            assert client.replies() == [b":0\r\n"]
        if refusal is not Refusal.LOG_FAILED:
            ticks.engine.check_space()  # as a batch may do as well
            assert ticks.engine.refusal is None
            await ticks.ask(client, "PING")
            assert ticks.server.expiry.look()
            assert ticks.engine.txn.databases[0].size == 1
        ticks.close(save=False)
        again = Ticks(tmp_path, files=ticks.files)
        again.clock.now_ms += 2000
        assert again.server.expiry.look()
        assert again.engine.txn.databases[0].size == 1
        again.close()

    in_loop(body())


def test_damage_that_one_kind_meets_keeps_no_other_from_expiring(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        ticks.keep_transaction()
        await fill(ticks, ticks.connect())
        cursor = ticks.engine.txn.cursor("idmp")
        for key, _ in list(cursor.iternext()):
            if len(key) == RECORD_KEY_BYTES:
                cursor.put(key, b"damaged")
        client = ticks.connect()
        for _ in range(3):
            assert ticks.server.expiry.look()
            keys, _, consumers = left(ticks)
            assert (keys, consumers) == (1, 0)
            # the next look comes before the damaged kind is tried again
            await ticks.ask(client, "XADD again 1-1 f v", f"PEXPIREAT again {int(ticks.clock.now_ms) + 1}")
            ticks.clock.now_ms += 100
        ticks.close(save=False)

    in_loop(body())


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
@pytest.mark.parametrize("entry_id", ["1-1", "5-1"])
def test_a_key_that_memory_was_too_short_to_delete_is_deleted_later_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], entry_id: str
) -> None:
    def short(notes: DeadRowNotes, number: int) -> None:
        raise error

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD k 1-1 f old", "PEXPIRE k 100")
        ticks.engine.checkpoint()
        ticks.keep_transaction()
        ticks.clock.now_ms += 200
        monkeypatch.setattr(DeadRowNotes, "add_stream", short)
        assert ticks.server.expiry.look()
        monkeypatch.undo()
        added = b"$3\r\n%b\r\n" % entry_id.encode()
        assert await ticks.ask(client, f"XADD k {entry_id} f new", "XLEN k", "PTTL k") == [added, b":1\r\n", b":-1\r\n"]
        assert b"DEL k" in ticks.batches()[-1]
        assert ticks.engine.txn.expired_keys == 1
        ticks.close(save=False)
        again = Ticks(tmp_path, files=ticks.files, clock=ticks.clock)
        assert await again.ask(again.connect(), "XLEN k") == [b":1\r\n"]
        again.close()

    in_loop(body())
