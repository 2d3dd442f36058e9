"""Replication over TLS: full and partial syncs, what is refused, and a real Redis as the replica."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.certificates import Authority, Certificates
from tests.support.raw import RawClient
from tests.support.tls import Start, TlsRedis
from tests.support.waiting import until


def is_up(client: RawClient) -> bool:
    return client.info("replication").get("master_link_status") == "up"


def reason(client: RawClient) -> str:
    """Why its link is down."""
    return client.info("replication").get("riverbed_master_link_reason", "")


def length(client: RawClient) -> bytes:
    return client.ask("XLEN", "s")


def append(client: RawClient, count: int, size: int = 1000) -> None:
    for _ in range(count // 100):
        client.pipeline([["XADD", "s", "*", "f", "v" * size]] * 100)


def test_a_replica_follows_its_primary_over_tls(start_tls: Start) -> None:
    primary = start_tls()
    with primary.client() as client:
        append(client, 20_000)
        replica = start_tls(replicaof=f"127.0.0.1 {primary.port}", tls_replication="yes")
        with replica.client() as follower:
            until(lambda: is_up(follower), "a full sync")
            assert length(follower) == b":20000\r\n"
            append(client, 5_000)
            until(lambda: length(follower) == b":25000\r\n", "a replica that has everything")
            assert client.ask("WAIT", 1, 60_000) == b":1\r\n"
            assert f"port={replica.port}" in client.info("replication")["slave0"]
            syncs = client.ask("INFO", "stats")
            assert b"sync_full:1\r\n" in syncs
            client.ask("CLIENT", "KILL", "TYPE", "replica")
            append(client, 1_000)
            until(lambda: length(follower) == b":26000\r\n", "a replica that has come back")
            assert b"sync_partial_ok:1\r\n" in client.ask("INFO", "stats")
            assert replica.stop() == 0  # while the link is there
        assert client.ask("PING") == b"+PONG\r\n"


def test_a_replica_that_reads_slowly_costs_its_primary_no_memory(start_tls: Start) -> None:
    primary = start_tls()
    with primary.client() as client:
        append(client, 40_000)
        before = primary.private_bytes()
        replica = start_tls(replicaof=f"127.0.0.1 {primary.port}", tls_replication="yes")
        with replica.client() as follower:
            until(lambda: is_up(follower), "a full sync")
            assert length(follower) == b":40000\r\n"
        assert primary.private_bytes() - before < 30 << 20


def test_a_primary_of_another_authority_is_not_followed(start_tls: Start, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "other")
    primary = start_tls()
    replica = start_tls(replicaof=f"127.0.0.1 {primary.port}", tls_replication="yes")
    with replica.client() as client, primary.client() as source:
        until(lambda: is_up(client), "a link")
        assert client.ask("CONFIG", "SET", "tls-ca-cert-file", other.cert) == b"+OK\r\n"
        source.ask("CLIENT", "KILL", "TYPE", "replica")
        until(lambda: "certificate" in reason(client), "a refusal")
        assert "the TLS handshake failed" in reason(client)


def test_without_tls_replication_a_port_with_tls_is_no_primary(start_tls: Start) -> None:
    primary = start_tls()
    replica = start_tls(replicaof=f"127.0.0.1 {primary.port}")
    with replica.client() as client:
        until(lambda: "closed the link" in reason(client), "a refusal")
        assert client.ask("CONFIG", "SET", "tls-replication", "yes") == b"+OK\r\n"
        until(lambda: is_up(client), "a link")


def test_a_redis_follows_over_tls(start_tls: Start, certificates: Certificates, tmp_path: Path) -> None:
    primary = start_tls()
    directory = tmp_path / "redis"
    directory.mkdir()
    options = {"replicaof": f"127.0.0.1 {primary.port}", "tls-replication": "yes"}
    replica = TlsRedis(directory, tmp_path / "logs", options)
    replica.certificates = certificates
    with primary.client() as client:
        append(client, 2_000)
        client.ask("BGREWRITEAOF")
        with replica, replica.client() as follower:
            until(lambda: is_up(follower) and length(follower) == b":2000\r\n", "a replica")
            append(client, 100)
            until(lambda: length(follower) == b":2100\r\n", "a replica that has everything")


@pytest.mark.parametrize("kind", ["replica", "primary"])
def test_a_failover_works_over_tls(start_tls: Start, kind: str) -> None:
    primary = start_tls(tls_replication="yes")
    replica = start_tls(replicaof=f"127.0.0.1 {primary.port}", tls_replication="yes")
    with primary.client() as client, replica.client() as follower:
        until(lambda: is_up(follower), "a link")
        append(client, 100)
        until(lambda: length(follower) == b":100\r\n", "a replica that has everything")
        if kind == "primary":
            assert client.ask("FAILOVER") == b"+OK\r\n"
            until(lambda: follower.info("replication")["role"] == "master", "a new primary")
            until(lambda: is_up(client), "a link the other way round")
        else:
            assert follower.ask("REPLICAOF", "NO", "ONE") == b"+OK\r\n"
            assert client.ask("REPLICAOF", "127.0.0.1", replica.port) == b"+OK\r\n"
            until(lambda: is_up(client), "a link the other way round")
        append(follower, 100)
        until(lambda: length(client) == b":200\r\n", "the former primary has everything")


def test_certificates_are_renewed_while_a_replica_follows(start_tls: Start, tmp_path: Path) -> None:
    """All of them come from another authority then; the link goes on, and a new one needs the new certificates."""
    place = Certificates.make(tmp_path / "place")
    start_tls.certificates = place
    primary = start_tls(tls_replication="yes")
    replica = start_tls(replicaof=f"127.0.0.1 {primary.port}", tls_replication="yes")
    with primary.client() as client, replica.client() as follower:
        until(lambda: is_up(follower), "a link")
        renewed = Certificates.make(tmp_path / "renewed")
        for path in (place.authority.cert, *vars(place.server).values(), *vars(place.client).values()):
            shutil.copy(tmp_path / "renewed" / path.name, path)
        append(client, 1000)
        assert client.ask("CONFIG", "SET", "tls-cert-file", place.server.cert) == b"+OK\r\n"
        until(lambda: length(follower) == b":1000\r\n", "the link that was there goes on")
        client.ask("CLIENT", "KILL", "TYPE", "replica")  # the replica believes the former authority still
        until(lambda: "certificate" in reason(follower), "a refusal")
        assert follower.ask("CONFIG", "SET", "tls-ca-cert-file", place.authority.cert) == b"+OK\r\n"
        append(client, 1000)
        until(lambda: is_up(follower) and length(follower) == b":2000\r\n", "a link with the new certificates")
        assert b"sync_full:1\r\n" in client.ask("INFO", "stats")
    assert renewed.authority.cert.read_bytes() == place.authority.cert.read_bytes()


@pytest.mark.parametrize("shown", ["client", "foreign"])
def test_a_replica_shows_its_own_certificate(start_tls: Start, tmp_path: Path, shown: str) -> None:
    foreign = Authority(tmp_path / "foreign", "other").issue("stranger")
    own = start_tls.certificates.client if shown == "client" else foreign
    primary = start_tls()
    files = {"tls_client_cert_file": own.cert, "tls_client_key_file": own.key}
    replica = start_tls(replicaof=f"127.0.0.1 {primary.port}", tls_replication="yes", **files)
    with replica.client() as follower:
        if shown == "client":
            until(lambda: is_up(follower), "a link")
        else:
            until(lambda: "handshakes failed" in primary.log_text(), "a handshake that fails")
            assert not is_up(follower)
