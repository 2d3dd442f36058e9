"""A pause stops what the server writes of its own accord as well: a replica that is to take over stays level."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ticks import Client, Ticks, in_loop


@contextmanager
def paused(directory: Path) -> Iterator[tuple[Ticks, Client, Client]]:
    ticks = Ticks(directory)
    yield ticks, ticks.connect(), ticks.connect()
    ticks.close()


async def pass_ms(ticks: Ticks, ms: int) -> None:
    """Have the clock go on, and what runs every 100 ms, and at deadlines, run once."""
    ticks.clock.now_ms += ms
    ticks.server.maintenance._cycle()
    ticks.executor.blocking.deadline_passed()
    await ticks.settle()


async def deliver_one(ticks: Ticks, client: Client) -> None:
    await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", "XADD s 1-1 f v")
    await ticks.ask(client, "XREADGROUP GROUP g a STREAMS s >")


@pytest.mark.parametrize("kind", ["WRITE", "ALL"])
def test_what_expires_is_hidden_and_deleted_afterwards(tmp_path: Path, kind: str) -> None:
    async def body() -> None:
        with paused(tmp_path) as (ticks, client, reader):
            await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", "XADD s 1-1 f v", "PEXPIRE s 200")
            await ticks.ask(reader, "XREADGROUP GROUP g a STREAMS s >", "XREADGROUP GROUP g a BLOCK 0 STREAMS s >")
            await ticks.ask(client, f"CLIENT PAUSE 5000 {kind}")
            offset = ticks.engine.offset
            await pass_ms(ticks, 300)
            if kind == "WRITE":
                seen = await ticks.ask(client, "XLEN s", "EXISTS s", "DBSIZE", "SCAN 0", "RANDOMKEY")
                assert seen == [b":0\r\n", b":0\r\n", b":1\r\n", b"*2\r\n$1\r\n0\r\n*0\r\n", b"$-1\r\n"]
            assert ticks.engine.offset == offset
            assert reader.replies() == []
            await ticks.ask(client, "CLIENT UNPAUSE")
            await pass_ms(ticks, 1)
            assert await ticks.ask(client, "DBSIZE") == [b":0\r\n"]
            assert ticks.batches()[-1] == [b"DEL s"]
            assert reader.replies()[0].startswith(b"-NOGROUP ")

    in_loop(body())


def test_a_transaction_that_begins_a_pause_puts_keys_where_others_have_expired(tmp_path: Path) -> None:
    async def body() -> None:
        with paused(tmp_path) as (ticks, client, other):
            await ticks.ask(client, "XADD s 5-5 f v", "PEXPIRE s 200", "XADD m 1-1 f v", "SELECT 1", "XADD m 5-5 f v")
            await ticks.ask(client, "PEXPIRE m 200", "SELECT 0")
            ticks.clock.now_ms += 300
            words = ("MULTI", "CLIENT PAUSE 5000 WRITE", "XLEN s", "XADD s 1-1 f w", "MOVE m 1", "EXEC")
            reply = (await ticks.ask(client, *words))[-1]
            assert reply == b"*4\r\n+OK\r\n:0\r\n$3\r\n1-1\r\n:1\r\n"
            assert ticks.engine.txn.expired_keys == 2
            assert ticks.batches()[-1][1:-1] == [b"DEL s", b"XADD s 1-1 f w", b"DEL m", b"MOVE m 1"]
            assert await ticks.ask(other, "XLEN s", "SELECT 1", "XLEN m") == [b":1\r\n", b"+OK\r\n", b":1\r\n"]

    in_loop(body())


def test_a_claim_whose_moment_comes_in_a_pause_waits_for_its_end(tmp_path: Path) -> None:
    async def body() -> None:
        with paused(tmp_path) as (ticks, client, reader):
            await deliver_one(ticks, client)
            await ticks.ask(reader, "XREADGROUP GROUP g b BLOCK 0 CLAIM 300 STREAMS s >")
            late = ticks.connect()
            await ticks.ask(late, "XREADGROUP GROUP g c BLOCK 400 CLAIM 300 STREAMS s >")
            await ticks.ask(client, "CLIENT PAUSE 5000 WRITE")
            offset = ticks.engine.offset
            await pass_ms(ticks, 350)
            await pass_ms(ticks, 350)
            assert (reader.replies(), late.replies(), ticks.engine.offset) == ([], [b"*-1\r\n"], offset)
            await ticks.ask(client, "CLIENT UNPAUSE")
            assert b"$3\r\n1-1\r\n" in reader.replies()[0]

    in_loop(body())


def test_who_waits_for_something_else_by_the_end_of_a_pause_is_not_tried_again(tmp_path: Path) -> None:
    async def body() -> None:
        with paused(tmp_path) as (ticks, client, reader):
            await deliver_one(ticks, client)
            await ticks.ask(reader, "XREADGROUP GROUP g b BLOCK 400 CLAIM 300 STREAMS s >")
            await ticks.ask(client, "CLIENT PAUSE 5000 WRITE")
            await pass_ms(ticks, 350)
            await pass_ms(ticks, 350)
            assert reader.replies() == [b"*-1\r\n"]
            await ticks.ask(reader, "WAIT 1 0")
            waits = reader.session.blocked
            await ticks.ask(client, "CLIENT UNPAUSE")
            assert waits is not None and reader.session.blocked is waits
            reader.leave()

    in_loop(body())


def test_readers_that_had_no_turn_before_a_pause_have_it_afterwards(tmp_path: Path) -> None:
    async def body() -> None:
        with paused(tmp_path) as (ticks, client, other):
            ticks.executor.blocking.few, ticks.executor.blocking.turn_s = 2, 0.0
            readers = []
            for number in range(9):
                await ticks.ask(client, f"XGROUP CREATE s g{number} 0 MKSTREAM")
                readers.append(ticks.connect())
                await ticks.ask(readers[-1], f"XREADGROUP GROUP g{number} c BLOCK 0 STREAMS s >")
            client.send("XADD s 1-1 f v")
            other.send("CLIENT PAUSE 5000 WRITE")
            await ticks.settle()
            served = [reader for reader in readers if reader.replies()]
            assert 0 < len(served) < 5
            offset = ticks.engine.offset
            await pass_ms(ticks, 100)
            assert ticks.engine.offset == offset
            await ticks.ask(client, "CLIENT UNPAUSE")
            assert len([reader for reader in readers if reader.replies()]) == 9 - len(served)

    in_loop(body())


def test_the_deletion_of_a_key_that_was_hidden_breaks_no_watch(tmp_path: Path) -> None:
    async def body() -> None:
        with paused(tmp_path) as (ticks, client, other):
            await ticks.ask(client, "XADD s 1-1 f v", "XADD t 1-1 f v", "PEXPIRE s 200", "PEXPIRE t 200")
            await ticks.ask(client, "CLIENT PAUSE 5000 WRITE")
            ticks.clock.now_ms += 300
            await ticks.ask(client, "WATCH s")
            await ticks.ask(other, "WATCH s t")
            await ticks.ask(ticks.connect(), "CLIENT UNPAUSE")
            await pass_ms(ticks, 1)
            assert ticks.batches()[-1] == [b"DEL s", b"DEL t"]
            assert (await ticks.ask(client, "MULTI", "DBSIZE", "EXEC"))[-1] == b"*1\r\n:0\r\n"
            await ticks.ask(client, "XADD t 2-1 f v")
            assert (await ticks.ask(other, "MULTI", "DBSIZE", "EXEC"))[-1] == b"*-1\r\n"

    in_loop(body())


def test_consumers_that_are_idle_stay_in_a_pause(tmp_path: Path) -> None:
    async def body() -> None:
        with paused(tmp_path) as (ticks, client, other):
            await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", "XGROUP POLICY s g CONSUMERTTL 300")
            await ticks.ask(client, "XGROUP CREATECONSUMER s g a", "CLIENT PAUSE 5000 WRITE")
            await pass_ms(ticks, 100_000)
            assert b"*0" not in (await ticks.ask(other, "XINFO CONSUMERS s g"))[0]
            await ticks.ask(client, "CLIENT UNPAUSE")
            await pass_ms(ticks, 100_000)
            assert await ticks.ask(other, "XINFO CONSUMERS s g") == [b"*0\r\n"]

    in_loop(body())
