"""How long does a request take at half and at four fifths of what the server bears, beside Redis at its own same share?

The load comes at a fixed rate (pacer.py).  The highest rate of each server is found first, with the same process, which
then sends a share of it: plain, while the log is rewritten over and over, and while snapshots are taken, each on a
server of its own.  The checkpoints of Riverbed come five times a second in all of them.  Another process sends a PING
every millisecond.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.load.background import bgsave, rewrite_log
from benchmarks.load.pacer import DEPTH, Pace, pace
from benchmarks.load.probe import Probe
from benchmarks.load.traffic import CLIENTS
from benchmarks.report import Answer, Budget, Measurement, at_most, below
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig, samples_of
from tests.support.servers import Server

_SHARES: Final = (0.5, 0.8)
_HIGH: Final = 0.8
_PLAIN, _REWRITE, _SNAPSHOT = "plain", "rewrites", "snapshots"
_SETTLE_S: Final = 0.5
_PAUSE_S: Final = 0.1


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.latency_entries
    most = Measurement("highest rate", "pipelines/s")
    lines: dict[str, Measurement] = {}

    def note(contender: Contender, what: str, milliseconds: float, budget: Budget | None = None) -> None:
        samples_of(lines.setdefault(what, Measurement(what, "ms", budget)), contender).append(milliseconds)

    for contender in rig.turns(f"latency with {entries:,} entries"):
        highest = 0.0
        for what, work in ((_PLAIN, None), (_REWRITE, rewrite_log), (_SNAPSHOT, _snapshot(contender))):
            # a server of its own: what rewrites and snapshots leave to the disk and to memory is theirs
            directory = rig.copy(rig.dataset(contender, entries))
            with rig.opened(contender, directory) as server:
                if not highest:
                    highest = pace(server.port, 0, rig.sizes.window_s / 3).rate
                    samples_of(most, contender).append(highest)
                for share in _SHARES:
                    name = f"{share:.0%}, {what}"
                    rig.say(f"latency at {name}: {contender.value}")
                    found, ping_ms, stolen_ms = _observe(server, highest * share, rig.sizes.window_s, work)
                    note(contender, f"{name}: p50", found.p50_ms)
                    note(contender, f"{name}: p99", found.p99_ms)
                    note(contender, f"{name}: p99.9", found.p999_ms, at_most(2) if share == _HIGH else None)
                    note(contender, f"{name}: longest", found.longest_ms)
                    note(contender, f"{name}: longest PING", ping_ms, below(20, "ms"))
                    note(contender, f"{name}: taken by the host", stolen_ms)
            shutil.rmtree(directory)
    return Answer(
        f"Latency of pipelines of {DEPTH} XADD, {CLIENTS} clients, {entries:,} entries in the data set, everysec",
        "python -m benchmarks.load.pacer PORT RATE SECONDS",
        [most, *lines.values()],
        (
            f"Windows of {rig.sizes.window_s:g} s at a share of each server's own highest rate.",
            "A time runs from the moment at which a pipeline was due.",
            "Rewrites and snapshots (BGSAVE) follow one another all the time.",
            "Taken by the host: when the virtual machine's processors had to wait for real ones, in steps of 10 ms.",
        ),
    )


def _observe(
    server: Server, rate: float, window_s: float, work: Callable[[Server], object] | None
) -> tuple[Pace, float, float]:
    """-> what the pipelines saw, the longest PING, and what the host took of the processors' time, in milliseconds."""
    time.sleep(_SETTLE_S)
    stolen_ms = _stolen_ms()
    with contextlib.ExitStack() as around:
        if work is not None:
            around.enter_context(_over_and_over(server, work))
        probe = around.enter_context(Probe(server.port))
        found = pace(server.port, rate, window_s)
    return found, probe.latency.longest_ms, _stolen_ms() - stolen_ms


def _stolen_ms() -> float:
    """What the host of this virtual machine has taken of its processors' time since it began; 0 where none says so."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return int(words[8]) * 1000 / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _over_and_over(server: Server, work: Callable[[Server], object]) -> Iterator[None]:
    """Do `work` again and again meanwhile; an error in it ends the benchmark."""
    is_over = threading.Event()
    errors: list[Exception] = []

    def repeat() -> None:
        try:
            while not is_over.wait(_PAUSE_S):
                work(server)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


def _snapshot(contender: Contender) -> Callable[[Server], object]:
    return _snapshot_riverbed if contender is Contender.RIVERBED else bgsave


def _snapshot_riverbed(server: Server) -> None:
    with server.client(timeout_s=LOAD_TIMEOUT_S) as client:
        if client.tree("RIVERBED", "SNAPSHOT").children is None:
            raise AssertionError("the snapshot failed")
        reply = client.ask("RIVERBED", "SNAPSHOT", "KEEP", 1)
        if reply.startswith(b"-"):
            raise AssertionError(f"{reply!r}")
