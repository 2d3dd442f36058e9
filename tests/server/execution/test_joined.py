"""XADDs of several clients that are executed together: each client sees what it would see by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from riverbed.server.execution.line import request_queue
from riverbed.server.protocol import request_reader
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.store.databases import lent
from riverbed.store.format.streams import key_key
from riverbed.store.wire import Run, append
from tests.support.in_process import PassingClock
from tests.support.runs import APPENDS, LINES, bulks, outcome, same
from tests.support.ticks import Client, Ticks, in_loop

MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def has_native() -> None:
    import_module("riverbed.store.wire.native")  # it must have been built


async def told(ticks: Ticks, lines: list[str], clients: list[Client] | None = None) -> list[list[bytes]]:
    """The replies to each client, when each sends one line, all in one tick."""
    clients = [ticks.connect() for _ in lines] if clients is None else clients
    for client, line in zip(clients, lines, strict=True):
        client.send(line)
    await ticks.settle()
    ticks.check_accounts()
    assert not any(client.session.in_line or client.session.input.has_unread for client in clients)
    return [client.replies() for client in clients]


def test_they_are_executed_as_one_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        await told(ticks, ["XADD s 1-1 f v"])
        with patch.object(lent, "append", wraps=lent.append) as append:
            replies = await told(ticks, ["XADD s * f v"] * 100)
        assert append.call_count == 2  # the first call finds that the stream has to be lent
        return replies

    found = outcome(tmp_path, NativeReader, scenario)
    assert found[0] == [bulks(f"{MS}-{number}") for number in range(100)]
    assert found[1] == {b"xadd": (101, 0, 0)}
    assert found[2] == 101


def test_a_few_clients_are_served_one_by_one(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        await told(ticks, ["XADD s 1-1 f v"])
        with patch.object(lent, "append", wraps=lent.append) as append:
            replies = await told(ticks, ["XADD s * f v"] * 7)
        append.assert_not_called()
        return replies

    assert outcome(tmp_path, NativeReader, scenario)[0] == [bulks(f"{MS}-{number}") for number in range(7)]


def test_they_are_executed_one_by_one_where_memory_is_too_short_to_join_them(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        with patch.object(request_queue, "join", side_effect=MemoryError):
            return await told(ticks, ["XADD s * f v"] * 20)

    assert outcome(tmp_path, NativeReader, scenario)[0] == [bulks(f"{MS}-{number}") for number in range(20)]


async def random_scenario(ticks: Ticks, rng: random.Random) -> list[object]:
    clients = [ticks.connect() for _ in range(rng.choice([4, 9, 20, 60]))]
    replies: list[list[bytes]] = [[] for _ in clients]
    for _ in range(rng.randint(2, 12)):
        simple = rng.random()
        for client in rng.sample(clients, rng.randint(1, len(clients))):
            if rng.random() < simple:
                line = rng.choice(["XADD a * f v", "XADD b * f v g w", "XADD a {now}-* f v"])
            else:
                line = rng.choice(rng.choice([APPENDS, APPENDS, LINES]))
            times = rng.choice([1] * 9 + [2])
            client.send(*[line.replace("{now}", str(ticks.clock.now_ms))] * times)
        await ticks.settle()
        for client, found in zip(clients, replies, strict=True):
            found += client.replies()
        ticks.check_accounts()
        ticks.clock.now_ms += rng.choice([0, 0, 1, 1500])
    sessions = [client.session for client in clients]
    figures = [(one.commands_processed, one.last_command, one.bytes_in, one.bytes_out) for one in sessions]
    return [replies, figures]


def test_random_requests_of_many_clients_do_the_same_as_one_by_one(tmp_path: Path) -> None:
    seed = os.environ.get("RIVERBED_SEED", "1")
    seeds = random.Random(None if seed == "random" else int(seed))
    for number in range(60):
        chosen = seeds.getrandbits(32)
        replies = same(
            tmp_path / str(number),
            lambda ticks, chosen=chosen: random_scenario(ticks, random.Random(chosen)),
            stream_node_max_entries=(3, 103, 0)[number % 3],
        )
        assert replies, chosen


def test_clients_of_other_databases_are_executed_in_their_own(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        clients = [ticks.connect() for _ in range(30)]
        for client in clients[10:20]:
            await ticks.ask(client, "SELECT 1")
        await told(ticks, ["XADD s 1-1 f v"] * 2, clients[9:11])
        await told(ticks, ["XADD s * f v"] * 30, clients)
        return await told(ticks, ["XLEN s"] * 30, clients)

    assert same(tmp_path, scenario) == [[b":21\r\n"]] * 10 + [[b":11\r\n"]] * 10 + [[b":21\r\n"]] * 10


def test_a_reader_that_waits_is_served_in_between(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        reader = ticks.connect()
        await told(ticks, ["XADD s 1-1 f v", "XADD t 1-1 f v"])
        reader.send("XREAD BLOCK 0 COUNT 10 STREAMS s $")
        await ticks.settle()
        added = await told(ticks, [*["XADD t * f v"] * 10, *["XADD s * f v"] * 10])
        return [reader.replies(), *added]

    read, *added = same(tmp_path, scenario)
    assert [len(one) for one in added] == [1] * 20
    assert b"".join(read).count(b"$1\r\nv") == 1


def test_what_is_refused_is_refused_to_its_client_alone(tmp_path: Path) -> None:
    lines = ["XADD s * f v"] * 30
    lines[14] = "XADD s 1-1 f v"
    lines[27] = "XADD s * f"

    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        await told(ticks, ["XADD s 1-1 f v"])
        return await told(ticks, lines)

    replies = same(tmp_path, scenario)
    assert [at for at, [reply] in enumerate(replies) if reply.startswith(b"-ERR")] == [14, 27]


def test_a_client_that_is_in_a_transaction_keeps_its_request_for_it(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        clients = [ticks.connect() for _ in range(20)]
        await ticks.ask(clients[0], "XADD s 1-1 f v")
        await ticks.ask(clients[9], "MULTI")
        return await told(ticks, ["XADD s * f v"] * 20, clients)

    replies = same(tmp_path, scenario)
    assert replies[9] == [b"+QUEUED\r\n"]
    assert replies[19] == bulks(f"{MS}-18")


def test_a_request_that_arrives_in_two_pieces_is_one(tmp_path: Path) -> None:
    line = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n"

    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        clients = [ticks.connect() for _ in range(20)]
        await ticks.ask(clients[0], "XADD s 1-1 f v")
        for at, client in enumerate(clients):
            client.send_bytes(line[:20] if at == 9 else line)
        await ticks.settle()
        first = [client.replies() for client in clients]
        for client in clients:
            client.send_bytes(line[20:] if client is clients[9] else line)
        await ticks.settle()
        return first + [client.replies() for client in clients]

    replies = same(tmp_path, scenario)
    assert [len(one) for one in replies] == [1] * 9 + [0] + [1] * 30


def test_a_client_that_has_sent_more_keeps_its_order(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        clients = [ticks.connect() for _ in range(20)]
        await ticks.ask(clients[0], "XADD s 1-1 f v")
        for client in clients:
            client.send("XADD s * f v")
        clients[9].send("XLEN s", "XADD s * f v")
        await ticks.settle()
        ticks.check_accounts()
        return [client.replies() for client in clients]

    replies = same(tmp_path, scenario)
    assert [len(one) for one in replies] == [1] * 9 + [3] + [1] * 10


def test_requests_that_were_put_back_come_before_what_has_arrived_since(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        clients = [ticks.connect() for _ in range(20)]
        await ticks.ask(clients[0], "XADD s 1-1 f v")
        ticks.executor.fast_path.most_requests = 4
        for client in clients:
            client.send("PING", "XADD s * n 1")
        await asyncio.sleep(0)  # a tick, with time for a few of them
        assert any(client.session.backlog and not client.session.input.has_unread for client in clients)
        for client in clients:
            client.send("XADD s * n 2")
        await ticks.settle()
        return [client.replies() for client in clients]

    for pong, *ids in same(tmp_path, scenario):
        assert pong == b"+PONG\r\n"
        assert len(ids) == 2
        assert int(ids[0].split(b"-")[1]) < int(ids[1].split(b"-")[1])


def test_a_commit_that_fails_answers_each_client(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        await told(ticks, ["XADD s 1-1 f v"])
        ticks.files.fail("write", errno.ENOSPC)
        return await told(ticks, ["PING", *["XADD s * f v"] * 20, "PING"])

    replies = same(tmp_path, scenario)
    assert [[reply[:8] for reply in one] for one in replies[1:-1]] == [[b"-MISCONF"]] * 20


def test_requests_that_meet_a_defect_are_executed_one_by_one(tmp_path: Path) -> None:
    lengths: list[int] = []

    def broken(run: Run, *others: Any) -> Any:
        """The entries of several clients are appended, and lost with this error: they have to be taken back."""
        found = append(run, *others)
        lengths.append(len(run))
        if found[0] > 1:
            raise RuntimeError("planted")
        return found

    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        await told(ticks, ["XADD s 1-1 f v"])
        with patch.object(lent, "append", broken):
            return await told(ticks, ["XADD s * f v"] * 10) + await told(ticks, ["XLEN s"])

    found = outcome(tmp_path, NativeReader, scenario)
    assert found[0] == [*(bulks(f"{MS}-{seq}") for seq in range(10)), [b":11\r\n"]]
    assert found[1][b"xadd"] == (11, 0, 0)
    assert 10 in lengths


def test_a_stream_with_a_damaged_row_is_refused_to_its_clients_alone(tmp_path: Path) -> None:
    """Nothing is undone for them: the entries that no log has yet stay where they are."""

    async def scenario(ticks: Ticks) -> tuple[list[list[bytes]], bool]:
        await told(ticks, ["XADD s 1-1 f v", "XADD t 1-1 f v"])
        ticks.engine.checkpoint()
        ticks.keep_transaction()
        txn = ticks.engine.txn
        txn.write_back()
        txn.databases[0].forget_cached()
        key = key_key(txn.databases[0].keyspace_no, b"t")
        row = txn.lmdb.get(key, db=txn.handles["keys"])
        assert row is not None
        txn.lmdb.put(key, row[:-1] + b"!", db=txn.handles["keys"])
        before = txn.lmdb
        replies = await told(ticks, ["XADD t * f v" if at in (0, 14, 29) else "XADD s * f v" for at in range(30)])
        return replies, txn.lmdb is before

    replies, is_same_transaction = same(tmp_path, scenario)
    assert is_same_transaction
    assert [at for at, [reply] in enumerate(replies) if reply.startswith(b"-ERR the row of key")] == [0, 14, 29]
    assert replies[28] == bulks(f"{MS}-26")


def test_the_slow_log_names_the_client_of_the_last_one(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, clock=PassingClock(), slowlog_log_slower_than=1)
        clients = [ticks.connect() for _ in range(9)]
        await told(ticks, ["XADD s 1-1 f v", "SLOWLOG RESET"])
        for at, client in enumerate(clients):
            client.session.peer.address = f"client {at}"
        await told(ticks, [f"XADD s * f {at}" for at in range(9)], clients)
        [call] = [one for one in ticks.executor.stats.slowlog.calls if one.words[0] == b"XADD"]
        assert call.words == [b"XADD", b"s", b"*", b"f", b"8"]
        assert call.address == b"client 8"
        ticks.close()

    with patch.object(request_reader, "new_plain_reader", NativeReader):
        in_loop(body())
