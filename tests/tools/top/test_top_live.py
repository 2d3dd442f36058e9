from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.servers import ROOT, RiverbedServer
from tests.support.terminal import on_terminal


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
        # where the tests run in the background Ctrl-C is ignored, which children take over
        ours = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "riverbed.tools.cli", "top", *map(str, arguments)],
                cwd=ROOT,
                env=environment | {"TERM": "xterm-256color"},
                stdin=inner,
                stdout=inner,
                stderr=inner,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, ours)
        self._inner = inner
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.text = ""

    def read_until(self, wanted: str) -> None:
        """Read what is shown until that is among it."""
        while wanted not in self.text:
            self._read()

    def _read(self) -> None:
        """More of what is shown, which is waited for two minutes at most."""
        ready, _, _ = select.select([self._fd], [], [], 120)
        assert ready, f"no more is shown\n{self.text[-3000:]}"
        self.text += self._decoder.decode(os.read(self._fd, 1 << 16))

    def frame_with(self, wanted: str) -> list[str]:
        """The lines of the first whole frame, from now on, in which that is shown."""
        self.text = ""
        while True:
            _, *frames = self.text.split("\x1b[H")
            for text in frames:
                if wanted in text and "q quits" in text:
                    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).split("\r\n")
            self._read()

    def ended(self) -> int:
        """Wait for the end, reading what is shown until then; -> the status."""
        self.read_until("\x1b[?1049l")  # the screen from before is back
        return self.process.wait(120)

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
        lines = shown.frame_with("workers")
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        assert any(line.startswith("orders ") for line in lines)
        with riverbed.client() as client:
            client.ask("XADD", "later", "1-0", "f", "v")
        shown.frame_with("later")
        shown.press(b"x")
        shown.press(b"q")
        assert shown.ended() == 0
        assert termios.tcgetattr(shown._inner) == shown.settings


def test_ctrl_c_ends_it_as_well(riverbed: RiverbedServer) -> None:
    with terminal(f"localhost:{riverbed.port}") as shown:
        shown.read_until("no streams")
        shown.process.send_signal(2)
        assert shown.ended() == 0
        assert termios.tcgetattr(shown._inner) == shown.settings


def test_it_goes_on_when_the_server_comes_back(riverbed: RiverbedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(riverbed)
    monkeypatch.setattr(riverbed, "choose_port", lambda port=riverbed.port: port)
    with terminal(f"localhost:{riverbed.port}", "--interval", 0.1) as shown:
        shown.read_until("q quits")
        riverbed.kill()
        shown.read_until("trying again")
        riverbed.start()
        with riverbed.client() as client:
            client.ask("XADD", "later", "1-0", "f", "v")
        assert "trying again" not in "".join(shown.frame_with("later"))
        shown.press(b"q")
        assert shown.ended() == 0


def test_errors_are_lines_of_json_as_well(riverbed: RiverbedServer) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "riverbed.tools.cli", "top", f"localhost:{riverbed.port}", "--json", "--interval=0.1"],
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


def test_samples_are_printed_at_a_terminal_that_moves_no_cursor(riverbed: RiverbedServer) -> None:
    status, shown = on_terminal("top", f"localhost:{riverbed.port}", "--count", 2, "--interval", 0.1, kind="dumb")
    assert status == 0
    assert shown.count(f"localhost:{riverbed.port}") == 2
