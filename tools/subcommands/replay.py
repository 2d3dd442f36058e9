"""`riverbed replay SOURCE DIR`: a data directory from a log, up to now or to a moment in the past."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape

from riverbed.store.databases.database import DATABASE_COUNT
from riverbed.tools.console.console import (
    FOUND,
    ProgressBar,
    counted,
    failures_explained,
    print_facts,
    results,
    seconds_text,
    size_text,
)
from riverbed.tools.console.keytext import short_text, shown
from riverbed.tools.offline.foreign import SHOWN_KEYS, Skipped
from riverbed.tools.offline.heldfiles import HeldFiles
from riverbed.tools.offline.moment import Moment, parse_moment, time_text
from riverbed.tools.offline.newdirectory import new_directory, refuse_existing, tell_left_over
from riverbed.tools.offline.rebuild import Rebuilt, rebuild
from riverbed.tools.offline.source import Source, find_source

_SHOWN_REASONS: Final = 20


def _moment(context: click.Context, option: click.Parameter, text: str | None) -> Moment | None:
    try:
        return None if text is None else parse_moment(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from error


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="SOURCE")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--until", callback=_moment, metavar="MOMENT", help="Stop behind the last batch up to this moment.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@click.pass_context
def replay(context: click.Context, source: Path, directory: Path, until: Moment | None, as_json: bool) -> None:
    """Build the data directory DIR from the log at SOURCE.

    SOURCE is a data directory of riverbed-server or redis-server 7 with its append-only log, the log's own directory
    in it, or a single append-only file. It is only read, and may be in use. DIR must not exist, or be empty; it
    appears when it is complete, and riverbed-server starts on it.

    \b
    MOMENT is one of
      2026-11-21T14:30:00Z   a time in ISO 8601, here in UTC; 2026-11-21T14:30
                             and 2026-11-21 are local time
      @1795257000            unix seconds; 12 digits and more are milliseconds
      900100                 a replication offset (master_repl_offset of INFO)
    What was committed at that moment is in, what came later is not. Times in
    logs that Redis wrote are whole seconds, noted if aof-timestamp-enabled is
    yes; offsets there count the bytes of commands since the first incr file.

    Commands of a Redis about other types than streams are skipped and counted. Keys keep their deadlines: those that
    have passed by now expire when a server starts.

    \b
    Examples
      riverbed replay /srv/riverbed /srv/yesterday --until 2026-11-21T14:30:00Z
      riverbed replay /srv/riverbed /srv/before --until 900100
      riverbed replay /var/lib/redis /srv/riverbed

    \b
    Exit status    0  all of SOURCE up to MOMENT is in DIR
                   1  DIR is made, but something is not in it: see the report
                   2  DIR is not made
                 130  it was interrupted, and DIR is not made
    """
    with failures_explained(f"replay {source}"), HeldFiles() as files:
        refuse_existing(directory)
        found = find_source(source, files)
        with ProgressBar("replaying", found.size_bytes, "commands") as bar, new_directory(directory) as partial:
            rebuilt = rebuild(found, partial, until, bar)
            seconds = bar.seconds
    missing = _what_is_missing(rebuilt, until)
    if as_json:
        click.echo(json.dumps(_as_json(found, directory, rebuilt, seconds, missing), indent=2))
    else:
        _print_report(found, directory, rebuilt, seconds, missing)
    tell_left_over(directory)
    if missing:
        context.exit(FOUND)


def _what_is_missing(rebuilt: Rebuilt, until: Moment | None) -> list[str]:
    """The reasons why parts of the requested source are not in the new directory."""
    missing = []
    if rebuilt.skipped.total:
        missing.append(f"{counted(rebuilt.skipped.total, 'command')} skipped")
    if rebuilt.torn_tail is not None:
        missing.append(f"torn tail: {rebuilt.torn_tail}")
    if until is not None and until.offset is not None and rebuilt.offset < until.offset and rebuilt.next_offset is None:
        missing.append(f"the log ends at replication offset {rebuilt.offset}, before {until.offset}")
    return missing


# -- the report --------------------------------------------------------------------------------------------------------


def _print_report(source: Source, directory: Path, rebuilt: Rebuilt, seconds: float, missing: list[str]) -> None:
    console = results()
    rate = rebuilt.commands / max(seconds, 0.001)
    how = "copied" if rebuilt.copied else "logged again"
    contents = rebuilt.contents
    lines = {
        "log": f"{escape(source.name)}, {size_text(source.size_bytes)}, {how}",
        "commands": f"{rebuilt.commands:,} in {seconds_text(seconds)}, {rate:,.0f}/s",
        "streams": f"{contents.streams:,}",
        "entries": f"{contents.entries:,}",
        "groups": f"{contents.groups:,}, {counted(contents.pending, 'entry')} pending",
        "up to": _place(rebuilt.time_ms, rebuilt.offset),
    }
    if rebuilt.next_offset is not None:
        lines["left out"] = f"the rest, from the batch of {_place(rebuilt.next_time_ms, rebuilt.next_offset)} on"
    if not rebuilt.copied:
        lines["new log"] = f"ends at replication offset {rebuilt.new_offset}"
    console.print(f"[green]made[/] [bold]{escape(str(directory))}[/]")
    print_facts(console, lines)
    for text in missing:
        console.print(f"[yellow]not in it:[/] {escape(text)}")
    if rebuilt.skipped.total:
        _print_skipped(console, rebuilt.skipped)


def _place(time_ms: int | None, offset: int) -> str:
    at = f"replication offset {offset}"
    return at if time_ms is None else f"{time_text(time_ms)}, {at}"


def _print_skipped(console: Console, skipped: Skipped) -> None:
    for name, count in skipped.commands.most_common():
        keys = [short_text(key) for key in skipped.keys.get(name, [])]
        more = ", ..." if count > len(keys) == SHOWN_KEYS else ""
        console.print(f"  {escape(f'{name:<12}{count:>9,}')}  [dim]{escape(', '.join(keys))}{more}[/]")
    for number, count in sorted(skipped.databases.items()):
        console.print(f"  {counted(count, 'command')} for database {number}; there are {DATABASE_COUNT}")
    if skipped.refused:
        console.print("  commands that did not fit the state, which a Redis that loads the log ignores as well:")
    for reason, count in skipped.refused.most_common(_SHOWN_REASONS):
        console.print(f"  {count:>9,}  {escape(shown(reason))}  [dim]{escape(skipped.places[reason])}[/]")
    if "RESTORE" in skipped.commands:
        console.print(
            "  RESTORE may have held streams, in a form that is not read here: `riverbed import` copies those"
        )


def _as_json(source: Source, directory: Path, rebuilt: Rebuilt, seconds: float, missing: list[str]) -> dict[str, Any]:
    skipped, contents, torn = rebuilt.skipped, rebuilt.contents, rebuilt.torn_tail
    return {
        "directory": str(directory),
        "source": source.name,
        "source_bytes": source.size_bytes,
        "copied": rebuilt.copied,
        "seconds": round(seconds, 3),
        "commands": rebuilt.commands,
        "streams": contents.streams,
        "entries": contents.entries,
        "groups": contents.groups,
        "pending": contents.pending,
        "offset": rebuilt.offset,
        "time_ms": rebuilt.time_ms,
        "next_offset": rebuilt.next_offset,
        "next_time_ms": rebuilt.next_time_ms,
        "new_offset": rebuilt.new_offset,
        "missing": missing,
        "torn_tail": None
        if torn is None
        else {"file": torn.file, "position": torn.position, "bytes": torn.byte_count, "reason": torn.reason},
        "skipped": {
            "commands": dict(skipped.commands.most_common()),
            "keys": {name: [short_text(key) for key in keys] for name, keys in skipped.keys.items()},
            "databases": {str(number): count for number, count in sorted(skipped.databases.items())},
            "refused": dict(skipped.refused.most_common()),
        },
    }
