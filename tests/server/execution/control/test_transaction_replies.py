"""Transactions with more to say than memory is to hold answer what they would with memory enough, or are undone."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.server.execution.control import spool, transaction_replies
from tests.support.raw import parse
from tests.support.store.stores import dump_database
from tests.support.ticks import Client, Ticks, in_loop

IDS = [f"{number}-0" for number in range(1, 301)]
READS = (
    "XRANGE s - +",
    "XRANGE s 7 (290-0 COUNT 200",
    "XREVRANGE s + -",
    "XREAD STREAMS s t 5-0 0",
    "XREAD COUNT 200 MAXSIZE 3000 STREAMS s t 0 0",
    "XINFO STREAM s FULL COUNT 0",
    "XPENDING s g - + 1000",
    "KEYS *",
    "XLEN s",
)
GROUP_READS = (
    "XREADGROUP GROUP fresh Bob STREAMS s >",
    "XREADGROUP GROUP fresh Bob COUNT 90 STREAMS t >",
    "XREADGROUP GROUP g Alice STREAMS s 0",
    "XREADGROUP GROUP g Bob CLAIM 1 STREAMS s >",
    f"XCLAIM s g Carol 0 {' '.join(IDS)}",
    "XAUTOCLAIM s g Dave 0 - COUNT 1000",
)
CHANGES = (
    "XDEL s 3-0 4-0 200-0",
    "XADD s 900-0 f new",
    "XTRIM s MAXLEN 120",
    "DEL t",
    "RENAME s t",
    "XADD s 1-0 g again",
)


@pytest.fixture
def small_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def change(on: bool) -> None:
        monkeypatch.undo()
        if on:
            for name in ("LONG_BYTES", "_MIN_ROOM"):
                monkeypatch.setattr(transaction_replies, name, 300)
            monkeypatch.setattr(transaction_replies, "_BYTES_A_COMMAND", 0)
            monkeypatch.setattr(transaction_replies, "_MAX_FROM_VIEW", 3)
            monkeypatch.setattr("riverbed.store.streams.view.PIECE_BYTES", 1000)
            monkeypatch.setattr(spool, "PIECE_BYTES", 1000)
            monkeypatch.setattr(transaction_replies, "_PIECE_BYTES", 1000)

    return change


async def fill(ticks: Ticks, client: Client) -> None:
    for key in ("s", "t"):
        await ticks.ask(client, *(f"XADD {key} {entry_id} f {'x' * 20}{entry_id}" for entry_id in IDS))
        await ticks.ask(client, f"XGROUP CREATE {key} g 0", f"XGROUP CREATE {key} fresh 0")
        await ticks.ask(client, f"XREADGROUP GROUP g Alice COUNT 150 STREAMS {key} >")
    await ticks.ask(client, "XDEL s 31-0 32-0", "XACK s g 11-0 12-0")
    ticks.clock.now_ms += 10


async def execute(client: Client, commands: tuple[str, ...]) -> bytes:
    """The reply to EXEC."""
    client.send("MULTI", *commands, "EXEC")
    replies: list[bytes] = []
    for _ in range(100_000):
        await asyncio.sleep(0)
        replies += client.replies()
        if len(replies) >= len(commands) + 2:
            return replies[-1]
    raise AssertionError("no reply")


def interleaved(commands: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for change in CHANGES for word in (*commands, change)) + commands


@pytest.mark.parametrize("resp", [2, 3])
@pytest.mark.parametrize(
    "commands",
    [READS, READS * 3, interleaved(READS), GROUP_READS, interleaved(GROUP_READS), interleaved(READS + GROUP_READS)],
    ids=["reads", "many reads", "reads and writes", "group reads", "group reads and writes", "all"],
)
def test_replies_without_room_equal_those_with_room(
    tmp_path: Path, small_room: Callable[[bool], None], commands: tuple[str, ...], resp: int
) -> None:
    found = []

    async def body(name: str) -> None:
        ticks = Ticks(tmp_path / name)
        client = ticks.connect()
        await fill(ticks, client)
        await ticks.ask(client, f"HELLO {resp}")
        reply = await execute(client, commands)
        assert parse(reply).children is not None
        assert (await ticks.ask(client, "ECHO behind"))[-1] == b"$6\r\nbehind\r\n"
        assert (ticks.executor.transactions.space.bytes, ticks.executor.views.open_count) == (0, 0)
        found.append((reply, dump_database(ticks.engine.txn.databases[0])))
        ticks.close()

    for name in ("wide", "narrow"):
        small_room(name == "narrow")
        in_loop(body(name))
    assert found[0] == found[1]


def test_what_others_do_while_a_reply_is_sent_or_waits_does_not_show_in_it(
    tmp_path: Path, small_room: Callable[[bool], None]
) -> None:
    small_room(True)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        for first in ("XLEN s", "XADD s * f v"):
            client.send("MULTI", first, "XRANGE s - +", "XRANGE t - +", "EXEC")
            for _ in range(100_000):
                other.send("XADD s * f late", "XDEL t 5-0", "XADD t * f late")
                await asyncio.sleep(0)
                if client.session.long_reply is not None:
                    break
            assert client.session.long_reply is not None
            other.send("FLUSHALL")
            await ticks.settle()
            ranges = parse(client.replies()[-1]).children
            assert ranges is not None
            lates = [str(entries).count("late") for entries in ranges[1:]]
            assert lates[0] == lates[1], "both are of one moment"
            assert len(ranges[1].children or ()) > 290
            await fill(ticks, client)
        ticks.close()

    in_loop(body())


def test_a_watched_key_that_changes_while_the_transaction_waits_for_a_view_breaks_it(
    tmp_path: Path, small_room: Callable[[bool], None]
) -> None:
    small_room(True)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        client.send("WATCH s", "MULTI", "XRANGE s - +", "EXEC")
        other.send("XADD s * f v")
        await ticks.settle()
        assert client.replies()[-1] == b"*-1\r\n"
        assert client.session.transaction.queued is None
        assert not client.session.transaction.watched
        ticks.close()

    in_loop(body())


def test_without_space_for_the_replies_all_that_a_transaction_did_to_the_tables_is_undone(
    tmp_path: Path, small_room: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_room(True)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        transaction = ("SELECT 0", "XADD s 900-0 f v", "XRANGE s - +", "XDEL s 1-0", "SELECT 1", "XRANGE s - +")
        before = dump_database(ticks.engine.txn.databases[0])
        ticks.files.free = ticks.engine.space.reserve_bytes * 9 // 8
        other.send("XADD other 1-0 f v")
        reply = await execute(client, transaction)
        undone = b"*6\r\n+OK\r\n-ERR EXEC was undone: "  # the first SELECT stays, the second has not run
        assert reply.startswith(undone) and reply.count(b"-ERR EXEC was undone: ") == 5
        assert b"the disk is nearly full" in reply
        assert client.session.db.number == 0
        ticks.files.free = None
        assert other.replies() == [b"$3\r\n1-0\r\n"]
        monkeypatch.setattr(spool, "MAX_SPOOLED_BYTES", 2000)
        assert (await execute(client, transaction)).startswith(undone + b"the replies of all transactions")

        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr("tempfile.TemporaryFile", fail)
            assert b"No space left" in await execute(client, transaction)
        assert ticks.executor.transactions.space.bytes == 0
        await ticks.ask(client, "DEL other")
        assert dump_database(ticks.engine.txn.databases[0]) == before
        monkeypatch.setattr(spool, "MAX_SPOOLED_BYTES", 1 << 20)
        assert (await execute(client, transaction)).startswith(b"*6\r\n")
        ticks.close()

    in_loop(body())


def test_a_commit_that_fails_undoes_the_transaction_and_its_long_reply(
    tmp_path: Path, small_room: Callable[[bool], None]
) -> None:
    small_room(True)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await fill(ticks, client)
        before = dump_database(ticks.engine.txn.databases[0])
        ticks.files.fail("write", errno.EIO)
        reply = await execute(client, ("XADD s 900-0 f v", "XRANGE s - +"))
        assert reply.startswith(b"-MISCONF")
        assert dump_database(ticks.engine.txn.databases[0]) == before
        assert ticks.executor.transactions.space.bytes == 0
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        ticks.engine.abandon()

    in_loop(body())


def test_a_reply_that_waits_for_its_client_stays_true_when_a_later_commit_fails(
    tmp_path: Path, small_room: Callable[[bool], None]
) -> None:
    small_room(True)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await fill(ticks, client)
        client.session.congested = True
        client.send("MULTI", "XADD s 900-0 f v", "XRANGE s - +", "EXEC")
        client.session.congested = False
        client.session.refresh()
        await asyncio.sleep(0)
        client.session.congested = True
        await ticks.settle()
        assert client.session.long_reply is not None
        ticks.files.fail("sync", errno.EIO)
        other.send("XADD t 900-0 f v")
        client.session.congested = False
        ticks.executor.clients.drained(client.session)
        await ticks.settle()
        assert other.replies()[-1].startswith(b"-MISCONF")
        reply = client.replies()[-1]
        assert reply.startswith(b"*2\r\n$5\r\n900-0\r\n*299\r\n")
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        ticks.engine.abandon()

    in_loop(body())


@pytest.mark.parametrize("first", ["XLEN s", "XADD s * f v"])
def test_a_client_that_leaves_takes_its_reply_with_it(
    tmp_path: Path, small_room: Callable[[bool], None], first: str
) -> None:
    small_room(True)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        setup = ticks.connect()
        await fill(ticks, setup)
        for turns in range(6):
            client = ticks.connect()
            client.send("MULTI", first, "XRANGE s - +", "EXEC")
            for _ in range(turns):
                await asyncio.sleep(0)
            client.leave()
            await ticks.settle()
            assert (ticks.executor.transactions.space.bytes, ticks.executor.views.open_count) == (0, 0)
        ticks.close()

    in_loop(body())
