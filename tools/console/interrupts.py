"""Handle Ctrl-C during work with LMDB and threads: it takes effect between two steps of the work, or by force.

If Python raised the exception at any point, LMDB's copy could wait for a reader that is gone, and the process for the
copy.  This module does not know what the work is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

_STATUS: Final = 130
# How long to wait for the next step; files that are left after that have temporary names.
_PATIENCE_S: Final = 5.0


@contextlib.contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """-> a function to call between two steps, which raises KeyboardInterrupt after an interrupt.

    The process ends by force at the second interrupt, or a few seconds after the first.
    """
    former = signal.getsignal(signal.SIGINT)
    if former is signal.SIG_IGN:  # started with nohup, for instance
        yield lambda: None
        return
    force = threading.Timer(_PATIENCE_S, os._exit, [_STATUS])
    force.daemon = True
    is_interrupted = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            os._exit(_STATUS)
        is_interrupted = True
        force.start()

    def go_on() -> None:
        if is_interrupted:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield go_on
    finally:
        signal.signal(signal.SIGINT, former)
        force.cancel()
    go_on()  # for an interrupt after the last step
