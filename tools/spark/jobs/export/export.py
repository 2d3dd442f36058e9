"""`riverbed spark export SNAPSHOT OUT`: writes entries to Parquet, by key and date; each run adds the new entries.

    OUT/key=orders%3A1/date=2026-11-21/part-00000-...parquet

The ledger (`ledger.py`) says how far each stream has been written.  A run reads the entries after that.  A run reports
an error if a stream has lost entries in between, was deleted, or is another stream, and if the store is another store.
The partition `key` is for people and for queries, so a key that cannot be the name of a directory is shortened there,
as is one whose directory would be that of another key.  A column of each file has the unchanged key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import click
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType
from rich.markup import escape

from riverbed.store.ids import MAX_ID, MIN_ID, StreamID, id_text
from riverbed.store.snapshot.stream_lines import StreamSummary
from riverbed.tools.console.console import Failure, counted, notes, results, size_text
from riverbed.tools.console.keytext import key_text, shown
from riverbed.tools.spark.jobs.command import Frozen, Job, find_snapshots, running_job, spark_options
from riverbed.tools.spark.jobs.export.hadoop_files import HadoopFiles
from riverbed.tools.spark.jobs.export.ledger import Ledger, Run
from riverbed.tools.spark.jobs.launch import Launch
from riverbed.tools.spark.reading.options import (
    Mode,
    ReadOptions,
    StreamName,
    Table,
    name_text,
    names_text,
    offsets_text,
    read_options,
)
from riverbed.tools.spark.streaming.offsets import Mark, Offset, Progress

# Columns of the files, apart from the two partition columns, with their types in the data source.
_ENTRY: Final = {"_db": "int", "_id": "string", "_ms": "bigint", "_seq": "bigint", "_timestamp": "timestamp"}
_FIELDS: Final = {False: "_fields map<string,binary>", True: "_fields_text map<string,string>"}
_PARTITIONS: Final = ("key", "date")
# Each open file of a task takes memory for its columns.  With more files than this, a task sorts its rows first.
_OPEN_FILES: Final = "8"
_LAST_DAY_MS: Final = 253_402_300_800_000  # end of the year 9999: most programs know no later dates

# All but the characters that Spark writes with a percent sign in the name of a directory: three bytes for one.
_ESCAPED: Final = r"[^\x01-\x1f\"#%'*/:=?\\\x7f{\[\]^]"
_LONGEST_NAME: Final = 200  # of 255, less `key=`
_KEPT_LETTERS: Final = 40
_NO_NAMES: Final = {"": "(empty)", "__HIVE_DEFAULT_PARTITION__": "(hive default partition)"}
# Keys that say what stands for another key: for one that was shortened, or, byte for byte, for a byte that is no text.
_LIKE_SHORT: Final = "~[0-9a-f]{16}\\z"
_LIKE_BYTE: Final = r"\\x[0-9a-f]{2}"


@dataclass
class _News:
    """What is new in a snapshot since the last export."""

    starts: dict[StreamName, StreamID] = field(default_factory=dict)  # of the streams to read
    progress: dict[StreamName, Progress] = field(default_factory=dict)  # how far the run will have written them
    gaps: list[StreamName] = field(default_factory=list)
    has_others: bool = False  # there may be streams with nothing new
    deleted: set[StreamName] = field(default_factory=set)  # the gaps whose streams are gone
    least_rows: int = 0  # entries in streams that are read for the first time
    most_rows: int = 0  # the same, and all that were added to the others since
    known: dict[StreamName, int] = field(default_factory=dict)  # new entries, where none of them was removed


@click.command()
@click.argument("source", metavar="SNAPSHOT")
@click.argument("out", metavar="OUT")
@click.option("--match", "pattern", metavar="PATTERN", help="Only keys like this, as in KEYS: orders:*")
@click.option("--db", type=click.IntRange(0, 15), metavar="N", help="Only this database.")
@click.option("--schema", metavar="DDL", help='Fields as columns: "user string, amount double, ts timestamp"')
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.PERMISSIVE.value,
    show_default=True,
    help="How to treat values that do not fit --schema.",
)
@click.option("--text", is_flag=True, help="Values of fields as text; bytes that are not UTF-8 are written as \\xff.")
@click.option("--allow-gaps", is_flag=True, help="Go on where a stream was trimmed or deleted, or with another store.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@spark_options
def export(
    source: str,
    out: str,
    pattern: str | None,
    db: int | None,
    schema: str | None,
    mode: str,
    text: bool,
    allow_gaps: bool,
    as_json: bool,
    launch: Launch,
) -> None:
    """Write the entries of SNAPSHOT to Parquet files in OUT, by key and date.

    SNAPSHOT is a snapshot, a folder of those of one store, which are exported one after the other, or a data directory.
    OUT is a directory or a URI that Spark can write to, new or that of an earlier export of the same store: then only
    what is new is added. A run that was killed is finished or undone by the next one, so that no entry is lost or there
    twice.

    \b
    OUT/key=KEY/date=YYYY-MM-DD/*.parquet   files of each stream and day (UTC)
    OUT/_riverbed/*.json                    what each run has written, and whence

    Without --schema the columns are db, id, ms, seq, timestamp, fields (a map) and key_binary. With it, they are those
    fields, and _db, _id, _ms, _seq, _timestamp, _key_binary.

    \b
    Examples
      riverbed spark export data/snapshots/20261121T120000Z-517 lake/events
      riverbed spark export data lake --schema "user string, amount double"
      spark-submit tools/spark/jobs/export/export.py s3://b/frozen s3a://b/lake

    Exit status 0: exported, or nothing was new; 2: not exported.
    """
    if schema is not None and text:
        raise click.UsageError("--text is for exports without --schema: a schema names the fields that are text")
    options = {"path": source}
    if pattern is not None:
        options["streamPattern"] = pattern
    if db is not None:
        options["db"] = str(db)
    found = find_snapshots(source)
    settings = {"schema": schema, "mode": mode if schema else None, "text": text}
    with running_job(launch, f"export {source}") as job:
        files = HadoopFiles(job.spark, out)
        ledger = Ledger(files)
        with files.locked(ledger.lock):
            was_interrupted = ledger.open()
            exporter = _Exporter(job, files, ledger, read_options(options), options, settings, allow_gaps)
            for frozen in found:
                exporter.add(frozen)
    if was_interrupted:
        notes().print(f"finished run {ledger.next_run - len(exporter.runs) - 1}, which was interrupted")
    if as_json:
        click.echo(json.dumps(exporter.as_json(out), indent=2))
    else:
        exporter.print_report(out)


class _Exporter:
    """Exports one snapshot after the other."""

    def __init__(
        self,
        job: Job,
        files: HadoopFiles,
        ledger: Ledger,
        wanted: ReadOptions,
        options: dict[str, str],
        settings: dict[str, Any],
        allow_gaps: bool,
    ) -> None:
        self.runs: list[Run] = []
        self.gaps: list[StreamName] = []
        self._job = job
        self._ledger = ledger
        self._wanted = wanted
        self._options = {name: value for name, value in options.items() if name != "path"}
        self._settings = settings
        self._allow_gaps = allow_gaps
        if ledger.last is not None and ledger.last.settings != settings:
            raise Failure(f"{files.root} was exported with {_said(ledger.last.settings)}, not {_said(settings)}")
        job.spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", _OPEN_FILES)

    def add(self, frozen: Frozen) -> None:
        """Export what is new in a snapshot, in a run of its own."""
        manifest = frozen.snapshot.manifest
        last = self._ledger.last
        if last is not None:
            is_same_log = manifest.replication_id == last.replication_id
            if manifest.time_ms < last.time_ms or (is_same_log and manifest.offset < last.offset):
                return  # a folder also has snapshots that were exported before
            if not self._allow_gaps:
                _require_same_store(frozen, last)
        written = Offset() if last is None else Offset.from_json({"snapshot": last.snapshot, "streams": last.streams})
        self._job.step(f"looking for new entries in {frozen.name}")
        news = self._news(frozen, written)
        if not news.starts and not news.deleted:
            return
        self._job.step(f"exporting {frozen.name}")
        rows = self._write(frozen, news) if news.starts else 0
        staged = self._ledger.staged() if news.starts else []
        left = {name: at for name, at in written.streams.items() if name not in news.deleted}
        run = Run(
            run=self._ledger.next_run,
            settings=self._settings,
            snapshot=frozen.name,
            offset=manifest.offset,
            time_ms=manifest.time_ms,
            replication_id=manifest.replication_id,
            rows=rows,
            byte_count=sum(size for _, size in staged),
            files=[name for name, _ in staged],
            streams={name_text(name): at.to_object() for name, at in sorted((left | news.progress).items())},
            store_id=manifest.store_id,
        )
        self._ledger.commit(run)
        self.runs.append(run)
        self.gaps += news.gaps

    def _news(self, frozen: Frozen, written: Offset) -> _News:
        news, numbering = _News(has_others=bool(written.streams)), frozen.snapshot.manifest.numbering or ""
        news.deleted = {name for name in written.streams if self._wanted.wants(*name)}
        for stream in frozen.snapshot.streams():
            name = stream.db, stream.key
            if not self._wanted.wants(*name):
                continue
            news.deleted.discard(name)
            at = written.streams.get(name)
            if at is not None:
                _require_same(stream, at, numbering)
                if _has_gap(stream, at, numbering):
                    news.gaps.append(name)
            if at is None or (at.last_id < stream.last_id and at.last_id < MAX_ID):
                before = MIN_ID if at is None else _last_written(at)
                news.starts[name] = MIN_ID if at is None else StreamID(before + 1)
                added = stream.length if at is None else stream.entries_added - at.seen
                news.most_rows += added
                if at is None:
                    news.least_rows += added
                elif stream.length and max(stream.first_id, stream.max_deleted_id) <= at.last_id:
                    news.known[name] = added
                # What was written stays so, although the entry is gone by now: a store may be restored from before.
                newest = max(stream.last_live_id, before)
                # The list of streams has no digest, and none is needed here.
                mark = None if newest == stream.last_id else Mark(newest, "")
                news.progress[name] = Progress(
                    stream.last_id, stream.entries_added, stream.stream_no, mark, numbering=numbering
                )
        news.gaps += sorted(news.deleted)
        if news.gaps and not self._allow_gaps:
            raise Failure(
                f"trimmed or deleted before it was exported: {_listed(news.gaps)}; --allow-gaps exports the rest, or "
                "export a folder with the snapshots that were taken in between"
            )
        return news

    def _write(self, frozen: Frozen, news: _News) -> int:
        options = self._options | {"mode": self._settings["mode"] or Mode.PERMISSIVE.value}
        if news.has_others:
            options = {"streams": names_text(news.starts), "startingOffsets": offsets_text(news.starts), **options}
        entries = self._job.read(frozen, Table.ENTRIES, self._schema(), options)
        counting = Observation()
        frame = _laid_out(entries, is_plain=self._settings["schema"] is None)
        frame = frame.observe(counting, fn.count(fn.lit(1)).alias("rows"))
        frame.write.partitionBy(*_PARTITIONS).option("compression", "zstd").parquet(self._ledger.staging)
        rows = int(counting.get["rows"])
        if rows < news.least_rows and self._settings["mode"] != Mode.DROPMALFORMED.value:
            raise Failure(f"read {rows} of at least {news.least_rows} entries; none of them was kept")
        if rows != news.most_rows and news.known:
            self._require_known(frozen, news)
        return rows

    def _require_known(self, frozen: Frozen, news: _News) -> None:
        """Raise Failure for streams that have fewer entries behind those of the last run than were added since.

        XSETID has let the others in below that run's last ID, once the last entry that was written was gone.
        """
        starts = {name: news.starts[name] for name in news.known}
        options = self._options | {"streams": names_text(starts), "startingOffsets": offsets_text(starts)}
        entries = self._job.read(frozen, Table.ENTRIES, "_db int, _key_binary binary", options)
        counts = {(db, bytes(key)): count for db, key, count in entries.groupBy(*entries.columns).count().collect()}
        others = [name for name, count in sorted(news.known.items()) if counts.get(name, 0) < count]
        if others and not self._allow_gaps:
            raise Failure(
                f"added since the last run, but not behind its last ID, as after XSETID: entries of {_listed(others)}; "
                "--allow-gaps exports the rest"
            )
        news.gaps += sorted(set(others) - set(news.gaps))

    def _schema(self) -> str:
        ours = [f"{name} {kind}" for name, kind in _ENTRY.items()]
        if self._settings["schema"] is None:
            return ", ".join(["_key string", *ours, _FIELDS[self._settings["text"]], "_key_binary binary"])
        theirs = StructType.fromDDL(self._settings["schema"])
        if not isinstance(theirs, StructType):
            raise Failure(f'--schema must name fields and types, as in "user string", not {self._settings["schema"]!r}')
        for name in theirs.names:
            if name.lower() in _PARTITIONS:
                raise Failure(f"a field cannot be called {name} here: the files are partitioned by it")
        ours = [
            column for column in ["_key string", *ours, "_key_binary binary"] if column.split()[0] not in theirs.names
        ]
        return ", ".join([self._settings["schema"], *ours])

    # -- what was done

    def as_json(self, out: str) -> dict[str, Any]:
        return {
            "out": out,
            "rows": sum(run.rows for run in self.runs),
            "bytes": sum(run.byte_count for run in self.runs),
            "files": sum(len(run.files) for run in self.runs),
            "gaps": [key_text(key) for _, key in self.gaps],
            "runs": [
                {
                    "run": run.run,
                    "snapshot": run.snapshot,
                    "offset": run.offset,
                    "rows": run.rows,
                    "bytes": run.byte_count,
                    "files": len(run.files),
                }
                for run in self.runs
            ],
        }

    def print_report(self, out: str) -> None:
        console = results()
        last = self._ledger.last
        if not self.runs:
            until = f": it has all up to {last.snapshot}, offset {last.offset}" if last else ""
            console.print(f"no new entries for [bold]{escape(shown(out))}[/]{escape(shown(until))}")
        for run in self.runs:
            console.print(
                f"[green]exported[/] [bold]{escape(shown(run.snapshot))}[/], up to replication offset {run.offset}: "
                f"{counted(run.rows, 'entry')}, {size_text(run.byte_count)} in {counted(len(run.files), 'file')}"
            )
        for _, key in self.gaps:
            notes().print(f"[yellow]gap:[/] {escape(key_text(key))} had entries that were not exported")


def _listed(names: list[StreamName]) -> str:
    more = f" and {counted(len(names) - 5, 'more stream')}" if len(names) > 5 else ""
    return ", ".join(key_text(key) for _, key in names[:5]) + more


def _said(settings: dict[str, Any]) -> str:
    if settings.get("schema") is not None:
        return f"--schema {settings['schema']!r} --mode {settings.get('mode')}"
    return "--text" if settings.get("text") else "neither --schema nor --text"


def _require_same_store(frozen: Frozen, last: Run) -> None:
    """Raise Failure if the snapshot is of another store than the earlier runs.  Older versions noted no store."""
    manifest = frozen.snapshot.manifest
    now, was = {manifest.store_id, manifest.replication_id}, {last.store_id, last.replication_id}
    if manifest.store_id and last.store_id and not (now & was) - {None}:
        raise Failure(
            f"{frozen.name} is of another store (id {manifest.store_id}) than the one that was exported so far "
            f"({last.store_id}): export it to another directory; --allow-gaps goes on with it"
        )


def _require_same(stream: StreamSummary, at: Progress, numbering: str) -> None:
    """Raise Failure for a stream that was deleted and created again, unless all its entries are new."""
    is_older = stream.last_id < at.last_id
    has_other_number = at.numbering == numbering != "" and at.number not in (None, stream.stream_no)
    is_another = has_other_number or stream.entries_added < at.seen
    if is_older or (is_another and stream.length and stream.first_id <= at.last_id):
        was, now = id_text(at.last_id).decode(), id_text(stream.last_id).decode()
        raise Failure(
            f"stream {key_text(stream.key)} was exported up to {was}, and this one ends with {now} after "
            f"{counted(stream.entries_added, 'entry')}: it is another stream; export it to another directory"
        )


def _has_gap(stream: StreamSummary, at: Progress, numbering: str) -> bool:
    """Whether entries were lost before they were exported: trimmed, or in a stream that was deleted and created again.

    A single deleted entry is no gap (`continuity.py` has the tables, and knows more such cases).
    """
    if stream.length and stream.first_id <= _last_written(at):
        return False
    if (stream.last_id, stream.entries_added) == (at.last_id, at.seen):
        return False
    is_one_deleted = stream.max_deleted_id > at.last_id
    is_another = at.numbering in ("", numbering) and at.number not in (None, stream.stream_no)
    return is_another or stream.entries_added - stream.length - at.seen > is_one_deleted


def _last_written(at: Progress) -> StreamID:
    """The ID behind which nothing is written.  Below `at.last_id`, XSETID may let entries in later."""
    return at.last_id if at.mark is None else at.mark.entry_id


# -- columns -----------------------------------------------------------------------------------------------------------


def _laid_out(entries: DataFrame, *, is_plain: bool) -> DataFrame:
    """The columns of the files, with the partition columns last."""
    columns = []
    for name in entries.columns:
        if name != "_key":
            shown = "fields" if name == "_fields_text" else name.removeprefix("_")
            columns.append(fn.col(name).alias(shown) if is_plain else fn.col(name))
    is_dated = fn.col("_ms") < _LAST_DAY_MS
    date = fn.when(is_dated, fn.to_date(fn.col("_timestamp")))
    return entries.select(*columns, _directory_name().alias("key"), date.alias("date"))


def _directory_name() -> Column:
    """The key as text; its beginning and a digest, where that is too long or the directory of another key as well."""
    key, text = fn.col("_key"), fn.replace(fn.col("_key"), fn.lit("\0"), fn.lit("\\x00"))
    for none, name in _NO_NAMES.items():
        text = fn.when(text == none, fn.lit(name)).otherwise(text)
    escaped = fn.length(fn.regexp_replace(text, _ESCAPED, ""))
    is_long = fn.octet_length(text) + 2 * escaped > _LONGEST_NAME
    letters = fn.decode(fn.col("_key_binary"), "ISO-8859-1")
    is_taken = key.isin(*_NO_NAMES.values()) | key.rlike(_LIKE_SHORT) | letters.rlike(_LIKE_BYTE)
    digest = fn.substring(fn.sha2(fn.col("_key_binary"), 256), 1, 16)
    short = fn.concat(fn.substring(text, 1, _KEPT_LETTERS), fn.lit("~"), digest)
    return fn.when(is_long | is_taken, short).otherwise(text)


if __name__ == "__main__":
    export()
