"""What the processes import that Spark starts for a first query: each of them is waited for."""

from __future__ import annotations

import json
import subprocess
import sys


def modules_of(module: str) -> set[str]:
    """What a new process has imported when it has imported `module`."""
    words = [sys.executable, "-c", f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"]
    return set(json.loads(subprocess.check_output(words)))


def test_finding_and_making_the_source_imports_nothing_that_reads() -> None:
    found = {
        name for name in modules_of("pyspark_riverbed") if name.partition(".")[0] in ("lmdb", "pyarrow", "riverbed")
    }
    assert found == {"riverbed", "riverbed.tools", "riverbed.tools.spark", "riverbed.tools.spark.source"}


def test_a_plan_imports_neither_the_reading_of_rows_nor_the_checks_of_a_store() -> None:
    found = modules_of("riverbed.tools.spark.reading.batch")
    assert not found & {
        "pyarrow.fs",
        "riverbed.store.check",
        "riverbed.store.snapshot.writer",
        "riverbed.tools.columns.fetch",
        "riverbed.tools.spark.reading.entries",
    }


def test_a_task_that_writes_imports_no_commands_of_a_server() -> None:
    found = modules_of("riverbed.tools.spark.writing.writer")
    assert not found & {"riverbed.server.commands", "riverbed.tools.loading.sinks"}
