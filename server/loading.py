"""How far a start has come with the log: INFO, the metrics and the health check show it, and a line every few seconds.

A long start must not look like a hang.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from riverbed.store.options import Clock

log = logging.getLogger("riverbed")

_EVERY_S: Final = 2.0


class Loading:
    """The progress of one start: `loaded_bytes` of `total_bytes` of the log, in the present `step`."""

    def __init__(self, clock: Clock) -> None:
        self.begun_s = int(clock.time())  # Unix time
        self.step = "opening"
        self.loaded_bytes = 0
        self.total_bytes = 0
        self._monotonic = clock.monotonic
        self._since_s = clock.monotonic()
        self._next_line_s = self._since_s + _EVERY_S

    def note(self, step: str, done: int, total: int) -> None:
        """The step is at byte `done` of `total`.  Log a line when the last one is two seconds old."""
        if step != self.step:
            self.step, self._since_s = step, self._monotonic()
        self.loaded_bytes, self.total_bytes = done, total
        if self._monotonic() >= self._next_line_s:
            self._next_line_s = self._monotonic() + _EVERY_S
            log.info("loading, %s: %d %% of %.1f MB", step, self.percent, total / 1e6)

    @property
    def percent(self) -> float:
        """The loaded part of the log, from 0 to 100."""
        return min(100 * self.loaded_bytes / self.total_bytes, 100.0) if self.total_bytes else 0.0

    @property
    def eta_s(self) -> int:
        """About how many seconds the step still takes; 1 when there is nothing yet to judge by, as Redis has it."""
        seconds = self._monotonic() - self._since_s
        if seconds < 1 or not self.loaded_bytes:
            return 1
        return int(seconds * max(self.total_bytes - self.loaded_bytes, 0) / self.loaded_bytes)
