"""Ticks: one commit for all clients, no reply before it, and what is undone when something fails.

The first part runs the executor without sockets (`ticks.py`), the second a server as clients see it.
"""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from typing import NoReturn

import lmdb
import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.request import Request
from riverbed.server.commands.table import COMMANDS
from riverbed.server.execution.fast_path import MAX_REQUESTS_A_TICK
from riverbed.server.limits.accounts import MAX_OUTPUT_A_TICK
from riverbed.server.protocol import request_reader
from riverbed.server.protocol.fast_reader import PlainReader
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.server.protocol.replies import Reply
from riverbed.store.check import check
from riverbed.store.engine import Engine
from riverbed.store.errors import DamagedRowError, Refusal
from riverbed.store.format.groups import NAMES_OF_CONSUMERS
from riverbed.store.wire import Requests
from tests.conftest import StartRiverbed
from tests.support.in_process import HandClock, PassingClock
from tests.support.raw import Node, encode, parse
from tests.support.read_log import LogTail, logged_batches
from tests.support.servers import RiverbedServer
from tests.support.store.faulty_files import BEYOND_PADDING
from tests.support.ticks import Client, Files, Ticks, in_loop
from tests.support.waiting import until_true

OK = b"+OK\r\n"
QUEUED = b"+QUEUED\r\n"
LOG_FAILED = (
    b"-MISCONF Errors writing to the AOF file: the log could not be written or synced. Writes are refused until a "
    b"restart; reads go on.\r\n"
)
LONG_VALUE = "v" * BEYOND_PADDING
DISK_FULL = b"-MISCONF The disk is full. Writes are refused until there is space again; reads go on.\r\n"


def added(entry_id: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(entry_id), entry_id.encode())


def bulk(reply: bytes) -> bytes:
    return parse(reply).text


def milliseconds(reply: Node) -> int:
    """The time that a reply of TIME, or of XADD, tells."""
    if reply.children is None:
        return int(reply.text.partition(b"-")[0])
    seconds, microseconds = reply.children
    return int(seconds.text) * 1000 + int(microseconds.text) // 1000


# -- group commit ------------------------------------------------------------------------------------------------------


def test_requests_that_arrive_together_are_one_batch_in_the_order_they_came(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        first, second, third, fourth = [ticks.connect() for _ in range(4)]
        syncs = ticks.files.operations.count("sync")
        second.send("XADD b 1-1 f v")
        first.send("XADD a 1-1 f v", "XLEN b", "XADD a 1-2 f v")
        third.send("XLEN a")
        fourth.send("XADD b 1-2 f v")
        await ticks.settle()
        assert first.replies() == [added("1-1"), b":1\r\n", added("1-2")]
        assert second.replies() == [added("1-1")]
        assert third.replies() == [b":2\r\n"]
        assert fourth.replies() == [added("1-2")]
        assert ticks.batches() == [[b"XADD b 1-1 f v", b"XADD a 1-1 f v", b"XADD a 1-2 f v", b"XADD b 1-2 f v"]]
        assert ticks.files.operations.count("sync") == syncs + 1
        ticks.close()

    in_loop(body())


def test_no_reply_leaves_before_the_log_has_the_batch(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        clients = [ticks.connect() for _ in range(5)]
        sent_at_sync: list[int] = []
        ticks.files.before_sync = lambda: sent_at_sync.append(sum(client.sent for client in clients))
        for number, client in enumerate(clients):
            client.send(f"XADD s {number + 1}-0 f v", "PING")
        # this one only reads, but what it reads is not in the log yet
        reader = ticks.connect()
        reader.send("XLEN s")
        ticks.files.before_sync = lambda: sent_at_sync.append(sum(client.sent for client in (*clients, reader)))
        await ticks.settle()
        assert sent_at_sync == [0]
        assert reader.replies() == [b":5\r\n"]
        ticks.close()

    in_loop(body())


def test_a_tick_that_only_reads_touches_no_file(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        before = len(ticks.files.operations)
        await ticks.ask(client, "XLEN s", "XRANGE s - +", "PING", "XADD s 1-1 f v", "XDEL s 9-9", "XTRIM s MAXLEN 5")
        assert len(ticks.files.operations) == before
        ticks.close()

    in_loop(body())


def test_a_command_of_a_pipeline_is_not_older_than_the_time_that_was_told_before_it(tmp_path: Path) -> None:
    async def body() -> None:
        clock = PassingClock()
        clock.step_ms = 0.3  # so that all is one tick
        ticks = Ticks(tmp_path, clock=clock)
        client = ticks.connect()
        client.send(
            "TIME", "XADD s * f v", "XADD t * f v", "TIME", "XADD s * f v", "MULTI", "TIME", "EXEC", "XADD s * f v"
        )
        await ticks.settle()
        replies = [parse(reply) for reply in client.replies() if reply not in (OK, QUEUED)]
        told = [milliseconds(reply.children[0] if len(reply.children or ()) == 1 else reply) for reply in replies]
        assert len(told) == 7
        assert told == sorted(told)
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("policy", "syncs"), [("always", 1), ("everysec", 0), ("no", 0)])
def test_the_log_is_synced_as_the_policy_says_and_the_policy_changes_at_run_time(
    tmp_path: Path, policy: str, syncs: int
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="no" if policy == "always" else "always")
        client = ticks.connect()
        assert await ticks.ask(client, f"CONFIG SET appendfsync {policy}") == [OK]
        before = ticks.files.operations.count("sync")
        await ticks.ask(client, "XADD s 1-1 f v")
        assert ticks.files.operations.count("sync") == before + syncs
        assert ticks.batches() == [[b"XADD s 1-1 f v"]]
        ticks.close()

    in_loop(body())


def test_a_tick_ends_after_so_many_requests_and_the_order_stays(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        clients = [ticks.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(
                *[f"XADD s {number * MAX_REQUESTS_A_TICK + step + 1}-0 f v" for step in range(MAX_REQUESTS_A_TICK)]
            )
            client.send("XLEN s")
        await ticks.settle()
        for number, client in enumerate(clients):
            replies = client.replies()
            assert replies[0] == added(f"{number * MAX_REQUESTS_A_TICK + 1}-0")
            assert len(replies) == MAX_REQUESTS_A_TICK + 1
        assert len(ticks.batches()) == 4
        ticks.close()

    in_loop(body())


def test_much_output_ends_a_clients_turn_and_the_rest_comes_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        client.send_words("XADD", "s", "1-1", "f", b"x" * MAX_OUTPUT_A_TICK)
        await ticks.settle()
        client.replies()
        client.send("XRANGE s - +", "PING", "XRANGE s - +", "XADD s 1-2 f v", "XLEN s")
        # more of the same client, and another client, in the same tick
        client.send("ECHO late")
        other.send("XLEN s")
        await ticks.settle()
        sizes = [len(reply) for reply in client.replies()]
        assert sizes[0] == sizes[2] > MAX_OUTPUT_A_TICK
        assert other.replies() == [b":1\r\n"]
        assert (await ticks.ask(client, "PING")) == [b"+PONG\r\n"]
        assert client.session.commands_processed == 8
        ticks.close()

    in_loop(body())


def test_what_arrives_in_the_tick_that_wakes_a_client_runs_behind_what_it_had_sent(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        await ticks.ask(reader, "XREAD BLOCK 0 STREAMS s $", "ECHO second", "ECHO third")
        writer.send("XADD s 1-1 f v")
        reader.send("ECHO fourth")
        await ticks.settle()
        reader.send("ECHO fifth")
        await ticks.settle()
        assert [bulk(reply) for reply in reader.replies()[1:]] == [b"second", b"third", b"fourth", b"fifth"]
        ticks.close()

    in_loop(body())


def test_requests_are_counted_once_however_long_they_waited(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        await ticks.ask(reader, "XREAD BLOCK 0 STREAMS s $", "PING", "XREAD BLOCK 0 STREAMS s $", "PING")
        await ticks.ask(writer, "XADD s 1-1 f v", "XADD s 1-2 f v", "XADD s 1-3 f v")
        assert len(reader.replies()) >= 2
        await ticks.ask(writer, "XADD s 1-4 f v")
        assert reader.session.commands_processed == 4
        assert ticks.executor.stats.commands_processed == 8
        ticks.close()

    in_loop(body())


# -- a log that fails --------------------------------------------------------------------------------------------------


def fail_syncs(files: Files) -> None:
    files.fail("sync", errno.EIO)


def test_a_sync_that_fails_undoes_the_tick_and_refuses_writes_for_good(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        first, second = ticks.connect(), ticks.connect()
        await ticks.ask(first, "XADD s 1-1 f v", "XGROUP CREATE s g 0")
        (digest,) = await ticks.ask(first, "DEBUG DIGEST")
        fail_syncs(ticks.files)
        first.send("XADD s 1-2 f v", "XLEN s")
        second.send("XADD t 1-1 f v")
        await ticks.settle()
        # whatever the tick answered may rest on what is gone
        assert first.replies() == [LOG_FAILED, LOG_FAILED]
        assert second.replies() == [LOG_FAILED]
        # everything that writes is refused, also what frees space; reading goes on
        for line in (
            *("XADD s 1-2 f v", "xadd s * f v", "XDEL s 1-1", "XTRIM s MAXLEN 0", "DEL s", "FLUSHALL", "EXPIRE s 100"),
            *("XREADGROUP GROUP g c STREAMS s >", "XACK s g 1-1", "RENAME s t", "XGROUP CREATE s h 0"),
        ):
            assert await ticks.ask(first, line) == [LOG_FAILED]
        assert await ticks.ask(second, "XLEN s", "EXISTS t", "DEBUG DIGEST") == [b":1\r\n", b":0\r\n", digest]
        assert await ticks.ask(second, "XREAD STREAMS s 0") == [
            b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
        ]
        (info,) = await ticks.ask(first, "INFO persistence")
        assert b"aof_last_write_status:err\r\n" in info
        # a transaction that writes is refused too, one that reads is not
        assert (await ticks.ask(first, "MULTI", "XADD s 1-2 f v", "EXEC"))[1] == LOG_FAILED
        assert (await ticks.ask(first, "MULTI", "XLEN s", "EXEC"))[2] == b"*1\r\n:1\r\n"
        assert [batch for batch in ticks.batches() if b"XADD s 1-2 f v" in batch] == []
        ticks.close(save=False)

    in_loop(body())


def test_a_tick_that_fails_takes_back_what_it_did_to_the_tables_and_no_message_and_no_subscription(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        listener, writer = ticks.connect(), ticks.connect()
        assert await ticks.ask(listener, "SUBSCRIBE x") == [b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"]
        fail_syncs(ticks.files)
        writer.send("MULTI", "XADD s 1-1 f v", "PUBLISH x 1-1", "EXEC")
        listener.send("SUBSCRIBE y", "PING")
        await ticks.settle()
        assert writer.replies() == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n", b"*2\r\n%b:1\r\n" % LOG_FAILED]
        assert listener.replies() == [
            b"*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$3\r\n1-1\r\n",
            b"*3\r\n$9\r\nsubscribe\r\n$1\r\ny\r\n:2\r\n",
            b"*2\r\n$4\r\npong\r\n$0\r\n\r\n",
        ]
        assert await ticks.ask(writer, "PUBLISH y text") == [b":1\r\n"]
        assert listener.replies() == [b"*3\r\n$7\r\nmessage\r\n$1\r\ny\r\n$4\r\ntext\r\n"]
        ticks.close(save=False)

    in_loop(body())


def test_no_message_leaves_before_the_log_has_the_tick(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        listener, writer = ticks.connect(), ticks.connect()
        await ticks.ask(listener, "SUBSCRIBE x")
        before = listener.sent
        sent_at_sync: list[int] = []
        ticks.files.before_sync = lambda: sent_at_sync.append(listener.sent - before)
        writer.send("XADD s 1-1 f v", "PUBLISH x 1-1")
        await ticks.settle()
        assert sent_at_sync == [0]
        assert len(listener.replies()) == 1
        ticks.close()

    in_loop(body())


def test_a_full_disk_undoes_the_tick_and_writes_return_with_space(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.free = 50  # a short write, then ENOSPC
        assert await ticks.ask(client, f"XADD s 1-2 f {LONG_VALUE}", "XLEN s") == [DISK_FULL, DISK_FULL]
        assert await ticks.ask(client, "XLEN s", "XADD s 1-3 f v") == [b":1\r\n", DISK_FULL]
        (info,) = await ticks.ask(client, "INFO persistence")
        assert b"aof_last_write_status:err\r\n" in info
        ticks.files.free = None
        ticks.engine.check_space()
        ticks.executor.gate.refresh()
        assert await ticks.ask(client, "XADD s 1-2 f v", "XLEN s") == [added("1-2"), b":2\r\n"]
        assert ticks.batches() == [[b"XADD s 1-1 f v"], [b"XADD s 1-2 f v"]]
        ticks.close()
        again = Ticks(tmp_path, files=ticks.files)
        assert await again.ask(again.connect(), "XLEN s") == [b":2\r\n"]
        again.close()

    in_loop(body())


def test_those_who_wait_still_wait_after_a_failed_tick(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        await ticks.ask(reader, "XREAD BLOCK 0 STREAMS other $")
        ticks.files.free = 10
        assert await ticks.ask(writer, "XADD s 1-1 f v") == [DISK_FULL]
        assert reader.replies() == []
        ticks.files.free = None
        ticks.engine.check_space()
        ticks.executor.gate.refresh()
        await ticks.ask(writer, "XADD other 1-1 f v")
        assert len(reader.replies()) == 1
        ticks.close()

    in_loop(body())


def test_a_reader_that_a_failed_tick_had_served_learns_that_it_failed(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        await ticks.ask(reader, "XREAD BLOCK 0 STREAMS s $")
        ticks.files.free = 10
        assert await ticks.ask(writer, "XADD s 1-1 f v") == [DISK_FULL]
        # an entry that no client will see again is shown to none
        assert reader.replies() == [DISK_FULL]
        assert ticks.executor.control.blocked_clients() == 0
        ticks.close(save=False)

    in_loop(body())


def test_what_is_pending_outlives_the_caches(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XGROUP CREATE s g 0", "XREADGROUP GROUP g Alice STREAMS s >")
        (before,) = await ticks.ask(client, "XPENDING s g")
        ticks.engine.txn.cached_bytes = 1 << 40
        assert await ticks.ask(client, "PING") == [b"+PONG\r\n"]
        assert not ticks.engine.txn.databases[0].cached
        assert await ticks.ask(client, "XPENDING s g", "XACK s g 1-1") == [before, b":1\r\n"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("command", ["XADD # 1-1 f v", "XLEN #", "XRANGE # - +", "EXISTS #"])
def test_long_keys_that_are_used_do_not_stay_in_memory(tmp_path: Path, command: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        keys = [b"%d" % number + b"k" * 1_000_000 for number in range(30)]
        for key in keys:
            client.send_words("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")
            await ticks.settle()
        ticks.engine.checkpoint()
        for key in keys:
            client.send_words(*[word.encode().replace(b"#", key) for word in command.split()])
            await ticks.settle()
            assert sum(len(key) for db in ticks.engine.txn.databases for key in db.cached) < 12_000_000
        assert len(client.replies()) == 60
        client.send_words("XINFO", "GROUPS", keys[0])
        await ticks.settle()
        assert b"$1\r\ng\r\n" in client.replies()[0]
        ticks.close()

    in_loop(body())


# -- a bug in a mutator ------------------------------------------------------------------------------------------------


class Broken:
    """The handler of a command: while `is_on`, it fails after its work.  Make it before the executor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: bytes, error: Exception | None = None) -> None:
        load_commands()
        self.is_on = True
        self._error = error or RuntimeError("half\r\nway")
        self._handler = COMMANDS[name].handler
        monkeypatch.setattr(COMMANDS[name], "handler", self)

    def __call__(self, request: Request) -> Reply:
        reply = self._handler(request)
        if self.is_on:
            raise self._error
        return reply


@pytest.mark.parametrize("name", ["XDEL", "xDel"], ids=["fast path", "careful path"])
def test_an_exception_undoes_just_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    async def body() -> None:
        broken = Broken(monkeypatch, b"XDEL")
        ticks = Ticks(tmp_path)
        first, second = ticks.connect(), ticks.connect()
        await ticks.ask(first, "XADD s 1-1 f v", "XADD s 1-2 f v", "XGROUP CREATE s g 0")
        (before,) = await ticks.ask(first, "XINFO STREAM s FULL")
        first.send("XADD t 1-1 f v", f"{name} s 1-1", "XADD t 1-2 f v", "XINFO STREAM s FULL")
        second.send("XADD t 1-3 f v")
        await ticks.settle()
        broken.is_on = False
        error = b"-ERR internal error: xdel was undone (RuntimeError)\r\n"
        # what came before it in the tick stays, what comes after works
        assert first.replies() == [added("1-1"), error, added("1-2"), before]
        assert second.replies() == [added("1-3")]
        assert await ticks.ask(second, "XLEN t", f"{name} s 1-1", "XLEN s") == [b":3\r\n", b":1\r\n", b":1\r\n"]
        assert ticks.engine.refusal is None
        lines = [line for batch in ticks.batches() for line in batch]
        assert lines[3:] == [b"XADD t 1-1 f v", b"XADD t 1-2 f v", b"XADD t 1-3 f v", b"XDEL s 1-1"]
        (digest,) = await ticks.ask(first, "DEBUG DIGEST")
        ticks.close(save=False)
        again = Ticks(tmp_path, files=ticks.files)
        assert await again.ask(again.connect(), "DEBUG DIGEST") == [digest]
        again.close()

    in_loop(body())


def test_what_stands_before_an_undone_command_is_synced_as_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        Broken(monkeypatch, b"XDEL")
        ticks = Ticks(tmp_path, appendfsync="everysec", checkpoint_interval_ms=1)
        first, second = ticks.connect(), ticks.connect()
        await ticks.ask(first, "XADD s 1-1 f v", "SAVE")
        first.send("XADD s 1-2 f v", "WAITAOF 1 0 0")
        second.send("XDEL s 1-1")
        replies: list[bytes] = []
        for _ in range(500):
            await ticks.settle()
            if len(replies := [*replies, *first.replies()]) == 2:
                break
            await asyncio.sleep(0.01)
        assert replies == [added("1-2"), b"*2\r\n:1\r\n:0\r\n"]
        assert not ticks.engine.needs_checkpoint
        ticks.close()

    in_loop(body())


def test_a_server_that_is_only_asked_makes_no_checkpoint(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=1)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "SAVE")
        made = ticks.engine.checkpoints.count
        for _ in range(30):
            await ticks.ask(client, "PING", "XLEN s")
            await asyncio.sleep(0.005)
        assert ticks.engine.checkpoints.count == made
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("name", ["XLEN", "xLen"], ids=["fast path", "careful path"])
def test_an_exception_in_a_read_undoes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    async def body() -> None:
        broken = Broken(monkeypatch, b"XLEN")
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        rollbacks = []
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "rollback", lambda *_: rollbacks.append(1))
            (reply,) = await ticks.ask(client, f"{name} s")
        assert reply == b"-ERR internal error: xlen failed (RuntimeError)\r\n"
        assert not rollbacks
        broken.is_on = False
        assert await ticks.ask(client, "XLEN s") == [b":1\r\n"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("name", ["XDEL", "xDel"], ids=["fast path", "careful path"])
def test_a_command_that_finds_no_memory_is_undone_and_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async def body() -> None:
        broken = Broken(monkeypatch, b"XDEL", MemoryError())
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        (_, refused, length) = await ticks.ask(client, "XADD s 1-1 f v", f"{name} s 1-1", "XLEN s")
        assert (refused, length) == (b"-OOM not enough memory for xdel\r\n", b":1\r\n")
        assert "Traceback" not in caplog.text
        broken.is_on = False
        assert await ticks.ask(client, f"{name} s 1-1", "XLEN s") == [b":1\r\n", b":0\r\n"]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            lmdb.MapFullError("the map is full"),
            "{} commands that LMDB refused since the last such line; the last one: xlen was",
        ),
        (
            DamagedRowError("the row x"),
            "{} commands that have met damage since the last such line; the last one: xlen failed: the",
        ),
    ],
    ids=["no space", "damage"],
)
def test_failures_that_a_client_can_repeat_are_logged_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, line: str
) -> None:
    async def body() -> None:
        clock = HandClock()
        Broken(monkeypatch, b"XLEN", error)
        ticks = Ticks(tmp_path, clock=clock, auto_repair="no")
        client = ticks.connect()
        await ticks.ask(client, *["XLEN s"] * 50)
        assert caplog.text.count("xlen") == 1
        assert line.format(1) in caplog.text
        clock.now_ms += 60_000
        await ticks.ask(client, "XLEN s")
        assert caplog.text.count("xlen") == 2
        assert line.format(50) in caplog.text
        ticks.close()

    in_loop(body())


def test_the_error_for_a_full_map_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        Broken(monkeypatch, b"XLEN", lmdb.MapFullError("use a larger Environment(map_size=)"))
        ticks = Ticks(tmp_path)
        [reply] = await ticks.ask(ticks.connect(), "XLEN s")
        assert (
            reply
            == b"-MISCONF xlen was undone, the store refused it: it has no room for its rows, see lmdb-map-size\r\n"
        )
        ticks.close()

    in_loop(body())


def test_ticks_that_are_undone_are_logged_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        for _ in range(3):
            ticks.files.fail("write", errno.ENOSPC)
            (reply,) = await ticks.ask(client, "XADD s * f v")
            assert reply.startswith(b"-MISCONF")
            ticks.files.forgive()
            ticks.engine.check_space()
            ticks.executor.gate.refresh()
        assert caplog.text.count("undone") == 1
        assert "1 ticks that were undone since the last such line; the last one: " in caplog.text
        ticks.close()

    in_loop(body())


def test_bugs_that_a_client_can_repeat_are_reported_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        clock = HandClock()
        Broken(monkeypatch, b"XLEN")
        ticks = Ticks(tmp_path, clock=clock)
        client = ticks.connect()
        await ticks.ask(client, *["XLEN s"] * 50)
        assert caplog.text.count("Traceback") == caplog.text.count("a bug: xlen failed") == 1
        clock.now_ms += 60_000
        await ticks.ask(client, "XLEN s")
        assert caplog.text.count("Traceback") == 2
        assert "a bug: xlen failed; 49 more errors since the last report" in caplog.text
        ticks.close()

    in_loop(body())


def test_an_exception_inside_a_transaction_undoes_the_whole_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        Broken(monkeypatch, b"XDEL")
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        (digest,) = await ticks.ask(client, "DEBUG DIGEST")
        replies = await ticks.ask(client, "MULTI", "XADD t 1-1 f v", "XDEL s 1-1", "XADD t 1-2 f v", "EXEC", "PING")
        assert replies[-2:] == [b"-ERR internal error: exec was undone (RuntimeError)\r\n", b"+PONG\r\n"]
        assert await ticks.ask(client, "DEBUG DIGEST", "EXEC") == [digest, b"-ERR EXEC without MULTI\r\n"]
        assert ticks.batches() == [[b"XADD s 1-1 f v"]]
        ticks.close()

    in_loop(body())


def test_what_is_undone_takes_its_changes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        broken = Broken(monkeypatch, b"XDEL")
        ticks = Ticks(tmp_path)
        client, changes = ticks.connect(), lambda: ticks.engine.changes_since_checkpoint
        await ticks.ask(client, "XADD s 1-1 f v", "XGROUP CREATE s g 0", *[f"XADD s 2-{n} f v" for n in range(10)])
        await ticks.ask(client, "XREADGROUP GROUP g c STREAMS s >")  # one, and one for the consumer
        assert changes() == 14
        # a command, on both paths
        await ticks.ask(client, "XADD s 3-1 f v", "XDEL s 1-1 2-1", "XADD s 3-2 f v", "xDel s 1-1", "XACK s g 1-1 2-1")
        assert changes() == 18
        # a transaction
        await ticks.ask(client, "MULTI", "XADD t 1-1 f v", "XDEL s 1-1", "XADD t 1-2 f v", "EXEC", "XADD t 1-1 f v")
        assert changes() == 19
        broken.is_on = False
        # a tick, then the one after it
        ticks.files.free = 50
        assert await ticks.ask(client, f"XADD s 4-1 f {LONG_VALUE}", "XDEL s 2-1 2-2") == [DISK_FULL, DISK_FULL]
        assert changes() == 19
        ticks.files.free = None
        ticks.engine.check_space()
        ticks.executor.gate.refresh()
        await ticks.ask(client, "XDEL s 2-1 2-2")
        assert changes() == 21
        ticks.engine.checkpoint()
        assert changes() == 0
        ticks.close()

    in_loop(body())


def test_a_bug_while_waiting_clients_are_served_is_their_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        broken = Broken(monkeypatch, b"XREAD")
        broken.is_on = False
        ticks = Ticks(tmp_path)
        reader, writer = ticks.connect(), ticks.connect()
        await ticks.ask(reader, "XREAD BLOCK 0 STREAMS s $")
        broken.is_on = True
        assert await ticks.ask(writer, "XADD s 1-1 f v") == [added("1-1")]
        assert reader.replies() == [b"-ERR internal error: xread failed (RuntimeError)\r\n"]
        assert await ticks.ask(writer, "XLEN s") == [b":1\r\n"]
        assert ticks.batches() == [[b"XADD s 1-1 f v"]]
        ticks.close()

    in_loop(body())


# -- transactions in the log -------------------------------------------------------------------------------------------


def test_a_transaction_is_atomic_in_the_log(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other, third = ticks.connect(), ticks.connect(), ticks.connect()
        other.send("XADD before 1-1 f v")
        client.send("MULTI", "XADD a 1-1 f v", "XLEN a", "XADD b 1-1 f v", "XDEL a 9-9", "EXEC")
        third.send("XADD after 1-1 f v")
        await ticks.settle()
        assert client.replies()[-1] == b"*4\r\n" + added("1-1") + b":1\r\n" + added("1-1") + b":0\r\n"
        assert ticks.batches() == [
            [
                *(b"XADD before 1-1 f v", b"MULTI", b"XADD a 1-1 f v", b"XADD b 1-1 f v", b"EXEC"),
                b"XADD after 1-1 f v",
            ]
        ]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("commands", "logged"),
    [
        # one effect needs no frame, none leaves nothing
        (["XADD s 2-1 f v", "XLEN s"], [b"XADD s 2-1 f v"]),
        (["XLEN s", "XDEL s 9-9"], []),
        (["XADD s x f v", "XADD s 1-1 f v"], []),
        (
            ["XADD s 2-1 f v", "XADD s 1-1 f v", "XADD s 2-2 f v"],
            [b"MULTI", b"XADD s 2-1 f v", b"XADD s 2-2 f v", b"EXEC"],
        ),
        (["SELECT 3", "XADD s 2-1 f v", "SELECT 0", "DEL s"], [b"MULTI", b"XADD s 2-1 f v", b"DEL s", b"EXEC"]),
        # commands of several effects have one frame
        (["FLUSHALL", "XADD s 2-1 f v"], [b"MULTI", b"FLUSHDB", b"XADD s 2-1 f v", b"EXEC"]),
    ],
)
def test_only_effects_stand_between_multi_and_exec(tmp_path: Path, commands: list[str], logged: list[bytes]) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        await ticks.ask(client, "MULTI", *commands, "EXEC")
        assert [line for batch in ticks.batches()[1:] for line in batch] == logged
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("name", ["DEL", "UNLINK", "del", "uNLink"])
def test_a_command_of_several_effects_is_atomic_in_the_log(tmp_path: Path, name: str) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD a 1-1 f v", "XADD b 1-1 f v")
        assert await ticks.ask(client, f"{name} a b c") == [b":2\r\n"]
        assert ticks.batches()[1] == [b"MULTI", b"DEL a", b"DEL b", b"EXEC"]
        ticks.close()

    in_loop(body())


# -- pauses ------------------------------------------------------------------------------------------------------------


def pause_lines(client: Client, number: int) -> None:
    client.send(f"XADD s {number}-0 f v", f"ECHO {number}", "XLEN s")


def test_a_pause_of_all_holds_everything_back_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, first, second = ticks.connect(), ticks.connect(), ticks.connect()
        assert await ticks.ask(admin, "CLIENT PAUSE 100000 ALL") == [OK]
        pause_lines(first, 1)
        await ticks.settle()
        pause_lines(second, 2)
        await ticks.settle()
        first.send("ECHO last")
        await ticks.settle()
        assert first.replies() == second.replies() == []
        assert await ticks.ask(admin, "CLIENT UNPAUSE") == [OK]
        assert first.replies() == [added("1-0"), b"$1\r\n1\r\n", b":1\r\n", b"$4\r\nlast\r\n"]
        assert second.replies() == [added("2-0"), b"$1\r\n2\r\n", b":2\r\n"]
        ticks.close()

    in_loop(body())


def test_a_pause_of_writes_lets_reads_pass_up_to_the_clients_first_write(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, writer, reader = ticks.connect(), ticks.connect(), ticks.connect()
        assert await ticks.ask(admin, "CLIENT PAUSE 100000 WRITE") == [OK]
        assert await ticks.ask(writer, "XLEN s", "XADD s 1-1 f v", "XLEN s") == [b":0\r\n"]
        reads = await ticks.ask(reader, "XLEN s", "MULTI", "XLEN s", "EXEC", "PING")
        assert reads == [b":0\r\n", OK, QUEUED, b"*1\r\n:0\r\n", b"+PONG\r\n"]
        # a transaction waits for what it holds, once it is to be executed
        queued = await ticks.ask(reader, "MULTI", "XLEN s", "XADD s 2-1 f v", "EXEC", "PING")
        assert queued == [OK, QUEUED, QUEUED]
        assert await ticks.ask(admin, "CLIENT UNPAUSE") == [OK]
        assert writer.replies() == [added("1-1"), b":1\r\n"]
        assert reader.replies() == [b"*2\r\n:1\r\n$3\r\n2-1\r\n", b"+PONG\r\n"]
        ticks.close()

    in_loop(body())


def test_a_pause_ends_by_itself(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, client = ticks.connect(), ticks.connect()
        await ticks.ask(admin, "CLIENT PAUSE 20")
        client.send("XADD s 1-1 f v")
        await until_true(lambda: client.sent > 0)
        assert client.replies() == [added("1-1")]
        ticks.close()

    in_loop(body())


def test_a_paused_client_that_leaves_takes_its_requests_along(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        admin, client = ticks.connect(), ticks.connect()
        await ticks.ask(admin, "CLIENT PAUSE 100000")
        await ticks.ask(client, "XADD s 1-1 f v")
        client.leave()
        assert await ticks.ask(admin, "CLIENT UNPAUSE", "XLEN s") == [OK, b":0\r\n"]
        assert client.sent == 0
        ticks.close()

    in_loop(body())


# -- CLIENT REPLY, MONITOR ---------------------------------------------------------------------------------------------


def test_replies_can_be_switched_off_skipped_and_on_again(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        assert await ticks.ask(client, "CLIENT REPLY SKIP", "XADD s 1-1 f v", "XLEN s") == [b":1\r\n"]
        assert await ticks.ask(client, "CLIENT REPLY OFF", "XADD s 1-2 f v", "NONSENSE", "XADD s x f v") == []
        assert await ticks.ask(client, "XREAD BLOCK 0 STREAMS s 0", "XADD s 1-3 f v") == []
        assert await ticks.ask(client, "CLIENT REPLY ON", "XLEN s") == [OK, b":3\r\n"]
        assert ticks.batches()[-1] == [b"XADD s 1-3 f v"]
        ticks.close()

    in_loop(body())


def test_a_monitor_is_shown_every_command_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        monitor, client, other = ticks.connect(), ticks.connect(), ticks.connect()
        assert await ticks.ask(monitor, "MONITOR") == [OK]
        client.send("xadd s 1-1 f v", "SELECT 2", "XLEN s")
        other.send("XLEN s")
        await ticks.settle()
        client.send_words("ECHO", b'a"b\\\r\n\t\x00\xff\x07\x08')
        client.send("MULTI", "PING", "EXEC", "XREAD BLOCK 0 STREAMS s $")
        await ticks.settle()
        other.send("SELECT 2", "XADD s 5-5 f v")
        await ticks.settle()
        at = b"+1700000000.000000 ["
        assert monitor.replies() == [
            at + b'0 test] "xadd" "s" "1-1" "f" "v"\r\n',
            at + b'2 test] "SELECT" "2"\r\n',
            at + b'2 test] "XLEN" "s"\r\n',
            at + b'0 test] "XLEN" "s"\r\n',
            at + b'2 test] "ECHO" "a\\"b\\\\\\r\\n\\t\\x00\\xff\\a\\b"\r\n',
            at + b'2 test] "MULTI"\r\n',
            at + b'2 test] "PING"\r\n',
            at + b'2 test] "EXEC"\r\n',
            at + b'2 test] "XREAD" "BLOCK" "0" "STREAMS" "s" "$"\r\n',
            at + b'2 test] "SELECT" "2"\r\n',
            at + b'2 test] "XADD" "s" "5-5" "f" "v"\r\n',
        ]
        monitor.leave()
        await ticks.ask(other, "PING")
        assert other.session.is_plain and ticks.executor.fast_path.commands
        ticks.close()

    in_loop(body())


# -- a server ----------------------------------------------------------------------------------------------------------


def test_group_commit_of_many_clients_over_sockets(riverbed: RiverbedServer) -> None:
    clients = [riverbed.client() for _ in range(21)]
    admin, *writers = clients
    try:
        for client in clients:
            client.ask("PING")
        tail = LogTail(riverbed.directory)
        for _ in range(10):
            # they all arrive while the server sleeps, if it has fallen asleep by then
            admin.send("DEBUG", "SLEEP", "0.2")
            time.sleep(0.05)
            for number, client in enumerate(writers):
                client.send_bytes(encode(("XADD", f"s{number}", "*", "f", "v")) * 5)
            for client in writers:
                assert [client.reply()[:1] for _ in range(5)] == [b"$"] * 5
            assert admin.reply() == OK
            batches = tail.batches()
            assert sum(map(len, batches)) == 100
            if len(batches) < len(writers):
                return
        raise AssertionError("each client's requests are a batch of their own")
    finally:
        for client in clients:
            client.close()


def test_everything_acknowledged_survives_a_kill(riverbed: RiverbedServer) -> None:
    for round_number in range(3):
        with riverbed.client() as client:
            client.send_bytes(
                b"".join(encode(("XADD", "s", f"{round_number}-{number}", "f", "v")) for number in range(1, 2001))
            )
            acknowledged = [bulk(client.reply()) for _ in range(500)]
            riverbed.kill()
        riverbed.start()
        with riverbed.client() as client:
            stored = [
                bulk_of_entry(entry)
                for entry in parse(client.ask("XRANGE", "s", str(round_number), "+")).children or ()
            ]
            assert stored[: len(acknowledged)] == acknowledged
            # and nothing is there twice or out of order
            assert stored == [f"{round_number}-{number}".encode() for number in range(1, len(stored) + 1)]


def bulk_of_entry(entry: Node) -> bytes:
    assert entry.children is not None
    return entry.children[0].text


@pytest.mark.parametrize("how", ["SIGTERM", "SHUTDOWN", "SHUTDOWN NOSAVE", "SHUTDOWN SAVE", "kill"])
@pytest.mark.parametrize("policy", ["always", "no"])
def test_no_way_of_stopping_loses_what_was_acknowledged(start_riverbed: StartRiverbed, how: str, policy: str) -> None:
    server = start_riverbed(options={"appendfsync": policy, "checkpoint-interval-ms": 3_600_000})
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "f", "v") for number in range(1, 301)])
        for line in (
            "XTRIM s MAXLEN ~ 150",
            "XDEL s 250-0",
            "XGROUP CREATE s g 0",
            "XREADGROUP GROUP g c COUNT 3 STREAMS s >",
        ):
            client.ask(*line.split())
        before = [client.ask("DEBUG", "DIGEST"), client.ask("XINFO", "STREAM", "s", "FULL", "COUNT", 0)]
        if how == "kill":
            server.kill()
        elif how == "SIGTERM":
            assert server.stop() == 0
        else:
            client.send(*how.split())
            assert client.rest_until_closed() == b""
            assert server.wait_ended() == 0
    server.start()
    with server.client() as client:
        assert client.ask("DEBUG", "DIGEST") == before[0]
        after = client.ask("XINFO", "STREAM", "s", "FULL", "COUNT", 0)
        if how not in ("kill", "SHUTDOWN NOSAVE"):  # when consumers were seen is not in the log
            assert after == before[1]


def test_requests_before_a_shutdown_are_answered_and_those_behind_it_are_not(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.send_bytes(
            encode(("XADD", "s", "1-1", "f", "v")) + encode(("SHUTDOWN",)) + encode(("XADD", "s", "1-2", "f", "v"))
        )
        answered = client.rest_until_closed()
        assert server.wait_ended() == 0
    server.start()
    with server.client() as client:
        stored = client.ask("XLEN", "s")
    # what was acknowledged is there, and nothing is acknowledged that is not
    assert stored == b":%d\r\n" % answered.count(b"$3\r\n")
    assert answered.startswith(added("1-1"))


def test_the_policy_of_syncing_changes_while_clients_write(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        for number, policy in enumerate(("no", "everysec", "always", "everysec", "no", "always")):
            replies = client.pipeline(
                [("CONFIG", "SET", "appendfsync", policy), ("XADD", "s", f"{number + 1}-0", "f", "v"), ("XLEN", "s")]
            )
            assert replies == [OK, added(f"{number + 1}-0"), b":%d\r\n" % (number + 1)]
        assert client.ask("CONFIG", "SET", "appendfsync", "sometimes").startswith(b"-ERR CONFIG SET failed")
    riverbed.kill()
    riverbed.start()
    with riverbed.client() as client:
        assert client.ask("XLEN", "s") == b":6\r\n"
    assert sum(map(len, logged_batches(riverbed.directory))) >= 6


def test_a_slow_reader_does_not_have_its_pipeline_run_ahead(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client, riverbed.client() as slow:
        client.ask("XADD", "big", "1-1", "f", b"x" * 2_000_000)
        rounds = 30
        commands = [("XRANGE", "big", "-", "+"), ("XADD", "s", "*", "f", "v")] * rounds
        slow.send_bytes(b"".join(map(encode, commands)))
        # others go on; the slow one's writes wait for its reading
        for _ in range(20):
            assert client.ask("PING") == b"+PONG\r\n"
        assert int(client.ask("XLEN", "s")[1:]) < rounds
        for number in range(rounds):
            assert len(slow.reply()) > 2_000_000
            assert slow.reply().startswith(b"$")
            assert int(client.ask("XLEN", "s")[1:]) > number
        assert client.ask("XLEN", "s") == b":%d\r\n" % rounds


def test_sleeping_stalls_everybody_and_loses_nobody(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client, riverbed.client() as other:
        begun = time.monotonic()
        client.send("DEBUG", "SLEEP", "0.2")
        other.send("XADD", "s", "1-1", "f", "v")
        assert client.reply() == OK
        assert time.monotonic() - begun >= 0.2
        assert other.reply() == added("1-1")


def test_clients_that_arrive_while_writes_are_refused_can_read(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        await ticks.ask(ticks.connect(), "XADD s 1-1 f v")
        ticks.files.fail("sync", errno.EIO)
        await ticks.ask(ticks.connect(), "XADD s 1-2 f v")
        assert ticks.engine.refusal is Refusal.LOG_FAILED
        late = ticks.connect()
        assert await ticks.ask(late, "XLEN s", "XADD s 1-2 f v") == [b":1\r\n", LOG_FAILED]
        ticks.close(save=False)

    in_loop(body())


class FailingClock(HandClock):
    """A clock one of whose readings is a defect: the one behind `left` others."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    def time(self) -> float:
        self.left -= 1
        if self.left == -1:
            raise RuntimeError("planted")
        return super().time()


def test_a_client_is_answered_or_cut_off_wherever_a_tick_meets_a_defect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that a tick had taken were lost, and replies that it had made waited for another client's request."""
    cut_off: list[bool] = []
    readings: list[int] = []

    async def body(directory: Path, at: int) -> None:
        ticks = Ticks(directory, clock=(clock := FailingClock()))
        reader, writer, other = (ticks.connect() for _ in range(3))
        await ticks.ask(reader, "XREAD BLOCK 0 STREAMS s $")
        await ticks.ask(writer, "XADD s 1-1 f v", "XREAD BLOCK 0 STREAMS s $")
        reader.replies()
        clock.left = at
        writer.send("CLIENT UNBLOCK 1")
        reader.send("XADD s 2-1 f v", "PING", "XLEN s")
        other.send("XLEN none", "ECHO x", "MULTI", "PING", "EXEC")
        await ticks.settle()
        readings.append(at - clock.left)
        clock.left = -1
        await ticks.settle()
        assert not ticks.executor.gave_up
        for client, count in ((reader, 3), (other, 5)):
            replies = client.replies()
            assert client.is_closed or len(replies) == count, (at, replies)
            cut_off.append(client.is_closed)
        newcomer = ticks.connect()
        assert await ticks.ask(newcomer, "PING", "XLEN s") in ([b"+PONG\r\n", b":%d\r\n" % count] for count in (1, 2))
        ticks.close()

    for at in range(40):
        in_loop(body(tmp_path / str(at), at))
    assert 5 < max(readings) < 40
    assert {True, False} == set(cut_off)
    assert caplog.text.count("a bug: a tick has failed") > 3


def test_replies_of_a_tick_whose_end_has_met_a_defect_leave_with_the_next(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        over = ticks.executor.events.tick_over

        def fail() -> NoReturn:
            over.remove(fail)
            raise RuntimeError("planted")

        over.append(fail)
        assert await ticks.ask(client, "XADD s 1-1 f v", "PING") == [added("1-1"), b"+PONG\r\n"]
        assert ticks.batches() == [[b"XADD s 1-1 f v"]]
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    ("is_commit", "line"),
    [
        (False, "a bug is in the way of every tick; stopping"),
        (True, "a commit has failed (RuntimeError); stopping"),
    ],
)
def test_a_defect_that_each_tick_meets_or_a_commit_stops_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_commit: bool, line: str
) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError("planted")

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        with monkeypatch.context() as patch:
            if is_commit:
                patch.setattr(Engine, "commit", fail)
            else:
                ticks.executor.events.tick_over.append(fail)
            client.send("XADD s 1-1 f v")
            await ticks.settle()
        assert client.replies() == []
        assert ticks.executor.gave_up
        assert line in caplog.text
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        ticks.server.checkpoints.close()
        ticks.engine.abandon()

    in_loop(body())


@pytest.mark.parametrize(
    "read",
    ["XREADGROUP GROUP g Bob STREAMS r s > >", "XREADGROUP GROUP g Bob COUNT 1 STREAMS s >", "XCLAIM s g Bob 0 1-1"],
)
def test_a_group_that_has_given_out_all_numbers_of_consumers_says_so_and_keeps_those_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read: str
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *(f"XADD {key} {number}-1 f v" for key in "rs" for number in (1, 2)))
        await ticks.ask(
            client, "XGROUP CREATE r g 0", "XGROUP CREATE s g 0", "XREADGROUP GROUP g Al COUNT 1 STREAMS s >"
        )
        database = ticks.engine.txn.databases[0]
        stream = database.stream(b"s", 0)
        assert stream is not None
        group = database.groups(stream).get(b"g")
        assert group is not None
        group.consumers.next_no = NAMES_OF_CONSUMERS - 1
        group.touch()
        ticks.engine.checkpoint()
        last, refused, pending, others = await ticks.ask(
            client, "XGROUP CREATECONSUMER s g last", read, "XPENDING s g", "XPENDING r g"
        )
        assert last == b":1\r\n"
        assert refused == b"-ERR the group has had 4294967294 consumers, which is as many as it can have\r\n"
        assert (parse(pending).children or [])[0].text == b"1"
        assert (parse(others).children or [])[0].text == b"0"
        assert await ticks.ask(client, "XREADGROUP GROUP g last COUNT 1 NOACK STREAMS s >") != [b"*-1\r\n"]
        assert "Traceback" not in caplog.text
        ticks.close()
        assert [str(violation) for violation in check(tmp_path) if violation.table != "log"] == []

    in_loop(body())


@pytest.mark.parametrize("reader", [NativeReader, PlainReader])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_request_that_finds_no_memory_costs_its_client_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: type[NativeReader | PlainReader], is_plain: bool
) -> None:
    take_chunk = reader().take_chunk
    failures: list[bytes] = []

    def fail_once(data: bytes) -> Requests | None:
        failures.append(data)
        if len(failures) == 1:
            raise MemoryError
        return take_chunk(data)

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    async def body() -> None:
        monkeypatch.setattr(request_reader, "new_plain_reader", reader)
        ticks = Ticks(tmp_path)
        clients = [ticks.connect() for _ in range(3)]
        assert is_plain or await ticks.ask(clients[0], "MULTI") == [OK]
        for client in clients:
            client.send("XADD s * f v")
        with monkeypatch.context() as patch:
            patch.setattr(reader, "take_front", staticmethod(fail))
            patch.setattr(reader, "take_chunk", staticmethod(fail_once))
            await ticks.settle()
        assert [(len(client.replies()), client.is_closed) for client in clients] == [(0, True), (1, False), (1, False)]
        ticks.check_accounts()
        ticks.close()

    in_loop(body())


def test_a_tick_that_finds_no_memory_to_commit_cuts_its_clients_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        (_,) = await ticks.ask(client, "XADD s 1-1 f v")

        def fail(*_: object) -> NoReturn:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "commit", fail)
            client.send("XADD s 2-1 f v")
            await ticks.settle()
        assert client.replies() == []
        assert ticks.executor.gave_up
        assert "not enough memory to commit; stopping" in caplog.text
        ticks.server.maintenance.stop()
        ticks.server.checkpoints.stop()
        ticks.server.checkpoints.close()
        ticks.engine.abandon()
        again = Ticks(tmp_path, files=ticks.files)
        assert await again.ask(again.connect(), "XLEN s") == [b":1\r\n"]
        again.close()

    in_loop(body())
