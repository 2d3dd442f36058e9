"""REPLICAOF, ROLE, WAIT, REPLCONF and PSYNC as words: with the replies of redis-server, where it has them.

What replicas and primaries do is looked at in `tests/system/test_replication.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer

NOBODY = "1"  # a port where nobody listens

SCRIPTS = [
    "WAIT; WAIT 0; WAIT 0 0 0; WAIT 0 0; WAIT -1 0; WAIT 1 20; WAIT x 0; WAIT 1 x; WAIT 1 1.5; WAIT 1 -1",
    "WAIT 9223372036854775807 1; WAIT 9223372036854775808 1; WAIT -9223372036854775808 1",
    "MULTI; XADD k 1-1 f v; WAIT 1 0; WAIT 1 -1; ROLE; REPLICAOF no one; PSYNC ? -1; EXEC",
    "MULTI; WAIT 1 0; ROLE; REPLICAOF no one; REPLCONF x y; EXEC",
    "REPLICAOF; REPLICAOF no; REPLICAOF no one; SLAVEOF NO ONE; SLAVEOF no one x; ROLE; ROLE x",
    "REPLICAOF h x; REPLICAOF h -1; REPLICAOF h 65536; REPLICAOF h 99999999999999999999; REPLICAOF h 01",
    "REPLCONF; REPLCONF x; REPLCONF x y; REPLCONF listening-port x; REPLCONF listening-port 1 capa; REPLCONF capa eof",
    f"REPLCONF ip-address {'x' * 255}; REPLCONF ip-address {'x' * 256}",
    "PSYNC; PSYNC ?; PSYNC ? x",
    "FAILOVER; FAILOVER ABORT; FAILOVER ABORT x; FAILOVER x; FAILOVER FORCE; FAILOVER FORCE FORCE; PSYNC ? -1 FAILOVER",
    "FAILOVER TO; FAILOVER TO h; FAILOVER TO h x; FAILOVER TO h 1; FAILOVER TO h 1 TO h 1; FAILOVER TO h 1 FORCE",
    "FAILOVER TIMEOUT; FAILOVER TIMEOUT x; FAILOVER TIMEOUT 0; FAILOVER TIMEOUT -1; FAILOVER TIMEOUT 1 TIMEOUT 1",
    # by a replica
    f"REPLICAOF 127.0.0.1 {NOBODY}; FAILOVER; FAILOVER ABORT; FAILOVER TO h 1; FAILOVER x; REPLICAOF no one",
    f"REPLICAOF 127.0.0.1 {NOBODY}; SLAVEOF 127.0.0.1 {NOBODY}; WAIT 0 0; WAIT x 0; PSYNC ? -1; REPLICAOF no one",
    f"REPLICAOF 127.0.0.1 {NOBODY}; XADD k 1-1 f v; XLEN k; MULTI; DEL k; EXEC; PUBLISH a b; REPLICAOF no one",
]


@pytest.fixture
def others(server: RiverbedServer, oracle: RedisServer) -> Iterator[Pair]:
    """Second connections to both servers."""
    with server.client() as ours, oracle.client() as theirs:
        yield Pair(ours, theirs)


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_about_replicas_are_answered_as_redis_does(pair: Pair, script: str) -> None:
    for line in script.split("; "):
        pair.say(line)


@pytest.mark.parametrize(
    ("order", "back"),
    [
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        (f"REPLICAOF 127.0.0.1 {NOBODY}", "REPLICAOF no one"),
    ],
)
@pytest.mark.parametrize("queued", ["XADD k 1-1 f v", "XLEN k"])
def test_a_transaction_is_refused_as_a_whole_by_what_came_since_it_was_queued(
    pair: Pair, others: Pair, order: str, back: str, queued: str
) -> None:
    for line in ("MULTI", "PING", queued):
        pair.say(line)
    others.say(order)
    try:
        is_refused = pair.say("EXEC").startswith(b"-EXECABORT Transaction discarded because of: ")
    finally:
        others.say(back)
    assert is_refused is queued.startswith("XADD")
    pair.say("XLEN k")
    pair.say("EXEC")


def test_a_transaction_that_makes_a_replica_writes_nothing_after_that(client: RawClient) -> None:
    queued = [("XADD", "k", "1-1", "f", "v"), ("REPLICAOF", "127.0.0.1", NOBODY), ("XADD", "k", "2-1", "f", "v")]
    replies = client.pipeline([("MULTI",), *queued, ("XLEN", "k"), ("EXEC",)])
    assert client.ask("REPLICAOF", "NO", "ONE") == b"+OK\r\n"
    assert replies[-1].startswith(b"*4\r\n$3\r\n1-1\r\n+OK\r\n-READONLY ")
    assert replies[-1].endswith(b"\r\n:1\r\n")
    assert client.ask("XLEN", "k") == b":1\r\n"


def test_hello_says_whether_this_is_a_replica(client: RawClient) -> None:
    assert client.ask("REPLICAOF", "127.0.0.1", NOBODY) == b"+OK\r\n"
    as_replica = client.ask("HELLO")
    assert client.ask("REPLICAOF", "NO", "ONE") == b"+OK\r\n"
    assert b"\r\n$4\r\nrole\r\n$7\r\nreplica\r\n" in as_replica
    assert b"\r\n$4\r\nrole\r\n$6\r\nmaster\r\n" in client.ask("HELLO")


@pytest.mark.parametrize("host", [b"", b"\xff\xfe", b"a\r\nmaster_port:1", b"a\tb", "a\u0085b".encode()])
def test_a_primary_has_a_name_that_can_be_told_again(client: RawClient, host: bytes) -> None:
    assert client.ask("REPLICAOF", host, NOBODY) == b"-ERR Invalid master host\r\n"
    assert client.ask("ROLE").startswith(b"*3\r\n$6\r\nmaster\r\n")


@pytest.mark.parametrize("address", [b"\xff\xfe", b"a\r\nmaster_port:1"])
def test_a_replica_has_an_address_that_can_be_told(client: RawClient, address: bytes) -> None:
    assert client.ask("REPLCONF", "ip-address", address) == b"-ERR Invalid ip-address\r\n"


@pytest.mark.parametrize("host", ["x" * 64, "x" * 300, "bücher.invalid", "two words"])
def test_a_name_that_nobody_can_have_is_a_reason_why_the_link_is_down(client: RawClient, host: str) -> None:
    assert client.ask("REPLICAOF", host, NOBODY) == b"+OK\r\n"
    try:
        assert host.encode() in client.ask("ROLE")
        assert b"\r\nmaster_link_status:down\r\n" in client.ask("INFO", "replication")
    finally:
        assert client.ask("REPLICAOF", "NO", "ONE") == b"+OK\r\n"
