"""`riverbed stat DIR|HOST:PORT`: the streams, their sizes, and how far their groups have read."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from riverbed.server.glob import Glob
from riverbed.store.progress import Progress
from riverbed.tools.console.console import Failure, age_text, counted, failures_explained, notes, results, size_text
from riverbed.tools.console.keytext import key_bytes, name_text, shown
from riverbed.tools.console.steps import StepProgress
from riverbed.tools.live.redisclient import RedisClient, ReplyError
from riverbed.tools.live.serverstat import server_stats
from riverbed.tools.live.target import server_address
from riverbed.tools.live.tls import TlsOptions, tls_options
from riverbed.tools.offline.storestat import VERIFYING, store_stats
from riverbed.tools.stream_stat import READING, StreamStat

DEFAULT_LIMIT: Final = 20
_TIMEOUT_S: Final = 30.0
_UNLIMITED: Final = 1 << 16
_GAP: Final = 2  # between columns
_MIN_NAME: Final = 8

_ORDERS: Final[dict[str, Callable[[StreamStat], int]]] = {
    "length": lambda stat: stat.length,
    "bytes": lambda stat: stat.byte_count or 0,
    "pending": lambda stat: stat.pending,
    "oldest": lambda stat: -1 if stat.oldest_ms is None else stat.oldest_ms,
    "tries": lambda stat: stat.tries,
    "lag": lambda stat: stat.known_lag,
}


@click.command()
@click.argument("target", metavar="DIR|HOST:PORT")
@click.option("--match", "pattern", metavar="PATTERN", help="Only keys like this, as in KEYS: orders:*")
@click.option("--sort", "order", type=click.Choice([*_ORDERS, "key"]), default="length", show_default=True)
@click.option(
    "--limit", type=click.IntRange(min=0), default=DEFAULT_LIMIT, show_default=True, metavar="N", help="0 for all."
)
@click.option("--groups", "by_group", is_flag=True, help="A line for each consumer group.")
@click.option("--json", "as_json", is_flag=True, help="An object of JSON a line, one for each stream.")
@tls_options
def stat(
    target: str, pattern: str | None, order: str, limit: int, by_group: bool, as_json: bool, tls: TlsOptions
) -> None:
    """Show the streams of a store, their groups, and what is pending.

    For each its length, size and groups, what is pending, and how far the groups are behind.

    DIR is a data directory, seen as its last checkpoint left it, beside its server or without one, or a snapshot.
    HOST:PORT is a server, Riverbed or Redis; with a user or a database it is
    redis://[user@]host:port[/database]. The password is asked for, or comes from REDISCLI_AUTH or the first line of
    the file that RIVERBED_PASSWORD_FILE names.

    "oldest" is the time since the last delivery of the pending entry that has waited longest. "tries" is how often the
    most delivered of the pending entries was delivered. "lag" is the number of entries not yet delivered to the group.
    On the disk it is always known; a server does not always know it, and then shows ?. Of a server's groups, "tries" is
    of the 100 pending entries with the smallest IDs and of those idle longest. Of a Redis's groups, "oldest" and
    "tries" are of the first 100.

    \b
    Examples
      riverbed stat /srv/riverbed
      riverbed stat localhost:6379 --groups --sort lag
      riverbed stat /srv/riverbed/snapshots/monday --match 'orders:*' --json

    Exit status 0: shown, 2: not, 130: interrupted.
    """
    is_wanted = _wanted(pattern)
    totals = _Totals()
    with failures_explained(f"look at {target}"), StepProgress({VERIFYING: "bytes", READING: "streams"}) as steps:
        stats = _stats(target, tls, is_wanted, steps.show)
        try:
            counted_stats = totals.count(stats)
            if by_group:
                counted_stats = (each for each in counted_stats if each.groups)
            chosen = _choose(counted_stats, order, limit)
        except ReplyError as error:
            raise Failure(f"{target} refuses: {error}") from error
    if as_json:
        for each in chosen:
            click.echo(json.dumps(each.as_json()))
        return
    if chosen:
        console = results(soft_wrap=False)
        if not console.is_terminal:
            console.width = _UNLIMITED  # another program reads whole lines
        console.print(_group_table(chosen, console.width) if by_group else _stream_table(chosen, console.width))
    else:
        what = "stream with groups" if totals.streams else "stream"
        like = "" if pattern is None else f" like {pattern}"
        notes().print(shown(f"no {what}{like} in {target}"), markup=False)
    if not totals.streams:
        return
    more = f", of which {len(chosen)} are shown" if 0 < len(chosen) < totals.streams else ""
    summary = (
        f"{counted(totals.streams, 'stream')}{more}: {counted(totals.entries, 'entry')}, {size_text(totals.bytes)}, "
        f"{totals.pending:,} pending"
    )
    notes().print(f"[dim]{summary}[/]")


def _wanted(pattern: str | None) -> Callable[[bytes], bool]:
    if pattern is None:
        return lambda key: True
    return Glob(key_bytes(pattern)).matches


def _stats(
    target: str, tls: TlsOptions, is_wanted: Callable[[bytes], bool], progress: Progress
) -> Iterator[StreamStat]:
    address = server_address(target, tls)
    if address is None and not Path(target).exists():
        raise Failure(f"there is no {target}: name a data directory, a snapshot, or a server as HOST:PORT")
    if address is None:
        yield from store_stats(Path(target), is_wanted, progress)
        return
    with RedisClient(address, _TIMEOUT_S) as client:
        yield from server_stats(client, is_wanted, progress)


class _Totals:
    """The totals of all streams, shown or not."""

    def __init__(self) -> None:
        self.streams = self.entries = self.bytes = self.pending = 0

    def count(self, stats: Iterator[StreamStat]) -> Iterator[StreamStat]:
        for each in stats:
            self.streams += 1
            self.entries += each.length
            self.bytes += each.byte_count or 0
            self.pending += each.pending
            yield each


def _choose(stats: Iterator[StreamStat], order: str, limit: int) -> list[StreamStat]:
    """The first `limit` in `order`, or all: the largest first, keys from a to z."""
    if order == "key":
        return heapq.nsmallest(limit, stats, key=_name) if limit else sorted(stats, key=_name)
    weight = _ORDERS[order]
    return heapq.nlargest(limit, stats, key=weight) if limit else sorted(stats, key=weight, reverse=True)


def _name(each: StreamStat) -> tuple[int, bytes]:
    return each.db, each.key


# -- tables ------------------------------------------------------------------------------------------------------------


def _stream_table(stats: list[StreamStat], width: int) -> Table:
    rows = []
    for each in stats:
        size = "-" if each.byte_count is None else size_text(each.byte_count)
        cells = _cells(each.pending, each.oldest_ms, each.tries, each.lag) if each.groups else ("-",) * 4
        rows.append((each.db, [name_text(each.key)], [f"{each.length:,}", size, f"{len(each.groups):,}", *cells]))
    return _table(rows, ["stream"], ["length", "size", "groups", "pending", "oldest", "tries", "lag"], width)


def _group_table(stats: list[StreamStat], width: int) -> Table:
    rows = []
    for each in stats:
        for group in each.groups:
            numbers = [f"{group.consumers:,}", *_cells(group.pending, group.oldest_ms, group.tries, group.lag)]
            rows.append((each.db, [name_text(each.key), name_text(group.name)], numbers))
    return _table(rows, ["stream", "group"], ["consumers", "pending", "oldest", "tries", "lag"], width)


def _table(rows: list[tuple[int, list[str], list[str]]], names: list[str], numbers: list[str], width: int) -> Table:
    """A table of (database, names, numbers).  Names are cut if `width` is too narrow; numbers never are."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    with_db = any(db for db, _, _ in rows)
    if with_db:
        rows = [(db, found, [str(db), *cells]) for db, found, cells in rows]
        numbers = ["db", *numbers]
    width -= sum(_GAP + max(len(head), *(len(cells[at]) for _, _, cells in rows)) for at, head in enumerate(numbers))
    wanted = [max(cell_len(head), *(cell_len(found[at]) for _, found, _ in rows)) for at, head in enumerate(names)]
    widths = _share(width - _GAP * len(names), wanted)
    if with_db:
        table.add_column(numbers.pop(0), justify="right", no_wrap=True)
    for name, most in zip(names, widths, strict=True):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=most)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for _, found, cells in rows:
        first, rest = (cells[:1], cells[1:]) if with_db else ([], cells)
        table.add_row(*first, *map(escape, found), *rest)
    return table


def _share(width: int, wanted: list[int]) -> list[int]:
    """Give each column the width it wants, or an equal share of the width that narrower columns leave."""
    shares = list(wanted)
    for count, at in zip(range(len(wanted), 0, -1), sorted(range(len(wanted)), key=wanted.__getitem__), strict=True):
        shares[at] = max(_MIN_NAME, min(wanted[at], width // count))
        width -= shares[at]
    return shares


def _cells(pending: int, oldest_ms: int | None, tries: int, lag: int | None) -> tuple[str, str, str, str]:
    oldest = "-" if oldest_ms is None else age_text(oldest_ms)
    return f"{pending:,}", oldest, f"{tries:,}", "?" if lag is None else f"{lag:,}"
