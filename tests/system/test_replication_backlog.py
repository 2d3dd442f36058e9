"""Replicas that were away during a rewrite or a restart of their primary are sent what they lack, not everything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from riverbed.store.layout import LOG_DIRECTORY
from tests.conftest import StartRedis, StartRiverbed
from tests.support.faults.proxy import Proxy
from tests.support.read_log import manifest_of
from tests.support.replicas import fill, follow, syncs, until_level
from tests.support.servers import RiverbedServer, Server
from tests.support.waiting import rewritten, until

StartReplica = Callable[[], Server]
MB = 1 << 20
NEVER_S = 1_000_000  # far longer than any test


@pytest.fixture(params=["riverbed", "redis"])
def start_replica(
    request: pytest.FixtureRequest, start_riverbed: StartRiverbed, start_redis: StartRedis
) -> StartReplica:
    return start_riverbed if request.param == "riverbed" else start_redis


def log_files(server: Server) -> list[str]:
    """The files of the log, without base and manifest."""
    return sorted(path.name for path in (server.directory / LOG_DIRECTORY).glob("*.incr.aof"))


def kept(server: Server) -> list[str]:
    """The files before the base that replicas may ask for."""
    return [file.name for file in manifest_of(server.directory).backlog]


def entries(server: Server) -> bytes:
    with server.client(timeout_s=120) as client:
        return client.ask("XRANGE", "s", "-", "+")


def absence(primary: RiverbedServer, replica: Server, meanwhile: Callable[[], None]) -> tuple[int, int, int]:
    """Cut `replica` off while something happens; -> the syncs that its return took."""
    with Proxy(lambda: primary.port) as proxy:
        follow(replica, proxy.port)
        until_level(primary, replica)
        proxy.refuses = True
        proxy.cut()
        meanwhile()
        before = syncs(primary)
        proxy.refuses = False
        until_level(primary, replica)
        after = syncs(primary)
        assert entries(replica) == entries(primary)
    full, partial, refused = (now - then for now, then in zip(after, before, strict=True))
    return full, partial, refused


def test_50_mb_of_writes_and_a_rewrite(start_riverbed: StartRiverbed, start_replica: StartReplica) -> None:
    primary, replica = start_riverbed(), start_replica()

    def write_and_rewrite() -> None:
        with primary.client() as client:
            for _ in range(50):
                client.pipeline([("XADD", "s", "MAXLEN", "=", 100, "*", "f", bytes(MB // 8)) for _ in range(8)])
        rewritten(primary)

    with primary.client() as client:
        fill(client, "s", 1000)
    assert absence(primary, replica, write_and_rewrite) == (0, 1, 0)


def test_rewrites_with_restarts_between_them(start_riverbed: StartRiverbed, start_replica: StartReplica) -> None:
    primary, replica = start_riverbed(), start_replica()

    def rewrite_and_restart() -> None:
        for number in range(3):
            with primary.client() as client:
                fill(client, "s", 100)
            if number < 2:
                rewritten(primary)
            primary.restart()

    with primary.client() as client:
        fill(client, "s", 100)
    assert absence(primary, replica, rewrite_and_restart) == (0, 1, 0)


@pytest.mark.parametrize("end", ["SHUTDOWN", "TERM", "KILL"])
@pytest.mark.parametrize("is_configured", [False, True])
def test_a_replica_that_was_told_to_follow_starts_again_and_again(
    start_riverbed: StartRiverbed, end: str, is_configured: bool
) -> None:
    """It is a primary for a moment, or is started as a replica from the second time on; nothing is written."""
    primary = start_riverbed(options={"repl-timeout": NEVER_S, "repl-ping-replica-period": NEVER_S})
    with primary.client() as client:
        fill(client, "s", 20)
    replica = start_riverbed()
    follow(replica, primary.port)
    until_level(primary, replica)
    before = syncs(primary)
    for is_first in (True, False, False):
        if end == "SHUTDOWN":
            with replica.client() as client:
                client.send("SHUTDOWN")
            assert replica.wait_ended() == 0
        elif end == "TERM":
            replica.stop()
        else:
            replica.kill()
        if is_configured and not is_first:
            replica.options["replicaof"] = f"127.0.0.1 {primary.port}"
        replica.start()
        if "replicaof" not in replica.options:
            follow(replica, primary.port)
        until_level(primary, replica)
    assert syncs(primary) == (before[0], before[1] + 3, before[2])


def test_restarts_without_a_write_between_them(start_riverbed: StartRiverbed, start_replica: StartReplica) -> None:
    primary, replica = start_riverbed(), start_replica()

    def restart() -> None:
        for _ in range(3):
            primary.restart()

    with primary.client() as client:
        fill(client, "s", 100)
    assert absence(primary, replica, restart) == (0, 1, 0)


def test_the_log_says_why_a_replica_is_sent_everything(
    start_riverbed: StartRiverbed, start_replica: StartReplica
) -> None:
    primary, replica = start_riverbed(options={"repl-backlog-size": 0}), start_replica()

    def write_and_rewrite() -> None:
        with primary.client() as client:
            fill(client, "s", 100)
        rewritten(primary)

    with primary.client() as client:
        fill(client, "s", 100)
    assert absence(primary, replica, write_and_rewrite) == (1, 0, 1)
    assert "is sent everything: the log that is kept does not have what it lacks" in primary.log_text()


def test_a_compaction_of_the_stopped_primary(start_riverbed: StartRiverbed, start_replica: StartReplica) -> None:
    primary, replica = start_riverbed(), start_replica()

    def write_and_compact() -> None:
        with primary.client() as client:
            fill(client, "s", 1000)
            client.ask("XTRIM", "s", "MAXLEN", 500)
        primary.stop()
        command = [sys.executable, "-m", "riverbed.tools.entry", "compact", str(primary.directory), "--yes"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        assert "of the old log are kept" in done.stdout
        primary.start()

    with primary.client() as client:
        fill(client, "s", 100)
    assert absence(primary, replica, write_and_compact) == (0, 1, 0)


def test_a_damaged_end_of_the_former_log_costs_a_full_sync(
    start_riverbed: StartRiverbed, start_replica: StartReplica
) -> None:
    primary, replica = start_riverbed(), start_replica()
    sound: dict[Path, bytes] = {}

    def rewrite_and_damage() -> None:
        with primary.client() as client:
            fill(client, "s", 5000)
        rewritten(primary)
        (name,) = kept(primary)
        path = primary.directory / LOG_DIRECTORY / name
        sound[path] = path.read_bytes()
        data = bytearray(sound[path])
        data[len(data) * 3 // 4] ^= 1
        path.write_bytes(data)

    with primary.client() as client:
        fill(client, "s", 100)
    full, _, _ = absence(primary, replica, rewrite_and_damage)
    assert full == 1
    assert "is sent everything: it has nothing, or what another server wrote" in primary.log_text()
    for path, data in sound.items():
        path.write_bytes(data)


def test_what_as_much_was_written_after_is_deleted(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"repl-backlog-size": MB})
    with server.client() as client:
        fill(client, "s", 100)
        rewritten(server)
        assert kept(server) == log_files(server)[:1]
        fill(client, "s", 10, MB // 8)
        until(lambda: kept(server) == [] and len(log_files(server)) == 1, "the end of the old file")
        rewritten(server)
        assert len(kept(server)) == 1
        client.ask("CONFIG", "SET", "repl-backlog-size", 0)
        until(lambda: kept(server) == [] and len(log_files(server)) == 1, "the end of the old file")


def test_a_restart_keeps_the_end_of_the_former_log(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed()
    with server.client() as client:
        fill(client, "s", 100)
    rewritten(server)
    before = kept(server)
    assert before
    server.restart()
    server.kill()
    server.start()
    assert kept(server) == before
    assert log_files(server)[0] == before[0]


def test_a_redis_opens_the_directory_and_deletes_the_end_of_the_former_log(
    start_riverbed: StartRiverbed, start_redis: StartRedis
) -> None:
    server = start_riverbed()
    with server.client() as client:
        fill(client, "s", 100)
    rewritten(server)
    with server.client() as client:
        fill(client, "s", 100)
    expected = entries(server)
    server.stop()
    (old,) = kept(server)
    redis = start_redis(directory=server.directory)
    assert entries(redis) == expected
    until(lambda: not (server.directory / LOG_DIRECTORY / old).exists(), "the end of the old file")
