"""Ctrl-C in the middle of work with LMDB and threads: it is honoured between two steps of the work, or by force.

An exception that Python raises wherever it happens to be would leave LMDB's copy waiting for a reader that is gone, and
the process waiting for the copy.  Knows nothing of what the work is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final

_STATUS: Final = 130
# Work that comes to no next step within this is not waited for; what it leaves has a temporary name.
_PATIENCE_S: Final = 5.0


@contextlib.contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """-> a function that raises KeyboardInterrupt if there was one; to be called between two steps.

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
    go_on()  # it came behind the last step
