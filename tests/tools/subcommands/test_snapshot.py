from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from riverbed.store.snapshot.reader import list_snapshots, open_snapshot
from tests.support import program
from tests.support.replicas import fill
from tests.support.servers import ROOT, RiverbedServer

StartRiverbed = Callable[..., RiverbedServer]


run = partial(program.run, "snapshot")
made = partial(program.report, "snapshot")


@pytest.fixture
def directory(start_riverbed: StartRiverbed) -> Path:
    """A store that was stopped."""
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "field", "value") for number in range(1, 300)])
    server.stop()
    return server.directory


def test_a_stopped_store_is_frozen_whole(directory: Path) -> None:
    report = made(directory)
    snapshot = open_snapshot(Path(report["path"]), verify=True)
    assert snapshot.path.parent == directory / "snapshots"
    assert (snapshot.manifest.entries, report["entries"], report["streams"]) == (299, 299, 1)
    assert (report["offset"], report["bytes"]) == (snapshot.manifest.offset, snapshot.size_bytes)
    assert snapshot.manifest.program.startswith("riverbed ")


def test_a_running_server_goes_on_and_its_last_checkpoint_is_frozen(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-0", "field", "value") for number in range(1, 300)])
        client.ask("SAVE")
        report = made(server.directory)
        assert client.ask("XLEN", "s") == b":299\r\n"
    assert report["entries"] == 299


def test_the_report_for_people_says_where_it_is(directory: Path, tmp_path: Path) -> None:
    result = run(directory, tmp_path / "monday")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"made {tmp_path / 'monday'}"
    assert "299" in lines[3]


def test_parts_are_as_long_as_asked_for(directory: Path) -> None:
    (stream,) = open_snapshot(Path(made(directory, "--split-every", 100)["path"])).streams()
    assert [part.entries for part in stream.parts] == [100, 100, 99]


def test_keep_makes_its_folder_and_keeps_so_many(directory: Path, tmp_path: Path) -> None:
    reports = [made(directory, tmp_path / "all" / "of", "--keep", 2) for _ in range(3)]
    found = [str(snapshot.path) for snapshot in list_snapshots(tmp_path / "all" / "of")]
    assert found == [report["path"] for report in reports[1:]]
    assert reports[2]["deleted"] == [Path(reports[0]["path"]).name]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{tmp}/none"], "is not a directory"),
        (["{tmp}"], "holds no tables yet"),
        (["{dir}", "{dir}"], "is in the data directory itself, which has its snapshots in"),
        (["{dir}", "{dir}/state/lock.mdb"], "exists already"),
        (["{dir}", "--keep", "0"], "0 is not in the range"),
        (["{dir}", "--split-every", "x"], "not a valid integer"),
    ],
)
def test_what_cannot_be_done_is_said_with_status_2(
    directory: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    words = [word.replace("{tmp}", str(tmp_path)).replace("{dir}", str(directory)) for word in arguments]
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in " ".join(result.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_an_interrupt_as_lmdb_begins_to_copy_ends_it(start_riverbed: StartRiverbed, tmp_path: Path, count: int) -> None:
    server = start_riverbed()
    with server.client() as client:
        fill(client, "s", 60_000, 100)  # more than the pipe takes
        assert client.ask("SAVE") == b"+OK\r\n"
    directory = server.directory
    for number in range(10):
        out = tmp_path / f"out-{number}"
        out.mkdir()
        words = [sys.executable, "-m", "riverbed.tools.cli", "snapshot", str(directory), str(out)]
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # the one that copies and LMDB's own, beside the first
        while process.poll() is None and len(os.listdir(f"/proc/{process.pid}/task")) < 3:
            pass
        for _ in range(count):
            process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode in (0, 130), complaint
        if process.returncode == 130 and count == 1:
            assert list(out.iterdir()) == [], "nothing is left of it"
