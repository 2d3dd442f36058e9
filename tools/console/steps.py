"""A bar for each step of long work in turn, where the store tells how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from riverbed.tools.console.console import ProgressBar


class StepProgress:
    """`show` is what the store calls; `seconds` is the time of all steps.

    `items` says which steps count something else than bytes, and what.
    """

    def __init__(self, items: Mapping[str, str]) -> None:
        self.seconds = 0.0
        self._items = items
        self._step = ""
        self._meter: ProgressBar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the bar away until the next `show`, so that something can be printed or asked; no time is counted."""
        if self._meter is not None:
            self.seconds += self._meter.seconds
            self._meter.__exit__(None, None, None)
            self._meter = None

    def show(self, step: str, done: int, total: int) -> None:
        """`done` of `total` bytes (0: of how many is not known), or of what `items` says, are done of `step`."""
        items = self._items.get(step)
        if self._meter is None or step != self._step:
            self.pause()
            self._step = step
            if items is None:
                self._meter = ProgressBar(step, total or None, items="")
            else:
                self._meter = ProgressBar(step, items=items, total_items=total)
            self._meter.__enter__()
        if items is None:
            self._meter.advance(done - self._meter.done_bytes)
        else:
            self._meter.advance(0, done - self._meter.done_items)
