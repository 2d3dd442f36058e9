"""XADDs that are neighbours inside of MULTI: queued and executed as runs, they do what they would do one by one."""

from __future__ import annotations

import asyncio
import errno
import random
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from riverbed.server.commands import client_state
from riverbed.server.commands.client_state import request_bytes
from riverbed.server.execution.control import spool, transaction_replies, transactions
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.store.databases import lent
from riverbed.store.errors import Refusal
from tests.support.raw import encode
from tests.support.runs import ACKS, APPENDS, LINES, bulks, outcome, same
from tests.support.ticks import Client, Ticks, in_loop

MS = 1_700_000_000_000
OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"
ADDS = ["XADD s * f v", "XADD t * f v"] * 50


@pytest.fixture(autouse=True)
def every_run_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("riverbed.store.wire.native")  # it must have been built
    monkeypatch.setattr(client_state, "_CHUNK_PARTS", 1 << 40)


def queued(client: Client) -> list[int] | None:
    """How many commands each of the queued requests is, 0 for one that is not several; None outside of MULTI."""
    found = client.session.transaction.queued
    return None if found is None else [0 if isinstance(one, list) else len(one) for one in found]


def test_a_run_is_queued_and_executed_as_one_and_answers_each_command(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "XADD t 1-1 f v")
        with patch.object(lent, "append", wraps=lent.append) as append:
            assert await ticks.ask(client, "MULTI", *ADDS) == [OK, *[QUEUED] * 100]
            assert queued(client) == [100]
            assert b" multi=100 " in (await ticks.ask(ticks.connect(), "CLIENT LIST"))[0]
            [reply] = await ticks.ask(client, "EXEC")
        assert reply == b"*100\r\n" + b"".join(bulks(*(f"{MS}-{number // 2}" for number in range(100))))
        assert append.call_count <= 6
        assert [len(batch) for batch in ticks.batches()] == [2, 102]
        assert (ticks.batches()[1][0], ticks.batches()[1][-1]) == (b"MULTI", b"EXEC")
        stats = ticks.executor.stats
        assert (stats.counters(b"xadd").calls, stats.commands_processed) == (102, 2 + 1 + 1 + 1 + 100)
        assert client.session.commands_processed == 2 + 101 + 1
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(
    "commands",
    [
        ["XADD s * f v"],
        ["XADD s * f v"] * 2,
        [*["XADD s * f v"] * 3, "XADD s 1-1 f v", *["XADD s * f v"] * 3],
        ["XADD s * f v", "XADD none NOMKSTREAM * f v", "XADD s * f", "XADD s * f v"],
        ["XLEN s", *ADDS, "XLEN s", "SELECT 1", *ADDS, "XLEN s"],
        [*ADDS, "XADD s MAXLEN 5 * f v", *["XADD s MAXLEN ~ 3 * f v"] * 9, "XACK s g 1-1", "XADD s * f v"],
        ["SET a 1", *ADDS],
        [line for number in range(50) for line in ("XADD s * f v", f"XACK in g {number // 2}-1")],
        [*ADDS, "XACK in g 1-1", "XADD t * f v", "XACK in g 2-1 3-1", "XADD s 1-1 f v", "XACK in g 5-1"],
        ["CLIENT REPLY SKIP", *ADDS],
        ["REPLICAOF 127.0.0.1 1", *ADDS, "REPLICAOF NO ONE", *ADDS],
        ["ACL SETUSER default -xadd", *ADDS, "ACL SETUSER default +xadd", *ADDS],
        ["DEL s", "XGROUP CREATE s g 0 MKSTREAM", *ADDS, "XREADGROUP GROUP g c STREAMS s >", *ADDS],
    ],
)
def test_a_transaction_with_runs_does_what_its_commands_do_one_by_one(tmp_path: Path, commands: list[str]) -> None:
    begin = ["XADD s 1-1 f v", "XGROUP CREATE in g 0 MKSTREAM", *[f"XADD in {number}-1 f v" for number in range(1, 20)]]
    begin.append("XREADGROUP GROUP g c STREAMS in >")
    again = ["MULTI", *commands, "DISCARD", "MULTI", *commands, "EXEC", "XLEN s", "XLEN t", "XPENDING in g"]
    has_runs = []

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        replies = await ticks.ask(client, *begin, "MULTI", *commands)
        has_runs.append(any(queued(client) or ()))
        return [*replies, *await ticks.ask(client, "EXEC", *again)]

    assert same(tmp_path, scenario)
    assert has_runs == [False, "SET a 1" not in commands]  # nothing is kept behind a command that is refused


def test_random_transactions_do_the_same_as_their_commands_one_by_one(tmp_path: Path) -> None:
    run_counts: list[int] = []

    async def scenario(ticks: Ticks, rng: random.Random) -> list[list[bytes]]:
        clients = [ticks.connect() for _ in range(3)]
        replies: list[list[bytes]] = [[] for _ in clients]
        for _ in range(rng.randint(2, 8)):
            for client in rng.sample(clients, rng.randint(1, 3)):
                chosen = rng.sample(APPENDS, rng.choice([2, 5])) + rng.sample(LINES, rng.choice([0, 0, 1]))
                chosen += rng.choices(ACKS, k=rng.choice([0, 0, 2]))
                lines = rng.choices(chosen, k=rng.choice([2, 20, 300]))
                begin = rng.choice([["MULTI"], ["MULTI"], ["WATCH a", "MULTI"], []])
                lines = [*begin, *lines, *rng.choice([["EXEC"], ["EXEC"], ["DISCARD"], []])]
                client.send(*(line.replace("{now}", str(ticks.clock.now_ms)) for line in lines))
            await ticks.settle()
            run_counts.extend(sum(map(bool, queued(client) or ())) for client in clients)
            for client, found in zip(clients, replies, strict=True):
                found += client.replies()
            ticks.check_accounts()
            ticks.clock.now_ms += rng.choice([0, 1, 1500])
        return replies

    for seed in range(30):
        directory = tmp_path / str(seed)
        assert same(directory, lambda ticks, seed=seed: scenario(ticks, random.Random(seed)))
    assert sum(run_counts) > 100


def test_the_slow_log_has_what_was_executed_last_of_a_run_and_the_commands_beside_it(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, slowlog_log_slower_than=0)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "SLOWLOG RESET", "MULTI")
        adds = ["XADD s * f 1", "XADD s * f 2", "XADD s 1-1 f v", "XADD s * f 3"]
        await ticks.ask(client, *adds, "XLEN s")
        assert queued(client) == [4, 0]
        await ticks.ask(client, "EXEC")
        shown = [b" ".join(call.words) for call in ticks.executor.stats.slowlog.calls]
        expected = [b"XLEN s", b"XADD s * f 3", b"XADD s 1-1 f v", b"XADD s * f 2", b"MULTI", b"SLOWLOG RESET"]
        assert shown == expected
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("why", ["commit", "room"])
def test_what_fails_takes_back_each_command_of_a_run_and_leaves_what_rests_on_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, where: int
) -> None:
    if why == "room":
        for name in ("LONG_BYTES", "_BYTES_A_COMMAND"):
            monkeypatch.setattr(transaction_replies, name, 0)
        monkeypatch.setattr(spool, "MAX_SPOOLED_BYTES", 0)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        if why == "commit":
            ticks.files.fail("write", errno.ENOSPC)
        acks = [line for number in range(10) for line in (ADDS[0], f"XACK s g {number}-1")]
        commands = [*ADDS, *acks, "SELECT 1", *ADDS]
        commands.insert(0 if where == 0 else len(commands), "PING")
        client.send("MULTI", *commands, "EXEC")
        await ticks.settle()
        reply = client.replies()[-1]
        lines = reply.removeprefix(b"*222\r\n").split(b"\r\n")[:-1]
        assert lines.pop(where) == b"+PONG"
        error = b"-MISCONF" if why == "commit" else b"-ERR EXEC was undone"
        assert (len(lines), {line[: len(error)] for line in lines}) == (221, {error, b"+OK"})
        assert await ticks.ask(client, "SELECT 0", "XLEN s", "XLEN t") == [OK, b":1\r\n", b":0\r\n"]
        ticks.close()

    in_loop(body())


def test_what_wakes_others_is_seen_behind_the_transaction_alone(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        reader, watcher, client = ticks.connect(), ticks.connect(), ticks.connect()
        reader.send("XREAD BLOCK 0 STREAMS s $")
        await ticks.ask(watcher, "WATCH t", "MULTI", "PING")
        replies = await ticks.ask(client, "MULTI", *ADDS, "EXEC")
        return [replies, reader.replies(), await ticks.ask(watcher, "EXEC")]

    replies, read, watched = same(tmp_path, scenario)
    assert read[0].count(b"-0\r\n") == 1
    assert watched == [b"*-1\r\n"]
    assert replies[-1].startswith(b"*100\r\n")


def test_monitors_are_shown_each_command_of_a_run(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> int:
        client, monitor = ticks.connect(), ticks.connect()
        await ticks.ask(client, "MULTI", *ADDS)
        await ticks.ask(monitor, "MONITOR")
        await ticks.ask(client, "EXEC")
        return sum(b'"XADD"' in line for line in monitor.replies())

    assert same(tmp_path, scenario) == 100


@pytest.mark.parametrize(
    ("commands", "is_refused"),
    [
        (ADDS, True),
        (["XACK in g 1-1", *ADDS, "XACK in g 2-1"], True),
        (["XADD s * f v", "XACK in g 1-1"], True),
        (["XACK in g 1-1", "XACK in g 2-1"], False),
    ],
)
def test_neighbours_are_refused_as_a_whole_where_a_command_of_them_is_by_now(
    tmp_path: Path, commands: list[str], is_refused: bool
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XGROUP CREATE in g 0 MKSTREAM", "MULTI", "PING", *commands)
        assert queued(client) == [0, len(commands)]
        ticks.engine.refusals.reason = Refusal.DISK_NEARLY_FULL  # acknowledging goes on then
        ticks.executor.gate.refresh()
        [reply] = await ticks.ask(client, "EXEC")
        assert reply.startswith(b"-EXECABORT Transaction discarded because of: MISCONF The disk") == is_refused
        assert reply.startswith(b"*3\r\n+PONG\r\n:0\r\n") != is_refused
        assert queued(client) is None
        ticks.engine.refusals.reason = None
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("count", [1, 3000])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_transaction_that_is_refused_is_a_rejected_call_however_long_it_is(
    tmp_path: Path, count: int, one_by_one: bool
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        lines = ["XADD s * f v", "XLEN s"] if one_by_one else ["XADD s * f v"]
        await ticks.ask(client, "MULTI", *lines * count)
        ticks.engine.refusals.reason = Refusal.DISK_NEARLY_FULL
        ticks.executor.gate.refresh()
        assert (await ticks.ask(client, "EXEC"))[0].startswith(b"-EXECABORT Transaction discarded because of: MISCONF")
        ticks.engine.refusals.reason = None
        ticks.executor.gate.refresh()
        assert await ticks.ask(client, "XLEN s", "EXEC") == [b":0\r\n", b"-ERR EXEC without MULTI\r\n"]
        counters = ticks.executor.context.stats.counters(b"exec")
        assert (counters.rejected, counters.failed) == (1, 1)  # the second one has failed
        # of another transaction nothing is remembered
        await ticks.ask(client, "MULTI", "XLEN s")
        ticks.engine.refusals.reason = Refusal.DISK_NEARLY_FULL
        ticks.executor.gate.refresh()
        assert await ticks.ask(client, "EXEC") == [b"*1\r\n:0\r\n"]
        ticks.engine.refusals.reason = None
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize(("first", "why"), [("XADD s * f v", b"READONLY no"), ("XLEN s", b"MASTERDOWN no")])
def test_the_first_queued_command_that_is_refused_says_why(tmp_path: Path, first: str, why: bytes) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "MULTI", first, *["XADD s * f v", "XLEN s", "XINFO STREAM s", "DEL s"] * 2)
        ticks.executor.gate.replicate(no_writes="READONLY no", no_reads="MASTERDOWN no")
        because = b"-EXECABORT Transaction discarded because of: %b\r\n" % why
        assert await ticks.ask(client, "EXEC") == [because]
        ticks.close()

    in_loop(body())


def test_writes_of_a_run_wait_in_a_pause_of_writes(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, "MULTI", *ADDS)
        await ticks.ask(other, "CLIENT PAUSE 100000 WRITE")
        assert await ticks.ask(client, "EXEC") == []
        await ticks.ask(other, "CLIENT UNPAUSE")
        assert client.replies()[0].startswith(b"*100\r\n")
        ticks.close()

    in_loop(body())


def test_a_failed_commit_undoes_a_run_with_its_transaction(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, appendfsync="always")
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.fail("sync", errno.EIO)
        replies = await ticks.ask(client, "MULTI", *ADDS, "EXEC")
        assert (replies[:-1], replies[-1][:8]) == ([OK, *[QUEUED] * 100], b"-MISCONF")
        assert await ticks.ask(client, "XLEN s", "XLEN t") == [b":1\r\n", b":0\r\n"]
        ticks.close(save=False)

    in_loop(body())


def test_a_long_transaction_of_runs_ends_turns_and_is_logged_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "TURN_NS", 0)
    commands = [line for number in range(5) for line in (*ADDS[:10], f"XLEN {number}")] + ["XADD s * f v"] * 700

    async def scenario(ticks: Ticks) -> list[bytes]:
        client, other = ticks.connect(), ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "MULTI", *commands)
        client.send("EXEC")
        other.send("PING")
        found = []
        for _ in range(100):
            await asyncio.sleep(0)
            found += client.replies()
        return [*found, *other.replies()]

    assert [reply[:6] for reply in same(tmp_path / "same", scenario)] == [b"*755\r\n", b"+PONG\r"]
    batch = outcome(tmp_path / "once", NativeReader, scenario)[3][-1]
    assert (batch[0], batch.count(b"MULTI"), batch[-1], len(batch)) == (b"MULTI", 1, b"EXEC", 752)


def test_turns_end_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "TURN_NS", 1)

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v", "MULTI", *["XADD s * f v"] * 1000)
        assert (count := len(queued(client) or ())) >= 4
        ticks.executor.beside.sockets = sockets = Mock()  # they are looked at when a turn has ended
        await ticks.ask(client, "EXEC")
        assert sockets.read.call_count == count - 1 + 3  # three behind the last command
        ticks.close()

    in_loop(body())


def test_replies_of_a_run_that_have_no_room_in_memory_go_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONG_BYTES", "_MIN_ROOM"):
        monkeypatch.setattr(transaction_replies, name, 300)
    monkeypatch.setattr(transaction_replies, "_BYTES_A_COMMAND", 0)

    async def scenario(ticks: Ticks) -> bytes:
        client = ticks.connect()
        replies = await ticks.ask(client, "MULTI", *ADDS, "XLEN s", "EXEC")
        while len(replies) < 103:  # it comes in pieces
            await ticks.settle()
            replies += client.replies()
        return replies[-1]

    reply = same(tmp_path, scenario)
    assert reply.startswith(b"*101\r\n")
    assert reply.endswith(b"\r\n:50\r\n")


def test_a_run_does_not_keep_a_chunk_that_is_mostly_of_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    add = encode(("XADD", "s", "*", "f", "v"))

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, "MULTI")
        client.send_bytes(10 * add + encode(("ECHO", "x" * 30 * len(add))))
        await ticks.settle()
        assert queued(client) == [0] * 11
        ticks.check_accounts()
        # what keeps a chunk keeps it for the runs behind as well, and it is counted once
        before = client.session.transaction.queued_bytes
        echo = encode(("ECHO", "a"))
        chunk = 10 * add + echo + add + echo + encode(("ECHO", "x" * (26 * len(add))))
        client.send_bytes(chunk)
        await ticks.settle()
        assert queued(client) == [*[0] * 11, 10, 0, 1, 0, 0]
        echoes = 2 * request_bytes([b"ECHO", b"a"]) + request_bytes([b"ECHO", b"x" * (26 * len(add))])
        assert client.session.transaction.queued_bytes - before == len(chunk) + 2 * 240 + 11 * 112 + echoes
        ticks.check_accounts()
        client.replies()
        [reply] = await ticks.ask(client, "EXEC")
        assert reply.startswith(b"*25\r\n")
        assert client.session.transaction.queued_bytes == 0
        ticks.check_accounts()
        ticks.close()

    in_loop(body())


def test_a_transaction_with_a_run_does_not_run_again_for_a_long_reply(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *["XADD s * f " + "x" * 1000] * 3000)
        await ticks.ask(client, "MULTI", *["XADD t * f v"] * 10, "XRANGE s - +")
        assert (queued(client) or [])[0] == 10
        client.send("EXEC")
        for _ in range(50):
            await ticks.settle()
        client.replies()
        assert await ticks.ask(client, "XLEN t") == [b":10\r\n"]
        ticks.close()

    in_loop(body())


def test_runs_count_towards_the_limit_of_what_is_queued(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, client_query_buffer_limit=1 << 20)
        client = ticks.connect()
        client.send("MULTI")
        sent = 0
        while not client.session.closing:
            await ticks.ask(client, *["XADD s * f " + "x" * 100] * 100)
            sent += 1
        assert 20 < sent < 100
        assert ticks.executor.stats.query_limit_disconnections == 1
        client.leave()
        ticks.close()

    in_loop(body())
