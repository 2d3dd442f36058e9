"""The screen of `riverbed top`, within the rows and columns of the terminal, and the same data as an object."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from riverbed.tools.console.console import age_text, counted, size_text
from riverbed.tools.console.keytext import name_text, shown
from riverbed.tools.stream_stat import GroupStat, StreamStat
from riverbed.tools.top.rates import GroupRates, Rates, Trends
from riverbed.tools.top.sample import Sample

# Rows of each table when the output is not a terminal.
PLAIN_ROWS: Final = 20
_MIN_ROWS: Final = 2
_MIN_NAME: Final = 8  # if the terminal is too narrow, the numbers on the right are cut
_UNKNOWN: Final = "-"

# The value by which a table is sorted, the largest first.
_STREAM_ORDERS: Final[dict[str, Callable[[StreamStat, Rates], float]]] = {
    "length": lambda stream, rates: stream.length,
    "bytes": lambda stream, rates: stream.byte_count or 0,
    "rate": lambda stream, rates: rates.streams.get((stream.db, stream.key)) or 0,
    "pending": lambda stream, rates: stream.pending,
    "lag": lambda stream, rates: stream.known_lag,
    "oldest": lambda stream, rates: -1 if stream.oldest_ms is None else stream.oldest_ms,
}
_GROUP_ORDERS: Final[dict[str, Callable[[GroupStat, GroupRates], float]]] = {
    "rate": lambda group, rates: rates.delivered or 0,
    "pending": lambda group, rates: group.pending,
    "lag": lambda group, rates: group.lag or 0,
    "oldest": lambda group, rates: -1 if group.oldest_ms is None else group.oldest_ms,
}
ORDERS: Final = (*_STREAM_ORDERS, "key")

GroupRow = tuple[StreamStat, GroupStat, GroupRates]


def screen(
    console: Console, address: str, sample: Sample, rates: Rates, trends: Trends, order: str, trouble: str = ""
) -> RenderableType:
    """The whole screen, cut to the height of the terminal; `trouble` says what is wrong with the connection."""
    notices = [Text(shown(trouble), style="bold red", no_wrap=True, overflow="ellipsis")] if trouble else []
    notices += [Text(notice, style="yellow", no_wrap=True, overflow="ellipsis") for notice in _notices(sample)]
    streams, groups = sorted_streams(sample, rates, order), sorted_groups(sample, rates, order)
    head: list[RenderableType] = [_title(address, sample), _server(sample, rates, trends), *notices, ""]
    most_streams = most_groups = PLAIN_ROWS
    if console.is_terminal:
        # title, six lines, an empty one; a line above each table, one between them, and the footer
        most_streams, most_groups = _share(console.height - 12 - len(notices), len(streams), len(groups))
    first, first_groups = streams[:most_streams], groups[:most_groups]
    footer = _footer(len(first), len(streams), sample.stream_total, len(first_groups), len(groups))
    parts: list[RenderableType] = [*head, _stream_table(first, rates, trends)]
    if groups:
        parts += ["", _group_table(first_groups, trends)]
    return Group(*parts, Text(footer, style="dim", no_wrap=True, overflow="ellipsis"))


def _share(rows: int, streams: int, groups: int) -> tuple[int, int]:
    """-> the rows of each table: half of `rows`, and what the other table does not need."""
    if not groups:
        return max(rows + 2, _MIN_ROWS), 0
    half = max(rows // 2, _MIN_ROWS)
    return max(half, rows - groups), max(rows - max(min(half, streams), _MIN_ROWS), half, _MIN_ROWS)


# -- order -------------------------------------------------------------------------------------------------------------


def sorted_streams(sample: Sample, rates: Rates, order: str) -> list[StreamStat]:
    by_name = sorted(sample.streams, key=lambda stream: (stream.db, stream.key))
    weight = _STREAM_ORDERS.get(order)
    return by_name if weight is None else sorted(by_name, key=lambda stream: weight(stream, rates), reverse=True)


def sorted_groups(sample: Sample, rates: Rates, order: str) -> list[GroupRow]:
    """The groups in `order`; if `order` is only for streams, by the number of pending entries."""
    rows = [
        (stream, group, rates.groups.get((stream.db, stream.key, group.name), GroupRates()))
        for stream in sorted_streams(sample, rates, "key")
        for group in stream.groups
    ]
    if order == "key":
        return rows
    weight = _GROUP_ORDERS.get(order, _GROUP_ORDERS["pending"])
    return sorted(rows, key=lambda row: weight(row[1], row[2]), reverse=True)


# -- the server --------------------------------------------------------------------------------------------------------


def _title(address: str, sample: Sample) -> Table:
    info = sample.info
    name = (
        f"Riverbed {info['riverbed_version']}" if "riverbed_version" in info else f"Redis {info.get('redis_version')}"
    )
    role = "replica" if info.get("role") == "slave" else "primary"
    uptime = age_text(int((sample.number("uptime_in_seconds") or 0) * 1000))
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    clock = time.strftime("%H:%M:%S", time.localtime(sample.unix_ms / 1000))
    line.add_row(f"[bold]{escape(address)}[/]  {escape(name)}, {role}, up {uptime}", clock)
    return line


def _server(sample: Sample, rates: Rates, trends: Trends) -> Table:
    """A grid of rates with sparklines, then counts, then durations and sizes."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    columns: tuple[tuple[str, JustifyMethod, int | None], ...] = (
        ("dim", "left", 11),
        ("", "right", 8),
        ("cyan", "left", 8),
        ("dim", "left", 8),
        ("", "right", 7),
        ("dim", "left", 10),
        ("", "left", None),
    )
    for style, justify, width in columns:
        grid.add_column(style=style, justify=justify, min_width=width, no_wrap=True)
    left = [
        ("commands/s", rate_text(rates.commands), "commands"),
        ("added/s", rate_text(rates.added), "added"),
        ("delivered/s", rate_text(rates.delivered), "delivered"),
        ("acked/s", rate_text(rates.acked), "acked"),
        ("net in/s", _bytes(rates.received_bytes), "received_bytes"),
        ("net out/s", _bytes(rates.sent_bytes), "sent_bytes"),
    ]
    middle = [
        ("clients", _count(sample.number("connected_clients"))),
        ("blocked", _count(sample.number("blocked_clients"))),
        ("replicas", _count(sample.number("connected_slaves"))),
        ("memory", _bytes(sample.number("used_memory"))),
        ("streams", _count(float(sample.stream_total))),
        ("refused", _count(sample.number("rejected_connections"))),
    ]
    right = [
        ("fsync ms", _times(sample, "fsync")),
        ("checkpt ms", _times(sample, "checkpoint")),
        ("tick ms", _time(sample, "max", "riverbed_longest_tick_ms")),
        ("log", _grown(sample.number("aof_current_size"), rates.log_bytes)),
        ("tables", _room(sample)),
        ("reader age", _count(sample.number("riverbed_lmdb_oldest_reader"))),
    ]
    for (what, value, trend), (thing, number), (other, text) in zip(left, middle, right, strict=True):
        grid.add_row(what, value, trends.sparkline(trend), thing, number, other, text)
    return grid


def _notices(sample: Sample) -> Iterable[str]:
    info = sample.info
    if info.get("riverbed_writes_refused") == "1":
        yield f"writes are refused: {info.get('riverbed_writes_refused_reason')}"
    if info.get("riverbed_writes_wait_for_disk") == "1":
        yield "writes wait for the disk"
    if info.get("role") == "slave":
        place = f"{info.get('master_host')}:{info.get('master_port')}"
        if info.get("master_link_status") == "up":
            yield f"follows {place}"
        else:
            yield f"no link to {place}: {info.get('riverbed_master_link_reason') or 'down'}"
    if info.get("aof_rewrite_in_progress") == "1":
        yield f"rewriting the log: {info.get('riverbed_rewrite_percent', '?')}%"
    if info.get("riverbed_snapshot_in_progress") == "1":
        yield f"taking a snapshot: {info.get('riverbed_snapshot_step')}"
    if info.get("loading") == "1":
        yield "loading"


def _footer(streams: int, looked_at: int, total: int, groups: int, all_groups: int) -> str:
    """How many of all streams and groups the screen shows."""
    parts = []
    if streams < total:
        longest = f", {looked_at:,} looked at" if looked_at < total else ""
        parts.append(f"{streams:,} of {counted(total, 'stream')}{longest}")
    if groups < all_groups:
        parts.append(f"{groups:,} of {counted(all_groups, 'group')}")
    return "; ".join([*parts, "q quits"])


# -- tables ------------------------------------------------------------------------------------------------------------


def _stream_table(streams: list[StreamStat], rates: Rates, trends: Trends) -> Table:
    table = _table(("stream",), (("length", 11), ("added/s", 9), ("trend", 8), ("size", 8), ("groups", 6)))
    for stream in streams:
        place = stream.db, stream.key
        table.add_row(
            _name(stream),
            _count(float(stream.length)),
            rate_text(rates.streams.get(place)),
            f"[cyan]{trends.sparkline(place)}[/]",
            _bytes(stream.byte_count),
            _count(float(len(stream.groups))),
        )
    if not streams:
        table.add_row("[dim]no streams[/]", *[""] * 5)
    return table


def _group_table(rows: list[GroupRow], trends: Trends) -> Table:
    numbers = (("pending", 8), ("lag", 8), ("behind", 8), ("read/s", 6), ("ack/s", 6), ("oldest", 7), ("tries", 5))
    table = _table(("stream", "group"), numbers)
    for stream, group, rates in rows:
        table.add_row(
            _name(stream),
            escape(name_text(group.name)),
            _count(float(group.pending)),
            "?" if group.lag is None else _count(float(group.lag)),
            f"[cyan]{trends.sparkline((stream.db, stream.key, group.name))}[/]",
            rate_text(rates.delivered),
            rate_text(rates.acked),
            _UNKNOWN if group.oldest_ms is None else age_text(group.oldest_ms),
            _count(float(group.tries)),
        )
    return table


def _table(names: Iterable[str], numbers: Iterable[tuple[str, int]]) -> Table:
    """A table whose names share the width that numbers leave; columns do not move when numbers change."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0), expand=True)
    for name in names:
        table.add_column(name, ratio=1, overflow="ellipsis", no_wrap=True, min_width=_MIN_NAME)
    for name, width in numbers:
        table.add_column(name, justify="right", min_width=width, no_wrap=True)
    return table


def _name(stream: StreamStat) -> str:
    return escape(name_text(stream.key) if stream.db == 0 else f"{stream.db}:{name_text(stream.key)}")


# -- numbers -----------------------------------------------------------------------------------------------------------


def rate_text(rate: float | None) -> str:
    if rate is None:
        return _UNKNOWN
    return f"{rate:.1f}" if 0 < rate < 9.95 else _count(rate)


def _count(number: float | None) -> str:
    """A number with at most 9 characters."""
    if number is None:
        return _UNKNOWN
    if number < 10_000_000:
        return f"{number:,.0f}"
    for unit in ("M", "G"):
        number /= 1000 if unit == "G" else 1_000_000
        if number < 99_999:
            break
    return f"{number:,.0f}{unit}"


def _bytes(size: float | None) -> str:
    return _UNKNOWN if size is None else size_text(size).replace(" bytes", " B")


def _time(sample: Sample, label: str, name: str) -> str:
    found = sample.number(name)
    return _UNKNOWN if found is None else f"{label} {found:.3g}".strip()


def _times(sample: Sample, what: str) -> str:
    if sample.number(f"riverbed_last_{what}_ms") is None:
        return _UNKNOWN
    kinds = (("", "last"), ("avg", "average"), ("max", "longest"))
    return " ".join(_time(sample, label, f"riverbed_{kind}_{what}_ms") for label, kind in kinds)


def _grown(size: float | None, rate: float | None) -> str:
    return _bytes(size) if rate is None else f"{_bytes(size)} +{_bytes(rate)}/s"


def _room(sample: Sample) -> str:
    free = sample.number("riverbed_lmdb_free_bytes")
    return _UNKNOWN if free is None else f"{_bytes(sample.number('riverbed_lmdb_used_bytes'))}, {_bytes(free)} free"


# -- machines ----------------------------------------------------------------------------------------------------------

_FIGURES: Final = {
    "clients": "connected_clients",
    "blocked": "blocked_clients",
    "replicas": "connected_slaves",
    "memory_bytes": "used_memory",
    "fsync_last_ms": "riverbed_last_fsync_ms",
    "fsync_average_ms": "riverbed_average_fsync_ms",
    "fsync_longest_ms": "riverbed_longest_fsync_ms",
    "checkpoint_last_ms": "riverbed_last_checkpoint_ms",
    "checkpoint_average_ms": "riverbed_average_checkpoint_ms",
    "checkpoint_longest_ms": "riverbed_longest_checkpoint_ms",
    "tick_longest_ms": "riverbed_longest_tick_ms",
    "log_bytes": "aof_current_size",
    "replication_offset": "master_repl_offset",
    "lmdb_used_bytes": "riverbed_lmdb_used_bytes",
    "lmdb_free_bytes": "riverbed_lmdb_free_bytes",
    "lmdb_oldest_reader": "riverbed_lmdb_oldest_reader",
    "writes_refused": "riverbed_writes_refused",
}
_RATES: Final = ("commands", "added", "delivered", "acked", "received_bytes", "sent_bytes", "log_bytes")


def _plain(number: float | None) -> float | int | None:
    return int(number) if number is not None and number.is_integer() else number


def as_json(address: str, sample: Sample, rates: Rates, order: str) -> dict[str, Any]:
    """A sample as an object; null stands for values that the server does not report, or does not know yet."""
    info = sample.info
    streams = []
    for stream in sorted_streams(sample, rates, order):
        shown = stream.as_json()
        shown["added_per_second"] = rates.streams.get((stream.db, stream.key))
        for group, described in zip(stream.groups, shown["groups"], strict=True):
            found = rates.groups.get((stream.db, stream.key, group.name), GroupRates())
            described["delivered_per_second"], described["acked_per_second"] = found.delivered, found.acked
        streams.append(shown)
    return {
        "time_ms": sample.unix_ms,
        "address": address,
        "server": "riverbed" if "riverbed_version" in info else "redis",
        "version": info.get("riverbed_version", info.get("redis_version")),
        "role": "replica" if info.get("role") == "slave" else "primary",
        **{name: _plain(sample.number(source)) for name, source in _FIGURES.items()},
        **{f"{name}_per_second": getattr(rates, name) for name in _RATES},
        "stream_total": sample.stream_total,
        "streams": streams,
    }
