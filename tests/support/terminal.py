"""`riverbed` as it looks to who sits at a terminal of 80 columns."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys

from tests.support.servers import ROOT

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(*words: object, typed: bytes = b"") -> tuple[int, str]:
    """-> (exit status, everything that was shown) of a subcommand, without colours and movements."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "riverbed.tools.cli", *map(str, words)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    process = subprocess.Popen(command, cwd=ROOT, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    os.write(ours, typed)
    screen = b""
    with contextlib.suppress(OSError):  # how a terminal says that nobody is there any more
        while data := os.read(ours, 4096):
            screen += data
    os.close(ours)
    return process.wait(), _CONTROL.sub("", screen.decode())
