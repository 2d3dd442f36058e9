"""How long after `kill -9` does a server with millions of entries answer PING again, and does it grow with them?

The server is killed while a client appends 20,000 entries a second, so there is a log behind the last checkpoint.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from benchmarks.load.traffic import SteadyWriter
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Dataset, Rig, samples_of

WRITES_A_SECOND = 20_000
WRITING_S = 1.0


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.entries
    pending = min(rig.sizes.pending, entries)
    small = Measurement(f"{entries // 10:,} entries", "s", below(1, "s"))
    large = Measurement(f"{entries:,} entries", "s", below(1, "s"))
    with_pending = Measurement(f"{entries:,} entries, {pending:,} pending", "s", below(1, "s"))
    rewritten = Measurement(f"{entries:,} entries, Redis after BGREWRITEAOF", "s", riverbed=large.riverbed)
    _ask(rig, (small, {contender: rig.dataset(contender, entries // 10) for contender in Contender}))
    _ask(
        rig,
        (large, {contender: rig.dataset(contender, entries) for contender in Contender}),
        (rewritten, {Contender.REDIS: rig.rewritten(entries)}),
    )
    _ask(rig, (with_pending, {contender: rig.with_pending(contender) for contender in Contender}))
    return Answer(
        "Starting after kill -9: seconds until PING answers PONG",
        f"SIGKILL under {WRITES_A_SECOND:,} XADD/s, start, PING every 10 ms",
        [small, large, with_pending, rewritten],
        ("Redis reads its log as it was written; after BGREWRITEAOF an RDB file and what was written since.",),
    )


def _ask(rig: Rig, *asked: tuple[Measurement, dict[Contender, Dataset]]) -> None:
    """Time starts on copies of the data sets, those of all lines in the same turns."""
    killed = [
        (line, {contender: _killed(rig, contender, dataset) for contender, dataset in datasets.items()})
        for line, datasets in asked
    ]
    for contender in rig.turns(f"starting on {asked[0][0].what}"):
        for line, directories in killed:
            if contender in directories:
                samples_of(line, contender).append(_start(rig, contender, directories[contender]))
    for _, directories in killed:
        for directory in directories.values():
            shutil.rmtree(directory)


def _killed(rig: Rig, contender: Contender, dataset: Dataset) -> Path:
    """A copy of a data set, which whoever made it left as it was: now its server was killed while it was written to."""
    directory = rig.copy(dataset)
    _start(rig, contender, directory)
    return directory


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
