"""Charts of a report, as SVG: bars that stand, bars that lie, lines over time.

Drawn by matplotlib without its global state.  Labels are names of clients: nothing in them is taken for mathematics,
and what the font does not have is left to the browser, which has others.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

COLOURS: Final = ("#2f6fab", "#e0913a", "#c0392b", "#7d8b99", "#4f9d69", "#8e63a9")
_GREY: Final = "#5d6b7a"
_WIDTH: Final = 6.4  # inches, of 72 points
_LONGEST_LABEL: Final = 34
_STYLE: Final[Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    "text.parse_math": False,
    "axes.edgecolor": "#b8c2cc",
    "axes.labelcolor": _GREY,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "grid.color": "#e8edf1",
    "svg.fonttype": "none",
    "svg.hashsalt": "riverbed",
}


def standing_bars(labels: Sequence[str], parts: Mapping[str, Sequence[float]], unit: str) -> bytes:
    """A bar for each label; of several parts on top of each other, by name, in the order of COLOURS."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(2.8)
        base = [0.0] * len(labels)
        for colour, (name, values) in zip(COLOURS, parts.items(), strict=False):
            axes.bar(range(len(labels)), values, bottom=base, color=colour, width=0.72, label=name)
            base = [below + value for below, value in zip(base, values, strict=True)]
        axes.set_xticks(range(len(labels)), labels=[_short(label) for label in labels])
        axes.set_ylabel(unit)
        _count_on(axes.yaxis)
        axes.grid(axis="y")
        if len(parts) > 1:
            _legend(axes)
        return _svg(figure)


def lying_bars(labels: Sequence[str], values: Sequence[float], told: Sequence[str]) -> bytes:
    """A bar for each label from above to below, and what is to be said of each at its end."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(0.55 + 0.27 * max(len(labels), 1))
        axes.barh(range(len(labels)), values, color=COLOURS[0], height=0.66)
        axes.set_yticks(range(len(labels)), labels=[_short(label) for label in labels])
        axes.invert_yaxis()
        room = max([*values, 1]) * 0.015
        for place, (value, text) in enumerate(zip(values, told, strict=True)):
            axes.text(value + room, place, text, va="center", fontsize=8, color=_GREY)
        axes.set_xlim(0, max([*values, 1]) * 1.18)
        axes.tick_params(axis="y", length=0)
        _count_on(axes.xaxis)
        axes.grid(axis="x")
        return _svg(figure)


def over_time(moments_ms: Sequence[int], lines: Mapping[str, Sequence[float]], unit: str) -> bytes:
    """A line for each name; the first one alone is filled.  Moments are unix milliseconds, shown in UTC."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(2.8)
        moments: Any = [datetime.fromtimestamp(moment / 1000, UTC) for moment in moments_ms]
        for colour, (name, values) in zip(COLOURS, lines.items(), strict=False):
            axes.plot(moments, values, color=colour, linewidth=1.4, label=name, drawstyle="steps-post")
        if len(lines) == 1:
            [values] = lines.values()
            axes.fill_between(moments, values, step="post", color=COLOURS[0], alpha=0.15, linewidth=0)
        locate: Any = AutoDateLocator
        show: Any = ConciseDateFormatter
        locator = locate(tz=UTC)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(show(locator, tz=UTC))
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        _count_on(axes.yaxis, integer=False)
        axes.grid(axis="y")
        if len(lines) > 1:
            _legend(axes)
        return _svg(figure)


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _legend(axes: Axes) -> None:
    """In lines above the picture, where it hides nothing."""
    labels = axes.get_legend_handles_labels()[1]
    axes.legend(
        frameon=False,
        fontsize=8,
        labelcolor=_GREY,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=5 if max(map(len, labels)) <= 12 else 3,
        borderaxespad=0.2,
        handlelength=1.2,
    )


def _count_on(axis: Any, *, integer: bool = True) -> None:
    """Numbers with the units that people say: 1.2 k, 3 M."""
    axis.set_major_locator(MaxNLocator(nbins=5, integer=integer))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def short_number(value: float) -> str:
    """`0.25`, `950`, `1.2 k`, `3 M`."""
    if 0 < abs(value) < 1:
        return f"{value:.3g}"
    for unit in ("", " k", " M", " G"):
        if abs(value) < 999.5 or unit == " G":
            break
        value /= 1000
    return f"{value:.0f}{unit}" if value == round(value) or abs(value) >= 99.5 else f"{value:.1f}{unit}"


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Letters that the font lacks, and labels that leave no room: the picture is drawn all the same.
        warnings.simplefilter("ignore")
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
