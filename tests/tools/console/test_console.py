from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from riverbed.store.errors import CorruptionError, LockedError
from riverbed.tools.cli import main
from riverbed.tools.console import console
from riverbed.tools.console.console import (
    Failure,
    ProgressBar,
    Seconds,
    counted,
    failures_explained,
    seconds_text,
    size_text,
)
from riverbed.tools.console.outputs import INTERRUPTED


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (1_550_000, "1.6 MB"),
        (99_960_000, "100 MB"),
        (999_400_000, "999 MB"),
        (999_600_000, "1.0 GB"),
        (12 * 10**18, "12000 PB"),
    ],
)
def test_sizes_have_two_digits_that_count(byte_count: int, text: str) -> None:
    assert size_text(byte_count) == text


def test_numbers_and_nouns_agree() -> None:
    assert counted(1, "entry") == "1 entry"
    assert counted(1200, "entry") == "1,200 entries"
    assert counted(0, "key") == "0 keys"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.123, "0.12 s"), (12.34, "12.3 s"), (245, "4 min 5 s"), (7260, "2 h 1 min")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CorruptionError("a.aof", 17, "odd [red] bytes"), "cannot go: a.aof at byte 17: odd [red] bytes"),
        (LockedError("d is in use by another process"), "cannot go: d is in use by another process; stop its"),
        (FileNotFoundError(2, "x", "some/where"), "cannot go: some/where: No such file or directory"),
    ],
)
def test_failures_are_one_line_and_status_2(error: Exception, text: str) -> None:
    @click.command()
    def command() -> None:
        with failures_explained("go"):
            raise error

    result = CliRunner().invoke(command, catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"riverbed: {text}")
    assert result.stderr.count("\n") == 1


def test_a_failure_has_nothing_that_a_terminal_obeys() -> None:
    @click.command()
    def fail() -> None:
        raise Failure("no \x1b[2J[red]\x9b31m\u202e\udcff here")

    assert CliRunner().invoke(fail).stderr == "riverbed: no \\x1b[2J[red]\\x9b31m\\u202e\\xff here\n"


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "0", "-1", "x"])
def test_what_cannot_be_waited_for_is_no_time(seconds: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds()(seconds)


def test_interrupt_has_the_status_a_shell_expects() -> None:
    with pytest.raises(Failure, match="interrupted: did not go") as caught, failures_explained("go"):
        raise KeyboardInterrupt
    assert caught.value.exit_code == INTERRUPTED


def test_another_signal_has_its_own_status() -> None:
    with pytest.raises(Failure, match="interrupted: did not go") as caught, failures_explained("go"):
        raise KeyboardInterrupt(15)
    assert caught.value.exit_code == 143


def test_meter_counts_and_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ProgressBar("working", 100) as bar:
        bar.advance(60, 3)
        bar.advance(40, 1)
        bar.describe("closing")
    assert (bar.done_bytes, bar.done_items) == (100, 4)
    assert capsys.readouterr() == ("", "")


NAMES = main.list_commands(click.Context(main))
SINGLE = [name for name in NAMES if not isinstance(main.get_command(click.Context(main), name), click.Group)]


@pytest.mark.parametrize("name", SINGLE)
def test_every_subcommand_explains_itself_with_examples_and_exit_statuses(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert "Exit status" in result.stdout
    assert f"riverbed {name} " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_list_of_subcommands_tells_each_in_a_line() -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=80)
    lines = result.stdout.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert not [line for line in lines if line.endswith("...")]


@pytest.mark.parametrize("make", [console.notes, console.results])
def test_names_are_shown_as_they_are(make: Callable[[], Console], capsys: pytest.CaptureFixture[str]) -> None:
    make().print("user:id:7 page:100:x user:heart:1")
    shown = capsys.readouterr()
    assert (shown.out or shown.err) == "user:id:7 page:100:x user:heart:1\n"
