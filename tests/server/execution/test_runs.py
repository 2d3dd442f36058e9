"""Runs of XADD: whatever happens around them, clients, log and tables see what one request after the other would do."""

from __future__ import annotations

import errno
import os
import random
import tracemalloc
from importlib import import_module
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from riverbed.server.commands import load_commands
from riverbed.server.commands.dispatch import fast_commands
from riverbed.server.commands.groups import claim_runs
from riverbed.server.commands.request import Request
from riverbed.server.commands.table import COMMANDS
from riverbed.server.execution.fast_path import MAX_REQUESTS_A_TICK
from riverbed.server.protocol import request_reader
from riverbed.server.protocol.native_reader import NativeReader
from riverbed.server.protocol.replies import Reply
from riverbed.server.stats.stats import Stats
from riverbed.store.databases import lent, transaction
from riverbed.store.databases.lent import PART_BYTES, PUT_BATCH
from riverbed.store.databases.transaction import FEW_LENT_BYTES
from riverbed.store.engine import Engine
from riverbed.store.wire import APPENDED, Claims, Mix, Run, parse
from tests.support.in_process import PassingClock
from tests.support.raw import encode
from tests.support.runs import ACKS, APPENDS, CLAIMS, LINES, RANGES, Scenario, asked, bulks, outcome, same
from tests.support.ticks import Ticks, in_loop

MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def has_native() -> None:
    import_module("riverbed.store.wire.native")  # it must have been built


# -- the same as words -------------------------------------------------------------------------------------------------


def test_a_run_is_executed_as_one_and_answers_each_request(tmp_path: Path) -> None:
    with patch.object(lent, "append", wraps=lent.append) as append:
        found = outcome(tmp_path, NativeReader, asked(*["XADD s * f v", "XADD t * f v"] * 50))
    assert found[0] == bulks(*(f"{MS}-{number // 2}" for number in range(100)))
    assert found[1] == {b"xadd": (100, 0, 0)}
    assert found[2] == 100
    assert append.call_count <= 6  # the first entry of each stream is appended by itself


async def random_scenario(ticks: Ticks, rng: random.Random) -> list[list[bytes]]:
    clients = [ticks.connect() for _ in range(4)]
    replies: list[list[bytes]] = [[] for _ in clients]
    for _ in range(rng.randint(3, 12)):
        for _ in range(rng.randint(1, 4)):
            client = rng.choice(clients)
            lines: list[str] = []
            if rng.random() < 0.4:  # many streams in one run, and others between them
                chosen = rng.sample(APPENDS, rng.choice([2, 5, len(APPENDS)])) + rng.sample(
                    LINES, rng.choice([0, 0, 1])
                )
                chosen += rng.choices(ACKS, k=rng.choice([0, 1, 4]))
                lines += rng.choices(chosen, k=rng.choice([3, 20, 100]))
            if rng.random() < 0.4:
                lines += rng.choices(RANGES, k=rng.choice([2, 9, 150]))
            if rng.random() < 0.4:
                lines += ["XREADGROUP GROUP g d COUNT 9 STREAMS a >"] * rng.choice([0, 1])
                lines += rng.choices(rng.sample(CLAIMS, rng.choice([2, 4])) + CLAIMS[:6], k=rng.choice([3, 20]))
            for _ in range(rng.randint(1, 6)):
                line = rng.choice(LINES)
                lines += [line] * (rng.choice([1, 1, 2, 5, 70]) if line.lower().startswith("xadd") else 1)
            client.send(*(line.replace("{now}", str(ticks.clock.now_ms)) for line in lines))
        await ticks.settle()
        for client, found in zip(clients, replies, strict=True):
            found += client.replies()
        ticks.check_accounts()
        ticks.clock.now_ms += rng.choice([0, 0, 1, 1500])
    return replies


def test_random_pipelines_do_the_same_as_their_requests_one_by_one(tmp_path: Path) -> None:
    seed = os.environ.get("RIVERBED_SEED", "1")
    seeds = random.Random(None if seed == "random" else int(seed))
    for number in range(60):
        chosen = seeds.getrandbits(32)
        settings = {
            "stream_node_max_entries": (3, 103, 3, 103, 0)[number % 5],
            "stream_node_max_bytes": 60 + 4000 * (number % 3),
        }
        replies = same(
            tmp_path / str(number),
            lambda ticks, chosen=chosen: random_scenario(ticks, random.Random(chosen)),
            **settings,
        )
        assert replies, chosen


def test_a_mix_is_executed_as_one_and_answers_in_the_order_of_its_requests(tmp_path: Path) -> None:
    begin = ["XGROUP CREATE s g 0 MKSTREAM", *["XADD s * f v"] * 20, "XADD t * f v", "XREADGROUP GROUP g c STREAMS s >"]
    pairs = [line for seq in range(20) for line in ("XADD t * f v", f"XACK s g {MS}-{seq}")]
    again = [f"XACK s g {MS}-0", "XADD s * f v", f"XACK s g {MS}-1", f"XACK s g {MS}-999"]

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *begin)
        return await ticks.ask(client, *pairs, *again)

    replies = same(tmp_path / "same", scenario)
    ids = bulks(*(f"{MS}-{number}" for number in range(1, 21)))
    expected = [reply for one in ids for reply in (one, b":1\r\n")]
    assert replies == [*expected, b":0\r\n", *bulks(f"{MS}-20"), b":0\r\n", b":0\r\n"]
    logged = outcome(tmp_path / "once", NativeReader, scenario)[3]
    [acks] = [line for batch in logged for line in batch if line.startswith(b"XACK")]
    assert acks.split() == [b"XACK", b"s", b"g", *(f"{MS}-{seq}".encode() for seq in range(20))]


@pytest.mark.parametrize("last", ["XADD s * f v", "XACK s g 1-1", "XADD s 1-1 f v"])
def test_a_client_of_a_mix_is_shown_with_its_last_command(tmp_path: Path, last: str) -> None:
    async def scenario(ticks: Ticks) -> bytes:
        client = ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", "XACK s g 1-1", "XADD s * f v", "XACK s g 1-1", last)
        return client.session.last_command

    assert same(tmp_path, scenario) == last[:4].lower().encode()


def test_a_stream_that_is_lent_stays_lent_while_its_entries_are_acknowledged(tmp_path: Path) -> None:
    lent_counts: list[int] = []

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, "XGROUP CREATE s g 0 MKSTREAM", "XADD s 1-1 f v", "XADD s 2-1 f v")
        await ticks.ask(client, "XREADGROUP GROUP g c STREAMS s >", "XADD s 3-1 f v", "XADD s 4-1 f v")
        replies = await ticks.ask(client, "XACK s g 1-1", "XADD s 5-1 f v", "XACK s g 9-9 2-1", "XACK s none 1-1")
        lent_counts.append(ticks.engine.txn.databases[0].lent_count)
        return replies + await ticks.ask(client, "XADD s 6-1 f v", "XACK s g 2-1", "XPENDING s g", "XRANGE s - +")

    assert same(tmp_path, scenario)[:4] == [b":1\r\n", *bulks("5-1"), b":1\r\n", b":0\r\n"]
    assert lent_counts == [0, 1]  # without runs no stream is ever lent


def test_a_mix_ends_where_a_client_waits_for_its_stream(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        writer, reader = ticks.connect(), ticks.connect()
        await ticks.ask(writer, "XGROUP CREATE s g 0 MKSTREAM", *["XADD s * f v"] * 9, "XADD t * f v")
        await ticks.ask(writer, "XREADGROUP GROUP g c STREAMS s >")
        reader.send("XREADGROUP GROUP g d BLOCK 0 COUNT 1 STREAMS s >")
        await ticks.settle()
        acks = [f"XACK s g {MS}-{seq}" for seq in range(9)]
        writer.send(
            *acks[:3], "XADD t * f v", acks[3], "XADD s * f v", acks[3], "XADD s * f v", *acks[3:], "XADD t * f v"
        )
        await ticks.settle()
        return [writer.replies(), reader.replies()]

    written, read = same(tmp_path, scenario)
    assert [reply for reply in written if reply.startswith(b":")] == [b":1\r\n"] * 4 + [b":0\r\n"] * 2 + [b":1\r\n"] * 5
    assert len(read) == 1


def test_a_mix_that_meets_a_defect_is_executed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first half of it did is undone: the entries are in the stream and in the log once."""

    def append_and_fail(request: Request) -> Reply:
        assert isinstance(request.run, Mix) and request.run.adds is not None
        assert request.db.append_run(request.run.adds, request.now_ms)[0] == 4
        mixes.append(request.run)
        raise RuntimeError("planted")

    mixes: list[Mix] = []

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(
            client, "XGROUP CREATE s g 0 MKSTREAM", *["XADD s * f v"] * 4, "XREADGROUP GROUP g c STREAMS s >"
        )
        lines = [line for seq in range(4) for line in ("XADD s * f v", f"XACK s g {MS}-{seq}")]
        monkeypatch.setattr(ticks.executor.fast_path.commands[Mix], "handler", append_and_fail)
        replies = await ticks.ask(client, *lines)
        assert len(mixes) == 1
        assert replies == [
            reply for one in bulks(*(f"{MS}-{seq}" for seq in range(4, 8))) for reply in (one, b":1\r\n")
        ]
        assert await ticks.ask(client, "XLEN s", "XPENDING s g") == [b":8\r\n", b"*4\r\n:0\r\n$-1\r\n$-1\r\n*-1\r\n"]
        logged = [line for batch in ticks.batches() for line in batch]
        assert sum(line.startswith(b"XADD") for line in logged) == 8
        ticks.close()

    in_loop(body())


CLAIMED = [
    "XGROUP CREATE s g 0 MKSTREAM",
    *[f"XADD s {number}-0 f v" for number in range(1, 30)],
    "XREADGROUP GROUP g c COUNT 20 STREAMS s >",
]


def claims_of(*numbers: int, consumer: str = "d", min_idle: int = 0) -> list[str]:
    return [f"XCLAIM s g {consumer} {min_idle} {number}-0 JUSTID" for number in numbers]


def claimed(*numbers: int | None) -> list[bytes]:
    """The replies of claims with JUSTID of one entry each, None for one that was not taken."""
    texts = [b"" if number is None else b"%d-0" % number for number in numbers]
    return [b"*1\r\n$%d\r\n%b\r\n" % (len(text), text) if text else b"*0\r\n" for text in texts]


def claiming(*lines: str, before: tuple[str, ...] = (), passed_ms: int = 0) -> Scenario:
    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *CLAIMED, *before)
        ticks.clock.now_ms += passed_ms
        return await ticks.ask(client, *lines)

    return scenario


def test_claims_are_executed_as_one_and_answer_each_request(tmp_path: Path) -> None:
    numbers = [7, 3, 15, 25, 1, 20, 99]
    scenario = claiming(*claims_of(*numbers), "XPENDING s g")
    replies = same(tmp_path / "same", scenario)
    assert replies[:-1] == claimed(7, 3, 15, None, 1, 20, None)
    assert b":20\r\n" in replies[-1]
    found = outcome(tmp_path / "once", NativeReader, scenario)
    assert found[1][b"xclaim"] == (7, 0, 0)
    [line] = [line for line in found[3][-1] if line.startswith(b"XCLAIM")]
    assert line.split()[5:-8] == [b"7-0", b"3-0", b"15-0", b"1-0", b"20-0"]


def test_claims_of_entries_with_other_counts_are_other_lines_of_the_log(tmp_path: Path) -> None:
    scenario = claiming(*claims_of(2, 3, 4, 5), before=("XCLAIM s g e 0 3-0 4-0 RETRYCOUNT 8",))
    assert same(tmp_path / "same", scenario) == claimed(2, 3, 4, 5)
    batch = outcome(tmp_path / "once", NativeReader, scenario)[3][-1]
    lines = [line.split() for line in batch if line.startswith(b"XCLAIM")]
    assert [(line[5:-8], line[-5]) for line in lines] == [
        ([b"2-0"], b"1"),
        ([b"3-0", b"4-0"], b"8"),
        ([b"5-0"], b"1"),
    ]


def test_claims_take_what_is_idle_for_long_enough_and_create_their_consumer(tmp_path: Path) -> None:
    before = ("XCLAIM s g c 0 2-0 JUSTID TIME 1", "XNACK s g FAIL IDS 1 4-0")
    found = same(tmp_path, claiming(*claims_of(1, 2, 3, 4, min_idle=5000), "XINFO CONSUMERS s g", before=before))
    assert found[:4] == claimed(None, 2, None, 4)
    found = same(tmp_path / "none", claiming(*claims_of(1, 3, min_idle=5000), "XINFO CONSUMERS s g", passed_ms=4999))
    assert found[:2] == claimed(None, None)
    assert b"$1\r\nd\r\n" in found[2]
    found = same(tmp_path / "all", claiming(*claims_of(1, 3, min_idle=5000), passed_ms=5000))
    assert found == claimed(1, 3)
    # the consumer is in the log before the stream is deleted
    assert same(tmp_path / "gone", claiming(*claims_of(1, 3, min_idle=5000), "DEL s"))[2] == b":1\r\n"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((1, 2, 3, 4), [1, 2, None, 4]),  # 3-0 was deleted
        ((3, 1, 3, 2), [None, 1, None, 2]),
        ((5, 6, 7, 6), [5, 6, 7, 6]),  # 6-0 was given back
        ((8, 9, 8, 9, 9, 10), [8, 9, 8, 9, 9, 10]),
        ((6, 3), [6, None]),
    ],
)
def test_claims_that_are_no_plain_case_are_executed_by_themselves(
    tmp_path: Path, numbers: tuple[int, ...], expected: list[int | None]
) -> None:
    scenario = claiming(*claims_of(*numbers), "XPENDING s g - + 30", before=("XDEL s 3-0", "XNACK s g FAIL IDS 1 6-0"))
    assert same(tmp_path, scenario)[:-1] == claimed(*expected)


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ((), ()),
        (("XDEL s 3-0 12-0",), (3, 12)),
        (("XTRIM s MAXLEN 24",), (1, 2, 3, 4, 5)),
        (("XDEL s 3-0", "SAVE", "XADD s 99-0 f v"), (3,)),
    ],
)
def test_claims_of_entries_that_were_deleted_since_the_last_checkpoint(
    tmp_path: Path, changes: tuple[str, ...], gone: tuple[int, ...]
) -> None:
    numbers = [7, 3, 15, 1, 20, 12, 9, 10, 11, 5, 2, 14]
    scenario = claiming(*claims_of(*numbers), "XPENDING s g - + 30", before=("SAVE", *changes))
    assert same(tmp_path, scenario)[:-1] == claimed(*(None if number in gone else number for number in numbers))


def test_claims_that_cannot_be_executed_are_refused_one_by_one(tmp_path: Path) -> None:
    refused = [
        *["XCLAIM s h d 0 1-0 JUSTID"] * 3,
        *["XCLAIM t g d 0 1-0 JUSTID"] * 2,
        *["XCLAIM s g d x 1-0 JUSTID"] * 2,
    ]
    replies = same(tmp_path, claiming(*refused, "XINFO CONSUMERS s g"))
    assert [reply[:8] for reply in replies[:-1]] == [b"-NOGROUP"] * 5 + [b"-ERR Inv"] * 2
    assert b"$1\r\nd\r\n" not in replies[-1]


def test_claims_that_meet_a_defect_are_executed_one_by_one(tmp_path: Path) -> None:
    """What the first of them did is undone: it is in the log once."""

    async def body() -> None:
        ticks = Ticks(tmp_path)
        client = ticks.connect()
        await ticks.ask(client, *CLAIMED, "XDEL s 3-0")
        with patch.object(claim_runs, "FirstReplies", side_effect=RuntimeError("planted")) as first:
            assert await ticks.ask(client, *claims_of(1, 2, 3, 4)) == claimed(1, 2, None, 4)
        assert first.call_count == 1
        assert b"$1\r\nd\r\n$1\r\n3\r\n" in (await ticks.ask(client, "XPENDING s g"))[0]
        logged = [line for batch in ticks.batches() for line in batch if line.startswith(b"XCLAIM s g d")]
        assert [line.split()[5] for line in logged] == [b"1-0", b"2-0", b"4-0"]
        ticks.close()

    with patch.object(request_reader, "new_plain_reader", NativeReader):
        in_loop(body())


def test_the_clock_is_looked_at_between_claims_of_many() -> None:
    """A batch of them may take a millisecond."""
    assert fast_commands(Stats())[Claims].fast_words < 8


def test_a_reader_that_waits_is_served_between_two_entries_of_a_run(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        reader, writer = ticks.connect(), ticks.connect()
        reader.send("XREAD BLOCK 0 COUNT 10 STREAMS s $")
        await ticks.settle()
        writer.send(*["XADD s * f v"] * 4)
        await ticks.settle()
        return [reader.replies(), writer.replies()]

    read, added = same(tmp_path, scenario)
    assert len(added) == 4
    assert b"".join(read).count(b"$1\r\nv") == 1


def test_consumers_that_wait_get_an_entry_each_and_the_rest_stays_in_the_stream(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        writer, *consumers = [ticks.connect() for _ in range(4)]
        await ticks.ask(writer, "XGROUP CREATE s g 0 MKSTREAM", *["XADD t * f v"] * 5)
        for number, consumer in enumerate(consumers):
            consumer.send(f"XREADGROUP GROUP g c{number} COUNT 10 BLOCK 0 STREAMS s >")
        await ticks.settle()
        writer.send(*["XADD t * f v", "XADD s * f v", "XADD s * f w"] * 10, "XREADGROUP GROUP g d STREAMS s >")
        await ticks.settle()
        return [one.replies() for one in (writer, *consumers)]

    written, *read = same(tmp_path, scenario)
    assert [b"".join(one).count(b"$1\r\nf") for one in read] == [1, 1, 1]
    assert written[-1].count(b"$1\r\nf") == 17


def test_a_watch_is_broken_by_a_run(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[bytes]:
        writer, watcher = ticks.connect(), ticks.connect()
        await ticks.ask(writer, *["XADD s * f v", "XADD t * f v"] * 3)
        await ticks.ask(watcher, "WATCH s", "MULTI", "PING")
        await ticks.ask(writer, *["XADD t * f v", "XADD s * f v"] * 3)
        return await ticks.ask(watcher, "EXEC", "WATCH s", "MULTI", "PING", "EXEC")

    replies = same(tmp_path, scenario)
    assert replies[0] == b"*-1\r\n"
    assert replies[-1] == b"*1\r\n+PONG\r\n"


def test_a_stream_that_has_expired_begins_again_with_the_next_run(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *["XADD s * f v", "XADD t * f v"] * 3, "PEXPIRE s 1000")
        await ticks.ask(client, *["XADD s * f v", "XADD t * f v"] * 3)
        ticks.clock.now_ms += 2000
        await ticks.ask(client, *["XADD s * f v", "XADD t * f v"] * 3)
        return await ticks.ask(client, "XLEN s", "XLEN t", "TTL s")

    assert same(tmp_path, scenario) == [b":3\r\n", b":9\r\n", b":-1\r\n"]


def test_what_was_appended_is_seen_by_whoever_looks_at_the_stream(tmp_path: Path) -> None:
    looks = [
        *("XLEN s", "XRANGE s - +", "XINFO STREAM s", "XREAD STREAMS s 0", "XDEL s {now}-3", "XTRIM s MAXLEN 2"),
        *(
            "RENAME s z",
            "COPY s z",
            "MOVE s 1",
            "DEL s",
            "FLUSHDB",
            "SWAPDB 0 1",
            "XSETID s 99999999999999",
            "XADD s 1 f v",
        ),
        *("XGROUP CREATE s g $", "EXISTS s", "TYPE s", "DBSIZE", "SCAN 0", "OBJECT ENCODING s", "MEMORY USAGE s"),
        *("CONFIG SET stream-node-max-entries 2", "DEBUG RELOAD", "BGREWRITEAOF", "SAVE", "DUMP s", "TOUCH s"),
    ]
    for number, look in enumerate(looks):
        line = look.replace("{now}", str(MS))
        run = ["XADD s * f v", "XADD t * f v"] * 5
        same(tmp_path / str(number), asked(*run, *run, line, *run, "XRANGE s - +", "XRANGE z - +", "XINFO STREAM t"))


def test_more_streams_than_are_kept_in_memory(tmp_path: Path) -> None:
    lines = [f"XADD k{number % 7} * f v{number}" for number in range(200)]
    lent_counts: list[int] = []

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        replies = await ticks.ask(client, *lines) + await ticks.ask(client, *lines)
        lent_counts.append(ticks.engine.txn.databases[0].lent_count)
        return replies + await ticks.ask(client, "XRANGE k0 - +")

    with patch.object(transaction, "CACHED_BYTES", 3 * 1100), patch.object(lent, "BATCH", 2):
        assert len(same(tmp_path, scenario)) == 401
    assert max(lent_counts) <= 3
    with patch.object(lent, "_MAX_BYTES", 300):
        assert len(same(tmp_path / "bytes", asked(*lines, *lines, "XRANGE k0 - +"))) == 401


def test_small_entries_that_are_in_no_table_are_few(tmp_path: Path) -> None:
    """A checkpoint has to write their rows at once, so that what counts is their number, not their bytes alone."""

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        keys = [f"k{number}" for number in range(20)]
        await ticks.ask(client, *(f"XADD {key} * f v" for key in keys))
        txn = ticks.engine.txn
        for number in range(1, 21):
            await ticks.ask(client, *(f"XADD {key} * f v" for _ in range(50) for key in keys))
            missing = 20 + 1000 * number - txn.lmdb.stat(txn.handles["entries"])["entries"]
            assert missing <= 1000 + 1000  # and what the last request appended
        ticks.close()

    with patch.object(lent, "_MAX_BYTES", 100_000):
        in_loop(body())


def test_rows_that_wait_are_put_into_their_table_in_parts_before_a_checkpoint(tmp_path: Path) -> None:
    """With a thousand streams, to put them at once took half of the time in which a checkpoint lets clients wait."""

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        keys = [f"k{number}" for number in range(3 * PUT_BATCH)]
        await ticks.ask(client, *(f"XADD {key} * f v" for key in keys))
        for _ in range(5):
            await ticks.ask(client, *(f"XADD {key} * f v" for _ in range(40) for key in keys))
        engine = ticks.engine
        txn = engine.txn

        def count_rows() -> int:
            return int(txn.lmdb.stat(txn.handles["entries"])["entries"])

        found = [count_rows()]
        assert len(keys) * 201 - found[0] > 8000
        while txn.unwritten_parts:
            engine.write_part()
            found.append(count_rows())
        assert 0 < max(second - first for first, second in pairwise(found)) <= PUT_BATCH * 201
        assert len(keys) * 201 - found[-1] < FEW_LENT_BYTES // 50
        assert sum(db.lent_count for db in txn.databases) == len(keys)  # none of them had to be taken back
        ticks.close()
        client = (ticks := Ticks(tmp_path, files=ticks.files)).connect()
        assert await ticks.ask(client, *(f"XLEN {key}" for key in keys)) == [b":201\r\n"] * len(keys)
        ticks.close()

    in_loop(body())


def test_the_rows_of_a_long_stream_reach_their_table_behind_the_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends one pipeline after the other waited for them, every thousandth entry or so."""
    write_behind = Engine.write_behind
    replies: list[int] = []  # that the client had when rows were put

    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        await ticks.ask(client, "XADD s * f v")
        db = ticks.engine.txn.databases[0]

        def write(engine: Engine) -> None:
            size = db.lent_bytes
            write_behind(engine)
            assert db.lent_bytes == 0 < size
            replies.append(len(client.replies()))

        monkeypatch.setattr(Engine, "write_behind", write)
        for _ in range(3):
            client.send(*(f"XADD s * f {'v' * 40}" for _ in range(300)))
            await ticks.settle()
        assert replies == [300] * 3
        ticks.close()
        client = (ticks := Ticks(tmp_path, files=ticks.files)).connect()
        assert await ticks.ask(client, "XLEN s") == [b":901\r\n"]
        ticks.close()

    in_loop(body())


def test_a_part_of_the_rows_that_wait_is_bounded_by_bytes_too(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, checkpoint_interval_ms=3_600_000)
        client = ticks.connect()
        size, count = 4000, 7
        for _ in range(2):
            await ticks.ask(
                client, *(f"XADD k{key} * f {'x' * size}" for key in range(PUT_BATCH) for _ in range(count))
            )
        txn = ticks.engine.txn
        db = txn.databases[0]
        most = PART_BYTES + 2 * count * (size + 200)
        assert (before := db.lent_bytes) > 3 * most
        db.put_lent_rows()
        assert PART_BYTES <= before - db.lent_bytes <= most
        before, count_before = db.lent_bytes, db.lent_count
        db.take_part_back()
        assert before - db.lent_bytes <= most
        assert 0 < count_before - db.lent_count < PUT_BATCH
        ticks.close()

    in_loop(body())


@pytest.mark.parametrize("node", [1, 3, 100])
def test_exact_trims_in_runs_leave_what_they_leave_one_by_one(tmp_path: Path, node: int) -> None:
    rng = random.Random(node)
    looks = ["XDEL s {ms}-{number}", "XLEN s", "XTRIM s MAXLEN ~ 7", "XGROUP CREATE s g 0", "XACK s g 1-1", "PING"]
    for number, least in enumerate((1, 2, 5, 40)):
        lines = ["XGROUP CREATE s g 0 MKSTREAM"]
        for _ in range(12):
            length = rng.choice([least, least, least + rng.randint(0, 9)])
            how = rng.choice(["MAXLEN {}", "MAXLEN = {}", "MAXLEN ~ {}", "maxlen {}", "MINID {ms}-3"])
            lines += [f"XADD {key} {how.format(length, ms=MS)} * f v" for key in "sst"] * rng.choice(
                [1, 20, 300 // least]
            )
            lines.append(rng.choice(looks).format(ms=MS, number=rng.randint(0, 400)))
        most = rng.choice([500, 5000, 1 << 21])
        with patch.object(lent, "_MAX_BYTES", most), patch.object(lent, "PUT_BATCH", 1):
            ends = ["XRANGE s - +", "XINFO STREAM s", "XINFO STREAM t"]
            same(tmp_path / str(number), asked(*lines, *ends), stream_node_max_entries=node)


def test_an_approximate_trim_behind_exact_ones_removes_what_is_left_of_the_first_node(tmp_path: Path) -> None:
    trims = [*["XADD s MAXLEN 10 * f v"] * 3, "XADD s MAXLEN ~ 8 * f v"]
    lines = [*["XADD s * f v"] * 10, "XLEN s", *trims, "XADD s * f v"]
    replies = same(tmp_path, asked(*lines, "XLEN s"), stream_node_max_entries=5)
    assert replies[-1] == b":10\r\n"  # of eleven two went


def test_an_exact_trim_is_no_end_of_a_run(tmp_path: Path) -> None:
    with patch.object(lent, "append", wraps=lent.append) as append:
        found = outcome(
            tmp_path, NativeReader, asked(*["XADD s * f v"] * 5, *["XADD s MAXLEN 5 * f v"] * 200, "XLEN s")
        )
    assert found[0][-1] == b":5\r\n"
    assert append.call_count <= 6


def test_a_stream_without_further_ids_refuses_those_that_have_none(tmp_path: Path) -> None:
    last = "18446744073709551615-18446744073709551615"
    setup = "XADD s 18446744073709551615-18446744073709551612 f v"
    replies = same(tmp_path, asked(setup, *["XADD s * f v"] * 5))
    error = b"-ERR The stream has exhausted the last possible ID, unable to add more items\r\n"
    assert replies[3:] == [*bulks(last), error, error]


def test_ids_go_on_in_the_next_millisecond_when_one_has_no_more(tmp_path: Path) -> None:
    setup = f"XADD s {MS}-18446744073709551613 f v"
    replies = same(tmp_path, asked(setup, *["XADD s * f v"] * 4))
    assert replies[2:] == bulks(f"{MS}-18446744073709551615", f"{MS + 1}-0", f"{MS + 1}-1")


def test_an_entry_that_is_larger_than_a_node_has_one_of_its_own(tmp_path: Path) -> None:
    lines = [f"XADD s * f {'x' * size}" for size in (10, 5000, 5000, 4095, 10, 9000)]
    same(tmp_path, asked(*lines, "XRANGE s - +"))
    same(tmp_path / "one", asked(*(f"XADD {key} * f {'x' * 5000}" for key in "aabab"), "XRANGE a - +"))


def test_many_keys_in_one_chunk(tmp_path: Path) -> None:
    lines = [f"XADD k{number % 7} * f v{number}" for number in range(200)]
    assert len(same(tmp_path, asked(*lines))) == 200


# -- what fails --------------------------------------------------------------------------------------------------------


def test_a_run_that_fails_is_executed_one_by_one(tmp_path: Path) -> None:
    with patch.object(lent, "append", side_effect=RuntimeError("planted")):
        found = outcome(tmp_path, NativeReader, asked("XADD s 1-1 f v", *["XADD s * f v"] * 4))
    assert found[0] == bulks("1-1", *(f"{MS}-{seq}" for seq in range(4)))
    assert found[1] == {b"xadd": (5, 0, 0)}


def test_only_the_entry_that_cannot_be_added_is_answered_with_an_error(tmp_path: Path) -> None:
    load_commands()
    xadd = COMMANDS[b"XADD"].handler
    number = count()

    def failing(request: Request) -> Reply:
        reply = xadd(request)
        if next(number) == 2:
            raise RuntimeError("planted")
        return reply

    real = lent.append

    def broken(*arguments: Any) -> Any:
        """Some entries are appended and lost with this error: they have to be taken back."""
        found = real(*arguments)
        if found[0]:
            raise RuntimeError("planted")
        return found

    with patch.object(lent, "append", broken), patch.object(COMMANDS[b"XADD"], "handler", failing):
        found = outcome(tmp_path, NativeReader, asked(*["XADD s * f v"] * 5, "XLEN s"), stream_node_max_entries=3)
    replies = found[0]
    assert replies[2] == b"-ERR internal error: xadd was undone (RuntimeError)\r\n"
    assert [*replies[:2], *replies[3:]] == [*bulks(*(f"{MS}-{seq}" for seq in range(4))), b":4\r\n"]
    assert found[1][b"xadd"] == (5, 1, 0)


def test_a_commit_that_fails_answers_each_request_of_a_run(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, "XADD s 1-1 f v")
        ticks.files.fail("write", errno.ENOSPC)
        return await ticks.ask(client, "PING", *["XADD s * f v"] * 70, "XADD t * f v", "PING")

    replies = same(tmp_path, scenario)
    assert len(replies) == 73
    assert [reply[:8] for reply in replies[1:-1]] == [b"-MISCONF"] * 71


def test_a_commit_that_fails_answers_each_request_of_claims(tmp_path: Path) -> None:
    lines = [*claims_of(1, 25, 2, 26, 27), "PING", *claims_of(25, 26), "PING", *claims_of(3, 4)]

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(client, *CLAIMED)
        ticks.files.fail("write", errno.ENOSPC)
        return await ticks.ask(client, *lines)

    replies = same(tmp_path, scenario)
    assert [reply[:8] for reply in replies] == [b"+PONG\r\n" if line == "PING" else b"-MISCONF" for line in lines]


@pytest.mark.parametrize("shape", ["acks", "adds first", "acks first"])
def test_a_commit_that_fails_answers_each_request_of_a_mix(tmp_path: Path, shape: str) -> None:
    acks = [f"XACK s g {MS}-{seq}" for seq in range(20)]
    pairs = [line for ack in acks for line in ("XADD s * f v", ack)]
    lines = {"acks": acks, "adds first": pairs, "acks first": [*acks[:2], *pairs]}[shape]

    async def scenario(ticks: Ticks) -> list[bytes]:
        client = ticks.connect()
        await ticks.ask(
            client, "XGROUP CREATE s g 0 MKSTREAM", *["XADD s * f v"] * 20, "XREADGROUP GROUP g c STREAMS s >"
        )
        ticks.files.fail("write", errno.ENOSPC)
        return await ticks.ask(client, "PING", *lines, "PING")

    replies = same(tmp_path, scenario)
    assert [reply[:8] for reply in replies] == [b"+PONG\r\n", *[b"-MISCONF"] * len(lines), b"+PONG\r\n"]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_each_entry_counts_as_a_request_of_its_tick(tmp_path: Path) -> None:
    async def scenario(ticks: Ticks) -> list[list[bytes]]:
        clients = [ticks.connect() for _ in range(2 * MAX_REQUESTS_A_TICK // 100)]
        for client in clients:
            client.send(*["XADD s * f v"] * 100)
        await ticks.settle()
        sizes = list(map(len, ticks.batches()))
        assert max(sizes) < MAX_REQUESTS_A_TICK + 100
        assert sum(sizes) == 100 * len(clients)
        return [client.replies() for client in clients]

    for replies in same(tmp_path, scenario):
        assert len(replies) == 100


def test_what_a_tick_has_no_time_for_waits_for_the_next_as_it_came(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, clock=PassingClock())
        clients = [ticks.connect() for _ in range(3)]
        kept = []
        for client in clients:
            client.send(*(f"XADD k{number // 40} * n {number}" for number in range(200)))
        for _ in range(40):
            await ticks.settle()
            ticks.check_accounts()
            kept += [one for client in clients for one in client.session.backlog]
        assert [len(client.replies()) for client in clients] == [200] * 3
        [read] = await ticks.ask(clients[0], "XRANGE k0 - +")
        assert read.count(b"$1\r\nn\r\n") == 120
        assert ticks.executor.stats.commands_processed == 601
        assert len(ticks.batches()) > 3
        ticks.close()

    with patch.object(request_reader, "new_plain_reader", NativeReader):
        in_loop(body())


def test_a_run_that_waits_is_counted_for_its_client(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path)
        client, other = ticks.connect(), ticks.connect()
        client.send("XREAD BLOCK 0 STREAMS z $", *[f"XADD s * f {'x' * 100}"] * 50)
        await ticks.settle()
        assert any(isinstance(one, Run) for one in client.session.backlog)
        assert client.session.account.owed > 50 * 130
        ticks.check_accounts()
        other.send("XADD z * f v")
        await ticks.settle()
        assert len(client.replies()) == 51
        assert client.session.account.owed == 0
        ticks.close()

    with patch.object(request_reader, "new_plain_reader", NativeReader):
        in_loop(body())


def test_a_slow_run_of_many_requests_becomes_no_more_words_than_the_slow_log_has(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, slowlog_log_slower_than=0)
        stats = ticks.executor.stats
        request = Request(ticks.connect().session, ticks.engine.txn, ticks.executor.context)
        chunk = encode(["XADD", "s", "*", "f", "v"]) * 10_000
        requests = parse(APPENDED, chunk, 0, len(chunk))
        assert requests is not None
        run = requests[0]
        assert isinstance(run, Run) and len(run) > 100
        request.run = run
        entry = fast_commands(stats)[Run]
        tracemalloc.start()
        ticks.executor.timing.record(request, entry, len(run), 10.0)
        assert tracemalloc.get_traced_memory()[1] < 10_000
        tracemalloc.stop()
        assert stats.slowlog.calls[0].words == [b"XADD", b"s", b"*", b"f", b"v"]
        ticks.close()

    in_loop(body())


def test_a_slow_run_is_in_the_slow_log_with_the_words_of_its_last_request(tmp_path: Path) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, clock=PassingClock(), slowlog_log_slower_than=1)
        client = ticks.connect()
        await ticks.ask(client, *["XADD s * f v"] * 3)
        [told] = await ticks.ask(client, "SLOWLOG GET 1")
        assert b"$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$1\r\nv\r\n" in told
        ticks.close()

    with patch.object(request_reader, "new_plain_reader", NativeReader):
        in_loop(body())


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (claims_of(1, 2, 1, 3), [b"2-0", b"1-0", b"3-0"]),
        (["XADD s 40-0 f v", "XADD s 41-0 f v", "XADD s 0-1 f v", "XADD s 42-0 f v"], [b"41-0", b"0-1", b"42-0"]),
        (["XACK s g 1-0", "XADD s 40-0 f v", "XADD s 0-1 f v", "XACK s g 2-0"], [b"40-0", b"0-1", b"2-0"]),
    ],
)
def test_the_slow_log_shows_no_request_of_a_run_that_was_not_executed_with_it(
    tmp_path: Path, lines: list[str], told: list[bytes]
) -> None:
    async def body() -> None:
        ticks = Ticks(tmp_path, clock=PassingClock(), slowlog_log_slower_than=1)
        client = ticks.connect()
        await ticks.ask(client, *CLAIMED, "SLOWLOG RESET")
        await ticks.ask(client, *lines)
        slow = [call.words for call in ticks.executor.stats.slowlog.calls if call.words[0] != b"SLOWLOG"]
        found = [next(word for word in words if word.partition(b"-")[0].isdigit() and b"-" in word) for words in slow]
        assert found[::-1] == told
        ticks.close()

    with patch.object(request_reader, "new_plain_reader", NativeReader):
        in_loop(body())
