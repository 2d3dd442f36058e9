"""Running a job in this process, on the Spark that is there, and freezing the store of a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from riverbed.server.version import VERSION
from riverbed.store.snapshot.writer import take_snapshot
from riverbed.tools.cli import main
from tests.support.servers import RiverbedServer


def run(*arguments: object) -> Result:
    """`riverbed spark ...`"""
    return CliRunner().invoke(main, ["spark", *map(str, arguments)], catch_exceptions=False)


def report(*arguments: object, status: int = 0) -> dict[str, Any]:
    """The same with --json, and the object that it prints."""
    result = run(*arguments, "--json")
    assert result.exit_code == status, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def freeze(server: RiverbedServer, out: Path) -> Path:
    """A snapshot of all that a running server has."""
    with server.client() as client:
        assert client.ask("SAVE") == b"+OK\r\n"
    return take_snapshot(server.directory, out, program=f"riverbed {VERSION}").path
