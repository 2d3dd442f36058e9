"""`riverbed spark JOB`: run a job of `tools/spark/jobs`; a job is imported only when it is named.

Spark is an extra that most installations of the server do not have, and it takes a second to import.
"""

from __future__ import annotations

import importlib
from typing import Final

import click

from riverbed.tools.console.console import Failure

_EXTRA: Final = ("pyspark", "py4j", "pyarrow", "numpy")
# By name: the module, the function in it, and the text for `--help`.
_JOBS: Final = {
    "audit": (
        "audit.audit",
        "audit",
        "List stuck, poisoned and orphaned entries, and the groups that hold streams back.",
    ),
    "export": ("export.export", "export", "Write entries to Parquet, by key and date; each run writes the new ones."),
    "rates": ("rates", "rates", "Count entries and bytes by minute, and the time between entries."),
}


class _Jobs(click.Group):
    """Subcommands that are imported on demand."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_JOBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _JOBS:
            return None
        module, function, _ = _JOBS[name]
        try:
            found: click.Command = getattr(importlib.import_module(f"riverbed.tools.spark.jobs.{module}"), function)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in _EXTRA:
                raise
            raise Failure(f"{error.name} is not installed, and this needs it: pip install 'riverbed[spark]'") from None
        return found

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _JOBS.items()])


@click.group(cls=_Jobs)
def spark() -> None:
    """Run a job over snapshots with Spark.

    Needs pip install 'riverbed[spark]' and Java 17 or newer. Each job is a file of tools/spark/jobs, which
    spark-submit runs as well, on a cluster for instance.
    """
