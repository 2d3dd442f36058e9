"""Waiting in a terminal for the time to pass, or for a press of q."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Final

_ENDS: Final = frozenset(b"qQ\x03\x04")  # Ctrl-C and Ctrl-D too, should the terminal pass them on


class Keys:
    """`wait` until so many seconds have passed; the keyboard is listened to if there is one."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def wait(self, seconds: float) -> bool:
        """-> whether to end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._fd is None:
                time.sleep(left)
            elif select.select([self._fd], [], [], left)[0]:
                pressed = os.read(self._fd, 1024)
                if not pressed:  # the terminal has gone
                    self._fd = None
                if _ENDS.intersection(pressed):
                    return True
        return False


@contextlib.contextmanager
def keyboard() -> Iterator[Keys]:
    """Keys as they are pressed, not line by line, and not shown; what the terminal was like comes back."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield Keys(None)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
