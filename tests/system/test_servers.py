"""The servers that tests start are their own, whatever else runs on the machine."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.servers import RedisServer, RiverbedServer, Server, free_port


@pytest.mark.parametrize("kind", [RiverbedServer, RedisServer])
def test_a_server_that_took_the_port_first_is_not_taken_for_ours(
    riverbed: RiverbedServer, kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "ours"
    directory.mkdir()
    ports = itertools.chain([riverbed.port], iter(free_port, None))
    monkeypatch.setattr(kind, "choose_port", lambda self: next(ports))
    with kind(directory, tmp_path / "logs") as server:
        assert server.port != riverbed.port
        with server.client() as client:
            assert str(server.pid) in client.tree("INFO", "server").text.decode()
