"""What `riverbed snapshot` and `riverbed restore` say of the snapshot that they have made, or made a directory of."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from riverbed.store.snapshot.reader import Snapshot
from riverbed.tools.console.console import print_facts, results, seconds_text, size_text


def print_made(made: Path, snapshot: Snapshot, seconds: float, work: str) -> None:
    """Print that `made` has what `snapshot` has; `work` is what was done with its bytes in these seconds."""
    console = results()
    manifest = snapshot.manifest
    rate = manifest.entries / max(seconds, 0.001)
    lines = {
        "up to": f"replication offset {manifest.offset}",
        "streams": f"{manifest.streams:,}",
        "entries": f"{manifest.entries:,}, {rate:,.0f}/s",
        work: f"{size_text(snapshot.size_bytes)} in {seconds_text(seconds)}",
    }
    console.print(f"[green]made[/] [bold]{escape(str(made))}[/]")
    print_facts(console, lines)
