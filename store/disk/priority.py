"""Work beside a server on the same machine that no client waits for.

The lowest niceness alone is not enough: a process of that kind keeps its processor until its slice of 3 ms is over,
and with every reply of the server one more may have begun; the longest PING beside a rewrite was 28 ms, and is 14.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

_LOWEST: Final = 19


def step_back() -> None:
    """From now on this process runs when a processor has nothing else to do, as far as the system knows how to."""
    with contextlib.suppress(OSError):
        os.nice(_LOWEST)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
