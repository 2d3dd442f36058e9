"""`riverbed restore SNAPSHOT DIR`: a data directory from a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import click

from riverbed.store.check.pages import require_sound_pages
from riverbed.store.check.state import CHECKING_PAGES
from riverbed.store.layout import DATA_NAME
from riverbed.store.snapshot.reader import open_snapshot
from riverbed.store.snapshot.restore import WRITING_LOG, restore_snapshot
from riverbed.store.snapshot.writer import VERIFYING
from riverbed.tools.console.console import failures_explained
from riverbed.tools.console.snapshot_report import print_made
from riverbed.tools.console.steps import StepProgress
from riverbed.tools.offline.newdirectory import new_directory, refuse_existing, tell_left_over


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="SNAPSHOT")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
def restore(source: Path, directory: Path, as_json: bool) -> None:
    """Make the data directory DIR of a snapshot.

    Every byte and every row of the tables in SNAPSHOT is compared with its checksum on the way. DIR must not exist, or
    be empty; it appears when it is complete, with tables and log, and riverbed-server starts on it. Keys keep their
    deadlines: those that have passed by now expire when it does.

    \b
    Examples
      riverbed restore /srv/riverbed/snapshots/before-upgrade /srv/riverbed-old
      riverbed restore /backup/20261121T120858Z-8192 /srv/replica
      riverbed-server --dir /srv/replica --replicaof primary 6379

    The second server of these is sent only what has happened since the snapshot, if the primary's log still has it.

    Exit status 0: made, 2: not made, 130: interrupted; nothing is left of it then.
    """
    with failures_explained(f"restore {source}"):
        refuse_existing(directory)
        snapshot = open_snapshot(source)
        with StepProgress({VERIFYING: "rows", WRITING_LOG: "entries"}) as steps, new_directory(directory) as partial:
            require_sound_pages(snapshot.path / DATA_NAME, lambda: steps.show(CHECKING_PAGES, 0, 0))
            restore_snapshot(snapshot, partial, steps=steps.show)
    if as_json:
        manifest = snapshot.manifest
        report = {
            "path": str(directory.resolve()),
            "offset": manifest.offset,
            "time_ms": manifest.time_ms,
            "streams": manifest.streams,
            "entries": manifest.entries,
            "seconds": round(steps.seconds, 3),
        }
        click.echo(json.dumps(report, indent=2))
    else:
        print_made(directory, snapshot, steps.seconds, "read")
    tell_left_over(directory)
