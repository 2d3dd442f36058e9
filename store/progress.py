"""Reports the progress of long work to a user."""

from __future__ import annotations

from collections.abc import Callable

# Called with the name of the step, the amount done and the total amount, which is 0 when it is not known.
Progress = Callable[[str, int, int], None]


def ignore(*_: object) -> None:
    """Do nothing: the callback of callers that need no reports."""


def counter(progress: Progress, step: str, total: int) -> Callable[[int], None]:
    """A function to call with the size of each part of `step`; it reports the sum."""
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        progress(step, min(done, total), total)

    return add
