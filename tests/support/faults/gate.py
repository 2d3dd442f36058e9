"""A gate in front of processes that a server starts: none of them begins before the test lets it.

What happens "meanwhile" then happens meanwhile, however fast the process or slow the test.  Linux only.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.support.servers import Server
from tests.support.waiting import until


class Gate:
    """For processes that run `module`; servers must be started with `place` in PYTHONPATH."""

    def __init__(self, place: Path, module: str) -> None:
        self._fifo = place / "gate"
        os.mkfifo(self._fifo)
        # run by every Python before anything else
        (place / "sitecustomize.py").write_text(
            f"import sys\nif {module!r} in sys.orig_argv:\n    open({str(self._fifo)!r}).read()\n"
        )

    def open(self) -> None:
        """Let the one that waits, or the next one, begin."""
        until(self._has_let_one_pass, "a process at the gate")

    def _has_let_one_pass(self) -> bool:
        try:
            os.close(os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody waits
                raise
            return False
        return True


def child_of(server: Server) -> int:
    """Wait for a process that the server has started; -> its number."""
    path = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    until(lambda: bool(path.read_text()), "a process that the server has started")
    return int(path.read_text().split()[0])
