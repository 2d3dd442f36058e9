"""Patterns, and lists of names, that take long: the one who asks waits, and nobody else does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conftest import shared_server
from tests.support.effort import server_cpu_s, unit_s
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer

# Beyond what any slice takes; what these commands took in one go was many times that.
PATIENCE = 40  # units of `effort.py`, about 2 s

Words = tuple[bytes | str | int, ...]
LONG_CLASSES = b"[^x]" * 250_000
LONG_KEY = b"a" * 300_000
SLOW = b"*" + b"?a" * 20_000 + b"b*"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RiverbedServer]:
    """Some keys, one of which is long.  These tests only read."""
    with shared_server(tmp_path_factory, appendfsync="no") as server:
        with server.client() as client:
            client.pipeline([("XADD", f"key:{number}", "1-1", "f", "v") for number in range(3000)])
            client.ask("XADD", LONG_KEY, "1-1", "f", "v")
        yield server


def longest_wait(server: RiverbedServer, *commands: Words, gone_after_s: float = 5.0) -> float:
    """The most that the server does between two replies to a client while others have sent `commands`.

    Until all of these are answered, or have left.  In units of `effort.py`.
    """
    longest = 0.0
    with server.client() as other, ExitStack() as stack:
        told = server_cpu_s(other)
        askers = [stack.enter_context(server.client()) for _ in commands]
        for asker, command in zip(askers, commands, strict=True):
            asker.send(*command)
            asker.socket.settimeout(0.001)
        until = time.monotonic() + gone_after_s
        while askers and time.monotonic() < until:
            before, told = told, server_cpu_s(other)
            longest = max(longest, told - before)
            askers = [asker for asker in askers if not has_answered(asker)]
    with server.client() as client:  # those that left did not leave their work behind
        assert client.ask("PING") == b"+PONG\r\n"
    return longest / unit_s()


def has_answered(client: RawClient) -> bool:
    try:
        client.reply()
    except TimeoutError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("KEYS", LONG_CLASSES),
        ("KEYS", SLOW),
        ("KEYS", b"[" + b"a-z" * 350_000),
        ("SCAN", 0, "MATCH", SLOW, "COUNT", 1 << 62),
        ("CONFIG", "GET", LONG_CLASSES),
        ("CONFIG", "GET", b"[" + b"a-z" * 350_000 + b"]axclients"),
        ("CONFIG", "GET", *(b"[^x]?%d*" % number for number in range(20_000))),
        ("COMMAND", "LIST", "FILTERBY", "PATTERN", b"[" + b"a-z" * 350_000 + b"]ack"),
    ],
)
def test_a_long_pattern_lets_others_pass(server: RiverbedServer, command: Words) -> None:
    assert longest_wait(server, command) < PATIENCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("COMMAND", "INFO", *["xadd"] * 50_000),
        ("COMMAND", "DOCS", *["xadd", "xread", "nothing"] * 20_000),
        ("COMMAND", "GETKEYSANDFLAGS", "DEL", *["key"] * 50_000),
        ("XREAD", "STREAMS", *["key:1"] * 100_000, *["0"] * 100_000),
    ],
)
def test_many_names_let_others_pass(server: RiverbedServer, command: Words) -> None:
    assert longest_wait(server, command) < PATIENCE


def test_what_is_said_of_a_command_is_the_same_for_each_time_it_is_named(server: RiverbedServer) -> None:
    with server.client() as client:
        for protocol in (2, 3):
            client.ask("HELLO", protocol)
            one = client.ask("COMMAND", "INFO", "xadd").removeprefix(b"*1\r\n")
            null = client.ask("COMMAND", "INFO", "nothing").removeprefix(b"*1\r\n")
            sub = client.ask("COMMAND", "INFO", "xgroup|create").removeprefix(b"*1\r\n")
            found = client.ask("COMMAND", "INFO", "xadd", "nothing", "xgroup|create", "XADD")
            assert found == b"*4\r\n" + one + null + sub + one


@pytest.mark.slow
def test_many_and_long_patterns_of_subscribers_let_others_pass(server: RiverbedServer) -> None:
    with server.client() as listener:
        listener.pipeline([("PSUBSCRIBE", SLOW), ("PSUBSCRIBE", LONG_CLASSES)])
        for _ in range(20):
            listener.pipeline([("PSUBSCRIBE", b"[^x]?*%d" % number) for number in range(2000)])
        assert longest_wait(server, ("PUBLISH", LONG_KEY, "m"), ("PUBLISH", "abc", "m")) < PATIENCE


@pytest.mark.slow
def test_channels_are_listed_by_a_slow_pattern_without_keeping_others(server: RiverbedServer) -> None:
    with server.client() as listener:
        listener.pipeline([("SUBSCRIBE", LONG_KEY), *(("SUBSCRIBE", number) for number in range(5000))])
        assert longest_wait(server, ("PUBSUB", "CHANNELS", SLOW)) < PATIENCE


def test_a_publish_that_takes_long_reaches_who_listens_by_then(server: RiverbedServer) -> None:
    channel = b"a" * 20_000
    with server.client() as listener, server.client() as leaver, server.client() as speaker:
        listener.pipeline([("SUBSCRIBE", channel), ("PSUBSCRIBE", "*a"), ("PSUBSCRIBE", b"*" + b"?a" * 2000 + b"b")])
        leaver.ask("PSUBSCRIBE", b"*" + b"?a" * 2000)
        speaker.send("PUBLISH", channel, "m")
        leaver.close()
        assert speaker.reply() in (b":2\r\n", b":3\r\n")
        assert listener.reply().startswith(b"*3\r\n$7\r\nmessage\r\n")
        assert listener.reply().startswith(b"*4\r\n$8\r\npmessage\r\n$2\r\n*a\r\n")


def test_keys_and_scan_in_a_transaction_answer_at_once(server: RiverbedServer) -> None:
    with server.client() as client:
        assert client.ask("MULTI") == b"+OK\r\n"
        client.pipeline([("KEYS", "key:*"), ("SCAN", 0, "COUNT", 10_000), ("PUBLISH", "c", "m")])
        keys, scanned, published = client.tree("EXEC").children or ()
        assert len(keys.children or ()) == 3000
        assert len((scanned.children or ())[1].children or ()) == 3001
        assert published.text == b"0"
