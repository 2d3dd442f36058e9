from __future__ import annotations

import pytest

from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.servers import RiverbedServer


def test_memory_usage_grows_with_the_stream(client: RawClient) -> None:
    assert client.ask("MEMORY", "USAGE", "a") == b"$-1\r\n"
    client.ask("XADD", "a", "*", "f", "v")
    small = int(client.tree("MEMORY", "USAGE", "a").text)
    client.pipeline([("XADD", "a", "*", "f", "v" * 1000)] * 300)
    assert 0 < small < 1000
    assert 300_000 < int(client.tree("MEMORY", "USAGE", "a", "SAMPLES", 0).text) < 1_000_000


@pytest.mark.parametrize("options", ["x", "SAMPLES", "SAMPLES x", "SAMPLES -1", "SAMPLES 1 x", "SAMPLES 1 SAMPLES -1"])
@pytest.mark.parametrize("key", ["a", "nope"])
def test_memory_usage_refuses_options_as_redis_does(pair: Pair, key: str, options: str) -> None:
    pair.ask("XADD", "a", "1-1", "f", "v")
    assert pair.say(f"MEMORY USAGE {key} {options}").startswith(b"-ERR ")


def test_memory_is_reported_in_words_and_figures(client: RawClient, server: RiverbedServer) -> None:
    assert b" bytes are private to this process" in client.ask("MEMORY", "DOCTOR")
    assert client.ask("MEMORY", "PURGE") == b"+OK\r\n"
    assert client.ask("MEMORY", "MALLOC-STATS").startswith(b"$")
    figures = {name.text: value.text for name, value in client.tree("MEMORY", "STATS").pairs()}
    assert abs(int(figures[b"total.allocated"]) - server.private_bytes()) < 8 << 20
    assert figures[b"keys.count"] == b"0"
