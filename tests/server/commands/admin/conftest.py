"""What the tests of administration share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import RedisServer, RiverbedServer


@pytest.fixture
def primaries(server: RiverbedServer, oracle: RedisServer) -> Iterator[None]:
    """Both servers are primaries that need no replica, behind the test too, and have no user `ann`."""
    yield
    for each in (server, oracle):
        with each.client() as client:
            client.ask("REPLICAOF", "NO", "ONE")
            client.ask("CONFIG", "SET", "min-replicas-to-write", 0)
            client.ask("ACL", "DELUSER", "ann")
