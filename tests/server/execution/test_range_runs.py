"""XRANGEs of one entry each that are pipelined: what they answer is what one request after the other would."""

from __future__ import annotations

import errno
import os
import random
from itertools import count
from pathlib import Path

import pytest

from riverbed.server.commands.replay import unconnected_session
from riverbed.server.commands.request import Request
from riverbed.server.commands.streams.range_runs import xrange_each
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.server.protocol.replies import FirstReplies
from riverbed.store.format.streams import key_key
from riverbed.store.wire import APPENDED, Ranges, parse
from tests.server.execution.test_runs import MS, Scenario, outcome, same
from tests.support.in_process import HandClock
from tests.support.raw import encode
from tests.support.ticks import Ticks, in_loop

FILLED = [f"XADD {key} {number}-{number} f {key}{number}" for number in range(1, 10) for key in "abc"]


def asking(*lines: str, before: tuple[str, ...] = (), passed_ms: int = 0) -> Scenario:
    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *FILLED, *before)
        ticks.engine.checkpoint()
        ticks.engine.txn.write_back()
        for db in ticks.engine.txn.databases:
            db.forget_cached()
        ticks.clock.now_ms += passed_ms
        return await ticks.ask(client, *lines)

    return scenario


def reading(key: str, low: object = "-", high: object = "+") -> str:
    return f"XRANGE {key} {low} {high} COUNT 1"


def answer(key: str, number: int) -> bytes:
    value = f"{key}{number}"
    return b"*1\r\n*2\r\n$%d\r\n%d-%d\r\n*2\r\n$1\r\nf\r\n$%d\r\n%b\r\n" % (
        len(f"{number}-{number}"),
        number,
        number,
        len(value),
        value.encode(),
    )


def test_ranges_are_executed_as_one_and_answer_each_request(tmp_path: Path) -> None:
    scenario = asking(
        *(reading("a", 3), reading("a"), reading("b", "4-4", "4-4"), reading("none"), reading("a", "4-5")),
        *(reading("a", "9-9"), reading("a", "9-10"), reading("a", 5, 4), reading("c", 0, 0), reading("a", 2, 2)),
    )
    found = [answer("a", 3), answer("a", 1), answer("b", 4), b"*0\r\n", answer("a", 5), answer("a", 9)]
    assert same(tmp_path / "same", scenario) == [*found, b"*0\r\n", b"*0\r\n", b"*0\r\n", answer("a", 2)]
    calls, processed = outcome(tmp_path / "once", NativeReader, scenario)[1:3]
    assert calls[b"xrange"] == (10, 0, 0)
    assert processed == len(FILLED) + 10


def test_deleted_and_trimmed_entries_are_not_found(tmp_path: Path) -> None:
    before = ("XDEL a 1-1 5-5", "XTRIM b MAXLEN 3", "XTRIM c MAXLEN 0", "XDEL b 8-8")
    lines = [reading(key, low, high) for key in "abc" for low in ("-", 1, 5, "8-8") for high in ("+", 5, 1)]
    assert same(tmp_path, asking(*lines, before=before))[0] == answer("a", 2)


def test_what_the_requests_around_them_change_is_seen(tmp_path: Path) -> None:
    pair = [reading("a"), reading("a", 9)]
    changes = ("XDEL a 1-1", "DEL a", "XADD a 20-1 f v", "RENAME b a", "FLUSHALL", "XADD a 30-1 f v", "SELECT 1")
    scenario = asking(*pair, *(line for change in changes for line in (change, *pair)), "MULTI", *pair, "EXEC")
    assert same(tmp_path, scenario)[:2] == [answer("a", 1), answer("a", 9)]


def test_expired_streams_are_deleted_once(tmp_path: Path) -> None:
    lines = [reading(key, low) for low in ("-", 2) for key in "abcaab"]
    before = ("PEXPIRE a 100", "PEXPIRE b 1000000", "XREAD BLOCK 0 STREAMS nothing 0")
    expected = [b"*0\r\n" if key == "a" else answer(key, number) for number in (1, 2) for key in "abcaab"]
    assert same(tmp_path / "same", asking(*lines, before=before[:2], passed_ms=101)) == expected
    batches = outcome(tmp_path / "once", NativeReader, asking(*lines, before=before[:2], passed_ms=101))[3]
    assert [line for batch in batches for line in batch].count(b"DEL a") == 1


def test_clients_that_wait_for_an_expired_stream_are_told(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        client, waiter = ticks.connect(), ticks.connect()
        await ticks.ask(client, *FILLED, "XGROUP CREATE a g $", "PEXPIRE a 100")
        await ticks.ask(waiter, "XREADGROUP GROUP g w BLOCK 0 STREAMS a >")
        ticks.clock.now_ms += 101
        return [await ticks.ask(client, reading("b"), reading("a"), reading("c")), waiter.replies()]

    replies, told = same(tmp_path, scenario)
    assert replies == [answer("b", 1), b"*0\r\n", answer("c", 1)]
    assert told[0].startswith(b"-NOGROUP")


@pytest.mark.parametrize("sizes", [(1, 9, 70_000), (200_000, 1, 70_000, 5), (2_000_000, 3)])
def test_large_entries_among_them(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    before = tuple(f"XADD {key} 1{number}-1 f {'x' * size}" for number, size in enumerate(sizes) for key in "ad")
    lines = [reading(key, low) for low in ("-", 10, 11, 12, 13, 2) for key in "adbad"]
    same(tmp_path, asking(*lines, before=before))


@pytest.mark.parametrize(("size", "least", "most"), [(100_000, 0, 0), (30_000, 2, 2), (3000, 20, 40), (10, 128, 128)])
def test_replies_that_are_made_together_are_not_long(tmp_path: Path, size: int, least: int, most: int) -> None:
    """What a client does not read waits in memory."""
    in_loop(ask_for_128(tmp_path, HandClock(), size, least, most))


@pytest.mark.parametrize(
    ("size", "step_s", "done"), [(10, 0.0001, 128), (10, 0.0006, 15), (10, 0.0004, 30), (10_000, 0.0004, 2)]
)
def test_they_end_when_they_have_taken_long(tmp_path: Path, size: int, step_s: float, done: int) -> None:
    """Others may wait for their turn: fifteen are read between two looks at the clock, or one that may be large."""

    class Clock(HandClock):
        def monotonic(self) -> float:
            return step_s * next(looks)

    looks = count()
    in_loop(ask_for_128(tmp_path, Clock(), size, done, done))


async def ask_for_128(directory: Path, clock: HandClock, size: int, least: int, most: int) -> None:
    """Have 128 entries with a value of `size` bytes read in one piece; fails unless that ends in time."""
    ticks = Ticks(directory, clock=clock)
    await ticks.ask(ticks.connect(), *(f"XADD s {number}-0 f {'x' * size}" for number in range(1, 130)))
    ticks.engine.checkpoint()  # one that goes on in a thread looks at the clock, too
    [ranges] = parse(APPENDED, b"".join(encode(tuple(reading("s", n).split())) for n in range(1, 129))) or []
    assert isinstance(ranges, Ranges)
    request = Request(unconnected_session(ticks.engine.txn.databases[0]), ticks.engine.txn, ticks.executor.context)
    request.run, request.now_ms = ranges, MS
    reply = xrange_each(request)
    done = reply.done if isinstance(reply, FirstReplies) else len(ranges)
    assert least <= done <= most
    assert reply[0].count(b"*1\r\n*2\r\n") == done
    ticks.close()


def test_a_damaged_entry_fails_its_request_alone(tmp_path: Path) -> None:
    """Nothing is undone for it: the write that no log has yet stays."""

    async def scenario(ticks: Ticks) -> tuple[list[bytes], int]:
        client = ticks.connect()
        await ticks.ask(client, *FILLED)
        ticks.engine.checkpoint()
        txn = ticks.engine.txn
        prefix = txn.databases[0].stream(b"b", 0)
        assert prefix is not None
        key = prefix.prefix + (3 << 64 | 3).to_bytes(16, "big")
        row = txn.lmdb.get(key, db=txn.handles["entries"])
        assert row is not None
        txn.lmdb.put(key, row[:-6] + b"!" + row[-5:], db=txn.handles["entries"])
        before = txn.lmdb
        ticks.keep_transaction()
        replies = await ticks.ask(client, "XADD a 20-0 f v", *(reading(key, 3) for key in "abcbab"), reading("a", 20))
        return replies, txn.lmdb is before

    replies, is_same_transaction = same(tmp_path, scenario)
    assert is_same_transaction
    assert [reply[:9] for reply in replies[1:7]] == [
        b"-ERR entr" if key == "b" else answer(key, 3)[:9] for key in "abcbab"
    ]
    assert replies[7].startswith(b"*1\r\n*2\r\n$4\r\n20-0")


def test_a_damaged_row_of_a_stream_fails_its_requests_alone(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *FILLED)
        ticks.engine.checkpoint()
        txn = ticks.engine.txn
        txn.write_back()
        txn.databases[0].forget_cached()
        key = key_key(txn.databases[0].keyspace_no, b"b")
        row = txn.lmdb.get(key, db=txn.handles["keys"])
        assert row is not None
        txn.lmdb.put(key, row[:-1] + b"!", db=txn.handles["keys"])
        return await ticks.ask(client, *(reading(key) for key in "abcbab"))

    replies = same(tmp_path, scenario)
    assert [reply[:5] for reply in replies] == [b"-ERR " if key == "b" else b"*1\r\n*" for key in "abcbab"]


def test_a_commit_that_fails_answers_each_request(tmp_path: Path) -> None:
    lines = ["XADD a * f v", reading("a"), reading("none"), reading("b"), "PING", *[reading("a", 3)] * 2]

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *FILLED)
        ticks.files.fail("write", errno.ENOSPC)
        return await ticks.ask(client, *lines)

    replies = same(tmp_path, scenario)
    assert [reply[:8] for reply in replies] == [b"+PONG\r\n" if line == "PING" else b"-MISCONF" for line in lines]


def test_random_ranges_of_random_streams(tmp_path: Path) -> None:
    seed = os.environ.get("RIVERBED_SEED", "1")
    for number in range(20):
        rng = random.Random(f"{seed} {number}")
        before = [f"XDEL {rng.choice('abc')} {n}-{n}" for n in rng.sample(range(1, 10), 4)]
        before += rng.sample(["XTRIM a MAXLEN 4", "XTRIM b MINID 3", "XSETID c 50-0", "PEXPIRE a 5", "DEL b"], 2)
        edges: list[object] = ["-", "+", *range(11), *(f"{n}-{n}" for n in range(11)), f"{MS}"]
        lines = [reading(rng.choice("abcd"), rng.choice(edges), rng.choice(edges)) for _ in range(200)]
        same(tmp_path / str(number), asking(*lines, before=tuple(before), passed_ms=rng.choice([0, 10])))
