"""`riverbed read SOURCE STREAM [--sql QUERY]`: the entries of a stream as columns, or what a query makes of them."""

from __future__ import annotations

import math
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final

import click

from riverbed.tools.console.console import Failure, Seconds, Size, failures_explained
from riverbed.tools.console.keytext import shown_key_bytes
from riverbed.tools.text.entryjson import json_line

_EXTRA: Final = ("pyarrow", "numpy")


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="SOURCE")
@click.argument("stream", metavar="STREAM")
@click.option("--sql", metavar="QUERY", help="Print the result of this query; the table has the stream's name.")
@click.option("--db", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Its database.")
@click.option("--start", metavar="ID", help="From this entry on.")
@click.option("--end", metavar="ID", help="Up to this entry, included.")
@click.option("--timeout", type=Seconds(), default=300, show_default=True, help="End the query after these seconds.")
@click.option(
    "--memory-limit", type=Size(), default="2gb", show_default=True, help="What the query may take besides the entries."
)
@click.option("--columns", metavar="NAME,...", help="Only these columns, as text or bytes.")
def read(
    source: Path,
    stream: str,
    sql: str | None,
    db: int,
    start: str | None,
    end: str | None,
    timeout: float,
    memory_limit: int,
    columns: str | None,
) -> None:
    """Print the entries of a stream as columns, or query them.

    SOURCE is a snapshot, or a data directory as its last checkpoint left it, whose server may run. Each row is a line
    of JSON. The columns are _ms, _seq, _id, one for each field, and _fields with all of them by name. DuckDB runs the
    query; it sees them as table STREAM, and as table entries, can read no file and writes none. The chosen entries must
    fit into memory.

    \b
    Examples
      riverbed read DIR orders --columns _id,user
      riverbed read DIR orders --sql "select distinct user from orders"

    Needs pip install 'riverbed[sql]', in a clone pip install '.[sql]'.

    Exit status 0: all of it, 2: not read, 130: interrupted.
    """
    try:
        arrow: Any = import_module("riverbed.tools.arrow")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        cure = "pip install 'riverbed[sql]', in a clone pip install '.[sql]'"
        raise Failure(f"{error.name} is not installed, and this needs it: {cure}") from None
    with failures_explained(f"read {source}"), arrow.open_store(source) as store:

        def chosen(known: Any) -> dict[str, Any]:
            names = known.names if columns is None else columns.split(",")
            for name in names:
                if name not in known.names:
                    raise Failure(f"there is no column {name}; there are {', '.join(known.names)}")
            return {name: known.field(name).type for name in names}

        where = {"columns": chosen, "start": start, "end": end, "db": db}
        if sql is None:
            for batch in store.reader(shown_key_bytes(stream), **where):
                _print(batch)
            return
        table = store.to_arrow(shown_key_bytes(stream), **where)
        for batch in arrow.run_sql(table, stream, sql, timeout_s=timeout, memory_bytes=memory_limit):
            _print(batch)


def _print(batch: Any) -> None:
    if len(set(batch.schema.names)) < batch.num_columns:
        batch = batch.rename_columns(_each_once(batch.schema.names))
    lines = [json_line(_plain(row)) for row in batch.to_pylist()]
    if lines:
        click.echo("\n".join(lines).encode(errors="backslashreplace"))


def _each_once(names: list[str]) -> list[str]:
    """Names of the columns of a query as DuckDB itself makes them differ: `a`, `a_1`."""
    given: list[str] = []
    for name in names:
        unused = (f"{name}_{number}" for number in count(1))
        given.append(name if name not in given else next(each for each in unused if each not in (*given, *names)))
    return given


def _plain(value: Any) -> Any:
    """A value of Arrow as JSON has it; bytes that are not UTF-8 are written as \\xff, numbers that are none as text."""
    match value:
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case [tuple(), *_]:  # a map
            return {str(_plain(name)): _plain(each) for name, each in value}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return value.decode(errors="backslashreplace")
        case float() if not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case None | bool() | int() | float() | str():
            return value
    return str(value)
