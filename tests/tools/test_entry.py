from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from riverbed.tools.console.outputs import FAILED
from tests.support.servers import IMPORTED_FROM, ROOT

INTERRUPTED_IMPORT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def riverbed(*words: str, modules: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "riverbed.tools.entry", *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(modules), str(IMPORTED_FROM)))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_an_interrupt_during_the_imports_ends_a_tool_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTED_IMPORT)
    done = riverbed("--version", modules=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_interrupt_while_a_subcommand_is_imported_ends_it_with_130(tmp_path: Path) -> None:
    (tmp_path / "lmdb.py").write_text(INTERRUPTED_IMPORT)
    done = riverbed("check", str(tmp_path), modules=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_another_signal_that_ends_a_tool_is_its_status(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "lmdb.py").write_text(INTERRUPTED_IMPORT.replace("SIGINT", number.name))
    done = riverbed("check", str(tmp_path), modules=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_an_interrupt_between_the_imports_and_a_subcommand_ends_it_with_130() -> None:
    interrupted = "cli.main.main = lambda **_: os.kill(os.getpid(), signal.SIGINT)"
    program = f"import os, signal; from riverbed.tools import cli, entry; {interrupted}; entry.main()"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_executable_runs_subcommands(tmp_path: Path) -> None:
    done = riverbed("--version", modules=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("riverbed")


def test_a_closed_output_is_told() -> None:
    command = '"$0" -m riverbed.tools.entry --version >&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == FAILED
    assert done.stderr == b"riverbed: cannot write to standard output: Bad file descriptor\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["check", "--help"]])
def test_a_full_device_in_the_place_of_the_output_is_told(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "riverbed.tools.entry", *words],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == FAILED
    assert done.stderr == b"riverbed: cannot write to standard output: No space left on device\n"
