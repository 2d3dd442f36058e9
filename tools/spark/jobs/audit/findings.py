"""What an audit finds in a snapshot: pending entries by kind, groups, consumers, and what holds streams.

Works on the tables about groups; of the entries themselves it reads next to nothing.  Groups and consumers are held in
memory, pending entries are not.  Knows no page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from riverbed.store.ids import MAX_ID, StreamID, parse_id
from riverbed.store.snapshot.reader import StreamSummary
from riverbed.tools.console.console import Failure
from riverbed.tools.spark.jobs.audit.pending import GroupName, Held, Kind, Limits, Pending, PendingEntries, Work
from riverbed.tools.spark.jobs.command import Frozen, Job
from riverbed.tools.spark.jobs.pins import Need, Pin, find_pins
from riverbed.tools.spark.reading.options import StreamName, Table, read_options

_GROUPS = (
    "db int, key_binary binary, group_binary binary, last_delivered_id string, entries_read bigint, lag bigint, "
    "pending bigint, released bigint, consumers bigint, policy string"
)
_CONSUMERS = (
    "db int, key_binary binary, group_binary binary, consumer_binary binary, pending bigint, idle_ms bigint, "
    "inactive_ms bigint"
)

_NAMED = (Kind.ORPHANED, Kind.POISON, Kind.STUCK)


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer.  `work` is known when there is an earlier snapshot."""

    group: GroupName
    name: bytes
    pending: int
    idle_ms: int  # since it was last heard of
    inactive_ms: int | None  # since it was last given anything
    held: Held | None
    work: Work | None


@dataclass(frozen=True, slots=True)
class Crew:
    """A group.  `read_ms` is the time since a consumer of it was heard of, None when it has none."""

    name: GroupName
    last_id: StreamID
    entries_read: int | None
    lag: int | None
    pending: int
    released: int
    consumers: int
    policy: str | None
    read_ms: int | None
    oldest_ms: int | None
    read_since: int | None  # entries given out since the earlier snapshot
    settled_since: int | None  # and acknowledged, or given up


@dataclass(frozen=True, slots=True)
class Findings:
    """All that an audit has to say; what is to be named at length is cut at `Limits.shown`."""

    streams: int
    entries: int
    minutes: float | None  # since the earlier snapshot
    totals: dict[Kind, int]
    worst: dict[Kind, list[Pending]]
    ages: dict[Kind, list[int]]
    deliveries: dict[Kind, list[int]]
    groups: list[Crew]
    members: list[Member]  # with the most pending entries first
    unread: list[Crew]
    idle: list[Member]
    pins: list[Pin]

    @property
    def problems(self) -> int:
        """How many things there are to look at."""
        return sum(self.totals[kind] for kind in _NAMED) + len(self.unread) + len(self.idle)


def audit_snapshot(
    job: Job, frozen: Frozen, earlier: Frozen | None, limits: Limits, options: dict[str, str]
) -> Findings:
    """Look at one snapshot, and at what changed since another one of the same store."""
    job.step("reading pending entries")
    pending = PendingEntries(job, frozen, limits, options)
    held = pending.held()
    totals = {kind: sum(each.counts[kind] for each in held) for kind in Kind}
    worst = {kind: pending.worst(kind) if totals[kind] else [] for kind in _NAMED}
    ages, deliveries = pending.spread()
    minutes = None
    work: dict[tuple[GroupName, bytes | None], Work] = {}
    before: dict[GroupName, Any] = {}
    if earlier is not None:
        job.step(f"comparing with {earlier.name}")
        minutes = _minutes_between(earlier, frozen)
        then = PendingEntries(job, earlier, limits, options)
        work = pending.work_since(then, earlier.snapshot.manifest.time_ms)
        then.close()
        before = {_name(row): row for row in job.read(earlier, Table.GROUPS, _GROUPS, options).collect()}
    pending.close()
    job.step("reading groups and consumers")
    held_by = {(each.group, each.consumer): each for each in held}
    members = [
        _member(row, held_by, work, has_work=earlier is not None)
        for row in job.read(frozen, Table.CONSUMERS, _CONSUMERS, options).collect()
    ]
    members.sort(key=lambda member: (-member.pending, member.group, member.name))
    groups = _crews(job.read(frozen, Table.GROUPS, _GROUPS, options).collect(), held, members, before)
    job.step("looking for what holds streams")
    with_groups, streams, entries = _streams(frozen, {(group.name.db, group.name.key) for group in groups}, options)
    return Findings(
        streams=streams,
        entries=entries,
        minutes=minutes,
        totals=totals,
        worst=worst,
        ages=ages,
        deliveries=deliveries,
        groups=groups,
        members=members,
        unread=[group for group in groups if group.read_ms is None or group.read_ms >= limits.idle_ms],
        idle=[member for member in members if member.pending and member.idle_ms >= limits.idle_ms],
        pins=find_pins(job, frozen, with_groups, list(_needs(groups, held, with_groups)), limits.shown),
    )


def _minutes_between(earlier: Frozen, frozen: Frozen) -> float:
    first, last = earlier.snapshot.manifest, frozen.snapshot.manifest
    if first.time_ms >= last.time_ms:
        raise Failure(f"{earlier.name} was not taken before {frozen.name}")
    return (last.time_ms - first.time_ms) / 60_000


def _name(row: Any) -> GroupName:
    return GroupName(row.db, bytes(row.key_binary), bytes(row.group_binary))


def _member(
    row: Any,
    held_by: dict[tuple[GroupName, bytes | None], Held],
    work: dict[tuple[GroupName, bytes | None], Work],
    *,
    has_work: bool,
) -> Member:
    name = _name(row)
    consumer = bytes(row.consumer_binary)
    done = work.get((name, consumer), Work(0, 0, 0)) if has_work else None
    return Member(name, consumer, row.pending, row.idle_ms, row.inactive_ms, held_by.get((name, consumer)), done)


def _crews(rows: list[Any], held: list[Held], members: list[Member], before: dict[GroupName, Any]) -> list[Crew]:
    """By lag, the largest first, those that cannot be told before them."""
    read: dict[GroupName, int] = {}
    for member in members:
        read[member.group] = min(read.get(member.group, member.idle_ms), member.idle_ms)
    oldest: dict[GroupName, int] = {}
    for each in held:
        if each.oldest_idle_ms is not None:
            oldest[each.group] = max(oldest.get(each.group, 0), each.oldest_idle_ms)
    groups = []
    for row in rows:
        name = _name(row)
        then = before.get(name)
        given = None
        if then is not None and then.entries_read is not None and row.entries_read is not None:
            given = max(row.entries_read - then.entries_read, 0)
        last_id = parse_id(row.last_delivered_id.encode())
        assert last_id is not None
        groups.append(
            Crew(
                name,
                last_id,
                row.entries_read,
                row.lag,
                row.pending,
                row.released,
                row.consumers,
                row.policy,
                read.get(name),
                oldest.get(name),
                given,
                None if given is None or then is None else max(given - (row.pending - then.pending), 0),
            )
        )
    return sorted(groups, key=lambda group: (group.lag is not None, -(group.lag or 0), -group.pending, group.name))


def _streams(
    frozen: Frozen, with_groups: set[StreamName], options: dict[str, str]
) -> tuple[dict[StreamName, StreamSummary], int, int]:
    """-> (the streams that have groups and entries, how many streams there are, and entries)"""
    wanted = read_options({"path": frozen.path, **options})
    found = {}
    count = entries = 0
    for stream in frozen.snapshot.streams():
        if wanted.wants(stream.db, stream.key):
            count += 1
            entries += stream.length
            if stream.length and (stream.db, stream.key) in with_groups:
                found[stream.db, stream.key] = stream
    return found, count, entries


def _needs(groups: list[Crew], held: list[Held], streams: dict[StreamName, StreamSummary]) -> Iterator[Need]:
    """The first entry that each group needs, of those that need any."""
    firsts: dict[GroupName, Need] = {}
    for each in held:
        if each.needed_id is not None:
            need = Need(each.group, each.needed_id, True, each.consumer, each.needed_idle_ms)
            if each.group not in firsts or need.entry_id < firsts[each.group].entry_id:
                firsts[each.group] = need
    for group in groups:
        stream = streams.get((group.name.db, group.name.key))
        if stream is None:
            continue
        first = firsts.get(group.name)
        if group.last_id < stream.last_live_id and group.last_id < MAX_ID:
            unread = Need(group.name, StreamID(group.last_id + 1), False)
            if first is None or unread.entry_id < first.entry_id:
                first = unread
        if first is not None:
            yield first
