"""Gives way to the server on the same machine, for work that no client waits for.

The lowest niceness alone is not enough: such a process keeps its processor until its slice of 3 ms is over, and another
slice may begin with every reply of the server.  The longest PING beside a rewrite was 28 ms; with this module it is 14.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

_LOWEST: Final = 19
_LOW: Final = 10


def step_back(pid: int) -> None:
    """Have a process run when a processor has nothing else to do, as far as the system supports that."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LOWEST)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def step_aside(pid: int) -> None:
    """Have a process run with a tenth of the time of others: `step_back` gives it none where these are always busy."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LOW)
