"""`riverbed load TARGET KEY [FILE]`: lines of JSON, or CSV, as entries of a stream."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final

import click
import lmdb
from rich.markup import escape

from riverbed.store.errors import StoreError
from riverbed.store.ids import StreamID, id_text
from riverbed.tools.console.console import (
    Failure,
    Interrupted,
    ProgressBar,
    counted,
    failures_explained,
    results,
    seconds_text,
)
from riverbed.tools.console.keytext import name_text, shown_key_bytes
from riverbed.tools.live.redisclient import RedisClient
from riverbed.tools.live.target import server_address
from riverbed.tools.live.tls import TlsOptions, tls_options
from riverbed.tools.loading.sinks import DirectorySink, ServerSink, Sink
from riverbed.tools.text.entryjson import decode_entry, row_words

_TIMEOUT_S: Final = 60.0
_MAX_LINE_BYTES: Final = 512 << 20

# The number of the line in the file, the ID or None, names and values in turn.
NumberedEntry = tuple[int, bytes | None, list[bytes]]


@click.command()
@click.argument("target", metavar="DIR|HOST:PORT")
@click.argument("key", metavar="KEY")
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True), metavar="[FILE]")
@click.option("--db", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="The key's database.")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), help="Of FILE, when its name does not show it.")
@click.option("--id-field", metavar="NAME", help="The column, or member of an object, that holds the ID.")
@click.option("--new-ids", is_flag=True, help="Give new IDs also to entries that have one.")
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N", help="Leave out the first N entries.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@tls_options
def load(
    target: str,
    key: str,
    file: Path | None,
    db: int,
    form: str | None,
    id_field: str | None,
    new_ids: bool,
    skip: int,
    as_json: bool,
    tls: TlsOptions,
) -> None:
    """Append lines of JSON, or CSV, to the stream KEY.

    They are in FILE, or come on standard input.

    DIR is a data directory that no server uses; it is made when it is missing. HOST:PORT is a server, Riverbed or
    Redis; with a user it is redis://user@host:port. For its password see `riverbed stat --help`.

    \b
    A line of JSON is an entry as `riverbed dump` writes it:
      {"id": "1-1", "fields": {"sensor": "7", "celsius": "21.5"}}

    Any other object will do as well: its members become the fields. A stream has texts alone, so numbers, true and
    false become their text, a nested list or object becomes its JSON, and a member that is null is left out. CSV has
    the names of the fields in its first line. An object that has only fields, pairs or pairs_base64, and maybe an id,
    must be an entry as dump writes it.

    Entries without an ID get a new one. IDs must ascend, and be above what is in the stream. At the first line that
    cannot be taken the load ends, and says how many entries are loaded: go on with --skip.

    \b
    Examples
      riverbed load localhost:6379 orders orders.jsonl
      riverbed dump /srv/old orders | riverbed load /srv/new orders
      riverbed load /srv/riverbed trades trades.csv --id-field time

    Exit status 0: all of it, 2: not, or only the beginning, 130: interrupted, likewise.
    """
    loaded = 0
    with failures_explained(f"load {key} of {target}"), contextlib.ExitStack() as held:
        size: int | None = None
        if file is not None and str(file) != "-":
            source: IO[bytes] = held.enter_context(file.open("rb"))
            size = file.stat().st_size or None
        elif sys.stdin is None:
            raise Failure("there is no standard input: name a FILE")
        else:
            source = sys.stdin.buffer
        if form is None:
            form = "csv" if file is not None and file.suffix.lower() == ".csv" else "jsonl"
        address = server_address(target, tls)
        sink: Sink
        if address is not None:
            sink = ServerSink(held.enter_context(RedisClient(address, _TIMEOUT_S)))
            sink.select(db)
        with ProgressBar(f"loading {name_text(shown_key_bytes(key))}"[:32], size) as bar:
            lines = _counted_lines(source, bar)
            entries = _csv_entries(lines, id_field) if form == "csv" else _json_entries(lines, id_field)
            if address is None:
                entries = _begun(entries)
                sink = held.enter_context(contextlib.closing(DirectorySink(Path(target), db)))
            last_id = _load(entries, sink, shown_key_bytes(key), bar, new_ids=new_ids, skip=skip)
            loaded, seconds = bar.done_items, bar.seconds
    _report(str(address or target), key, loaded, last_id, seconds, as_json=as_json)


def _begun(entries: Iterator[NumberedEntry]) -> Iterator[NumberedEntry]:
    """The same entries, with the first one read: a file of another kind makes no store.  Raises Failure."""
    try:
        first = list(islice(entries, 1))
    except _BadLine as bad:
        raise Failure(f"{bad}; nothing is loaded") from bad
    return chain(first, entries)


def _load(
    entries: Iterator[NumberedEntry], sink: Sink, key: bytes, bar: ProgressBar, *, new_ids: bool, skip: int
) -> StreamID | None:
    """Load all entries -> the last ID.  Raises Failure with the line at fault, and the number of loaded entries."""
    left = skip
    try:
        for number, entry_id, words in entries:
            if left:
                left -= 1
                continue
            try:
                sink.add(key, None if new_ids else entry_id, words, number)
            except ValueError as error:
                raise _BadLine(f"line {number}: {error}") from error
            bar.advance(0, 1)
        sink.finish()
        return sink.last_id(key) if sink.loaded else None
    except KeyboardInterrupt as error:
        raise Interrupted(f"at least {counted(sink.loaded, 'entry')} of it are loaded", error) from None
    except _BadLine as bad:
        sink.finish()
        raise Failure(f"{bad}; {_so_far(sink, skip)}") from bad
    except Failure as failure:  # an error of the connection
        raise Failure(f"{failure}; at least {_so_far(sink, skip)}") from failure
    except (StoreError, OSError, lmdb.Error):  # of the disk
        with failures_explained(f"load more than {counted(sink.loaded, 'entry')}, and some that may be behind them"):
            raise


def _so_far(sink: Sink, skipped: int) -> str:
    so_far = f"{counted(sink.loaded, 'entry')} before that {'is' if sink.loaded == 1 else 'are'} loaded"
    return f"{so_far}, behind the {skipped:,} that were left out" if skipped else so_far


# -- lines -------------------------------------------------------------------------------------------------------------


class _BadLine(Exception):
    """A line that is no entry, or one that the stream does not take."""


def _counted_lines(source: IO[bytes], bar: ProgressBar) -> Iterator[bytes]:
    lines = iter(partial(source.readline, _MAX_LINE_BYTES + 1), b"")
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_LINE_BYTES:  # its rest would be taken for the next line
            raise _BadLine(f"line {number}: it is longer than {_MAX_LINE_BYTES >> 20} MB")
        yield line
        bar.advance(len(line))


def _json_entries(lines: Iterator[bytes], id_field: str | None) -> Iterator[NumberedEntry]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry_id, words = decode_entry(line, id_field)
        except ValueError as error:
            raise _BadLine(f"line {number}: {error}") from error
        yield number, entry_id, words


def _csv_entries(lines: Iterator[bytes], id_field: str | None) -> Iterator[NumberedEntry]:
    csv.field_size_limit(_MAX_LINE_BYTES)
    rows = csv.reader(_texts(lines), strict=True)
    try:
        names = next(rows, None)
        if names is None:
            return
        if len(set(names)) != len(names) or "" in names:
            raise _BadLine("line 1: the names of the fields must differ, and none be empty")
        if id_field is not None and id_field not in names:
            raise _BadLine(f"line 1: there is no field {id_field}")
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise _BadLine(f"line {rows.line_num}: {len(row)} values for {len(names)} fields")
            try:
                entry_id, words = row_words(dict(zip(names, row, strict=True)), id_field)
            except ValueError as error:
                raise _BadLine(f"line {rows.line_num}: {error}") from error
            yield rows.line_num, entry_id, words
    except csv.Error as error:
        raise _BadLine(f"line {rows.line_num}: {error}") from error


def _texts(lines: Iterator[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _BadLine(f"line {number}: not UTF-8: {error}") from error


# -- the report --------------------------------------------------------------------------------------------------------


def _report(target: str, key: str, loaded: int, last_id: StreamID | None, seconds: float, *, as_json: bool) -> None:
    text = None if last_id is None else id_text(last_id).decode()
    if as_json:
        values = {"target": target, "key": key, "entries": loaded, "last_id": text, "seconds": round(seconds, 3)}
        click.echo(json.dumps(values, indent=2))
        return
    rate = loaded / max(seconds, 0.001)
    results().print(
        f"[green]loaded[/] {counted(loaded, 'entry')} to [bold]{escape(name_text(shown_key_bytes(key)))}[/] "
        f"in {seconds_text(seconds)}, {rate:,.0f}/s{'' if text is None else f', up to {text}'}"
    )
