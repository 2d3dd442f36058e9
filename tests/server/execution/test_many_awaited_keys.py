"""Blocking reads of very many keys: the client joins and leaves the lines of its keys in slices, and misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.server.commands.groups import reads as group_reads
from riverbed.server.commands.streams import reads
from riverbed.server.execution import sliced_commands, waiters
from tests.support.ticks import Client, Ticks, in_loop

KEYS = 60
NAMES = [f"k{number}" for number in range(KEYS)]
XREAD = f"XREAD BLOCK 0 STREAMS {' '.join(NAMES)} {' '.join('$' for _ in NAMES)}"
XREADGROUP = f"XREADGROUP GROUP g Alice BLOCK 0 STREAMS {' '.join(NAMES)} {' '.join('>' for _ in NAMES)}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few keys a slice, and one slice a tick."""
    monkeypatch.setattr(sliced_commands, "SLICES_S", 0.0)
    monkeypatch.setattr(waiters, "AT_ONCE", 4)
    monkeypatch.setattr(reads, "_STREAMS_A_TURN", 4)
    monkeypatch.setattr(group_reads, "_SLICE_KEYS", 4)


async def prepared(directory: Path) -> tuple[Ticks, Client, Client]:
    ticks = Ticks(directory)
    ticks.executor.blocking.turn_s = 0.0
    reader, writer = ticks.connect(), ticks.connect()
    for name in NAMES:
        await ticks.ask(writer, f"XGROUP CREATE {name} g $ MKSTREAM")
    return ticks, reader, writer


async def once(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it has never come")


async def left(ticks: Ticks) -> None:
    """Nobody waits, and nothing is left of it in any line."""
    for _ in range(KEYS):
        await ticks.settle()
    own = ticks.executor.blocking.waiters
    assert len(own) == own.key_count == own.needed_key_count == 0
    assert not own.has_work
    assert ticks.engine.txn.databases[0].interest == {}


@pytest.mark.parametrize("line", [XREAD, XREADGROUP], ids=["XREAD", "XREADGROUP"])
@pytest.mark.parametrize("turns", [*range(1, 60, 7), 200])
@pytest.mark.parametrize("key", ["k0", "k30", f"k{KEYS - 1}"])
def test_an_entry_that_comes_at_any_moment_is_read(tmp_path: Path, line: str, turns: int, key: str) -> None:
    async def body() -> None:
        ticks, reader, writer = await prepared(tmp_path)
        reader.send(line)
        for _ in range(turns):
            await asyncio.sleep(0)
        writer.send(f"XADD {key} 5-1 f v")
        found: list[bytes] = []
        for _ in range(3 * KEYS):
            found = found or reader.replies()
            await ticks.settle()
        if line == XREAD and not found:
            # `$` was looked up behind the entry: it is no news then
            assert turns <= KEYS // 3
            await ticks.ask(writer, f"XADD {key} 6-1 f v")
            found = reader.replies()
        (reply,) = found
        assert reply.startswith(b"*1\r\n*2\r\n$%d\r\n%b\r\n*1\r\n" % (len(key), key.encode()))
        await left(ticks)
        reader.leave()
        writer.leave()
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("slice_keys", [4, KEYS])
@pytest.mark.parametrize("turns", [*range(1, 60, 5), 200])
@pytest.mark.parametrize("key", ["k0", "k30", f"k{KEYS - 1}"])
def test_an_entry_that_is_released_at_any_moment_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_keys: int, turns: int, key: str
) -> None:
    async def body() -> None:
        ticks, reader, writer = await prepared(tmp_path)
        await ticks.ask(writer, f"XADD {key} 5-1 f v", f"XREADGROUP GROUP g Carol STREAMS {key} >")
        reader.send(XREADGROUP.replace("BLOCK 0", "BLOCK 0 CLAIM 3600000"))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert await ticks.ask(writer, f"XNACK {key} g FAIL IDS 1 5-1") == [b":1\r\n"]
        found: list[bytes] = []
        for _ in range(3 * KEYS):
            ticks.clock.now_ms += 1
            ticks.executor.blocking.deadline_passed()
            await ticks.settle()
            found += reader.replies()
        (reply,) = found
        assert b"$3\r\n5-1\r\n" in reply
        await left(ticks)
        reader.leave()
        writer.leave()
        ticks.close()

    monkeypatch.setattr(group_reads, "_SLICE_KEYS", slice_keys)
    in_loop(body())


@pytest.mark.parametrize("turns", range(1, 40, 3))
def test_a_claim_is_due_at_its_time_though_groups_leave_the_memory_meanwhile(tmp_path: Path, turns: int) -> None:
    async def body() -> None:
        ticks, reader, writer = await prepared(tmp_path)
        await ticks.ask(writer, "XADD k0 5-1 f v", "XREADGROUP GROUP g Carol STREAMS k0 >")
        ticks.clock.now_ms += 59_000
        reader.send(XREADGROUP.replace("BLOCK 0", "BLOCK 0 CLAIM 60000"))
        for _ in range(turns):
            await asyncio.sleep(0)
        ticks.engine.commit(ticks.clock.now_ms)
        ticks.engine.checkpoint()
        for database in ticks.engine.txn.databases:
            database.let_go_of_groups()
        for _ in range(KEYS):
            await ticks.settle()
        assert reader.replies() == []
        ticks.clock.now_ms += 1002
        ticks.executor.blocking.deadline_passed()
        for _ in range(KEYS):
            await ticks.settle()
        assert b"$3\r\n5-1\r\n" in reader.replies()[0]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("line", [XREAD, XREADGROUP], ids=["XREAD", "XREADGROUP"])
@pytest.mark.parametrize("turns", [2, 20, 40, 400])
@pytest.mark.parametrize("end", ["leaves", "unblocked", "time is up"])
def test_a_wait_may_end_before_it_has_joined_all_lines(tmp_path: Path, line: str, turns: int, end: str) -> None:
    async def body() -> None:
        ticks, reader, writer = await prepared(tmp_path)
        reader.send(line.replace("BLOCK 0", "BLOCK 1000"))
        await once(lambda: reader.session.blocked is not None)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert len(ticks.executor.blocking.waiters) == 1
        if end == "leaves":
            reader.leave()
        elif end == "unblocked":
            assert await ticks.ask(writer, f"CLIENT UNBLOCK {reader.session.id}") == [b":1\r\n"]
        else:
            ticks.clock.now_ms += 1001
            ticks.executor.blocking.deadline_passed()
            await ticks.settle()
        assert reader.replies() == ([] if end == "leaves" else [b"*-1\r\n"])
        await left(ticks)
        if end != "leaves":
            reader.leave()
        writer.leave()
        ticks.close()

    in_loop(body())


def test_a_client_that_waits_again_while_it_leaves_the_lines_is_at_their_end(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, reader, writer = await prepared(tmp_path)
        other = ticks.connect()
        own = ticks.executor.blocking.waiters
        await ticks.ask(reader, XREADGROUP)
        await once(lambda: not own.has_work and reader.session.blocked is not None)
        await ticks.ask(other, XREADGROUP.replace("Alice", "Bob"))
        await once(lambda: not own.has_work and other.session.blocked is not None)
        place = (ticks.engine.txn.databases[0], b"k7")
        assert own.waiting_for(place) == [reader.session, other.session]
        writer.send(f"CLIENT UNBLOCK {reader.session.id}")
        await once(lambda: reader.session.blocked is None)
        assert own.waiting_for(place) == [other.session]
        reader.send("XREADGROUP GROUP g Alice BLOCK 0 STREAMS k7 >")
        await once(lambda: reader.session.blocked is not None)
        assert own.waiting_for(place) == [other.session, reader.session]
        await once(lambda: not own.has_work)
        assert own.waiting_for(place) == [other.session, reader.session]
        await ticks.ask(writer, "XADD k7 1-1 f v", "XADD k7 2-1 f v")
        for _ in range(KEYS):
            await ticks.settle()
        assert [len(client.replies()) for client in (other, reader)] == [1, 2]  # the null array of UNBLOCK, too
        await left(ticks)
        for client in (reader, writer, other):
            client.leave()
        ticks.close()

    in_loop(body())


def test_a_stream_that_is_deleted_meanwhile_is_an_error_for_a_group(tmp_path: Path) -> None:
    async def body() -> None:
        ticks, reader, writer = await prepared(tmp_path)
        reader.send(XREADGROUP)
        await once(lambda: reader.session.blocked is not None)
        writer.send(f"DEL {NAMES[-1]}")
        for _ in range(KEYS):
            await ticks.settle()
        (reply,) = reader.replies()
        assert reply.startswith(b"-NOGROUP")
        await left(ticks)
        reader.leave()
        writer.leave()
        ticks.close()

    in_loop(body())
