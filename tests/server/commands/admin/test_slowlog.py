from __future__ import annotations

import time

import pytest

from tests.support.pair import Pair
from tests.support.raw import Node, RawClient
from tests.support.servers import RiverbedServer


def texts(node: Node) -> list[bytes]:
    return [child.text for child in node.children or ()]


@pytest.fixture
def slow_client(client: RawClient) -> RawClient:
    """A client of a server that logs every command but the settings of this fixture."""
    client.ask("CONFIG", "SET", "slowlog-log-slower-than", 0)
    client.ask("CLIENT", "SETNAME", "tester")
    client.ask("SLOWLOG", "RESET")
    return client


@pytest.fixture(autouse=True)
def _usual_settings(server: RiverbedServer) -> None:
    with server.client() as client:
        client.ask("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
        client.ask("SLOWLOG", "RESET")


def test_slow_commands_are_listed_newest_first(slow_client: RawClient) -> None:
    slow_client.ask("XLEN", "a")
    slow_client.ask("XLEN", "b")
    newest, older = (slow_client.tree("SLOWLOG", "GET", 2).children or ())[:2]
    number, moment, usec, words, address, name = newest.children or ()
    assert texts(words) == [b"XLEN", b"b"]
    assert texts((older.children or ())[3]) == [b"XLEN", b"a"]
    assert int(number.text) == int((older.children or ())[0].text) + 1
    assert abs(int(moment.text) - time.time()) < 60
    assert 0 <= int(usec.text) < 60_000_000
    host, port = slow_client.socket.getsockname()
    assert address.text == f"{host}:{port}".encode()
    assert name.text == b"tester"


def test_slowlog_get_bounds_how_many(slow_client: RawClient) -> None:
    for _ in range(30):
        slow_client.ask("XLEN", "a")
    assert len(slow_client.tree("SLOWLOG", "GET").children or ()) == 10
    assert len(slow_client.tree("SLOWLOG", "GET", 3).children or ()) == 3
    assert len(slow_client.tree("SLOWLOG", "GET", 0).children or ()) == 0
    length = int(slow_client.tree("SLOWLOG", "LEN").text)
    assert length >= 30
    assert len(slow_client.tree("SLOWLOG", "GET", -1).children or ()) >= length


@pytest.mark.parametrize("count", ["x", "-2", "1.5"])
def test_slowlog_get_refuses_other_counts(pair: Pair, count: str) -> None:
    assert pair.ask("SLOWLOG", "GET", count) == b"-ERR count should be greater than or equal to -1\r\n"


def test_slowlog_get_takes_one_count(pair: Pair) -> None:
    assert pair.ask("SLOWLOG", "get", 1, 2) == (
        b"-ERR unknown subcommand or wrong number of arguments for 'get'. Try SLOWLOG HELP.\r\n"
    )


def test_fast_commands_are_not_slow(client: RawClient) -> None:
    client.ask("CONFIG", "SET", "slowlog-log-slower-than", 3_600_000_000)
    client.ask("SLOWLOG", "RESET")
    client.ask("XLEN", "a")
    assert client.ask("SLOWLOG", "LEN") == b":0\r\n"
