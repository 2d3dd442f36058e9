"""`riverbed spark rates SNAPSHOT`: counts entries and bytes a minute, and the time between one entry and the next.

Minutes are taken from the IDs, in UTC.  A stream whose IDs are not times has minutes as well, mostly of 1970.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click
from pyspark import StorageLevel
from pyspark.sql import Column as SparkColumn
from pyspark.sql import Window
from pyspark.sql import functions as fn

from riverbed.tools.console.console import age_text, counted, results, size_text
from riverbed.tools.console.keytext import key_values
from riverbed.tools.spark.jobs.command import Frozen, Job, find_snapshot, running_job, spark_options
from riverbed.tools.spark.jobs.launch import Launch
from riverbed.tools.spark.jobs.outdir import new_reports, print_report_path, write_reports
from riverbed.tools.spark.jobs.page import (
    MIN_TIME_MS,
    Bars,
    Card,
    Column,
    Lines,
    Page,
    Section,
    html_page,
    moment_text,
    number_column,
    stream_text,
)
from riverbed.tools.spark.jobs.page import Table as PageTable
from riverbed.tools.spark.reading.options import StreamName, Table, names_text

_MINUTE_MS: Final = 60_000
_STREAM: Final = ("_db", "_key_binary")
_ENTRIES: Final = "_db int, _key_binary binary, _ms bigint, _items array<struct<name:binary,value:binary>>"
_TIMES: Final = "_db int, _key_binary binary, _ms bigint, _seq bigint"
_PERCENTS: Final = (50, 95, 99)
_NAMES: Final = ("rates.html", "rates.json")
_MINUTES_NAME: Final = "minutes.jsonl"
_POINTS: Final = 240  # of a line in a chart
_LINES: Final = 5
_BARS: Final = 12

_Report = Mapping[str, Any]


@click.command()
@click.argument("source", metavar="SNAPSHOT")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write reports and minutes.jsonl there.")
@click.option("--overwrite", is_flag=True, help="Replace reports that are there.")
@click.option("--match", "pattern", metavar="PATTERN", help="Only keys like this, as in KEYS: orders:*")
@click.option("--since", metavar="TIME", help="Only entries from this time on: 2026-11-21T12:00:00Z or unix ms.")
@click.option("--until", metavar="TIME", help="Only entries up to this time.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Show the N largest streams.",
)
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@spark_options
def rates(
    source: str,
    out: Path | None,
    overwrite: bool,
    pattern: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    as_json: bool,
    launch: Launch,
) -> None:
    """Count the entries and bytes of SNAPSHOT by minute, and the time between one entry and the next.

    SNAPSHOT is a snapshot or a data directory. A minute is one of the IDs, in UTC; bytes are those of names and values.
    --out writes a page with charts, the same as JSON, and minutes.jsonl: a line for each stream and minute. Without it
    the totals alone are printed; --json prints all.

    \b
    Examples
      riverbed spark rates data/snapshots/20261121T120000Z-517 --out report
      riverbed spark rates data --match 'orders:*' --since 2026-11-21 --json
      spark-submit tools/spark/jobs/rates.py data

    Exit status 0: counted, 2: not counted.
    """
    if out is not None:
        new_reports(out, (*_NAMES, _MINUTES_NAME), overwrite=overwrite)
    frozen = find_snapshot(source)
    asked = {"streamPattern": pattern, "startingTimestamp": since, "endingTimestamp": until}
    options = {name: value for name, value in asked.items() if value is not None}
    with running_job(launch, f"count {source}") as job, closing(_Counting(job, frozen, options)) as counting:
        report = counting.report(limit)
        text = json.dumps(report, indent=2)
        if out is not None:
            page = html_page(_page(frozen, report, counting.lines(report)))
            job.step("writing the report")
            texts = dict(zip(_NAMES, (page, f"{text}\n"), strict=True))
            write_reports(out, {**texts, _MINUTES_NAME: counting.minute_lines()})
    if as_json:
        click.echo(text)
    else:
        results().print(f"{counted(report['entries'], 'entry')} in {counted(report['streams'], 'stream')}")
        print_report_path(out, _NAMES[0])


# -- counting ----------------------------------------------------------------------------------------------------------


class _Counting:
    """Rows of (stream, minute), which Spark keeps until `close`."""

    def __init__(self, job: Job, frozen: Frozen, options: dict[str, str]) -> None:
        self._job = job
        self._frozen = frozen
        self._options = options
        size = fn.aggregate("_items", fn.lit(0).cast("bigint"), _with_item)
        entries = job.read(frozen, Table.ENTRIES, _ENTRIES, options).select("*", size.alias("size"))
        self._minutes = (
            entries.groupBy("_db", "_key_binary", fn.expr(f"_ms div {_MINUTE_MS}").alias("minute"))
            .agg(
                fn.count(fn.lit(1)).alias("entries"),
                fn.sum("size").alias("bytes"),
                fn.min("_ms").alias("first"),
                fn.max("_ms").alias("last"),
            )
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    def close(self) -> None:
        """Release the rows that Spark keeps."""
        self._minutes.unpersist()

    def report(self, most: int) -> dict[str, Any]:
        """The report as a JSON object: totals over all streams, and the `most` largest streams."""
        self._job.step("counting entries by minute")
        [total] = self._minutes.agg(
            fn.count_distinct("_db", "_key_binary").alias("streams"),
            fn.coalesce(fn.sum("entries"), fn.lit(0)).alias("entries"),
            fn.coalesce(fn.sum("bytes"), fn.lit(0)).alias("bytes"),
            fn.coalesce(fn.sum(fn.when(fn.col("minute").isNull(), fn.col("entries"))), fn.lit(0)).alias("untimed"),
        ).collect()
        largest = (
            self._minutes.where(fn.col("minute").isNotNull())
            .groupBy(*_STREAM)
            .agg(
                fn.sum("entries").alias("entries"),
                fn.sum("bytes").alias("bytes"),
                fn.count(fn.lit(1)).alias("minutes"),
                # The first of equally busy minutes.
                fn.max(fn.struct("entries", (-fn.col("minute")).alias("before"))).alias("busiest"),
                fn.min("first").alias("first"),
                fn.max("last").alias("last"),
            )
            .orderBy(fn.col("entries").desc(), *_STREAM)
            .limit(most)
            .collect()
        )
        self._job.step("measuring the time between entries")
        gaps = self._gaps([(row["_db"], bytes(row["_key_binary"])) for row in largest])
        return {
            "snapshot": self._frozen.path,
            "offset": self._frozen.snapshot.manifest.offset,
            "streams": total.streams,
            "entries": int(total.entries),
            "bytes": int(total.bytes),  # of names and values
            "untimed": int(total.untimed),  # entries whose milliseconds are beyond 2^63
            "largest": [_stream_report(row, gaps) for row in largest],
        }

    def _gaps(self, names: list[StreamName]) -> dict[StreamName, Any]:
        """For each of these streams, the time between one entry and the next."""
        if not names:
            return {}
        options = {name: value for name, value in self._options.items() if name != "streamPattern"}
        options["streams"] = names_text(names)
        times = self._job.read(self._frozen, Table.ENTRIES, _TIMES, options).where(fn.col("_ms").isNotNull())
        in_order = Window.partitionBy(*_STREAM).orderBy("_ms", "_seq")
        rows = (
            times.withColumn("gap", fn.col("_ms") - fn.lag("_ms").over(in_order))
            .groupBy(*_STREAM)
            .agg(
                fn.percentile("gap", [percent / 100 for percent in _PERCENTS]).alias("percentiles"),
                fn.max("gap").alias("longest"),
            )
        )
        return {(row["_db"], bytes(row["_key_binary"])): row for row in rows.collect()}

    def lines(self, report: _Report) -> list[Lines]:
        """Charts of entries a minute (the largest streams, all streams) and bytes a minute.  None without times."""
        timed = self._minutes.where(fn.col("minute") >= MIN_TIME_MS // _MINUTE_MS)
        [span] = timed.agg(fn.min("minute").alias("first"), fn.max("minute").alias("last")).collect()
        if span.first is None:
            return []
        width = -(-(span.last - span.first + 1) // _POINTS)
        points = (span.last - span.first) // width + 1
        names = [stream_text(row) for row in report["largest"][:_LINES]]
        entries = {name: [0.0] * points for name in names}
        total, size = [0.0] * points, [0.0] * points
        place = fn.expr(f"(minute - {span.first}) div {width}").alias("place")
        rows = timed.groupBy(place, *_STREAM).agg(fn.sum("entries"), fn.sum("bytes"))
        for at, db, key, count, byte_count in rows.toLocalIterator():
            total[at] += count / width
            size[at] += byte_count / width
            name = stream_text({"db": db, **key_values("key", bytes(key))})
            if name in entries:
                entries[name][at] += count / width
        moments = [(span.first + point * width) * _MINUTE_MS for point in range(points)]
        drawn = {name: values for name, values in entries.items() if any(values)} if len(names) > 1 else {}
        return [
            Lines("Entries a minute", moments, {"all streams": total, **drawn}),
            Lines("Bytes a minute", moments, {"bytes": size}),
        ]

    def minute_lines(self) -> Iterator[str]:
        """A JSON line for each stream and minute, by stream."""
        rows = self._minutes.where(fn.col("minute").isNotNull()).orderBy(*_STREAM, "minute")
        for row in rows.toLocalIterator():
            values = {
                "db": row["_db"],
                **key_values("key", bytes(row["_key_binary"])),
                "minute": moment_text(row.minute * _MINUTE_MS),
                "ms": row.minute * _MINUTE_MS,
                "entries": row.entries,
                "bytes": row.bytes,
            }
            yield f"{json.dumps(values, ensure_ascii=False)}\n"


def _with_item(size: SparkColumn, item: SparkColumn) -> SparkColumn:
    return size + fn.length(item["name"]) + fn.length(item["value"])


def _stream_report(row: Any, gaps: Mapping[StreamName, Any]) -> dict[str, Any]:
    """The report of one stream.  Gaps are milliseconds from an entry to the next; None with fewer than two entries."""
    key = bytes(row["_key_binary"])
    gap = gaps.get((row["_db"], key))
    # From the first entry to the last; what comes in less than a minute is no rate of a minute.
    minutes = max((row["last"] - row["first"]) / _MINUTE_MS, 1)
    gaps_ms = None
    if gap is not None and gap.longest is not None:
        gaps_ms = {f"p{percent}": round(ms) for percent, ms in zip(_PERCENTS, gap.percentiles, strict=True)}
        gaps_ms["longest"] = gap.longest
    return {
        "db": row["_db"],
        **key_values("key", key),
        "entries": row.entries,
        "bytes": row.bytes,
        "first_ms": row["first"],
        "last_ms": row["last"],
        "minutes": row.minutes,  # with at least one entry
        "per_minute": round(row.entries / minutes, 3),
        "busiest_minute": {"ms": -row.busiest.before * _MINUTE_MS, "entries": row.busiest.entries},
        "gaps_ms": gaps_ms,
    }


# -- the page ----------------------------------------------------------------------------------------------------------


def _page(frozen: Frozen, report: _Report, lines: list[Lines]) -> Page:
    largest = report["largest"]
    facts = {
        "snapshot": report["snapshot"],
        "taken": moment_text(frozen.snapshot.manifest.time_ms),
        "replication offset": str(report["offset"]),
    }
    cards = [
        Card("entries", f"{report['entries']:,}"),
        Card("streams", f"{report['streams']:,}"),
        Card("names and values", size_text(report["bytes"])),
    ]
    over_time = "By the time in the IDs, in UTC; IDs before the year 2000 are not drawn."
    sections = [Section("Over time", over_time, lines)] if lines else []
    bars = largest[:_BARS]
    texts = [f"{row['entries']:,}, {size_text(row['bytes'])}" for row in bars]
    counts = {"entries": [row["entries"] for row in bars]}
    charts = [Bars("Largest streams", [stream_text(row) for row in bars], counts, texts)] if bars else []
    more = f"{report['streams'] - len(largest):,} more." if report["streams"] > len(largest) else ""
    if report["untimed"]:
        untimed = counted(report["untimed"], "entry")
        more = f"{more} {untimed} with milliseconds beyond 2^63 counted in no minute.".strip()
    text = "A gap is the time between one entry and the next of the stream."
    sections.append(Section("Streams", text, charts, PageTable(_COLUMNS, largest, more)))
    return Page(f"Rates of {frozen.name}", facts, cards, sections)


def _gap_column(title: str, name: str) -> Column:
    return Column(title, lambda row: _gap_text(row["gaps_ms"] and row["gaps_ms"][name]))


def _gap_text(ms: int | None) -> str:
    if ms is None:
        return "-"
    return f"{ms} ms" if ms < 1000 else age_text(ms)


def _minute_text(ms: int) -> str:
    return moment_text(ms)[:16].replace("T", " ")


_COLUMNS: Final = (
    Column("stream", stream_text, "name"),
    number_column("entries"),
    Column("bytes", lambda row: size_text(row["bytes"])),
    Column("first, UTC", lambda row: _minute_text(row["first_ms"])),
    Column("last", lambda row: _minute_text(row["last_ms"])),
    Column("a minute", lambda row: f"{row['per_minute']:,.1f}"),
    Column("busiest minute", lambda row: f"{row['busiest_minute']['entries']:,}"),
    *(_gap_column(f"gap p{percent}", f"p{percent}") for percent in _PERCENTS),
    _gap_column("longest gap", "longest"),
)


if __name__ == "__main__":
    rates()
