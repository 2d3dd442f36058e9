"""What does a sync of the log cost, of a file that is padded and of one that grows?

The log of a store, in this process: one batch is written and synced after the other, as under `appendfsync always` when
one tick follows the other.  Redis's file grows with each of its syncs.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from typing import Final

from benchmarks.report import Answer, Measurement
from benchmarks.rig import Rig
from riverbed.store.disk.files import OsFiles
from riverbed.store.format.log_lines import encode_command
from riverbed.store.log.append_log import Log

_BYTES: Final = (1_000, 20_000, 50_000, 100_000, 200_000)
_BATCHES: Final = 5_000


def answer(rig: Rig) -> Answer:
    waited = {size: Measurement(f"{size // 1000} KB a batch", "us/batch") for size in _BYTES}
    worked = {size: Measurement(f"{size // 1000} KB a batch: CPU", "us/batch") for size in _BYTES}
    for number in range(1, rig.sizes.rounds + 1):
        for size in _BYTES:
            for is_padded in (True, False):
                rig.say(f"{_BATCHES:,} batches of {size:,} bytes, round {number} of {rig.sizes.rounds}")
                seconds, cpu_seconds = _write(rig, size, is_padded=is_padded)
                for measurement, found in ((waited[size], seconds), (worked[size], cpu_seconds)):
                    samples = measurement.riverbed if is_padded else measurement.redis
                    samples.append(found / _BATCHES * 1e6)
    return Answer(
        "Writing a batch and syncing it, in a file that is padded, and in one that grows",
        f"LogWriter.append(), sync() and, for padding, pad(), {_BATCHES:,} times",
        [*waited.values(), *worked.values()],
        headings=("", "unit", "padded", "growing", "ratio", "budget"),
    )


def _write(rig: Rig, size: int, *, is_padded: bool) -> tuple[float, float]:
    """-> seconds, and those of the processor."""
    command = encode_command([b"XADD", b"s", b"1-1", b"f", b"v" * size])
    directory = rig.new_directory()
    with closing(Log.find(directory, OsFiles())) as log:
        log.create()
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(_BATCHES):
            log.writer.append(command, len(command), 0)
            log.writer.sync()
            if is_padded:
                log.writer.pad()
        seconds, cpu_seconds = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    shutil.rmtree(directory)  # up to a gigabyte, and there are ten of them in a round
    return seconds, cpu_seconds
