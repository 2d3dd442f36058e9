"""Fixtures for tests of commands: one server of ours for a module, and a redis-server beside it to agree with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import broken_invariants, shared_server
from tests.support.in_process import HandClock, Product
from tests.support.pair import Pair
from tests.support.raw import RawClient
from tests.support.servers import RedisServer, RiverbedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RiverbedServer]:
    """A server that all tests of a module share."""
    with shared_server(tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    place = tmp_path_factory.mktemp("redis")
    with RedisServer(place, tmp_path_factory.mktemp("logs")) as server:
        yield server


@pytest.fixture
def client(server: RiverbedServer) -> Iterator[RawClient]:
    """A connection to our server, which holds nothing."""
    with server.client() as client:
        assert client.ask("FLUSHALL") == b"+OK\r\n"
        yield client


@pytest.fixture
def pair(client: RawClient, oracle: RedisServer) -> Iterator[Pair]:
    """Connections to both servers, which hold nothing."""
    with oracle.client() as theirs:
        assert theirs.ask("FLUSHALL") == b"+OK\r\n"
        yield Pair(client, theirs)


@pytest.fixture
def product(tmp_path: Path) -> Iterator[Product]:
    """A store in this process, under a clock that stands still; it is checked afterwards."""
    product = Product(tmp_path, HandClock())
    yield product
    product.close()
    assert broken_invariants(tmp_path) == []
