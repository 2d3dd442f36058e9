"""The process that takes a snapshot with columns for the server: `python -m riverbed.tools.sidecar.worker DIR ...`.

It is asked as `server/background/snapshot_worker.py` is, and answers as that does, but for the end:

    {..., "columns": 10485760, "failed_columns": null}        the bytes of the files, or why there are none

A process of its own writes the columns meanwhile, see `beside.py`.  Everything else has priority for the processor.
Where the columns fail, the snapshot is whole without them.  It leaves nothing half-made behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from riverbed.server.background.child import Reports, Server, work_for_server
from riverbed.server.background.snapshot_worker import asked_for, take
from riverbed.store.layout import COLUMNS_DIRECTORY
from riverbed.tools.sidecar.beside import ColumnsBeside

MODULE: Final = "riverbed.tools.sidecar.worker"


def work(server: Server) -> None:
    """Take one snapshot, and write its columns."""
    asked = asked_for(MODULE)
    steps = Reports(server).step
    with ColumnsBeside(steps, leave_bytes=asked.leave_bytes) as columns:
        made, not_deleted = take(asked, steps, columns.beside)
    files = (Path(made["path"]) / COLUMNS_DIRECTORY).rglob("*")
    size = sum(file.stat().st_size for file in files if file.is_file())
    server.say(made=made, not_deleted=not_deleted, columns=size, failed_columns=columns.failure)


if __name__ == "__main__":
    work_for_server(MODULE, work)
