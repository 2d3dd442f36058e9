"""Replay stops at the exact batch, on any log, and what it makes is a whole directory or nothing."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from riverbed.store.disk.files import OsFiles
from riverbed.store.format.log_lines import encode_annotation
from riverbed.store.layout import LOG_DIRECTORY, LOG_MANIFEST
from riverbed.store.log import manifest
from riverbed.store.log.files import batch
from riverbed.store.log.padding import MIN_BYTES, padding
from riverbed.tools.console.console import ProgressBar
from riverbed.tools.offline.heldfiles import HeldFiles
from riverbed.tools.offline.rebuild import rebuild
from riverbed.tools.offline.source import find_source
from tests.conftest import StartRiverbed, base_seed, broken_invariants
from tests.support.in_process import HandClock, Product, answer
from tests.support.raw import RawClient
from tests.support.read_log import manifest_of
from tests.support.replays import (
    KEYS,
    LOG,
    AnyGenerator,
    encoded,
    entry_ids,
    file_of,
    opened,
    refused,
    replay,
    run,
    shown_by,
    small_log,
    state_in,
    xadd,
)
from tests.support.scripts.generators import STREAMS, Command
from tests.support.scripts.group_commands import GROUP_FAMILY, NEWER_FAMILY
from tests.support.waiting import rewritten


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return small_log(tmp_path / "log")


def test_a_copied_log_is_counted_without_making_words_of_its_runs(log: Path, tmp_path: Path) -> None:
    with patch.object(batch, "words_of", side_effect=AssertionError("words")):
        report = replay(log, tmp_path / "target")
    assert report["copied"]
    assert report["commands"] > 0


# -- the exact batch ---------------------------------------------------------------------------------------------------


class Moments:
    """A random log, and after which offset and time it had which state."""

    def __init__(self, directory: Path, seed: int, count: int) -> None:
        self.clock = HandClock()
        self.product = Product(directory, self.clock)
        self.generator = AnyGenerator(random.Random(seed), (STREAMS, KEYS, GROUP_FAMILY, NEWER_FAMILY), wrong=0.02)
        self.found: list[tuple[int, int, dict[tuple[int, bytes], Any]]] = []
        while len(self.found) < count:
            self.step()
        self.product.close()

    def step(self) -> None:
        product = self.product
        before = product.engine.log.end
        self.clock.now_ms += 7
        product.session.db = product.engine.txn.databases[self.generator.random.randrange(3)]
        words: Command = self.generator.command()
        answer(lambda: product.execute(words))
        state = state_in(product)  # what has expired goes here, which is logged as well
        end = product.engine.log.end
        if end.position != before.position:
            self.found.append((end.offset, self.clock.now_ms, state))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_replay_stops_at_the_exact_batch(tmp_path: Path, number: int) -> None:
    source = tmp_path / "source"
    moments = Moments(source, base_seed() + number, 60)
    offsets = [offset for offset, _, _ in moments.found]
    for place, (offset, now_ms, state) in enumerate(moments.found):
        target = tmp_path / f"{place}-by-time"
        report = replay(source, target, "--until", f"@{now_ms}")
        assert (report["offset"], report["time_ms"], report["copied"]) == (offset, now_ms, True)
        assert opened(target, now_ms) == state
        if offset not in offsets[place + 1 :]:  # else only extensions follow, which replicas of Redis do not count
            target = tmp_path / f"{place}-by-offset"
            report = replay(source, target, "--until", offset)
            assert (report["offset"], report["time_ms"]) == (offset, now_ms)
            assert opened(target, now_ms) == state


def test_replay_stops_where_a_running_server_was(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = start_riverbed(options={"log-segment-bytes": 1 << 16})
    moments: list[tuple[int, dict[tuple[int, bytes], Any]]] = []
    with server.client() as client:
        for number in range(1, 13):
            client.ask("SELECT", number % 3)
            client.pipeline([("MULTI",), *(xadd(number * 100 + more) for more in range(90)), ("EXEC",)])
            client.ask("XGROUP", "CREATE", "s", "g", "0")
            client.ask("XREADGROUP", "GROUP", "g", f"c{number}", "COUNT", 3, "STREAMS", "s", ">")
            client.ask("XDEL", "s", f"{number * 100}-1")
            moments.append((int(offset_of(client)), shown_by(client)))
        assert len(list((server.directory / LOG).glob("*.incr.aof"))) > 2
        for offset, state in moments[::3]:
            target = tmp_path / f"at-{offset}"
            replay(server.directory, target, "--until", offset)  # the server is still running
            restored = start_riverbed(target)
            with restored.client() as reader:
                assert shown_by(reader) == state
                assert reader.ask(*xadd(10_000)) == b"$7\r\n10000-1\r\n"
            restored.restart()
            with restored.client() as reader:
                assert reader.ask("XREVRANGE", "s", "+", "-", "COUNT", 1).startswith(b"*1\r\n*2\r\n$7\r\n10000-1")
            restored.stop()


@pytest.mark.parametrize("place", ["", LOG, f"{LOG}/appendonly.aof.manifest", f"{LOG}/appendonly.aof.1.incr.aof"])
def test_source_is_any_place_that_says_where_the_log_is(log: Path, tmp_path: Path, place: str) -> None:
    report = replay(log / place, tmp_path / "new")
    assert (report["entries"], report["commands"], report["copied"]) == (10, 11, True)
    assert file_of(tmp_path / "new").read_bytes() == file_of(log).read_bytes()
    assert opened(tmp_path / "new", 0) == opened(log, 0)


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_log_that_a_killed_server_has_left_is_copied_without_its_padding(
    log: Path, tmp_path: Path, *, is_alone: bool
) -> None:
    data = file_of(log).read_bytes()
    source = tmp_path / "alone.incr.aof" if is_alone else log
    (source if is_alone else file_of(log)).write_bytes(data + padding(len(data), MIN_BYTES))
    done = run("replay", source, tmp_path / "new")
    assert done.exit_code == 0, done.stderr
    assert "whole batch" not in done.stderr  # no torn tail
    assert file_of(tmp_path / "new").read_bytes() == data


def test_a_log_of_ours_under_other_names_becomes_one_under_ours(log: Path, tmp_path: Path) -> None:
    expected = opened(shutil.copytree(log, tmp_path / "copy"), 1)
    listed = manifest_of(log)
    home = (log / LOG).rename(log / "elsewhere")
    (file,) = listed.files
    (home / file.name).rename(home / "log.1.incr.aof")
    (home / "appendonly.aof.manifest").unlink()
    renamed = replace(listed, incrs=(replace(file, name="log.1.incr.aof"),))
    manifest.replace(home / "log.manifest", renamed, OsFiles())
    replay(log, tmp_path / "new")
    assert opened(tmp_path / "new", 1) == expected
    assert sorted(os.listdir(tmp_path / "new" / LOG)) == ["appendonly.aof.1.incr.aof", "appendonly.aof.manifest"]


def test_moments_before_and_after_all_batches(log: Path, tmp_path: Path) -> None:
    report = replay(log, tmp_path / "early", "--until", "2020-01-01")
    assert (report["entries"], report["offset"], report["next_time_ms"]) == (0, 0, 1_700_000_000_001)
    assert opened(tmp_path / "early", 0) == {}
    report = replay(log, tmp_path / "late", "--until", "2030-01-01T00:00:00Z")
    assert (report["entries"], report["next_offset"], report["missing"]) == (10, None, [])
    report = replay(log, tmp_path / "beyond", "--until", report["offset"] + 1, status=1)
    assert "the log ends at replication offset" in report["missing"][0]


def test_a_copy_is_the_same_store_with_another_replication_id(log: Path, tmp_path: Path) -> None:
    replay(log, tmp_path / "new")
    found_ids = []
    for place in (log, tmp_path / "new"):
        replids = manifest_of(place).replids
        assert replids is not None
        found_ids.append(replids)
    assert found_ids[0].replication_id not in (found_ids[1].replication_id, found_ids[1].previous_id)
    assert found_ids[0].store_id == found_ids[1].store_id


def test_a_rewritten_log_goes_back_to_its_base(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([xadd(number) for number in range(1, 500)])
        before = int(offset_of(client))  # a slow rewrite has many entries behind it
        assert client.ask("BGREWRITEAOF").startswith(b"+")
        while b"aof_rewrite_in_progress:1" in client.ask("INFO", "persistence"):
            client.ask(*xadd(int(time.time() * 1000)))
        replay(server.directory, tmp_path / "base", "--until", int(offset_of(client)))
        client.ask(*xadd(10**15))
        expected = shown_by(client)
    assert server.stop() == 0
    replay(server.directory, tmp_path / "all")
    assert opened(tmp_path / "all", 0) == expected
    assert opened(tmp_path / "base", 0).keys() == expected.keys()
    reason = refused(server.directory, tmp_path / "early", "--until", before // 4)
    assert "this log does not go back to replication offset" in reason


def test_a_manifest_that_a_person_writes_brings_a_log_back(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    """The lines of docs/operations.md, for when manifest and tables are lost."""
    server = start_riverbed()
    with server.client() as client:
        for number in range(1, 101):
            client.ask("XADD", "s", f"{number}-0", "f", "v")
        rewritten(server)
        client.ask("XADD", "s", "101-0", "f", "v")
    assert server.stop() == 0
    copy = tmp_path / "copy"
    (copy / LOG_DIRECTORY).mkdir(parents=True)
    for path in (server.directory / LOG_DIRECTORY).glob("*.aof"):
        shutil.copy(path, copy / LOG_DIRECTORY)
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("file appendonly.aof.")]
    assert len(lines) == 2
    (copy / LOG_DIRECTORY / LOG_MANIFEST).write_text("\n".join(lines) + "\n")
    assert replay(copy, tmp_path / "new")["entries"] == 101
    assert not broken_invariants(tmp_path / "new")
    for path in (copy / LOG_DIRECTORY).glob("*.aof"):
        if path.name in "".join(lines):
            sound = path.read_bytes()
            path.write_bytes(sound.replace(b"\r\nf\r\n", b"\r\ng\r\n", 1))
            assert "checksum does not match" in refused(copy, tmp_path / "none")
            path.write_bytes(sound)


def offset_of(client: RawClient) -> str:
    return client.info("replication")["master_repl_offset"]


BASE_TIME_MS = 1_700_000_000_005


@pytest.fixture
def based(tmp_path: Path) -> Path:
    """The same log, with its first five batches in a base."""
    state = b"".join(map(encoded, [("SELECT", "0"), *map(xadd, range(1, 6))]))
    home = tmp_path / "based" / LOG
    home.mkdir(parents=True)
    base = manifest.LogFile("appendonly.aof.1.base.aof", 1, manifest.FileType.BASE, is_checksummed=True)
    incr = manifest.LogFile("x.3.incr.aof", 3, manifest.FileType.INCR, 5_000, is_checksummed=True)
    (home / base.name).write_bytes(state + encode_annotation(state, 5_000, BASE_TIME_MS))
    (home / incr.name).touch()
    manifest.replace(home / "appendonly.aof.manifest", manifest.Manifest(base, (), (incr,)), OsFiles())
    clock = HandClock(BASE_TIME_MS)
    product = Product(tmp_path / "based", clock)
    for number in range(6, 11):
        clock.now_ms += 1
        product.run(*xadd(number))
    product.close()
    return tmp_path / "based"


def test_a_base_is_a_moment_and_no_history(based: Path, log: Path, tmp_path: Path) -> None:
    report = replay(based, tmp_path / "all")
    assert report["entries"] == 10
    assert opened(tmp_path / "all", 0) == opened(log, 0)
    report = replay(based, tmp_path / "base", "--until", f"@{BASE_TIME_MS}")
    assert (report["entries"], report["next_time_ms"]) == (5, BASE_TIME_MS + 1)
    assert sorted(entry_ids(tmp_path / "base")) == [f"{number}-1" for number in range(1, 6)]
    again = replay(tmp_path / "base", tmp_path / "again")
    assert (again["entries"], again["offset"]) == (5, report["offset"])
    assert "this log does not go back to 2023-11-14T22:13:20.004Z" in refused(
        based, tmp_path / "no", "--until", f"@{BASE_TIME_MS - 1}"
    )
    assert "this log does not go back to replication offset 10" in refused(based, tmp_path / "no", "--until", 10)


def test_a_base_of_an_empty_store_does_not_go_back(start_riverbed: StartRiverbed, tmp_path: Path) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([("XADD", "s", "*", "f", "v")] * 3)
        offset = offset_of(client)
        client.ask("FLUSHALL")
        rewritten(server)
        client.ask("XADD", "t", "1-1", "f", "v")
        client.ask("XADD", "t", "2-1", "f", "v")
    server.stop()
    for until in (offset, "@1700000000000"):
        assert "empty store and no time: this log does not go back to" in refused(
            server.directory, tmp_path / "out", "--until", until
        )
    assert replay(server.directory, tmp_path / "all")["entries"] == 2


def test_what_was_made_is_written_to_like_any_other(based: Path, tmp_path: Path) -> None:
    for until in (f"@{BASE_TIME_MS}", f"@{BASE_TIME_MS + 2}"):
        target = tmp_path / f"new{until}"
        replay(based, target, "--until", until)
        product = Product(target, HandClock(BASE_TIME_MS + 50))
        product.run(*xadd(77))
        product.replay()  # from the log alone
        assert product.run("XREVRANGE", "s", "+", "-", "COUNT", 1)[0][0] == b"77-1"
        product.close()
        assert broken_invariants(target) == []


# -- what is wrong with a source ---------------------------------------------------------------------------------------


def test_torn_tail_is_reported_and_left_out(log: Path, tmp_path: Path) -> None:
    data = file_of(log).read_bytes()
    file_of(log).write_bytes(data[:-10])
    report = replay(log, tmp_path / "new", status=1)
    assert report["entries"] == 9
    assert report["torn_tail"]["file"] == str(file_of(log))
    assert data[: report["torn_tail"]["position"]].endswith(b"t=1700000000009\r\n")
    assert len(entry_ids(tmp_path / "new")) == 9
    assert file_of(log).read_bytes() == data[:-10]


def test_damage_is_refused_with_file_and_place_and_leaves_nothing_behind(log: Path, tmp_path: Path) -> None:
    data = bytearray(file_of(log).read_bytes())
    for at in random.Random(base_seed()).sample(range(len(data) * 2 // 3), 20):
        data[at] ^= 1
        file_of(log).write_bytes(data)
        reason = refused(log, tmp_path / "new")
        assert f"{file_of(log)} at byte " in reason
        data[at] ^= 1


def test_damage_behind_the_moment_does_not_matter(log: Path, tmp_path: Path) -> None:
    data = file_of(log).read_bytes()
    file_of(log).write_bytes(data.replace(b"9-1", b"9-2"))
    report = replay(log, tmp_path / "new", "--until", "@1700000000007")
    assert report["entries"] == 7
    assert len(entry_ids(tmp_path / "new")) == 7


def test_missing_and_shortened_files_are_refused(based: Path, tmp_path: Path) -> None:
    incr = based / LOG / "x.3.incr.aof"
    whole = incr.read_bytes()
    incr.unlink()
    assert "the manifest lists this file, and it is missing" in refused(based, tmp_path / "new")
    incr.write_bytes(whole)
    base = based / LOG / "appendonly.aof.1.base.aof"
    base.write_bytes(base.read_bytes()[:-3])
    assert str(base) in refused(based, tmp_path / "new")


def test_a_log_is_read_as_it_was_found_whatever_is_deleted_meanwhile(based: Path, tmp_path: Path) -> None:
    expected = opened(based, BASE_TIME_MS)
    with HeldFiles() as files, ProgressBar("replaying", 1) as bar:
        source = find_source(based, files)
        shutil.rmtree(based)
        rebuild(source, tmp_path / "new", None, bar)
    assert opened(tmp_path / "new", BASE_TIME_MS) == expected


def test_a_log_that_is_rewritten_while_it_is_being_found_is_found_again(based: Path, log: Path, tmp_path: Path) -> None:
    class Rewritten(HeldFiles):
        """The log takes another form between the look at its manifest and that at its files."""

        def hold(self, paths: Iterable[Path]) -> bool:
            if (tmp_path / "before").exists():
                return super().hold(paths)
            based.rename(tmp_path / "before")
            shutil.copytree(log, based)
            return False

    with Rewritten() as files:
        source = find_source(based, files)
    assert [part.path for part in source.parts] == [based / LOG / "appendonly.aof.1.incr.aof"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("dump.rdb", b"REDIS0011\xfa\x09redis-ver", "BGREWRITEAOF"),
        ("appendonly.aof", b"REDIS0009\xff", "CONFIG SET aof-use-rdb-preamble no"),
        ("appendonly.aof", b"\x00\x01\x02 garbage", "at byte 0: byte 0x00 where a command"),
        ("appendonly.aof", b"*2\r\n$3\r\nDEL\r\n$1\r\na\r\n*1\r\n$x\r\n", "at byte 20: malformed length line"),
        ("appendonly.aof", b"*1\r\n$999999999999999\r\nx", None),
        ("appendonly.aof.7.incr.aof", b"", None),
    ],
)
def test_files_that_are_no_log(tmp_path: Path, name: str, content: bytes, reason: str | None) -> None:
    (tmp_path / name).write_bytes(content)
    if reason is None:  # nothing, or nothing but a torn tail
        report = replay(tmp_path / name, tmp_path / "new", status=bool(content))
        assert report["commands"] == 0
    else:
        assert reason in refused(tmp_path / name, tmp_path / "new")


def test_directories_without_one_log(log: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no log" in refused(empty, tmp_path / "new")
    assert "no such file or directory" in refused(tmp_path / "nowhere", tmp_path / "new")
    (empty / "dump.rdb").write_bytes(b"REDIS0011")
    assert "riverbed import" in refused(empty, tmp_path / "new")
    shutil.copytree(log / LOG, empty / "one")
    assert replay(empty, tmp_path / "from-one")["entries"] == 10
    shutil.copytree(log / LOG, empty / "two")
    assert "several logs" in refused(empty, tmp_path / "new")
    for file in (empty / "one").glob("*.manifest"):
        file.unlink()
    assert "no manifest that says how they belong together" in refused(empty / "one", tmp_path / "new")
    for file in (empty / "two").glob("*.manifest"):
        file.write_bytes(b"file x seq 0 type i\n")
    assert "at byte 0: seq is 0" in refused(empty / "two", tmp_path / "new")


def test_one_file_out_of_several_is_refused(based: Path, tmp_path: Path) -> None:
    assert "the log before that is in other files" in refused(based / LOG / "x.3.incr.aof", tmp_path / "new")
    assert replay(based / LOG / "appendonly.aof.1.base.aof", tmp_path / "new")["entries"] == 5


def test_nothing_is_written_over(log: Path, tmp_path: Path) -> None:
    before = file_of(log).read_bytes()
    assert "is not empty" in refused(log, log)
    assert "exists" in refused(log, file_of(log))
    assert file_of(log).read_bytes() == before


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "@", "@x", "-5", "1.5", "@170000000000.5", "9" * 21])
def test_moments_that_are_none(log: Path, tmp_path: Path, text: str) -> None:
    result = run("replay", log, tmp_path / "new", f"--until={text}")
    assert result.exit_code == 2
    assert "--until" in result.stderr
    assert not (tmp_path / "new").exists()


def test_report_for_people(log: Path, tmp_path: Path) -> None:
    (tmp_path / "new.partial-0123").mkdir()
    result = run("replay", log, tmp_path / "new", "--until", "@1700000000003")
    lines = result.stdout.splitlines()
    assert lines[0] == f"made {tmp_path / 'new'}"
    assert "  entries   3" in lines
    assert any(line.startswith("  up to     2023-11-14T22:13:20.003Z, replication offset ") for line in lines)
    assert any("the batch of 2023-11-14T22:13:20.004Z" in line for line in lines)
    assert "new.partial-0123 was half made by a command that was killed" in result.stderr
