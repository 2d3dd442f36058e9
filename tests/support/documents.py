"""Markdown pages as programs: take the fenced blocks out of a page, run them in order, compare what they print.

    sh        a script for bash, which must end well
    console   `$ ` before a command for bash, `127.0.0.1:6379> ` before one for redis-cli, and what each prints
    python    a script; all of a page run in one interpreter, one after the other
    output    what the block before it prints
    conf, text, promql   shown, not run

`...` in an output stands for anything, and an entry's ID for any other.  `sh no-test: REASON` is not run.  Ports that
a page names are exchanged for free ones: 6379 is the page's own server, with its data in `data`.  `make` only says what
it would do, as it installs into the environment that runs the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.support.raw import RawClient
from tests.support.servers import PATIENCE_S, ROOT, RiverbedServer, free_port

RUN: Final = ("sh", "console", "python")
SHOWN: Final = ("output", "conf", "text", "promql")
NO_TEST: Final = "no-test:"
_PORTS: Final = ("6379", "6380", "6381", "6382", "6383", "9121", "26379")
_FENCE: Final = re.compile(r"^```(.*)$")
_CLI_PROMPT: Final = re.compile(r"^127\.0\.0\.1:\d+> ?(.*)$")
# redis-cli says how long a command took when that is long.
_TIME_TAKEN: Final = re.compile(r"^\(\d+\.\d\ds\)$")
_ID: Final = re.compile(r"\b\d{13}-\d+\b")
_STARTS_SERVER: Final = re.compile(r"--port (\d+).*&\s*$", re.MULTILINE)
_SPARK: Final = "-Dspark.ui.enabled=false -Dspark.sql.shuffle.partitions=2"
# Runs each script that comes as a line of JSON in the same namespace; replies with what it has printed.
_INTERPRETER: Final = """
import contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed, failure = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(json.loads(line), "<page>", "exec"), names)
        except BaseException:
            failure = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failure]), flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its first word, the rest of that line, its text."""

    line: int
    language: str
    note: str
    text: str

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.note.startswith(NO_TEST)


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks = []
    begun: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif begun is None:
            begun, lines = (number, fence[1]), []
        else:
            language, _, note = begun[1].partition(" ")
            blocks.append(Block(begun[0], language, note, "".join(f"{shown}\n" for shown in lines)))
            begun = None
    assert begun is None, f"the block of line {begun} has no end"
    return blocks


def prints(expected: str, printed: str) -> bool:
    """Whether `printed` is what a page shows; see above."""
    pattern = []
    for part in re.split(r"(\.\.\.|\b\d{13}-\d+\b)", _plain(expected)):
        if part == "...":
            pattern.append(".*?")
        else:
            pattern.append(_ID.pattern if _ID.fullmatch(part) else re.escape(part))
    return re.fullmatch("".join(pattern), _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not _TIME_TAKEN.match(line))


class Page:
    """Runs the blocks of one page in an empty directory, beside a server; `java_options` and `python` are for Spark."""

    def __init__(self, name: str, directory: Path, java_options: str = "", python: Path = Path(sys.executable)) -> None:
        self._name = name
        self._directory = directory
        self._java_options = f"{_SPARK} {java_options}"
        self._python = python
        self._groups: list[subprocess.Popen[bytes] | subprocess.Popen[str]] = []
        self._interpreter: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._directory.mkdir()
        (self._directory / ".venv").symlink_to(sys.prefix)
        data = self._directory / "data"
        data.mkdir()
        self._server = RiverbedServer(data, self._directory.parent / "logs").start()
        self._ports = {name: str(free_port()) for name in _PORTS} | {"6379": str(self._server.port)}
        programs = self._directory.parent / "bin"
        programs.mkdir()
        self._shim(programs, "redis-cli", f'"$REAL" -p {self._server.port} "$@"')
        self._shim(programs, "make", f'"$REAL" --no-print-directory --dry-run -C {ROOT} "$@"')
        temporary = self._directory.parent / "temporary"
        temporary.mkdir()
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(temporary),
            "TMPDIR": str(temporary),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "PYSPARK_PYTHON": str(self._python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(temporary / "none"),  # one that is there would be a place of classes as well
            "SPARK_SUBMIT_OPTS": self._java_options,
        }
        return self

    @staticmethod
    def _shim(programs: Path, name: str, command: str) -> None:
        real = shutil.which(name)
        assert real is not None, f"{name} is not installed"
        path = programs / name
        path.write_text(f"#!/bin/sh\nexec {command}\n".replace("$REAL", real))
        path.chmod(0o755)

    def __exit__(self, *_: object) -> None:
        """End all that the page has started: each block is a process group."""
        for process in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._server.kill()

    # -- blocks --------------------------------------------------------------------------------------------------------

    def run(self, blocks: list[Block]) -> None:
        """Run all that can be run.  Raises AssertionError with page and line of what is not as it is shown."""
        printed = ""
        for block in blocks:
            text = self._with_ports(block.text)
            if block.language == "output":
                self._compare(block, text, printed)
            elif not block.is_run:
                continue
            elif block.language == "console":
                self._run_console(block, text)
            elif block.language == "python":
                printed = self._run_python(block, text)
            else:
                printed = self._run_shell(block, text, must_succeed=True)

    def _with_ports(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(_PORTS)})\b", lambda found: self._ports[found[1]], text)

    def _where(self, block: Block) -> str:
        return f"{self._name}:{block.line}"

    def _compare(self, block: Block, expected: str, printed: str) -> None:
        assert prints(expected, printed), (
            f"{self._where(block)}: shown\n{expected}\n--- but printed\n{printed}\n{self._server.log_tail()}"
        )

    def _run_shell(self, block: Block, text: str, *, must_succeed: bool) -> str:
        """-> what was printed.  Into a file of its own, as what runs in the background keeps it open."""
        path = self._directory.parent / f"printed-{len(self._groups)}"
        with path.open("wb") as output:
            process = subprocess.Popen(
                ["bash", *(["-e", "-o", "pipefail"] if must_succeed else []), "-c", text],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(process)
            status = process.wait(PATIENCE_S)
        printed = path.read_text(errors="replace")
        assert status == 0 or not must_succeed, f"{self._where(block)}: status {status}\n{text}\n{printed}"
        for port in _STARTS_SERVER.findall(text):
            self._wait_for(block, int(port), path)
        return printed

    def _wait_for(self, block: Block, port: int, log: Path) -> None:
        """Until a server in the background answers."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), RawClient(port, timeout_s=10) as client:
                if not client.ask("PING").startswith(b"-LOADING"):
                    return
            time.sleep(0.02)
        raise AssertionError(f"{self._where(block)}: no server on port {port}\n{log.read_text(errors='replace')}")

    def _run_python(self, block: Block, text: str) -> str:
        if self._interpreter is None:
            self._interpreter = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            self._groups.append(self._interpreter)
        assert self._interpreter.stdin is not None
        assert self._interpreter.stdout is not None
        print(json.dumps(text), file=self._interpreter.stdin, flush=True)
        reply = self._interpreter.stdout.readline()
        assert reply, f"{self._where(block)}: the interpreter ended"
        printed, failure = json.loads(reply)
        assert not failure, f"{self._where(block)}:\n{failure}"
        return str(printed)

    def _run_console(self, block: Block, text: str) -> None:
        """Commands for redis-cli that follow one another share a connection."""
        for command, is_cli, expected in _steps(text):
            if command == "redis-cli":
                continue  # what follows is typed into it
            if is_cli:
                quoted = command.replace("'", "'\\''")
                command = f"printf '%s\\n' '{quoted}' | redis-cli --no-raw"
            self._compare(block, expected, self._run_shell(block, command, must_succeed=False))


def _steps(text: str) -> list[tuple[str, bool, str]]:
    """A console block as (command, whether it is for redis-cli, what it prints)."""
    steps: list[tuple[str, bool, str]] = []
    continues = False
    for line in text.splitlines():
        prompt = _CLI_PROMPT.match(line)
        if prompt is not None:
            if steps and steps[-1][1]:
                command, _, expected = steps[-1]
                steps[-1] = (f"{command}\n{prompt[1]}", True, expected)
            else:
                steps.append((prompt[1], True, ""))
        elif line.startswith("$ "):
            steps.append((line[2:], False, ""))
            continues = line.endswith("\\")
        else:
            assert steps, f"no prompt before {line!r}"
            command, is_cli, expected = steps[-1]
            if continues:
                steps[-1] = (f"{command}\n{line}", is_cli, expected)
                continues = line.endswith("\\")
            else:
                steps[-1] = (command, is_cli, f"{expected}{line}\n")
    return steps
