"""`riverbed import HOST:PORT DIR`: the streams of a live Redis, with their groups, in a new data directory."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from rich.markup import escape

from riverbed.tools.console.console import (
    FOUND,
    Failure,
    ProgressBar,
    Seconds,
    counted,
    failures_explained,
    print_facts,
    results,
    seconds_text,
    size_text,
)
from riverbed.tools.console.keytext import short_text, shown
from riverbed.tools.live.redisclient import Address, RedisClient, ReplyError
from riverbed.tools.live.serverstat import databases, scan
from riverbed.tools.live.target import server_address
from riverbed.tools.live.tls import TlsOptions, tls_options
from riverbed.tools.loading.copystream import copy_stream
from riverbed.tools.loading.sinks import DirectorySink, ServerSink, Sink
from riverbed.tools.offline.newdirectory import new_directory, refuse_existing, tell_left_over

_SHOWN_KEYS: Final = 5


@dataclass(slots=True)
class Imported:
    """The report: what was copied, and what was not: keys of other types by type, and streams by key."""

    streams: int = 0
    entries: int = 0
    groups: int = 0
    pending: int = 0
    left: Counter[str] = field(default_factory=Counter)
    left_keys: dict[str, list[str]] = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)
    changing: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    unmarked: list[str] = field(default_factory=list)
    is_one_of_cluster: bool = False

    @property
    def is_whole(self) -> bool:
        named = self.left or self.moved or self.changing or self.existing or self.unmarked
        return not (named or self.is_one_of_cluster)


@click.command("import")
@click.argument("source", metavar="HOST:PORT")
@click.argument("target", metavar="DIR|HOST:PORT")
@click.option(
    "--timeout",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Give up on a server silent for S seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@tls_options
@click.pass_context
def import_(context: click.Context, source: str, target: str, timeout: float, as_json: bool, tls: TlsOptions) -> None:
    """Copy all streams of a server into the new data directory DIR.

    HOST:PORT is a server, Riverbed or Redis; with a user or a database it is redis://[user@]host[:port][/database],
    or rediss:// for TLS; without a database, all are copied. The command `riverbed stat --help` says where a password
    comes from. Two servers with different ones have them in their URLs: redis://user:password@host.

    Groups, consumers, pending entries (also of deleted entries), counters and deadlines come along. Keys of other
    types are left, and counted. Which idempotent ids its producers have used is a thing that no command of a Redis
    shows: streams with such records are copied without them, and named. DIR must not exist, or be empty; it appears
    when it is complete. A running server may take its place: streams whose keys it has already are left alone
    then. There each stream appears under its key when it is complete; a killed command leaves a key such as
    orders.partial-0123abcd, to be deleted.

    The server may be in use meanwhile. Each stream is copied as it is when its turn comes; one that changes under the
    copy, other than by appends, is copied up to three times (once if it is long), and named if it kept changing. Of a
    cluster, each node is copied by itself.

    \b
    Examples
      riverbed import redis://redis1 /srv/riverbed
      riverbed import rediss://:secret@redis1:6380/3 /srv/riverbed --cacert ca.pem
      riverbed import redis1:6379 localhost:6379

    \b
    Exit status    0  everything was copied
                   1  it was, except for what the report names
                   2  it was not
                 130  it was interrupted
    """
    with failures_explained(f"import from {source}"), contextlib.ExitStack() as held:
        from_server = server_address(source, tls, other=target)
        if from_server is None:
            raise Failure(f"{source} is not a server: expected HOST:PORT or redis://...")
        to_server = server_address(target, tls, other=source)
        if to_server is None:
            refuse_existing(Path(target))
        elif to_server.database is not None:
            raise Failure(f"{to_server} is to take no database: each stream goes to that of the number it has now")
        client = held.enter_context(RedisClient(from_server, timeout))
        other = None if to_server is None else held.enter_context(RedisClient(to_server, timeout))
        with ProgressBar("importing") as bar:
            if other is not None:
                imported = _import(client, ServerSink(other), bar)
            else:
                with new_directory(Path(target)) as partial, contextlib.closing(DirectorySink(partial)) as sink:
                    imported = _import(client, sink, bar)
            seconds = bar.seconds
    shown = str(to_server or target)
    if as_json:
        click.echo(json.dumps(_as_json(from_server, shown, imported, client.bytes_received, seconds), indent=2))
    else:
        _print_report(from_server, shown, imported, client.bytes_received, seconds)
    if to_server is None:
        tell_left_over(Path(target))
    if not imported.is_whole:
        context.exit(FOUND)


def _import(client: RedisClient, sink: Sink, bar: ProgressBar) -> Imported:
    imported = Imported()
    try:
        imported.is_one_of_cluster = b"\ncluster_enabled:1" in client.call("INFO", "cluster")
        for database, count in databases(client, client.call("INFO", "keyspace")).items():
            client.call("SELECT", database)
            selected = False
            for key in _streams(client, database, count, imported):
                if not selected:
                    sink.select(database)
                    selected = True
                _import_stream(client, sink, _name(database, key), key, imported, bar)
        sink.finish()
    except ReplyError as error:
        raise Failure(f"{client.address}: {error}") from error
    return imported


def _streams(client: RedisClient, database: int, count: int, imported: Imported) -> Iterator[bytes]:
    """The keys of streams, each once; keys of other types are counted on the way."""
    for keys in scan(client, count):
        kinds = [kind.decode(errors="replace") for kind in client.call_all([("TYPE", key) for key in keys])]
        for key, kind in zip(keys, kinds, strict=True):
            if kind == "stream":
                yield key
            elif kind != "none":
                imported.left[kind] += 1
                examples = imported.left_keys.setdefault(kind, [])
                if len(examples) < _SHOWN_KEYS:
                    examples.append(_name(database, key))


def _import_stream(
    client: RedisClient, sink: Sink, name: str, key: bytes, imported: Imported, bar: ProgressBar
) -> None:
    if sink.has(key):
        imported.existing.append(name)
        return
    bar.describe(f"importing {name}"[:32])
    building = sink.begin(key)
    try:
        copied = copy_stream(client, sink, key, building, bar)
        if copied is None:
            return
        if copied.is_left:
            imported.changing.append(name)
            return
        if not sink.complete(building, key, may_expire=copied.may_expire):
            imported.existing.append(name)
            return
    except BaseException:
        sink.drop(building)
        raise
    imported.streams += 1
    imported.entries += copied.entries
    imported.groups += copied.groups
    imported.pending += copied.pending
    if copied.moved:
        imported.moved.append(name)
    if copied.unmarked:
        imported.unmarked.append(name)


def _name(database: int, key: bytes) -> str:
    text = short_text(key)
    return f"{database}:{text}" if database else text


# -- the report --------------------------------------------------------------------------------------------------------


def _print_report(source: Address, target: str, imported: Imported, byte_count: int, seconds: float) -> None:
    console = results()
    console.print(f"[green]copied[/] {escape(str(source))} [green]to[/] [bold]{escape(target)}[/]")
    rate = imported.entries / max(seconds, 0.001)
    lines = {
        "streams": f"{imported.streams:,}",
        "entries": f"{imported.entries:,} in {seconds_text(seconds)}, {rate:,.0f}/s, {size_text(byte_count)}",
        "groups": f"{imported.groups:,}, {counted(imported.pending, 'entry')} pending",
    }
    print_facts(console, lines)
    for kind, count in imported.left.most_common():
        keys = imported.left_keys[kind]
        more = ", ..." if count > len(keys) else ""
        text = f"{counted(count, 'key')} of type {shown(kind)}"
        console.print(f"[yellow]left:[/] {escape(text)}  [dim]{escape(', '.join(keys))}{more}[/]")
    for name in imported.existing:
        console.print(f"[yellow]left:[/] {escape(name)}, which {escape(target)} has already")
    for name in imported.changing:
        console.print(f"[yellow]left:[/] {escape(name)}, whose groups were deleted while it was copied, each time")
    for name in imported.moved:
        console.print(f"[yellow]changed while it was copied:[/] {escape(name)}")
    for name in imported.unmarked:
        console.print(f"[yellow]without its producers' idempotence records, which no command shows:[/] {escape(name)}")
    if imported.is_one_of_cluster:
        console.print(f"[yellow]left:[/] what other nodes have: {escape(str(source))} is one of a cluster")


def _as_json(source: Address, target: str, imported: Imported, byte_count: int, seconds: float) -> dict[str, Any]:
    return {
        "source": str(source),
        "target": target,
        "seconds": round(seconds, 3),
        "bytes": byte_count,
        "streams": imported.streams,
        "entries": imported.entries,
        "groups": imported.groups,
        "pending": imported.pending,
        "left": dict(imported.left.most_common()),
        "left_keys": imported.left_keys,
        "existing": imported.existing,
        "moved": imported.moved,
        "changing": imported.changing,
        "one_of_cluster": imported.is_one_of_cluster,
        "unmarked": imported.unmarked,
    }
