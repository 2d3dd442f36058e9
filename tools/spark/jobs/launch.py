"""Provides the Spark that runs a job: a running one, or one that is started here and prints nothing.

    spark-submit job.py     spark-submit has started Java: its settings hold, ours fill the gaps
    riverbed spark job      Java is started here; its output goes to a file that is read if Java fails
    a test, a notebook      a session exists: a new session shares its executors, and is not stopped

If something is missing, an error of one line says what, before anything is started if possible.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import riverbed
from riverbed.tools.console.console import Failure
from riverbed.tools.spark.quick.start import java_program, use_archive_there
from riverbed.tools.spark.source import RiverbedSource

MIN_JAVA: Final = 17
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')
_ASK_JAVA_S: Final = 60
_LOCAL: Final = "local"
# Loggers to which PySpark writes the Java stack of an error that it also raises.
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
# The folder of the package, for workers of a source tree that is not installed.
_ROOT: Final = Path(riverbed.__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start Spark.  `master` None: as spark-submit says, or on all cores of this machine."""

    name: str
    master: str | None = None
    conf: tuple[tuple[str, str], ...] = ()
    driver_memory: str | None = None
    shows_log: bool = False


@contextlib.contextmanager
def running_spark(launch: Launch) -> Iterator[SparkSession]:
    """A session for a job.  Raises Failure when Spark cannot be started."""
    there = SparkSession.getActiveSession()
    if there is not None:
        session = there.newSession()
        _settle(session)
        yield session
        return
    with tempfile.TemporaryFile() as noise:
        session = _start(launch, noise)
        try:
            _settle(session)
            yield session
        finally:
            session.stop()


def _settle(session: SparkSession) -> None:
    """Set what a session needs; it may share its context with others."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(RiverbedSource)


def _start(launch: Launch, noise: IO[bytes]) -> SparkSession:
    if not launch.shows_log:
        logging.getLogger().addFilter(says_more_than_it_raises)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        require_java()
        use_archive_there()
        if launch.master is None or launch.master.startswith(_LOCAL):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    try:
        # These must be known when Java is started; all other settings are set afterwards.
        early = SparkConf(loadDefaults=False).setAll(list(launch.conf))
        if launch.driver_memory is not None:
            early.set("spark.driver.memory", launch.driver_memory)
        output = {} if launch.shows_log else {"stdout": noise, "stderr": noise}
        launch_java: Any = launch_gateway
        SparkContext._ensure_initialized(gateway=launch_java(early, output))
        context = SparkContext(conf=_settings(launch))
    except (PySparkException, OSError, ValueError) as error:
        raise Failure(f"cannot start Spark: {_reason(noise) or error}") from error
    except Exception as error:  # what Java raised; py4j has no narrower class that covers a refused master or setting
        raise Failure(f"cannot start Spark: {first_line(error)}") from error
    if not launch.shows_log:
        context.setLogLevel("FATAL")  # errors are raised here as well
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return SparkSession(context)


def says_more_than_it_raises(record: logging.LogRecord) -> bool:
    """False for py4j, which logs the stack of errors that it raises, as on Ctrl-C, with the root logger."""
    return "py4j" not in record.pathname


def _settings(launch: Launch) -> SparkConf:
    conf = SparkConf()
    if launch.master is not None:
        conf.setMaster(launch.master)
    for name, value in launch.conf:
        conf.set(name, value)
    conf.setAppName(f"riverbed {launch.name}")
    defaults = {
        "spark.master": "local[*]",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executorEnv.PYTHONPATH": str(_ROOT),
    }
    if str(conf.get("spark.master", _LOCAL)).startswith(_LOCAL):
        defaults |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
        }
    for name, value in defaults.items():
        conf.setIfMissing(name, value)
    return conf


def _reason(noise: IO[bytes]) -> str:
    """Why Java failed, from its output: an exception, or else the last three lines."""
    noise.seek(0)
    lines = [line.strip() for line in noise.read().decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", "WARNING:"))]
    exceptions = [line for line in lines if line.startswith("Exception in thread")]
    return exceptions[-1] if exceptions else " ".join(lines[-3:])


# The lines of a traceback are indented, up to the error itself.
_END_OF_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)")


def first_line(error: BaseException) -> str:
    """The cause, in an error that has a stack of Java or Python in its text."""
    text = str(error)
    causes = _END_OF_TRACEBACK.findall(text)
    if causes:
        return str(causes[-1])
    cause = re.search(r"^: (?:[\w.$]+: )?(.+)$", text, re.MULTILINE)
    return cause[1] if cause else next(filter(str.strip, text.splitlines()), type(error).__name__)


# -- Java --------------------------------------------------------------------------------------------------------------


def require_java() -> None:
    """Raise Failure unless there is a Java that can run Spark."""
    program = java_program()
    advice = f"install one (openjdk-{MIN_JAVA}-jre-headless on Debian) or set JAVA_HOME"
    if program is None:
        raise Failure(f"Spark needs Java {MIN_JAVA} or newer, and there is no java on the PATH; {advice}")
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, timeout=_ASK_JAVA_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"Spark needs Java {MIN_JAVA} or newer, and {program} does not run ({error}); {advice}") from None
    text = (answer.stderr + answer.stdout).decode(errors="replace")
    version = _VERSION.search(text)
    if version is None:
        raise Failure(f"Spark needs Java {MIN_JAVA} or newer, and {program} prints no version; {advice}")
    if int(version[1]) < MIN_JAVA:
        raise Failure(f"Spark needs Java {MIN_JAVA} or newer, and {program} is Java {version[1]}; {advice}")
