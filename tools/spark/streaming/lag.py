"""How far a streaming query is behind, by stream: from what Spark reports of each batch.

    for source in query.lastProgress.sources:
        for stream, lag in lag_by_stream(source).items():
            print(stream, lag.entries, lag.ms)

Spark has no metrics for sources in Python.  But a query's progress has the offset up to which a batch was read, and
the newest one of the store, and both have the number of entries that each stream ever had.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import SourceProgress

from riverbed.store.ids import MIN_ID
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.reading.options import name_text
from riverbed.tools.spark.streaming.offsets import Offset, Progress


@dataclass(frozen=True, slots=True)
class Lag:
    """What a query has not read of a stream.

    `entries` are behind what it read; those that were deleted meanwhile may count.  `ms` is the time from the ID up to
    which it read to the last ID of the stream; None when it has read nothing of the stream.
    """

    entries: int
    ms: int | None


def lag_by_stream(source: SourceProgress) -> dict[str, Lag]:
    """The lag of each stream that one source of a query has, by name as in `startingOffsets`: `0/orders%3A1`.

    It is that of the moment when the batch was planned.  What is behind `endingId` counts too.  Empty when the store or
    folder is empty.  Raises SourceError for a source that is not Riverbed's.
    """
    read, newest = _offset(source.endOffset), _offset(source.latestOffset)
    return {name_text(name): _lag(read.of(name), last) for name, last in sorted(newest.streams.items())}


def _offset(text: str | None) -> Offset:
    try:
        values: Any = json.loads(text or "null")
    except ValueError as error:
        raise SourceError(f"the source is not a Riverbed: its offset is no JSON: {error}") from None
    return Offset() if values is None else Offset.from_json(values)


def _lag(read: Progress, newest: Progress) -> Lag:
    is_another = read.numbering == newest.numbering and read.number not in (None, newest.number)
    if read.last_id == MIN_ID or is_another:
        return Lag(newest.seen, None)
    return Lag(max(newest.seen - read.seen, 0), max((newest.last_id >> 64) - (read.last_id >> 64), 0))
