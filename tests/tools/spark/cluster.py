"""A standalone Spark cluster on this machine: a master, workers, and programs that are submitted to it.

Workers share nothing but what a test gives them: each has a directory of its own for its work and its cache, and a
Python path without the source tree.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import pyspark

from tests.support.servers import free_port

SPARK_HOME: Final = Path(pyspark.__file__).parent
_START_S: Final = 120.0


class ClusterError(AssertionError):
    """A daemon or a program that did not do what it should.  Carries the end of its log."""


class Cluster:
    """A master and `workers` workers of one core each, of such Java and Python; stopped and waited for at the end."""

    def __init__(self, directory: Path, java_options: str, python: Path, workers: int = 2) -> None:
        self.directory = directory
        self._python = python
        self._java_options = f"{java_options} -Xss512k"
        self.work = [directory / f"worker-{number}" for number in range(workers)]
        self._port = free_port()
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._logs: list[IO[bytes]] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start_daemons()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _start_daemons(self) -> None:
        words = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(free_port())]
        self._start("master", "master.Master", words, self.directory)
        self._wait_for("master", rb"New state: ALIVE")
        for work in self.work:
            (work / "tmp").mkdir(parents=True)
            words = ["--host", "127.0.0.1", "--webui-port", str(free_port()), "--cores", "1", "--memory", "700m"]
            self._start(work.name, "worker.Worker", [*words, "--work-dir", str(work / "work"), self.url], work)
        for work in self.work:
            self._wait_for(work.name, rb"Successfully registered with master")

    def environment(self, place: Path) -> dict[str, str]:
        """Of a process whose temporary files go to `place`; nothing of ours is on its Python path."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "JAVA_HOME") if name in os.environ}
        (place / "tmp").mkdir(parents=True, exist_ok=True)
        return kept | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "200m",
            "SPARK_DAEMON_JAVA_OPTS": self._java_options,
            "SPARK_CONF_DIR": str(self.directory / "none"),  # one that is there would be a place of classes as well
            "PYSPARK_PYTHON": str(self._python),
            "TMPDIR": str(place / "tmp"),
        }

    def _start(self, name: str, kind: str, words: list[str], place: Path) -> None:
        environment = self.environment(place)
        log = (self.directory / f"{name}.log").open("wb")
        self._logs.append(log)
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words]
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._running.append((process, Path(log.name)))

    def _wait_for(self, name: str, line: bytes) -> None:
        path = self.directory / f"{name}.log"
        deadline = time.monotonic() + _START_S
        while not re.search(line, path.read_bytes()):
            if time.monotonic() > deadline or any(process.poll() is not None for process, _ in self._running):
                raise ClusterError(f"{name} did not start\n{_tail(path)}")
            time.sleep(0.05)

    def stop(self) -> None:
        for process, _ in reversed(self._running):
            process.terminate()
        for process, _ in self._running:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()

    def submit(self, program: Path, *words: object, packages: Path, python_path: Path | None, seconds: float) -> str:
        """Run a program on the cluster -> what it has printed.  `packages` is a zip that executors are given."""
        place = self.directory / "driver"
        environment = self.environment(place)
        if python_path is not None:
            environment["PYTHONPATH"] = str(python_path)
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            # Nothing begins before every worker takes part, or a slow one would not.
            "spark.cores.max": str(len(self.work)),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": self._java_options,
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "WARN",
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, "--driver-memory", "512m"]
        command += ["--driver-java-options", self._java_options, "--py-files", str(packages)]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command += [str(program), *map(str, words)]
        with (self.directory / "driver.log").open("wb") as log:
            done = subprocess.run(
                command, env=environment, cwd=place, stdout=subprocess.PIPE, stderr=log, timeout=seconds, check=False
            )
        if done.returncode != 0:
            log_tail = _tail(self.directory / "driver.log")
            raise ClusterError(f"the program ended with {done.returncode}\n{log_tail}\n{done.stdout.decode()[-6000:]}")
        return done.stdout.decode()


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-6000:]
