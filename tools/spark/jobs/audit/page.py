"""The findings of an audit as a page: what is wrong first, then what each group and consumer is at.

Every list is cut at the same length and says how much more there is.  Knows no Spark.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from riverbed.store.ids import id_text
from riverbed.tools.console.console import age_text, counted
from riverbed.tools.console.keytext import key_values, name_text
from riverbed.tools.spark.jobs.audit.findings import Crew, Findings, Member
from riverbed.tools.spark.jobs.audit.pending import AGES, DELIVERIES, GroupName, Kind, Limits, Pending
from riverbed.tools.spark.jobs.charts import lying_bars, standing_bars
from riverbed.tools.spark.jobs.command import Frozen
from riverbed.tools.spark.jobs.page import Card, Chart, Column, Page, Section, Table
from riverbed.tools.spark.jobs.pins import Pin

_BARS: Final = 12
_KINDS: Final = (Kind.IN_WORK, Kind.STUCK, Kind.POISON, Kind.ORPHANED, Kind.RELEASED)
_WHOSE: Final = (Column("stream", is_name=True), Column("group", is_name=True))
_HELD: Final = (*_WHOSE, Column("consumer", is_name=True))
_MESSAGE: Final = (
    *_HELD,
    Column("entry", is_id=True),
    Column("deliveries", is_number=True),
    Column("delivered ago", is_number=True),
)


def audit_page(frozen: Frozen, earlier: Frozen | None, found: Findings, limits: Limits) -> Page:
    """The whole report."""
    sections = [
        _messages(
            "Poison",
            f"Delivered {limits.poison_deliveries} times or more and still pending: whoever takes them seems to fail. "
            "XGROUP POLICY with MAXDELIVERIES and DEADLETTER moves such entries to a stream of their own.",
            found,
            Kind.POISON,
            limits,
        ),
        _messages(
            "Stuck",
            f"Delivered {age_text(limits.stuck_ms)} ago or earlier and never acknowledged. XAUTOCLAIM gives them to a "
            "consumer that is alive.",
            found,
            Kind.STUCK,
            limits,
        ),
        _messages(
            "Orphaned entries",
            "Pending, but deleted from their stream: nobody can work on them. XAUTOCLAIM drops them from the group.",
            found,
            Kind.ORPHANED,
            limits,
        ),
        _idle_section(found, limits),
        _unread_section(found, limits),
        _pins_section(found),
        _pending_section(found),
        _groups_section(found, limits),
        _consumers_section(found, limits),
    ]
    return Page(f"Audit of {frozen.name}", _facts(frozen, earlier, found, limits), _cards(found), sections)


def _facts(frozen: Frozen, earlier: Frozen | None, found: Findings, limits: Limits) -> list[tuple[str, str]]:
    manifest = frozen.snapshot.manifest
    facts = [
        ("snapshot", frozen.path),
        ("taken", _moment(manifest.time_ms)),
        ("replication offset", str(manifest.offset)),
        ("streams", f"{found.streams:,}"),
        ("entries", f"{found.entries:,}"),
        ("groups", f"{len(found.groups):,}"),
        ("consumers", f"{len(found.members):,}"),
        ("stuck after", age_text(limits.stuck_ms)),
        ("poison from", counted(limits.poison_deliveries, "delivery")),
        ("idle after", age_text(limits.idle_ms)),
    ]
    if earlier is not None:
        facts.append(("compared with", f"{earlier.name}, {_moment(earlier.snapshot.manifest.time_ms)}"))
    return facts


def _cards(found: Findings) -> list[Card]:
    totals = found.totals
    return [
        Card("poison entries", f"{totals[Kind.POISON]:,}", bool(totals[Kind.POISON])),
        Card("stuck entries", f"{totals[Kind.STUCK]:,}", bool(totals[Kind.STUCK])),
        Card("orphaned entries", f"{totals[Kind.ORPHANED]:,}", bool(totals[Kind.ORPHANED])),
        Card("idle consumers with entries", f"{len(found.idle):,}", bool(found.idle)),
        Card("groups nobody reads", f"{len(found.unread):,}", bool(found.unread)),
        Card("pending entries", f"{sum(totals.values()):,}"),
    ]


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# -- what is wrong -----------------------------------------------------------------------------------------------------


def _messages(title: str, text: str, found: Findings, kind: Kind, limits: Limits) -> Section:
    rows = [_message(each) for each in found.worst[kind]]
    return Section(title, text, tables=(Table(_MESSAGE, rows, _more(found.totals[kind], len(rows))),))


def _message(each: Pending) -> list[str]:
    return [
        *_whose(each.group),
        "(nobody)" if each.consumer is None else name_text(each.consumer),
        each.entry_id,
        f"{each.deliveries:,}",
        _ago(each.idle_ms),
    ]


def _more(total: int, shown: int) -> str:
    if not total:
        return "None."
    return f"{total - shown:,} more." if total > shown else ""


def _idle_section(found: Findings, limits: Limits) -> Section:
    columns = (
        *_HELD,
        Column("pending", is_number=True),
        Column("heard of", is_number=True),
        Column("oldest entry", is_number=True),
    )
    rows = [
        [
            *_whose(member.group),
            name_text(member.name),
            f"{member.pending:,}",
            f"{age_text(member.idle_ms)} ago",
            _ago(member.held.oldest_idle_ms if member.held else None),
        ]
        for member in found.idle[: limits.shown]
    ]
    return Section(
        "Idle consumers with pending entries",
        f"Not heard of for {age_text(limits.idle_ms)} or longer: they have died, or were renamed. XGROUP DELCONSUMER "
        "after their entries were claimed, or CONSUMERTTL of XGROUP POLICY.",
        tables=(Table(columns, rows, _more(len(found.idle), len(rows))),),
    )


def _unread_section(found: Findings, limits: Limits) -> Section:
    columns = (
        *_WHOSE,
        Column("consumers", is_number=True),
        Column("last heard of", is_number=True),
        Column("pending", is_number=True),
        Column("lag", is_number=True),
        Column("last delivered", is_id=True),
    )
    rows = [
        [
            *_whose(group.name),
            f"{group.consumers:,}",
            "no consumer" if group.read_ms is None else f"{age_text(group.read_ms)} ago",
            f"{group.pending:,}",
            _lag(group.lag),
            id_text(group.last_id).decode(),
        ]
        for group in found.unread[: limits.shown]
    ]
    return Section(
        "Groups nobody reads",
        f"No consumer, or none that was heard of in the last {age_text(limits.idle_ms)}. A group keeps what it has not "
        "read from being trimmed by ACKED; XGROUP DESTROY ends one that is not needed.",
        tables=(Table(columns, rows, _more(len(found.unread), len(rows))),),
    )


def _pins_section(found: Findings) -> Section:
    columns = (
        *_WHOSE,
        Column("first it needs", is_id=True),
        Column("because"),
        Column("kept for it alone", is_number=True),
        Column("needed by nobody", is_number=True),
        Column("of entries", is_number=True),
    )
    rows = [
        [
            *_whose(pin.need.group),
            id_text(pin.need.entry_id).decode(),
            _because(pin),
            f"{pin.kept_alone:,}",
            f"{pin.spare:,}",
            f"{pin.stream.length:,}",
        ]
        for pin in found.pins
    ]
    return Section(
        "What holds streams back",
        "For each stream the group that needs its oldest entry. What nobody needs can be trimmed now (XTRIM ... ACKED, "
        "riverbed compact --acked); what is kept for one group alone could be as soon as that group has moved on.",
        tables=(Table(columns, rows, "" if rows else "No group needs an entry."),),
    )


def _because(pin: Pin) -> str:
    need = pin.need
    if not need.is_pending:
        return "not delivered yet"
    if need.consumer is None:
        return "pending, released"
    return f"pending with {name_text(need.consumer)} for {_ago(need.idle_ms)}"


# -- how it is ---------------------------------------------------------------------------------------------------------


def _pending_section(found: Findings) -> Section:
    if not sum(found.totals.values()):
        return Section("Pending entries", "There are none.")
    ages = {kind.value: found.ages[kind] for kind in _KINDS if kind is not Kind.RELEASED}
    often = {kind.value: found.deliveries[kind] for kind in _KINDS}
    text = ", ".join(f"{found.totals[kind]:,} {kind.value}" for kind in _KINDS)
    return Section(
        "Pending entries",
        f"{text}.",
        charts=(
            Chart("Time since delivery", standing_bars([name for _, name in AGES], ages, "entries")),
            Chart("Deliveries", standing_bars([name for _, name in DELIVERIES], often, "entries")),
        ),
    )


def _groups_section(found: Findings, limits: Limits) -> Section:
    columns = [
        *_WHOSE,
        Column("lag", is_number=True),
        Column("pending", is_number=True),
        Column("oldest", is_number=True),
        Column("consumers", is_number=True),
        Column("last delivered", is_id=True),
    ]
    if found.minutes is not None:
        columns += [Column("delivered/min", is_number=True), Column("settled/min", is_number=True)]
    has_policy = any(group.policy for group in found.groups)
    if has_policy:
        columns.append(Column("policy"))
    rows = [_group_row(group, found.minutes, has_policy) for group in found.groups[: limits.shown]]
    behind = [group for group in found.groups if group.lag][:_BARS]
    text = "Lag is what a group has still to be given; ? where deleted entries make that unknowable."
    if found.minutes is not None:
        text += " Settled is what was acknowledged, or has gone another way."
    charts: tuple[Chart, ...] = ()
    if behind:
        labels = [" / ".join(_whose(group.name)) for group in behind]
        lags = [group.lag or 0 for group in behind]
        charts = (Chart("Lag by group", lying_bars(labels, lags, [f"{lag:,}" for lag in lags])),)
    return Section("Groups", text, charts, (Table(tuple(columns), rows, _more(len(found.groups), len(rows))),))


def _group_row(group: Crew, minutes: float | None, has_policy: bool) -> list[str]:
    row = [
        *_whose(group.name),
        _lag(group.lag),
        f"{group.pending:,}",
        _ago(group.oldest_ms),
        f"{group.consumers:,}",
        id_text(group.last_id).decode(),
    ]
    if minutes is not None:
        row += [_rate(group.read_since, minutes), _rate(group.settled_since, minutes)]
    return [*row, group.policy or "-"] if has_policy else row


def _consumers_section(found: Findings, limits: Limits) -> Section:
    columns = [
        *_HELD,
        Column("pending", is_number=True),
        Column("taken in the last hour", is_number=True),
        Column("oldest", is_number=True),
        Column("heard of", is_number=True),
        Column("given work", is_number=True),
    ]
    text = "Taken in the last hour, and still pending: what was acknowledged leaves no trace of who had it."
    if found.minutes is not None:
        columns += [Column("settled/min", is_number=True), Column("lost", is_number=True)]
        text += (
            " Settled is what a consumer had pending in the earlier snapshot and nobody has any more, so at least that "
            "much; lost is what others have now."
        )
    members = sorted(found.members, key=lambda member: (-member.pending, member.group, member.name))
    rows = [_member_row(member, found.minutes) for member in members[: limits.shown]]
    busy = [member for member in members if member.pending][:_BARS]
    charts: tuple[Chart, ...] = ()
    if busy:
        labels = [f"{name_text(member.name)} ({name_text(member.group.group)})" for member in busy]
        told = [
            f"{member.pending:,}, oldest {_ago(member.held.oldest_idle_ms if member.held else None)}" for member in busy
        ]
        charts = (Chart("Pending by consumer", lying_bars(labels, [member.pending for member in busy], told)),)
    return Section("Consumers", text, charts, (Table(tuple(columns), rows, _more(len(members), len(rows))),))


def _member_row(member: Member, minutes: float | None) -> list[str]:
    held = member.held
    row = [
        *_whose(member.group),
        name_text(member.name),
        f"{member.pending:,}",
        f"{held.taken_last_hour if held else 0:,}",
        _ago(held.oldest_idle_ms if held else None),
        f"{age_text(member.idle_ms)} ago",
        "never" if member.inactive_ms is None else f"{age_text(member.inactive_ms)} ago",
    ]
    if minutes is not None:
        work = member.work
        row += [_rate(work.settled if work else None, minutes), f"{work.lost if work else 0:,}"]
    return row


def _whose(name: GroupName) -> tuple[str, str]:
    key = name_text(name.key)
    return (f"{key} (db {name.db})" if name.db else key), name_text(name.group)


def _ago(ms: int | None) -> str:
    return "-" if ms is None else age_text(ms)


def _lag(lag: int | None) -> str:
    return "?" if lag is None else f"{lag:,}"


def _rate(count: int | None, minutes: float) -> str:
    if count is None:
        return "?"
    rate = count / minutes
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


# -- for programs ------------------------------------------------------------------------------------------------------


def audit_json(frozen: Frozen, found: Findings, limits: Limits) -> dict[str, Any]:
    """The same as an object of JSON; lists are cut like those of the page, totals are whole."""
    manifest = frozen.snapshot.manifest
    return {
        "snapshot": frozen.path,
        "offset": manifest.offset,
        "time_ms": manifest.time_ms,
        "streams": found.streams,
        "entries": found.entries,
        "problems": found.problems,
        "pending": {kind.value: found.totals[kind] for kind in Kind},
        **{kind.value: [_message_json(each) for each in found.worst[kind]] for kind in found.worst},
        "idle_consumers": [_member_json(member, found.minutes) for member in found.idle[: limits.shown]],
        "unread_groups": [_group_json(group, found.minutes) for group in found.unread[: limits.shown]],
        "pins": [
            {
                **_group_words(pin.need.group),
                "needed_id": id_text(pin.need.entry_id).decode(),
                "is_pending": pin.need.is_pending,
                "kept_alone": pin.kept_alone,
                "needed_by_nobody": pin.spare,
                "length": pin.stream.length,
            }
            for pin in found.pins
        ],
        "groups": [_group_json(group, found.minutes) for group in found.groups[: limits.shown]],
        "consumers": [_member_json(member, found.minutes) for member in found.members[: limits.shown]],
    }


def _group_words(name: GroupName) -> dict[str, Any]:
    return {"db": name.db, **key_values("key", name.key), **key_values("group", name.group)}


def _message_json(each: Pending) -> dict[str, Any]:
    return {
        **_group_words(each.group),
        **({"consumer": None} if each.consumer is None else key_values("consumer", each.consumer)),
        "id": each.entry_id,
        "deliveries": each.deliveries,
        "idle_ms": each.idle_ms,
    }


def _group_json(group: Crew, minutes: float | None) -> dict[str, Any]:
    words = {
        **_group_words(group.name),
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


def _member_json(member: Member, minutes: float | None) -> dict[str, Any]:
    words = {
        **_group_words(member.group),
        **key_values("consumer", member.name),
        "pending": member.pending,
        "idle_ms": member.idle_ms,
        "inactive_ms": member.inactive_ms,
        "oldest_pending_ms": member.held.oldest_idle_ms if member.held else None,
    }
    if minutes is not None and member.work is not None:
        words |= {
            "taken_since": member.work.taken,
            "settled_since": member.work.settled,
            "lost_since": member.work.lost,
        }
    return words
