from __future__ import annotations

import time

import pytest

from tests.conftest import StartRiverbed
from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer

SYNTAX = b"-ERR syntax error\r\n"
OK = b"+OK\r\n"


@pytest.mark.parametrize("line", ["TIME x", "LASTSAVE x", "SAVE x", "MONITOR x"])
def test_word_counts_are_checked_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line).startswith(b"-ERR wrong number of arguments for '")


def test_there_are_no_modules(pair: Pair) -> None:
    assert pair.say("MODULE LIST") == b"*0\r\n"
    assert pair.say("MODULE LIST x").startswith(b"-ERR wrong number of arguments for '")
    assert pair.say("MODULE NONE").startswith(b"-ERR unknown subcommand 'NONE'")


# -- TIME, saving ------------------------------------------------------------------------------------------------------


def test_time_is_seconds_and_microseconds(client: RawClient) -> None:
    before = time.time()
    seconds, microseconds = (int(number.text) for number in client.tree("TIME").children or ())
    assert before - 0.001 <= seconds + microseconds / 1e6 <= time.time() + 0.001
    assert microseconds < 1_000_000


def test_saving_makes_a_checkpoint_that_lastsave_tells(client: RawClient) -> None:
    client.ask("XADD", "a", "1-1", "f", "v")
    assert client.ask("SAVE") == OK
    assert abs(int(client.tree("LASTSAVE").text) - time.time()) < 60
    assert client.ask("XLEN", "a") == b":1\r\n"


@pytest.mark.parametrize("line", ["BGSAVE", "BGSAVE SCHEDULE", "bgsave schedule"])
def test_saving_in_the_background_says_so(client: RawClient, line: str) -> None:
    client.ask("XADD", "a", "1-1", "f", "v")
    assert client.ask(*line.split()) == b"+Background saving started\r\n"
    assert client.ask("XLEN", "a") == b":1\r\n"


@pytest.mark.parametrize("line", ["BGSAVE x", "BGSAVE SCHEDULE SCHEDULE"])
def test_bgsave_refuses_other_words(pair: Pair, line: str) -> None:
    assert pair.say(line) == SYNTAX


@pytest.mark.parametrize("name", ["SAVE", "SHUTDOWN"])
def test_what_ends_a_tick_is_refused_inside_a_transaction(pair: Pair, name: str) -> None:
    pair.ask("MULTI")
    assert pair.ask(name).startswith(b"-ERR Command not allowed inside a transaction")
    pair.ask("DISCARD")


def test_a_checkpoint_amid_a_pipeline_keeps_what_came_before_and_after(client: RawClient) -> None:
    replies = client.pipeline(
        [("XADD", "a", "1-1", "f", "v"), ("SAVE",), ("XADD", "a", "2-1", "f", "v"), ("XLEN", "a")]
    )
    assert replies[1:] == [OK, b"$3\r\n2-1\r\n", b":2\r\n"]


# -- SHUTDOWN ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("SHUTDOWN x", "SHUTDOWN SAVE NOSAVE", "SHUTDOWN ABORT NOW", "SHUTDOWN NOSAVE ABORT"),
        *("SHUTDOWN NOSAVE NOW FORCE x", "SHUTDOWN ABORT SAVE"),
    ],
)
def test_shutdown_refuses_words_as_redis_does(pair: Pair, line: str) -> None:
    assert pair.say(line) == SYNTAX


def test_there_is_no_shutdown_to_abort(pair: Pair) -> None:
    assert pair.ask("SHUTDOWN", "ABORT") == b"-ERR No shutdown in progress.\r\n"


@pytest.mark.parametrize("line", ["SHUTDOWN", "SHUTDOWN NOSAVE", "shutdown save now force"])
def test_shutdown_ends_the_server_and_loses_nothing(start_riverbed: StartRiverbed, line: str) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.ask("XADD", "a", "1-1", "f", "v")
        client.send(*line.split())
        assert client.rest_until_closed() == b""
    assert server.wait_ended() == 0
    server.start()
    with server.client() as client:
        assert client.ask("XLEN", "a") == b":1\r\n"


# -- MONITOR -----------------------------------------------------------------------------------------------------------


def shown(client: RawClient) -> bytes:
    """What a monitor is sent next, without time and address."""
    line = client.reply()
    return line[line.index(b"[") :].partition(b"] ")[2]


def test_monitor_shows_every_byte_as_redis_does(pair: Pair, server: RiverbedServer, oracle: RedisServer) -> None:
    every = bytes(range(256))
    words = [every, every[::-1], b"".join(b"\\" + bytes([byte]) for byte in every), b"\\x07\\\\'\\'\"\\\"", b""]
    assert pair.ask("MONITOR") == OK
    with server.client() as ours, oracle.client() as theirs:
        ours.ask("DEL", *words)
        theirs.ask("DEL", *words)
    assert shown(pair.ours) == shown(pair.theirs)


def test_monitor_shows_what_others_send(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        assert monitor.ask("MONITOR") == OK
        client.ask("XADD", "a", "*", b'f"\n\x00\xff', "v")
        client.ask("xlen", "a")
        assert shown(monitor) == b'"XADD" "a" "*" "f\\"\\n\\x00\\xff" "v"\r\n'
        assert shown(monitor) == b'"xlen" "a"\r\n'


def test_monitor_tells_time_database_and_address(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        monitor.ask("MONITOR")
        client.ask("SELECT", 3)
        client.ask("XLEN", "a")
        monitor.reply()
        line = monitor.reply()
    moment, _, rest = line[1:].partition(b" ")
    assert abs(float(moment) - time.time()) < 60
    host, port = client.socket.getsockname()
    assert rest == f'[3 {host}:{port}] "XLEN" "a"\r\n'.encode()


def test_monitor_leaves_administration_out(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        monitor.ask("MONITOR")
        client.ask("CONFIG", "GET", "port")
        client.ask("XLEN", "a")
        assert shown(monitor) == b'"XLEN" "a"\r\n'


def test_a_monitor_that_resets_sees_no_more(client: RawClient, server: RiverbedServer) -> None:
    with server.client() as monitor:
        monitor.ask("MONITOR")
        assert monitor.ask("RESET") == b"+RESET\r\n"
        client.ask("XLEN", "a")
        assert monitor.ask("PING") == b"+PONG\r\n"
