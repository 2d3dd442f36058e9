from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from riverbed.store.checksum import crc32c
from riverbed.store.snapshot.manifest import FileDigest, encode_manifest
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.tables.environment import TABLES
from riverbed.tools.console.keytext import key_text
from riverbed.tools.console.steps import StepProgress
from riverbed.tools.live.redisclient import RedisClient
from riverbed.tools.offline import streamread
from tests.support import program
from tests.support.in_process import HandClock, Product
from tests.support.servers import RedisServer, RiverbedServer, Server

StartRiverbed = Callable[..., RiverbedServer]
StartRedis = Callable[..., RedisServer]


run = partial(program.run, "dump")
dumped = partial(program.printed, "dump")


def test_a_damaged_snapshot_shows_no_entry(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("RIVERBED", "SNAPSHOT", "one")
    path = riverbed.directory / "snapshots" / "one"
    before = ids(path, "s")
    data = bytearray((path / "data.mdb").read_bytes())
    at = data.index(b"v1234")
    data[at] ^= 1
    (path / "data.mdb").write_bytes(data)
    result = run(path, "s")
    assert (len(before), result.exit_code, result.stdout) == (2499, 2, "")
    assert "CRC-32C is" in " ".join(result.stderr.split())


def test_a_stream_that_goes_between_two_pages_is_not_told_as_whole(
    riverbed: RiverbedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamread, "_PAGE", 1000)
    fill(riverbed)
    with riverbed.client() as client:
        call = RedisClient.call

        def deleted(self: RedisClient, *words: Any) -> Any:
            answer = call(self, *words)
            if words[0] == "XRANGE":
                client.ask("DEL", "s")
            return answer

        monkeypatch.setattr(RedisClient, "call", deleted)
        result = run(f"localhost:{riverbed.port}", "s")
    assert len(result.stdout.splitlines()) == 1000
    assert result.exit_code == 2
    assert "is gone since its 1000th entry" in " ".join(result.stderr.split())


def test_a_range_may_be_of_times(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        for ms in (1_795_257_000_122, 1_795_257_000_123, 1_795_257_001_000, 1_795_257_001_001):
            client.ask("XADD", "s", f"{ms}-1", "f", "v")
    target = f"localhost:{riverbed.port}"
    span = ("--start", "@1795257000123", "--end", "2026-11-21T10:30:01Z")
    assert ids(target, "s", *span) == ["1795257000123-1", "1795257001000-1"]
    result = run(target, "s", "--start", "yesterday")
    assert (result.exit_code, "yesterday is neither an ID nor a time" in " ".join(result.stderr.split())) == (2, True)


@pytest.mark.parametrize("key", [b"a\x00b", b"\xff", b"back\\slash", b"line\nend", b"plain", "größe".encode()])
def test_a_key_may_be_given_as_it_is_shown(riverbed: RiverbedServer, key: bytes) -> None:
    with riverbed.client() as client:
        client.ask("XADD", key, "1-1", "f", "v")
    assert ids(f"localhost:{riverbed.port}", key_text(key)) == ["1-1"]


def ids(*arguments: object) -> list[str]:
    return [entry["id"] for entry in dumped(*arguments)]


def fill(server: Server) -> None:
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "field", f"v{number}") for number in range(1, 2501)])
        client.ask("XDEL", "s", "3-0")
        client.ask("XADD", "odd", "1-1", "f", "ü", "g", "")
        client.ask("XADD", "odd", "1-2", "f", "1", "f", "2")
        client.ask("XADD", "odd", "1-3", b"\xff", b"\x00\x01")
        client.ask("XGROUP", "CREATE", "odd", "g", "0")
        client.ask("XREADGROUP", "GROUP", "g", "alice", "STREAMS", "odd", ">")


@pytest.fixture
def stopped(start_riverbed: StartRiverbed) -> Path:
    server = start_riverbed()
    fill(server)
    with server.client() as client:
        client.ask("RIVERBED", "SNAPSHOT", "monday")
    server.stop()
    return server.directory


# -- streams -----------------------------------------------------------------------------------------------------------


def test_entries_of_any_kind_are_lines_of_json(stopped: Path) -> None:
    assert dumped(stopped, "odd") == [
        {"id": "1-1", "fields": {"f": "ü", "g": ""}},
        {"id": "1-2", "pairs": [["f", "1"], ["f", "2"]]},
        {"id": "1-3", "pairs_base64": [["/w==", "AAE="]]},
    ]


def test_a_store_its_snapshot_and_its_server_tell_the_same(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("RIVERBED", "SNAPSHOT", "monday")
    for key in ("s", "odd"):
        expected = dumped(riverbed.directory, key)
        assert dumped(riverbed.directory / "snapshots" / "monday", key) == expected
        assert dumped(f"localhost:{riverbed.port}", key) == expected
    assert ids(riverbed.directory, "s") == [f"{number}-0" for number in range(1, 2501) if number != 3]


def test_a_real_redis_tells_the_same(start_redis: StartRedis, stopped: Path) -> None:
    server = start_redis()
    fill(server)
    assert dumped(f"localhost:{server.port}", "odd") == dumped(stopped, "odd")


@pytest.mark.parametrize("how", ["files", "server"])
def test_ranges_and_limits_are_heeded(riverbed: RiverbedServer, how: str) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("SAVE")
    source = riverbed.directory if how == "files" else f"localhost:{riverbed.port}"
    assert ids(source, "s", "--start", "2", "--end", "5") == ["2-0", "4-0", "5-0"]
    assert ids(source, "s", "--start", "2499-0") == ["2499-0", "2500-0"]
    assert ids(source, "s", "--limit", 2) == ["1-0", "2-0"]
    assert ids(source, "s", "--start", "9000") == []
    assert ids(source, "odd", "--end", "1-1") == ["1-1"]


def test_a_limit_may_be_beyond_any_number_of_entries(stopped: Path) -> None:
    assert ids(stopped, "odd", "--limit", 10**30) == ["1-1", "1-2", "1-3"]


def test_other_databases_are_reached_by_number(riverbed: RiverbedServer) -> None:
    with riverbed.client() as client:
        client.ask("SELECT", 3)
        client.ask("XADD", "s", "1-1", "f", "v")
        client.ask("SAVE")
    assert ids(riverbed.directory, "s", "--db", 3) == ids(f"localhost:{riverbed.port}", "s", "--db", 3) == ["1-1"]


def test_trimmed_entries_that_wait_for_the_purge_are_not_told(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with riverbed.client() as client:
        client.ask("XTRIM", "s", "MAXLEN", "2")
        client.ask("SAVE")
    assert ids(riverbed.directory, "s") == ["2499-0", "2500-0"]


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_log_is_told_as_commands_with_the_place_of_each_batch(stopped: Path) -> None:
    for source in (stopped / "appendonlydir", stopped / "appendonlydir" / "appendonly.aof.1.incr.aof"):
        lines = run(source).stdout.splitlines()
        assert lines[0].startswith("# appendonly.aof.1.incr.aof, bytes 0 to ")
        assert "XADD s 1-0 field v1" in lines
        assert 'XADD odd 1-3 "\\xff" "\\x00\\x01"' in lines
        assert any(line.startswith("XCLAIM odd g alice ") for line in lines)


def test_a_later_file_of_the_log_is_told_alone(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"log-segment-bytes": "64kb"})
    fill(server)
    server.stop()
    later = sorted((server.directory / "appendonlydir").glob("*.incr.aof"))[1]
    lines = run(later).stdout.splitlines()
    assert lines[0].startswith(f"# {later.name}, bytes 0 to ")
    assert all(line.startswith(f"# {later.name}") for line in lines if line.startswith("#"))


def test_the_log_of_a_redis_is_told(start_redis: StartRedis) -> None:
    server = start_redis()
    fill(server)
    server.kill()
    assert "XADD s 1-0 field v1" in run(server.directory / "appendonlydir").stdout.splitlines()


def test_a_time_beyond_all_calendars_is_a_number(tmp_path: Path) -> None:
    log = tmp_path / "appendonly.aof"
    log.write_bytes(b"#TS:999999999999\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n")

    result = run(log)

    assert result.exit_code == 0
    assert result.stdout == "# appendonly.aof, bytes 0 to 41: offset 23, @999999999999000\nSELECT 0\n"


@pytest.mark.parametrize("where", ["in the middle", "at the end"])
def test_a_damaged_log_is_told_up_to_the_damage(stopped: Path, tmp_path: Path, where: str) -> None:
    log = tmp_path / "appendonlydir"
    shutil.copytree(stopped / "appendonlydir", log)
    path = log / "appendonly.aof.1.incr.aof"
    data = bytearray(path.read_bytes())
    data[data.index(b"XDEL") if where == "in the middle" else -30] ^= 1
    path.write_bytes(data)
    result = run(log)
    assert result.exit_code == 1
    assert "XADD s 1-0 field v1" in result.stdout
    assert "damaged: " in result.stderr


@pytest.mark.parametrize(
    "name",
    ["appendonlydir/appendonly.aof.manifest", "snapshots/monday/manifest.json", "snapshots/monday/streams.jsonl"],
)
def test_manifests_are_told_as_they_are_when_sound(stopped: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(stopped, tmp_path / "copy")
    path = tmp_path / "copy" / name
    assert run(path).stdout == path.read_text()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = run(path)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("line", "told"),
    [(b"\x1b[2J\xc2\x9b31m\r\n", "\\x1b[2J\\x9b31m\\r\n"), (b"\xff\xfe\xc3\xa4", "\\xff\\xfe\u00e4\n")],
)
def test_a_list_of_streams_of_a_stranger_commands_no_terminal(
    stopped: Path, tmp_path: Path, line: bytes, told: str
) -> None:
    shutil.copytree(stopped / "snapshots" / "monday", tmp_path / "forged")
    snapshot = open_snapshot(tmp_path / "forged")
    forged = replace(snapshot.manifest, streams_file=FileDigest(len(line), crc32c(line)))
    (snapshot.path / "streams.jsonl").write_bytes(line)
    (snapshot.path / "manifest.json").write_bytes(encode_manifest(forged))
    assert run(snapshot.path / "streams.jsonl").stdout == told


def test_every_row_of_every_table_is_told(stopped: Path) -> None:
    for place in (stopped / "state", stopped / "state" / "data.mdb", stopped / "snapshots" / "monday"):
        rows = dumped(place)
        assert not [row for row in rows if "error" in row]
        assert {row["table"] for row in rows} <= set(TABLES)
        assert [row["key"] for row in rows if row["table"] == "keys"] == ["odd", "s"]
        assert sum(row["table"] == "entries" for row in rows) == 2502
        (pending,) = (row for row in rows if row["table"] == "pel")
        assert (pending["ids"], pending["delivery_count"]) == (["1-1", "1-2", "1-3"], 1)


def test_runs_of_one_millisecond_are_told_apart_by_their_turns(tmp_path: Path) -> None:
    product = Product(tmp_path / "data", HandClock(1_700_000_000_000))
    for number in range(1, 4):
        product.run("XADD", "s", f"{number}-0", "f", "v")
    product.run("XGROUP", "CREATE", "s", "g", "0")
    product.run("XREADGROUP", "GROUP", "g", "Alice", "STREAMS", "s", ">")
    product.run("XCLAIM", "s", "g", "Alice", "0", "1-0", "JUSTID")
    product.close()
    rows = dumped(tmp_path / "data" / "state", "--table", "pel")
    told = [(row["ids"], row["delivery_time_ms"], row["turn"]) for row in rows]
    assert told == [(["1-0"], 1_700_000_000_000, 1), (["2-0", "3-0"], 1_700_000_000_000, 0)]


def test_only_the_tables_and_rows_asked_for_are_told(stopped: Path) -> None:
    rows = dumped(stopped / "state", "--table", "names", "--table", "groups", "--limit", 3)
    assert [row["table"] for row in rows] == ["names", "names", "groups"]


def test_what_cannot_be_dumped_is_said_with_status_2(stopped: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ((stopped,), "name a key, or"),
        ((stopped, "none"), "there is no stream none in database 0"),
        ((stopped, "s", "--db", 77), "there is no database 77"),
        ((stopped, "s", "--start", "x"), "x is neither an ID nor a time such as"),
        ((tmp_path / "none",), "no such file or directory"),
        ((tmp_path / "none", "key"), "there is no"),
        (("localhost:1", "key"), "cannot be reached"),
        (("localhost:6379",), "is a server: name a key"),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert words in " ".join(result.stderr.split()), arguments


# -- the forms ---------------------------------------------------------------------------------------------------------


def test_who_writes_to_a_file_sees_how_far_it_has_come(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(StepProgress, "show", lambda self, step, done, total: seen.update({step: (done, total)}))
    lines = len(ids(stopped, "s"))
    dumped(stopped / "state")
    run(stopped / "appendonlydir")
    assert seen["reading entries"] == (2000, lines)
    assert seen["reading tables"][0] % 1000 == 0
    done, total = seen["reading the log"]
    assert done == total == sum(path.stat().st_size for path in (stopped / "appendonlydir").glob("*.incr.aof"))
