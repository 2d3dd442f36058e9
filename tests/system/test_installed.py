"""Riverbed as it is installed, in a working directory whose own modules are called as its folders are.

Each foreign module leaves a trace when it is imported, and fails.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.conftest import broken_invariants
from tests.support.archives import unpack
from tests.support.installation import (
    FOLDERS,
    Environment,
    build_sdist,
    build_wheel,
    clean_environment,
    copy_source,
    install,
)
from tests.support.replicas import follow, syncs, until_level
from tests.support.servers import ROOT, RiverbedServer
from tests.support.waiting import rewritten

pytestmark = pytest.mark.once  # but for those that are `compiled`, each installs a wheel that it builds

TRACE = "imported"
FOREIGN = [
    *(f"{name}/__init__.py" for name in (*FOLDERS, "tests", "benchmarks")),
    *(f"{name}/main.py" for name in FOLDERS),
    "store.py",
    "server/__main__.py",
    "store/rewrite/__init__.py",
    "tools/spark/__init__.py",
]


def run(command: list[str | Path], directory: Path, status: int = 0, **variables: Path | str) -> str:
    """What a program prints that is run there, with so many more variables in its environment."""
    environment = clean_environment() | {name: str(value) for name, value in variables.items()}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Path]:
    """The working directory.  Nothing of it has been imported in the end."""
    directory = tmp_path / "foreign"
    trace = directory / TRACE
    for name in FOREIGN:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(trace)!r}, 'a').write(__name__ + chr(10))\nraise SystemExit(__name__)\n")
    yield directory
    assert not trace.exists(), trace.read_text()


class InstalledServer(RiverbedServer):
    """One that is started in a directory, by words such as the path of `riverbed-server`."""

    def __init__(self, words: list[str], working_directory: Path, directory: Path, options: dict[str, object]) -> None:
        super().__init__(directory, working_directory.parent / "logs", options)
        self.words = words
        self.working_directory = working_directory
        self.environment = clean_environment()

    def program(self) -> list[str]:
        return self.words


Start = Callable[..., RiverbedServer]


@pytest.fixture(params=["riverbed-server", "python -m"])
def start(request: pytest.FixtureRequest, installed: Environment, foreign: Path, tmp_path: Path) -> Iterator[Start]:
    """Start a server in the foreign directory, in both ways there are; its data is whole in the end."""
    servers: list[RiverbedServer] = []
    words = {
        "riverbed-server": [str(installed.program("riverbed-server"))],
        "python -m": [str(installed.python), "-m", "riverbed.server.main"],
    }[request.param]

    def started(**options: object) -> RiverbedServer:
        directory = tmp_path / f"data-{len(servers)}"
        directory.mkdir()
        servers.append(InstalledServer(words, foreign, directory, options))
        return servers[-1].start()

    yield started
    for server in servers:
        server.kill()
        assert broken_invariants(server.directory) == []


def client_of(server: RiverbedServer) -> redis.Redis:
    # after 5 s it would ask again, and a snapshot takes longer on a busy machine
    return redis.Redis(port=server.port, decode_responses=True, socket_timeout=120)


def fill(client: redis.Redis, entries: int = 100) -> None:
    pipeline = client.pipeline()
    for number in range(1, entries + 1):
        pipeline.xadd("s", {"n": number}, id=f"{number}-0")
    pipeline.execute()


def entries_in(riverbed: Path, source: Path, directory: Path) -> list[str]:
    """The IDs that `riverbed dump` prints of stream s."""
    printed = run([riverbed, "dump", source, "s"], directory)
    return [json.loads(line)["id"] for line in printed.splitlines()]


IDS = [f"{number}-0" for number in range(1, 101)]


@pytest.mark.parametrize("name", FOLDERS)
def test_an_import_of_a_foreign_module_would_be_seen(installed: Environment, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit(9)\n")
    run([installed.python, "-m", name], tmp_path, status=9)
    assert (tmp_path / TRACE).exists()


def test_the_installed_package_is_the_one_that_runs(installed: Environment, foreign: Path) -> None:
    program = "import riverbed.server.main, riverbed.store, riverbed.tools.entry as entry; print(entry.__file__)"
    assert run([installed.python, "-c", program], foreign).strip() == str(
        installed.site / "riverbed" / "tools" / "entry.py"
    )


def test_a_server_serves_rewrites_and_starts_again(start: Start, installed: Environment) -> None:
    server = start()
    client = client_of(server)
    fill(client)
    client.xgroup_create("s", "g", id="0")
    assert [name for name, _ in client.xreadgroup("g", "c", {"s": ">"}, count=100)[0][1]] == IDS
    rewritten(server)
    client.close()
    server.kill()
    server.start()
    client = client_of(server)
    assert [name for name, _ in client.xrange("s")] == IDS
    assert client.xpending("s", "g")["pending"] == 100
    client.close()
    server.stop()


def test_a_server_freezes_a_snapshot(start: Start, installed: Environment, foreign: Path) -> None:
    server = start()
    client = client_of(server)
    fill(client)
    client.execute_command("RIVERBED", "SNAPSHOT", "monday")
    client.close()
    server.stop()
    snapshot = server.directory / "snapshots" / "monday"
    riverbed = installed.program("riverbed")
    run([riverbed, "check", snapshot], foreign)
    assert entries_in(riverbed, snapshot, foreign) == IDS


def test_a_replica_follows_with_a_full_sync(start: Start) -> None:
    primary, replica = start(), start()
    client = client_of(primary)
    fill(client)
    follow(replica, primary.port)
    until_level(primary, replica)
    assert syncs(primary)[0] == 1
    with client_of(replica) as other:
        assert [name for name, _ in other.xrange("s")] == IDS
    client.close()
    primary.stop()
    replica.stop()


@pytest.fixture
def data(installed: Environment, foreign: Path, tmp_path: Path) -> Path:
    """A data directory with a hundred entries in stream s, which no server uses."""
    directory = tmp_path / "data"
    directory.mkdir()
    server = InstalledServer([str(installed.program("riverbed-server"))], foreign, directory, {})
    with server, client_of(server) as client:
        fill(client)
        client.close()
        server.stop()
    return directory


def test_every_tool_works(installed: Environment, foreign: Path, data: Path, tmp_path: Path) -> None:
    riverbed = installed.program("riverbed")
    snapshot, restored, replayed = (tmp_path / name for name in ("snapshot", "restored", "replayed"))

    run([riverbed, "check", data, "--deep"], foreign)
    assert "100" in run([riverbed, "stat", data], foreign)
    assert entries_in(riverbed, data, foreign) == IDS
    run([riverbed, "snapshot", data, snapshot], foreign)
    run([riverbed, "restore", snapshot, restored], foreign)
    run([riverbed, "compact", restored, "--yes"], foreign)
    assert entries_in(riverbed, restored, foreign) == IDS
    run([riverbed, "replay", data, replayed], foreign)
    assert entries_in(riverbed, replayed, foreign) == IDS
    for directory in (data, restored, replayed):
        assert broken_invariants(directory) == []


@pytest.mark.spark
def test_spark_reads(installed: Environment, foreign: Path, data: Path, tmp_path: Path, java_options: str) -> None:
    program = """
import os, sys
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
)
print("entries:", session.read.format("riverbed").load(sys.argv[1]).count())
session.stop()
"""
    snapshot = tmp_path / "snapshot"
    run([installed.program("riverbed"), "snapshot", data, snapshot], foreign)
    (foreign / "job.py").write_text(program)
    variables = {"PYSPARK_PYTHON": installed.python, "SPARK_SUBMIT_OPTS": java_options}
    assert "entries: 100" in run([installed.python, "job.py", snapshot], foreign, **variables)


@pytest.mark.spark
def test_a_job_of_spark_runs(installed: Environment, foreign: Path, data: Path, java_options: str) -> None:
    command = [installed.program("riverbed"), "spark", "rates", data, "--json"]
    report = json.loads(run(command, foreign, SPARK_SUBMIT_OPTS=java_options))
    assert report["entries"] == 100


# -- the native module -----------------------------------------------------------------------------------------------


def test_a_wheel_has_the_native_module_for_every_python_from_3_11_on(
    wheel: Path, installed: Environment, foreign: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert "riverbed/store/wire/native.abi3.so" in archive.namelist()
    assert "-cp311-abi3-" in wheel.name
    assert "with the native module" in run([installed.program("riverbed-server"), "--version"], foreign)


def test_an_installation_without_a_compiler_has_the_reference(foreign: Path, tmp_path: Path) -> None:
    built = build_wheel(copy_source(tmp_path / "source"), tmp_path / "wheels", CC="false")
    environment = install(built, tmp_path / "environment")
    assert "without the native module" in run([environment.program("riverbed-server"), "--version"], foreign)


def test_a_python_without_the_global_lock_gets_the_reference(tmp_path: Path) -> None:
    """It has no limited API: setuptools refuses to build for one."""
    program = (
        "import runpy, sysconfig\n"
        "ask, asked = sysconfig.get_config_var, sysconfig.get_config_vars\n"
        "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else ask(name)\n"
        "sysconfig.get_config_vars = lambda *names: [sysconfig.get_config_var(one) for one in names] or asked()\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    source = copy_source(tmp_path / "source")
    command = [sys.executable, "-c", program, "-q", "bdist_wheel", "--dist-dir", tmp_path / "wheels"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "riverbed will be interpreted: its native module needs the global lock" in done.stderr
    [wheel] = (tmp_path / "wheels").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith(".so")] == []


# -- compiled modules ------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled() -> Environment:
    """The environment of these tests: `make test-compiled` has built its wheel."""
    return Environment(Path(sys.prefix))


@pytest.mark.compiled
def test_every_module_of_the_list_is_compiled(compiled: Environment, foreign: Path) -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["riverbed"]["compiled"]
    program = "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]))"
    found = run([compiled.python, "-c", program, *listed], foreign).split()
    assert [Path(path).name for path in found if path.endswith(".py")] == []
    [tags] = compiled.site.glob("riverbed-*.dist-info/WHEEL")
    assert "-abi3-" not in tags.read_text(), "for one version of Python alone"
    assert ", compiled, with the native module)" in run([compiled.program("riverbed-server"), "--version"], foreign)


@pytest.mark.compiled
def test_a_compiled_server_serves_rewrites_and_starts_again(
    compiled: Environment, foreign: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    server = InstalledServer([str(compiled.program("riverbed-server"))], foreign, directory, {})
    with server:
        with client_of(server) as client:
            assert client.info("server")["riverbed_compiled"] == 1
            fill(client)
            client.xgroup_create("s", "g", id="0")
            assert [name for name, _ in client.xreadgroup("g", "c", {"s": ">"}, count=100)[0][1]] == IDS
            assert client.xack("s", "g", *IDS[:50]) == 50
            assert client.xautoclaim("s", "g", "d", 0, "0", count=100, justid=True) == IDS[50:]
        rewritten(server)
        server.kill()
        server.start()
        with client_of(server) as client:
            assert [name for name, _ in client.xrange("s")] == IDS
            assert client.xpending("s", "g")["consumers"] == [{"name": "d", "pending": 50}]
        server.stop()
    assert broken_invariants(directory) == []


def test_a_wheel_is_interpreted_where_there_is_no_compiler(foreign: Path, tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    built = build_wheel(source, tmp_path / "wheels", RIVERBED_COMPILE="auto", CC="false")
    environment = install(built, tmp_path / "environment")
    said = run([environment.program("riverbed-server"), "--version"], foreign)
    assert ", interpreted, without the native module)" in said
    with pytest.raises(subprocess.CalledProcessError) as refused:
        build_wheel(source, tmp_path / "others", RIVERBED_COMPILE="1", CC="false")
    assert "riverbed cannot be compiled: there is no C compiler that works" in refused.value.stderr


# -- the source ------------------------------------------------------------------------------------------------------


def without_links(source: Path) -> Path:
    """What is left of a copy of the repository where links cannot be made: a text file with the target of each."""
    for name in FOLDERS:
        link = source / "src" / "riverbed" / name
        link.unlink()
        link.write_text(f"../../{name}")
    return source


def modules_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if name.endswith(".py"))


def test_a_source_distribution_can_be_installed(wheel: Path, foreign: Path, tmp_path: Path) -> None:
    archive = build_sdist(copy_source(tmp_path / "source"), tmp_path / "sdist")
    with tarfile.open(archive) as files:
        assert not [file.name for file in files if file.issym()]
    unpack(archive, tmp_path / "unpacked")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    again = build_wheel(unpacked, tmp_path / "wheels")
    assert modules_in(again) == modules_in(wheel)
    environment = install(again, tmp_path / "environment")
    assert run([environment.program("riverbed-server"), "--version"], foreign).startswith("riverbed-server ")


def test_links_that_a_copy_has_lost_are_made_again(wheel: Path, tmp_path: Path) -> None:
    source = without_links(copy_source(tmp_path / "source"))
    again = build_wheel(source, tmp_path / "wheels")
    assert modules_in(again) == modules_in(wheel)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda source: shutil.rmtree(source / "tools"), "the folder ../../tools beside it is missing"),
        (lambda source: (source / "src/riverbed/tools").write_text("mine"), "must be a link to ../../tools"),
    ],
    ids=["a missing folder", "a file of another"],
)
def test_a_copy_that_cannot_be_linked_again_is_refused_and_left_alone(
    tmp_path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    source = without_links(copy_source(tmp_path / "source"))
    spoil(source)
    before = (source / "src" / "riverbed" / "tools").read_text()
    with pytest.raises(subprocess.CalledProcessError) as refused:
        build_wheel(source, tmp_path / "wheels")
    assert "riverbed cannot be installed: " in refused.value.stderr
    assert told in refused.value.stderr
    assert (source / "src" / "riverbed" / "tools").read_text() == before
