"""MULTI, EXEC, DISCARD, WATCH, UNWATCH, with the replies of redis-server."""

from __future__ import annotations

import time

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.rows import assert_same_row
from tests.support.servers import RiverbedServer
from tests.support.waiting import until_blocked

SCRIPTS = [
    "MULTI; PING; XADD k 1-1 f v; XLEN k; EXEC; XLEN k",
    "MULTI; EXEC",
    "MULTI; MULTI; PING; EXEC",
    "MULTI; WATCH k; PING; EXEC",
    "MULTI; UNWATCH; EXEC",
    "EXEC; DISCARD; PING",
    "MULTI; XADD k 1-1 f v; DISCARD; XLEN k; DISCARD",
    # refused while queueing: nothing runs
    "MULTI; XADD k; XADD k 1-1 f v; EXEC; XLEN k",
    "MULTI; NONSENSE; XADD k 1-1 f v; EXEC; XLEN k",
    "MULTI; CLIENT NONSENSE; EXEC; PING",
    "MULTI; XADD; DISCARD; MULTI; PING; EXEC",
    # refused while running: the others run
    "MULTI; XADD k 5-1 f v; XADD k 1-1 f v; XLEN k; XADD k x f v; EXEC; XLEN k",
    "MULTI; SELECT 3; XADD k 1-1 f v; EXEC; XLEN k; SELECT 0; XLEN k; SELECT 3; DEL k; SELECT 0",
    "MULTI; XREAD BLOCK 0 STREAMS k $; PING; EXEC",
    "MULTI; QUIT",
    "MULTI; CLIENT SETNAME me; CLIENT GETNAME; EXEC",
    "MULTI; AUTH default x; ECHO a; EXEC",
    "WATCH k; XADD k 1-1 f v; MULTI; XLEN k; EXEC; MULTI; XLEN k; EXEC",
    "WATCH k; UNWATCH; XADD k 1-1 f v; MULTI; XLEN k; EXEC",
    "WATCH k; XADD k 1-1 f v; MULTI; DISCARD; MULTI; XLEN k; EXEC",
    "WATCH k; XADD other 1-1 f v; MULTI; XLEN k; EXEC",
    "WATCH k; SELECT 1; XADD k 1-1 f v; MULTI; XLEN k; EXEC; DEL k; SELECT 0",
    "XADD k 1-1 f v; WATCH k; DEL k; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH k; XDEL k 5-5; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH k; XDEL k 1-1; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH k; RENAME k l; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH l; RENAME k l; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH k; EXPIRE k 100; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH k; FLUSHALL; MULTI; PING; EXEC",
    "WATCH k; FLUSHALL; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH k; FLUSHDB; MULTI; PING; EXEC",
    "XADD k 1-1 f v; WATCH k; SWAPDB 0 1; MULTI; PING; EXEC; FLUSHALL",
    "SELECT 1; XADD k 1-1 f v; SELECT 0; WATCH k; SWAPDB 0 1; MULTI; PING; EXEC; FLUSHALL",
    "SELECT 1; XADD k 1-1 f v; SELECT 0; WATCH k; MOVE k 1; MULTI; PING; EXEC; FLUSHALL",
    "WATCH k l m; XADD m 1-1 f v; MULTI; PING; EXEC",
    "WATCH k; WATCH k; MULTI; PING; EXEC; XADD k 1-1 f v; MULTI; PING; EXEC",
    "WATCH k; MULTI; XADD k 1-1 f v; EXEC",
    "WATCH; UNWATCH x; MULTI x; DISCARD x",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_transactions_are_answered_as_redis_does(pair: Pair, script: str) -> None:
    for line in script.split("; "):
        pair.say(line)


def test_null_of_a_broken_transaction_follows_the_protocol(client: RawClient) -> None:
    for protocol, null in ((2, b"*-1\r\n"), (3, b"_\r\n")):
        client.ask("HELLO", protocol)
        replies = [client.ask(*line.split()) for line in ("WATCH k", "XADD k * f v", "MULTI", "PING", "EXEC")]
        assert replies[-1] == null


def test_another_client_breaks_the_watch(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        client.ask("WATCH", "k")
        other.ask("XADD", "k", "1-1", "f", "v")
        assert b" flags=d " in client.ask("CLIENT", "INFO")
        client.ask("MULTI")
        client.ask("XADD", "k", "2-1", "f", "v")
        assert client.ask("EXEC") == b"*-1\r\n"
        assert other.ask("XLEN", "k") == b":1\r\n"


def test_nobody_sees_half_a_transaction(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        client.pipeline([("MULTI",), ("XADD", "a", "1-1", "f", "v")])
        assert other.ask("EXISTS", "a") == b":0\r\n"
        client.ask("XADD", "b", "1-1", "f", "v")
        client.ask("EXEC")
        assert other.ask("EXISTS", "a", "b") == b":2\r\n"


def test_a_client_that_leaves_takes_its_transaction_along(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        other.pipeline([("WATCH", "k"), ("MULTI",), ("XADD", "k", "1-1", "f", "v")])
    assert client.ask("EXISTS", "k") == b":0\r\n"
    assert client.ask("XADD", "k", "1-1", "f", "v") == b"$3\r\n1-1\r\n"


def test_a_transaction_wakes_blocked_clients_when_it_is_over(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as reader:
        reader.send("XREAD", "BLOCK", 0, "COUNT", 10, "STREAMS", "k", "$")
        until_blocked(client, 1)
        client.pipeline([("MULTI",), ("XADD", "k", "1-1", "f", "v"), ("XADD", "k", "1-2", "f", "v"), ("EXEC",)])
        entries = (
            b"*2\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n*2\r\n$3\r\n1-2\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n"
        )
        assert reader.reply() == b"*1\r\n*2\r\n$1\r\nk\r\n" + entries


def test_a_watched_key_that_expires_breaks_the_transaction_once_it_is_gone(pair: Pair) -> None:
    # in one piece: the key must still be there when it is watched, however slow the machine
    script = [("XADD", "k", "1-1", "f", "v"), ("PEXPIRE", "k", 300), ("WATCH", "k")]
    assert pair.ours.pipeline(script) == pair.theirs.pipeline(script) == [b"$3\r\n1-1\r\n", b":1\r\n", b"+OK\r\n"]
    time.sleep(0.35)
    for line in ("MULTI", "PING", "EXEC"):
        reply = pair.ours.ask(line)
    assert reply == b"*-1\r\n"


def test_a_key_that_had_expired_before_is_as_good_as_absent(pair: Pair) -> None:
    for line in ("DEBUG SET-ACTIVE-EXPIRE 0",):
        pair.theirs.ask(*line.split())
    for line in ("XADD k 1-1 f v", "PEXPIRE k 1"):
        pair.say(line)
    time.sleep(0.05)
    for line in ("WATCH k", "MULTI", "PING", "EXEC"):
        reply = pair.say(line)
    assert reply == b"*1\r\n+PONG\r\n"
    pair.theirs.ask("DEBUG", "SET-ACTIVE-EXPIRE", 1)


def test_flags_and_arity_are_those_of_redis(pair: Pair) -> None:
    for name in ("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH"):
        assert_same_row(pair, name)
