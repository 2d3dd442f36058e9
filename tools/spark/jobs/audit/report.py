"""The findings of an audit as an object of JSON; its page shows the same.

Every list is cut at the same length (`limits.shown`), and totals are whole.  Knows no Spark.
"""

from __future__ import annotations

from typing import Any, Final

from riverbed.store.ids import id_text
from riverbed.tools.console.keytext import key_values
from riverbed.tools.spark.jobs.audit.findings import Crew, Findings, Member
from riverbed.tools.spark.jobs.audit.pending import AGES, DELIVERIES, GroupName, Kind, Limits, Pending
from riverbed.tools.spark.jobs.command import Frozen
from riverbed.tools.spark.jobs.pins import Pin

_KINDS: Final = (Kind.IN_WORK, Kind.STUCK, Kind.POISON, Kind.ORPHANED, Kind.RELEASED)


def audit_report(frozen: Frozen, earlier: Frozen | None, found: Findings, limits: Limits) -> dict[str, Any]:
    """The whole report.  `since` and what was done since are there when there is an earlier snapshot."""
    manifest = frozen.snapshot.manifest
    minutes = found.minutes
    return {
        "snapshot": frozen.path,
        "offset": manifest.offset,
        "time_ms": manifest.time_ms,
        **({} if earlier is None else {"since": _since(earlier, minutes)}),
        "stuck_after_ms": limits.stuck_ms,
        "poison_from": limits.poison_deliveries,
        "idle_after_ms": limits.idle_ms,
        "streams": found.streams,
        "entries": found.entries,
        "group_count": len(found.groups),
        "consumer_count": len(found.members),
        "idle_consumer_count": len(found.idle),
        "unread_group_count": len(found.unread),
        "problems": found.problems,
        "pending": {kind.value: found.totals[kind] for kind in _KINDS},
        "pending_by_age": _spread(found.ages, AGES),
        "pending_by_deliveries": _spread(found.deliveries, DELIVERIES),
        **{kind.value: [_message(each) for each in found.worst[kind]] for kind in found.worst},
        "idle_consumers": [_member(member, minutes) for member in found.idle[: limits.shown]],
        "unread_groups": [_group(group, minutes) for group in found.unread[: limits.shown]],
        "pins": [_pin(pin) for pin in found.pins],
        "groups": [_group(group, minutes) for group in found.groups[: limits.shown]],
        "consumers": [_member(member, minutes) for member in found.members[: limits.shown]],
    }


def _since(earlier: Frozen, minutes: float | None) -> dict[str, Any]:
    return {"snapshot": earlier.path, "time_ms": earlier.snapshot.manifest.time_ms, "minutes": minutes}


def _spread(counts: dict[Kind, list[int]], bins: tuple[tuple[int | None, str], ...]) -> dict[str, dict[str, int]]:
    return {kind.value: dict(zip((name for _, name in bins), counts[kind], strict=True)) for kind in _KINDS}


def _name(name: GroupName) -> dict[str, Any]:
    return {"db": name.db, **key_values("key", name.key), **key_values("group", name.group)}


def _consumer(name: bytes | None) -> dict[str, Any]:
    return {"consumer": None} if name is None else key_values("consumer", name)


def _message(each: Pending) -> dict[str, Any]:
    return {
        **_name(each.group),
        **_consumer(each.consumer),
        "id": each.entry_id,
        "deliveries": each.deliveries,
        "idle_ms": each.idle_ms,
    }


def _pin(pin: Pin) -> dict[str, Any]:
    return {
        **_name(pin.need.group),
        "needed_id": id_text(pin.need.entry_id).decode(),
        "is_pending": pin.need.is_pending,
        **_consumer(pin.need.consumer),
        "idle_ms": pin.need.idle_ms,
        "kept_alone": pin.kept_alone,
        "needed_by_nobody": pin.spare,
        "length": pin.stream.length,
    }


def _group(group: Crew, minutes: float | None) -> dict[str, Any]:
    words = {
        **_name(group.name),
        "lag": group.lag,
        "pending": group.pending,
        "released": group.released,
        "consumers": group.consumers,
        "last_delivered_id": id_text(group.last_id).decode(),
        "read_ms_ago": group.read_ms,
        "oldest_pending_ms": group.oldest_ms,
        "policy": group.policy,
    }
    if minutes is not None:
        words |= {"delivered_since": group.read_since, "settled_since": group.settled_since}
    return words


def _member(member: Member, minutes: float | None) -> dict[str, Any]:
    words = {
        **_name(member.group),
        **_consumer(member.name),
        "pending": member.pending,
        "idle_ms": member.idle_ms,
        "inactive_ms": member.inactive_ms,
        "oldest_pending_ms": member.held.oldest_idle_ms if member.held else None,
        "taken_last_hour": member.held.taken_last_hour if member.held else 0,
    }
    if minutes is not None and member.work is not None:
        words |= {
            "taken_since": member.work.taken,
            "settled_since": member.work.settled,
            "lost_since": member.work.lost,
        }
    return words
