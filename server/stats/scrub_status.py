"""The scrub under way, and what the scrubs have found."""

from __future__ import annotations

from collections.abc import Set

from riverbed.store.layout import DATA_NAME


class ScrubStatus:
    """For INFO and the metrics.  `damage` says what is wrong with each damaged file, by its name."""

    def __init__(self) -> None:
        self.in_progress = False
        self.done_bytes = 0  # of the log
        self.total_bytes = 0
        self.rows = 0  # of the tables
        self.all_rows = 0
        self.damaged_rows = 0  # as the last pass has found
        self.passes = 0
        self.last_end_s = 0  # Unix time at which the last pass ended, 0 without one
        self.damage: dict[str, str] = {}

    def begin(self, total_bytes: int) -> None:
        self.in_progress = True
        self.done_bytes, self.total_bytes = 0, total_bytes
        self.rows = self.all_rows = 0

    def end(self, now_s: int) -> None:
        self.in_progress = False
        self.passes += 1
        self.last_end_s = now_s

    @property
    def percent(self) -> float:
        """How far the scrub under way is: the first half is the log, the second the tables."""
        log = self.done_bytes / self.total_bytes if self.total_bytes else 1.0
        tables = self.rows / self.all_rows if self.all_rows else 0.0
        return 50 * min(log, 1.0) + 50 * min(tables, 1.0)  # both may grow meanwhile

    def tables_repaired(self) -> None:
        """Forget the damage of the tables: they were made again."""
        self.damage.pop(DATA_NAME, None)
        self.damaged_rows = 0

    def keep(self, names: Set[str]) -> None:
        """Forget the damage of files that are gone."""
        for name in self.damage.keys() - names:
            self.damage.pop(name, None)  # a thread may have been faster
