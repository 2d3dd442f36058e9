"""Logs that a Redis wrote, or had a hand in."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest

from riverbed.store.log.files.plain import PLAIN_BATCH_COMMANDS
from riverbed.store.log.reader import LogReader
from riverbed.store.tables.environment import Tables
from riverbed.tools.offline import rebuild
from riverbed.tools.offline.heldfiles import HeldFiles
from riverbed.tools.offline.rebuild import Builder
from riverbed.tools.offline.source import find_source
from tests.conftest import StartRedis, base_seed
from tests.support.in_process import HandClock, Product, value_of
from tests.support.raw import parse
from tests.support.replays import (
    KEYS,
    LOG,
    AnyGenerator,
    encoded,
    entry_ids,
    opened,
    refused,
    replay,
    run,
    shown_by,
    small_log,
    xadd,
)
from tests.support.scripts.generators import STREAMS
from tests.support.scripts.group_commands import GROUP_FAMILY
from tests.support.servers import Server


def fill_with_everything(redis: Server) -> None:
    """Streams, and other types that come, go and take their places."""
    generator = AnyGenerator(random.Random(base_seed() + 5), (STREAMS, KEYS, GROUP_FAMILY), wrong=0.02)
    others: Sequence[tuple[object, ...]] = (
        ("SET", "user:1", "x"),
        ("HSET", "h", "f", "v"),
        ("RPUSH", "l", 1, 2, 3),
        ("SET", "a", "over a stream"),
        ("MSET", "m", 1, "b", 2),
        ("RENAME", "user:1", "c"),
        ("COPY", "h", "a", "REPLACE"),
        ("SUNIONSTORE", "b", "no", "such"),
        ("DEL", "a", "b", "c"),
        ("EXPIREAT", "h", 4_102_444_800),
        ("SORT", "l", "STORE", "c"),
    )
    with redis.client() as client:
        for number in range(900):
            client.ask(*generator.command())
            if number % 9 == 0:
                client.ask(*others[number // 9 % len(others)])
            if number % 60 == 0:
                client.ask("SELECT", number // 60 % 3)
        client.ask("SELECT", 0)
        client.pipeline([("MULTI",), xadd(1, "tx"), ("SET", "in", "multi"), xadd(2, "tx"), ("EXEC",)])


def streams_in(redis: Server) -> dict[tuple[int, bytes], Any]:
    """What `shown_by` tells of the streams of a Redis."""
    with redis.client() as client:
        for database in range(16):
            client.ask("SELECT", database)
            for key in value_of(parse(client.ask("KEYS", "*"))):
                if client.ask("TYPE", key) != b"+stream\r\n":
                    client.ask("DEL", key)
        return shown_by(client)


# Not of the data: the size of nodes, what 7.0 does not tell, and the lag, which 8 derives otherwise.
_OWN = (b"lag", b"radix-tree-keys", b"radix-tree-nodes", b"idmp-duration", b"idmp-maxsize", b"pids-tracked",
        b"iids-tracked", b"iids-added", b"iids-duplicates", b"nacked-count", b"active-time", b"seen-time")  # fmt: skip


def comparable(value: Any) -> Any:
    """A reply without what the two servers may differ in."""
    if isinstance(value, (list, tuple)):
        if value and len(value) % 2 == 0 and isinstance(value[0], bytes) and value[0] in (b"length", b"name"):
            pairs = zip(value[::2], value[1::2], strict=True)
            return {name: comparable(content) for name, content in pairs if name not in _OWN}
        return [comparable(part) for part in value]
    return value


@pytest.mark.parametrize("timed", ["yes", "no"])
def test_streams_of_a_redis_with_other_types(start_redis: StartRedis, tmp_path: Path, timed: str) -> None:
    redis = start_redis(options={"aof-timestamp-enabled": timed, "aof-use-rdb-preamble": timed})
    fill_with_everything(redis)
    copy = tmp_path / "copy"
    shutil.copytree(redis.directory / LOG, copy)
    expected = streams_in(redis)
    report = replay(copy, tmp_path / "new", status=1)
    assert report["copied"] is False
    assert {"SET", "HSET", "RPUSH", "MSET", "SORT"} <= report["skipped"]["commands"].keys()
    assert "h" in report["skipped"]["keys"]["HSET"]
    assert report["skipped"]["databases"] == {}
    found = opened(tmp_path / "new", 0)
    assert sorted(found) == sorted(expected)
    for place, state in expected.items():
        assert comparable(found[place]) == comparable(state), place
    # what was logged again is a log like any other, for both servers
    again = replay(tmp_path / "new", tmp_path / "again")
    assert again["copied"] is True
    assert opened(tmp_path / "again", 0) == found
    other = start_redis(tmp_path / "again")
    assert {place: comparable(state) for place, state in streams_in(other).items()} == {
        place: comparable(state) for place, state in expected.items()
    }


def test_a_log_of_redis_stops_at_any_offset(start_redis: StartRedis, tmp_path: Path) -> None:
    redis = start_redis()
    incr = redis.directory / LOG / "appendonly.aof.1.incr.aof"
    moments = []
    with redis.client() as client:
        for number in range(1, 9):
            client.ask(*xadd(number))
            client.pipeline([("MULTI",), xadd(number, "t"), ("HSET", "h", number, 1), xadd(number, "u"), ("EXEC",)])
            moments.append((incr.stat().st_size, [[f"{n}-1".encode() for n in range(1, number + 1)]] * 3))
    redis.stop()
    for offset, expected in moments:
        target = tmp_path / str(offset)
        report = replay(incr, target, "--until", offset, status=1)
        assert report["offset"] == offset
        product = Product(target, HandClock())
        found = [[row[0] for row in product.run("XRANGE", key, "-", "+")] for key in ("s", "t", "u")]
        product.close()
        assert found == expected


def test_a_log_of_redis_stops_at_a_second_it_noted(tmp_path: Path) -> None:
    parts = [b"#TS:%d\r\n" % (1_700_000_000 + number) + encoded(xadd(number)) for number in range(1, 6)]
    (tmp_path / "appendonly.aof").write_bytes(encoded(("SELECT", "0")) + b"".join(parts))
    report = replay(tmp_path / "appendonly.aof", tmp_path / "new", "--until", "@1700000003")
    assert (report["entries"], report["time_ms"], report["next_time_ms"]) == (3, 1_700_000_003_000, 1_700_000_004_000)
    assert entry_ids(tmp_path / "new") == ["1-1", "2-1", "3-1"]
    # and the times are in the new log
    assert replay(tmp_path / "new", tmp_path / "again", "--until", "@1700000002")["entries"] == 2


def test_a_log_without_times_has_no_moments(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").write_bytes(encoded(xadd(1)))
    reason = refused(tmp_path / "appendonly.aof", tmp_path / "new", "--until", "2026-01-01")
    assert "aof-timestamp-enabled" in reason


def test_what_a_redis_ignores_is_counted(tmp_path: Path) -> None:
    commands = [
        ("SELECT", "20"),
        xadd(1),
        ("SELECT", "0"),
        xadd(5),
        xadd(4),
        ("XGROUP", "CREATE", "no", "g", "0"),
        ("RESTORE", "r", "0", "payload"),
        ("PING",),
        ("evil[red]\x1b[31m", "k[/]\x07"),
        ("XGROUP", "CREATE", "no\x1b[2J", "g", "0"),
    ]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, commands)))
    report = replay(tmp_path, tmp_path / "new", status=1)
    assert report["entries"] == 1
    assert report["skipped"]["databases"] == {"20": 1}
    assert sum(report["skipped"]["refused"].values()) == 3
    assert report["skipped"]["commands"] == {"RESTORE": 1, "EVIL[RED]?[31M": 1}
    result = run("replay", tmp_path, tmp_path / "other")
    assert result.exit_code == 1
    assert "1 command for database 20; there are 16" in result.stdout
    assert "EVIL[RED]?[31M" in result.stdout
    assert "\x1b" not in result.stdout
    assert "RESTORE may have held streams" in result.stdout


@pytest.mark.parametrize("database", ["16", "9" * 5000, "x"])
def test_a_copy_into_a_database_that_is_not_here_deletes_nothing(tmp_path: Path, database: str) -> None:
    commands = [("SELECT", "0"), xadd(1, "t"), ("SET", "text", "1"), ("COPY", "text", "t", "DB", database, "REPLACE")]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, commands)))
    report = replay(tmp_path, tmp_path / "new", status=1)
    assert report["skipped"]["commands"] == {"SET": 1, "COPY": 1}
    assert sorted(key for _, key in opened(tmp_path / "new", 0)) == [b"t"]


@pytest.mark.parametrize(
    ("lines", "left", "elsewhere"),
    [
        (["SELECT 17", "FLUSHALL"], [], {}),
        (["SELECT 17", "FLUSHDB"], [(0, b"a"), (0, b"b"), (1, b"c")], {"17": 1}),
        (["SELECT 17", "SWAPDB 0 1"], [(0, b"c"), (1, b"a"), (1, b"b")], {}),
        (["SWAPDB 0 17"], [(1, b"c")], {"17": 1}),
        (["SELECT 20", "SWAPDB 17 1"], [(0, b"a"), (0, b"b")], {"17": 1}),
        (["SWAPDB 17 18"], [(0, b"a"), (0, b"b"), (1, b"c")], {"18": 1}),
        (["MOVE a 17"], [(0, b"b"), (1, b"c")], {"17": 1}),
        (["SELECT 17", "COPY other a DB 0 REPLACE"], [(0, b"b"), (1, b"c")], {"17": 1}),
        (["SELECT 17", "COPY other a DB 18 REPLACE"], [(0, b"a"), (0, b"b"), (1, b"c")], {"17": 1}),
    ],
)
def test_what_a_database_that_is_not_here_takes_or_overwrites_is_gone(
    tmp_path: Path, lines: list[str], left: list[tuple[int, bytes]], elsewhere: dict[str, int]
) -> None:
    commands = [("SELECT", "0"), xadd(1, "a"), xadd(1, "b"), ("SELECT", "1"), xadd(1, "c"), ("SELECT", "0")]
    written = [*commands, *(tuple(line.split()) for line in lines)]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, written)))
    report = replay(tmp_path, tmp_path / "new", status=1 if elsewhere else 0)
    assert report["skipped"]["databases"] == elsewhere
    assert sorted(opened(tmp_path / "new", 0)) == left


def test_words_that_are_refused_end_no_replay_where_no_database_is_here(tmp_path: Path) -> None:
    lines = [
        "SELECT 17",
        "FLUSHALL nonsense",
        "FLUSHALL ASYNC SYNC",
        "SWAPDB 0 x",
        "SWAPDB 0",
        "MOVE",
        "COPY a",
        "COPY",
    ]
    written = [("SELECT", "0"), xadd(1, "a"), *(tuple(line.split()) for line in lines), ("SELECT", "0"), xadd(2, "a")]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, written)))
    report = replay(tmp_path, tmp_path / "new", status=1)
    assert report["entries"] == 2
    assert sum(report["skipped"]["refused"].values()) == 2


def test_streams_that_a_newer_redis_overwrites_are_gone(tmp_path: Path) -> None:
    commands = [
        ("SELECT", "0"),
        *(xadd(1, key) for key in ("a", "b", "c", "PXAT")),
        ("MSETEX", "2", "a", "1", "b", "2", "PXAT", "4102444800000"),
        ("MSETEX", "many", "c", "1"),
        ("MSETEX",),
    ]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, commands)))
    report = replay(tmp_path, tmp_path / "new", status=1)
    assert report["skipped"]["commands"] == {"MSETEX": 3}
    assert sorted(key for _, key in opened(tmp_path / "new", 0)) == [b"PXAT", b"c"]


def test_xadds_that_are_taken_together_are_executed_and_counted_one_by_one(tmp_path: Path) -> None:
    commands = [
        ("SELECT", "0"),
        *(xadd(number) for number in range(1, 400)),
        xadd(7),  # is not above the last one
        *(xadd(number, f"s{number % 3}") for number in range(400, 900)),
        ("XADD", "s", "MAXLEN", "=", "300", "900-1", "field", "value"),
        xadd(901, "t"),
        ("PEXPIREAT", "t", "4102444800000"),
        xadd(902, "t"),
        ("SELECT", "99"),
        *(xadd(number) for number in range(903, 906)),
        ("SELECT", "2"),
        *(xadd(number) for number in range(906, 909)),
    ]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, commands)))
    report = replay(tmp_path, tmp_path / "new", status=1)
    assert report["commands"] == len(commands)
    assert report["skipped"]["databases"] == {"99": 3}
    assert sum(report["skipped"]["refused"].values()) == 1
    product = Product(tmp_path / "expected", HandClock())
    for words in [*commands[:400], *commands[401:-8], *commands[-4:]]:
        product.run(*words)
    product.close()
    assert opened(tmp_path / "new", 0) == opened(tmp_path / "expected", 0)
    assert opened(tmp_path / "new", 0).keys() == {(0, b"s"), *((0, b"s%d" % n) for n in range(3)), (0, b"t"), (2, b"s")}


def test_batches_of_the_new_log_are_short(tmp_path: Path) -> None:
    text = encoded(("SELECT", "0")) + b"".join(encoded(xadd(number)) for number in range(1, 2000))
    (tmp_path / "appendonly.aof").write_bytes(text)
    replay(tmp_path, tmp_path / "new")
    source = find_source(tmp_path / "new", HeldFiles())
    sizes = [len(batch.commands) for batch in LogReader(source.parts, source.files).batches(None, None)]
    assert max(sizes) < 2 * PLAIN_BATCH_COMMANDS
    assert len(sizes) < 20


@pytest.mark.parametrize("count", [2, 300])
def test_a_transaction_of_xadds_stays_one(tmp_path: Path, count: int) -> None:
    adds = [xadd(number) for number in range(2, count + 2)]
    commands = [("SELECT", "0"), xadd(1), ("MULTI",), *adds, ("EXEC",), xadd(count + 2)]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, commands)))
    assert replay(tmp_path, tmp_path / "new")["entries"] == count + 2
    logged = (tmp_path / "new" / LOG / "appendonly.aof.1.incr.aof").read_bytes()
    assert b"".join(map(encoded, commands[2:-1])) in logged


@pytest.fixture
def long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of Redis for which several checkpoints are made."""
    monkeypatch.setattr(rebuild, "CHECKPOINT_BYTES", 1 << 18)
    commands = [("SELECT", "0"), *(xadd(number, f"s{number % 7}") for number in range(1, 10_000))]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, commands)))
    return tmp_path / "appendonly.aof"


def test_checkpoints_are_synced_in_a_thread(long_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    sync = Tables.sync

    def noted(tables: Tables) -> None:
        threads.append(threading.current_thread().name)
        sync(tables)

    monkeypatch.setattr(Tables, "sync", noted)
    assert replay(long_log, tmp_path / "new")["entries"] == 9_999
    assert threads.count("checkpoint to disk") > 3
    assert threads[-1] != "checkpoint to disk"  # the last one is waited for
    assert {key: len(state[0]) > 0 for key, state in opened(tmp_path / "new", 0).items()} == {
        (0, b"s%d" % n): True for n in range(7)
    }


def test_a_checkpoint_that_fails_in_the_thread_ends_the_replay(
    long_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = Tables.sync
    failed: list[int] = []

    def fail_once(tables: Tables) -> None:
        if threading.current_thread().name == "checkpoint to disk" and not failed:
            failed.append(1)
            raise lmdb.DiskError("mdb_env_sync: Input/output error")
        sync(tables)

    monkeypatch.setattr(Tables, "sync", fail_once)
    assert "Input/output error" in refused(long_log, tmp_path / "new")
    assert failed


def test_rows_of_many_streams_wait_longer_than_in_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []
    commit = Builder.commit

    def noted(builder: Builder, time_ms: int | None = None) -> None:
        waiting.append(sum(db.lent_bytes for db in builder.txn.databases))
        commit(builder, time_ms)

    monkeypatch.setattr(Builder, "commit", noted)
    commands = [("SELECT", "0"), *(xadd(number, f"s{number % 50}") for number in range(1, 20_000))]
    (tmp_path / "appendonly.aof").write_bytes(b"".join(map(encoded, commands)))
    replay(tmp_path, tmp_path / "new")
    assert 2 << 20 < max(waiting) < 20 << 20


def test_a_mixed_log_is_logged_anew(tmp_path: Path) -> None:
    """A Redis loaded ours, and went on in it."""
    log = small_log(tmp_path / "log")
    lines = b"file appendonly.aof.1.incr.aof seq 1 type i\nfile appendonly.aof.2.incr.aof seq 2 type i\n"
    (log / LOG / "appendonly.aof.manifest").write_bytes(lines)
    (log / LOG / "appendonly.aof.2.incr.aof").write_bytes(encoded(("SELECT", "0")) + encoded(xadd(99)))
    report = replay(log, tmp_path / "new")
    assert (report["entries"], report["copied"]) == (11, False)
    assert entry_ids(tmp_path / "new")[-1] == "99-1"


@pytest.mark.parametrize("deadline", ["PEXPIREAT s 0", "PEXPIREAT s -1", "EXPIREAT s -9223372036854775"])
def test_deadlines_before_1970_are_over(tmp_path: Path, deadline: str) -> None:
    log = tmp_path / "one.aof"
    lines = ["SELECT 0", "XADD s 1-1 f v", "XADD t 1-1 f v", deadline, "XADD t 2-1 f v"]
    log.write_bytes(b"".join(encoded(line.split()) for line in lines))
    replay(log, tmp_path / "store")
    assert {key for _, key in opened(tmp_path / "store", 1)} == {b"t"}


def test_an_entry_whose_record_had_expired_in_redis_is_no_duplicate(tmp_path: Path) -> None:
    """Redis logs an entry with its ID, and a duplicate with `*`; that records expire it does not log."""
    clock = 1_700_000_000_000
    log = tmp_path / "appendonly.aof"
    again = [f"XADD s IDMPAUTO p {clock + number * 300_000}-0 temp 20" for number in range(5)]
    lines = [
        *("SELECT 0", "XADD s IDMP p unknown * temp 1", *again, "XADD s IDMPAUTO p * temp 20"),
        *(
            f"XADD s IDMP p x {clock + 1_600_000}-0 temp 21",
            f"XADD s MAXLEN = 6 IDMP p x {clock + 1_900_000}-0 temp 22",
        ),
    ]
    log.write_bytes(b"".join(encoded(line.split()) for line in lines))
    report = replay(log, tmp_path / "copy")
    assert report["offset"] > 0
    product = Product(tmp_path / "copy", HandClock())
    expected = [*(clock + number * 300_000 for number in range(1, 5)), clock + 1_600_000, clock + 1_900_000]
    assert [entry_id for entry_id, _ in product.run("XRANGE", "s", "-", "+")] == [b"%d-0" % ms for ms in expected]
    facts = product.run("XINFO", "STREAM", "s")
    found = dict(zip(facts[::2], facts[1::2], strict=True))
    assert (found[b"iids-added"], found[b"iids-duplicates"], found[b"iids-tracked"]) == (7, 1, 2)
    product.close()
