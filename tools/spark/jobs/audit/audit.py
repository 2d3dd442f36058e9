"""`riverbed spark audit SNAPSHOT`: name what is stuck, poisoned or orphaned, and what holds streams back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from riverbed.tools.console.console import FOUND, Age, counted, results
from riverbed.tools.spark.jobs.audit.findings import audit_snapshot
from riverbed.tools.spark.jobs.audit.page import audit_page
from riverbed.tools.spark.jobs.audit.pending import Limits
from riverbed.tools.spark.jobs.command import find_snapshot, running_job, spark_options
from riverbed.tools.spark.jobs.launch import Launch
from riverbed.tools.spark.jobs.outdir import new_reports, print_report_path, write_reports
from riverbed.tools.spark.jobs.page import html_page

_NAMES: Final = ("audit.html", "audit.json")


@click.command()
@click.argument("source", metavar="SNAPSHOT")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write audit.html and audit.json there.")
@click.option("--overwrite", is_flag=True, help="Replace reports that are there.")
@click.option(
    "--since", "earlier_source", metavar="EARLIER", help="An earlier snapshot, for the throughput between the two."
)
@click.option("--stuck-after", default="1h", show_default=True, type=Age(), metavar="TIME", help="As 90s, 15m, 1h, 2d.")
@click.option(
    "--poison-from", type=click.IntRange(min=2), default=5, show_default=True, metavar="N", help="From N deliveries on."
)
@click.option("--idle-after", default="1d", show_default=True, type=Age(), metavar="TIME", help="Of consumers.")
@click.option("--match", "pattern", metavar="PATTERN", help="Only keys like this, as in KEYS: orders:*")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="Longest list of anything."
)
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@spark_options
def audit(
    source: str,
    out: Path | None,
    overwrite: bool,
    earlier_source: str | None,
    stuck_after: int,
    poison_from: int,
    idle_after: int,
    pattern: str | None,
    limit: int,
    as_json: bool,
    launch: Launch,
) -> None:
    """Report on the consumer groups of SNAPSHOT.

    Names poison entries (delivered again and again), stuck ones (delivered long ago, never acknowledged), orphaned
    ones (pending and deleted), idle consumers that hold entries, groups without a reader, and the group that keeps
    each stream from being trimmed; then lag and pending entries by group and by consumer. With --since it reports how
    much was delivered and settled in between.

    SNAPSHOT is a snapshot or a data directory. Without --out the counts alone are printed; --json prints all.

    \b
    Examples
      riverbed spark audit data/snapshots/20261121T120000Z-517 --out report
      riverbed spark audit data --stuck-after 10m --json
      spark-submit tools/spark/jobs/audit/audit.py data --since snapshot

    Exit status 0: nothing is wrong, 1: something is, 2: could not be found out.
    """
    if out is not None:
        new_reports(out, _NAMES, overwrite=overwrite)
    snapshot = find_snapshot(source)
    earlier = None if earlier_source is None else find_snapshot(earlier_source)
    limits = Limits(stuck_after, poison_from, idle_after, limit)
    options = {} if pattern is None else {"streamPattern": pattern}
    with running_job(launch, f"audit {source}") as job:
        report = audit_snapshot(job, snapshot, earlier, limits, options)
        job.step("writing the report")
        text = json.dumps(report, indent=2)
        if out is not None:
            page = html_page(audit_page(snapshot.name, report))
            write_reports(out, dict(zip(_NAMES, (page, f"{text}\n"), strict=True)))
    if as_json:
        click.echo(text)
    else:
        _print_summary(report, out)
    if report["problems"]:
        raise SystemExit(FOUND)


def _print_summary(report: Mapping[str, Any], out: Path | None) -> None:
    console = results()
    pending = report["pending"]
    lines = [
        (pending["poison"], "poison entry"),
        (pending["stuck"], "stuck entry"),
        (pending["orphaned"], "orphaned entry"),
        (report["idle_consumer_count"], "idle consumer"),
        (report["unread_group_count"], "unread group"),
    ]
    for count, noun in lines:
        if count:
            console.print(f"[bold red]{counted(count, noun)}[/]")
    if not report["problems"]:
        console.print("[green]no entry is stuck, poisoned or orphaned[/]")
    print_report_path(out, _NAMES[0])


if __name__ == "__main__":
    audit()
