"""How many entries a second does `riverbed replay` execute, beside redis-server that loads the same log?

Both build the state of a log from nothing: of a log from Riverbed, which replay copies, and of a log from Redis, which
replay logs again.  Times include the start of the process.  And how many does `riverbed import` copy from a running
Redis?
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.load.traffic import cpu_seconds, measure
from benchmarks.report import Answer, Measurement
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig, samples_of
from tests.support.servers import ROOT

LOG = "appendonlydir"
_STREAMS = 1_000
_DEPTH = 64


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.entries
    measurements = []
    for writer in Contender:
        source = rig.dataset(writer, entries).directory / LOG
        measurements += _ask(rig, f"log of {writer.value}", source, entries)
    for writer in Contender:
        source, count = _log_of_many_streams(rig, writer)
        measurements += _ask(rig, f"log of {writer.value}, {_STREAMS:,} streams", source, count)
    imported = Measurement("import from a running Redis", "entries/s")
    with rig.opened(Contender.REDIS, rig.copy(rig.dataset(Contender.REDIS, entries))) as server:
        for _ in range(rig.sizes.rounds):
            rig.say("importing")
            seconds, _ = _run_tool(rig, "import", f"redis://127.0.0.1:{server.port}")
            imported.riverbed.append(entries / seconds)
    measurements.append(imported)
    return Answer(
        "Replay: entries a second from a log to a state",
        "riverbed replay appendonlydir new; redis-server on a copy of it; riverbed import redis://...",
        measurements,
        (f"{entries:,} entries of 66 bytes; to {_STREAMS:,} streams, at random, {count:,} of two small fields.",),
    )


def _ask(rig: Rig, what: str, source: Path, entries: int) -> list[Measurement]:
    """-> the rate and the CPU of replaying the log in `source`, which has so many entries."""
    rate, cpu = Measurement(what, "entries/s"), Measurement(f"{what}: CPU", "us/entry")
    for contender in rig.turns(f"replaying a {what}"):
        run = replay_log if contender is Contender.RIVERBED else load_log
        seconds, busy_seconds = run(rig, source)
        samples_of(rate, contender).append(entries / seconds)
        samples_of(cpu, contender).append(busy_seconds / entries * 1e6)
    return [rate, cpu]


def _log_of_many_streams(rig: Rig, writer: Contender) -> tuple[Path, int]:
    """The log of a server whose clients append to a thousand streams at random; -> it, and its number of entries."""
    count = max(rig.sizes.append_requests.values())
    with rig.server(writer, "everysec") as server:
        add = ("XADD", "stream:__rand_int__", "*", "f1", "v1", "f2", "v2")
        measure(server, count, *add, depth=_DEPTH, random_below=_STREAMS)
    return server.directory / LOG, count


def replay_log(rig: Rig, source: Path) -> tuple[float, float]:
    return _run_tool(rig, "replay", str(source))


def _run_tool(rig: Rig, tool: str, source: str) -> tuple[float, float]:
    """-> seconds it took, seconds of CPU."""
    target = rig.new_directory()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    command = [sys.executable, "-m", "riverbed.tools.cli", tool, source, str(target)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(target)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def load_log(rig: Rig, source: Path) -> tuple[float, float]:
    """The same, of a redis-server until it answers."""
    target = rig.new_directory()
    shutil.copytree(source, target / LOG)
    server = rig.server(Contender.REDIS, "everysec", target)
    begun = time.perf_counter()
    server.spawn()
    try:
        server.wait_ready(LOAD_TIMEOUT_S)
        seconds, busy_seconds = time.perf_counter() - begun, cpu_seconds(server)
    finally:
        server.kill()
    shutil.rmtree(target)
    return seconds, busy_seconds
