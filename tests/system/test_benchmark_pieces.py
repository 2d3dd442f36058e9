"""What the questions of `python -m benchmarks` are made of measures what it says, and nothing that failed is measured.

No figure is judged.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from benchmarks import rig as rigs
from benchmarks.growth import entries as growth
from benchmarks.load import pauses
from benchmarks.load.background import rewrite_log, rewritten_after
from benchmarks.load.crowd import crowd
from benchmarks.load.traffic import FIRST_MS, SteadyWriter, endless_load, load, read_for
from benchmarks.reads import checksums, groups, pending
from benchmarks.report import Answer, Measurement, rounds_text
from benchmarks.rig import QUICK, Contender, Rig
from benchmarks.upkeep import memory, rewrite, starting
from tests.conftest import StartRiverbed
from tests.support.servers import ROOT, Server, StartError

pytestmark = [pytest.mark.slow, pytest.mark.once]  # what is looked at is the benchmarks

ENTRIES = 3_000
ROUNDS = 2
LITTLE = replace(
    QUICK,
    rounds=ROUNDS,
    append_requests={64: 6_400},
    read_entries=ENTRIES,
    read_requests=200,
    entries=ENTRIES,
    pending=1_000,
    growth_entries=(100, 200),
)
WAIT_S = 0.3


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(LITTLE, tmp_path, lambda text: None) as rig:
        yield rig


def length(server: Server) -> int:
    with server.client() as client:
        return int(client.ask("XLEN", "events")[1:])


def kill_in_a_while(server: Server) -> None:
    time.sleep(WAIT_S)
    server.kill()
    time.sleep(WAIT_S)


# -- rounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "rounds", "text"),
    [
        ([[1.0, 2.0, 3.0], []], 3, "medians of 3"),
        ([[1.0, 2.0, 3.0], [4.0]], 3, "medians of 3, and what has no range was measured once"),
        ([[1.0], [4.0]], 3, "measured once"),
        ([[1.0], [4.0]], 1, "measured once"),
    ],
)
def test_a_table_says_what_was_measured_in_rounds(samples: list[list[float]], rounds: int, text: str) -> None:
    lines = [Measurement("what", "s", riverbed=each) for each in samples]
    assert rounds_text(Answer("title", "command", lines), rounds) == text


def test_memory_that_was_looked_at_once_has_one_sample(rig: Rig) -> None:
    for line in memory.answer(rig).measurements:
        is_once = "loading" in line.what or "for a group" in line.what
        assert len(line.riverbed) == len(line.redis) == (1 if is_once else ROUNDS), line.what


def test_every_start_that_counts_is_on_what_a_killed_server_left(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Contender, Path]] = []

    def start(rig: Rig, contender: Contender, directory: Path) -> float:
        begun.append((contender, directory))
        return float(begun.count((contender, directory)))

    monkeypatch.setattr(starting, "_start", start)
    answer = starting.answer(rig)
    for line in answer.measurements:  # the first one has what the loader left, and is followed by the first kill
        assert line.redis == line.riverbed == [2.0, 3.0], line.what


def test_starts_leave_the_data_sets_of_other_questions_as_they_are(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "WRITING_S", 0.1)
    starting.answer(rig)
    for contender in Contender:
        with rig.opened(contender, rig.dataset(contender, ENTRIES).directory) as server:
            assert length(server) == ENTRIES


def test_a_size_of_growth_is_what_there_is_to_start_and_replay(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, int]] = []

    def start(rig: Rig, contender: Contender, directory: Path) -> float:
        with rig.opened(contender, directory) as server, server.client() as client:
            seen.append((client.ask("DBSIZE"), length(server)))
        return 1.0

    monkeypatch.setattr(growth, "_start", start)
    for name, number in (("_APPENDS", 200), ("_READS", 200), ("_TURNS", 1)):
        monkeypatch.setattr(growth, name, number)
    curves = {curve.name: curve for curve in growth.curves(rig)}
    assert seen == [(b":1\r\n", size) for _ in range(ROUNDS) for _ in Contender for size in LITTLE.growth_entries]
    for contender in Contender:
        for curve in curves.values():
            counts = {size: len(samples) for size, samples in curve.samples[contender].items()}
            assert counts == dict.fromkeys(LITTLE.growth_entries, ROUNDS), curve.name


# -- what is measured --------------------------------------------------------------------------------------------------


def test_checksums_are_of_the_rows_that_are_read_and_of_those_that_are_appended(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Sequence[bytes]] = []

    def compare(rows: Sequence[bytes]) -> float:
        compared.append(rows)
        return 1.0

    monkeypatch.setattr(checksums, "_compared_us", compare)
    checksums.answer(rig)
    with rig.server(Contender.RIVERBED, "everysec") as server:
        load(server.port, "events", 1, explicit_ids=True)
        with server.client() as client:
            client.ask("XADD", "other", f"{FIRST_MS}-0", *checksums._WORDS)
            for rows, key in zip(compared, ("events", "other") * ROUNDS, strict=True):
                entry = client.ask("XRANGE", key, "-", "+").removeprefix(b"*1\r\n*2\r\n")
                assert rows[0].startswith(entry), key


def test_a_rate_beside_a_rewrite_is_that_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flood:
        def length(self) -> int:
            return int(1000 * time.perf_counter())

    def rewrite_log(server: Server) -> float:
        time.sleep(WAIT_S)
        return WAIT_S

    monkeypatch.setattr(rewrite, "rewrite_log", rewrite_log)
    seconds, a_second = rewrite._rewrite_beside(cast("Server", None), cast("rewrite.Flood", Flood()))
    assert seconds == WAIT_S
    assert a_second == pytest.approx(1000, rel=0.5)


def test_a_trim_that_is_measured_trims_as_many_as_it_says(rig: Rig) -> None:
    most, unread = 9 * 10_000 + 4_000, 2_000
    rig.sizes = replace(LITTLE, pending=most, unread=unread)
    with rig.server(Contender.RIVERBED, "everysec") as server, server.client() as client:
        load(server.port, groups.KEY, most, explicit_ids=True)
        read_for(server.port, groups.KEY, pending.GROUP, most)
        trimmed = []
        for burden in itertools.islice(pending._burdens(rig, server), 11):
            for request in burden.requests:
                client.send_bytes(request)
                reply = client.reply()
                assert not reply.startswith(b"-"), burden.what
            if burden.what.startswith("XTRIM"):
                trimmed.append(reply)
        assert trimmed == [b":%d\r\n" % (unread // 2)] * 2


def test_a_pause_is_none_where_another_process_had_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses._longest_of_one(0.05) > 0
    switches = itertools.count()
    monkeypatch.setattr(pauses, "_switches", lambda: next(switches))
    assert pauses._longest_of_one(0.05) == 0


def test_consumers_that_were_given_nothing_are_noticed(rig: Rig) -> None:
    with rig.server(Contender.RIVERBED, "everysec") as server, server.client() as client:
        load(server.port, groups.KEY, 1_600, explicit_ids=True)
        for group in ("one-1", "many-1", "one-100", "many-100", "pairs-1", "pairs-16", "workers"):
            client.ask("XGROUP", "CREATE", groups.KEY, group, 0)
        with pytest.raises(AssertionError, match="were to be delivered"):
            groups._check(server, Contender.RIVERBED, 1_600)


# -- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"maxclients": 20}, {"requirepass": "secret"}])
def test_clients_that_are_refused_are_no_crowd(start_riverbed: StartRiverbed, options: dict[str, object]) -> None:
    server = start_riverbed(None, options)
    with pytest.raises(RuntimeError, match="could not connect"), crowd(server.port, 50):
        pass


def test_a_steady_writer_says_that_it_has_ended(rig: Rig) -> None:
    with rig.server(Contender.RIVERBED, "everysec") as server:
        with pytest.raises(ConnectionError), SteadyWriter(server.port, "events", 1000):
            kill_in_a_while(server)
        server.start()
        assert length(server)
        with SteadyWriter(server.port, "events", 1000) as writer:
            writer.expect_end()
            kill_in_a_while(server)


def test_a_steady_writer_that_is_refused_says_so(rig: Rig) -> None:
    with rig.server(Contender.REDIS, "everysec") as server:
        with server.client() as client:
            client.ask("SET", "events", "is no stream")
        with pytest.raises(AssertionError, match="WRONGTYPE"), SteadyWriter(server.port, "events", 1000):
            time.sleep(WAIT_S)


def test_a_load_that_ends_before_it_should_is_noticed(rig: Rig) -> None:
    with rig.server(Contender.REDIS, "everysec") as server:
        with endless_load(server.port, "PING", depth=1):
            time.sleep(WAIT_S)
        with pytest.raises(AssertionError, match="ended"), endless_load(server.port, "PING", depth=1):
            kill_in_a_while(server)


def test_a_rewrite_that_is_refused_is_none(rig: Rig) -> None:
    with rig.server(Contender.REDIS, "everysec") as server:
        rewrite_log(server)
        with server.client() as client:
            client.ask("CONFIG", "SET", "requirepass", "secret")
        with pytest.raises(AssertionError, match="NOAUTH"):
            rewrite_log(server)
        with pytest.raises(AssertionError, match="NOAUTH"), rewritten_after(server, 0.0):
            pass


def test_a_server_that_does_not_come_up_is_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[Server] = []
    make = rig.server

    def server(contender: Contender, fsync: str, directory: Path | None = None) -> Server:
        servers.append(make(contender, fsync, directory))
        return servers[-1]

    monkeypatch.setattr(rig, "server", server)
    monkeypatch.setattr(rigs, "LOAD_TIMEOUT_S", 0.0)
    with pytest.raises(StartError):
        rig.opened(Contender.REDIS, rig.new_directory())
    assert [each.process for each in servers] == [None]


_TERMINATED = """
import os, signal, sys
from benchmarks import __main__ as benchmarks
from benchmarks.rig import Contender

def question(rig):
    with rig.server(Contender.REDIS, "everysec") as server:
        print("pid", server.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it goes on")

benchmarks.QUESTIONS["disk"] = question
benchmarks.main(["disk", "--quick", "--directory", sys.argv[1]])
"""


def test_benchmarks_that_are_terminated_leave_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TERMINATED, str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
    pid = next(int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith("pid "))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
