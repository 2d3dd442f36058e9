"""How far long work has come, for a person who waits for it."""

from __future__ import annotations

from collections.abc import Callable

# Called with what is being done, how much of it is done, and of how much: 0 when that is not known.
Progress = Callable[[str, int, int], None]


def ignore(*_: object) -> None:
    """For callers that want no news."""


def counter(progress: Progress, step: str, total: int) -> Callable[[int], None]:
    """A function that is called with the size of each part of `step`, and reports their sum."""
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        progress(step, min(done, total), total)

    return add
