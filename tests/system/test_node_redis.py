"""node-redis understands what we say, about users above all: in both protocols, and over TLS.

The library is what `tests/support/node/package-lock.json` names, by its hash; npm puts it into a folder of its own.
`RIVERBED_NODE_REDIS` names one that holds it already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.servers import ROOT, Server
from tests.support.tls import Start

FILES = ROOT / "tests" / "support" / "node"
PARTS = ["streams", "groups", "waiting", "transactions", "messages", "users", "refusals"]
MISSING = "is not installed and these tests use it; run: sudo apt-get install -y nodejs npm"


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} {MISSING}"
    return found


@pytest.fixture(scope="session")
def node_redis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the session and the library that it imports."""
    place = tmp_path_factory.mktemp("node-redis")
    for path in FILES.iterdir():
        shutil.copy(path, place)
    if "RIVERBED_NODE_REDIS" in os.environ:
        (place / "node_modules").symlink_to(Path(os.environ["RIVERBED_NODE_REDIS"]) / "node_modules")
        return place
    command = [program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (
        "node-redis could not be installed; run `npm ci` in a copy of tests/support/node "
        f"and set RIVERBED_NODE_REDIS to that folder\n{done.stdout}\n{done.stderr}"
    )
    return place


def run_session(place: Path, server: Server, socket: dict[str, object], protocol: int) -> None:
    options = {"socket": {"host": "localhost", "port": server.port, "family": 4, **socket}, "RESP": protocol}
    done = subprocess.run(
        [program("node"), str(place / "session.mjs"), json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log_tail()}"
    assert done.stdout.split() == PARTS


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_session_with_node_redis(riverbed: Server, node_redis: Path, protocol: int) -> None:
    run_session(node_redis, riverbed, {}, protocol)


def test_a_session_with_node_redis_over_tls(start_tls: Start, node_redis: Path, certificates: Certificates) -> None:
    own = certificates.client
    files = {"ca": str(certificates.authority.cert), "cert": str(own.cert), "key": str(own.key)}
    run_session(node_redis, start_tls(), {"tls": True, **files}, 3)
