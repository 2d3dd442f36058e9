"""What ends a wait for a key but news: its deadline, however often it was tried in vain, a failed commit, the gate."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import lmdb
import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.request import Request
from riverbed.server.commands.table import COMMANDS
from riverbed.server.protocol.replies import Block, Reply
from riverbed.store.errors import DamagedRowError
from tests.support.ticks import Client, Ticks, in_loop

MANY = {"XREADGROUP": 150, "XREAD": 400}
DISK_FULL = b"-MISCONF The disk is full. Writes are refused until there is space again; reads go on.\r\n"
NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."


async def quiet(ticks: Ticks) -> None:
    """Wait until the slices of commands are done, which take turns."""
    for _ in range(3):
        await asyncio.sleep(0.02)
        await ticks.settle()


async def pass_by(ticks: Ticks, ms: int) -> None:
    """Let time pass, and those be looked for whose moment has come."""
    ticks.clock.now_ms += ms
    ticks.executor.blocking.deadline_passed()
    await quiet(ticks)


async def reader(ticks: Ticks, command: str, count: int, options: str = "") -> Client:
    """A client that waits for new entries of `count` streams, for five seconds at most."""
    keys = [f"k{number}" for number in range(count)]
    client = ticks.connect()
    if command == "XREADGROUP":
        await ticks.ask(client, *(f"XGROUP CREATE {key} g $ MKSTREAM" for key in keys))
        client.send(f"XREADGROUP GROUP g c BLOCK 5000 {options} STREAMS {' '.join(keys)} {' '.join('>' * count)}")
    else:
        client.send(f"XREAD BLOCK 5000 STREAMS {' '.join(keys)} {' '.join('$' * count)}")
    await quiet(ticks)
    assert client.session.blocked is not None
    return client


@pytest.mark.parametrize("command", MANY)
@pytest.mark.parametrize("is_many", [False, True])
def test_a_client_that_is_woken_in_vain_waits_no_longer_for_it(tmp_path: Path, command: str, is_many: bool) -> None:
    """A read of very many streams is tried again in slices, and begins to wait once more."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = await reader(ticks, command, MANY[command] if is_many else 3), ticks.connect()
        for _ in range(2):
            ticks.clock.now_ms += 2000
            await ticks.ask(other, "MULTI", "XADD k0 * f v", "XTRIM k0 MAXLEN 0", "EXEC")
            await pass_by(ticks, 0)
            assert client.replies() == []
        await pass_by(ticks, 990)
        assert client.replies() == []
        await pass_by(ticks, 20)
        assert client.replies() == [b"*-1\r\n"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("count", [3, 150])
def test_a_client_that_would_claim_what_does_not_come_is_answered_at_its_deadline(tmp_path: Path, count: int) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = await reader(ticks, "XREADGROUP", count, "CLAIM 1000")
        for _ in range(4):
            await pass_by(ticks, 1100)
            assert client.replies() == []
        await pass_by(ticks, 700)
        assert client.replies() == [b"*-1\r\n"]
        ticks.close()

    in_loop(body())


WAITS = [
    ("XADD s 100-0 f v", "XREAD BLOCK 0 STREAMS s $"),
    ("XGROUP CREATE s g $ MKSTREAM", "XREADGROUP GROUP g c BLOCK 0 STREAMS s >"),
    ("XGROUP CREATE s g $ MKSTREAM", "XREADGROUP GROUP g c BLOCK 0 CLAIM 10 STREAMS s >"),
]


@pytest.mark.parametrize(("change", "read"), WAITS)
def test_a_wait_ends_with_the_tick_that_it_rests_on(tmp_path: Path, change: str, read: str) -> None:
    """The reader would wait behind an entry, or for a group, that there is not."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other, earlier = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(other, "XADD t 1-0 f v")
        earlier.send("XREAD BLOCK 0 STREAMS t $")
        await ticks.settle()
        ticks.files.fail("write", errno.ENOSPC)
        other.send(change)
        client.send(read, "PING")
        await ticks.settle()
        assert other.replies() == [DISK_FULL]
        assert client.replies() == [DISK_FULL, b"+PONG\r\n"]
        assert client.session.blocked is None
        assert earlier.session.blocked is not None
        ticks.files.forgive()
        ticks.clock.now_ms += 2000
        ticks.engine.check_space()
        ticks.executor.gate.refresh()
        assert await ticks.ask(client, "EXISTS s") == [b":0\r\n"]
        await ticks.ask(other, "XADD t 2-0 f v")
        assert len(earlier.replies()) == 1
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("change", "read"), WAITS)
def test_a_wait_that_was_committed_outlasts_later_ticks(tmp_path: Path, change: str, read: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        other.send(change)
        client.send(read)
        await ticks.settle()
        assert len(other.replies()) == 1
        ticks.files.fail("write", errno.ENOSPC)
        assert await ticks.ask(other, "XADD t 1-0 f v") == [DISK_FULL]
        assert client.session.blocked is not None
        assert client.replies() == []
        ticks.files.forgive()
        ticks.close()

    in_loop(body())


def test_a_client_whose_wait_rests_on_what_may_be_in_the_log_is_cut_off(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        client, other, earlier = ticks.connect(), ticks.connect(), ticks.connect()
        earlier.send("XREAD BLOCK 0 STREAMS t $")
        await ticks.settle()
        for after in range(3):
            ticks.files.fail("sync", errno.EIO, after)
        other.send("XADD s 100-0 f v")
        client.send("XREAD BLOCK 0 STREAMS s $")
        await ticks.settle()
        assert other.is_closed
        assert client.is_closed
        assert not earlier.is_closed
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        ticks.engine.abandon()  # a log that could not be synced takes no checkpoint

    in_loop(body())


@pytest.mark.parametrize("options", ["", "CLAIM 1000"])
def test_a_client_that_is_tried_again_writes_nothing_that_is_refused(tmp_path: Path, options: str) -> None:
    """Its entries would become pending, or change hands, while every other write is refused."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(other, "XGROUP CREATE s g $ MKSTREAM", "XADD s 1-0 f v", "XREADGROUP GROUP g Bob STREAMS s >")
        client.send(f"XREADGROUP GROUP g Alice BLOCK 50000 {options} STREAMS s >")
        await ticks.settle()
        logged = len(ticks.batches())
        ticks.executor.gate.replicate(no_writes=NO_REPLICAS, no_reads="")
        assert await ticks.ask(other, "XADD s 2-0 f v") == [f"-{NO_REPLICAS}\r\n".encode()]
        await pass_by(ticks, 1100)
        assert client.replies() == ([f"-{NO_REPLICAS}\r\n".encode()] if options else [])
        assert len(ticks.batches()) == logged
        assert (client.session.blocked is None) == bool(options)
        ticks.executor.gate.replicate(no_writes="", no_reads="")
        ticks.close()

    in_loop(body())


def test_a_reader_whose_try_fails_in_a_tick_that_is_undone_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed commit ends its wait while its command is under way; all clients of the tick are answered."""
    load_commands()
    read = COMMANDS[b"XREADGROUP"].handler
    servers: list[Ticks] = []
    tries = 0

    def fail_again(request: Request) -> Reply:
        nonlocal tries
        tries += 1
        if tries == 1:
            return read(request)
        servers[0].files.fail("write", errno.ENOSPC)
        raise MemoryError

    monkeypatch.setattr(COMMANDS[b"XREADGROUP"], "handler", fail_again)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        servers.append(ticks)
        writer, reader, third = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(writer, "XGROUP CREATE s g $ MKSTREAM")
        reader.send("XREADGROUP GROUP g c BLOCK 0 STREAMS s >", "PING")
        writer.send("XADD s 1-0 f v")
        third.send("XADD t 1-0 f v", "PING")
        await ticks.settle()
        assert tries == 2
        assert writer.replies() == [DISK_FULL]
        assert reader.replies() == [DISK_FULL, b"+PONG\r\n"]
        assert third.replies()[-1] == b"+PONG\r\n"
        assert not (writer.is_closed or reader.is_closed or third.is_closed)
        ticks.files.forgive()
        ticks.close()

    in_loop(body())


def test_a_shutdown_does_not_end_with_an_undone_tick(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, shutdown_timeout=10)
        writer, operator = ticks.connect(), ticks.connect()
        await ticks.ask(writer, "XADD s 1-0 f v")
        ticks.files.fail("write", errno.ENOSPC)
        writer.send("XADD s 2-0 f v")
        operator.send("SHUTDOWN NOW")
        for _ in range(3):
            await asyncio.sleep(0)
        assert writer.replies() == [DISK_FULL]
        assert operator.replies() == []
        ticks.files.forgive()
        await ticks.settle()

    in_loop(body())


def test_what_a_command_has_changed_before_it_waits_wakes_others_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting, claiming = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD k 1-1 f v", "XGROUP CREATE k g 0", "XADD dead 1-1 a b")
        await ticks.ask(client, "XGROUP POLICY k g MAXDELIVERIES 1 DEADLETTER dead", "XREADGROUP GROUP g c STREAMS k >")
        await ticks.ask(waiting, "XREAD BLOCK 0 STREAMS dead $")
        ticks.clock.now_ms += 5000
        assert await ticks.ask(claiming, "XREADGROUP GROUP g d COUNT 10 BLOCK 0 CLAIM 1000 STREAMS k >") == []
        await ticks.settle()
        [reply] = waiting.replies()
        assert b"dead" in reply
        ticks.close()

    in_loop(body())


def test_a_group_whose_key_expires_as_another_client_begins_to_wait_ends_its_waits(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting, reader = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD k 1-1 f v", "XGROUP CREATE k g $", "PEXPIRE k 1000")
        assert await ticks.ask(waiting, "XREADGROUP GROUP g c BLOCK 0 STREAMS k >") == []
        ticks.clock.now_ms += 2000
        assert await ticks.ask(reader, "XREAD BLOCK 0 STREAMS k $") == []
        await ticks.settle()
        [reply] = waiting.replies()
        assert reply.startswith(b"-NOGROUP")
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("error", [lmdb.MapFullError("the map is full"), DamagedRowError("an entry")])
def test_a_client_that_joins_lines_where_the_tables_refuse_that_is_tried_again(
    tmp_path: Path, error: Exception
) -> None:
    def refuse(start: int, end: int) -> bool:
        raise error

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, waiting = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD k 1-1 f v")
        words = [b"XREAD", b"BLOCK", b"0", b"STREAMS", b"k", b"0"]
        ticks.executor.blocking.block(waiting.session, Block((b"k",), None, words, topics=(None,), has_news=refuse))
        await ticks.settle()
        [reply] = waiting.replies()
        assert b"1-1" in reply
        assert not ticks.executor.gave_up
        ticks.close()

    in_loop(body())
