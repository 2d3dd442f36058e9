"""How much work something is, as a multiple of a fixed piece of work: the same on any machine, idle or busy.

What is compared is time that a processor spends, and never the clock's: others who use the machine cost nothing here,
and a machine that is slow is slow in both.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from tests.support.raw import RawClient

# About 50 ms of a machine of 2023.
_LOOPS: Final = 1_000_000


class Effort:
    """Processor time in units of the fixed piece of work."""

    def __init__(self) -> None:
        self.units = 0.0


def unit_s() -> float:
    """Processor time that the fixed piece of work takes on this machine."""
    begun = time.process_time()
    total = 0
    for number in range(_LOOPS):
        total += number & 7
    return time.process_time() - begun


@contextmanager
def measured(clock: Callable[[], float] = time.process_time) -> Iterator[Effort]:
    """The effort of the body; to be read behind it."""
    found = Effort()
    unit = unit_s()
    begun = clock()
    with undisturbed():
        yield found
        spent = clock() - begun
    found.units = spent / max(unit, unit_s())


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the garbage collector, which would go through all that the other tests have left."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def server_cpu_s(client: RawClient) -> float:
    """Processor time that a server has used up to now."""
    found = client.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])
