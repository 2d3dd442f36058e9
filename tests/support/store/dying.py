"""Work that is stopped: `python -m tests.support.store.dying`, a process that forks one for each line it is told.

    {"work": ..., "directory": ..., "step": n}         stopped before the n-th thing done to the file system
    {"work": ..., "directory": ..., "delay_s": t}      SIGKILL after t seconds

The work is `compact`, with "maxlen": n or null, `repair`, or `snapshot`.  The answer is the exit status: 9 when it was
stopped, 0 when it had come to its end before.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import Check
from riverbed.store.disk.files import OsFiles
from riverbed.store.offline.compaction import Compaction
from riverbed.store.offline.repair import Repair
from riverbed.store.offline.retention import NO_RETENTION, Retention
from riverbed.store.snapshot.writer import take_snapshot
from tests.support.servers import ROOT

STOPPED = 9
_NEVER = -1
_CHANGING = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")


class Reaper:
    """Has work done, and stops it.  A context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.store.dying"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()

    def compact(self, directory: Path, *, maxlen: int | None = None, **when: float) -> bool:
        """-> whether it was stopped before its end."""
        return self._order({"work": "compact", "directory": str(directory), "maxlen": maxlen, **when})

    def repair(self, directory: Path, step: int) -> bool:
        """-> whether it was stopped before its end."""
        return self._order({"work": "repair", "directory": str(directory), "step": step})

    def snapshot(self, directory: Path, step: int) -> bool:
        """-> whether it was stopped before its end."""
        return self._order({"work": "snapshot", "directory": str(directory), "step": step})

    def _order(self, order: dict[str, Any]) -> bool:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, STOPPED), status
        return status == STOPPED


class _Countdown:
    """Ends this process without a word when so many steps were made."""

    def __init__(self, left: int) -> None:
        self._left = left

    def step(self, *_: object) -> None:
        if self._left == 0:
            os._exit(STOPPED)
        self._left -= 1

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        is_written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in _CHANGING or is_written:
            self.step()


class _Files(OsFiles):
    """Tells of what no audit event does."""

    def __init__(self, countdown: _Countdown) -> None:
        self._step = countdown.step

    def write_at(self, fd: int, data: bytes | memoryview, position: int, /) -> int:
        self._step()
        return os.pwrite(fd, data, position)

    def sync(self, fd: int, /) -> None:
        self._step()
        OsFiles.sync(fd)

    def sync_directory(self, path: Path, /) -> None:
        self._step()
        super().sync_directory(path)


def _work(order: dict[str, Any]) -> None:
    countdown = _Countdown(order.get("step", _NEVER))
    sys.addaudithook(countdown.audit)
    directory, files = Path(order["directory"]), _Files(countdown)
    match order["work"]:
        case "compact":
            _compact(directory, files, order["maxlen"])
        case "repair":
            _repair(directory, files)
        case "snapshot":
            take_snapshot(directory, program="test", files=files)


def _repair(directory: Path, files: OsFiles) -> None:
    with Repair(directory, Replayer().execute, now_ms=1, files=files) as repair:
        check = Check(directory, is_held=True)
        repair.mend(check, list(check.violations()))


def _compact(directory: Path, files: OsFiles, maxlen: int | None) -> None:
    keep = NO_RETENTION if maxlen is None else Retention(max_length=maxlen)
    with Compaction(directory, Replayer().execute, now_ms=1, keep=keep, files=files) as compaction:
        compaction.run()


def _run(order: dict[str, Any]) -> int:
    child = os.fork()
    if not child:
        status = 1
        try:
            _work(order)
            status = 0
        finally:
            os._exit(status)
    if "delay_s" in order:
        time.sleep(order["delay_s"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return STOPPED if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{_run(json.loads(line))}\n")
        sys.stdout.flush()
