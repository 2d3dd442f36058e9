"""The process that takes a snapshot for the server: `python -m server.snapshotprocess DIR ...`.

It opens the tables read only, as any other reader, and stands behind everything else in line for the processor.  What
it has to say goes to standard output, an object of JSON a line:

    {"step": "copying", "done": 1048576, "total": 8388608}        a few times a second
    {"made": {"name": ..., "path": ..., "offset": ..., ...}}      the end, or
    {"failed": "why"}

It ends when the server does, of which the end of standard input tells it, and leaves nothing half-made behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from server.version import VERSION
from store.errors import StoreError
from store.freeze import delete_old, take_snapshot
from store.priority import step_back
from store.snapshot import SNAPSHOTS_DIRECTORY, Snapshot

_REPORT_S: Final = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Take one snapshot -> exit status, 0 when it was made."""
    parser = argparse.ArgumentParser(prog="server.snapshotprocess")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--name")
    parser.add_argument("--keep", type=int)
    parser.add_argument("--leave-bytes", type=int, default=0)
    asked = parser.parse_args(arguments)
    step_back()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends this
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = asked.directory / SNAPSHOTS_DIRECTORY
    try:
        made = take_snapshot(
            asked.directory,
            folder / asked.name if asked.name else None,
            program=f"riverbed {VERSION}",
            leave_bytes=asked.leave_bytes,
            steps=_Reports().step,
        )
        deleted = delete_old(made, asked.keep, asked.directory) if asked.keep else []
    except (StoreError, OSError) as error:
        _say({"failed": str(error)})
        return 1
    except KeyboardInterrupt:
        return 1
    _say({"made": _described(made), "deleted": deleted})
    return 0


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


class _Reports:
    """How far it has come, said now and then."""

    def __init__(self) -> None:
        self._said_s = 0.0

    def step(self, step: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= _REPORT_S:
            self._said_s = now_s
            _say({"step": step, "done": done, "total": total})


def _say(values: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    while os.read(0, 1):  # not by sys.stdin, whose lock Python wants when it ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
