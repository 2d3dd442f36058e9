"""A curve as an SVG file, on logarithmic axes: a constant cost is level, a linear one rises by the dotted line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.growth.curves import Curve
from benchmarks.rig import Contender

_COLOURS: Final = {Contender.RIVERBED: "#1f6f8b", Contender.REDIS: "#b5432a"}
_MARKERS: Final = {Contender.RIVERBED: "o", Contender.REDIS: "s"}
_THEORY: Final = "#888888"


def draw(curve: Curve, directory: Path) -> Path:
    """Write DIRECTORY/NAME.svg; -> its path."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    for contender in Contender:
        if points := curve.points(contender):
            sizes, values = zip(*points, strict=True)
            axes.plot(
                sizes, values, marker=_MARKERS[contender], color=_COLOURS[contender], label=contender.value, linewidth=2
            )
    points = curve.points(Contender.RIVERBED)
    sizes = [size for size, _ in points]
    begin = points[0][1] / curve.theory(sizes[0])
    axes.plot(sizes, [begin * curve.theory(size) for size in sizes], linestyle=":", color=_THEORY, label="theory")
    axes.set_ylim(*_around(curve))
    axes.set_title(curve.title)
    axes.set_xlabel(curve.grows)
    axes.set_ylabel(curve.unit)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    directory.mkdir(exist_ok=True)
    path = directory / f"{curve.name}.svg"
    # no date and fixed ids: an equal plot is an equal file; letters stay text
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": curve.name}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


def _around(curve: Curve) -> tuple[float, float]:
    """Two powers of ten at least: noise is not to look like growth."""
    values = [value for contender in Contender for _, value in curve.points(contender)]
    low, high = min(values), max(values)
    middle = (low * high) ** 0.5
    return min(low / 2, middle / 10), max(high * 2, middle * 10)
