"""The process that takes a snapshot for the server: `python -m riverbed.server.background.snapshot_worker DIR ...`.

It opens the tables read only, as any other reader, and everything else has priority for the processor.  Its answers:

    {"step": "copying", "done": 1048576, "total": 8388608}        a few times a second
    {"made": {"name": ..., "offset": ..., ...}, "not_deleted": null}      the end, and why older ones are still there

It leaves nothing half-made behind.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from riverbed.server.background.child import Reports, Server, work_for_server
from riverbed.server.background.worker_modules import SNAPSHOT
from riverbed.server.version import VERSION
from riverbed.store.layout import SNAPSHOTS_DIRECTORY
from riverbed.store.progress import Progress
from riverbed.store.snapshot.reader import Snapshot
from riverbed.store.snapshot.writer import Beside, delete_old, nothing_beside, take_snapshot


def work(server: Server) -> None:
    """Take one snapshot."""
    made, not_deleted = take(asked_for(SNAPSHOT), Reports(server).step)
    server.say(made=made, not_deleted=not_deleted)


def asked_for(module: str) -> argparse.Namespace:
    """What the server has written behind the name of the module."""
    parser = argparse.ArgumentParser(prog=module)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name")
    parser.add_argument("--keep", type=int)
    parser.add_argument("--leave-bytes", type=int, default=0)
    return parser.parse_args()


def take(
    asked: argparse.Namespace, steps: Progress, beside: Beside = nothing_beside
) -> tuple[dict[str, Any], str | None]:
    """Take the snapshot that was asked for -> what the server tells of it, and why older ones could not be deleted.

    Raises as `take_snapshot`.
    """
    folder = asked.directory / SNAPSHOTS_DIRECTORY
    made = take_snapshot(
        asked.directory,
        folder / asked.name if asked.name else None,
        program=f"riverbed {VERSION}",
        leave_bytes=asked.leave_bytes,
        steps=steps,
        beside=beside,
    )
    failure = None
    if asked.keep:
        try:
            delete_old(made, asked.keep, asked.directory)
        except OSError as error:
            failure = str(error)
    return _described(made), failure


def _described(made: Snapshot) -> dict[str, Any]:
    manifest = made.manifest
    return {
        "name": made.name,
        "path": str(made.path.resolve()),
        "offset": manifest.offset,
        "time": manifest.time_ms,
        "streams": manifest.streams,
        "entries": manifest.entries,
        "bytes": made.size_bytes,
    }


if __name__ == "__main__":
    work_for_server(SNAPSHOT, work)
