"""The report of an audit as a page: problems first, then the state of each group and consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from riverbed.tools.console.console import age_text, counted
from riverbed.tools.console.keytext import value_text
from riverbed.tools.spark.jobs.page import (
    END_OF_TIME_MS,
    MIN_TIME_MS,
    Bars,
    Card,
    Column,
    Page,
    Row,
    Section,
    Table,
    moment_text,
    number_column,
    stream_text,
)

_BARS: Final = 12
_COSTS: Final = 10
# Where the cards lead.
_POISON: Final = "poison"
_STUCK: Final = "stuck"
_ORPHANED: Final = "orphaned"
_IDLE: Final = "idle"
_UNREAD: Final = "unread"
_PENDING_ANCHOR: Final = "pending"
_Report = Mapping[str, Any]


def audit_page(name: str, report: _Report) -> Page:
    """The page of the snapshot called `name`, from the whole report."""
    pending = report["pending"]
    problems = (
        ("poison entries", pending["poison"], _POISON),
        ("stuck entries", pending["stuck"], _STUCK),
        ("orphaned entries", pending["orphaned"], _ORPHANED),
        ("idle consumers with entries", report["idle_consumer_count"], _IDLE),
        ("groups that are not read", report["unread_group_count"], _UNREAD),
    )
    cards = [Card(title, f"{count:,}", anchor, is_bad=count > 0) for title, count, anchor in problems]
    cards.append(Card("pending entries", f"{sum(pending.values()):,}", _PENDING_ANCHOR))
    sections = [_costs_section(report), *_problem_sections(report), _pins_section(report), _pending_section(report)]
    sections += [_groups_section(report), _consumers_section(report)]
    return Page(f"Audit of {name}", _facts(report), cards, sections)


def _facts(report: _Report) -> dict[str, str]:
    facts = {
        "snapshot": report["snapshot"],
        "taken": moment_text(report["time_ms"]),
        "replication offset": str(report["offset"]),
        "streams": f"{report['streams']:,}",
        "entries": f"{report['entries']:,}",
        "groups": f"{report['group_count']:,}",
        "consumers": f"{report['consumer_count']:,}",
        "stuck after": age_text(report["stuck_after_ms"]),
        "poison from": counted(report["poison_from"], "delivery"),
        "idle after": age_text(report["idle_after_ms"]),
    }
    if "since" in report:
        facts["compared with"] = f"{report['since']['snapshot']}, {moment_text(report['since']['time_ms'])}"
    return facts


# -- columns -----------------------------------------------------------------------------------------------------------


def _ago(ms: int | None) -> str:
    return "-" if ms is None else age_text(ms)


def _ago_column(title: str, name: str, none: str = "-") -> Column:
    return Column(title, lambda row: none if row[name] is None else f"{age_text(row[name])} ago")


def _age_column(title: str, name: str) -> Column:
    return Column(title, lambda row: _ago(row[name]))


def _rate_column(report: _Report, title: str, name: str) -> Column:
    return Column(title, lambda row: _rate(row.get(name), report["since"]["minutes"]))


def _rate(count: int | None, minutes: float) -> str:
    if count is None:
        return "?"
    rate = count / minutes
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def _group_text(row: Row) -> str:
    return value_text(row, "group")


def _has_consumer(row: Row) -> bool:
    return row.get("consumer", "") is not None


def _consumer_text(row: Row) -> str:
    return value_text(row, "consumer") if _has_consumer(row) else "(none)"


def _id_with_time(entry_id: str) -> str:
    """An ID, and in a second line the time in it where the ID is a time."""
    ms = int(entry_id.partition("-")[0])
    return f"{entry_id}\n{moment_text(ms)}" if MIN_TIME_MS <= ms < END_OF_TIME_MS else entry_id


def _because(row: Row) -> str:
    if not row["is_pending"]:
        return "not delivered yet"
    if not _has_consumer(row):
        return "pending, released"
    return f"pending with {_consumer_text(row)} for {_ago(row['idle_ms'])}"


_WHOSE: Final = (Column("stream", stream_text, "name"), Column("group", _group_text, "name"))
_HELD: Final = (*_WHOSE, Column("consumer", _consumer_text, "name"))
_LAG: Final = number_column("lag", none="?")
_PENDING: Final = number_column("pending")
_CONSUMERS: Final = number_column("consumers")
_LAST_DELIVERED: Final = Column("last delivered", lambda row: str(row["last_delivered_id"]), "id")
_COST: Final = (
    Column("problem", lambda row: str(row["problem"]), "text"),
    *_WHOSE,
    Column("consumer", lambda row: value_text(row, "consumer") if _has_consumer(row) else "-", "name"),
    number_column("cost", "entries"),
    Column("command", lambda row: str(row["command"]), "command"),
)
_SUM: Final = (
    *_HELD,
    number_column("entries"),
    number_column("most_deliveries", "most deliveries"),
    _age_column("longest", "idle_ms"),
    Column("first entry", lambda row: _id_with_time(row["first_id"]), "id"),
    Column("begins", lambda row: "(deleted)" if row["payload"] is None else str(row["payload"]), "payload"),
)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def _cut(columns: Sequence[Column], rows: Sequence[Row], total: int) -> Table:
    """A table of the shown rows, and the number of rows left out."""
    if not total:
        return Table(columns, rows, "None.")
    return Table(columns, rows, f"{total - len(rows):,} more." if total > len(rows) else "")


def _sums(report: _Report, kind: str) -> Table:
    """The entries of a kind, a row for each consumer that holds some."""
    rows, total = report[f"{kind}_by_consumer"], report["pending"][kind]
    left = total - sum(row["entries"] for row in rows)
    return Table(_SUM, rows, f"{left:,} more entries, of other consumers." if left else "" if total else "None.")


def _costs_section(report: _Report) -> Section:
    costs = report["costs"]
    if not costs:
        return Section("What costs most", "Nothing that this audit looks for.")
    return Section(
        "What costs most",
        "For each problem the entries that it holds, keeps or leaves unread; of poison entries the deliveries. The "
        "command is for redis-cli, in the database of the stream; one click selects it. XAUTOCLAIM gives the entries "
        "to the consumer that asks, which then has to work on them and acknowledge them. XGROUP DESTROY forgets the "
        "group: it is for groups that are not needed.",
        table=Table(_COST, costs[:_COSTS], f"{len(costs) - _COSTS:,} more in audit.json." * (len(costs) > _COSTS)),
    )


def _problem_sections(report: _Report) -> list[Section]:
    idle_after = age_text(report["idle_after_ms"])
    idle = (*_HELD, _PENDING, _ago_column("heard of", "idle_ms"), _age_column("oldest entry", "oldest_pending_ms"))
    unread = (*_WHOSE, _CONSUMERS, _ago_column("last heard of", "read_ms_ago", "no consumer"))
    return [
        Section(
            "Poison",
            f"Delivered {report['poison_from']} times or more and still pending: each consumer that takes them seems "
            "to fail. XGROUP POLICY with MAXDELIVERIES and DEADLETTER moves such entries to a stream of their own.",
            table=_sums(report, "poison"),
            anchor=_POISON,
        ),
        Section(
            "Stuck",
            f"Delivered {age_text(report['stuck_after_ms'])} ago or earlier and never acknowledged. XAUTOCLAIM gives "
            "them to a consumer that is alive.",
            table=_sums(report, "stuck"),
            anchor=_STUCK,
        ),
        Section(
            "Orphaned entries",
            "Pending, but deleted from their stream: no consumer can work on them. XAUTOCLAIM drops them from the "
            "group.",
            table=_sums(report, "orphaned"),
            anchor=_ORPHANED,
        ),
        Section(
            "Idle consumers with pending entries",
            f"Not heard of for {idle_after} or longer: they have died, or were renamed. XGROUP DELCONSUMER after their "
            "entries were claimed, or CONSUMERTTL of XGROUP POLICY.",
            table=_cut(idle, report["idle_consumers"], report["idle_consumer_count"]),
            anchor=_IDLE,
        ),
        Section(
            "Groups that are not read",
            f"No consumer, or none that was heard of in the last {idle_after}. ACKED trims no entry that such a "
            "group has not read; XGROUP DESTROY ends one that is not needed.",
            table=_cut(
                (*unread, _PENDING, _LAG, _LAST_DELIVERED), report["unread_groups"], report["unread_group_count"]
            ),
            anchor=_UNREAD,
        ),
    ]


def _pins_section(report: _Report) -> Section:
    columns = (
        *_WHOSE,
        Column("first it needs", lambda row: str(row["needed_id"]), "id"),
        Column("because", _because, "text"),
        number_column("kept_alone", "kept for it alone"),
        number_column("needed_by_none", "not needed"),
        number_column("length", "of entries"),
    )
    return Section(
        "Groups that hold streams back",
        "For each stream the group that needs its oldest entry. Entries that no group needs can be trimmed now (XTRIM "
        "... ACKED, riverbed compact --acked); entries kept for one group alone can be as soon as that group has moved "
        "on.",
        table=Table(columns, report["pins"], "" if report["pins"] else "No group needs an entry."),
    )


# -- the state of each -------------------------------------------------------------------------------------------------


def _pending_section(report: _Report) -> Section:
    pending = report["pending"]
    if not sum(pending.values()):
        return Section("Pending entries", "There are none.", anchor=_PENDING_ANCHOR)
    charts = []
    for title, spread in (
        ("Time since delivery", report["pending_by_age"]),
        ("Deliveries", report["pending_by_deliveries"]),
    ):
        counts = {kind: list(bins.values()) for kind, bins in spread.items()}
        totals = [f"{sum(each):,}" for each in zip(*counts.values(), strict=True)]
        charts.append(Bars(title, list(next(iter(spread.values()))), counts, totals))
    text = ", ".join(f"{count:,} {kind}" for kind, count in pending.items())
    return Section("Pending entries", text, charts, anchor=_PENDING_ANCHOR)


def _groups_section(report: _Report) -> Section:
    groups = report["groups"]
    columns = [*_WHOSE, _LAG, _PENDING, _age_column("oldest", "oldest_pending_ms"), _CONSUMERS, _LAST_DELIVERED]
    text = "Lag is the number of entries not yet delivered to a group; ? where deleted entries make it unknown."
    if "since" in report:
        text += " Settled entries were acknowledged or removed."
        columns += [
            _rate_column(report, "delivered/min", "delivered_since"),
            _rate_column(report, "settled/min", "settled_since"),
        ]
    if any(row["policy"] for row in groups):
        columns.append(Column("policy", lambda row: row["policy"] or "-", "text"))
    behind = [row for row in groups if row["lag"]][:_BARS]
    labels = [f"{stream_text(row)} / {_group_text(row)}" for row in behind]
    lags = [row["lag"] for row in behind]
    charts = [Bars("Lag by group", labels, {"lag": lags}, [f"{lag:,}" for lag in lags])] if behind else []
    return Section("Groups", text, charts, _cut(columns, groups, report["group_count"]))


def _consumers_section(report: _Report) -> Section:
    members = report["consumers"]
    columns = [
        *_HELD,
        _PENDING,
        number_column("taken_last_hour", "taken in the last hour"),
        _age_column("oldest", "oldest_pending_ms"),
        _ago_column("heard of", "idle_ms"),
        _ago_column("given work", "inactive_ms", "never"),
    ]
    text = "Delivered in the last hour and still pending: acknowledged entries do not show their consumer."
    if "since" in report:
        text += (
            " Settled entries were pending for a consumer in the earlier snapshot and are pending for none now: a "
            "lower bound. Lost entries are pending for others now."
        )
        columns += [_rate_column(report, "settled/min", "settled_since"), number_column("lost_since", "lost")]
    busy = [row for row in members if row["pending"]][:_BARS]
    labels = [f"{stream_text(row)} / {_group_text(row)} / {_consumer_text(row)}" for row in busy]
    texts = [f"{row['pending']:,}, oldest {_ago(row['oldest_pending_ms'])}" for row in busy]
    counts = {"pending": [row["pending"] for row in busy]}
    charts = [Bars("Pending by consumer", labels, counts, texts)] if busy else []
    return Section("Consumers", text, charts, _cut(columns, members, report["consumer_count"]))
