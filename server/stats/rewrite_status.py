"""The state of rewrites of the log, for INFO and the growth rule: the one under way, and the last one.

Times are those of the executor's monotonic clock, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RewriteStatus:
    """`entries` and `size` are what the rewrite under way, or else the last one, has written."""

    scheduled: bool = False
    is_held: bool = False  # none may begin now
    begun_s: float | None = None
    last_seconds: float | None = None
    last_ok: bool = True
    started: int = 0
    failures: int = 0  # in a row
    entries: int = 0
    total: int = 0  # about how many there will be
    size: int = 0
    grown_from: int = 0  # the log's size after the last rewrite; 0 for that of its base

    @property
    def in_progress(self) -> bool:
        return self.begun_s is not None

    def begin(self, now_s: float) -> None:
        self.begun_s = now_s
        self.started += 1
        self.entries = self.total = self.size = 0

    def note(self, entries: int, size: int) -> None:
        self.entries, self.size = entries, size

    def end(self, now_s: float, *, ok: bool) -> None:
        if self.begun_s is not None:
            self.last_seconds = now_s - self.begun_s
        self.begun_s = None
        self.last_ok = ok
        self.failures = 0 if ok else self.failures + 1

    @property
    def percent(self) -> float:
        """How much of the rewrite under way is written."""
        return min(100 * self.entries / self.total, 100.0) if self.in_progress and self.total else 0.0
