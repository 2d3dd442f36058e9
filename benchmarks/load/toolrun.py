"""One run of a `riverbed` subcommand as a process of its own: how long it took, and what of the machine."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.servers import ROOT

_LOOK_S: Final = 0.02


@dataclass(frozen=True)
class ToolRun:
    """`peak_bytes` is memory of the process's own, without file pages; `report` what it printed with --json."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    report: dict[str, Any]


def run_tool(*arguments: object) -> ToolRun:
    """Run `riverbed ARGUMENTS --json`, the start of Python included.  AssertionError unless its status is 0."""
    command = [sys.executable, "-m", "riverbed.tools.cli", *map(str, arguments), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _private_bytes(process.pid))
        time.sleep(_LOOK_S)
    seconds = time.perf_counter() - begun
    output, _ = process.communicate()
    if process.returncode:
        raise AssertionError(f"{' '.join(command)} ended with status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ToolRun(seconds, busy, peak, json.loads(output))


def _private_bytes(pid: int) -> int:
    """RssAnon, 0 when the process is gone.  Linux only."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
