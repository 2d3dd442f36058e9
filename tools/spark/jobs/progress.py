"""Shows the progress of Spark on a terminal: what the job does, and the tasks of the running stages.

Spark must be asked for it, so a thread asks five times a second.  Without a terminal there is neither thread nor bar.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final, Self

from py4j.protocol import Py4JError
from pyspark import SparkContext
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from riverbed.tools.console.console import notes
from riverbed.tools.console.keytext import shown

_ASK_EVERY_S: Final = 0.2


class TaskMeter:
    """A bar of the running tasks; `step` says what they are for."""

    def __init__(self) -> None:
        console = notes()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[numbers]}", style="progress.download"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, numbers="")
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        self._progress.stop()

    def step(self, what: str) -> None:
        """Show that the job does `what` from now on."""
        self._progress.update(self._task, description=escape(shown(what)), total=None, numbers="")

    def watch(self, context: SparkContext) -> None:
        """Show the tasks of this Spark from now on."""
        if self._progress.disable:
            return
        self._watcher = threading.Thread(target=self._ask, args=(context,), name="spark progress", daemon=True)
        self._watcher.start()

    def _ask(self, context: SparkContext) -> None:
        tracker = context.statusTracker()
        # When Spark is stopping, it no longer answers.
        with contextlib.suppress(Py4JError, OSError):
            while not self._ended.wait(_ASK_EVERY_S):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                total = sum(stage.numTasks for stage in stages if stage is not None)
                done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
                if total:
                    numbers = f"{done:,} of {total:,} tasks"
                    self._progress.update(self._task, total=total, completed=done, numbers=numbers)
                else:
                    self._progress.update(self._task, total=None, numbers="")
