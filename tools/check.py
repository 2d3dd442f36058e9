"""`riverbed check PATH`: does the data keep every promise of the store, and can be mended what does not?

What the promises are, `store.check` knows, and how they are mended, `store.repair`; here both are told to people.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from server.replay import Replayer
from store.check import Check, Refolding, Violation
from store.check.comparison import COMPARING
from store.check.refolding import FoldPlan
from store.check.snapshots import COMPARING_STREAMS, SnapshotCheck
from store.check.state import CHECKING_ROWS
from store.log import DIRECTORY_NAME, FILE_NAME
from store.repair import Action, Repair, RepairError
from store.snapshot import DATA_NAME, MANIFEST_NAME
from store.tables import STATE_DIRECTORY
from tools.console import FOUND, Failure, counted, failures_explained, notes, seconds_text, size_text
from tools.steps import StepMeter

# A broken index breaks one promise for every entry; nobody reads a million lines of it.
DEFAULT_LIMIT: Final = 100
# Kept of each half to decide what can be mended.
_KEPT: Final = 100
_ITEMS: Final = {CHECKING_ROWS: "rows", COMPARING: "entries", COMPARING_STREAMS: "streams"}


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH")
@click.option("--deep", is_flag=True, help="Execute the log as well, and compare what it makes with the tables.")
@click.option("--repair", is_flag=True, help="Mend what can be mended without losing anything; keep what is replaced.")
@click.option(
    "--work",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where --deep puts its tables meanwhile; beside PATH without it.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Stop after N violations; 0 for all.",
)
@click.option("--appenddirname", default=DIRECTORY_NAME, metavar="NAME", help="As the server's setting, if it has one.")
@click.option("--appendfilename", default=FILE_NAME, metavar="NAME", help="The same.")
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@click.pass_context
def check(
    context: click.Context,
    path: Path,
    deep: bool,
    repair: bool,
    work: Path | None,
    limit: int,
    appenddirname: str,
    appendfilename: str,
    as_json: bool,
) -> None:
    """Go through the data in PATH and report what is wrong with it.

    PATH is a data directory, with a server running on it or not, or a snapshot. Of a running server the last checkpoint
    is checked, and the log as far as it is written. Without --repair nothing is changed.

    Checksums and framing of the log, the pages of LMDB, every row of every table: what belongs together is there,
    agrees, and is counted right. --deep executes the log up to where the tables are, which takes space, and compares
    every entry, group and pending record.

    --repair works on a stopped store. It cuts a torn tail off the log; makes broken tables anew from a sound log; and
    makes a lost log from sound tables. What it replaces goes to PATH/replaced. Anything else it refuses, and says what
    you can do.

    \b
    Examples
      riverbed check /srv/riverbed
      riverbed check /srv/riverbed --deep --work /mnt/scratch
      riverbed check /srv/riverbed --repair
      riverbed check /srv/riverbed/snapshots/before-upgrade --json

    \b
    Exit status  0  sound, or mended
                 1  something is wrong: see the lines of the output
                 2  PATH cannot be checked
    """
    report = _Report(path, limit, as_json)
    with failures_explained(f"check {path}"), StepMeter(_ITEMS) as steps:
        report.begin(steps)
        if not os.path.lexists(path):
            raise Failure(f"there is no {path}")
        if (path / MANIFEST_NAME).exists() or (path / DATA_NAME).exists():
            if deep or repair:
                raise Failure(
                    f"{path} is a snapshot: it has no log for --deep or --repair; `riverbed restore` makes one"
                )
            _check_snapshot(path, report, steps)
        else:
            _refuse_other(path, appenddirname)
            refolding = _refolding(path, work, report) if deep else None
            store = _Store(path, appenddirname, appendfilename, steps, refolding)
            if repair:
                _repair(store, report)
            else:
                _look(store.check(), report)
            if refolding is not None:
                report.commands = refolding.commands
    report.end()
    if not report.is_sound:
        context.exit(FOUND)


class _Store(NamedTuple):
    """A data directory, and how it is to be looked at."""

    path: Path
    log_directory: str
    log_filename: str
    steps: StepMeter
    refolding: Refolding | None

    def check(self, *, is_held: bool = False) -> Check:
        return Check(
            self.path,
            log_directory=self.log_directory,
            log_filename=self.log_filename,
            steps=self.steps.show,
            refolding=self.refolding,
            is_held=is_held,
        )

    def repair(self, report: _Report) -> Repair:
        return Repair(
            self.path,
            Replayer().execute,
            now_ms=time.time_ns() // 1_000_000,
            log_directory=self.log_directory,
            log_filename=self.log_filename,
            steps=self.steps.show,
            announce=report.announce,
        )


def _refuse_other(path: Path, log_directory: str) -> None:
    if not path.is_dir():
        raise Failure(f"{path} is not a directory")
    if not (path / STATE_DIRECTORY).exists() and not (path / log_directory).exists():
        raise Failure(f"{path} holds no store: neither {STATE_DIRECTORY}/ nor {log_directory}/ is there")


def _refolding(path: Path, work: Path | None, report: _Report) -> Refolding:
    parent = work or path.resolve().parent
    if work is None and not os.access(parent, os.W_OK):
        parent = Path(tempfile.gettempdir())
    return Refolding(Replayer().execute, parent, announce=report.announce)


def _check_snapshot(path: Path, report: _Report, steps: StepMeter) -> None:
    check = SnapshotCheck(path, steps.show)
    report.kind = "snapshot"
    report.take(check.violations())
    report.contents = asdict(check.contents)
    report.offset = check.offset


def _look(check: Check, report: _Report) -> list[Violation]:
    """Check and report; -> the first violations of the log and of the rest, for who decides what can be mended."""
    log: list[Violation] = []
    others: list[Violation] = []

    def kept() -> Iterator[Violation]:
        for violation in check.violations():
            known = log if violation.table == "log" else others
            if len(known) < _KEPT:
                known.append(violation)
            yield violation

    report.take(kept())
    report.note(check)
    return log + others


def _repair(store: _Store, report: _Report) -> None:
    report.is_exhaustive = True
    with store.repair(report) as repair:
        check = store.check(is_held=True)
        found = _look(check, report)
        if not found and check.torn_tail is None:
            return
        try:
            report.acted(repair.mend(check, found))
        except RepairError as error:
            report.refused(str(error))
            return
        # what is there now
        _look(store.check(is_held=True), report)


class _Report:
    """What was found and done, told as it comes to people, or at the end as JSON."""

    def __init__(self, path: Path, limit: int, as_json: bool) -> None:
        self.kind = "store"
        self.path = path
        self.is_exhaustive = False  # go on beyond the limit, without telling more
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
        self._mended: list[dict[str, Any]] = []
        self._actions: list[Action] = []
        self._refusal: str | None = None
        self._steps: StepMeter | None = None
        self._begun = time.monotonic()

    def begin(self, steps: StepMeter) -> None:
        self._steps = steps

    @property
    def is_sound(self) -> bool:
        return not self._count

    def take(self, violations: Iterator[Violation]) -> None:
        """Tell each violation; end early at the limit."""
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

    def note(self, check: Check) -> None:
        """What else is known of a data directory."""
        self.contents = asdict(check.contents)
        self.is_in_use = self.is_in_use or check.was_in_use
        self.log_bytes, self.log_files = check.log.size_bytes, len(check.log.parts)
        self.offset = None if check.log.end is None else check.log.end.offset
        torn = check.torn_tail
        if torn is not None:
            reason = f"torn tail of {torn.byte_count:,} bytes, as a crash leaves it ({torn.reason})"
            self._add(Violation("log", "", reason, torn.file, torn.position))

    def announce(self, plan: FoldPlan) -> None:
        told = (
            f"executing {size_text(plan.log_bytes)} of log in {plan.work}: "
            f"takes at most {size_text(plan.needed_bytes)}, {size_text(plan.free_bytes)} are free"
        )
        with self._above_the_bar():
            _tell(told)

    def acted(self, actions: list[Action]) -> None:
        """What was found so far is mended; from now on what is still there counts."""
        self._mended = [asdict(violation) for violation in self._found]
        self._actions = actions
        self._found, self._count, self._is_cut_short = [], 0, False
        with self._above_the_bar():
            for action in actions:
                kept = "" if action.kept is None else f"; what was there is kept as {action.kept}"
                _tell(f"{action.done}{kept}", "[green]repaired:[/] ")

    def refused(self, reason: str) -> None:
        self._refusal = reason
        with self._above_the_bar():
            _tell(reason, "[red]not repaired:[/] ")

    @contextlib.contextmanager
    def _above_the_bar(self) -> Iterator[None]:
        """The bar must be gone while something is printed, or the two mix."""
        if self._steps is not None:
            self._steps.hide()
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
        for name, text in self._lines().items():
            console.print(f"  [dim]{name:<10}[/]{text}")
        if self._count and not self._refusal and self.kind == "store" and not self.is_exhaustive:
            console.print(f"  [dim]{'to mend':<10}[/]stop the server; riverbed check --repair {escape(str(self.path))}")

    def _lines(self) -> dict[str, str]:
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
        elif at:
            lines["state"] = at
        if self.commands:
            lines["deep"] = f"{counted(self.commands, 'command')} executed and compared"
        if self.is_in_use:
            lines["server"] = "running: of the tables this is its last checkpoint"
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


def _tell(text: str, mark: str = "") -> None:
    """A long line for people, broken between words where it is a terminal that they read."""
    console = notes()
    console.print(f"{mark}{escape(text)}", soft_wrap=not console.is_terminal)


def _print_violation(violation: Violation) -> None:
    """One line for programs; at a terminal what does not fit goes on below, indented."""
    console = Console(highlight=False)
    if not console.is_terminal:
        click.echo(str(violation))
        return
    table = Table.grid(padding=(0, 0, 0, 2))
    place = violation.place
    head = Text.assemble((violation.table, "bold red"), f": {place}" if place else "")
    text = Text(violation.reason)
    if len(head) + len(text) + 2 <= console.width:
        console.print(Text.assemble(head, ": ", text))
        return
    console.print(head, soft_wrap=True)
    table.add_row("", text)
    console.print(table)
