from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.dataset as ds
import pytest
import redis
from click.testing import Result
from pyspark.sql import DataFrame, SparkSession

from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.console.console import Failure
from riverbed.tools.spark.jobs.command import Job
from riverbed.tools.spark.jobs.export.hadoop_files import HadoopFiles
from riverbed.tools.spark.jobs.export.ledger import Ledger, Run
from tests.support import program
from tests.support.in_process import HandClock, Product
from tests.support.servers import RiverbedServer
from tests.tools.spark.jobruns import freeze, report, run

KEYS = [
    b"orders",
    b"a/b=c%20:*?\"<>|'{}[]^#\\",
    b"\xff\xfe",
    b"\\xff\\xfe",
    b"",
    b"x\x00y\n",
    b"007",
    b"..",
    b"__HIVE_DEFAULT_PARTITION__",
    b"k" * 400,
    b"k" * 401,
    "ключ:".encode() * 50,
]
DAY_MS = 86_400_000
FIRST_MS = 1_763_683_200_000  # 2025-11-21, midnight

Row = tuple[bytes, str, str, dict[str, bytes]]


@pytest.fixture
def client(server: RiverbedServer) -> redis.Redis:
    return redis.Redis(port=server.port)


def exported(out: Path) -> list[Row]:
    """What is in the files, as another program reads them; the directory of a day must be that of its entries."""
    rows = []
    for row in ds.dataset(out, partitioning="hive", exclude_invalid_files=False).to_table().to_pylist():
        day = datetime.fromtimestamp(row["ms"] / 1000, UTC).date().isoformat()
        assert str(row["date"]) == day
        rows.append((row["key_binary"], row["id"], day, dict(row["fields"])))
    return sorted(rows, key=str)


def answered(client: redis.Redis) -> list[Row]:
    """The same by XRANGE."""
    rows = []
    for key in client.scan_iter(count=1000):
        for entry_id, fields in client.xrange(key):
            ms = int(entry_id.split(b"-")[0])
            day = datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()
            rows.append((key, entry_id.decode(), day, {name.decode(): value for name, value in fields.items()}))
    return sorted(rows, key=str)


def test_two_exports_have_every_entry_once(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    for number in range(600):
        ms = FIRST_MS + number * DAY_MS // 200
        client.xadd("orders", {"n": number, "bytes": bytes([number % 256])}, id=f"{ms}-{number}")
    for key in KEYS[1:]:
        client.xadd(key, {"n": 1}, id=f"{FIRST_MS}-1")
    out = tmp_path / "lake"

    first = report("export", freeze(server, tmp_path / "s1"), out)
    assert (first["rows"], exported(out)) == (600 + len(KEYS) - 1, answered(client))

    client.xadd("orders", {"n": "later"}, id=f"{FIRST_MS + 3 * DAY_MS}-5")
    client.xadd(b"\xff\xfe", {"n": "later"}, id=f"{FIRST_MS}-2")
    client.xadd("new", {"n": "new"}, id="5-5")
    client.xdel(b"..", f"{FIRST_MS}-1")  # was exported, and stays so
    client.xtrim("orders", maxlen=100, approximate=False)
    before = exported(out)
    second = report("export", freeze(server, tmp_path / "s2"), out)
    assert (second["rows"], second["runs"][0]["run"]) == (3, 2)
    assert len(exported(out)) == len(before) + 3
    assert set(map(str, exported(out))) == set(map(str, before)) | set(map(str, answered(client)))

    # Again, and with an older snapshot: nothing is new.
    for snapshot in ("s2", "s1"):
        assert report("export", tmp_path / snapshot, out)["runs"] == []
    assert [path.name for path in sorted(out.glob("_riverbed/[!.]*"))] == ["00000001.json", "00000002.json", "lock"]


def test_each_key_has_a_directory_of_its_own_and_an_ordinary_one_has_its_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    ordinary = ["orders", "Orders", "é", "a b", "a~b", ".", "..", "(x)", "a\\b", "\\x0", "%41", "A", "~0123456789abcde"]
    long = "k" * 400
    short = f"{long[:40]}~{hashlib.sha256(long.encode()).hexdigest()[:16]}"
    strange = [
        *(b"", b"(empty)", b"__HIVE_DEFAULT_PARTITION__", b"(hive default partition)"),
        *(b"\xff", b"\\xff", b"\\\xff", b"\\\\xff", b"\xff\\xff", b"\\xff\xff", b"\xff\xff", b"\0", b"\\x00", b"\xc3"),
        *(long.encode(), short.encode(), b"(empty)~" + hashlib.sha256(b"(empty)").hexdigest()[:16].encode()),
    ]
    product = Product(tmp_path / "data", HandClock(FIRST_MS))
    for key in (*ordinary, *strange):
        product.run("XADD", key, "1-0", "n", 1)
    product.close()
    taken = take_snapshot(product.directory, tmp_path / "s", program="test").path

    assert report("export", taken, tmp_path / "out")["rows"] == len(ordinary) + len(strange)

    found: dict[bytes, str] = {}
    for directory in (tmp_path / "out").glob("key=*"):
        keys = {row["key_binary"] for row in ds.dataset(directory).to_table(["key_binary"]).to_pylist()}
        assert len(keys) == 1, (directory.name, keys)
        found[keys.pop()] = unquote(directory.name.removeprefix("key="))
    assert len(found) == len(ordinary) + len(strange)
    assert [found[key.encode()] for key in ordinary] == ordinary
    assert found[b""] == "(empty)"
    assert found[b"\xff"] == "\\xff"
    assert found[long.encode()] == short


def test_fields_become_columns(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    for amount in ("1.5", "2", "none"):
        client.xadd("orders:1", {"user": "bob", "amount": amount})
    client.xadd("other", {"user": "eve"})
    snapshot = freeze(server, tmp_path / "s")
    schema = "user string, amount double, _corrupt_record string"

    found = report("export", snapshot, tmp_path / "out", "--match", "orders:*", "--schema", schema)

    rows = ds.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    assert found["rows"] == 3
    assert sorted((row["key"], row["user"], str(row["amount"])) for row in rows) == [
        ("orders:1", "bob", "1.5"),
        ("orders:1", "bob", "2.0"),
        ("orders:1", "bob", "None"),
    ]
    assert [json.loads(row["_corrupt_record"])["amount"] for row in rows if row["_corrupt_record"]] == ["none"]
    refused = run("export", snapshot, tmp_path / "out")
    assert refused.exit_code == 2
    assert "was exported with --schema 'user string" in refused.stderr


def test_what_was_trimmed_before_it_was_exported_is_told(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for number in range(10):
        client.xadd("s", {"n": number}, id=f"{1 + number}-0")
    report("export", freeze(server, tmp_path / "a"), out)
    for number in range(10, 20):
        client.xadd("s", {"n": number}, id=f"{1 + number}-0")
    client.xtrim("s", maxlen=5, approximate=False)
    trimmed = freeze(server, tmp_path / "b")

    result = run("export", trimmed, out)
    assert result.exit_code == 2
    assert "trimmed or deleted before it was exported: s; --allow-gaps" in result.stderr
    assert len(exported(out)) == 10
    found = report("export", trimmed, out, "--allow-gaps")
    assert (found["rows"], found["gaps"], len(exported(out))) == (5, ["s"], 15)

    client.delete("s")
    client.xadd("s", {"n": 0}, id="1-0")
    result = run("export", freeze(server, tmp_path / "c"), out)
    assert result.exit_code == 2
    assert "stream s was exported up to 20-0, and this one ends with 1-0" in result.stderr


def test_a_stream_that_was_deleted_is_told_and_begins_anew_when_it_comes_back(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for key in ("s", "t"):
        client.xadd(key, {"n": 0}, id="5-0")
    report("export", freeze(server, tmp_path / "a"), out)
    client.xadd("s", {"n": 1}, id="6-0")
    client.delete("s")
    without = freeze(server, tmp_path / "b")

    result = run("export", without, out)
    assert result.exit_code == 2
    assert "trimmed or deleted before it was exported: s; --allow-gaps" in result.stderr
    assert report("export", without, out, "--match", "t")["gaps"] == []
    found = report("export", without, out, "--allow-gaps")
    assert (found["rows"], found["gaps"], len(exported(out))) == (0, ["s"], 2)
    assert report("export", without, out)["gaps"] == []

    client.xadd("s", {"n": 2}, id="1-0")
    assert report("export", freeze(server, tmp_path / "c"), out)["rows"] == 1
    assert [row[1] for row in exported(out)] == ["1-0", "5-0", "5-0"]

    client.delete("s", "t")
    for number in range(1, 8):  # as many entries as before, and more
        client.xadd("t", {"n": 3}, id=f"{number}-0")
    result = run("export", freeze(server, tmp_path / "d"), out, "--match", "t")
    assert result.exit_code == 2
    assert "stream t was exported up to 5-0, and this one ends with 7-0" in result.stderr
    assert [row[1] for row in exported(out)] == ["1-0", "5-0", "5-0"]


def test_a_new_stream_is_exported_without_the_others_again(spark: SparkSession, tmp_path: Path) -> None:
    for key in ("s", "t"):
        product = Product(tmp_path / "data", HandClock(time.time_ns() // 1_000_000))
        product.run("XADD", key, "1-0", "n", 1)
        product.close()
        taken = take_snapshot(product.directory, tmp_path / key, program="test").path
        assert report("export", taken, tmp_path / "out")["rows"] == 1
    assert [row[0] for row in exported(tmp_path / "out")] == [b"s", b"t"]


def test_a_snapshot_of_another_store_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """As many entries as the other one had are trimmed, so that no stream tells."""
    out = tmp_path / "out"
    taken = []
    for number in range(2):
        product = Product(tmp_path / f"data{number}", HandClock(time.time_ns() // 1_000_000))
        for entry in range(1, 11 + 10 * number):
            product.run("XADD", "s", f"{entry}-0", "n", entry)
        product.run("XTRIM", "s", "MAXLEN", 10)
        product.close()
        taken.append(take_snapshot(product.directory, tmp_path / f"s{number}", program="test").path)
    assert report("export", taken[0], out)["rows"] == 10

    result = run("export", taken[1], out)
    assert result.exit_code == 2
    assert "s1 is of another store (id " in result.stderr
    assert report("export", taken[1], out, "--allow-gaps")["rows"] == 10
    assert report("export", taken[1], out)["rows"] == 0


def test_entries_that_a_smaller_last_id_lets_in_are_exported(spark: SparkSession, tmp_path: Path) -> None:
    out, clock = tmp_path / "lake", HandClock(FIRST_MS)

    def export_after(name: str, *commands: str) -> list[str]:
        product = Product(tmp_path / "data", clock)
        for command in commands:
            product.run(*command.split())
        product.close()
        report("export", take_snapshot(product.directory, tmp_path / name, program="test").path, out)
        clock.now_ms += 1000
        return [row[1] for row in exported(out)]

    added = [f"XADD s {number}-0 n 1" for number in (10, 20, 50, 70, 80, 110)]
    assert export_after("a", *added[:3], "XSETID s 100-0") == ["10-0", "20-0", "50-0"]
    assert len(export_after("b", "XSETID s 60-0", *added[3:])) == 6
    assert len(export_after("c")) == 6


def export_after(data: Path, *commands: str, flags: Sequence[str] = ()) -> Result:
    """Export what a store has after these commands, to `lake` beside it."""
    product = Product(data, HandClock(time.time_ns() // 1_000_000))
    for command in commands:
        product.run(*command.split())
    product.close()
    taken = take_snapshot(data, data.parent / f"s{time.monotonic_ns()}", program="test").path
    return run("export", taken, data.parent / "lake", *flags)


def test_entries_that_a_smaller_last_id_lets_in_are_exported_from_tables_with_other_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    export_after(data, "XADD s 10-0 n 1", "XADD s 50-0 n 1", "XSETID s 100-0")
    assert program.run("replay", data, again).exit_code == 0

    assert export_after(again, "XSETID s 60-0", "XADD s 70-0 n 1", "XADD s 110-0 n 1").exit_code == 0
    assert [row[1] for row in exported(tmp_path / "lake")] == ["10-0", "110-0", "50-0", "70-0"]


def test_entries_that_are_let_in_once_the_last_one_that_was_exported_is_gone_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever else is new, and was deleted."""
    data = tmp_path / "data"
    export_after(data, *(f"XADD {key} {number}-0 n 1" for key in "st" for number in (10, 20, 100)))
    late = ("XTRIM s MAXLEN 0", "XSETID s 60-0", "XADD s 70-0 n 1", "XADD s 110-0 n 1")
    result = export_after(data, *late, "XADD t 110-0 n 1", "XADD t 111-0 n 1", "XDEL t 111-0")

    assert result.exit_code == 2
    assert "not behind its last ID, as after XSETID: entries of s; --allow-gaps" in result.stderr
    assert len(exported(tmp_path / "lake")) == 6
    result = export_after(data, flags=["--allow-gaps"])
    assert (result.exit_code, "gap: s had entries that were not exported" in result.stderr) == (0, True)
    assert [row[1] for row in exported(tmp_path / "lake")].count("110-0") == 2
    assert export_after(data, "XADD s 112-0 n 1").exit_code == 0
    assert len(exported(tmp_path / "lake")) == 9


def test_entries_that_a_store_has_again_since_it_was_restored_are_not_exported_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, before = tmp_path / "data", tmp_path / "before"
    export_after(data, "XADD s 10-0 n 1", "XADD s 20-0 n 1")
    shutil.copytree(data, before)
    assert export_after(data, "XADD s 30-0 n 1", "XDEL s 20-0 30-0").exit_code == 0

    assert export_after(before, f"XADD other 1-0 n {'x' * 1000}", "XADD s 40-0 n 1").exit_code == 0
    assert [row[1] for row in exported(tmp_path / "lake")] == ["1-0", "10-0", "20-0", "40-0"]


def test_a_snapshot_that_is_exchanged_during_the_run_is_not_exported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, out = tmp_path / "newest", tmp_path / "lake"
    product = Product(tmp_path / "data", HandClock(FIRST_MS))
    product.run("XADD", "orders", "1-0", "n", 1)
    product.close()
    take_snapshot(product.directory, newest, program="test")
    product = Product(product.directory, product.clock)
    product.run("XADD", "orders", "2-0", "n", 2)
    product.close()
    take_snapshot(product.directory, tmp_path / "next", program="test")
    read = Job.read

    def exchanged(*arguments: Any) -> DataFrame:
        shutil.rmtree(newest)
        (tmp_path / "next").rename(newest)
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Job, "read", exchanged)
        result = run("export", newest, out)
    assert result.exit_code == 2
    assert "newest is another snapshot now than the one that was looked at before" in " ".join(result.stderr.split())
    assert list(out.glob("_riverbed/*.json")) == []
    assert report("export", newest, out)["rows"] == len(exported(out)) == 2


def test_a_store_is_known_again_after_many_starts_and_when_its_streams_were_numbered_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    product = Product(tmp_path / "data", HandClock(time.time_ns() // 1_000_000))
    product.run("XADD", "gone", "1-0", "n", 0)
    product.run("XADD", "gone", "MAXLEN", 0, "2-0", "n", 0)
    for entry in range(1, 11):
        product.run("XADD", "s", f"{entry}-0", "n", entry)
    product.run("DEL", "gone")
    product.close()
    first = take_snapshot(product.directory, tmp_path / "s1", program="test").path
    assert report("export", first, out)["rows"] == 10

    for words in (["compact", product.directory, "--yes"], ["replay", product.directory, tmp_path / "replayed"]):
        assert program.run(*words).exit_code == 0
    again = Product(tmp_path / "replayed", product.clock)
    for entry in range(11, 21):
        again.run("XADD", "s", f"{entry}-0", "n", entry)
        again.restart()
    again.run("XTRIM", "s", "MAXLEN", 10)
    again.close()
    second = take_snapshot(again.directory, tmp_path / "s2", program="test").path
    found = report("export", second, out)
    assert (found["rows"], found["gaps"]) == (10, [])


def test_a_list_of_the_first_version_is_read_on(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    product = Product(tmp_path / "data", HandClock(time.time_ns() // 1_000_000))
    product.run("XADD", "s", "1-0", "n", 1)
    product.close()
    report("export", take_snapshot(product.directory, tmp_path / "s1", program="test").path, out)
    path = out / "_riverbed" / "00000001.json"
    values = json.loads(path.read_bytes())
    del values["store_id"], values["streams"]["0/s"]["numbering"]
    path.write_text(json.dumps(values | {"version": 1}))
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    for entry in range(2, 5):
        product = Product(tmp_path / "data", product.clock)
        product.run("XADD", "s", f"{entry}-0", "n", entry)
        product.close()

    assert report("export", take_snapshot(product.directory, tmp_path / "s2", program="test").path, out)["rows"] == 3
    assert run("export", tmp_path / "s2", out).exit_code == 0
    path.with_name("00000003.json").write_text(json.dumps(values | {"version": 3}))
    assert "has version 3" in run("export", tmp_path / "s2", out).stderr


def test_a_stream_that_was_deleted_and_made_again_is_a_gap_and_a_deleted_entry_is_none(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for number in range(10):
        client.xadd("s", {"n": number}, id=f"{1 + number}-0")
    report("export", freeze(server, tmp_path / "a"), out)
    for number in range(10, 20):
        client.xadd("s", {"n": number}, id=f"{1 + number}-0")
    client.xtrim("s", minid="11", approximate=False)
    client.xdel("s", "15-0")
    found = report("export", freeze(server, tmp_path / "b"), out)
    assert (found["rows"], found["gaps"]) == (9, [])
    client.xadd("s", {"n": 20}, id="21-0")
    client.delete("s")
    for number in range(30, 60):
        client.xadd("s", {"n": number}, id=f"{1 + number}-0")
    again = freeze(server, tmp_path / "c")

    result = run("export", again, out)
    assert result.exit_code == 2
    assert "trimmed or deleted before it was exported: s; --allow-gaps" in result.stderr
    found = report("export", again, out, "--allow-gaps")
    assert (found["rows"], found["gaps"]) == (30, ["s"])


def test_a_directory_that_is_not_an_export_is_refused(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path
) -> None:
    client.xadd("s", {"n": 1})
    snapshot = freeze(server, tmp_path / "s")
    for name, text, reason in (
        ("a/some file", "x", "exists and is not an export: it has some file"),
        ("b/_riverbed/00000001.json", "{}", "is damaged"),
        (
            "c/_riverbed/00000001.json",
            '{"format": "riverbed-export", "version": 3}',
            "has version 3; this program knows 1 to 2",
        ),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        result = run("export", snapshot, tmp_path / name.split("/")[0])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert reason in result.stderr


@pytest.mark.parametrize(
    "forged",
    [
        {"staging": "../victim", "files": ["part-precious"]},
        {"staging": "_riverbed/staging-01234567/../../../victim", "files": ["part-precious"]},
        {"files": ["../victim/part-precious"]},
        {"files": ["key=x/../../victim/part-precious"]},
        {"files": ["key=x/date=y/precious"]},
        {"files": ["_riverbed/part-precious"]},
        {"files": [7]},
        {"run": 2},
        {"run": "1"},
        {"time_ms": "now"},
        {"settings": []},
    ],
)
def test_a_list_that_was_forged_has_no_file_moved(
    spark: SparkSession, server: RiverbedServer, client: redis.Redis, tmp_path: Path, forged: dict[str, Any]
) -> None:
    client.xadd("s", {"n": 1})
    run_1 = Run(1, {}, "snapshot", 1, 1, None, 1, 1, ["part-0"], {}, "_riverbed/staging-01234567")
    document = {"format": "riverbed-export", "version": 2, **asdict(run_1), **forged}
    (tmp_path / "out" / "_riverbed").mkdir(parents=True)
    (tmp_path / "out" / "_riverbed" / "00000001.begun.json").write_text(json.dumps(document))
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "part-precious").touch()
    result = run("export", freeze(server, tmp_path / "s"), tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "00000001.begun.json is damaged: " in result.stderr
    assert (tmp_path / "victim" / "part-precious").exists()


@pytest.mark.parametrize("name", ["_riverbed", "_riverbed/lock", "key=s"])
def test_no_link_is_followed_out_of_the_directory(spark: SparkSession, tmp_path: Path, name: str) -> None:
    product = Product(tmp_path / "data", HandClock(FIRST_MS))
    product.run("XADD", "s", "1-0", "n", 1)
    product.close()
    taken = take_snapshot(product.directory, tmp_path / "taken", program="test").path
    link, outside = tmp_path / "out" / name, tmp_path / "outside"
    (tmp_path / "out" / "_riverbed").mkdir(parents=True)
    outside.mkdir()
    if name == "_riverbed":
        link.rmdir()
    link.symlink_to(outside / "lock" if name == "_riverbed/lock" else outside)

    # a directory that has something else is none of an export
    if name == "key=s":
        link.unlink()
        assert report("export", taken, tmp_path / "out")["rows"] == 1
        shutil.rmtree(link)
        link.symlink_to(outside)
        product = Product(product.directory, product.clock)
        product.run("XADD", "s", "2-0", "n", 2)
        product.close()
        taken = take_snapshot(product.directory, tmp_path / "later", program="test").path
    result = run("export", taken, tmp_path / "out")

    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"{link} is a symbolic link, and an export writes to no other place" in result.stderr
    assert list(outside.iterdir()) == []


# -- kills -------------------------------------------------------------------------------------------------------------


class KilledError(Exception):
    """The program ends here."""


class DyingFiles(HadoopFiles):
    """Files of a program that is killed before its n-th change of a file."""

    def __init__(self, spark: SparkSession, root: str, steps: int) -> None:
        super().__init__(spark, root)
        self._left = steps

    def _step(self) -> None:
        if not self._left:
            raise KilledError
        self._left -= 1

    def move(self, source: str, target: str) -> None:
        self._step()
        super().move(source, target)

    def delete(self, name: str) -> None:
        self._step()
        super().delete(name)


class CopyingFiles(DyingFiles):
    """Files of an object store, where a move is a copy and a deletion; it may be killed in between."""

    def move(self, source: str, target: str) -> None:
        self._step()
        path = Path(self.path(target).removeprefix("file:"))
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.path(source).removeprefix("file:"), path)
        self.delete(source)


def run_once(files: HadoopFiles, out: Path, written: int) -> Ledger:
    """A run that has yet to write the entries behind `written`, 30 in three files; stands in for Spark."""
    ledger = Ledger(files)
    ledger.open()
    done = ledger.last.rows if ledger.last else 0
    for number in range(done, written, 10):
        path = Path(ledger.staging.removeprefix("file:")) / f"key=a%3Ab/date={number}/part-{written}-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(map(str, range(number, number + 10))))
    if done < written:
        staged = [name for name, _ in ledger.staged()]
        ledger.commit(Run(ledger.next_run, {}, "s", 0, 0, None, written, 0, staged, {}))
    return ledger


def test_a_file_of_an_attempt_that_has_lost_is_not_exported(spark: SparkSession, tmp_path: Path) -> None:
    """Spark ends such an attempt at its leisure: it may open a file again behind the commit."""
    files = HadoopFiles(spark, str(tmp_path / "out"))
    ledger = Ledger(files)
    ledger.open()
    staging = Path(ledger.staging.removeprefix("file:"))
    for name in ("key=o/part-0", "_temporary/0/_temporary/attempt_7/key=o/part-1", "key=o/.part-2.crc", "_SUCCESS"):
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text("x")
    assert ledger.staged() == [("key=o/part-0", 1)]


@pytest.mark.parametrize(("dying", "changes"), [(DyingFiles, 6), (CopyingFiles, 11)])
def test_a_run_that_is_killed_anywhere_neither_loses_nor_repeats(
    spark: SparkSession, tmp_path: Path, dying: type[DyingFiles], changes: int
) -> None:
    kills = 0
    for steps in range(100):
        out = tmp_path / str(steps)
        run_once(HadoopFiles(spark, str(out)), out, 30)
        try:
            run_once(dying(spark, str(out), steps), out, 60)
        except KilledError:
            kills += 1
        whole = run_once(HadoopFiles(spark, str(out)), out, 60)

        files = [path for path in out.rglob("part-*") if path.is_file()]
        assert sorted(int(word) for path in files for word in path.read_text().split()) == list(range(60))
        assert whole.last is not None
        assert whole.last.run == 2
        assert list(out.glob("_riverbed/staging-*")) == []
        if kills <= steps:
            break
    # Before each of: the list, three files, the list's name, the end of the staging directory; copies take two.
    assert kills == changes


def test_two_exports_to_one_place_do_not_run_at_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark, str(tmp_path / "out"))
    with (
        files.locked(Ledger.lock),
        pytest.raises(Failure, match=r"another export to .* is running"),
        HadoopFiles(spark, str(tmp_path / "out")).locked(Ledger.lock),
    ):
        pass
