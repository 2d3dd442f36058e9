"""A cost at several sizes, and what theory says of it: the numbers behind a plot."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.report import Measurement, below
from benchmarks.rig import Contender, samples_of

PLOTS: Final = Path(__file__).parent / "plots"
# A B-tree gets deeper, caches get too small: a cost that theory calls constant may double over three powers of ten.
_MOST: Final = 2.0

Theory = Callable[[int], float]


def constant(_size: int) -> float:
    return 1.0


def linear(size: int) -> float:
    return float(size)


def linear_from(least: int) -> Theory:
    """Constant below `least`, where what each request costs outweighs what each unit does."""
    return lambda size: float(max(size, least))


@dataclass
class Curve:
    """One plot: the samples of the servers by size."""

    name: str  # of the file, without its ending
    title: str
    grows: str  # what the horizontal axis counts
    unit: str
    theory: Theory
    is_judged: bool = True  # not where no server is measured
    samples: dict[Contender, dict[int, list[float]]] = field(default_factory=lambda: {each: {} for each in Contender})

    def note(self, contender: Contender, size: int, value: float) -> None:
        self.samples[contender].setdefault(size, []).append(value)

    def points(self, contender: Contender) -> list[tuple[int, float]]:
        """Medians by size, the smallest size first."""
        return [(size, median(values)) for size, values in sorted(self.samples[contender].items())]

    def growths(self, contender: Contender) -> list[float]:
        """Of each round: from the smallest size to the largest, divided by the growth that theory allows."""
        samples = self.samples[contender]
        if not samples:
            return []
        first, last = min(samples), max(samples)
        allowed = self.theory(last) / self.theory(first)
        return [after / before / allowed for before, after in zip(samples[first], samples[last], strict=True)]

    def measurement(self) -> Measurement:
        first, last = min(self.samples[Contender.RIVERBED]), max(self.samples[Contender.RIVERBED])
        budget = below(_MOST, "x") if self.is_judged else None
        row = Measurement(f"{self.title}, {first:,} to {last:,} {self.grows}", "x theory", budget)
        for contender in Contender:
            samples_of(row, contender).extend(self.growths(contender))
        return row


def write_costs(curves: Iterable[Curve], path: Path) -> None:
    """The points of all curves as CSV: plot, unit, what grows, size, the cost of each server."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("plot", "unit", "grows", "size", *(contender.value for contender in Contender)))
        for curve in curves:
            costs = {contender: dict(curve.points(contender)) for contender in Contender}
            for size in sorted(set().union(*costs.values())):
                cells = (f"{costs[contender][size]:.4g}" if size in costs[contender] else "" for contender in Contender)
                rows.writerow((curve.name, curve.unit, curve.grows, size, *cells))
