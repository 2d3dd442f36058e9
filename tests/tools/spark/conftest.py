from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.quick_spark import quick_java, quick_python
from tests.support.servers import IMPORTED_FROM, ROOT, RiverbedServer

# Of the package, which is the folder: tests that follow in the same process must not find these settings.


@pytest.fixture(scope="package", autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is cached by default goes where all else of the tests is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.fixture(scope="package")
def spark(temporary: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests: starting it takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_SUBMIT_OPTS", quick_java(tmp_path_factory))
        patch.setenv("PYSPARK_PYTHON", str(quick_python(tmp_path_factory)))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(IMPORTED_FROM)]))
        session = start_spark()
        yield session
        session.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RiverbedServer]:
    """A running server of ours, with its data in `data` of the test's folder."""
    with RiverbedServer(tmp_path / "data", tmp_path) as server:
        yield server


def start_spark() -> SparkSession:
    session = (
        SparkSession.builder.master("local[2,2]")
        .appName("riverbed tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
