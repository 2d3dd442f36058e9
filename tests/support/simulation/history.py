"""What happened in one simulation, in the order in which it happened: a line each, with its virtual time.

Two runs of one seed have the same lines.  A line names no path, no process and no random ID of the product's.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.simulation.loop import Scheduler


class History:
    def __init__(self, scheduler: Scheduler) -> None:
        self.lines: list[str] = []
        self.violations: list[str] = []
        self.faults: dict[str, int] = {}
        self.operations = 0
        self._scheduler = scheduler

    @property
    def now(self) -> float:
        return self._scheduler.now

    def note(self, name: str, text: str) -> None:
        self.lines.append(f"{self._scheduler.now:.6f} {name}: {text}")

    def fault(self, name: str, kind: str, text: str = "") -> None:
        """Something goes wrong on purpose."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.note(name, f"-- {kind}{text and ' '}{text}")

    def violation(self, text: str) -> None:
        self.violations.append(text)
        self.note("VIOLATION", text)

    def write(self, path: Path) -> None:
        path.write_text("".join(line + "\n" for line in self.lines))
