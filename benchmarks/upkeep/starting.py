"""How long after `kill -9` does a server with millions of entries answer PING again, and does it grow with them?

The server is killed while a client appends 20,000 entries a second, so there is a log behind the last checkpoint.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.load.traffic import SteadyWriter
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig, samples_of

WRITES_A_SECOND = 20_000
WRITING_S = 1.0


def answer(rig: Rig) -> Answer:
    measurements = []
    for entries in (rig.sizes.entries // 10, rig.sizes.entries):
        measurement = Measurement(f"{entries:,} entries", "s", below(1, "s"))
        for contender in rig.turns(f"starting on {entries:,} entries"):
            directory = rig.dataset(contender, entries).directory
            samples_of(measurement, contender).append(_start(rig, contender, directory))
        measurements.append(measurement)
    pending = min(rig.sizes.pending, entries)
    with_pending = Measurement(f"{entries:,} entries, {pending:,} pending", "s", below(1, "s"))
    for contender in rig.turns(f"starting on {entries:,} entries and {pending:,} pending"):
        directory = rig.with_pending(contender).directory
        samples_of(with_pending, contender).append(_start(rig, contender, directory))
    measurements.append(with_pending)
    rewritten = Measurement(f"{entries:,} entries, Redis after BGREWRITEAOF", "s", riverbed=measurement.riverbed)
    directory = rig.rewritten(entries).directory
    rewritten.redis = [_start(rig, Contender.REDIS, directory) for _ in range(rig.sizes.rounds)]
    measurements.append(rewritten)
    return Answer(
        "Starting after kill -9: seconds until PING answers PONG",
        f"SIGKILL under {WRITES_A_SECOND:,} XADD/s, start, PING every 10 ms",
        measurements,
        ("Redis reads its log as it was written; after BGREWRITEAOF an RDB file and what was written since.",),
    )


def _start(rig: Rig, contender: Contender, directory: Path) -> float:
    """Start a server on what a killed one left, time it, and kill it while it is being written to."""
    server = rig.server(contender, "everysec", directory)
    begun = time.perf_counter()
    server.spawn()
    try:
        server.wait_ready(LOAD_TIMEOUT_S)
        seconds = time.perf_counter() - begun
        with SteadyWriter(server.port, "events", WRITES_A_SECOND) as writer:
            time.sleep(WRITING_S)
            writer.expect_end()
            server.kill()
    finally:
        server.kill()
    return seconds
