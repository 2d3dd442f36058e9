from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import quantiles

import redis
from pyspark.sql import SparkSession

from tests.support.servers import RiverbedServer
from tests.tools.spark.jobruns import freeze, report, run

FIRST_MS = 1_763_683_200_000  # 2025-11-21, midnight
MINUTE_MS = 60_000


def test_minutes_bytes_and_gaps_are_those_counted_by_hand(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=server.port)
    times = [FIRST_MS + number * number * 997 for number in range(120)]
    times += [times[-1]] * 5
    for number, ms in enumerate(times):
        client.xadd("busy", {"n": "x" * (number % 7), "name": "value"}, id=f"{ms}-{number}")
    for key in (b"\xff\x00", "one"):
        client.xadd(key, {"field": ""}, id=f"{FIRST_MS}-1")
    client.xadd("beyond", {"f": "v"}, id=f"{(1 << 63) + 5}-1")
    out = tmp_path / "report"

    result = run("rates", freeze(server, tmp_path / "s"), "--out", out)

    assert (result.exit_code, result.stderr) == (0, "")
    assert "128 entries in 4 streams" in result.stdout
    found = json.loads((out / "rates.json").read_text())
    sizes = [1 + number % 7 + 9 for number in range(len(times))]
    assert (found["entries"], found["bytes"], found["untimed"]) == (128, sum(sizes) + 5 + 5 + 2, 1)
    busy = found["largest"][0]
    minutes = Counter(ms // MINUTE_MS for ms in times)
    gaps = [after - before for before, after in pairwise(times)]
    percentiles = quantiles(gaps, n=100, method="inclusive")
    assert (busy["key"], busy["entries"], busy["bytes"], busy["minutes"]) == ("busy", 125, sum(sizes), len(minutes))
    assert (busy["first_ms"], busy["last_ms"]) == (times[0], times[-1])
    assert busy["busiest_minute"] == {"ms": FIRST_MS, "entries": minutes[FIRST_MS // MINUTE_MS]}
    assert busy["gaps_ms"] == {
        "p50": round(percentiles[49]),
        "p95": round(percentiles[94]),
        "p99": round(percentiles[98]),
        "longest": max(gaps),
    }
    assert sorted(each["entries"] for each in found["largest"][1:]) == [1, 1]
    assert all(each["gaps_ms"] is None for each in found["largest"][1:])

    lines = [json.loads(line) for line in (out / "minutes.jsonl").read_text().splitlines()]
    of_busy = {each["ms"] // MINUTE_MS: each["entries"] for each in lines if each.get("key") == "busy"}
    assert of_busy == dict(minutes)
    assert sum(each["bytes"] for each in lines) == found["bytes"] - 2
    page = (out / "rates.html").read_text()
    assert page.count("<figure>") == 3
    assert re.search('>busy</td><td class="number" data-title="[a-z ]+">125</td>', page)


def test_a_range_of_time_and_a_pattern_bound_what_is_counted(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=server.port)
    for number in range(10):
        client.xadd("a", {"f": "v"}, id=f"{FIRST_MS + number * MINUTE_MS}-0")
        client.xadd("b", {"f": "v"}, id=f"{FIRST_MS + number * MINUTE_MS}-0")
    snapshot = freeze(server, tmp_path / "s")

    found = report(
        "rates", snapshot, "--match", "a", "--since", FIRST_MS + 2 * MINUTE_MS, "--until", "2025-11-21T00:05Z"
    )

    assert (found["streams"], found["entries"], found["largest"][0]["gaps_ms"]["p50"]) == (1, 4, MINUTE_MS)


def test_a_rate_is_by_the_time_between_the_first_entry_and_the_last(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=server.port)
    for number in range(31):  # 30 entries after the first in 90 s, which touch three minutes of the clock
        client.xadd("steady", {"f": "v"}, id=f"{FIRST_MS + 50_000 + number * 3000}-0")
    for number in range(4):  # within a second, at the end of a minute and the beginning of the next
        client.xadd("burst", {"f": "v"}, id=f"{FIRST_MS + MINUTE_MS - 400 + number * 200}-0")

    found = report("rates", freeze(server, tmp_path / "s"))

    assert {each["key"]: each["per_minute"] for each in found["largest"]} == {"steady": 20.667, "burst": 4.0}


def test_an_empty_store_has_no_rates(spark: SparkSession, server: RiverbedServer, tmp_path: Path) -> None:
    found = report("rates", freeze(server, tmp_path / "s"))

    assert (found["streams"], found["entries"], found["largest"]) == (0, 0, [])
