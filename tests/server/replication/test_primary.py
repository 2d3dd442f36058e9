"""What a primary asks: only replicas that are a Redis, once for each offset that is waited for, again if undone.

And what WAIT waits for: the client's last write, wherever it was committed.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from riverbed.server.execution.control.pauses import Hold
from riverbed.server.replication.sender import EMPTY_RDB, GETACK
from riverbed.store.log.tail import LogTail
from tests.support.ticks import Ticks, in_loop

QUESTION = b"REPLCONF GETACK *"


def questions(ticks: Ticks) -> int:
    return sum(batch.count(QUESTION) for batch in ticks.batches())


def test_a_question_that_was_undone_is_asked_again_and_once(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica, other = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(replica, "REPLCONF capa psync2", "PSYNC ? -1")
        await ticks.ask(other, "XADD s 0-1 f v")  # the log is padded from here on
        writer.send("XADD s 1-1 f v", "WAIT 1 0")
        # the tick behind the write fails, which is the one that asks
        ticks.files.fail("write", errno.ENOSPC, after=1)
        await ticks.settle()
        assert writer.replies() == [b"$3\r\n1-1\r\n"]
        assert questions(ticks) == 0
        ticks.engine.check_space()
        assert ticks.engine.refusal is None
        for entry_id in ("2-1", "3-1"):
            assert await ticks.ask(other, f"XADD s {entry_id} f v") == [b"$3\r\n%b\r\n" % entry_id.encode()]
            assert questions(ticks) == 1
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("introduction", "asked"), [("REPLCONF riverbed 1", 0), ("REPLCONF capa psync2", 3)])
def test_only_foreign_replicas_are_asked_and_once_for_each_offset_that_was_written(
    tmp_path: Path, introduction: str, asked: int
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica = ticks.connect(), ticks.connect()
        await ticks.ask(replica, introduction, "PSYNC ? -1")
        for number in range(1, 4):
            writer.send(f"XADD s {number}-1 f v")
            await ticks.settle()
            end = ticks.engine.log.end.offset + asked // 3 * len(GETACK)
            waiting = [ticks.connect() for _ in range(20)]
            for client in waiting:
                client.session.written_offset = writer.session.written_offset
                client.send("WAIT 2 0")
                await ticks.settle()
            assert questions(ticks) == number * asked // 3
            assert ticks.engine.log.end.offset == end
        ticks.close()

    in_loop(body())


def test_a_replica_that_has_gone_before_its_answer_is_made_is_sent_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        replica = ticks.connect().session
        primary, engine = ticks.server.replication.primary, ticks.engine
        primary.prefixes.keep("a" * 40, 5, LogTail(engine.log, engine.files, engine.log.end, verbatim=False))
        for asked in [("a" * 40, 5), (engine.log.replids.replication_id, engine.log.end.offset), ("?", -1)]:
            primary.attach(replica, *asked)
            primary.detach(replica)
            await ticks.settle()
        stats = ticks.executor.stats
        assert (stats.syncs_full, stats.syncs_partial, stats.syncs_refused) == (0, 0, 0)
        assert primary.awaits_return
        ticks.close()

    in_loop(body())


def test_a_replica_that_goes_while_its_place_is_looked_for_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("riverbed.server.replication.sender.SEARCH_BATCHES", 1)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        replica, other = ticks.connect().session, ticks.connect()
        for number in range(1, 30):
            await ticks.ask(other, f"XADD s {number}-1 f v")
        primary, log, open_files = ticks.server.replication.primary, ticks.engine.log, ticks.files.open_count
        primary.attach(replica, log.replids.replication_id, log.end.offset - 1)
        for _ in range(2):  # it begins, and takes its first steps
            await asyncio.sleep(0)
        assert ticks.files.open_count == open_files + 1
        primary.detach(replica)
        assert ticks.files.open_count == open_files
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("way", ["is ahead", "is silent", "has to connect again"])
def test_nothing_more_is_done_for_a_replica_that_is_cut_off(tmp_path: Path, way: str) -> None:
    """What it has sent behind this has come already, and may be about another log."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        primary, replica, other = ticks.server.replication.primary, ticks.connect(), ticks.connect()
        await ticks.ask(replica, "REPLCONF riverbed 1", "PSYNC ? -1")
        if way == "is ahead":
            replica.send(f"REPLCONF ACK {1 << 40}")
        elif way == "is silent":
            primary.cycle()
            ticks.clock.now_ms += 3_600_000
            primary.cycle()
        else:
            primary.cut_off()
        replica.send("REPLCONF ACK 0", "XADD s 1-1 f v")
        await ticks.settle()
        assert replica.is_closed
        assert await ticks.ask(other, "XLEN s", "XADD t 1-1 f v") == [b":0\r\n", b"$3\r\n1-1\r\n"]
        assert [sender.acked_offset for sender in primary.senders.values()] == [-1]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("why", "logged"), [(Hold.DISK, 1), (Hold.FAILOVER, 0), (Hold.STOP, 0)])
def test_replicas_hear_of_a_primary_whose_writes_wait_and_seldom_where_they_are_to_come_level(
    tmp_path: Path, why: Hold, logged: int
) -> None:
    """One of them may be dead, and the others would take the primary for that after `repl-timeout`."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica = ticks.connect(), ticks.connect()
        await ticks.ask(replica, "REPLCONF capa psync2", "PSYNC ? -1")
        await ticks.ask(writer, "XADD s 1-1 f v")
        ticks.server.replication.primary.cycle()  # the first ping
        ticks.executor.pauses.hold_writes(why)
        writer.send("WAIT 1 0")
        await ticks.settle()
        for passed_ms, pings in ((29_000, logged), (2_000, 1)):
            ticks.clock.now_ms += passed_ms
            ticks.server.replication.primary.cycle()
            await ticks.settle()
            assert questions(ticks) == logged
            assert sum(batch.count(b"PING") for batch in ticks.batches()) == 1 + pings
        ticks.executor.pauses.release_writes(why)
        ticks.close()

    in_loop(body())


def test_replicas_are_pinged_before_they_take_the_primary_for_dead(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, repl_timeout=6)  # the period is 10
        replica = ticks.connect()
        await ticks.ask(replica, "REPLCONF capa psync2", "PSYNC ? -1")
        for passed_ms, pings in ((0, 1), (2_000, 1), (2_000, 2), (3_000, 3)):
            ticks.clock.now_ms += passed_ms
            ticks.server.replication.primary.cycle()
            await ticks.settle()
            assert sum(batch.count(b"PING") for batch in ticks.batches()) == pings
        ticks.close()

    in_loop(body())


def test_wait_covers_a_write_that_was_committed_before_the_end_of_its_tick(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica = ticks.connect(), ticks.connect()
        await ticks.ask(replica, "REPLCONF riverbed 1", "PSYNC ? -1")
        before = ticks.engine.log.end.offset
        await ticks.ask(replica, f"REPLCONF ACK {before}")
        replies = await ticks.ask(writer, "XADD s 1-1 f v", "SAVE", "WAIT 1 0")
        assert replies == [b"$3\r\n1-1\r\n", b"+OK\r\n"]
        await ticks.ask(replica, f"REPLCONF ACK {before}")
        assert writer.replies() == []
        await ticks.ask(replica, f"REPLCONF ACK {ticks.engine.log.end.offset}")
        assert writer.replies() == [b":1\r\n"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("asks", "reply"), [("WAIT 2 0", b":0\r\n"), ("WAITAOF 1 2 0", b"*2\r\n:0\r\n:0\r\n")])
def test_a_wait_that_ends_in_the_tick_of_the_write_counts_no_replica_that_has_the_one_before(
    tmp_path: Path, asks: str, reply: bytes
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, replica, operator = ticks.connect(), ticks.connect(), ticks.connect()
        await ticks.ask(replica, "REPLCONF riverbed 1", "PSYNC ? -1")
        await ticks.ask(writer, "XADD s 1-1 f v")
        end = ticks.engine.log.end.offset
        await ticks.ask(replica, f"REPLCONF ACK {end} FACK {end}")
        assert await ticks.ask(writer, "WAIT 1 0") == [b":1\r\n"]
        writer.send("XADD s 2-1 f v", asks)
        operator.send(f"CLIENT UNBLOCK {writer.session.id}")
        await ticks.settle()
        assert operator.replies() == [b":1\r\n"]
        assert writer.replies() == [b"$3\r\n2-1\r\n", reply]
        ticks.close()

    in_loop(body())


def test_a_client_that_waits_from_the_tick_of_a_question_on_is_answered_without_delay(tmp_path: Path) -> None:
    """A Redis answers with the offset before the question, and of itself only every second."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        first, second, replica = ticks.connect(), ticks.connect(), ticks.connect()
        sent = bytearray()
        replica.session.send = sent.extend
        await ticks.ask(replica, "PSYNC ? -1")
        begin = sent.index(EMPTY_RDB) + len(EMPTY_RDB)
        for client in (first, second):
            await ticks.ask(client, "XADD s * f v")
        first.send("WAIT 1 0")
        await asyncio.sleep(0)
        second.send("WAIT 1 0")
        await ticks.settle()
        answered = begin
        while (question := sent.find(GETACK, answered)) >= 0:
            await ticks.ask(replica, f"REPLCONF ACK {question - begin}")
            answered = question + len(GETACK)
        assert (first.replies(), second.replies()) == ([b":1\r\n"], [b":1\r\n"])
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("ports", "count"), [((7000, 7000), 1), ((7000, 7001), 2), ((0, 0), 2)])
def test_wait_counts_a_replica_once_that_has_connected_again(
    tmp_path: Path, ports: tuple[int, int], count: int
) -> None:
    """The primary may not know yet that the connection before is dead; a replica without a port has no name."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer = ticks.connect()
        links = [ticks.connect() for _ in ports]
        await ticks.ask(writer, "XADD s 1-1 f v")
        for link, port in zip(links, ports, strict=True):
            await ticks.ask(link, f"REPLCONF riverbed 1 listening-port {port}", "PSYNC ? -1")
            await ticks.ask(link, f"REPLCONF ACK {ticks.engine.log.end.offset}")
        assert await ticks.ask(writer, "WAIT 1 0") == [b":%d\r\n" % count]
        ticks.close()

    in_loop(body())


def test_a_replica_is_cut_off_when_the_disk_needs_the_space_of_the_files_that_it_is_still_to_be_sent(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, repl_backlog_size=16_384)
        primary, log_ = ticks.server.replication.primary, ticks.engine.log
        writer, slow, level = ticks.connect(), ticks.connect(), ticks.connect()
        for replica in (slow, level):
            await ticks.ask(replica, "REPLCONF riverbed 1", "PSYNC ? -1")
        slow.session.congested = True
        await ticks.ask(writer, *(f"XADD s {number}-1 f {'v' * 1000}" for number in range(1, 100)))
        log_.rotate()
        for sender in primary.senders.values():
            assert sender.held_bytes == 0
        log_.history.hold_tails()  # as before a removal
        log_.home.manifest = replace(log_.home.manifest, incrs=log_.home.manifest.incrs[-1:])
        primary.cycle()
        assert not slow.is_closed, "there is room"
        ticks.files.free = 1_400_000  # the reserve of these tests is 1 MB
        primary.cycle()
        assert (slow.is_closed, level.is_closed) == (True, False)
        ticks.files.free = None
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EIO, "Input/output error")])
def test_a_replica_that_cannot_be_sent_a_batch_is_cut_off_and_the_others_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        writer, first, second = ticks.connect(), ticks.connect(), ticks.connect()
        for replica in (first, second):
            await ticks.ask(replica, "REPLCONF riverbed 1", "PSYNC ? -1")
        senders = ticks.server.replication.primary.senders

        def fail(batches: object) -> None:
            raise error

        monkeypatch.setattr(senders[first.session], "batches", fail)
        assert await ticks.ask(writer, "XADD s 1-1 f v") == [b"$3\r\n1-1\r\n"]
        await ticks.settle()
        assert first.is_closed
        assert not second.is_closed
        ticks.close()

    in_loop(body())
