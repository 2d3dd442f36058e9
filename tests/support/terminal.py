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


def on_terminal(*words: object, typed: bytes = b"", prompt: bytes = b"", kind: str = "xterm") -> tuple[int, str]:
    """-> (exit status, everything that was shown) of a subcommand, without colours and movements.

    `typed` is typed at once, or when `prompt` is shown: a question for a password throws away what was typed before.
    """
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "riverbed.tools.cli", *map(str, words)]
    environment = os.environ | {"TERM": kind, "COLUMNS": "80", "NO_COLOR": "1"}
    # A session of its own: getpass would ask at the terminal of the tests.
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    )
    os.close(its)
    screen = b""
    if not prompt:
        os.write(ours, typed)
    with contextlib.suppress(OSError):  # how a terminal says that nobody is there any more
        while data := os.read(ours, 4096):
            if prompt and prompt in screen + data and prompt not in screen:
                os.write(ours, typed)
            screen += data
    os.close(ours)
    return process.wait(), _CONTROL.sub("", screen.decode())
