"""Directories of a Redis: our server and tools refuse them, say how streams are copied, and change no byte."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import StartRedis, StartRiverbed
from tests.support.program import run
from tests.support.servers import RiverbedServer, Server, StartError
from tests.support.trees import changes, tree
from tests.support.waiting import rewritten

LOG = "appendonlydir"
TOOLS = [
    ["stat", "{}"],
    ["check", "{}"],
    ["check", "{}", "--repair"],
    ["compact", "{}", "--yes"],
    ["snapshot", "{}"],
    ["dump", "{}", "s"],
]


def fill(server: Server) -> None:
    with server.client() as client:
        assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
        client.ask("SET", "string", "precious")


def refusal(directory: Path, options: dict[str, object] | None = None) -> str:
    """Why our server does not start there; nothing is changed."""
    before = tree(directory)
    with pytest.raises(StartError) as refused, RiverbedServer(directory, directory.parent / "refused", options):
        pass
    assert changes(before, tree(directory)) == []
    assert "Traceback" not in str(refused.value)
    return str(refused.value)


def refused_by_tools(directory: Path) -> list[str]:
    """What each tool says; nothing is changed."""
    before, told = tree(directory), []
    for words in TOOLS:
        asked = [word.format(directory) for word in words]
        result = run(*asked)
        assert result.exit_code == 2, (words, result.stdout)
        assert changes(before, tree(directory)) == [], words
        told.append(" ".join(result.stderr.split()))
    return told


@pytest.mark.parametrize("rewritten_before", [False, True])
@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_log_of_redis_is_refused_and_left_alone(
    start_redis: StartRedis, rewritten_before: bool, preamble: str
) -> None:
    redis = start_redis(options={"aof-use-rdb-preamble": preamble})
    fill(redis)
    if rewritten_before:
        rewritten(redis)
    redis.stop()
    reason = refusal(redis.directory)
    assert f"the log in {redis.directory / LOG} was written by a Redis" in reason
    can_be_replayed = preamble == "no" or not rewritten_before
    assert (f"`riverbed replay {redis.directory} NEW`" in reason) == can_be_replayed
    replayed = run("replay", redis.directory, redis.directory.parent / "new")
    assert replayed.exit_code == (1 if can_be_replayed else 2), "1: a string is left out"
    assert "`riverbed import redis://" in reason
    for told in refused_by_tools(redis.directory)[:5]:
        assert "was written by a Redis" in told
        assert "start riverbed-server" not in told
    redis.start()
    with redis.client() as client:
        assert client.ask("GET", "string") == b"$8\r\nprecious\r\n"


def test_a_redis_that_runs_is_named(start_redis: StartRedis) -> None:
    redis = start_redis()
    fill(redis)
    assert f"redis-server (pid {redis.pid}) has it open" in refusal(redis.directory)


def test_a_redis_that_runs_on_our_log_keeps_us_out(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    ours = start_riverbed()
    fill(ours)
    ours.stop()
    directory = tmp_path / "copy"
    shutil.copytree(ours.directory, directory)
    redis = start_redis(directory)
    with redis.client() as client:
        assert client.ask("XADD", "s", "2-1", "f", "v") == b"$3\r\n2-1\r\n"
    assert f"redis-server (pid {redis.pid}) writes the log in it" in refusal(directory)
    for words in (["check", "{}", "--repair"], ["compact", "{}", "--yes"]):
        before = tree(directory)
        result = run(*[word.format(directory) for word in words])
        assert result.exit_code == 2
        assert "redis-server" in result.stderr
        assert changes(before, tree(directory)) == []


def test_our_log_is_refused_once_a_redis_has_rewritten_it(
    start_riverbed: StartRiverbed, start_redis: StartRedis, tmp_path: Path
) -> None:
    ours = start_riverbed()
    fill(ours)
    ours.stop()
    directory = tmp_path / "copy"
    shutil.copytree(ours.directory, directory)
    redis = start_redis(directory)
    rewritten(redis)
    redis.stop()
    assert "was written by a Redis" in refusal(directory)
    result = run("replay", directory, tmp_path / "new")
    assert result.exit_code == 0, result.stderr
    again = start_riverbed(tmp_path / "new")
    with again.client() as client:
        assert client.ask("XLEN", "s") == b":1\r\n"


def test_our_log_that_redis_check_aof_has_cut_is_still_ours(start_riverbed: StartRiverbed) -> None:
    ours = start_riverbed()
    fill(ours)
    ours.kill()
    (last,) = (ours.directory / LOG).glob("*.incr.aof")
    with last.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET")
    program = shutil.which("redis-check-aof")
    assert program is not None
    manifest = ours.directory / LOG / "appendonly.aof.manifest"
    subprocess.run([program, "--fix", str(manifest)], input=b"y\n", capture_output=True, check=True)
    ours.start()
    with ours.client() as client:
        assert client.ask("XLEN", "s") == b":1\r\n"


def test_a_redis_without_a_log_is_refused(start_redis: StartRedis) -> None:
    redis = start_redis(options={"appendonly": "no"})
    fill(redis)
    with redis.client() as client:
        assert client.ask("SAVE") == b"+OK\r\n"
    redis.stop()
    reason = refusal(redis.directory)
    assert f"{redis.directory / 'dump.rdb'} is the data of a Redis" in reason
    assert "riverbed import" in reason
    assert "riverbed replay" not in reason
    assert "is the data of a Redis" in refused_by_tools(redis.directory)[0]


def test_the_single_file_of_an_old_redis_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "old"
    directory.mkdir()
    (directory / "appendonly.aof").write_bytes(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n")
    reason = refusal(directory)
    assert "is the data of a Redis" in reason
    assert "riverbed replay" in reason


def test_a_redis_with_other_names_is_refused(start_redis: StartRedis) -> None:
    redis = start_redis(options={"appenddirname": "other", "appendfilename": "name"})
    fill(redis)
    redis.stop()
    assert f"the log in {redis.directory / 'other'} was written by a Redis" in refusal(redis.directory)
    names: dict[str, object] = {"appenddirname": "other", "appendfilename": "name"}
    reason = refusal(redis.directory, names)
    assert "appenddirname: only 'appendonlydir' is supported: `riverbed replay DIR NEW` makes" in reason


def test_a_store_of_ours_is_ours_whatever_lies_beside_it(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    riverbed.stop()
    (riverbed.directory / "dump.rdb").write_bytes(b"REDIS0009")
    (riverbed.directory / "old.aof").write_bytes(b"*1\r\n$4\r\nPING\r\n")
    riverbed.start()


def test_files_that_only_look_like_those_of_a_redis_keep_nobody_out(
    start_riverbed: StartRiverbed, tmp_path: Path
) -> None:
    directory = tmp_path / "new"
    (directory / "folder").mkdir(parents=True)
    (directory / "empty.aof").touch()
    (directory / "notes.rdb").write_text("not of a Redis")
    (directory / "folder/app.manifest").write_text("CACHE MANIFEST\n")
    (directory / "dump.rdb").symlink_to("/dev/zero")
    with start_riverbed(directory).client() as client:
        assert client.ask("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("part", ["state", LOG])
def test_a_part_of_a_store_is_told_from_a_store(start_riverbed: StartRiverbed, part: str) -> None:
    ours = start_riverbed()
    fill(ours)
    ours.stop()
    for told in refused_by_tools(ours.directory / part):
        assert f"the data directory {ours.directory}: name that" in told
