"""Real servers as test subjects: start one, wait until it answers, kill it, start it again on the same data.

`RedisServer` is the oracle, redis-server with an append-only file; `RiverbedServer` is ours, as a process of its own.
Both keep their log outside of the data directory, so that a full or lost disk does not take the explanation with it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, Protocol, Self

import riverbed
from tests.support.forking import Nursery
from tests.support.raw import RawClient, parse

ROOT = Path(__file__).resolve().parents[2]
# Where Riverbed is imported from: the sources, or where a wheel was installed.  For PYTHONPATH.
IMPORTED_FROM = Path(riverbed.__file__).parents[1]
REDIS_MISSING = "these tests compare with redis-server 7.0, which is not on the PATH: `make` finds one, or makes it"
MAIN = [sys.executable, "-m", "riverbed.server.main"]
# For a start or a stop, on a machine that is busy with other things: what takes longer hangs.
PATIENCE_S = 240.0


# A process that a server starts now and then, whatever a test does.
_SCRUB = "scrub_worker"

# Below those that a kernel gives to sockets that take any, such as a proxy or the near end of a connection: between our
# look and the server's own bind none of these is given away.
_PORTS = range(10_000, 32_000)


def ports_of_worker(environment: Mapping[str, str]) -> range:
    """The ports of one worker of pytest: another's server may be about to take one that looks free."""
    number = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return _PORTS[number :: int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))]


_ports = ports_of_worker(os.environ)
_next_port = itertools.count(random.SystemRandom().randrange(len(_ports)))  # tests may run twice at a time


def free_port() -> int:
    """A port that was free a moment ago.  `Server.start` tries another one when it was taken meanwhile."""
    for _ in _ports:
        port = _ports[next(_next_port) % len(_ports)]
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is taken")


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


class StartError(AssertionError):
    """A server did not come up.  Carries the end of its log."""


class Process(Protocol):
    """What tests use of a process: the part of `subprocess.Popen` that a `ForkedServer` has as well."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


class Server:
    """One server process on one data directory; the port changes with each start."""

    name = "server"
    working_directory = ROOT
    environment: Mapping[str, str] | None = None  # None: as of the tests

    def __init__(self, directory: Path, log_directory: Path, options: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self.options = dict(options or {})
        self.port = 0
        self.process: Process | None = None
        log_directory.mkdir(parents=True, exist_ok=True)
        self.log_path = log_directory / f"{self.name}-{id(self):x}.log"

    # -- what the kinds of server differ in

    def program(self) -> list[str]:
        raise AssertionError("a kind of server says what is started")

    def settings(self) -> dict[str, object]:
        raise AssertionError("a kind of server says with which settings")

    def command(self) -> list[str]:
        flags = [word for name, value in self.settings().items() for word in (f"--{name}", str(value))]
        return [*self.program(), *flags]

    def choose_port(self) -> int:
        return free_port()

    # -- life

    def spawn(self) -> None:
        """Start the process and return at once: it may not listen yet."""
        assert self.process is None, "already running"
        self.port = self.choose_port()
        with self.log_path.open("ab") as log:
            self.process = self.launch(self.command(), log)

    def launch(self, command: list[str], log: BinaryIO) -> Process:
        return subprocess.Popen(
            command,
            cwd=self.working_directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when PING is answered; StartError when the process ends or says nothing for `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                status = self.process.returncode
                self.process = None
                raise StartError(f"{self.name} ended with status {status}\n{self.log_tail()}")
            with contextlib.suppress(OSError), self.client(timeout_s=10) as client:
                reply = client.ask("PING")
                if not reply.startswith(b"-LOADING") and not self._is_another(client):
                    return
            time.sleep(0.01)
        raise StartError(f"{self.name} did not answer in {timeout_s:.0f} s\n{self.log_tail()}")

    def _is_another(self, client: RawClient) -> bool:
        """Whether another server took the port while ours was starting; ours is about to find it in use."""
        reply = parse(client.ask("CONFIG", "GET", "dir"))
        return reply.kind != "-" and Path(os.fsdecode(reply.pairs()[0][1].text)).resolve() != self.directory.resolve()

    def start(self, timeout_s: float = PATIENCE_S) -> Self:
        """Start it, and return when PING is answered.  StartError when it does not come up: then it is gone."""
        for attempt in range(3):
            self.spawn()
            try:
                self.wait_ready(timeout_s)
            except StartError as error:
                if attempt < 2 and "in use" in str(error).lower():
                    continue
                self.kill()
                raise
            return self
        raise AssertionError("not reached")

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone.  Nothing to do when it is not running."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, wait, and return the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop on SIGTERM\n{self.log_tail()}") from None
        self.process = None
        return status

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def wait_ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for a server that ends by itself (SHUTDOWN); its exit status."""
        assert self.process is not None
        status = self.process.wait(timeout_s)
        self.process = None
        return status

    def __enter__(self) -> Self:
        return self.start() if self.process is None else self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    # -- looking at it

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def client(self, *, timeout_s: float = 60.0) -> RawClient:
        return RawClient(self.port, timeout_s=timeout_s)

    def children(self, module: str = "") -> list[int]:
        """The processes that it has started and that have not ended: those that run `module`, or all but scrubs."""
        try:
            pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in pids if (module in (runs := _command_line(pid))) and (module or _SCRUB not in runs)]

    def log_text(self) -> str:
        """All that the server has logged."""
        return self.log_path.read_text(errors="replace")

    def log_tail(self, byte_count: int = 6000) -> str:
        """The end of that, for the message of a test that fails."""
        try:
            data = self.log_path.read_bytes()
        except FileNotFoundError:
            return "(no log)"
        return f"--- end of {self.log_path.name}:\n" + data[-byte_count:].decode(errors="replace")

    def private_bytes(self) -> int:
        """RssAnon: memory that is the process's own, without file pages such as LMDB's map.  Linux only."""
        return self._memory("RssAnon")

    def peak_bytes(self) -> int:
        """VmHWM: the most memory, file pages included, that the process has had at a time.  Linux only."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} in /proc/PID/status")


@functools.cache
def _redis_server() -> str:
    """The program, whose replies differ from version to version."""
    program = shutil.which("redis-server")
    if program is not None:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        if " v=7.0." in version:
            return program
    raise AssertionError(REDIS_MISSING)


class RedisServer(Server):
    """The oracle: redis-server with appendonly yes and a log in command format."""

    name = "redis-server"

    def program(self) -> list[str]:
        return [_redis_server()]

    def settings(self) -> dict[str, object]:
        return {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.directory,
            "appendonly": "yes",
            "appendfsync": "no",
            "aof-use-rdb-preamble": "no",
            "save": '""',
            "daemonize": "no",
            "enable-debug-command": "yes",
            **self.options,
        }


class RiverbedServer(Server):
    """Ours: `python -m riverbed.server.main` with the interpreter that runs the tests.

    Where there is a `nursery` the process is forked from it instead, unless a test changes what is started, or its
    surroundings.
    """

    name = "riverbed-server"
    nursery: ClassVar[Nursery | None] = None

    def program(self) -> list[str]:
        return [*MAIN]

    def launch(self, command: list[str], log: BinaryIO) -> Process:
        nursery, words = self.nursery, len(MAIN)
        is_usual = command[:words] == MAIN and self.environment is None and self.working_directory == ROOT
        if nursery is not None and is_usual and nursery.serves():
            return nursery.start(command[words:], log)
        return super().launch(command, log)

    def settings(self) -> dict[str, object]:
        return {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.directory,
            "enable-debug-command": "yes",
            **self.options,
        }
