"""Wait in a terminal until a time has passed or q is pressed."""

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

_ENDS: Final = frozenset(b"qQ\x03\x04")  # Ctrl-C and Ctrl-D too, if the terminal passes them on


class Keys:
    """Waits for a time, or for a key if there is a keyboard."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def wait(self, seconds: float) -> bool:
        """Wait `seconds`, or until a key to end is pressed -> whether to end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._fd is None:
                time.sleep(left)
            elif select.select([self._fd], [], [], left)[0]:
                pressed = os.read(self._fd, 1024)
                if not pressed:  # the terminal is gone
                    self._fd = None
                if _ENDS.intersection(pressed):
                    return True
        return False


@contextlib.contextmanager
def keyboard() -> Iterator[Keys]:
    """Read keys as they are pressed, without echo; the terminal's settings are restored at the end."""
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
