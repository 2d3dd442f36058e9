"""What is known of repairs: of the one under way, and of the last."""

from __future__ import annotations


class RepairStatus:
    """For INFO and the metrics.  `done` of `total` are bytes of the log, or rows, as `step` says."""

    def __init__(self) -> None:
        self.in_progress = False
        self.step = ""
        self.done = 0
        self.total = 0
        self.repairs = 0  # that succeeded
        self.last_ok = True
        self.last_error = ""
        self.last_seconds = -1.0

    def begin(self) -> None:
        self.in_progress = True
        self.step, self.done, self.total = "starting", 0, 0

    def note(self, step: str, done: int, total: int) -> None:
        """Note how far the repair under way is."""
        self.step, self.done, self.total = step, done, total

    def end(self, seconds: float, error: str = "") -> None:
        """Note the end; with `error` nothing was repaired."""
        self.in_progress = False
        self.last_ok, self.last_error = not error, error
        if not error:
            self.repairs += 1
            self.last_seconds = seconds
