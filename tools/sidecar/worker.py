"""The process that writes the columns of a snapshot for the server: `python -m riverbed.tools.sidecar.worker SNAPSHOT`.

The server asks for it after a snapshot, where `snapshot-columns` says so.  Everything else has priority for the
processor.  Its answers:

    {"step": "columns", "done": 65536, "total": 400000}        a few times a second: entries
    {"columns": 10485760}                                      the end: the bytes of the files

It leaves nothing half-made behind.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Final

from riverbed.server.background.child import Reports, Server, work_for_server
from riverbed.store.disk.priority import step_back
from riverbed.store.errors import StoreError
from riverbed.store.snapshot.reader import open_snapshot

MODULE: Final = "riverbed.tools.sidecar.worker"


def work(server: Server) -> None:
    """Write the columns of one snapshot."""
    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--leave-bytes", type=int, default=0)
    asked = parser.parse_args()
    step_back()
    try:
        sidecar = import_module("riverbed.tools.sidecar.sidecar")
    except ModuleNotFoundError as error:
        raise StoreError(f"{error.name} is not installed: pip install 'riverbed[sql]'") from error
    snapshot = open_snapshot(asked.snapshot)
    path = sidecar.write_columns(snapshot, leave_bytes=asked.leave_bytes, steps=Reports(server).step)
    server.say(columns=sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))


if __name__ == "__main__":
    work_for_server(MODULE, work)
