"""How long does the machine itself stand still?

    python -m benchmarks.load.pauses SECONDS

The processors of a virtual machine are taken away at times, when they are busy more than when they are not.  Where the
longest loop took 17 ms more than most, the machine's own counter of stolen time did not move.  So each processor
executes the same loop of a millisecond or two again and again, with nothing else to do.  The longest one, less the
median, is a pause that any server would have had.  A loop in which another process had the processor does not count:
that is no pause of the machine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Final

_STEPS: Final = 20_000  # of a loop: 1 to 2 ms


def longest_pause_ms(seconds: float) -> float:
    """Keep all processors busy for so many seconds; -> the longest pause of one of them, in milliseconds."""
    command = [sys.executable, "-m", "benchmarks.load.pauses", str(seconds)]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    return max(float(loop.communicate()[0]) for loop in loops)


def _longest_of_one(seconds: float) -> float:
    times = [0.0]
    begun = now = time.perf_counter()
    switches = _switches()
    while now < begun + seconds:
        for number in range(_STEPS):
            number * number
        before, now = now, time.perf_counter()
        switches_before, switches = switches, _switches()
        if switches == switches_before:
            times.append(now - before)
    return (max(times) - median(times)) * 1000


def _switches() -> int:
    """How often this process has had to give its processor to another one."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


if __name__ == "__main__":
    print(_longest_of_one(float(sys.argv[1])))
