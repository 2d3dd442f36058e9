"""`riverbed check PATH`: check that the data keeps every promise of the store, and repair it if asked.

`store.check` checks and `store.offline.repair` repairs; this module reports both.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

import click

from riverbed.server.commands.replay import Replayer
from riverbed.store.check import Check, DeepCheck, Violation
from riverbed.store.check.deep import COMPARING
from riverbed.store.check.snapshots import COMPARING_STREAMS, SnapshotCheck
from riverbed.store.check.state import CHECKING_ROWS
from riverbed.store.disk.files import OsFiles
from riverbed.store.disk.real_files import is_directory, is_there
from riverbed.store.errors import CorruptionError
from riverbed.store.layout import DATA_NAME, LOG_DIRECTORY, MANIFEST_NAME, STATE_DIRECTORY, store_around
from riverbed.store.log.takeover import refuse_redis
from riverbed.store.offline.repair import Repair, RepairError
from riverbed.tools.console.check_report import CheckReport
from riverbed.tools.console.console import FOUND, Failure, failures_explained
from riverbed.tools.console.steps import StepProgress

# A broken index breaks one promise for every entry; a million such lines help no reader.
DEFAULT_LIMIT: Final = 100
# Violations kept of the log, and of the rest, to decide what can be repaired.
_KEPT: Final = 100
_ITEMS: Final = {CHECKING_ROWS: "rows", COMPARING: "entries", COMPARING_STREAMS: "streams"}


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH")
@click.option("--deep", is_flag=True, help="Execute the log as well, and compare its state with the tables.")
@click.option(
    "--repair", is_flag=True, help="Mend damage where no data is lost by it; keep the files that are replaced."
)
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
@click.option("--json", "as_json", is_flag=True, help="Report as one JSON object.")
@click.pass_context
def check(
    context: click.Context,
    path: Path,
    deep: bool,
    repair: bool,
    work: Path | None,
    limit: int,
    as_json: bool,
) -> None:
    """Go through the data in PATH and report what is wrong with it.

    PATH is a data directory, with a server running on it or not, or a snapshot. Of a running server the last checkpoint
    is checked, and the log as far as it is written. Without --repair nothing is changed.

    Checksums and framing of the log, the pages of LMDB, every row of every table: what belongs together is there,
    agrees, and is counted right. --deep executes the log up to where the tables are, which takes space, and compares
    every entry, group and pending record.

    --repair works on a stopped store. It cuts a torn tail off the log; makes broken tables again from a sound log;
    makes a lost log from sound tables; and gives up a broken end of the former log, kept for replicas. What it
    replaces goes to PATH/replaced. Anything else it refuses, and says what you can do.

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
    report = CheckReport(path, limit, as_json)
    with failures_explained(f"check {path}"), StepProgress(_ITEMS) as steps:
        report.begin(steps)
        if not is_there(path, follows=False):
            raise Failure(f"there is no {path}")
        if (around := store_around(path)) is not None:
            raise Failure(f"{path} is a part of the data directory {around}: name that")
        if is_there(path / MANIFEST_NAME) or is_there(path / DATA_NAME):
            if deep or repair:
                raise Failure(
                    f"{path} is a snapshot: it has no log for --deep or --repair; `riverbed restore` makes one"
                )
            _check_snapshot(path, report, steps)
        else:
            _refuse_other(path)
            deep_check = _deep_check(path, work, report) if deep else None
            store = _Store(path, steps, deep_check)
            if repair:
                _repair(store, report)
            else:
                _look(store.check(), report)
            if deep_check is not None:
                report.commands = deep_check.commands
    report.end()
    if not report.is_sound:
        context.exit(FOUND)


class _Store(NamedTuple):
    """A data directory, and how to check it."""

    path: Path
    steps: StepProgress
    deep_check: DeepCheck | None

    def check(self, *, is_held: bool = False) -> Check:
        return Check(
            self.path,
            steps=self.steps.show,
            deep_check=self.deep_check,
            is_held=is_held,
        )

    def repair(self, report: CheckReport) -> Repair:
        return Repair(
            self.path,
            Replayer().execute,
            now_ms=time.time_ns() // 1_000_000,
            steps=self.steps.show,
            announce=report.announce,
        )


def _refuse_other(path: Path) -> None:
    if not is_directory(path):
        raise Failure(f"{path} is not a directory")
    with contextlib.suppress(CorruptionError):  # the check finds it as well
        refuse_redis(path, OsFiles())
    if not is_there(path / STATE_DIRECTORY) and not is_there(path / LOG_DIRECTORY):
        if any(is_there(inside / MANIFEST_NAME) for inside in path.iterdir()):
            raise Failure(f"{path} holds snapshots: name one of them")
        raise Failure(f"{path} holds no store: neither {STATE_DIRECTORY}/ nor {LOG_DIRECTORY}/ is there")


def _deep_check(path: Path, work: Path | None, report: CheckReport) -> DeepCheck:
    parent = work or path.resolve().parent
    if work is None and not os.access(parent, os.W_OK):
        parent = Path(tempfile.gettempdir())
    return DeepCheck(Replayer().execute, parent, announce=report.announce)


def _check_snapshot(path: Path, report: CheckReport, steps: StepProgress) -> None:
    check = SnapshotCheck(path, steps.show)
    report.kind = "snapshot"
    report.take(check.violations())
    report.contents = asdict(check.contents)
    report.offset = check.offset


def _look(check: Check, report: CheckReport) -> list[Violation]:
    """Check and report; -> the first violations of the log and of the rest, for `Repair.mend`."""
    log: list[Violation] = []
    others: list[Violation] = []

    def kept() -> Iterator[Violation]:
        for violation in check.violations():
            known = log if violation.table == "log" else others
            if len(known) < _KEPT:
                known.append(violation)
            yield violation

    report.take(kept())
    report.note(check, log + others)
    return log + others


def _repair(store: _Store, report: CheckReport) -> None:
    report.is_exhaustive = True
    with store.repair(report) as repair:
        if repair.lost is not None:
            report.acted(repair.lost)
        check = store.check(is_held=True)
        found = _look(check, report)
        if not found and check.torn_tail is None:
            return
        try:
            repair.mend(check, found, report.acted)
        except RepairError as error:
            report.refused(str(error))
            return
        report.mended()
        # Check the repaired store.
        _look(store.check(is_held=True), report)
