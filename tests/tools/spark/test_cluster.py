from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import redis

from tests.support.in_process import HandClock, Product
from tests.support.installation import Environment
from tests.support.servers import RiverbedServer
from tests.tools.spark.cluster import Cluster
from tests.tools.spark.stores import freeze

pytestmark = pytest.mark.once  # Spark runs a wheel that is built here

PROGRAM = Path(__file__).with_name("cluster_program.py")


def test_an_installed_package_is_found_by_spark_without_an_import(installed: Environment, tmp_path: Path) -> None:
    # As Spark looks: top-level modules whose names begin like this, with a DefaultSource.
    program = """
import importlib, pkgutil
from pyspark.sql.datasource import DataSource
names = [module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")]
sources = [importlib.import_module(name).DefaultSource for name in names]
assert all(issubclass(source, DataSource) for source in sources)
print([(source.name(), importlib.import_module(source.__module__).__file__) for source in sources])
"""
    environment = {"PYTHONPATH": str(installed.site), "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([("riverbed", str(installed.site / "pyspark_riverbed" / "__init__.py"))])


def test_a_cluster_reads_and_writes_with_what_it_was_given(
    wheel: Path, installed: Environment, tmp_path: Path, java_options: str, spark_python: Path
) -> None:
    packages = tmp_path / "riverbed.zip"
    shutil.copy(wheel, packages)
    assert "pyspark_riverbed/__init__.py" in zipfile.ZipFile(packages).namelist()
    product = Product(tmp_path / "data", HandClock())
    for number in range(2000):
        product.run("XADD", f"s{number % 3}", f"{1 + number}-0", "n", number)
    shared = freeze(product, tmp_path / "shared" / "snapshot", 50)
    elsewhere = tmp_path / "else where" / "snapshot"
    shutil.copytree(shared, elsewhere)

    with (
        RiverbedServer(tmp_path / "server", tmp_path, {"appendfsync": "no"}) as server,
        Cluster(tmp_path / "cluster", java_options, spark_python) as cluster,
    ):
        printed = cluster.submit(
            PROGRAM,
            shared,
            elsewhere,
            f"127.0.0.1:{server.port}",
            *(work / "work" for work in cluster.work),
            packages=packages,
            python_path=installed.site,
            seconds=300,
        )
        results = json.loads(printed.splitlines()[-1])
        copied = [int(fields[b"n"]) for _, fields in redis.Redis(port=server.port).xrange("copy")]

    expected = [2000, sum(range(2000))]
    assert results == {
        "code": [".zip"],
        "shared": expected,
        "fetched": expected,
        "killed": 1,
    }
    assert sorted(copied) == list(range(2000))
    # Each worker has fetched it once, into a cache of its own.
    for work in cluster.work:
        assert len(list((work / "tmp").glob("riverbed-spark-*/*/data.mdb"))) == 1
