"""Logs how far a start has come with the log, every few seconds: a long one must not look like a hang."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

log = logging.getLogger("riverbed")

_EVERY_S: Final = 2.0


class LoadingLog:
    """The progress of one start."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._next_s = monotonic() + _EVERY_S

    def note(self, step: str, done: int, total: int) -> None:
        """Log a line when the last one is two seconds old; `done` and `total` are bytes of the log."""
        now_s = self._monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            percent = 100 * done // total if total else 100
            log.info("loading, %s: %d %% of %.1f MB", step, min(percent, 100), total / 1e6)
