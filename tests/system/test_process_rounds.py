"""Real servers under random faults: signals, failing system calls, full disks, little memory, children that die.

What a round does and what must hold is in `tests/support/faults/processes/rounds.py`, which is also a program for any
number of them.  `RIVERBED_SEED=n` or `RIVERBED_SEED=random` runs other rounds than CI does, `RIVERBED_ROUNDS=n` more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import base_seed
from tests.support.faults.disks import small_tmpfs
from tests.support.faults.processes import failing_calls
from tests.support.faults.processes.failing_calls import SHORT, FailingCalls
from tests.support.faults.processes.memory_groups import MemoryGroup
from tests.support.faults.processes.rounds import DISK_BYTES, run
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

ROUNDS = int(os.environ.get("RIVERBED_ROUNDS", "12"))


def hold(place: Path, seed: int, rounds: int, disk: Path | None = None) -> Counter[str]:
    told: Counter[str] = Counter()
    assert list(run(place, rounds, seed, told, disk)) == []
    assert told["rounds"] == rounds
    assert told["acknowledged"] >= 10 * rounds
    assert any(name.startswith("failed calls") for name in told), "no fault met a system call"
    return told


def test_nothing_acknowledged_is_lost_whatever_hits_the_process(tmp_path: Path) -> None:
    hold(tmp_path, base_seed(), ROUNDS)


@pytest.mark.needs_root
def test_nothing_acknowledged_is_lost_on_a_disk_that_fills_up(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk", DISK_BYTES) as disk:
        hold(tmp_path, base_seed() + 500, ROUNDS // 2, disk)


def test_a_call_fails_as_often_as_it_is_asked_to(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    calls = FailingCalls(failing_calls.build(tmp_path), tmp_path / "calls", directory / "appendonlydir")
    server = RiverbedServer(directory, tmp_path / "logs", {"appendfsync": "always"})
    server.environment = calls.environment
    with server, server.client() as client:
        calls.fail("pwrite", SHORT, times=1)
        assert client.ask("XADD", "s", "1-1", "f", "v").startswith(b"$")  # the rest was written by another call
        calls.fail("pwrite", errno.ENOSPC, after=1, times=1)
        assert [client.ask("XADD", "s", f"{number}-1", "f", "v")[:1] for number in (2, 3)] == [b"$", b"-"]
        until(lambda: client.ask("XADD", "s", "*", "f", "v").startswith(b"$"), "a write after the fault")
        assert calls.failed() == {"pwrite": 2}
        assert server.stop() == 0


def test_a_connection_fails_as_often_as_it_is_asked_to(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    calls = FailingCalls(failing_calls.build(tmp_path), tmp_path / "calls", directory)
    server = RiverbedServer(directory, tmp_path / "logs")
    server.environment = calls.environment
    with server, server.client() as client:
        for call in ("receive", "send"):
            calls.fail(call, SHORT, times=2)
            assert client.ask("ECHO", "all of it") == b"$9\r\nall of it\r\n"
        calls.fail("send", errno.ECONNRESET, times=1)
        client.send("PING")
        with contextlib.suppress(ConnectionResetError):
            assert client.rest_until_closed() == b""
        with server.client() as another:
            assert another.ask("PING") == b"+PONG\r\n"
        assert calls.failed() == {"receive": 2, "send": 3}
        assert server.stop() == 0


@pytest.mark.needs_root
def test_a_group_without_memory_loses_a_process_and_counts_it() -> None:
    hungry = [sys.executable, "-c", "import sys; sys.stdin.readline(); wanted = b'x' * (300 << 20)"]
    try:
        group = MemoryGroup()
    except OSError:  # a container whose groups of processes are not its own
        assert not any(os.access(place, os.W_OK) for place in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"))
        return
    with contextlib.closing(group), subprocess.Popen(hungry, stdin=subprocess.PIPE) as process:
        group.add(process.pid)
        group.limit(100 << 20)
        process.communicate(b"\n", timeout=60)
        assert (process.returncode, group.killed()) == (-signal.SIGKILL, 1)


def test_without_a_compiler_the_tests_say_which_one_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="apt-get install -y gcc"):
        failing_calls.build(tmp_path)
