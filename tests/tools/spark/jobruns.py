"""Running a job in this process, on the Spark that is there, and freezing the store of a server."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from riverbed.server.version import VERSION
from riverbed.store.snapshot.writer import take_snapshot
from tests.support import program
from tests.support.servers import RiverbedServer

run = partial(program.run, "spark")
report = partial(program.report, "spark")


def freeze(server: RiverbedServer, out: Path) -> Path:
    """A snapshot of all that a running server has."""
    with server.client() as client:
        assert client.ask("SAVE") == b"+OK\r\n"
    return take_snapshot(server.directory, out, program=f"riverbed {VERSION}").path
