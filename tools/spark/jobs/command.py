"""What all jobs have in common: options about Spark, snapshots by path, and errors as one line."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from riverbed.store.snapshot.reader import Snapshot
from riverbed.tools.console.console import Failure, failures_explained
from riverbed.tools.spark.errors import SourceError
from riverbed.tools.spark.jobs.launch import Launch, first_line, running_spark
from riverbed.tools.spark.jobs.progress import TaskMeter
from riverbed.tools.spark.reading.locations import Place, resolve
from riverbed.tools.spark.reading.options import Table, read_options
from riverbed.tools.spark.source import NAME

_Command = TypeVar("_Command", bound=Callable[..., Any])
# An error of ours in a Python process of Spark comes back at the end of a traceback.
_OURS = re.compile(rf"^{re.escape(SourceError.__module__)}\.\w+: (.+)$", re.MULTILINE)
_KEYWORD: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")


def spark_options(command: _Command) -> _Command:
    """Add the options about Spark, which the command gets as one argument `launch`."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        master: str | None,
        conf: tuple[tuple[str, str], ...],
        driver_memory: str | None,
        shows_log: bool,
        **options: Any,
    ) -> Any:
        name = click.get_current_context().info_name or ""
        return command(*args, launch=Launch(name, master, conf, driver_memory, shows_log), **options)

    for option in (
        click.option("--spark-log", "shows_log", is_flag=True, help="Show Spark's own log."),
        click.option("--driver-memory", metavar="SIZE", help="Memory of Spark's Java here, as 4g.  [default: 1g]"),
        click.option(
            "--conf", multiple=True, metavar="NAME=VALUE", callback=_settings, help="A setting of Spark; repeatable."
        ),
        click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*], or as spark-submit says]"),
    ):
        wrapped = option(wrapped)
    return cast("_Command", wrapped)  # it makes `launch` of the options


def _settings(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    settings = []
    for value in values:
        name, equals, setting = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        settings.append((name.strip(), setting))
    return tuple(settings)


# -- snapshots ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frozen:
    """A snapshot that a job reads.  It is found once, so all tables, also of a live store, are of the same moment.

    When another one has taken its place, as where a folder has one name for the newest, reading it is an error.
    """

    place: Place
    snapshot: Snapshot

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def path(self) -> str:
        return self.place.uri or self.place.path


def find_snapshots(path: str) -> list[Frozen]:
    """The snapshots that a path names, by time.  Raises Failure when there is none."""
    try:
        found = [Frozen(place, snapshot) for place, snapshot in resolve(read_options({"path": path}))]
    except SourceError as error:
        raise Failure(str(error)) from error
    return sorted(found, key=lambda each: (each.snapshot.manifest.time_ms, each.place.offset))


def find_snapshot(path: str) -> Frozen:
    """The one snapshot that a path names.  Raises Failure when it names none or several."""
    found = find_snapshots(path)
    if len(found) > 1:
        names = f"{found[0].name} to {found[-1].name}"
        raise Failure(f"{path} has {len(found)} snapshots, {names}: name one of them")
    return found[0]


class Job:
    """A running job: Spark, and the bar that shows what the job does."""

    def __init__(self, spark: SparkSession, bar: TaskMeter) -> None:
        self.spark = spark
        self._bar = bar

    def step(self, what: str) -> None:
        """Show that the job does `what` from now on."""
        self._bar.step(what)

    def read(
        self, frozen: Frozen, table: Table, schema: str | None = None, options: Mapping[str, str] | None = None
    ) -> DataFrame:
        """A table of a snapshot."""
        ours = {"table": table.value, "dataChecksum": str(frozen.place.checksum)}
        reader = self.spark.read.format(NAME).options(**ours, **dict(options or {}))
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(frozen.path)


@contextlib.contextmanager
def running_job(launch: Launch, what: str) -> Iterator[Job]:
    """Run Spark for a job that does `what`.  Any error of the job becomes one line and exit status 2."""
    with failures_explained(what):
        try:
            with TaskMeter() as bar:
                bar.step("starting Spark")
                with running_spark(launch) as spark:
                    bar.watch(spark.sparkContext)
                    yield Job(spark, bar)
        except SourceError as error:
            raise Failure(f"cannot {what}: {error}") from error
        except UnicodeEncodeError as error:  # an option on its way to Java
            raise Failure(f"cannot {what}: {error.object} is not UTF-8, and Spark wants that") from error
        except (PySparkException, Py4JError) as error:
            raise Failure(f"cannot {what}: {explain_spark(error)}") from error


def explain_spark(error: Exception) -> str:
    """The important line of an error that Spark raised."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    return _KEYWORD.sub("", first_line(error))
