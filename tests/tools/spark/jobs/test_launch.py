from __future__ import annotations

import importlib
import json
import logging
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from riverbed.server.version import VERSION
from riverbed.store.layout import MANIFEST_NAME
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.cli import main
from riverbed.tools.console.console import Failure
from riverbed.tools.spark.jobs.command import explain_spark
from riverbed.tools.spark.jobs.launch import require_java, says_more_than_it_raises
from riverbed.tools.spark.jobs.outdir import new_reports
from tests.support.servers import IMPORTED_FROM, ROOT, RiverbedServer
from tests.tools.spark.jobruns import run


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    with RiverbedServer(folder / "data", folder) as server:
        with server.client() as client:
            client.pipeline([("XADD", "s", f"{number}-0", "field", "value") for number in range(1, 11)])
        server.stop()
    return take_snapshot(folder / "data", folder / "snapshot", program=f"riverbed {VERSION}").path


def fake_java(folder: Path, text: str) -> Path:
    """A JAVA_HOME whose java says this."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "java is Java 11; install one"),
        ('java version "1.8.0_291"', "java is Java 8; install one"),
        ("no java here", "prints no version"),
    ],
)
def test_a_java_that_is_too_old_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, reason: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", text)))

    with pytest.raises(Failure, match=re.escape(reason)):
        require_java()


def test_a_java_that_is_new_enough_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", 'openjdk version "21" 2023-09-19')))

    require_java()


def test_no_java_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="there is no java on the PATH"):
        require_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(Failure, match="gone/bin/java does not run"):
        require_java()


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")

    monkeypatch.setattr(importlib, "import_module", missing)

    result = run("rates", "somewhere")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "riverbed: pyspark.sql is not installed, and this needs it: pip install 'riverbed[spark]'\n"


def test_the_list_of_jobs_loads_no_spark() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from riverbed.tools.cli import main\n"
        "print(CliRunner().invoke(main, ['spark', '--help']).output)\n"
        "assert not {'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)\n"
    )

    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    for job in ("audit", "export", "rates"):
        assert f"  {job} " in result.stdout


@pytest.mark.parametrize("job", ["audit", "export", "rates"])
def test_every_job_explains_itself(job: str) -> None:
    result = CliRunner().invoke(main, ["spark", job, "--help"], terminal_width=80)

    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert f"riverbed spark {job} " in result.stdout
    assert "spark-submit tools/spark/jobs/" in result.stdout
    assert "--master" in result.stdout


def test_an_interrupt_of_a_call_to_java_is_not_logged_as_well() -> None:
    def log(path: str) -> bool:
        return says_more_than_it_raises(logging.makeLogRecord({"pathname": path, "msg": "KeyboardInterrupt"}))

    assert not log("/lib/python3.11/site-packages/py4j/java_gateway.py")
    assert log("/lib/python3.11/site-packages/riverbed/tools/spark/jobs/launch.py")


def test_where_no_report_can_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match="is not a directory"):
        new_reports(tmp_path / "file", ["a"], overwrite=False)
    with pytest.raises(Failure, match="cannot write to"):
        new_reports(tmp_path / "file" / "reports", ["a"], overwrite=False)


def test_foreign_newer_and_damaged_snapshots_are_told(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = (snapshot / MANIFEST_NAME).read_text()
    with monkeypatch.context() as patch:
        patch.setattr("riverbed.store.snapshot.manifest.SNAPSHOT_VERSION", 2)
        newer = take_snapshot(snapshot.parent / "data", tmp_path / "of the future", program="test").path
    for name, text, reason in (
        ("newer", (newer / MANIFEST_NAME).read_text(), "has version 2; this program reads 1 (it was written by test)"),
        ("foreign", "{}", "is not the manifest of a snapshot of Riverbed"),
        ("damaged", manifest.replace('"entries": 10', '"entries": 11'), "its checksum does not fit"),
        ("empty", None, "is not a snapshot: it has no manifest.json"),
    ):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / MANIFEST_NAME).write_text(text)
        result = run("rates", tmp_path / name)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert reason in result.stderr


@pytest.mark.parametrize("value", ["spark.x", "=5"])
def test_a_setting_has_a_name_and_a_value(value: str) -> None:
    result = run("rates", "somewhere", "--conf", value)

    assert result.exit_code == 2
    assert f"'{value}' is not NAME=VALUE" in result.stderr


def test_of_an_error_of_spark_the_line_that_matters_is_told() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x"\nriverbed.tools.spark.errors.SourceError: damaged snapshot: data.mdb\n\n\tat org.apache.spark'
    )
    assert explain_spark(Exception(text)) == "damaged snapshot: data.mdb"
    assert explain_spark(Exception("\n[PATH_NOT_FOUND] no path\nmore")) == "no path"


def test_of_a_traceback_of_a_worker_the_last_line_is_told() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times: "
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\n    process()\nKeyError: 1\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "x.py", line 7, in read\n    file.read()\n'
        "OSError: [Errno 5] Input/output error\n\n\tat org.apache.spark.api.python.BasePythonRunner"
    )
    assert explain_spark(Exception(text)) == "OSError: [Errno 5] Input/output error"


def test_spark_submit_runs_a_job_and_prints_nothing_else(spark: SparkSession, snapshot: Path, tmp_path: Path) -> None:
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    environment = {**os.environ, "PYTHONPATH": str(IMPORTED_FROM)}
    job = ROOT / "tools" / "spark" / "jobs" / "export" / "export.py"

    result = subprocess.run(
        [submit, "--master", "local[1]", job, snapshot, tmp_path / "out", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["rows"] == 10
