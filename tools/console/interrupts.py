"""End a command at SIGTERM and SIGHUP as at Ctrl-C: with KeyboardInterrupt, so that it deletes what is half made.

During work with LMDB and threads they take effect between two steps of the work, or by force.  If Python raised the
exception at any point, LMDB's copy could wait for a reader that is gone, and the process for the copy.  This module
does not know what the work is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

from riverbed.tools.console.outputs import SIGNAL_STATUS

_TERMINATING: Final = (signal.SIGTERM, signal.SIGHUP)
# How long to wait for the next step; files that are left after that have temporary names.
_PATIENCE_S: Final = 5.0


def interrupt_at_termination() -> None:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt, with their number, unless they are ignored, as with nohup."""
    for number in _TERMINATING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def _terminate(number: int, frame: object) -> None:
    # `timeout`, and a terminal that closes, send a second one, which would interrupt the deletion
    for each in _TERMINATING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


@contextlib.contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """-> a function to call between two steps, which raises KeyboardInterrupt after an interrupt.

    The process ends by force at the second Ctrl-C, or a few seconds after the first interrupt.
    """
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, *_TERMINATING)}
    force: threading.Timer | None = None
    received: int | None = None

    def interrupt(number: int, frame: object) -> None:
        nonlocal force, received
        if received is None:
            received = number
            force = threading.Timer(_PATIENCE_S, os._exit, [SIGNAL_STATUS + number])
            force.daemon = True
            force.start()
        elif number == signal.SIGINT:
            os._exit(SIGNAL_STATUS + received)

    def go_on() -> None:
        if received is not None:
            raise KeyboardInterrupt(received)

    for number, handler in former.items():
        if handler is not signal.SIG_IGN:  # as where it was started with nohup
            signal.signal(number, interrupt)
    try:
        yield go_on
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if force is not None:
            force.cancel()
    go_on()  # for an interrupt after the last step
