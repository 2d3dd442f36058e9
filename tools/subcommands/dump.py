"""`riverbed dump SOURCE [KEY]`: a stream as lines of JSON, or any file of ours as text."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from rich.markup import escape

from riverbed.store.errors import CorruptionError
from riverbed.store.ids import MAX_HALF, MAX_ID, MIN_ID, StreamID, make_id, parse_id
from riverbed.store.layout import DATA_NAME, MANIFEST_NAME, STATE_DIRECTORY, STREAMS_NAME
from riverbed.store.progress import Progress, ignore
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.tables.environment import TABLES
from riverbed.tools.console.console import FOUND, Failure, failures_explained, notes
from riverbed.tools.console.keytext import shown, shown_key_bytes
from riverbed.tools.console.steps import StepProgress
from riverbed.tools.live.redisclient import RedisClient, ReplyError
from riverbed.tools.live.target import server_address
from riverbed.tools.live.tls import TlsOptions, tls_options
from riverbed.tools.offline import streamread
from riverbed.tools.offline.moment import parse_moment
from riverbed.tools.offline.storestat import VERIFYING
from riverbed.tools.offline.streamread import Entry, server_entries, store_entries
from riverbed.tools.text import dumptables
from riverbed.tools.text.dumplog import log_lines, manifest_lines
from riverbed.tools.text.dumptables import table_lines
from riverbed.tools.text.entryjson import encode_entry

_TIMEOUT_S: Final = 30.0
_LINES_A_WRITE: Final = 500
_ITEMS: Final = {VERIFYING: "bytes", streamread.READING: "entries", dumptables.READING: "rows"}


def _id(context: click.Context, option: click.Parameter, text: str | None) -> StreamID | None:
    """An ID, or a time; as the end of a range, `5` includes all of millisecond 5."""
    if text is None:
        return None
    missing_seq = MAX_HALF if option.name == "end" else 0
    entry_id = parse_id(text.encode(), missing_seq=missing_seq)
    if entry_id is not None:
        return entry_id
    try:
        time_ms = parse_moment(text).time_ms
    except ValueError:
        time_ms = None
    if time_ms is None or time_ms > MAX_HALF:
        raise click.BadParameter(f"{text} is neither an ID nor a time such as 2026-11-21T14:30:00Z", context, option)
    return make_id(time_ms, missing_seq)


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("key", required=False, metavar="[KEY]")
@click.option("--db", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="The key's database.")
@click.option("--start", callback=_id, metavar="ID|TIME", help="From this entry on.")
@click.option("--end", callback=_id, metavar="ID|TIME", help="Up to this entry, included.")
@click.option(
    "--table",
    "tables",
    type=click.Choice(TABLES),
    multiple=True,
    metavar="NAME",
    help="Only this table of LMDB; several times for more.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N entries, rows or commands.")
@tls_options
@click.pass_context
def dump(
    context: click.Context,
    source: str,
    key: str | None,
    db: int,
    start: StreamID | None,
    end: StreamID | None,
    tables: tuple[str, ...],
    limit: int | None,
    tls: TlsOptions,
) -> None:
    """Print a stream, or what is in a file.

    With KEY, SOURCE is a data directory (seen as its last checkpoint left it), a snapshot, or the HOST:PORT of a
    server, Riverbed or Redis; each entry is a line of JSON, as `riverbed load` reads it. A KEY may be given as the
    tools show it: a\\x00b for a key with a zero byte, a\\\\b for one with a backslash.

    \b
    Without KEY, SOURCE is one of
      a file of a log, or appendonlydir    commands, and where each batch ends
      its manifest                         as it is, if it is sound
      DIR/state, data.mdb, a snapshot      rows of tables, a line of JSON each
      manifest.json, streams.jsonl         as they are, if they are sound

    \b
    Examples
      riverbed dump /srv/riverbed orders > orders.jsonl
      riverbed dump localhost:6379 orders --start 1795257000123 --limit 10
      riverbed dump /srv/riverbed orders --start 2026-11-21T14:30:00Z --limit 10
      riverbed dump /srv/riverbed/appendonlydir
      riverbed dump /srv/riverbed/state --table groups

    Exit status 0: all of it, 1: something in it is damaged, 2: nothing can be read, 130: interrupted.
    """
    limit = None if limit is None else min(limit, sys.maxsize)  # the most that itertools takes
    with failures_explained(f"dump {source}"), StepProgress(_ITEMS) as steps:
        show = ignore if sys.stdout is None or sys.stdout.isatty() else steps.show  # lines and a bar would mix
        if key is None:
            lines = _file_lines(Path(source), tables, limit, show)
        else:
            lines = _entry_lines(source, tls, db, shown_key_bytes(key), start or MIN_ID, end, limit, show)
        damaged = _print(lines)
    if damaged:
        context.exit(FOUND)


def _entry_lines(
    source: str,
    tls: TlsOptions,
    db: int,
    key: bytes,
    first: StreamID,
    last: StreamID | None,
    limit: int | None,
    show: Progress,
) -> Iterator[str]:
    last = MAX_ID if last is None else last

    def progress(step: str, done: int, total: int) -> None:
        show(step, done, total if limit is None else min(total, limit))

    address = server_address(source, tls)
    if address is None:
        yield from _as_json(store_entries(Path(source), db, key, first, last, progress), limit)
        return
    with RedisClient(address, _TIMEOUT_S) as client:
        try:
            yield from _as_json(server_entries(client, db, key, first, last, progress), limit)
        except ReplyError as error:
            raise Failure(f"{source} refuses: {error}") from error


def _as_json(entries: Iterator[Entry], limit: int | None) -> Iterator[str]:
    for entry_id, words in itertools.islice(entries, limit):
        yield encode_entry(entry_id, words)


def _file_lines(path: Path, tables: tuple[str, ...], limit: int | None, show: Progress) -> Iterator[str]:
    if path.name in (MANIFEST_NAME, STREAMS_NAME) and path.is_file():
        snapshot = open_snapshot(path.parent)
        if path.name == STREAMS_NAME:
            snapshot.check_streams()
        return _text_lines(path)
    if path.name.endswith(".manifest") and path.is_file():
        return manifest_lines(path)
    if path.name in (DATA_NAME, STATE_DIRECTORY) and path.exists():
        home = path.parent if path.name == DATA_NAME else path
        place = home if (home / MANIFEST_NAME).exists() else home.parent
        return table_lines(place, tables or TABLES, limit, show)
    if (path / MANIFEST_NAME).exists():
        return table_lines(path, tables or TABLES, limit, show)
    if (path / STATE_DIRECTORY).exists():
        raise Failure(f"{path} is a data directory: name a key, or {path / STATE_DIRECTORY}, or its log")
    if server_address(str(path)) is not None:
        raise Failure(f"{path} is a server: name a key")
    return log_lines(path, limit, show)


def _text_lines(path: Path) -> Iterator[str]:
    """The lines of a file, which may be a stranger's: its checksum shows no more than that it is whole."""
    with path.open(encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for line in file:
            yield shown(line.removesuffix("\n"))


def _print(lines: Iterator[str]) -> bool:
    """Print -> whether damage was found after the first line.  Raises CorruptionError when it was found before."""
    chunk: list[str] = []
    printed = False
    try:
        for line in lines:
            chunk.append(line)
            printed = True
            if len(chunk) == _LINES_A_WRITE:
                _write(chunk)
        _write(chunk)
    except CorruptionError as error:
        if not printed:
            raise
        _write(chunk)
        notes().print(f"[red]damaged:[/] {escape(shown(str(error)))}")
        return True
    return False


def _write(chunk: list[str]) -> None:
    if chunk:
        click.echo("\n".join(chunk).encode(errors="backslashreplace"))  # JSON is UTF-8 on any terminal
        chunk.clear()
