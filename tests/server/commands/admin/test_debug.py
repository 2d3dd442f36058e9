from __future__ import annotations

import time

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer

OK = b"+OK\r\n"


@pytest.mark.parametrize("line", ["What", "sleep", "SLEEP 0 0", "ERROR", "JMAP", "PROTOCOL"])
def test_debug_refuses_what_there_is_not(pair: Pair, line: str) -> None:
    word = line.partition(" ")[0]
    assert pair.say(f"DEBUG {line}") == (
        f"-ERR unknown subcommand or wrong number of arguments for '{word}'. Try DEBUG HELP.\r\n".encode()
    )


@pytest.mark.parametrize("seconds", ["0", "0.001", "x", "-1", "1e-3", "", ".001x"])
def test_debug_sleep_takes_what_c_takes_for_a_number(pair: Pair, seconds: str) -> None:
    assert pair.ask("DEBUG", "SLEEP", seconds) == OK


def test_debug_sleep_stalls_everybody(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as other:
        begun = time.monotonic()
        other.send("DEBUG", "SLEEP", "0.2")
        time.sleep(0.05)
        client.ask("PING")
        assert time.monotonic() - begun >= 0.2
        assert other.reply() == OK


def test_debug_error_answers_any_error(pair: Pair) -> None:
    assert pair.ask("DEBUG", "ERROR", "CODE some\r\ntext") == b"-CODE some  text\r\n"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("kind", ["string", "integer", "null", "array", "map", "verbatim", "true", "false"])
def test_debug_protocol_shows_each_type_as_redis_does(pair: Pair, protocol: int, kind: str) -> None:
    pair.ours.ask("HELLO", protocol)
    pair.theirs.ask("HELLO", protocol)
    pair.ask("DEBUG", "PROTOCOL", kind)


def test_debug_protocol_names_the_types_there_are(client: RawClient) -> None:
    assert client.ask("DEBUG", "PROTOCOL", "x").endswith(b"|verbatim|true|false\r\n")


def test_the_digest_tells_states_apart_and_nothing_else(client: RawClient) -> None:
    empty = client.ask("DEBUG", "DIGEST")
    assert empty == b"+" + b"0" * 40 + b"\r\n"
    for number in range(1, 1200):
        client.send("XADD", "a", f"{number}-0", "f", "v")
    for _ in range(1, 1200):
        client.reply()
    one = client.ask("DEBUG", "DIGEST")
    client.ask("XADD", "b", "1-1", "f", "v")
    two = client.ask("DEBUG", "DIGEST")
    client.ask("EXPIREAT", "b", 4102444800)
    three = client.ask("DEBUG", "DIGEST")
    assert len({empty, one, two, three}) == 4
    client.ask("DEL", "b")
    assert client.ask("DEBUG", "DIGEST") == one
    client.ask("RENAME", "a", "c")
    assert client.ask("DEBUG", "DIGEST") != one
    client.ask("RENAME", "c", "a")
    client.ask("SAVE")
    assert client.ask("DEBUG", "DIGEST") == one
    client.ask("XDEL", "a", "600-0")
    assert client.ask("DEBUG", "DIGEST") != one
