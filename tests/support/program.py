"""The program `riverbed` in this process: what it prints, and how it ends."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from riverbed.tools.cli import main


def run(*words: object, given: str | bytes | None = None) -> Result:
    """`riverbed WORDS`, with `given` as its standard input."""
    return CliRunner().invoke(main, list(map(str, words)), input=given, catch_exceptions=False)


def report(*words: object, status: int = 0, given: str | bytes | None = None) -> dict[str, Any]:
    """The object that `riverbed WORDS --json` prints; it must end with `status`."""
    result = run(*words, "--json", given=given)
    assert result.exit_code == status, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def printed(*words: object) -> list[Any]:
    """The objects that `riverbed WORDS` prints, each in a line of its own."""
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]
