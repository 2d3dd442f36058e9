"""Certificates for all tests of TLS, and servers that use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import broken_invariants
from tests.support.certificates import Certificates
from tests.support.tls import Start


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start(tmp_path: Path, certificates: Certificates) -> Iterator[Start]:
    start = Start(tmp_path, certificates)
    yield start
    for server in start.servers:
        if server.process is not None:
            assert server.stop() == 0
        assert "Traceback" not in server.log_tail(1 << 20)
        assert broken_invariants(server.directory) == []
