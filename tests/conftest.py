"""Fixtures: servers on temporary directories, checked for broken invariants when a test is done with them.

Some tests mount file systems, which takes root.  Other users see them counted as deselected, with a line at the end of
the run that says so.  Tests that `make test` runs in one of the two forms, as they say nothing of the other, are
deselected in that one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.certificates import Certificates
from tests.support.forking import Nursery, is_possible
from tests.support.installation import Environment, build_native, build_wheel, copy_source, install
from tests.support.quick_spark import quick_java, quick_python
from tests.support.servers import ROOT, RedisServer, RiverbedServer
from tests.support.tls import Start

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

# Its asserts compare all that two servers leave behind: a failure is to say what differs.
pytest.register_assert_rewrite("tests.support.runs")
# A thousand servers are started: compiling all modules again would be half of what each start costs.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if "PYTEST_XDIST_WORKER" not in os.environ:  # once for all workers, and before anything of Riverbed is imported
    build_native()
# Started in the background, the tests would have programs that are to be interrupted ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def has_room(directory: Path) -> bool:
    """Whether there is memory for what the tests have there at a time, which was 1.8 GB, three times over."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return os.access(directory, os.W_OK) and found.f_bavail * found.f_frsize >= 6 << 30 and machine_bytes >= 12 << 30


# Most of the time would go into waiting for a disk.  Tests for which it matters what a disk does mount one.
# TMPDIR is for the programs that tests start, and for tests that make a directory for each example of Hypothesis.
MEMORY = Path("/dev/shm")
if "PYTEST_DEBUG_TEMPROOT" not in os.environ and has_room(MEMORY):
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)
    os.environ.setdefault("TMPDIR", str(MEMORY))

TESTS = Path(__file__).parent
TOOLS = TESTS / "tools"
# The tools are never compiled.  `test_entry.py`, and of Spark `test_source.py` and `reading/`, run them in both forms.
OF_TOOLS = ("columns", "console", "live", "offline", "sidecar", "subcommands", "text", "top")
OF_SPARK = ("spark/jobs", "spark/quick", "spark/streaming", "spark/writing")
QUICK = TOOLS / "spark" / "quick"
# Nor are compaction and repair, nor the native module and its reference.
OFFLINE = TESTS / "store" / "offline"
WIRE = TESTS / "store" / "wire"
MARKED_FOLDERS = {
    TESTS / "system": "slow",
    TOOLS / "spark": "spark",
    **{TOOLS / name: "once" for name in (*OF_TOOLS, *OF_SPARK)},
    OFFLINE: "once",
    WIRE: "once",
}
NEEDS_ROOT = "tests that mount file systems (power loss, full disk) did not run: they need root"


def is_compiled() -> bool:
    from riverbed.server.version import IS_COMPILED

    return IS_COMPILED


def pytest_configure(config: pytest.Config) -> None:
    form = "compiled" if is_compiled() else "interpreted"
    if form != (wanted := os.environ.get("RIVERBED_FORM", "interpreted")):
        raise pytest.UsageError(f"Riverbed is {form} here, and the tests are to be of the {wanted} form")
    config.addinivalue_line("markers", "needs_root: mounts a file system; left out, with a notice, for other users")
    config.addinivalue_line("markers", "slow: takes more than about a second; every test of tests/system has it")
    config.addinivalue_line("markers", "spark: starts Java; every test of tests/tools/spark has it")
    config.addinivalue_line("markers", "once: runs little of the form under test; left out for the compiled one")
    config.addinivalue_line("markers", "compiled: of an installation of compiled modules; left out where there is none")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`: one more than there are processors, because many tests wait for a disk or a clock."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    from tests.support.parallel import Shares

    return Shares(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for path, of_file in groupby(items, key=attrgetter("path")):
        marks = [mark for folder, mark in MARKED_FOLDERS.items() if path.is_relative_to(folder)]
        for item in of_file:
            for mark in marks:
                item.add_marker(mark)
    if hasattr(config, "workerinput"):  # in a worker of xdist
        items.sort(key=_turn)
    wanted: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        wanted[not _is_left_out(item)].append(item)
    config.hook.pytest_deselected(items=wanted[False])
    items[:] = wanted[True]


def _turn(item: pytest.Item) -> int:
    """The tests of Spark first, and of these the ones that make what the others start more quickly with."""
    if item.path.is_relative_to(TOOLS / "spark"):
        return 0 if item.path.is_relative_to(QUICK) else 1
    return 2 if item.get_closest_marker("slow") else 3


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        return True
    if item.get_closest_marker("compiled"):
        return not is_compiled()
    return item.get_closest_marker("once") is not None and is_compiled()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.geteuid() != 0:
        terminalreporter.write_line(f"NOTE: {NEEDS_ROOT}", yellow=True)


# What Hypothesis makes up is the same in every run as well, and nothing fails for having taken long.
settings.register_profile(
    "riverbed",
    deadline=None,
    database=None,
    derandomize="RIVERBED_SEED" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("riverbed")


def base_seed() -> int:
    """Where random tests begin: the same in every run, unless `RIVERBED_SEED` is a number or `random`."""
    asked = os.environ.get("RIVERBED_SEED", "1")
    return random.SystemRandom().randrange(10**6) if asked == "random" else int(asked)


def broken_invariants(directory: Path) -> list[str]:
    """What `store.check` finds wrong in a directory that no server is using."""
    from riverbed.store.check import check

    return [str(violation) for violation in check(directory)]


@settings(max_examples=1)
@given(st.none())
def begin_with_hypothesis(_: None) -> None:
    """Hypothesis asks the garbage collector once a process whether its random numbers are kept.

    From Python 3.14 on it must do so before `gc.freeze`: what a frozen dict keeps is not found, and a dict is frozen
    even when it was empty.
    """


def pytest_collection_finish() -> None:
    """Have servers forked.  By now all tests are imported, and with them libraries that change the environment."""
    begin_with_hypothesis()
    gc.freeze()  # to look through 400,000 objects of tests again and again took a twentieth of the time
    if is_possible():
        RiverbedServer.nursery = Nursery(ROOT)


@pytest.fixture(scope="module")
def real_start() -> Iterator[None]:
    """Servers are started by their command: for modules that test the start, or what a process has from then on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RiverbedServer, "nursery", None)
        yield


@contextlib.contextmanager
def shared_server(factory: pytest.TempPathFactory, **options: object) -> Iterator[RiverbedServer]:
    """A server for all tests of a module; its store is checked when they are done with it."""
    place = factory.mktemp("riverbed")
    with RiverbedServer(place, factory.mktemp("logs"), options) as server:
        yield server
        server.stop()
    assert broken_invariants(place) == []


StartRiverbed = Callable[..., RiverbedServer]
StartRedis = Callable[..., RedisServer]


@pytest.fixture
def start_riverbed(tmp_path: Path) -> Iterator[StartRiverbed]:
    """Start our server, on a fresh directory or on `directory`; afterwards every one is stopped and its store checked.

    A server that the test killed is checked as it was left.
    """
    servers: list[RiverbedServer] = []

    def start(directory: Path | None = None, options: Mapping[str, object] | None = None) -> RiverbedServer:
        place = directory or tmp_path / f"riverbed-{len(servers)}"
        place.mkdir(parents=True, exist_ok=True)
        server = RiverbedServer(place, tmp_path / "logs", options)
        servers.append(server)
        return server.start()

    yield start
    try:
        for server in servers:
            if server.process is not None:
                server.stop()
    finally:
        for server in servers:
            server.kill()
    for directory in dict.fromkeys(server.directory for server in servers):
        assert broken_invariants(directory) == []


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Start redis-server, on a fresh directory or on `directory`; fails when it is not installed."""
    servers: list[RedisServer] = []

    def start(directory: Path | None = None, options: Mapping[str, object] | None = None) -> RedisServer:
        place = directory or tmp_path / f"redis-{len(servers)}"
        place.mkdir(parents=True, exist_ok=True)
        server = RedisServer(place, tmp_path / "logs", options)
        servers.append(server)
        return server.start()

    yield start
    for server in servers:
        server.kill()


@pytest.fixture
def riverbed(start_riverbed: StartRiverbed) -> RiverbedServer:
    """A running server of ours with an empty store."""
    return start_riverbed()


@pytest.fixture
def redis_server(start_redis: StartRedis) -> RedisServer:
    """A running redis-server with an empty store."""
    return start_redis()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, and certificates of it for a server and a client."""
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_tls(tmp_path: Path, certificates: Certificates) -> Iterator[Start]:
    """Start servers of ours that listen with TLS alone; stopped and checked afterwards."""
    started = Start(tmp_path, certificates)
    yield started
    for server in started.servers:
        if server.process is not None:
            assert server.stop() == 0
        assert "Traceback" not in server.log_text()
        assert broken_invariants(server.directory) == []


@pytest.fixture
def java_options(tmp_path_factory: pytest.TempPathFactory) -> str:
    """For Spark that starts quickly: see `quick_spark.py`."""
    return quick_java(tmp_path_factory)


@pytest.fixture
def spark_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For Spark whose Python starts quickly."""
    return quick_python(tmp_path_factory)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Riverbed's wheel, built from a copy of the tree without any network."""
    directory = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_source(directory / "source"), directory)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel in it, and without the source tree."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "environment")
