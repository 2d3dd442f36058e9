"""Does any cost grow faster than theory says?

Each curve is measured at several sizes and drawn as an SVG file in plots/, where costs.csv has the numbers.  Its ends
judge it: how much the cost grew from the smallest size to the largest, divided by the growth that theory allows.
"""

from __future__ import annotations

from benchmarks.growth import crowds, entries
from benchmarks.growth.curves import PLOTS, Curve, write_costs
from benchmarks.report import Answer
from benchmarks.rig import Rig


def answer(rig: Rig) -> Answer:
    from benchmarks.growth.plot import draw  # of all questions, this one alone needs matplotlib

    curves: list[Curve] = []
    for ask in (entries.curves, crowds.streams, crowds.groups, crowds.connections, crowds.sizes):
        curves += ask(rig)
    if rig.is_recorded:
        for curve in curves:
            draw(curve, PLOTS)
        write_costs(curves, PLOTS / "costs.csv")
    return Answer(
        "Growth of costs: from the smallest size to the largest, as a multiple of what theory allows",
        "python -m benchmarks growth",
        [curve.measurement() for curve in curves],
        (
            "1 is what theory says; the plots show the costs themselves.",
            "Costs are the server's CPU, but for those in s.",
        ),
    )
