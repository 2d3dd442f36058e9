from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import SourceProgress

from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.streaming.lag import Lag, lag_by_stream
from tests.support.servers import RiverbedServer
from tests.tools.spark.queries import read_all


def lags(spark: SparkSession, path: Path, work: Path, **options: str) -> list[dict[str, Lag]]:
    """The lag in the progress of each batch of a query that reads all there is."""
    batches = read_all(spark, path, work, "_id string, n int", **options)
    return [lag_by_stream(progress.sources[0]) for progress in batches]


def test_progress_of_a_query_tells_how_far_each_stream_is_behind(
    spark: SparkSession, server: RiverbedServer, tmp_path: Path
) -> None:
    client = redis.Redis(port=server.port)
    for number in range(1, 101):
        client.xadd("a", {"n": number}, id=f"{number * 10}-0")
    for number in range(1, 21):
        client.xadd(b"\xff/", {"n": number}, id=f"{5000 + number}-0")
    client.save()

    found = lags(spark, server.directory, tmp_path, maxRowsPerTrigger="60")

    assert found == [
        # A batch that is cut ends in the millisecond before the next entry.
        {"0/a": Lag(40, 391), "0/%FF/": Lag(20, None)},
        {"0/a": Lag(0, 0), "0/%FF/": Lag(0, 0)},
    ]


def source(read: Any, newest: Any) -> SourceProgress:
    ends: Any = SimpleNamespace(endOffset=json.dumps(read), latestOffset=json.dumps(newest))
    return ends


def at(entry_id: str, seen: int, number: int = 7) -> dict[str, Any]:
    return {"version": 3, "snapshot": "", "numberings": ["n"], "streams": {"0/s": [entry_id, seen, number, 0]}}


def test_a_stream_that_was_made_again_is_unread() -> None:
    assert lag_by_stream(source(at("9-0", 90), at("12-0", 95, number=8))) == {"0/s": Lag(95, None)}
    assert lag_by_stream(source(at("9-0", 90), at("12-0", 95))) == {"0/s": Lag(5, 3)}


def test_a_query_that_has_read_nothing_is_behind_with_everything() -> None:
    assert lag_by_stream(source(None, at("12-0", 95))) == {"0/s": Lag(95, None)}
    assert lag_by_stream(source(None, None)) == {}


def test_a_query_that_has_read_more_than_a_report_knows_is_not_behind() -> None:
    assert lag_by_stream(source(at("12-0", 95), at("9-0", 90))) == {"0/s": Lag(0, 0)}


@pytest.mark.parametrize("offset", [{"topic": {"0": 5}}, 17, [], {"version": 3, "streams": []}])
def test_an_offset_of_another_source_is_refused(offset: Any) -> None:
    with pytest.raises(SourceError, match="not one of this source"):
        lag_by_stream(source(offset, offset))
