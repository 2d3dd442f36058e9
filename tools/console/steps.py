"""A progress bar for each step of long work in turn; the store reports the progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from riverbed.tools.console.console import ProgressBar


class StepProgress:
    """Shows a bar for the current step.  The store calls `show`; `seconds` is the time of all steps.

    `items` maps each step that does not count bytes to the name of what it counts.
    """

    def __init__(self, items: Mapping[str, str]) -> None:
        self.seconds = 0.0
        self._items = items
        self._step = ""
        self._bar: ProgressBar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the bar away until the next `show`, for printing or asking; `seconds` does not count this time."""
        if self._bar is not None:
            self.seconds += self._bar.seconds
            self._bar.__exit__(None, None, None)
            self._bar = None

    def show(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of `step` are done (0: total not known), or of what `items` names."""
        items = self._items.get(step)
        if self._bar is None or step != self._step:
            self.pause()
            self._step = step
            if items is None:
                self._bar = ProgressBar(step, total or None, items="")
            else:
                self._bar = ProgressBar(step, items=items, total_items=total)
            self._bar.__enter__()
        if items is None:
            self._bar.advance(done - self._bar.done_bytes)
        else:
            self._bar.advance(0, done - self._bar.done_items)
