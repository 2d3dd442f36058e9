"""The report of `riverbed check`: violations as they are found, repairs, and totals at the end; or all as JSON."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from riverbed.store.check import Check, Violation
from riverbed.store.check.deep import ReplayPlan
from riverbed.store.offline.advice import Advice, advice
from riverbed.store.offline.replaced import Action
from riverbed.tools.console.console import counted, notes, print_facts, results, seconds_text, size_text
from riverbed.tools.console.keytext import shown
from riverbed.tools.console.steps import StepProgress


class CheckReport:
    """Violations and repairs, printed as text when they come, or as JSON at the end."""

    def __init__(self, path: Path, limit: int, as_json: bool) -> None:
        self.kind = "store"
        self.path = path
        self.is_exhaustive = False  # continue beyond the limit, but print no more
        self.contents: dict[str, int] = {}
        self.offset: int | None = None
        self.log_bytes: int | None = None
        self.log_files = 0
        self.is_in_use = False
        self.commands: int | None = None
        self._limit = limit
        self._as_json = as_json
        self._found: list[Violation] = []  # since the last repair
        self._count = 0
        self._is_cut_short = False
        self._is_log_unreadable = False  # as its manifest is damaged
        self._advice: Advice | None = None  # on what a repair would refuse
        self._mended: list[dict[str, Any]] = []
        self._actions: list[Action] = []
        self._refusal: str | None = None
        self._steps: StepProgress | None = None
        self._begun = time.monotonic()

    def begin(self, steps: StepProgress) -> None:
        self._steps = steps

    @property
    def is_sound(self) -> bool:
        return not self._count

    def take(self, violations: Iterator[Violation]) -> None:
        """Report each violation; end early at the limit."""
        for violation in violations:
            self._add(violation)
            if self._limit and self._count >= self._limit and not self.is_exhaustive:
                self._is_cut_short = True
                return

    def _add(self, violation: Violation) -> None:
        self._count += 1
        if self._limit and self._count > self._limit:
            self._is_cut_short = True
            return
        if self._as_json:
            self._found.append(violation)
        else:
            with self._above_the_bar():
                _print_violation(violation)

    def note(self, check: Check, found: list[Violation]) -> None:
        """Take the totals of a finished check of a data directory that has `found` this, and its torn tail as well."""
        self.contents = asdict(check.contents)
        # the tables come first, and may have enough that is wrong for the log not to be read
        is_log_read = not self._is_cut_short or any(violation.table == "log" for violation in found)
        self._advice = advice(check, found) if is_log_read else None
        self.is_in_use = check.was_in_use or check.is_in_use()
        self.log_files = len(check.log.parts)
        self.log_bytes = check.log.size_bytes if self.log_files or check.log.is_missing else None
        self._is_log_unreadable = is_log_read and self.log_bytes is None
        self.offset = None if check.log.end is None else check.log.end.offset
        torn = check.torn_tail
        if torn is not None:
            reason = f"torn tail of {torn.byte_count:,} bytes, as a crash leaves it ({torn.reason})"
            self._add(Violation("log", "", reason, torn.file, torn.position))

    def announce(self, plan: ReplayPlan) -> None:
        line = (
            f"executing {size_text(plan.log_bytes)} of log in {plan.work}: "
            f"takes at most {size_text(plan.needed_bytes)}, {size_text(plan.free_bytes)} are free"
        )
        with self._above_the_bar():
            _print_line(line)

    def acted(self, action: Action) -> None:
        self._actions.append(action)
        with self._above_the_bar():
            _print_line(str(action), "[green]repaired:[/] ")

    def mended(self) -> None:
        """The violations so far are repaired; only violations found later count from now on."""
        self._mended += [asdict(violation) for violation in self._found]
        self._found, self._count, self._is_cut_short = [], 0, False

    def refused(self, reason: str) -> None:
        self._refusal = reason
        with self._above_the_bar():
            _print_line(reason, "[red]not repaired:[/] ")

    @contextlib.contextmanager
    def _above_the_bar(self) -> Iterator[None]:
        """Take the progress bar away while text is printed, so that they do not mix."""
        if self._steps is not None:
            self._steps.pause()
        yield

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        seconds = time.monotonic() - self._begun
        if self._as_json:
            click.echo(json.dumps(self._values(seconds), indent=2))
            return
        console = notes()
        took = f"({seconds_text(seconds)})"
        if self._count:
            more = ", and perhaps more" if self._is_cut_short and not self.is_exhaustive else ""
            console.print(f"[red]{counted(self._count, 'violation')}[/]{more} {took}")
        else:
            console.print(f"[green]{'mended' if self._actions else 'sound'}[/] {took}")
        print_facts(console, self._facts())

    def _facts(self) -> dict[str, str]:
        lines = {}
        if any(self.contents.values()):
            streams, groups = counted(self.contents["streams"], "stream"), counted(self.contents["groups"], "group")
            lines["tables"] = f"{streams}, {counted(self.contents['entries'], 'entry')}"
            lines["groups"] = f"{groups}, {self.contents['pending']:,} pending"
        at = "" if self.offset is None else f"up to replication offset {self.offset}"
        if self.log_bytes is not None:
            lines["log"] = f"{size_text(self.log_bytes)} in {counted(self.log_files, 'file')}" + (
                f", {at}" if at else ""
            )
        elif self._is_log_unreadable:
            lines["log"] = "not readable"
        elif at:
            lines["state"] = at
        if self.commands:
            lines["deep"] = f"{counted(self.commands, 'command')} executed and compared"
        if self.is_in_use:
            lines["server"] = "running: of the tables this is its last checkpoint"
        if self._count and self.kind == "store" and not self.is_exhaustive:
            command = f"riverbed check --repair {escape(str(self.path))}"
            lines["to mend"] = (
                f"{'stop the server; ' if self.is_in_use else ''}{command}"
                if self._advice is None
                else escape(shown(self._advice.cure))
            )
        return lines

    def _values(self, seconds: float) -> dict[str, Any]:
        return {
            "path": str(self.path.resolve()),
            "kind": self.kind,
            "sound": self.is_sound,
            "violations": [asdict(violation) for violation in self._found],
            "count": self._count,
            "complete": not self._is_cut_short or self.is_exhaustive,
            "in_use": self.is_in_use,
            **self.contents,
            "offset": self.offset,
            "log_bytes": self.log_bytes,
            "commands": self.commands,
            "repaired": [
                {"done": action.done, "kept": None if action.kept is None else str(action.kept)}
                for action in self._actions
            ],
            "mended": self._mended,
            "not_repaired": self._refusal,
            "seconds": round(seconds, 3),
        }


def _print_line(text: str, mark: str = "") -> None:
    """Print a long line on standard error; on a terminal it is broken between words."""
    console = notes()
    console.print(f"{mark}{escape(shown(text))}", soft_wrap=not console.is_terminal)


def _print_violation(violation: Violation) -> None:
    """Print one line; on a terminal, a reason that does not fit goes on the next lines, indented."""
    console = results(soft_wrap=False)
    if not console.is_terminal:
        click.echo(shown(str(violation)))
        return
    table = Table.grid(padding=(0, 0, 0, 2))
    place = shown(violation.place)
    head = Text.assemble((violation.table, "bold red"), f": {place}" if place else "")
    text = Text(shown(violation.reason))
    if len(head) + len(text) + 2 <= console.width:
        console.print(Text.assemble(head, ": ", text))
        return
    console.print(head, soft_wrap=True)
    table.add_row("", text)
    console.print(table)
