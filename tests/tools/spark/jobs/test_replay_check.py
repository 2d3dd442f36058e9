from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from riverbed.tools.spark.jobs.compare import TABLES, Difference, TableDifferences
from riverbed.tools.spark.jobs.replay_check import print_differences
from tests.support.replicas import follow, until_level
from tests.support.servers import RiverbedServer
from tests.tools.spark.jobruns import freeze, report, run


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
    spark: SparkSession, primary: RiverbedServer, replica: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=primary.port)
    fill(client)
    follow(replica, primary.port)
    client.xadd("orders", {"n": "last"}, id="999999-0")
    until_level(primary, replica)
    a, b = freeze(primary, tmp_path / "a"), freeze(replica, tmp_path / "b")

    result = run("replay-check", a, b)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[2:] == [
        "2 streams: equal",
        "301 entries: equal",
        "2 groups: equal",
        "4 consumers: equal",
        "40 pending entries: equal",
    ]

    client.xadd("added", {"f": "v"}, id="7-7")
    client.delete(b"\xff\x00")
    client.xdel("orders", "3001-3")
    client.xadd("orders", {"n": "newest"}, id="1000000-0")
    client.xack("orders", "g", "4001-4")
    client.xclaim("orders", "g", "bob", 0, ["5001-5"])
    client.xgroup_createconsumer("orders", "g", "carol")
    client.xgroup_create("orders", "h", id="0")
    client.execute_command("XGROUP", "POLICY", "orders", "g", "MAXDELIVERIES", 0)
    changed = freeze(primary, tmp_path / "c")

    tables = report("replay-check", a, changed, "--ignore-times", status=1)["tables"]
    assert {name: (table["only_a"], table["only_b"], table["changed"]) for name, table in tables.items()} == {
        "streams": (1, 1, 1),
        "entries": (2, 2, 0),
        "groups": (1, 1, 1),
        "consumers": (2, 1, 2),
        "pending entries": (2, 0, 1),
    }
    by_name = {(each["key"], each["id"]): each for each in tables["entries"]["first"]}
    assert set(by_name) == {("\\xff\\x00", "5-5"), ("orders", "3001-3"), ("orders", "1000000-0"), ("added", "7-7")}
    assert by_name["orders", "3001-3"]["a"] == {"fields": [["n", "3"]]}
    assert by_name["orders", "3001-3"]["b"] is None
    [group] = [each for each in tables["groups"]["first"] if each["a"] and each["b"]]
    assert group["a"] == {"pending": 39, "policy": "MAXDELIVERIES 9 DEADLETTER dead"}
    assert group["b"] == {"pending": 38, "policy": None}
    [claimed] = [each for each in tables["pending entries"]["first"] if each["b"]]
    assert (claimed["id"], claimed["a"]["consumer"], claimed["b"]["consumer"]) == ("5001-5", "alice", "bob")


def test_differences_are_told_in_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = next(compared for compared in TABLES if compared.noun == "group")
    names = {"db": 0, "key": "[red]", "group": "g"}
    differences = [
        Difference(names, ({"pending": 1, "policy": None}, None)),
        Difference(names, (None, {"fields": [["name", "value"], ["n", ""]]})),
        Difference(names, ({"pending": 1}, {"pending": 2})),
    ]

    print_differences([TableDifferences(group, (10, 1), (9, 1), 5000, differences)])

    assert capsys.readouterr().out.splitlines() == [
        "10 groups and 1: 9 only in A, 1 only in B, 5,000 different",
        "  - db 0, key [red], group g: pending 1, policy none",
        "  + db 0, key [red], group g: fields name=value n=",
        "  ~ db 0, key [red], group g: pending 1 -> pending 2",
        "  and 5,007 more",
    ]


def test_what_is_not_there_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()

    result = run("replay-check", tmp_path, tmp_path / "none")

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "is not a snapshot: it has no manifest.json" in result.stderr
