"""Makes rows and Arrow batches of what is not entries: streams, their groups and consumers, and pending entries.

Pending entries are stored in runs, and numpy decodes a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riverbed.store.format.pending import UNOWNED, Run
from riverbed.store.groups.lag import lag
from riverbed.store.ids import StreamID, id_text, pack_id
from riverbed.store.model import NO_POLICY, DeliveryPolicy
from riverbed.store.tables.entries import StreamEntries
from riverbed.store.tables.groups import LiveGroup, live_groups
from riverbed.store.tables.reader import TableReader
from riverbed.store.tables.streams import nodes_of
from riverbed.tools.columns.metadata import longs, readable, timestamps
from riverbed.tools.columns.streams import StreamHere, key_text

MAX_ROWS: Final = 16384
Row = dict[str, Any]

_MOMENT: Final = pa.timestamp("us", tz="UTC")
_NAMES: Final = {"key": pa.string(), "key_binary": pa.binary(), "db": pa.int32()}
_GROUP: Final = _NAMES | {"group": pa.string(), "group_binary": pa.binary()}
_CONSUMER: Final = _GROUP | {"consumer": pa.string(), "consumer_binary": pa.binary()}
GROUPS: Final = pa.schema(
    list(
        (
            _GROUP
            | {"last_delivered_id": pa.string()}
            | dict.fromkeys(("entries_read", "lag", "pending", "released", "consumers"), pa.int64())
            | {"policy": pa.string()}
        ).items()
    )
)
CONSUMERS: Final = pa.schema(
    list(
        (
            _CONSUMER
            | {"pending": pa.int64(), "seen": _MOMENT, "active": _MOMENT}
            | {"idle_ms": pa.int64(), "inactive_ms": pa.int64()}
        ).items()
    )
)
PENDING: Final = pa.schema(
    list(
        (
            _CONSUMER
            | {"id": pa.string(), "ms": pa.int64(), "seq": pa.int64(), "timestamp": _MOMENT, "delivered": _MOMENT}
            | {"idle_ms": pa.int64(), "deliveries": pa.int64(), "entry_exists": pa.bool_()}
        ).items()
    )
)


class Taken(NamedTuple):
    """Which tables are read, and as of when: what is idle has been so up to then."""

    name: str
    time_ms: int


def batches_of(schema: pa.Schema, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Rows as batches of some thousand; `schema` picks columns."""
    left = iter(rows)
    while some := list(islice(left, MAX_ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=schema)


# -- small tables ------------------------------------------------------------------------------------------------------


def _about_stream(stream: StreamHere, taken: Taken) -> Row:
    return {"key": stream.key_text, "key_binary": stream.key, "db": stream.db, "snapshot": taken.name}


def _about_group(group: LiveGroup) -> Row:
    return {"group": key_text(group.row.name), "group_binary": group.row.name}


def _policy_text(policy: DeliveryPolicy) -> str | None:
    """The policy in the words of XGROUP POLICY; None for a group without one."""
    words = []
    if policy.dead_letter is not None:
        words.append(f"MAXDELIVERIES {policy.max_deliveries} DEADLETTER {key_text(policy.dead_letter)}")
    if policy.consumer_ttl_ms:
        words.append(f"CONSUMERTTL {policy.consumer_ttl_ms}")
    return " ".join(words) or None


def _text(packed: StreamID) -> str:
    return id_text(packed).decode()


def _moment(ms: int) -> int | None:
    """Unix milliseconds as microseconds of a timestamp; None for never."""
    return ms * 1000 if 0 <= ms < 1 << 53 else None


def stream_rows(reader: TableReader, stream: StreamHere, taken: Taken) -> Iterator[Row]:
    """What a stream is, as one row."""
    row = stream.row
    yield {
        **_about_stream(stream, taken),
        "length": row.length,
        "first_id": _text(row.first_id) if row.length else None,
        "last_entry_id": _text(row.last_live_id) if row.length else None,
        "last_id": _text(row.last_id),
        "max_deleted_id": _text(row.max_deleted_id),
        "entries_added": row.entries_added,
        "groups": row.group_count,
        "bytes": sum(node.live_bytes for _, node in nodes_of(reader, row)),
        "expires": _moment(row.expire_ms) if row.expire_ms else None,
    }


def group_rows(reader: TableReader, stream: StreamHere, taken: Taken) -> Iterator[Row]:
    """A row for each group of a stream."""
    for group in live_groups(reader, stream.row.stream_no):
        yield {
            **_about_stream(stream, taken),
            **_about_group(group),
            "policy": _policy_text(group.row.policy or NO_POLICY),
            "last_delivered_id": _text(group.row.last_id),
            "entries_read": group.row.entries_read,
            "lag": lag(stream.row, group.row.last_id, group.row.entries_read),
            "pending": group.row.pel_count,
            "released": group.row.released_count,
            "consumers": len(group.consumers),
        }


def consumer_rows(reader: TableReader, stream: StreamHere, taken: Taken) -> Iterator[Row]:
    """A row for each consumer of a stream's groups."""
    now_ms = taken.time_ms
    for group in live_groups(reader, stream.row.stream_no):
        for member in sorted(group.consumers.values()):
            was_active = member.active_ms >= 0
            yield {
                **_about_stream(stream, taken),
                **_about_group(group),
                "consumer": key_text(member.name),
                "consumer_binary": member.name,
                "pending": member.pel_count,
                "seen": _moment(member.seen_ms),
                "active": _moment(member.active_ms) if was_active else None,
                "idle_ms": max(now_ms - member.seen_ms, 0),
                "inactive_ms": max(now_ms - member.active_ms, 0) if was_active else None,
            }


# -- pending -----------------------------------------------------------------------------------------------------------


def pending_batches(
    reader: TableReader, stream: StreamHere, taken: Taken, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The pending entries of a stream's groups, in its range; `schema` picks columns."""
    if stream.range.is_empty:
        return
    for group in live_groups(reader, stream.row.stream_no):
        pending = _Pending(stream, group, taken, schema)
        count = 0
        runs: list[Run] = []
        for run in _runs(reader, group, stream):
            runs.append(run)
            count += len(run)
            if count >= MAX_ROWS:
                yield pending.batch(reader, runs)
                runs, count = [], 0
        if runs:
            yield pending.batch(reader, runs)


def _runs(reader: TableReader, group: LiveGroup, stream: StreamHere) -> Iterator[Run]:
    """The runs of a group in the stream's range, cut to that range."""
    first, last = pack_id(stream.range.first), pack_id(stream.range.last)
    for run in group.runs(reader, first):
        if run.first > last:
            return
        within = run.within(first, last)
        if within is not None:
            yield within


class _Pending:
    """Makes the batches of one group."""

    def __init__(self, stream: StreamHere, group: LiveGroup, taken: Taken, schema: pa.Schema) -> None:
        self._stream = stream
        self._group = group
        self._taken = taken
        self._schema = schema

    def batch(self, reader: TableReader, runs: list[Run]) -> pa.RecordBatch:
        halves = np.frombuffer(b"".join(run.packed for run in runs), dtype=">u8").astype(np.uint64)
        ms, seq = halves[0::2], halves[1::2]
        count = len(ms)
        lengths = [len(run) for run in runs]
        owned = [run.consumer_no != UNOWNED for run in runs]
        # Runs without an owner have the number of their release instead of a time.
        delivered = [run.time_ms if is_owned else -1 for run, is_owned in zip(runs, owned, strict=True)]
        delivered_ms = np.repeat(np.array(delivered, dtype=np.int64), lengths)
        nobody = delivered_ms < 0
        missing = nobody if nobody.any() else None
        columns: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: pa.repeat(pa.scalar(self._stream.key_text), count),
            "db": lambda: pa.repeat(pa.scalar(self._stream.db, type=pa.int32()), count),
            "key_binary": lambda: pa.repeat(pa.scalar(self._stream.key), count),
            "group": lambda: pa.repeat(pa.scalar(key_text(self._group.row.name)), count),
            "group_binary": lambda: pa.repeat(pa.scalar(self._group.row.name), count),
            "consumer": lambda: readable(self._consumers(runs, lengths)),
            "consumer_binary": lambda: self._consumers(runs, lengths),
            "id": lambda: pc.binary_join_element_wise(*(pa.array(half).cast(pa.string()) for half in (ms, seq)), "-"),
            "ms": lambda: longs(ms),
            "seq": lambda: longs(seq),
            "timestamp": lambda: timestamps(ms),
            "delivered": lambda: _known(timestamps(np.maximum(delivered_ms, 0).astype(np.uint64)), nobody),
            "idle_ms": lambda: pa.array(np.maximum(self._taken.time_ms - delivered_ms, 0), mask=missing),
            "deliveries": lambda: pa.array(np.repeat(np.array([run.delivery_count for run in runs]), lengths)),
            "entry_exists": lambda: self._exist(reader, runs),
            "snapshot": lambda: pa.repeat(pa.scalar(self._taken.name), count),
        }
        arrays = [columns[field.name]().cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _consumers(self, runs: list[Run], lengths: list[int]) -> pa.Array:
        numbers = sorted(self._group.consumers)
        names = pa.array([self._group.consumers[number].name for number in numbers], type=pa.binary())
        place = {number: at for at, number in enumerate(numbers)}
        wanted = np.repeat(np.array([place.get(run.consumer_no, -1) for run in runs], dtype=np.int64), lengths)
        nobody = wanted < 0
        return names.take(pa.array(wanted, mask=nobody if nobody.any() else None))

    def _exist(self, reader: TableReader, runs: list[Run]) -> pa.Array:
        """Whether each entry is still in its stream."""
        entries = StreamEntries(reader, self._stream.row)
        found: list[bool] = []
        for run in runs:
            # What was delivered together mostly stands together, which one walk over it shows.
            if entries.has_run(run.packed):
                found += [True] * len(run)
            else:
                found += map(entries.has, run.ids())
        return pa.array(found, type=pa.bool_())


def _known(array: pa.Array, unknown: Any) -> pa.Array:
    if not unknown.any():
        return array
    return array.take(pa.array(np.arange(len(array)), mask=unknown))
