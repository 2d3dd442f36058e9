"""`riverbed compact DIR`: make a stopped store as small as what it holds."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from riverbed.server.commands.replay import Replayer
from riverbed.server.glob import Glob
from riverbed.store.databases.database import DATABASE_COUNT
from riverbed.store.ids import StreamID, make_id
from riverbed.store.offline.compaction import (
    COPYING,
    COPYING_AGAIN,
    MEASURING,
    PURGING,
    TRIMMING,
    WRITING_LOG,
    Compaction,
    Plan,
    Report,
    TableSize,
)
from riverbed.store.offline.retention import Retention
from riverbed.tools.console.console import (
    Age,
    Failure,
    counted,
    failures_explained,
    notes,
    print_facts,
    results,
    seconds_text,
    size_text,
)
from riverbed.tools.console.keytext import key_bytes, shown
from riverbed.tools.console.steps import StepProgress

_ITEMS: Final = {
    MEASURING: "streams",
    PURGING: "notes",
    COPYING: "rows",
    TRIMMING: "streams",
    COPYING_AGAIN: "rows",
    WRITING_LOG: "entries",
}


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--older-than", type=Age(), metavar="AGE", help="Drop entries older than 90s, 30m, 12h, 7d or 2w, by ID.")
@click.option(
    "--maxlen", type=click.IntRange(min=0), metavar="N", help="Drop all but the newest N entries of a stream."
)
@click.option(
    "--acked", is_flag=True, help="Drop only entries that every group has acknowledged; streams without groups stay."
)
@click.option("--key", "pattern", metavar="GLOB", help="Drop entries of the streams with such keys alone.")
@click.option(
    "--db", type=click.IntRange(0, DATABASE_COUNT - 1), metavar="N", help="Drop entries of this database alone."
)
@click.option("--keep-expired", is_flag=True, help="Leave keys whose time is over to the server.")
@click.option("--dry-run", is_flag=True, help="Print an estimate of the work and of the space; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed without a terminal when entries are to be dropped.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
def compact(
    directory: Path,
    older_than: int | None,
    maxlen: int | None,
    acked: bool,
    pattern: str | None,
    db: int | None,
    keep_expired: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make the store in DIR as small as what it holds. No server may be using it.

    Rows that wait to be purged, expired keys and free pages go; the log becomes one base of what is there. With
    --older-than, --maxlen or --acked entries go as well, as XTRIM would have it: both limits count, pending records of
    dropped entries stay, and --acked alone drops all that is acknowledged.

    About what will be dropped, and the space it may take beside the old store, is shown first, and on a terminal you
    are asked. If that space is not free, no more is done than to purge. A kill or a full disk leaves the old store or
    the new one; the next run, or the start of riverbed-server, clears up.

    When keys expired or entries were dropped, replicas of this store begin with a full sync. Otherwise up to 64 MB of
    the log's end are kept for them.

    \b
    Examples
      riverbed compact /srv/riverbed --dry-run
      riverbed compact /srv/riverbed
      riverbed compact /srv/riverbed --older-than 30d --key 'log:*'
      riverbed compact /srv/riverbed --maxlen 100000 --acked

    What a killed compaction or a power cut has left is cleared up first, as a start of the server does.

    Exit status 0: done, 2: not done, and the store is as it was otherwise, 130: interrupted, likewise.
    """
    if (pattern is not None or db is not None) and older_than is None and maxlen is None and not acked:
        raise Failure("--key and --db say whose entries go: add --older-than, --maxlen or --acked")
    now_ms = time.time_ns() // 1_000_000
    min_id: StreamID | None = None if older_than is None else make_id(max(now_ms - older_than, 0), 0)
    keep = Retention(
        min_id,
        maxlen,
        acked,
        None if pattern is None else Glob(key_bytes(pattern)).matches,
        None if db is None else frozenset((db,)),
    )
    report: Report | None = None
    with failures_explained(f"compact {directory}"), StepProgress(_ITEMS) as steps:
        made = Compaction(
            directory,
            Replayer().execute,
            now_ms=now_ms,
            keep=keep,
            keep_expired=keep_expired,
            is_trial=dry_run,
            steps=steps.show,
        )
        with made as compaction:
            if compaction.has_settled:
                notes().print("cleared up after a compaction that was interrupted")
            if compaction.lost is not None:
                notes().print(shown(str(compaction.lost)), markup=False)
            plan = compaction.plan()
            if not dry_run:
                if not yes:
                    steps.pause()
                    _confirm(directory, plan, keep, as_json=as_json)
                report = compaction.run()
    if as_json:
        click.echo(json.dumps(_as_json(directory, plan, report, steps.seconds), indent=2))
    elif report is None:
        console = results()
        console.print(f"[bold]{escape(str(directory))}[/] would be compacted; nothing was changed")
        _print_plan(console, plan)
    else:
        _print_report(directory, plan, report, steps.seconds)


def _confirm(directory: Path, plan: Plan, keep: Retention, *, as_json: bool) -> None:
    """Show the plan and ask for confirmation.  Raises Failure without it.

    Where no answer can come, entries are dropped with --yes alone; a compaction that drops none goes on.
    """
    if as_json or sys.stdin is None or not sys.stdin.isatty():
        if keep.is_anything:
            count = counted(plan.trimmed_entries, "entry")
            raise Failure(f"about {count} would be dropped: add --yes, or look with --dry-run; not compacted")
        return
    console = notes()
    console.print(f"[bold]{escape(str(directory))}[/] will be compacted")
    _print_plan(console, plan)
    try:
        answer = console.input(f"{_question(plan)} \\[y/N] ")
    except EOFError:  # Ctrl-D
        answer = ""
    if not answer.strip().lower().startswith("y"):
        raise Failure("not compacted")


def _question(plan: Plan) -> str:
    """The question, with what a yes loses."""
    gone = [counted(plan.trimmed_entries, "entry")] if plan.trimmed_entries else []
    gone += [counted(plan.expired, "expired key")] if plan.expired else []
    return f"Delete about {' and '.join(gone)} for good, and compact?" if gone else "Compact, and delete no entry?"


def _print_plan(console: Console, plan: Plan) -> None:
    _print_tables(console, plan.tables, None)
    lines = {
        "tables": f"{size_text(plan.state_bytes)} now",
        "log": f"{_log_text(plan)} now",
        **_gone(plan),
        "space": f"{size_text(plan.needed_bytes)} at most, {size_text(plan.free_bytes)} free"
        + ("" if plan.is_feasible else ": [red]not enough[/]"),
    }
    print_facts(console, lines)
    _tell_tail(plan, "not counted here")


def _print_report(directory: Path, plan: Plan, report: Report, seconds: float) -> None:
    console = results()
    console.print(f"[green]compacted[/] [bold]{escape(str(directory))}[/] in {seconds_text(seconds)}")
    _print_tables(console, plan.tables, report.tables)
    lines = {
        "tables": f"{size_text(plan.state_bytes)}, now {size_text(report.state_bytes)}",
        "log": f"{_log_text(plan)}, now {size_text(report.log.bytes)}",
        **_gone(report),
        "replicas": _replicas_text(report),
    }
    print_facts(console, lines)
    _tell_tail(plan, "executed")


def _replicas_text(report: Report) -> str:
    if report.has_new_id:
        return "begin with a full sync"
    if not report.backlog_bytes:
        return "go on where they are, if that is the end"
    return f"go on where they are: {size_text(report.backlog_bytes)} of the old log are kept"


def _log_text(plan: Plan) -> str:
    return f"{size_text(plan.log.bytes)} in {counted(plan.log.files, 'file')}"


def _gone(found: Plan | Report) -> dict[str, str]:
    dropped = f"{counted(found.trimmed_entries, 'entry')} of {counted(found.trimmed_streams, 'stream')}"
    about = "about " if isinstance(found, Plan) and found.trimmed_entries else ""
    return {"expired": counted(found.expired, "key"), "dropped": f"{about}{dropped}"}


def _print_tables(console: Console, before: dict[str, TableSize], after: dict[str, TableSize] | None) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("  table", "rows", "bytes", *(() if after is None else ("rows now", "bytes now"))):
        table.add_column(heading, justify="left" if heading == "  table" else "right", no_wrap=True)
    for name, old in before.items():
        sizes = [old] if after is None else [old, after[name]]
        if any(size.rows for size in sizes):
            table.add_row(f"  {name}", *(cell for size in sizes for cell in (f"{size.rows:,}", size_text(size.bytes))))
    console.print(table)


def _tell_tail(plan: Plan, what: str) -> None:
    if plan.tail_bytes:
        notes().print(f"the last {size_text(plan.tail_bytes)} of the log are not in the tables yet: {what}")
    if plan.torn_tail is not None:
        notes().print(f"[yellow]torn tail:[/] {escape(str(plan.torn_tail))}")


def _as_json(directory: Path, plan: Plan, report: Report | None, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": str(directory.resolve()),
        "done": report is not None,
        "tables": {
            name: {"before": asdict(size), "after": None if report is None else asdict(report.tables[name])}
            for name, size in plan.tables.items()
        },
        "state_bytes": {"before": plan.state_bytes, "after": None if report is None else report.state_bytes},
        "log": {"before": asdict(plan.log), "after": None if report is None else asdict(report.log)},
        "needed_bytes": plan.needed_bytes,
        "free_bytes": plan.free_bytes,
        "offset": plan.end.offset,
        "expired": (report or plan).expired,
        "trimmed_streams": (report or plan).trimmed_streams,
        "trimmed_entries": (report or plan).trimmed_entries,
        "tail_bytes": plan.tail_bytes,
        "torn_tail": None if plan.torn_tail is None else str(plan.torn_tail),
        "seconds": round(seconds, 3),
    }
    if report is not None:
        found |= {"work_bytes": report.work_bytes, "full_sync": report.has_new_id}
    return found
