"""The servers that tests start are their own, whatever else runs on the machine, and forked ones are as any other."""

from __future__ import annotations

import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.forking import ForkedServer, is_possible
from tests.support.servers import (
    IMPORTED_FROM,
    ROOT,
    RedisServer,
    RiverbedServer,
    Server,
    StartError,
    free_port,
    ports_of_worker,
)
from tests.support.waiting import until

StartRiverbed = Callable[..., RiverbedServer]

needs_nursery = pytest.mark.skipif(not is_possible(), reason="servers are started by their command here")


@pytest.mark.parametrize("kind", [RiverbedServer, RedisServer])
def test_a_server_that_took_the_port_first_is_not_taken_for_ours(
    riverbed: RiverbedServer, kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "ours"
    directory.mkdir()
    ports = itertools.chain([riverbed.port], iter(free_port, None))
    monkeypatch.setattr(kind, "choose_port", lambda self: next(ports))
    with kind(directory, tmp_path / "logs") as server:
        assert server.port != riverbed.port
        with server.client() as client:
            assert str(server.pid) in client.tree("INFO", "server").text.decode()


def test_no_port_belongs_to_two_workers() -> None:
    names = [{"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": "3"} for number in range(3)]
    ports = [set(ports_of_worker(name)) for name in names]
    assert set.union(*ports) == set(ports_of_worker({}))
    assert sum(map(len, ports)) == len(set.union(*ports))


class Started(RiverbedServer):
    """A server that is started by its command."""

    nursery = None


def traits(server: RiverbedServer) -> dict[str, object]:
    """What the kernel and the server itself tell of its process, but for what differs between any two."""
    place = Path(f"/proc/{server.pid}")
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
    kept = ("Uid", "Gid", "Groups", "Threads", "Umask", "SigQ", "SigBlk", "SigIgn", "SigCgt", "ShdPnd", "Seccomp")
    with server.client() as client:
        until(lambda: b"connected_clients:1\r\n" in client.ask("INFO", "clients"), "the end of earlier connections")
        files = sorted(described(path, server) for path in (place / "fd").iterdir())
        info = client.tree("INFO", "server").text.decode()
    return {
        **{name: status[name] for name in kept},
        "limits": (place / "limits").read_text(),
        "directory": os.readlink(place / "cwd"),
        "program": os.readlink(place / "exe"),
        "files": files,
        "session and group": (os.getsid(server.pid), os.getpgid(server.pid)),
        "priority": os.getpriority(os.PRIO_PROCESS, server.pid),
        "parts": sorted({line.split()[-1] for line in (place / "maps").read_text().splitlines() if ".so" in line}),
        "says": re.findall(r"^(?:executable|riverbed_native|config_file):.*", info, re.MULTILINE),
    }


def described(descriptor: Path, server: RiverbedServer) -> str:
    """What a descriptor is of, with its number where that has a meaning."""
    target = os.readlink(descriptor).replace(str(server.directory), "DIR").replace(str(server.log_path), "LOG")
    return f"{descriptor.name if int(descriptor.name) < 3 else ''} {re.sub('[0-9]{2,}', 'N', target)}"


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[RiverbedServer, RiverbedServer]]:
    """A forked server, and one that is started by its command."""
    places = [tmp_path / "forked", tmp_path / "started"]
    for place in places:
        place.mkdir()
    with RiverbedServer(places[0], tmp_path / "logs") as forked, Started(places[1], tmp_path / "logs") as started:
        yield forked, started


@needs_nursery
def test_a_forked_server_is_a_process_as_one_that_was_started(both: tuple[RiverbedServer, RiverbedServer]) -> None:
    forked, started = both
    assert isinstance(forked.process, ForkedServer)
    assert isinstance(started.process, subprocess.Popen)
    assert traits(forked) == traits(started)


@needs_nursery
def test_forked_servers_share_nothing(start_riverbed: StartRiverbed) -> None:
    first, second = start_riverbed(), start_riverbed()
    ids = []
    for server in (first, second):
        with server.client() as client:
            ids += re.findall(r"(?:run_id|master_replid|process_id):(\w+)", client.tree("INFO").text.decode())
            assert client.ask("XLEN", "s") == b":0\r\n"
            assert client.ask("CONFIG", "SET", "timeout", "7") == b"+OK\r\n"
            assert client.ask("XADD", "s", "1-1", "f", "v") == b"$3\r\n1-1\r\n"
    assert len(set(ids)) == 6
    third = start_riverbed()
    with third.client() as client:
        assert client.tree("CONFIG", "GET", "timeout").pairs()[0][1].text == b"0"


@pytest.mark.parametrize("kind", [RiverbedServer, Started])
def test_how_a_server_ends_is_told(kind: type[RiverbedServer], tmp_path: Path) -> None:
    for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9), (signal.SIGQUIT, -3)):
        directory = tmp_path / number.name
        directory.mkdir()
        server = kind(directory, tmp_path / "logs").start()
        process = server.process
        assert process is not None
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        assert server.wait_ended() == status
        assert (process.poll(), process.wait(), process.returncode) == (status, status, status)
        assert not Path(f"/proc/{process.pid}").exists()
        process.kill()  # which is too late
    with pytest.raises(StartError, match=r"ended with status 1\n[\s\S]*nosuch: there is no such setting"):
        kind(tmp_path, tmp_path / "logs", {"nosuch": 1}).start()


@needs_nursery
def test_a_server_in_other_surroundings_is_started_by_its_command(
    start_riverbed: StartRiverbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_forked() -> bool:
        return isinstance(start_riverbed().process, ForkedServer)

    assert is_forked()
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_BUFFER_SIZE", "65536")  # as Spark does in the tests' process
        patch.setenv("TMPDIR", str(tmp_path))
        patch.setattr(tempfile, "tempdir", None)  # or the one of this test would be kept for all that follow
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(IMPORTED_FROM))
        assert is_forked()
    with monkeypatch.context() as patch:
        patch.setenv("RIVERBED_OF_A_TEST", "1")
        assert not is_forked()
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE):
        soft, hard = resource.getrlimit(name)
        resource.setrlimit(name, (3_000, hard))
        try:
            assert not is_forked()
        finally:
            resource.setrlimit(name, (soft, hard))
    mask = os.umask(0o077)
    try:
        assert not is_forked()
    finally:
        os.umask(mask)
    with monkeypatch.context() as patch:
        patch.setattr(RiverbedServer, "working_directory", ROOT / "tests")
        assert not is_forked()
    with monkeypatch.context() as patch:
        patch.setattr(RiverbedServer, "environment", {**os.environ})
        assert not is_forked()
    assert is_forked()
