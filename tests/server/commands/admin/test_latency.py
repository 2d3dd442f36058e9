from __future__ import annotations

import time

import pytest

from tests.support.pair import Pair
from tests.support.raw import Node, RawClient
from tests.support.servers import RiverbedServer


def texts(node: Node) -> list[bytes]:
    return [child.text for child in node.children or ()]


@pytest.fixture(autouse=True)
def _usual_settings(server: RiverbedServer) -> None:
    with server.client() as client:
        client.ask("CONFIG", "SET", "latency-monitor-threshold", 0)
        client.ask("LATENCY", "RESET")


def test_a_spike_is_kept_and_forgotten(client: RawClient) -> None:
    # any command may take long on a busy machine: those around this one are not looked at
    client.pipeline(
        [
            ("CONFIG", "SET", "latency-monitor-threshold", 5),
            ("DEBUG", "SLEEP", "0.02"),
            ("CONFIG", "SET", "latency-monitor-threshold", 3_600_000),
        ]
    )
    (latest,) = client.tree("LATENCY", "LATEST").children or ()
    event, moment, ms, highest = texts(latest)
    assert event == b"command"
    assert abs(int(moment) - time.time()) < 60
    assert 20 <= int(ms) == int(highest) < 20_000
    (sample,) = client.tree("LATENCY", "HISTORY", "command").children or ()
    assert texts(sample) == [moment, ms]
    assert b"command: 1 spikes" in client.ask("LATENCY", "DOCTOR")
    assert client.ask("LATENCY", "RESET", "nothing") == b":0\r\n"
    assert client.ask("LATENCY", "RESET", "command") == b":1\r\n"
    assert client.ask("LATENCY", "LATEST") == b"*0\r\n"


def test_nothing_is_kept_while_the_monitor_is_off(client: RawClient) -> None:
    client.ask("DEBUG", "SLEEP", "0.01")
    assert client.ask("LATENCY", "LATEST") == b"*0\r\n"
    assert b"latency-monitor-threshold" in client.ask("LATENCY", "DOCTOR")


def test_latency_of_nothing_is_empty(pair: Pair) -> None:
    assert pair.ask("LATENCY", "HISTORY", "nothing") == b"*0\r\n"
    assert pair.ask("LATENCY", "RESET", "nothing") == b":0\r\n"
    assert pair.ask("LATENCY", "HISTOGRAM", "nothing") == b"*0\r\n"


def test_the_histogram_counts_calls_by_command(client: RawClient) -> None:
    client.ask("CONFIG", "RESETSTAT")
    client.pipeline([("EXISTS", "a")] * 5)
    client.ask("OBJECT", "ENCODING", "a")
    client.ask("HELLO", 3)
    ((name, told),) = client.tree("LATENCY", "HISTOGRAM", "EXISTS").pairs()
    assert name.text == b"exists"
    (calls, five), (_, histogram) = told.pairs()
    assert (calls.text, five.text) == (b"calls", b"5")
    assert histogram.pairs()[-1][1].text == b"5"
    assert [name.text for name, _ in client.tree("LATENCY", "HISTOGRAM", "object").pairs()] == [b"object|encoding"]
    assert b"exists" in [name.text for name, _ in client.tree("LATENCY", "HISTOGRAM").pairs()]
