"""How long does `riverbed check` take, alone and --deep, and does its memory stay flat?

A million entries of which a fifth is pending; memory also with a tenth of that.  Redis has no such check:
`redis-check-aof`, beside it, reads the framing of Redis's log of the same commands; no checksums, tables or state.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import Final

from benchmarks.load.toolrun import ToolRun, run_tool
from benchmarks.load.traffic import read_for
from benchmarks.report import Answer, Measurement
from benchmarks.rig import Contender, Dataset, Rig

_MB: Final = 1_000_000
_PENDING_PART: Final = 5


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.read_entries
    datasets = {contender: _with_pending(rig, contender, entries) for contender in Contender}
    tenth = _with_pending(rig, Contender.RIVERBED, entries // 10)
    lines: list[Measurement] = []
    for option, what in ((), "check"), (("--deep",), "check --deep"):
        seconds = Measurement(what, "s")
        rate = Measurement(f"{what}: rate", "k entries/s")
        cpu = Measurement(f"{what}: CPU", "us/entry")
        memory = Measurement(f"{what}: private memory at its peak", "MB")
        small = Measurement(f"{what}: the same, a tenth of the entries", "MB")
        for _ in range(rig.sizes.rounds):
            rig.say(f"{what}, {entries:,} entries")
            small.riverbed.append(_check(tenth, *option).peak_bytes / _MB)
            run = _check(datasets[Contender.RIVERBED], *option)
            seconds.riverbed.append(run.seconds)
            rate.riverbed.append(entries / run.seconds / 1000)
            cpu.riverbed.append(run.cpu_seconds / entries * 1e6)
            memory.riverbed.append(run.peak_bytes / _MB)
            if not option:
                took = _check_aof(datasets[Contender.REDIS])
                seconds.redis.append(took)
                rate.redis.append(entries / took / 1000)
        lines += [seconds, rate, cpu, memory, small]
    return Answer(
        f"Checking a store: {entries:,} entries, a fifth of them pending",
        "riverbed check DIR [--deep]; redis-check-aof appendonly.aof.manifest",
        lines,
        ("Start of Python included.",),
    )


def _check(dataset: Dataset, *option: str) -> ToolRun:
    run = run_tool("check", dataset.directory, *option)
    found = run.report["sound"], run.report["entries"], run.report["pending"]
    assert found == (True, dataset.entries, dataset.entries // _PENDING_PART), run.report
    return run


def _with_pending(rig: Rig, contender: Contender, count: int) -> Dataset:
    """`count` entries, and a group that has read a fifth of them.  The server was stopped."""
    with rig.opened(contender, rig.copy(rig.dataset(contender, count))) as server:
        rig.say(f"reading for a group: {contender.value}")
        read_for(server.port, "events", "workers", count // _PENDING_PART)
        server.stop()
    return Dataset(server.directory, count, 0)


def _check_aof(dataset: Dataset) -> float:
    """-> seconds"""
    program = shutil.which("redis-check-aof")
    assert program is not None, "redis-check-aof comes with redis-server"
    manifest = dataset.directory / "appendonlydir" / "appendonly.aof.manifest"
    begun = time.perf_counter()
    subprocess.run([program, str(manifest)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun
