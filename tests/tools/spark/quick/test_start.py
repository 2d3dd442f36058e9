from __future__ import annotations

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from riverbed.tools.spark.quick.start import TAKE_NONE, major_version, start_quickly, use_archive_there
from riverbed.tools.spark.reading.cache import Cache
from riverbed.tools.spark.reading.options import CACHE_BYTES
from tests.support.quick_spark import cache_of_run
from tests.support.servers import IMPORTED_FROM, ROOT

_OPTIONS = "SPARK_SUBMIT_OPTS"
# A program of a user.
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from riverbed.tools.spark.quick.start import start_quickly

start_quickly(sys.argv[1])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-Xlog:class+load:file=" + sys.argv[2])
    .getOrCreate()
)
assert spark.range(10).count() == 10
spark.stop()
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_OPTIONS, "-Dmine=1")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(IMPORTED_FROM)]))


def test_java_takes_the_classes_of_spark_from_an_archive_that_is_made_once(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_OPTIONS, "-XX:TieredStopAtLevel=1")  # nothing runs long enough to be compiled well
    cache = cache_of_run(tmp_path_factory)  # other tests use it
    assert not cache.exists() and '"' in cache.name
    made = []
    java = major_version()
    for number in range(2):
        log = tmp_path / f"classes-{number}"
        words = [sys.executable, "-W", "error::UserWarning", "-c", _PROGRAM, str(cache), str(log)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)

        if java in TAKE_NONE:
            assert f"without an archive of its classes: Java {java} takes none" in done.stderr
            return
        assert done.returncode == 0, done.stderr
        classes = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
        loaded = [line for line in classes if "Lambda" not in line]  # Java makes classes of its own for most of these
        assert sum("shared objects file (top)" in line for line in loaded) > 0.95 * len(loaded) > 1000
        made.append([(path.name, path.stat().st_ino) for path in cache.rglob("*.jsa")])
    assert made[0] == made[1] and len(made[0]) == 1
    assert [path for path in cache.iterdir() if path.name.startswith(".riverbed-")] == []


def test_what_was_to_be_given_to_java_is_still_given_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "java", "exit 0")))
    monkeypatch.setattr("riverbed.tools.spark.quick.start._make", lambda folder: (folder / "spark.jsa").touch())

    start_quickly()
    once = os.environ[_OPTIONS]
    start_quickly()
    use_archive_there()

    assert os.environ[_OPTIONS] == once
    assert "/spark.jsa" in once and once.endswith(" -Dmine=1")


def test_another_java_has_another_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("riverbed.tools.spark.quick.start._make", lambda folder: (folder / "spark.jsa").touch())
    cache = Cache(str(tmp_path / "cache"), CACHE_BYTES)

    for name in ("first", "second"):
        monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / name, "exit 0")))
        start_quickly(cache.path)

    assert len(list(cache.path.rglob("spark.jsa"))) == 2


def test_jobs_use_only_an_archive_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "java", "exit 0")))

    use_archive_there()

    assert os.environ[_OPTIONS] == "-Dmine=1"


def test_without_java_one_warning_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.warns(UserWarning, match="without an archive of its classes: there is no java on the PATH") as caught:
        start_quickly(tmp_path / "cache")

    assert len(caught) == 1
    assert os.environ[_OPTIONS] == "-Dmine=1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use_archive_there()


def test_a_java_that_would_take_no_archive_makes_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = _java(tmp_path / "java", """echo 'openjdk version "21.0.13" 2026-10-20' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(java))

    with pytest.warns(UserWarning, match="without an archive of its classes: Java 21 takes none"):
        start_quickly(tmp_path / "cache")
    use_archive_there()

    assert os.environ[_OPTIONS] == "-Dmine=1"
    assert [path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".lock-")] == []


def test_a_java_that_makes_no_archive_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "java", "echo no room >&2; exit 1")))

    with pytest.warns(UserWarning, match="without an archive of its classes: .*JAVA_GATEWAY_EXITED"):
        start_quickly(tmp_path / "cache")

    assert os.environ[_OPTIONS] == "-Dmine=1"
    assert [path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".lock-")] == []


def _java(home: Path, script: str) -> Path:
    """A JAVA_HOME whose java does this."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home
