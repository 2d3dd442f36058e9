"""Weaknesses that servers of this kind have had: each has its name and its test here, or is named with its test.

Elsewhere, for they need more than a client:
- no descriptor left for accept (EMFILE), the socket before its permissions: `tests/server/network/test_listener.py`
- output growth before AUTH, where the client does not read: `tests/system/test_pressure.py`
- a client killed while it is woken: `tests/server/commands/test_hostile_waiters.py`
- exponential and very long patterns beside other clients: `tests/server/commands/test_hostile_patterns.py`

No test here measures time: an absurd count that were looped over or allocated would not end, or would end the server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.conftest import StartRiverbed, shared_server
from tests.support.raw import RawClient, parse
from tests.support.servers import RiverbedServer
from tests.support.waiting import until

MB = 1 << 20
NO_KEY = b"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n"
# Around the ends of signed and unsigned numbers of 32 and 64 bits.
SIZES = [number + step for number in (1 << 31, 1 << 32, 1 << 63, 1 << 64) for step in (-1, 0, 1)]


@pytest.fixture(scope="module")
def riverbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RiverbedServer]:
    """A server for all of these tests: a weakness would end it, or keep it from answering the next one."""
    with shared_server(tmp_path_factory) as server:
        yield server


@pytest.fixture
def client(riverbed: RiverbedServer) -> Iterator[RawClient]:
    with riverbed.client() as client:
        for line in (
            "FLUSHALL",
            "ACL DELUSER u",
            "XADD s 1-1 f v",
            "XADD s 2-1 f v",
            "XGROUP CREATE s g 0",
            "XREADGROUP GROUP g c STREAMS s >",
            "XADD secret 1-1 f hidden",
            "ACL SETUSER u on nopass resetchannels ~s ~mine* +@all -@admin -@dangerous",
        ):
            assert not client.ask(*line.split()).startswith(b"-"), line
        yield client


@pytest.fixture
def limited(riverbed: RiverbedServer, client: RawClient) -> Iterator[RawClient]:
    """A client of a user who may use the keys `s` and `mine*`."""
    with riverbed.client() as limited:
        assert limited.ask("AUTH", "u", "x") == b"+OK\r\n"
        yield limited


# -- absurd counts, sizes near 2^31 and 2^63 ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "XAUTOCLAIM s g c 0 0 COUNT {}",
        "XACKDEL s g IDS {} 1-1",
        "XDELEX s IDS {} 1-1",
        "XREAD COUNT {} STREAMS s 0",
        "XREADGROUP GROUP g c COUNT {} STREAMS s 0",
        "XRANGE s - + COUNT {}",
        "XREVRANGE s + - COUNT {}",
        "XPENDING s g - + {}",
        "XINFO STREAM s FULL COUNT {}",
        "XTRIM s MAXLEN {}",
        "XTRIM s MAXLEN ~ 10 LIMIT {}",
        "SCAN 0 COUNT {}",
        "SLOWLOG GET {}",
        "ACL LOG {}",
        "ACL GENPASS {}",
        "XCLAIM s g c 0 1-1 RETRYCOUNT {}",
        "XCLAIM s g c {} 1-1",
    ],
)
def test_absurd_counts_and_sizes_near_powers_of_two(riverbed: RiverbedServer, client: RawClient, line: str) -> None:
    before = riverbed.private_bytes()
    for size in SIZES:
        for number in (size, -size):
            parse(client.ask(*line.format(number).split()))
            assert client.ask("PING") == b"+PONG\r\n", (line, number, riverbed.log_tail())
    assert riverbed.private_bytes() - before < 16 * MB


@pytest.mark.parametrize("header", [b"*%d\r\n", b"*1\r\n$%d\r\n"])
@pytest.mark.parametrize("size", [*SIZES, *(-size for size in SIZES)])
def test_announced_sizes_near_powers_of_two(
    riverbed: RiverbedServer, client: RawClient, header: bytes, size: int
) -> None:
    before = riverbed.private_bytes()
    with riverbed.client() as other:
        other.send_bytes(header % size)
        assert client.ask("PING") == b"+PONG\r\n", riverbed.log_tail()
    assert riverbed.private_bytes() - before < 16 * MB


# -- output growth before AUTH -----------------------------------------------------------------------------------------


def test_replies_before_auth_do_not_repeat_what_was_sent(start_riverbed: StartRiverbed) -> None:
    server = start_riverbed(options={"requirepass": "secret"})
    with server.client() as stranger:
        for words in (["ECHO", "x" * 10_000], ["y" * 10_000], ["HELLO", "3", "SETNAME", "z" * 10_000], ["INFO"]):
            reply = stranger.ask(*words)
            assert reply.startswith(b"-"), reply
            assert len(reply) < 1024


# -- line breaks in errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["no\r\n+OK\r\n"],
        ["XGROUP", "no\r\n+OK\r\n"],
        ["CONFIG", "SET", "no\r\n+OK\r\n", "1"],
        ["XREADGROUP", "GROUP", "no\r\n+OK\r\n", "c", "STREAMS", "s", ">"],
        ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "no\r\n+OK\r\n", ">"],
        ["XINFO", "GROUPS", "no\r\n+OK\r\n"],
        ["XINFO", "CONSUMERS", "s", "no\r\n+OK\r\n"],
        ["ACL", "SETUSER", "v", "no\r\n+OK\r\n"],
        ["ACL", "CAT", "no\r\n+OK\r\n"],
        ["ACL", "DRYRUN", "no\r\n+OK\r\n", "PING"],
        ["CLIENT", "SETNAME", "no\r\n+OK\r\n"],
    ],
)
def test_line_breaks_in_errors(client: RawClient, words: list[str]) -> None:
    reply = client.ask(*words)
    assert reply.startswith(b"-"), reply
    assert reply.count(b"\n") == 1, reply
    assert client.ask("ECHO", "next") == b"$4\r\nnext\r\n", "a part of the error was read as a reply"


# -- exponential globs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [["KEYS", "{}"], ["SCAN", "0", "MATCH", "{}"], ["CONFIG", "GET", "{}"], ["PSUBSCRIBE", "{}"]],
    ids=lambda words: words[0],
)
def test_exponential_globs(riverbed: RiverbedServer, client: RawClient, words: list[str]) -> None:
    client.ask("XADD", "a" * 2_000, "*", "f", "v")
    pattern = "*a" * 200 + "b"
    with riverbed.client() as other:
        parse(other.ask(*(word.format(pattern) for word in words)))
        parse(client.ask("PUBLISH", "a" * 2_000, "message"))


def test_exponential_globs_in_rules_of_users(riverbed: RiverbedServer, client: RawClient) -> None:
    assert client.ask("ACL", "SETUSER", "globs", "on", "nopass", "+@all", "~" + "*a" * 200 + "b") == b"+OK\r\n"
    with riverbed.client() as other:
        assert other.ask("AUTH", "globs", "x") == b"+OK\r\n"
        assert other.ask("XLEN", "a" * 2_000) == NO_KEY


# -- ways around the rules of users ------------------------------------------------------------------------------------


def test_rules_bypassed_by_multi(limited: RawClient, client: RawClient) -> None:
    assert limited.ask("MULTI") == b"+OK\r\n"
    assert limited.ask("XRANGE", "secret", "-", "+") == NO_KEY
    assert limited.ask("EXEC").startswith(b"-EXECABORT")
    assert limited.ask("MULTI") == b"+OK\r\n"
    assert limited.ask("XLEN", "mine") == b"+QUEUED\r\n"
    assert client.ask("ACL", "SETUSER", "u", "resetkeys", "~other") == b"+OK\r\n"
    assert b"NOPERM" in limited.ask("EXEC")


def test_rules_bypassed_by_blocked_commands(limited: RawClient, client: RawClient) -> None:
    assert limited.ask("XREAD", "BLOCK", "0", "STREAMS", "mine", "secret", "$", "0") == NO_KEY
    limited.send("XREAD", "BLOCK", "0", "STREAMS", "mine", "$")
    until(lambda: b"blocked_clients:1\r\n" in client.ask("INFO", "clients"), "a reader that waits")
    assert client.ask("ACL", "SETUSER", "u", "resetkeys", "~other") == b"+OK\r\n"
    client.ask("XADD", "mine", "*", "f", "hidden")
    rest = limited.rest_until_closed() if limited.socket.recv(1, socket.MSG_PEEK) == b"" else limited.reply()
    assert b"hidden" not in rest


@pytest.mark.parametrize(
    "line",
    [
        "COPY secret mine",
        "COPY s secret",
        "RENAME secret mine",
        "RENAME s secret",
        "RENAMENX secret mine",
        "RENAMENX mine secret",
    ],
)
def test_rules_bypassed_by_copy_and_rename(limited: RawClient, client: RawClient, line: str) -> None:
    assert limited.ask(*line.split()) == NO_KEY
    assert client.ask("XLEN", "secret") == b":1\r\n"
    assert client.ask("EXISTS", "mine") == b":0\r\n"


@pytest.mark.parametrize("how", ["COPY s mine", "COPY s mine DB 1", "COPY s mine REPLACE"])
def test_rules_bypassed_by_a_copy_of_the_policy_of_a_group(limited: RawClient, client: RawClient, how: str) -> None:
    """The copy would move what its owner writes to the dead-letter stream, where only the source's owner may write."""
    client.ask("XGROUP", "POLICY", "s", "g", "MAXDELIVERIES", "1", "DEADLETTER", "secret")
    client.ask("ACL", "SETUSER", "u", "resetkeys", "%R~s", "~mine*")
    client.ask("ACL", "LOG", "RESET")
    assert limited.ask(*how.split()) == NO_KEY
    limited.ask("MULTI")
    assert limited.ask(*how.split()) == b"+QUEUED\r\n"
    assert NO_KEY in limited.ask("EXEC")
    assert client.ask("EXISTS", "mine") == b":0\r\n"
    assert b"secret" in client.ask("ACL", "LOG")
    client.ask("ACL", "SETUSER", "u", "%W~secret")
    assert limited.ask(*how.split()) == b":1\r\n"


def test_rules_bypassed_by_select(limited: RawClient) -> None:
    parse(limited.ask("SELECT", "1"))
    assert limited.ask("XLEN", "secret") == NO_KEY
    assert limited.ask("XADD", "secret", "*", "f", "v") == NO_KEY


@pytest.mark.parametrize("key", [b"s\0", b"s\0secret", b"\0s", b"secret\0s", b"s\0\0", b"secret\0", b"\0mine"])
def test_rules_bypassed_by_key_names_with_zero_bytes(limited: RawClient, key: bytes) -> None:
    assert limited.ask("XLEN", key) == NO_KEY
    assert limited.ask("XADD", key, "*", "f", "v") == NO_KEY
