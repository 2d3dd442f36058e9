from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from tests.servers import RiverbedServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RiverbedServer]:
    with RiverbedServer(tmp_path / "data", tmp_path) as server:
        yield server


def test_entries_are_what_xrange_answers(spark: SparkSession, server: RiverbedServer) -> None:
    client = redis.Redis(port=server.port)
    for number in range(1000):
        client.xadd("events", {"n": number, b"\xff": bytes([number % 256])}, id=f"{1000 + number // 3}-{number}")
    client.save()

    rows = spark.read.format("riverbed").load(str(server.directory)).collect()

    answered = client.xrange("events")
    assert [row.id.encode() for row in rows] == [entry_id for entry_id, _ in answered]
    assert [row.fields for row in rows] == [{"n": fields[b"n"], "\\xff": fields[b"\xff"]} for _, fields in answered]
    assert [(row.ms, row.seq) for row in rows] == [(1000 + n // 3, n) for n in range(1000)]
