from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import ROOT


@pytest.mark.parametrize(
    ("number", "status", "out"), [(signal.SIGHUP, 7, "goes on\n"), (signal.SIGTERM, 0, ""), (signal.SIGINT, 0, "")]
)
def test_a_signal_during_the_imports_does_what_it_does_later(
    tmp_path: Path, number: signal.Signals, status: int, out: str
) -> None:
    (tmp_path / "lmdb.py").write_text(
        f"import os\nos.kill(os.getpid(), {number:d})\nprint('goes on')\nraise SystemExit(7)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, "-m", "riverbed.server.entry", "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, "")


def test_the_executable_runs_the_server() -> None:
    command = [sys.executable, "-m", "riverbed.server.entry", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("riverbed-server ")
