"""`python -m benchmarks`: ask the questions, show progress, print the tables with ratios."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.analysis import columns, spark, sparkwrite
from benchmarks.appends import appending, client, connecting, slowdisk, syncs, tls
from benchmarks.growth import question as growth
from benchmarks.reads import blocked, checksums, groups, pending, reading
from benchmarks.report import Answer, machine, record, rounds_text, samples_text, terminal_table, versions
from benchmarks.rig import FULL, QUICK, Rig
from benchmarks.threats import hostile
from benchmarks.upkeep import check, compact, disk, memory, replaying, replicas, rewrite, snapshot, starting
from benchmarks.waits import costs, latency, stalls, words
from tests.support.servers import REDIS_MISSING

QUESTIONS: dict[str, Callable[[Rig], Answer]] = {
    "append": appending.answer,
    "read": reading.answer,
    "checksums": checksums.answer,
    "client": client.answer,
    "start": starting.answer,
    "memory": memory.answer,
    "disk": disk.answer,
    "stalls": stalls.answer,
    "slowdisk": slowdisk.answer,
    "syncs": syncs.answer,
    "snapshot": snapshot.answer,
    "compact": compact.answer,
    "check": check.answer,
    "replay": replaying.answer,
    "replicas": replicas.answer,
    "rewrite": rewrite.answer,
    "groups": groups.answer,
    "pending": pending.answer,
    "blocked": blocked.answer,
    "connect": connecting.answer,
    "tls": tls.answer,
    "latency": latency.answer,
    "growth": growth.answer,
    "hostile": hostile.answer,
    "words": words.answer,
    "costs": costs.answer,
    "spark": spark.answer,
    "columns": columns.answer,
    "sparkwrite": sparkwrite.answer,
}
README = Path(__file__).with_name("README.md")


@click.command()
@click.argument("questions", nargs=-1, type=click.Choice(list(QUESTIONS)))
@click.option("--quick", is_flag=True, help="One round and small sizes: does it work, and is it in the right region?")
@click.option("--rounds", type=click.IntRange(1), help=f"Times each server has its turn (default {FULL.rounds}).")
@click.option("--entries", type=click.IntRange(1000), help=f"In the large data set (default {FULL.entries:,}).")
@click.option("--window", type=click.FloatRange(0.5), help=f"Seconds to look for stalls (default {FULL.window_s:g}).")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Where the data is put meanwhile.")
@click.option("--record", "is_recorded", is_flag=True, help="Put the tables into benchmarks/README.md.")
def main(
    questions: tuple[str, ...],
    quick: bool,
    rounds: int | None,
    entries: int | None,
    window: float | None,
    directory: Path | None,
    is_recorded: bool,
) -> None:
    """Compare Riverbed with redis-server, both with an append-only file and the same appendfsync.

    Without QUESTIONS all are asked.
    """
    if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
        raise click.ClickException(REDIS_MISSING)
    sizes = QUICK if quick else FULL
    sizes = dataclasses.replace(
        sizes,
        rounds=rounds or sizes.rounds,
        entries=entries or sizes.entries,
        window_s=window or sizes.window_s,
    )
    # as an interrupt does: servers end, and gigabytes are deleted
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    console = Console()
    console.print(f"{machine()}; {versions()}")
    answers = []
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
    )
    chosen = questions or tuple(QUESTIONS)
    with progress:
        task = progress.add_task("", total=len(chosen))

        def say(text: str) -> None:
            progress.update(task, description=text)
            if not console.is_terminal:
                console.print(f"... {text}")

        with Rig(sizes, directory, say, is_recorded=is_recorded) as rig:
            for question in chosen:
                rig.pauses_ms.clear()
                answer = QUESTIONS[question](rig)
                answers.append(answer)
                console.print(terminal_table(answer))
                if is_recorded:
                    settings = rounds_text(answer, sizes.rounds)
                    if rig.pauses_ms:
                        settings += f"; longest pause of the machine itself {samples_text(rig.pauses_ms)} ms"
                    record(README, question, answer, settings)
                progress.advance(task)
    missed = [each.what for answer in answers for each in answer.measurements if each.is_met is False]
    if missed:
        console.print(f"[red]over budget:[/red] {'; '.join(missed)}")


if __name__ == "__main__":
    main()
