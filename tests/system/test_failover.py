"""FAILOVER: a primary hands over to a replica, loses nothing, and is the primary still when that cannot be."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartRedis, StartRiverbed
from tests.support.faults.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.replicas import follow, info, offset_of, syncs, until_level, until_linked
from tests.support.servers import RiverbedServer, Server
from tests.support.waiting import until

OK = b"+OK\r\n"
NOBODY = 1  # a port where nobody listens
NEVER_S = 2_000_000_000  # longer than any machine is up


def state_of(server: Server) -> str:
    return info(server)["master_failover_state"]


def until_state(server: Server, state: str) -> None:
    until(lambda: state_of(server) == state, f"{state}\n{server.log_tail()}")


def length(server: Server) -> int:
    with server.client() as client:
        return int(client.ask("XLEN", "s")[1:])


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    """The server does nothing meanwhile, and its links stay."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        until(lambda: "\nState:\tT" in Path(f"/proc/{server.pid}/status").read_text(), "a process that has stopped")
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def pretend(primary: Server, port: int) -> RawClient:
    """A replica that says that it listens on `port`, and that it has everything."""
    replica = primary.client()
    assert replica.ask("REPLCONF", "listening-port", port) == OK
    assert replica.ask("REPLCONF", "riverbed", 1) == OK
    replica.send("PSYNC", info(primary)["master_replid"], offset_of(primary) + 1)
    assert replica.reply().startswith(b"+CONTINUE ")
    replica.send("REPLCONF", "ACK", offset_of(primary))
    return replica


@pytest.fixture
def primary(start_riverbed: StartRiverbed) -> RiverbedServer:
    """Has written something, and pings nobody, so that its log stands still."""
    primary = start_riverbed(options={"repl-timeout": NEVER_S, "repl-ping-replica-period": NEVER_S})
    with primary.client() as client:
        client.ask("XADD", "s", "*", "f", "v")
    return primary


@pytest.fixture
def replica(start_riverbed: StartRiverbed, primary: RiverbedServer) -> RiverbedServer:
    replica = start_riverbed()
    follow(replica, primary.port)
    until_level(primary, replica)
    return replica


@pytest.mark.parametrize("named", [False, True])
def test_a_replica_takes_over_and_nobody_needs_a_full_sync(
    start_riverbed: StartRiverbed, primary: RiverbedServer, replica: RiverbedServer, named: bool
) -> None:
    below = start_riverbed()
    follow(below, replica.port)
    full = syncs(primary)[0] + syncs(replica)[0]
    with primary.client() as client:
        order = ("FAILOVER", *(("TO", "127.0.0.1", replica.port) if named else ()))
        replies = client.pipeline([("XADD", "s", "*", "f", "v"), order, ("XADD", "s", "*", "f", "too late")])
    assert replies[1] == OK
    assert replies[2].startswith(b"-READONLY "), "a write that came behind the order waits, and is refused"
    until_state(primary, "no-failover")
    until_linked(primary)
    assert info(replica)["role"] == "master"
    with replica.client() as client:
        client.ask("XADD", "s", "*", "f", "v")
    until_level(replica, primary, below)
    assert [length(server) for server in (replica, primary, below)] == [3, 3, 3]
    assert syncs(primary)[0] + syncs(replica)[0] == full


def test_writes_wait_until_the_replica_has_everything(primary: RiverbedServer, replica: RiverbedServer) -> None:
    with primary.client() as client, primary.client() as writer:
        with stopped(replica):
            client.ask("XADD", "s", "*", "f", "v")
            assert client.ask("FAILOVER") == OK
            writer.send("XADD", "s", "*", "f", "waits")
            assert state_of(primary) == "waiting-for-sync"
            assert client.ask("FAILOVER") == b"-ERR FAILOVER already in progress.\r\n"
            assert client.ask("REPLICAOF", "NO", "ONE") == b"-ERR REPLICAOF not allowed while failing over.\r\n"
            assert client.ask("PSYNC", "?", -1) == b"-NOMASTERLINK Can't SYNC while failing over\r\n"
            assert client.ask("CLIENT", "UNPAUSE") == OK  # which is about other pauses
            assert client.ask("XLEN", "s") == b":2\r\n"
        assert writer.reply().startswith(b"-READONLY ")
    until_linked(primary)
    assert length(replica) == 2


@pytest.mark.parametrize("way", ["abort", "timeout"])
def test_a_failover_that_is_given_up_lets_writes_pass(
    primary: RiverbedServer, replica: RiverbedServer, way: str
) -> None:
    with primary.client() as client, primary.client() as writer, stopped(replica):
        client.ask("XADD", "s", "*", "f", "v")
        assert client.ask("FAILOVER", "TIMEOUT", 300 if way == "timeout" else 3_600_000) == OK
        writer.send("XADD", "s", "*", "f", "waits")
        if way == "abort":
            assert client.ask("FAILOVER", "ABORT") == OK
        assert writer.reply().startswith(b"$")
        assert state_of(primary) == "no-failover"
        assert info(primary)["role"] == "master"
        assert client.ask("FAILOVER", "ABORT") == b"-ERR No failover in progress.\r\n"
    until_level(primary, replica)


def test_a_forced_failover_does_not_wait_for_what_the_replica_lacks(
    primary: RiverbedServer, replica: RiverbedServer
) -> None:
    with primary.client() as client:
        with stopped(replica):
            client.ask("XADD", "s", "*", "f", "v")
            assert client.ask("FAILOVER", "TO", "127.0.0.1", replica.port, "FORCE", "TIMEOUT", 1) == OK
            until_state(primary, "failover-in-progress")
            assert client.ask("XADD", "s", "*", "f", "v").startswith(b"-READONLY ")
        until_state(primary, "no-failover")
    until_linked(primary)
    assert info(replica)["role"] == "master"
    until_level(replica, primary)
    assert length(primary) == length(replica) >= 1


def test_who_cannot_be_reached_is_tried_until_it_is_given_up(primary: RiverbedServer) -> None:
    with pretend(primary, NOBODY), primary.client() as client:
        assert client.ask("FAILOVER") == OK
        until_state(primary, "failover-in-progress")
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"-READONLY ")
        assert client.ask("FAILOVER", "ABORT") == OK
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
    assert info(primary)["role"] == "master"


def test_who_does_not_take_over_leaves_the_primary_one(start_riverbed: StartRiverbed, primary: RiverbedServer) -> None:
    other = start_riverbed()  # no replica at all
    with pretend(primary, other.port), primary.client() as client:
        replies = client.pipeline([("FAILOVER", "TO", "127.0.0.1", other.port), ("XADD", "s", "*", "f", "v")])
        assert replies[0] == OK
        until_state(primary, "no-failover")
        assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
    assert "PSYNC FAILOVER can't be sent to a master." in primary.log_text()
    assert info(other)["role"] == "master"


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_replica_whose_answer_is_lost_is_the_only_primary(
    start_riverbed: StartRiverbed, primary: RiverbedServer, is_busy: bool
) -> None:
    """It has taken over, and refuses to do it once more."""
    lost: list[bytes] = []

    def lose(data: bytes, passed: int) -> bytes:
        if b"+CONTINUE" in data and not lost:
            lost.append(data)
            proxy.cut()
            return b""
        if is_busy and len(lost) == 1:  # any other refusal tells nothing either
            lost.append(data)
            return b"-ERR max number of clients reached\r\n"
        return data

    with Proxy(lambda: replica.port) as proxy:
        replica = start_riverbed(options={"replica-announce-port": proxy.port})
        follow(replica, primary.port)
        until_level(primary, replica)
        proxy.alter = lose
        with primary.client() as client:
            client.ask("XADD", "s", "*", "f", "v")
            assert client.ask("FAILOVER") == OK
            until(lambda: len(lost) == 1 + is_busy, "the answers that are lost")
            until_linked(primary)
            assert state_of(primary) == "no-failover"
        assert [info(server)["role"] for server in (primary, replica)] == ["slave", "master"]
        with replica.client() as client:
            client.ask("XADD", "s", "*", "f", "v")
        until_level(replica, primary)
        assert length(primary) == length(replica) == 3
        primary.stop()


def test_a_late_replica_that_was_forced_is_followed_although_its_answer_is_lost(
    start_riverbed: StartRiverbed, primary: RiverbedServer
) -> None:
    """What it lacks is given up, so that everything comes from it."""
    lost: list[bytes] = []

    def lose(data: bytes, passed: int) -> bytes:
        if b"+FULLRESYNC" in data and not lost:
            lost.append(data)
            proxy.cut()
            return b""
        return data

    with Proxy(lambda: replica.port) as proxy, Proxy(lambda: primary.port) as link:
        replica = start_riverbed(options={"replica-announce-port": proxy.port})
        follow(replica, link.port)
        until_level(primary, replica)
        before = length(replica)
        link.alter = lambda data, passed: b""
        proxy.alter = lose
        with primary.client() as client:
            client.ask("XADD", "s", "*", "f", "v")
            assert client.ask("FAILOVER", "TO", "127.0.0.1", proxy.port, "FORCE", "TIMEOUT", 50) == OK
            until_linked(primary)
            assert state_of(primary) == "no-failover"
        assert lost
        assert [info(server)["role"] for server in (primary, replica)] == ["slave", "master"]
        until_level(replica, primary)
        assert length(primary) == length(replica) == before
        primary.stop()


def test_a_replica_that_comes_back_with_nothing_is_not_followed(
    start_riverbed: StartRiverbed, primary: RiverbedServer
) -> None:
    """It never took over, and is a primary since its start."""
    with Proxy(lambda: other.port) as proxy:
        other = start_riverbed()

        def lose(data: bytes, passed: int) -> bytes:
            if b"PSYNC FAILOVER can't" in data and proxy.connections == 1:
                proxy.cut()
                return b""
            return data

        proxy.alter = lose
        with pretend(primary, proxy.port), primary.client() as client:
            assert client.ask("FAILOVER", "TO", "127.0.0.1", proxy.port) == OK
            until(lambda: "lacks what is here" in info(primary).get("riverbed_master_link_reason", ""), "a refusal")
            assert state_of(primary) == "failover-in-progress"
            assert client.ask("FAILOVER", "ABORT") == OK
        assert info(primary)["role"] == "master"
        assert length(primary) == 1
        primary.stop()


def test_a_replica_that_has_lost_what_it_acknowledged_does_not_take_over(
    start_riverbed: StartRiverbed, primary: RiverbedServer, tmp_path: Path
) -> None:
    """Its store is of before, as a power cut leaves it where the log was not synced yet."""
    with Proxy(lambda: replica.port) as proxy:
        replica = start_riverbed(
            options={"replica-announce-port": proxy.port, "replicaof": f"127.0.0.1 {primary.port}"}
        )
        until_level(primary, replica)
        replica.stop()
        shutil.copytree(replica.directory, tmp_path / "before")
        replica.start()
        with primary.client() as client:
            client.ask("XADD", "s", "*", "f", "v")
            until_level(primary, replica)
            proxy.refuses = True
            assert client.ask("FAILOVER") == OK
            until_state(primary, "failover-in-progress")
            replica.kill()
            shutil.rmtree(replica.directory)
            shutil.copytree(tmp_path / "before", replica.directory)
            replica.start()
            proxy.refuses = False
            until_state(primary, "no-failover")
            assert info(primary)["role"] == "master"
            assert client.ask("XADD", "s", "*", "f", "v").startswith(b"$")
        until_level(primary, replica)
        assert length(primary) == length(replica) == 3
    assert "PSYNC FAILOVER offset is beyond the log here" in primary.log_text()


def test_a_server_that_stops_while_it_waits_stops(primary: RiverbedServer, replica: RiverbedServer) -> None:
    with primary.client() as client, stopped(replica):
        client.ask("XADD", "s", "*", "f", "v")
        assert client.ask("FAILOVER", "TIMEOUT", 3_600_000) == OK
        assert client.ask("CONFIG", "SET", "shutdown-timeout", 1) == OK
        assert primary.stop() == 0


def test_a_redis_among_the_replicas_is_never_handed_over_to(
    start_riverbed: StartRiverbed, start_redis: StartRedis
) -> None:
    primary, redis = start_riverbed(), start_redis()
    with redis.client() as client:
        client.ask("REPLICAOF", "127.0.0.1", primary.port)
    until(lambda: "state=online" in info(primary).get("slave0", ""), "the replica")
    with primary.client() as client:
        for order in (["FAILOVER"], ["FAILOVER", "TO", "127.0.0.1", str(redis.port)]):
            assert client.ask(*order).startswith(b"-ERR FAILOVER requires a replica that is a Riverbed")
        assert client.ask("FAILOVER", "TO", "127.0.0.1", NOBODY) == (
            b"-ERR FAILOVER target HOST and PORT is not a replica.\r\n"
        )
        assert client.ask("FAILOVER", "TO", "127.0.0.1", redis.port, "FORCE") == (
            b"-ERR FAILOVER with force option requires both a timeout and target HOST and IP.\r\n"
        )


def test_a_replica_takes_over_for_its_own_line_only(replica: RiverbedServer) -> None:
    with replica.client() as client:
        assert client.ask("PSYNC", "a" * 40, 1, "FAILOVER") == (b"-ERR PSYNC FAILOVER replid must match my replid.\r\n")
    assert info(replica)["role"] == "slave"
