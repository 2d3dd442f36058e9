"""`riverbed spark rates SNAPSHOT`: how many entries and bytes a minute, and how long between one and the next.

Minutes are those of the IDs, in UTC.  A stream whose IDs are no times has minutes all the same, of 1970 mostly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from pyspark import StorageLevel
from pyspark.sql import Column as SparkColumn
from pyspark.sql import Window
from pyspark.sql import functions as fn
from rich.markup import escape

from riverbed.tools.console.console import age_text, counted, results, size_text
from riverbed.tools.console.keytext import key_values, name_text
from riverbed.tools.spark.jobs.charts import lying_bars, over_time
from riverbed.tools.spark.jobs.command import Frozen, Job, find_snapshot, running_job, spark_options
from riverbed.tools.spark.jobs.launch import Launch
from riverbed.tools.spark.jobs.outdir import new_reports, write_reports
from riverbed.tools.spark.jobs.page import Card, Chart, Column, Page, Section, html_page, markdown
from riverbed.tools.spark.jobs.page import Table as PageTable
from riverbed.tools.spark.reading.options import StreamName, Table, names_text

_MINUTE_MS: Final = 60_000
_STREAM: Final = ("_db", "_key_binary")
_ENTRIES: Final = "_db int, _key_binary binary, _ms bigint, _items array<struct<name:binary,value:binary>>"
_TIMES: Final = "_db int, _key_binary binary, _ms bigint, _seq bigint"
_END_OF_TIME_MS: Final = 253_402_300_800_000  # the year 10000
_PERCENTS: Final = (50, 95, 99)
_NAMES: Final = ("rates.html", "rates.md", "rates.json")
_MINUTES_NAME: Final = "minutes.jsonl"
_POINTS: Final = 240  # of a line in a chart
_LINES: Final = 5
_BARS: Final = 12
# IDs below are no times, or not such as belong into the same picture.
_LEAST_TIME_MS: Final = 946_684_800_000  # 2000-01-01


@dataclass(frozen=True, slots=True)
class KeyRates:
    """What one stream has.  Gaps are milliseconds between an entry and the next; None with fewer than two."""

    db: int
    key: bytes
    entries: int
    byte_count: int  # of names and values
    minutes: int  # in which there is an entry
    busiest: int  # entries in the busiest minute
    busiest_ms: int
    first_ms: int
    last_ms: int
    gaps: tuple[int, int, int] | None  # of _PERCENTS
    longest_gap_ms: int | None

    @property
    def per_minute(self) -> float:
        """On average, from the first to the last minute, both included."""
        return self.entries / (self.last_ms // _MINUTE_MS - self.first_ms // _MINUTE_MS + 1)


@dataclass(frozen=True, slots=True)
class Rates:
    """The largest streams, how many there are, and what does not fit into a table by time."""

    keys: list[KeyRates]
    streams: int
    entries: int
    byte_count: int
    untimed: int  # entries whose milliseconds are beyond 2^63


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
    --out writes a page with charts, the same as Markdown and JSON, and minutes.jsonl: a line for each stream and
    minute.

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
        found = counting.rates(limit)
        report = json.dumps(_as_json(frozen, found), indent=2)
        if out is not None:
            page = _page(frozen, found, counting)
            job.step("writing the report")
            texts = dict(zip(_NAMES, (html_page(page), markdown(page), f"{report}\n"), strict=True))
            write_reports(out, {**texts, _MINUTES_NAME: counting.minute_lines()})
    if as_json:
        click.echo(report)
    elif out is None:
        click.echo(markdown(_page(frozen, found, None)))
    else:
        console = results()
        console.print(f"{counted(found.entries, 'entry')} in {counted(found.streams, 'stream')}")
        console.print(f"report: [bold]{escape(str(out / _NAMES[0]))}[/]")


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
        """Let go of what Spark keeps."""
        self._minutes.unpersist()

    def rates(self, most: int) -> Rates:
        """The `most` largest streams, and totals over all."""
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
                # Of several that are equally busy the first one.
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
        keys = [_key_rates(row, gaps) for row in largest]
        return Rates(keys, total.streams, int(total.entries), int(total.bytes), int(total.untimed))

    def _gaps(self, names: list[StreamName]) -> dict[StreamName, Any]:
        """The time between one entry and the next, of some streams."""
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

    def lines(self, found: Rates) -> tuple[list[int], dict[str, list[float]], list[float]]:
        """-> (unix milliseconds, entries a minute of the largest streams and of all, bytes a minute of all)"""
        timed = self._minutes.where(fn.col("minute") >= _LEAST_TIME_MS // _MINUTE_MS)
        [span] = timed.agg(fn.min("minute").alias("first"), fn.max("minute").alias("last")).collect()
        if span.first is None:
            return [], {}, []
        width = -(-(span.last - span.first + 1) // _POINTS)
        points = (span.last - span.first) // width + 1
        largest = {(each.db, each.key): number for number, each in enumerate(found.keys[:_LINES])}
        names = [_name_text(each) for each in found.keys[:_LINES]]
        entries = [[0.0] * points for _ in largest]
        total, size = [0.0] * points, [0.0] * points
        place = fn.expr(f"(minute - {span.first}) div {width}").alias("place")
        rows = timed.groupBy(place, *_STREAM).agg(fn.sum("entries"), fn.sum("bytes"))
        for at, db, key, count, byte_count in rows.toLocalIterator():
            total[at] += count / width
            size[at] += byte_count / width
            number = largest.get((db, bytes(key)))
            if number is not None:
                entries[number][at] += count / width
        moments = [(span.first + point * width) * _MINUTE_MS for point in range(points)]
        lines = {"all streams": total, **{name: each for name, each in zip(names, entries, strict=True) if any(each)}}
        return moments, lines if len(largest) > 1 else {"all streams": total}, size

    def minute_lines(self) -> Iterator[str]:
        """A line of JSON for each stream and minute, by stream."""
        rows = self._minutes.where(fn.col("minute").isNotNull()).orderBy(*_STREAM, "minute")
        for row in rows.toLocalIterator():
            values = {
                "db": row["_db"],
                **key_values("key", bytes(row["_key_binary"])),
                "minute": _iso(row.minute * _MINUTE_MS),
                "ms": row.minute * _MINUTE_MS,
                "entries": row.entries,
                "bytes": row.bytes,
            }
            yield f"{json.dumps(values, ensure_ascii=False)}\n"


def _with_item(size: SparkColumn, item: SparkColumn) -> SparkColumn:
    return size + fn.length(item["name"]) + fn.length(item["value"])


def _key_rates(row: Any, gaps: dict[StreamName, Any]) -> KeyRates:
    name = row["_db"], bytes(row["_key_binary"])
    gap = gaps.get(name)
    percentiles, longest = (None, None) if gap is None or gap.longest is None else (gap.percentiles, gap.longest)
    return KeyRates(
        *name,
        entries=row.entries,
        byte_count=row.bytes,
        minutes=row.minutes,
        busiest=row.busiest.entries,
        busiest_ms=-row.busiest.before * _MINUTE_MS,
        first_ms=row.first,
        last_ms=row.last,
        gaps=None if percentiles is None else tuple(round(each) for each in percentiles),
        longest_gap_ms=longest,
    )


# -- telling -----------------------------------------------------------------------------------------------------------


def _page(frozen: Frozen, found: Rates, counting: _Counting | None) -> Page:
    """With charts when there is something to draw them from."""
    manifest = frozen.snapshot.manifest
    facts = [
        ("snapshot", frozen.path),
        ("taken", _iso(manifest.time_ms)),
        ("replication offset", str(manifest.offset)),
    ]
    cards = [
        Card("entries", f"{found.entries:,}"),
        Card("streams", f"{found.streams:,}"),
        Card("names and values", size_text(found.byte_count)),
    ]
    sections = []
    if counting is not None:
        moments, lines, size = counting.lines(found)
        if moments:
            sections.append(
                Section(
                    "Over time",
                    "By the time in the IDs, in UTC; IDs before the year 2000 are not drawn.",
                    charts=(
                        Chart("Entries a minute", over_time(moments, lines, "entries/min")),
                        Chart("Bytes a minute", over_time(moments, {"bytes": size}, "bytes/min")),
                    ),
                )
            )
    bars = found.keys[:_BARS]
    charts: tuple[Chart, ...] = ()
    if counting is not None and bars:
        labels = [_name_text(each) for each in bars]
        told = [f"{each.entries:,}, {size_text(each.byte_count)}" for each in bars]
        charts = (Chart("Largest streams", lying_bars(labels, [each.entries for each in bars], told)),)
    sections.append(_streams_section(found, charts))
    return Page(f"Rates of {frozen.name}", facts, cards, sections)


def _streams_section(found: Rates, charts: tuple[Chart, ...]) -> Section:
    columns = (
        Column("stream", is_name=True),
        Column("entries", is_number=True),
        Column("bytes", is_number=True),
        Column("first, UTC", is_number=True),
        Column("last", is_number=True),
        Column("a minute", is_number=True),
        Column("busiest minute", is_number=True),
        *(Column(f"gap p{percent}", is_number=True) for percent in _PERCENTS),
        Column("longest gap", is_number=True),
    )
    rows = [
        [
            _name_text(each),
            f"{each.entries:,}",
            size_text(each.byte_count),
            _minute_text(each.first_ms),
            _minute_text(each.last_ms),
            f"{each.per_minute:,.1f}",
            f"{each.busiest:,}",
            *(("-",) * len(_PERCENTS) if each.gaps is None else (_gap_text(gap) for gap in each.gaps)),
            "-" if each.longest_gap_ms is None else _gap_text(each.longest_gap_ms),
        ]
        for each in found.keys
    ]
    more = f"{found.streams - len(rows):,} more." if found.streams > len(rows) else ""
    if found.untimed:
        more = f"{more} {counted(found.untimed, 'entry')} with milliseconds beyond 2^63 counted in no minute.".strip()
    text = "A gap is the time between one entry and the next of the stream."
    return Section("Streams", text, charts, (PageTable(columns, rows, more),))


def _as_json(frozen: Frozen, found: Rates) -> dict[str, Any]:
    return {
        "snapshot": frozen.path,
        "offset": frozen.snapshot.manifest.offset,
        "streams": found.streams,
        "entries": found.entries,
        "bytes": found.byte_count,
        "untimed": found.untimed,
        "largest": [
            {
                "db": each.db,
                **key_values("key", each.key),
                "entries": each.entries,
                "bytes": each.byte_count,
                "first_ms": each.first_ms,
                "last_ms": each.last_ms,
                "minutes": each.minutes,
                "per_minute": round(each.per_minute, 3),
                "busiest_minute": {"ms": each.busiest_ms, "entries": each.busiest},
                "gaps_ms": None
                if each.gaps is None
                else {
                    **{f"p{percent}": gap for percent, gap in zip(_PERCENTS, each.gaps, strict=True)},
                    "longest": each.longest_gap_ms,
                },
            }
            for each in found.keys
        ],
    }


def _name_text(each: KeyRates) -> str:
    key = name_text(each.key)
    return f"{key} (db {each.db})" if each.db else key


def _gap_text(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else age_text(ms)


def _minute_text(ms: int) -> str:
    return _iso(ms)[:16].replace("T", " ")


def _iso(ms: int) -> str:
    """A moment to the second, UTC; the number itself where calendars end."""
    if not 0 <= ms < _END_OF_TIME_MS:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    rates()
