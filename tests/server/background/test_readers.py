"""Long reading transactions are reported, whichever process has them, and short ones are not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverbed.server.background.readers import LONG_S
from tests.support.servers import ROOT
from tests.support.ticks import Ticks, in_loop

OTHER = """
import sys
from pathlib import Path
from riverbed.store.tables.environment import Tables

tables = Tables(Path(sys.argv[1]), 1 << 30, readonly=True)
for line in sys.stdin:
    with tables.env.begin():
        print("reading", flush=True)
        sys.stdin.readline()
    print("over", flush=True)
"""


class Other:
    """Another process that reads the tables."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def step(self) -> None:
        """Begin to read, or end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    told: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    log, handler = logging.getLogger("riverbed"), Handler(logging.WARNING)
    log.addHandler(handler)
    yield told
    log.removeHandler(handler)


class Server:
    """An executor whose clock is moved by hand, and what its INFO says of readers."""

    def __init__(self, directory: Path) -> None:
        self.ticks = Ticks(directory)
        self.client = self.ticks.connect()

    async def pass_time(self, seconds: float) -> None:
        """Something is written and checkpointed, time passes, and the server looks around."""
        await self.ticks.ask(self.client, "XADD s * f v", "SAVE")
        self.ticks.server.maintenance._check_space()
        self.ticks.clock.now_ms += int(seconds * 1000)
        self.ticks.server.maintenance._check_space()

    async def oldest(self) -> tuple[int, int]:
        (info,) = await self.ticks.ask(self.client, "INFO persistence")
        fields = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        return int(fields["riverbed_lmdb_oldest_reader_pid"]), int(fields["riverbed_lmdb_oldest_reader_sec"])


def test_a_reader_that_stays_open_is_reported_once_with_its_process(tmp_path: Path, warnings: list[str]) -> None:
    async def body() -> None:
        server = Server(tmp_path)
        await server.pass_time(0)
        other = Other(tmp_path)
        try:
            other.step()
            await server.pass_time(LONG_S - 1)
            assert (await server.oldest(), warnings) == ((other.pid, LONG_S - 1), [])
            for _ in range(3):
                await server.pass_time(10)
            assert await server.oldest() == (other.pid, LONG_S + 29)
            (line,) = warnings
            assert line.startswith(f"process {other.pid} has been reading the tables for 69 s, as they were ")
            other.step()  # it ends, and another one begins
            other.step()
            await server.pass_time(LONG_S - 1)
            assert (await server.oldest(), len(warnings)) == ((other.pid, LONG_S - 1), 1)
            await server.pass_time(1)
            assert len(warnings) == 2
        finally:
            other.close()
        await server.pass_time(1)
        assert await server.oldest() == (0, 0)
        server.ticks.close()

    in_loop(body())


def test_a_reader_of_the_server_itself_is_reported_as_well(tmp_path: Path, warnings: list[str]) -> None:
    async def body() -> None:
        server = Server(tmp_path)
        await server.pass_time(0)
        with server.ticks.engine.tables.env.begin():
            await server.pass_time(LONG_S)
            assert await server.oldest() == (os.getpid(), LONG_S)
        assert len(warnings) == 1
        server.ticks.close()

    in_loop(body())


def test_a_reader_that_sees_the_present_state_is_none_to_complain_of(tmp_path: Path, warnings: list[str]) -> None:
    async def body() -> None:
        server = Server(tmp_path)
        await server.pass_time(0)
        other = Other(tmp_path)
        try:
            other.step()
            for _ in range(5):
                server.ticks.clock.now_ms += 60_000
                server.ticks.server.maintenance._check_space()
            assert (await server.oldest(), warnings) == ((0, 0), [])
        finally:
            other.close()
        server.ticks.close()

    in_loop(body())
