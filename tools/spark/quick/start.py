"""Has Spark's Java use an archive of Spark's classes, which is kept in the cache that the data source has too.

An archive is for one Java and one Spark, at one place; for another there is another.  Java itself compares them as
well, and does without an archive that does not fit.  It maps the file without looking at all of it, so a part of an
archive would crash it: an archive is whole and on disk before it gets its name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from riverbed.store.disk.files import OsFiles
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.reading.cache import Cache
from riverbed.tools.spark.reading.options import CACHE_BYTES

TRAINING: Final = "riverbed.tools.spark.quick.training"
_NAME: Final = "spark.jsa"
_MOST_S: Final = 600.0
# These believe that the class path has changed, as Spark's names a jar twice.  Tried: 17 and 25 take one, 21 does not.
TAKE_NONE: Final = range(18, 24)
# Java compiles what it has run so many times; ten times as often as usual before it does saves a fifth of what it
# compiles in a first query, and what a long query runs is compiled all the same.
_THRESHOLDS: Final = "-XX:CompileThresholdScaling=10"
# An archive that does not fit is no news.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# Spark gives Java these before those of its own settings, which stay free for others.
_OPTIONS: Final = "SPARK_SUBMIT_OPTS"


def start_quickly(cache_directory: str | Path | None = None, *, cache_bytes: int = CACHE_BYTES) -> None:
    """Have the Spark that this process starts next use an archive; to be called before the session is made.

    The first call with a Java and a Spark makes the archive, of 200 MB, in `cache_directory`, by default that of the
    data source.  It takes as long as starting Spark a few times.  Where none can be made, one warning says why, and
    Spark starts without.  A Java that runs already, as in `spark-submit`, stays as it is.

    Raises SourceError for a cache of another user.
    """
    try:
        cache = Cache(None if cache_directory is None else str(cache_directory), cache_bytes)
        _use(cache.get(_identity(), _make))
    except (OSError, subprocess.SubprocessError) as error:
        warnings.warn(f"Spark starts without an archive of its classes: {_reason(error)}", stacklevel=2)


def use_archive_there() -> None:
    """The same, if there is an archive in the default cache."""
    with suppress(OSError, SourceError):
        folder = Cache(None, CACHE_BYTES).find(_identity())
        if folder is not None:
            _use(folder)


def _use(folder: Path) -> None:
    options = f"{quoted(f'-XX:SharedArchiveFile={folder / _NAME}')} {_THRESHOLDS} {_QUIET}"
    given = os.environ.get(_OPTIONS, "")
    if options not in given:
        os.environ[_OPTIONS] = f"{options} {given}".rstrip()  # the last of two that differ counts


def quoted(option: str) -> str:
    """An option of Java as one word of many, for Spark."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def java_program() -> str | None:
    """The `java` that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def _identity() -> str:
    """Of Java and of Spark's jars.  Raises OSError."""
    java = java_program()
    if java is None:
        raise FileNotFoundError("there is no java on the PATH")
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")
    places = [Path(java).resolve(strict=True), jars.resolve(strict=True)]
    return f"archive of classes {[(str(place), place.stat().st_mtime_ns) for place in places]}"


def major_version() -> int | None:
    """Of the `java` that Spark starts; None where it says none.  Raises OSError, SubprocessError."""
    words = [java_program() or "java", "-version"]
    said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MOST_S, check=False)
    found = re.search(r'version "(\d{1,9})', said.stderr)
    return None if found is None else int(found[1])


def _make(folder: Path) -> None:
    """Raises OSError, SubprocessError."""
    major = major_version()
    if major in TAKE_NONE:
        raise OSError(f"Java {major} takes none that Spark's class path fits, as 17 does, and 25")
    path = folder / _NAME
    # A Java that runs already is none that could be told to make an archive.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY_")}
    words = [sys.executable, "-P", "-m", TRAINING, str(path)]
    subprocess.run(
        words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MOST_S, check=True
    )
    with path.open("rb") as file:
        os.fsync(file.fileno())
    OsFiles().sync_directory(folder)


def _reason(error: Exception) -> str:
    said = (error.stderr or "").strip() if isinstance(error, subprocess.CalledProcessError) else ""
    return said.splitlines()[-1] if said else str(error)
