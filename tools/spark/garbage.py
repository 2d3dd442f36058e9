"""Garbage collection in the processes that Spark keeps for the next task.

Spark collects garbage after each task of a worker or a planner.  Each collection walks through every loaded module,
which takes 25 ms; the task may take less.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Exclude everything that is loaded by now from garbage collection, once a process."""
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True
