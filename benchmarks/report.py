"""Holds the measurements, and shows them: on a terminal while they run, and as Markdown for README.md."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median

from rich.table import Table

from riverbed.server.version import IS_COMPILED


@dataclass(frozen=True)
class Budget:
    """A promise of the design: `holds(ours, ours / theirs)`."""

    text: str
    holds: Callable[[float, float], bool]


def at_least(ratio: float) -> Budget:
    """At least `ratio` times the value of Redis."""
    return Budget(f"ratio >= {ratio}", lambda ours, measured: measured >= ratio)


def at_most(ratio: float) -> Budget:
    """At most `ratio` times the value of Redis."""
    return Budget(f"ratio <= {ratio:g}", lambda ours, measured: measured <= ratio)


def below(limit: float, unit: str) -> Budget:
    return Budget(f"< {limit:g} {unit}", lambda ours, measured: ours < limit)


@dataclass
class Measurement:
    """One line of a table: the samples of both servers, in the order they were taken."""

    what: str
    unit: str
    budget: Budget | None = None
    riverbed: list[float] = field(default_factory=list)
    redis: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Ours / theirs, by medians."""
        theirs = median(self.redis) if self.redis else 0.0
        return median(self.riverbed) / theirs if self.riverbed and theirs else float("nan")

    @property
    def is_met(self) -> bool | None:
        """Whether the budget is kept, None without one."""
        if self.budget is None or not self.riverbed:
            return None
        return self.budget.holds(median(self.riverbed), self.ratio)

    def cells(self) -> list[str]:
        verdict = {None: "", True: "met", False: "MISSED"}[self.is_met]
        budget = "" if self.budget is None else f"{self.budget.text}: {verdict}"
        ratio = "" if self.ratio != self.ratio else f"{self.ratio:.2f}"
        return [self.what, self.unit, samples_text(self.riverbed), samples_text(self.redis), ratio, budget]


HEADINGS = ("", "unit", "Riverbed", "Redis", "ratio", "budget")
_TEXTS = ("", "unit", "budget")


@dataclass(frozen=True)
class Answer:
    """The table that answers one question."""

    title: str
    command: str  # how the load was made
    measurements: list[Measurement]
    notes: tuple[str, ...] = ()
    headings: tuple[str, ...] = HEADINGS


def terminal_table(answer: Answer) -> Table:
    table = Table(title=answer.title, caption="\n".join(answer.notes) or None, title_justify="left")
    for heading in answer.headings:
        table.add_column(heading, justify="left" if heading in _TEXTS else "right")
    for measurement in answer.measurements:
        style = "red" if measurement.is_met is False else None
        table.add_row(*measurement.cells(), style=style)
    return table


def record(path: Path, name: str, answer: Answer, settings: str) -> None:
    """Put `answer` between the marks of question `name` in a Markdown file; the text around them stays as it is."""
    text = path.read_text()
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not mark or not end:
        raise ValueError(f"{path} has no place for {name}: <!-- {name} --> ... <!-- end -->")
    path.write_text(before + mark + markdown(answer, settings) + end + after)


def rounds_text(answer: Answer, rounds: int) -> str:
    """Of what the numbers are medians; a line that was not measured in rounds has one sample, and so no range."""
    counts = {len(samples) for line in answer.measurements for samples in (line.riverbed, line.redis)} - {0}
    if rounds == 1 or counts == {1}:
        return "measured once"
    return f"medians of {rounds}" + ", and what has no range was measured once" * (1 in counts)


def markdown(answer: Answer, settings: str) -> str:
    """One answer, and the settings of its measurement."""
    rows = [list(answer.headings), ["---" if heading in _TEXTS else "--:" for heading in answer.headings]]
    rows += [measurement.cells() for measurement in answer.measurements]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    notes = " ".join((*answer.notes, f"{date.today():%Y-%m-%d}; {settings}; {machine()}; {versions()}."))
    return f"**{answer.title}**: `{answer.command}`\n\n{table}\n{notes}\n"


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = models[0] if models else model
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {model}, {memory_gib:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}"


def versions() -> str:
    redis = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    words = dict(word.partition("=")[::2] for word in redis.split() if "=" in word)
    packages = ", ".join(f"{name} {version(name)}" for name in ("lmdb", "hiredis", "uvloop", "redis"))
    form = "compiled" if IS_COMPILED else "interpreted"
    return f"Riverbed {form}, redis-server {words.get('v', '?')}, Python {platform.python_version()}, {packages}"


def samples_text(values: list[float]) -> str:
    """The median, and how far the rounds lay apart."""
    if not values:
        return "-"
    if len(values) == 1:
        return _number(values[0])
    return f"{_number(median(values))} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
