from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.support import program
from tests.support.replicas import follow, until_level
from tests.support.servers import RiverbedServer
from tests.tools.spark.jobruns import freeze

pytestmark = pytest.mark.slow


run = partial(program.run, "compare")
report = partial(program.report, "compare")


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[RiverbedServer]:
    with RiverbedServer(tmp_path / "primary", tmp_path) as server:
        yield server


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[RiverbedServer]:
    with RiverbedServer(tmp_path / "replica", tmp_path) as server:
        yield server


def fill(client: redis.Redis) -> None:
    for number in range(300):
        client.xadd("orders", {"n": number}, id=f"{1000 * number + 1}-{number}")
    client.xadd(b"\xff\x00", {b"\xff": b"\x00"}, id="5-5")
    for key in ("orders", b"\xff\x00"):
        client.xgroup_create(key, "g", id="0")
        client.xreadgroup("g", "alice", {key: ">"}, count=20)
        client.xreadgroup("g", "bob", {key: ">"}, count=20)
    client.xack("orders", "g", "1-0")
    client.xclaim("orders", "g", "bob", 0, ["1001-1"])
    client.xdel("orders", "2001-2")
    client.execute_command("XGROUP", "POLICY", "orders", "g", "MAXDELIVERIES", 9, "DEADLETTER", "dead")


def test_a_replica_is_equal_and_a_changed_store_is_not(
    primary: RiverbedServer, replica: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=primary.port)
    fill(client)
    follow(replica, primary.port)
    client.xadd("orders", {"n": "last"}, id="999999-0")
    until_level(primary, replica)
    a, b = freeze(primary, tmp_path / "a"), freeze(replica, tmp_path / "b")

    result = run(a, b)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[2:] == ["2 streams, 301 equal entries: equal"]

    client.xadd("added", {"f": "v"}, id="7-7")
    client.delete(b"\xff\x00")
    client.xclaim("orders", "g", "bob", 0, ["5001-5"], time=7, retrycount=3, justid=True)
    changed = freeze(primary, tmp_path / "c")

    found = report(a, changed, "--ignore-times", status=1)
    assert (found["equal"], found["streams"], found["different"]) == (False, 3, 3)
    assert {each["key"]: each["only"] for each in found["first"]} == {"added": "b", "\\xff\\x00": "a", "orders": None}
    [claimed] = [each for each in found["first"] if each["only"] is None]
    assert (claimed["db"], claimed["key"], claimed["group"]) == (0, "orders", "g")
    assert claimed["a"].startswith("XCLAIM orders g alice 0 3001-3 4001-4 5001-5 6001-6 ")
    assert claimed["b"].startswith("XCLAIM orders g alice 0 3001-3 4001-4 TIME ")

    client.xdel("orders", "3001-3")
    result = run(a, freeze(primary, tmp_path / "d"), "--match", "o*", "--limit", 1)
    assert (result.exit_code, "of different offsets" in result.stderr) == (1, True)
    assert result.stdout.splitlines()[2:] == [
        "~ db 0, key orders",
        "    A  XADD orders 3001-3 n 3",
        "    B  XADD orders 4001-4 n 4",
        "1 stream, 0 equal entries: 1 different",
    ]


def test_a_data_directory_is_compared_beside_its_server(primary: RiverbedServer, tmp_path: Path) -> None:
    client = redis.Redis(port=primary.port)
    fill(client)
    frozen = freeze(primary, tmp_path / "a")
    assert report(frozen, primary.directory)["equal"]
    client.xgroup_createconsumer("orders", "g", "carol")
    client.save()
    result = run(primary.directory, frozen)
    assert result.exit_code == 1
    assert "~ db 0, key orders, group g" in result.stdout
    assert "    A  XGROUP CREATECONSUMER orders g carol\n" in result.stdout


def test_when_consumers_were_seen_is_compared_or_not(primary: RiverbedServer, tmp_path: Path) -> None:
    client = redis.Redis(port=primary.port)
    fill(client)
    before = freeze(primary, tmp_path / "a")
    client.xreadgroup("g", "alice", {"orders": "0"}, count=1)
    after = freeze(primary, tmp_path / "b")
    assert "XSEEN orders g alice" in run(before, after).stdout
    assert report(before, after, "--ignore-times")["equal"]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    result = run(tmp_path / "state", tmp_path / "none")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "is empty: neither a data directory nor a snapshot" in result.stderr


def test_the_same_directory_twice_is_said(primary: RiverbedServer, tmp_path: Path) -> None:
    assert primary.stop() == 0
    link = tmp_path / "link"
    link.symlink_to(primary.directory)
    result = run(primary.directory, link)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{primary.directory} and {link} are the same directory" in result.stderr.replace("\n", "")
