"""Finds what keeps the beginning of a stream: the group that needs its oldest entry, and how much only it keeps.

    entries   |  no group does      |  only group A does   |  A and B do ...
              first                 needed by A            needed by B

A group needs its pending entries that still exist, and the entries that it has not received.  A trim with ACKED and
`riverbed compact --acked` remove the entries that no group needs.  The entries that one group keeps alone are the cost
of that slow group.  Entries are counted by the parts that the manifest lists; only the part with a bound is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import functions as fn

from riverbed.store.ids import StreamID
from riverbed.store.snapshot.stream_lines import StreamSummary
from riverbed.tools.spark.jobs.audit.pending import GroupName
from riverbed.tools.spark.jobs.command import Frozen, Job
from riverbed.tools.spark.reading.options import StreamName, Table, names_text, offsets_text

_KEYS: Final = "_db int, _key_binary binary"


@dataclass(frozen=True, slots=True)
class Need:
    """The first entry that a group needs: pending with a consumer for `idle_ms`, or not delivered yet."""

    group: GroupName
    entry_id: StreamID
    is_pending: bool
    consumer: bytes | None = None
    idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A stream and the group that holds its beginning."""

    stream: StreamSummary
    need: Need
    spare: int  # entries that no group needs
    kept_alone: int  # entries that only this group needs; 0 if another group needs the same first entry


def find_pins(
    job: Job, frozen: Frozen, streams: Mapping[StreamName, StreamSummary], needs: Sequence[Need], most: int
) -> list[Pin]:
    """The streams whose beginning a group holds, sorted by the most entries that one group keeps alone."""
    by_stream: dict[StreamName, list[Need]] = {}
    for need in needs:
        by_stream.setdefault((need.group.db, need.group.key), []).append(need)
    firsts: dict[StreamName, Need] = {}
    seconds: dict[StreamName, StreamID] = {}
    for name, found in by_stream.items():
        found.sort(key=lambda need: (need.entry_id, need.group))
        firsts[name] = found[0]
        if len(found) > 1:
            seconds[name] = found[1].entry_id

    def about(name: StreamName) -> int:
        end = _about_before(streams[name], seconds[name]) if name in seconds else streams[name].length
        return end - _about_before(streams[name], firsts[name].entry_id)

    shown = sorted(firsts, key=lambda name: (-about(name), name))[:most]
    spare = _count_before(job, frozen, streams, {name: firsts[name].entry_id for name in shown})
    kept = _count_before(job, frozen, streams, {name: seconds[name] for name in shown if name in seconds})
    pins = [
        Pin(streams[name], firsts[name], spare[name], kept.get(name, streams[name].length) - spare[name])
        for name in shown
    ]
    return sorted(pins, key=lambda pin: (-pin.kept_alone, pin.need.group))


def _whole_parts(stream: StreamSummary, bound: StreamID) -> tuple[int, int]:
    """-> (entries in the parts that end before `bound`, the number of the part with `bound`)"""
    count = 0
    for number, part in enumerate(stream.parts[1:]):
        if part.first_id > bound:
            return count, number
        count += stream.parts[number].entries
    return count, len(stream.parts) - 1


def _about_before(stream: StreamSummary, bound: StreamID) -> int:
    """Estimate how many entries have a smaller ID, as if the IDs of a part were evenly spread."""
    count, number = _whole_parts(stream, bound)
    first = max(stream.parts[number].first_id, stream.first_id)
    end = stream.parts[number + 1].first_id if number + 1 < len(stream.parts) else stream.last_live_id + 1
    share = (bound - first) / max(end - first, 1)
    return count + round(stream.parts[number].entries * min(max(share, 0), 1))


def _count_before(
    job: Job, frozen: Frozen, streams: Mapping[StreamName, StreamSummary], bounds: Mapping[StreamName, StreamID]
) -> dict[StreamName, int]:
    """How many entries of each stream have a smaller ID than its bound."""
    counts: dict[StreamName, int] = {}
    starts: dict[StreamName, StreamID] = {}
    ends: dict[StreamName, StreamID] = {}
    for name, bound in bounds.items():
        stream = streams[name]
        counts[name], number = _whole_parts(stream, bound)
        first = stream.parts[number].first_id
        if first < bound:
            starts[name], ends[name] = first, StreamID(bound - 1)
    if starts:
        options = {
            "streams": names_text(starts),
            "startingOffsets": offsets_text(starts),
            "endingOffsets": offsets_text(ends),
        }
        rows = job.read(frozen, Table.ENTRIES, _KEYS, options).groupBy("_db", "_key_binary").agg(fn.count(fn.lit(1)))
        for db, key, count in rows.collect():
            counts[db, bytes(key)] += count
    return counts
