"""Python's garbage, in processes that Spark keeps for the next task.

Spark collects garbage after all that a worker or a planner has done, and each time walks through every module that was
ever loaded: 25 ms for a task that may take less.
"""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Once a process: what is loaded by now stays, and is not looked at any more."""
    global _settled
    if not _settled:
        gc.freeze()
        _settled = True
