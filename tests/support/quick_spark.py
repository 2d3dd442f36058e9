"""How tests start Java and Python for a Spark that is used for a second.

The tests of `start_quickly` make an archive of Spark's classes, and come first.  With it a short program takes a third
less of the processors.  Where it is not made yet, or not in this run, Java starts without.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

import pytest

# Half of the time would go into code that is compiled well, and nothing runs long enough for that.
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# An archive that does not fit is no news: what programs print is compared.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def cache_of_run(factory: pytest.TempPathFactory) -> Path:
    """Where all workers of pytest have the archive."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / 'the "only" cache'


def quick_java(factory: pytest.TempPathFactory) -> str:
    """Words for Java, as Spark takes them apart."""
    from riverbed.tools.spark.quick.start import quoted  # imports PySpark, which few tests need

    archives = cache_of_run(factory).glob("riverbed-*/*.jsa")
    return " ".join([_BRIEF, _QUIET, *(quoted(f"-XX:SharedArchiveFile={path}") for path in archives)])


def quick_python(factory: pytest.TempPathFactory) -> Path:
    """For PYSPARK_PYTHON: this Python, with the PySpark that is installed.

    Spark puts PySpark's zip first, and each of its processes compiles all that it imports of a zip: a second of work.
    """
    program = factory.mktemp("python") / "python"
    program.write_text(
        "#!/bin/bash\nPYTHONPATH=$(IFS=:; for place in $PYTHONPATH; do\n"
        '    [[ $place == */pyspark.zip ]] || printf %s: "$place"\ndone)\n'
        f'export PYTHONPATH=${{PYTHONPATH%:}}\nexec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o755)
    return program
