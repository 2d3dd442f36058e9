"""The findings of an audit, as a JSON object: pending entries by kind, groups, consumers, held streams.

Reads the tables about groups, and very few of the entries.  Groups and consumers are held in memory, pending entries
are not.  Every list is cut at `Limits.shown`; totals count everything.  This module knows nothing of the HTML page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from riverbed.store.ids import MAX_ID, StreamID, id_text, parse_id
from riverbed.store.snapshot.stream_lines import StreamSummary
from riverbed.tools.console.console import Failure
from riverbed.tools.console.keytext import key_values
from riverbed.tools.spark.jobs.audit.costs import ranked_costs
from riverbed.tools.spark.jobs.audit.payloads import Entry, payloads
from riverbed.tools.spark.jobs.audit.pending import (
    AGES,
    DELIVERIES,
    GroupName,
    Held,
    Kind,
    Limits,
    Pending,
    PendingEntries,
    Trouble,
    Work,
)
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

_PROBLEMS: Final = (Kind.ORPHANED, Kind.POISON, Kind.STUCK)
_KINDS: Final = (Kind.IN_WORK, Kind.STUCK, Kind.POISON, Kind.ORPHANED, Kind.RELEASED)

Row = dict[str, Any]
Whose = tuple[GroupName, bytes | None]


def audit_snapshot(
    job: Job, frozen: Frozen, earlier: Frozen | None, limits: Limits, options: dict[str, str]
) -> dict[str, Any]:
    """Audit one snapshot, and the changes since another one of the same store -> the whole report.

    If there is an earlier snapshot, the report has `since`, and groups and consumers have the counts since then.
    """
    job.step("reading pending entries")
    pending = PendingEntries(job, frozen, limits, options)
    held = pending.held()
    totals = {kind: sum(each.counts[kind] for each in held) for kind in Kind}
    there = [kind for kind in _PROBLEMS if totals[kind]]
    worst = {
        kind.value: [_message(each) for each in pending.worst(kind)] if kind in there else [] for kind in _PROBLEMS
    }
    troubles = {kind: pending.troubles(kind) if kind in there else [] for kind in _PROBLEMS}
    ages, deliveries = pending.spread()
    since: Row = {}
    work: dict[Whose, Work] | None = None
    before: dict[GroupName, Any] | None = None
    if earlier is not None:
        job.step(f"comparing with {earlier.name}")
        since = {"since": _since(earlier, frozen)}
        then = PendingEntries(job, earlier, limits, options)
        work = pending.work_since(then, earlier.snapshot.manifest.time_ms)
        then.close()
        before = {_name(row): row for row in job.read(earlier, Table.GROUPS, _GROUPS, options).collect()}
    pending.close()
    job.step("reading groups and consumers")
    members = _members(job.read(frozen, Table.CONSUMERS, _CONSUMERS, options).collect(), held, work)
    groups = _groups(job.read(frozen, Table.GROUPS, _GROUPS, options).collect(), held, members, before)
    idle = [row for _, row in members if row["pending"] and row["idle_ms"] >= limits.idle_ms]
    unread = [row for _, _, row in groups if row["read_ms_ago"] is None or row["read_ms_ago"] >= limits.idle_ms]
    job.step("finding the groups that hold streams back")
    with_groups, streams, entries = _streams(frozen, {(name.db, name.key) for name, _, _ in groups}, options)
    pins = find_pins(job, frozen, with_groups, list(_needs(groups, held, with_groups)), limits.shown)
    job.step("reading the first entries of what is wrong")
    firsts = [((each.group.db, each.group.key), each.first_id) for kind in there for each in troubles[kind]]
    texts = payloads(frozen, firsts)
    manifest = frozen.snapshot.manifest
    report = {
        "snapshot": frozen.path,
        "offset": manifest.offset,
        "time_ms": manifest.time_ms,
        **since,
        "stuck_after_ms": limits.stuck_ms,
        "poison_from": limits.poison_deliveries,
        "idle_after_ms": limits.idle_ms,
        "streams": streams,
        "entries": entries,
        "group_count": len(groups),
        "consumer_count": len(members),
        "idle_consumer_count": len(idle),
        "unread_group_count": len(unread),
        "problems": sum(totals[kind] for kind in _PROBLEMS) + len(unread) + len(idle),
        "pending": {kind.value: totals[kind] for kind in _KINDS},
        "pending_by_age": _spread(ages, AGES),
        "pending_by_deliveries": _spread(deliveries, DELIVERIES),
        **worst,
        **{f"{kind.value}_by_consumer": [_sum_row(each, texts) for each in troubles[kind]] for kind in _PROBLEMS},
        "idle_consumers": idle[: limits.shown],
        "unread_groups": unread[: limits.shown],
        "pins": [_pin(pin) for pin in pins],
        "groups": [row for _, _, row in groups[: limits.shown]],
        "consumers": [row for _, row in members[: limits.shown]],
    }
    return report | {"costs": ranked_costs(report, limits.shown)}


def _since(earlier: Frozen, frozen: Frozen) -> Row:
    first_ms, last_ms = earlier.snapshot.manifest.time_ms, frozen.snapshot.manifest.time_ms
    if first_ms >= last_ms:
        raise Failure(f"{earlier.name} was not taken before {frozen.name}")
    return {"snapshot": earlier.path, "time_ms": first_ms, "minutes": (last_ms - first_ms) / 60_000}


def _spread(counts: dict[Kind, list[int]], bins: tuple[tuple[int | None, str], ...]) -> dict[str, dict[str, int]]:
    return {kind.value: dict(zip((name for _, name in bins), counts[kind], strict=True)) for kind in _KINDS}


def _name(row: Any) -> GroupName:
    return GroupName(row.db, bytes(row.key_binary), bytes(row.group_binary))


# -- rows of the report ------------------------------------------------------------------------------------------------


def _whose(name: GroupName) -> Row:
    return {"db": name.db, **key_values("key", name.key), **key_values("group", name.group)}


def _consumer(name: bytes | None) -> Row:
    return {"consumer": None} if name is None else key_values("consumer", name)


def _message(each: Pending) -> Row:
    values = {"id": each.entry_id, "deliveries": each.deliveries, "idle_ms": each.idle_ms}
    return {**_whose(each.group), **_consumer(each.consumer), **values}


def _sum_row(each: Trouble, texts: Mapping[Entry, str]) -> Row:
    return {
        **_whose(each.group),
        **_consumer(each.consumer),
        "entries": each.entries,
        "deliveries": each.deliveries,
        "most_deliveries": each.most_deliveries,
        "idle_ms": each.idle_ms,
        "first_id": id_text(each.first_id).decode(),
        "payload": texts.get(((each.group.db, each.group.key), each.first_id)),  # None: there is no such entry
    }


def _pin(pin: Pin) -> Row:
    return {
        **_whose(pin.need.group),
        "needed_id": id_text(pin.need.entry_id).decode(),
        "is_pending": pin.need.is_pending,
        **_consumer(pin.need.consumer),
        "idle_ms": pin.need.idle_ms,
        "kept_alone": pin.kept_alone,
        "needed_by_none": pin.spare,
        "length": pin.stream.length,
    }


def _members(rows: list[Any], held: list[Held], work: dict[Whose, Work] | None) -> list[tuple[GroupName, Row]]:
    """The rows of consumers, most pending entries first."""
    held_by = {(each.group, each.consumer): each for each in held}
    members = []
    for row in rows:
        name, consumer = _name(row), bytes(row.consumer_binary)
        has = held_by.get((name, consumer))
        values = {
            **_whose(name),
            **_consumer(consumer),
            "pending": row.pending,
            "idle_ms": row.idle_ms,  # since its last command
            "inactive_ms": row.inactive_ms,  # since it last received an entry
            "oldest_pending_ms": has.oldest_idle_ms if has else None,
            "taken_last_hour": has.taken_last_hour if has else 0,
        }
        if work is not None:
            done = work.get((name, consumer), Work(0, 0, 0))
            values |= {"taken_since": done.taken, "settled_since": done.settled, "lost_since": done.lost}
        members.append((-row.pending, name, consumer, values))
    return [(name, values) for _, name, _, values in sorted(members, key=lambda member: member[:3])]


def _groups(
    rows: list[Any], held: list[Held], members: list[tuple[GroupName, Row]], before: dict[GroupName, Any] | None
) -> list[tuple[GroupName, StreamID, Row]]:
    """The rows of groups with their last delivered IDs: unknown lags first, then the largest lag first."""
    read: dict[GroupName, int] = {}
    for name, member in members:
        read[name] = min(read.get(name, member["idle_ms"]), member["idle_ms"])
    oldest: dict[GroupName, int] = {}
    for each in held:
        if each.oldest_idle_ms is not None:
            oldest[each.group] = max(oldest.get(each.group, 0), each.oldest_idle_ms)
    groups = []
    for row in rows:
        name, last_id = _name(row), parse_id(row.last_delivered_id.encode())
        assert last_id is not None
        values = {
            **_whose(name),
            "lag": row.lag,
            "pending": row.pending,
            "released": row.released,
            "consumers": row.consumers,
            "last_delivered_id": row.last_delivered_id,
            "read_ms_ago": read.get(name),  # since a command of any of its consumers; None without consumers
            "oldest_pending_ms": oldest.get(name),
            "policy": row.policy,
        }
        if before is not None:
            values |= _done_since(row, before.get(name))
        groups.append(((row.lag is not None, -(row.lag or 0), -row.pending, name), last_id, values))
    return [(order[-1], last_id, values) for order, last_id, values in sorted(groups, key=lambda group: group[0])]


def _done_since(row: Any, then: Any) -> Row:
    """How many entries were delivered since, and how many were acknowledged or given up."""
    if then is None or then.entries_read is None or row.entries_read is None:
        return {"delivered_since": None, "settled_since": None}
    given = max(row.entries_read - then.entries_read, 0)
    return {"delivered_since": given, "settled_since": max(given - (row.pending - then.pending), 0)}


# -- what holds streams ------------------------------------------------------------------------------------------------


def _streams(
    frozen: Frozen, with_groups: set[StreamName], options: dict[str, str]
) -> tuple[dict[StreamName, StreamSummary], int, int]:
    """-> (the streams that have groups and entries, the number of streams, the number of entries)"""
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


def _needs(
    groups: list[tuple[GroupName, StreamID, Row]], held: list[Held], streams: dict[StreamName, StreamSummary]
) -> Iterator[Need]:
    """For each group that needs an entry, the first entry that it needs."""
    firsts: dict[GroupName, Need] = {}
    for each in held:
        if each.needed_id is not None:
            need = Need(each.group, each.needed_id, True, each.consumer, each.needed_idle_ms)
            if each.group not in firsts or need.entry_id < firsts[each.group].entry_id:
                firsts[each.group] = need
    for name, last_id, _ in groups:
        stream = streams.get((name.db, name.key))
        if stream is None:
            continue
        first = firsts.get(name)
        if last_id < stream.last_live_id and last_id < MAX_ID:
            unread = Need(name, StreamID(last_id + 1), False)
            if first is None or unread.entry_id < first.entry_id:
                first = unread
        if first is not None:
            yield first
