from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import ROOT, RiverbedServer


def fill(server: RiverbedServer) -> None:
    with server.client() as client:
        client.ask("XADD", "orders", "1-0", "f", "v")
        client.ask("XGROUP", "CREATE", "orders", "workers", "0")


class Terminal:
    """`riverbed top` in a terminal of 80 columns and 24 rows."""

    def __init__(self, *arguments: object) -> None:
        self._fd, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.settings = termios.tcgetattr(inner)
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.cli", "top", *map(str, arguments)],
            cwd=ROOT,
            env=environment | {"TERM": "xterm-256color"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        self._inner = inner
        self.text = ""

    def read_until(self, wanted: str) -> None:
        """Read what is shown until that is among it, for a minute at most."""
        while wanted not in self.text:
            ready, _, _ = select.select([self._fd], [], [], 60)
            assert ready, f"never shown: {wanted}\n{self.text[-3000:]}"
            self.text += os.read(self._fd, 1 << 16).decode(errors="replace")

    def frame(self) -> list[str]:
        """The lines of what was shown last, as a whole."""
        whole = [text for text in self.text.split("\x1b[H") if "q quits" in text]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", whole[-1]).split("\r\n")

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
        os.close(self._inner)


@contextlib.contextmanager
def terminal(*arguments: object) -> Iterator[Terminal]:
    shown = Terminal(*arguments)
    try:
        yield shown
    finally:
        shown.close()


def test_it_is_live_in_a_terminal_until_q_is_pressed(riverbed: RiverbedServer) -> None:
    fill(riverbed)
    with terminal(f"localhost:{riverbed.port}", "--interval", 0.1) as shown:
        shown.read_until("workers")
        shown.read_until("q quits")
        lines = shown.frame()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert any(line.startswith("orders ") for line in lines)
        with riverbed.client() as client:
            client.ask("XADD", "later", "1-0", "f", "v")
        shown.read_until("later")
        shown.press(b"x")
        shown.press(b"q")
        shown.read_until("\x1b[?1049l")  # the screen from before is back
        assert shown.process.wait(60) == 0
        assert termios.tcgetattr(shown._inner) == shown.settings


def test_ctrl_c_ends_it_as_well(riverbed: RiverbedServer) -> None:
    with terminal(f"localhost:{riverbed.port}") as shown:
        shown.read_until("no streams")
        shown.process.send_signal(2)
        assert shown.process.wait(60) == 0
        assert termios.tcgetattr(shown._inner) == shown.settings


def test_it_goes_on_when_the_server_comes_back(riverbed: RiverbedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(riverbed)
    monkeypatch.setattr(riverbed, "choose_port", lambda port=riverbed.port: port)
    with terminal(f"localhost:{riverbed.port}", "--interval", 0.1) as shown:
        shown.read_until("q quits")
        riverbed.kill()
        shown.read_until("trying again")
        riverbed.start()
        shown.text = ""
        with riverbed.client() as client:
            client.ask("XADD", "later", "1-0", "f", "v")
        shown.read_until("later")
        shown.read_until("q quits")
        assert "trying again" not in "".join(shown.frame())
        shown.press(b"q")
        assert shown.process.wait(60) == 0


def test_errors_are_lines_of_json_as_well(riverbed: RiverbedServer) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.cli", "top", f"localhost:{riverbed.port}", "--json", "--interval", "0.1"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: Iterator[dict[str, Any]] = map(json.loads, process.stdout)
        assert "error" not in next(lines)
        riverbed.kill()
        error = next(line["error"] for line in lines if "error" in line)
        assert error.endswith("trying again")
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
