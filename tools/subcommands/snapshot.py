"""`riverbed snapshot DIR [OUT]`: write a snapshot of a store, for backups and for Spark."""

from __future__ import annotations

import json
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
from rich.markup import escape

from riverbed.server.version import VERSION
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import is_directory, is_there
from riverbed.store.errors import StoreError
from riverbed.store.layout import COLUMNS_DIRECTORY, DATA_NAME, STATE_DIRECTORY
from riverbed.store.log.takeover import refuse_redis
from riverbed.store.snapshot.reader import Snapshot
from riverbed.store.snapshot.writer import (
    DEFAULT_SPLIT_EVERY,
    LISTING,
    VERIFYING,
    delete_old,
    nothing_beside,
    take_snapshot,
)
from riverbed.tools.console.console import Failure, counted, failures_explained, notes
from riverbed.tools.console.interrupts import interrupts_between_steps
from riverbed.tools.console.snapshot_report import print_made
from riverbed.tools.console.steps import StepProgress
from riverbed.tools.sidecar.beside import ColumnsBeside

_ITEMS: Final = {VERIFYING: "rows", LISTING: "streams", COLUMNS_DIRECTORY: "entries"}


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("out", type=click.Path(path_type=Path), metavar="[OUT]", required=False)
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Delete all but the newest N of OUT afterwards.")
@click.option(
    "--split-every",
    type=click.IntRange(min=1),
    default=DEFAULT_SPLIT_EVERY,
    show_default=True,
    metavar="N",
    help="Note where to cut longer streams into parts of N entries.",
)
@click.option("--columns", is_flag=True, help="Also write its entries as Parquet, for Spark, DuckDB and others.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
def snapshot(
    directory: Path, out: Path | None, keep: int | None, split_every: int, columns: bool, as_json: bool
) -> None:
    """Freeze the store in DIR as a snapshot.

    It holds what the last checkpoint holds: of a running server, which goes on meanwhile, all up to a fraction of a
    second ago; of a stopped one, everything. (One that was killed has more in its log; its next start reads that.)

    \b
    OUT is   a new name      the snapshot gets it
             a folder        the snapshot gets a name of time and offset in it
             left out        the same, in DIR/snapshots

    --keep counts and deletes only what has such a name, is whole, and is of the same store. With --keep, OUT is a
    folder, which is made when it is missing.

    --columns needs pip install 'riverbed[sql]'; docs/snapshot-columns.md has the format.

    \b
    Examples
      riverbed snapshot /srv/riverbed
      riverbed snapshot /srv/riverbed /backup/riverbed --keep 7
      riverbed snapshot /srv/riverbed /backup/before-upgrade

    Exit status 0: made, 2: not made, 130: interrupted; nothing is left of it then.
    """
    if columns:
        _require_libraries()
    with failures_explained(f"take a snapshot of {directory}"):
        if not is_there(directory / STATE_DIRECTORY / DATA_NAME) and is_directory(directory):
            refuse_redis(directory, OsFiles())
        if keep is not None and out is not None:
            out.mkdir(parents=True, exist_ok=True)
        with StepProgress(_ITEMS) as steps, interrupts_between_steps() as go_on:

            def step(name: str, done: int, total: int) -> None:
                go_on()
                steps.show(name, done, total)

            with ColumnsBeside(step) if columns else nullcontext() as writer:
                beside = nothing_beside if writer is None else writer.beside
                program = f"riverbed {VERSION}"
                made = take_snapshot(
                    directory, out, program=program, split_every=split_every, steps=step, beside=beside
                )
    if writer is not None and writer.failure is not None:
        with failures_explained(f"write columns of {made.path}, which is made"):
            raise StoreError(writer.failure)
    deleted: list[str] = []
    try:
        if keep is not None:
            deleted = delete_old(made, keep, directory)
    except OSError as error:
        raise Failure(f"{made.path} is made, but an old one could not be deleted: {error}") from error
    if as_json:
        click.echo(json.dumps(_as_json(made, steps.seconds, deleted), indent=2))
    else:
        print_made(made.path, made, steps.seconds, "size")
        if deleted:
            notes().print(f"deleted {counted(len(deleted), 'older snapshot')}: {escape(', '.join(deleted))}")


def _require_libraries() -> None:
    """Raise Failure without the libraries that columns need, before anything is made."""
    for name in ("numpy", "pyarrow"):
        if find_spec(name) is None:
            raise Failure(f"{name} is not installed, and --columns needs it: pip install 'riverbed[sql]'")


def _as_json(made: Snapshot, seconds: float, deleted: list[str]) -> dict[str, Any]:
    manifest = made.manifest
    return {
        "path": str(made.path.resolve()),
        "offset": manifest.offset,
        "time_ms": manifest.time_ms,
        "streams": manifest.streams,
        "entries": manifest.entries,
        "bytes": made.size_bytes,
        "seconds": round(seconds, 3),
        "deleted": deleted,
    }
