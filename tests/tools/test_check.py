from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from server.version import VERSION
from store.errors import CorruptionError, LockedError, VersionError
from tests.servers import RiverbedServer
from tools.cli import main


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


def promise(monkeypatch: pytest.MonkeyPatch, *found: str, error: Exception | None = None) -> None:
    """Let the store's check find `found`, and then meet `error`."""

    def check(directory: Path) -> Iterator[str]:
        yield from found
        if error is not None:
            raise error

    monkeypatch.setattr("tools.check.violations", check)


def test_sound_directory_is_called_sound(start_riverbed: Callable[..., RiverbedServer]) -> None:
    server = start_riverbed()
    with server.client() as client:
        client.pipeline([("XADD", "s", f"{number}-1", "field", "value") for number in range(1, 300)])
        client.ask("XDEL", "s", "5-1")
    server.stop()
    result = run("check", server.directory)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("sound")


def test_violations_are_lines_and_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    promise(monkeypatch, "stream s: 3 entries, 2 counted", "stream t: [red]")
    result = run("check", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "stream s: 3 entries, 2 counted\nstream t: [red]\n")
    assert result.stderr.startswith("2 violations (")


def test_many_violations_are_cut_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    promise(monkeypatch, *(f"row {number}" for number in range(150)))
    result = run("check", tmp_path)
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 100)
    assert result.stderr.startswith("100 violations, and perhaps more")
    assert len(run("check", tmp_path, "--limit", 0).stdout.splitlines()) == 150


def test_damage_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    promise(monkeypatch, "one", error=CorruptionError("a.aof", 17, "checksum does not match"))
    result = run("check", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "one\na.aof at byte 17: checksum does not match\n")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LockedError("x"), "is in use; stop its server first"),
        (VersionError("written by version 9"), "written by version 9"),
        (PermissionError(13, "Permission denied", "data.mdb"), "Permission denied"),
    ],
)
def test_directory_that_cannot_be_checked_is_status_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, told: str
) -> None:
    promise(monkeypatch, error=error)
    result = run("check", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in " ".join(result.stderr.split())


def test_directory_must_exist(tmp_path: Path) -> None:
    assert run("check", tmp_path / "none").exit_code == 2


def test_help_lists_the_subcommands_and_version_is_told() -> None:
    assert "check" in run("--help").stdout
    assert run("--version").stdout == f"riverbed, version {VERSION}\n"
