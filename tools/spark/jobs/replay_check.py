"""`riverbed spark replay-check A B`: compare two snapshots and name every difference.

Of a store and of what a replay of its log made, of a primary and its replica, of before and after an upgrade.
"""

from __future__ import annotations

import json
from typing import Any

import click
from rich.markup import escape

from riverbed.tools.console.console import FOUND, counted, notes, results
from riverbed.tools.spark.jobs.command import Frozen, find_snapshot, running_job, spark_options
from riverbed.tools.spark.jobs.compare import TABLES, Difference, TableDifferences, compare, values_text
from riverbed.tools.spark.jobs.launch import Launch


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--match", "pattern", metavar="PATTERN", help="Only keys like this, as in KEYS: orders:*")
@click.option("--ignore-times", is_flag=True, help="Leave out when consumers were seen and given something.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, metavar="N", help="Name N of each table."
)
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@spark_options
def replay_check(
    a: str, b: str, pattern: str | None, ignore_times: bool, limit: int, as_json: bool, launch: Launch
) -> None:
    """Compare the snapshots A and B: streams, entries, groups, consumers and pending entries.

    A and B are snapshots or data directories. Each difference is one of a row that A alone has (-), that B alone has
    (+), or that both have with other values (~). All are counted, the first of each table are named. What is not
    compared: idempotence records, and how a store keeps its rows.

    \b
    Examples
      riverbed spark replay-check data/snapshots/20261121T120000Z-517 restored
      riverbed spark replay-check /srv/primary /srv/replica --json
      spark-submit tools/spark/jobs/replay_check.py before after --ignore-times

    Exit status 0: equal, 1: different, 2: could not be compared.
    """
    sides = find_snapshot(a), find_snapshot(b)
    options = {} if pattern is None else {"streamPattern": pattern}
    tables: list[TableDifferences] = []
    with running_job(launch, f"compare {a} with {b}") as job:
        for compared in TABLES:
            job.step(f"comparing {compared.plural}")
            found = compare(job, *sides, compared, most=limit, with_times=not ignore_times, options=options)
            tables.append(found)
    if as_json:
        click.echo(json.dumps(_as_json(sides, tables), indent=2))
    else:
        _print(sides, tables)
    if any(table.count for table in tables):
        raise SystemExit(FOUND)


def _print(sides: tuple[Frozen, Frozen], tables: list[TableDifferences]) -> None:
    console = results()
    for letter, side in zip("AB", sides, strict=True):
        manifest = side.snapshot.manifest
        console.print(f"{letter}  [bold]{escape(side.path)}[/], offset {manifest.offset}")
    if len({side.snapshot.manifest.offset for side in sides}) > 1:
        notes().print("[yellow]note:[/] they are of different offsets, so differences need not be faults")
    print_differences(tables)


def print_differences(tables: list[TableDifferences]) -> None:
    """A line for each table, and one for each difference that is named."""
    console = results()
    for table in tables:
        noun = table.compared.noun
        if not table.count:
            console.print(f"[green]{counted(table.rows[0], noun)}: equal[/]")
            continue
        console.print(
            f"[bold]{counted(table.rows[0], noun)} and {table.rows[1]:,}:[/] [red]{table.only[0]:,} only in A[/], "
            f"[green]{table.only[1]:,} only in B[/], [yellow]{table.changed:,} different[/]"
        )
        for difference in table.first:
            for line in _lines(difference):
                console.print(f"  {line}")
        if table.count > len(table.first):
            console.print(f"  [dim]and {table.count - len(table.first):,} more[/]")


def _lines(difference: Difference) -> list[str]:
    names = values_text(difference.names)
    a, b = difference.sides
    if b is None:
        return [f"[red]-[/] {escape(names)}: {escape(values_text(a or {}))}"]
    if a is None:
        return [f"[green]+[/] {escape(names)}: {escape(values_text(b))}"]
    return [f"[yellow]~[/] {escape(names)}: {escape(values_text(a))} -> {escape(values_text(b))}"]


def _as_json(sides: tuple[Frozen, Frozen], tables: list[TableDifferences]) -> dict[str, Any]:
    return {
        **{
            letter: {"snapshot": side.path, "offset": side.snapshot.manifest.offset}
            for letter, side in zip("ab", sides, strict=True)
        },
        "equal": not any(table.count for table in tables),
        "tables": {
            table.compared.plural: {
                "rows": list(table.rows),
                "only_a": table.only[0],
                "only_b": table.only[1],
                "changed": table.changed,
                "first": [
                    {**difference.names, "a": difference.sides[0], "b": difference.sides[1]}
                    for difference in table.first
                ],
            }
            for table in tables
        },
    }


if __name__ == "__main__":
    replay_check()
