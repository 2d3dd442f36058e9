"""`riverbed compare A B`: name the streams that two stores have differently."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.markup import escape

from riverbed.server.glob import Glob
from riverbed.store.check.comparison import Comparison, Difference
from riverbed.store.errors import CorruptionError
from riverbed.store.format.meta import read_position
from riverbed.store.format.rows import DECODE_ERRORS
from riverbed.store.format.text import key_text
from riverbed.store.tables.reader import TableReader
from riverbed.tools.console.console import FOUND, Failure, counted, failures_explained, notes, results
from riverbed.tools.console.keytext import key_bytes
from riverbed.tools.console.steps import StepProgress
from riverbed.tools.offline.storestat import tables_at_rest

_COMPARING: Final = "comparing"


class _Side(NamedTuple):
    """A store as it was at one moment."""

    path: Path
    reader: TableReader
    now_ms: int
    offset: int  # of replication


@click.command()
@click.argument("a", type=click.Path(path_type=Path), metavar="A")
@click.argument("b", type=click.Path(path_type=Path), metavar="B")
@click.option("--match", "pattern", metavar="PATTERN", help="Only keys like this, as in KEYS: orders:*")
@click.option("--ignore-times", is_flag=True, help="Leave out when consumers were seen and given something.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, metavar="N", help="Name N streams.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
def compare(a: Path, b: Path, pattern: str | None, ignore_times: bool, limit: int, as_json: bool) -> None:
    """Compare two stores, and name the streams that differ.

    Compared are entries, counters, groups, what is pending, idempotence records and deadlines. A and B are snapshots,
    or data directories, seen as their last checkpoint left them: of a store and of what a replay of its log made, of a
    primary and its replica, of before and after an upgrade. Each stream is compared as the commands that make it
    again, up to the first that differs, which is shown of both. How a store keeps its rows is not compared, nor are
    idempotence records that have expired.

    \b
    Examples
      riverbed compare data/snapshots/20261121T120000Z-517 restored
      riverbed compare /srv/primary /srv/replica --json

    Exit status 0: equal, 1: different, 2: could not be compared.
    """
    matches = None if pattern is None else Glob(key_bytes(pattern)).matches
    first: list[Difference] = []
    count = 0
    with failures_explained(f"compare {a} with {b}"), contextlib.ExitStack() as held:
        if a.exists() and b.exists() and a.samefile(b):
            raise Failure(f"{a} and {b} are the same directory")
        sides = held.enter_context(_opened(a)), held.enter_context(_opened(b))
        steps = held.enter_context(StepProgress({_COMPARING: "entries"}))
        readers = [side.reader for side in sides]
        total = max(reader.count("entries") for reader in readers)
        now_ms = max(side.now_ms for side in sides)
        compared = Comparison(*readers, now_ms=now_ms, has_times=not ignore_times, matches=matches)
        try:
            for difference in compared.differences():
                steps.show(_COMPARING, min(compared.entries, total), total)
                if difference is not None:
                    count += 1
                    first += [difference] if count <= limit else []
        except DECODE_ERRORS as error:
            raise CorruptionError(str(a), None, f"or {b}: a row does not decode: {error!r}") from error
    if as_json:
        click.echo(json.dumps(_as_json(sides, compared, count, first), indent=2))
    else:
        _print(sides, compared, count, first)
    if count:
        raise SystemExit(FOUND)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Side]:
    """Raises Failure, StoreError, lmdb.Error, OSError."""
    with tables_at_rest(path) as (tables, now_ms), tables.env.begin() as txn:
        reader = TableReader(tables, txn)
        position = read_position(reader.meta_row)
        yield _Side(path, reader, now_ms, 0 if position is None else position.place.offset)


def _print(sides: tuple[_Side, _Side], compared: Comparison, count: int, first: list[Difference]) -> None:
    console = results()
    for letter, side in zip("AB", sides, strict=True):
        console.print(f"{letter}  [bold]{escape(str(side.path))}[/], offset {side.offset}")
    if sides[0].offset != sides[1].offset:
        notes().print("[yellow]note:[/] they are of different offsets, so differences need not be faults")
    for difference in first:
        name = f"db {difference.db}, key {escape(key_text(difference.key))}"
        if difference.ours is None or difference.theirs is None:
            console.print(
                f"[green]+[/] {name}: only in B" if difference.ours is None else f"[red]-[/] {name}: only in A"
            )
            continue
        group = "" if difference.group is None else f", group {escape(key_text(difference.group))}"
        console.print(f"[yellow]~[/] {name}{group}")
        for letter, shown in zip("AB", difference.shown(), strict=True):
            console.print(f"    {letter}  {escape(shown or '')}")
    if count > len(first):
        console.print(f"[dim]and {count - len(first):,} more[/]")
    looked_at = f"{counted(compared.streams, 'stream')}, {counted(compared.entries, 'equal entry')}"
    console.print(f"{looked_at}: [red]{count:,} different[/]" if count else f"[green]{looked_at}: equal[/]")


def _as_json(sides: tuple[_Side, _Side], compared: Comparison, count: int, first: list[Difference]) -> dict[str, Any]:
    return {
        **{letter: {"path": str(side.path), "offset": side.offset} for letter, side in zip("ab", sides, strict=True)},
        "equal": not count,
        "streams": compared.streams,
        "different": count,
        "first": [
            {
                "db": difference.db,
                "key": key_text(difference.key),
                "group": None if difference.group is None else key_text(difference.group),
                "only": "b" if difference.ours is None else "a" if difference.theirs is None else None,
                **dict(zip("ab", difference.shown(), strict=True)),
            }
            for difference in first
        ],
    }
