"""How long do clients wait while the disk is slow: when every sync takes 10, 50 or 200 ms longer?

A library makes each fsync and fdatasync of the server wait (tests/support/faults/processes/slow_sync.c).  Fifty clients
append at a fixed rate (pacer.py), and another process sends a PING every millisecond: at half of what Redis bears on
a disk that is not slow, and at an eighth of it while the log is rewritten once.  Where every reply waits for a sync, it
is asked how many entries a second fifty clients can append.
"""

from __future__ import annotations

import contextlib
from typing import Final

from benchmarks.load.background import rewritten_after
from benchmarks.load.pacer import DEPTH, pace
from benchmarks.load.probe import Probe
from benchmarks.load.traffic import CLIENTS, measure
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.faults.processes.slow_sync import SlowSync
from tests.support.servers import Server

_DELAYS_MS: Final = (10, 50, 200)
_DELAYS_OF_REPLIES_MS: Final = (2, 10)
_DEPTHS: Final = (1, 16, 64)
_OVERHEAD_MS: Final = 1  # of a turn of all clients, about, besides the delay
# Of what Redis bears: a load that both carry with room to spare, and one beside which clients notice a rewrite.
_BUSY: Final = 1 / 2, "half load"
_QUIET: Final = 1 / 8, "an eighth, a rewrite"
_REWRITE_AFTER: Final = 1 / 5  # of the time for which there is load


def answer(rig: Rig) -> Answer:
    disk = SlowSync(rig.new_directory())
    rig.say("what Redis bears where the disk is not slow")
    with rig.server(Contender.REDIS, "everysec") as server:
        most = pace(server.port, 0, rig.sizes.window_s / 3).rate
    lines: dict[str, Measurement] = {}
    for contender in rig.turns("a slow disk"):
        for delay_ms in _DELAYS_MS:
            disk.delay(0)
            server = rig.server(contender, "everysec")
            server.environment = disk.environment
            with server:
                disk.delay(delay_ms)
                for (share, load), does_rewrite in ((_BUSY, False), (_QUIET, True)):
                    name = f"+{delay_ms} ms, {load}"
                    rig.say(f"{name}: {contender.value}")
                    found = _observe(server, most * share, rig.sizes.window_s / 3, does_rewrite=does_rewrite)
                    for what, unit, value in (
                        ("appended", "XADD/s", found[0]),
                        ("p99.9 of pipelines", "ms", found[1]),
                        ("longest PING", "ms", found[2]),
                    ):
                        budget = below(20, "ms") if what == "longest PING" and not does_rewrite else None
                        line = lines.setdefault(f"{name}: {what}", Measurement(f"{name}: {what}", unit, budget))
                        samples_of(line, contender).append(value)
        for delay_ms in _DELAYS_OF_REPLIES_MS:
            for depth in _DEPTHS:
                name = f"always, +{delay_ms} ms, P={depth}"
                rig.say(f"{name}: {contender.value}")
                line = lines.setdefault(name, Measurement(name, "XADD/s"))
                rate = _append_synced(rig, contender, disk, delay_ms, depth)
                samples_of(line, contender).append(rate)
    return Answer(
        "A slow disk: syncs that take longer, 50 clients; with everysec pipelines of 16 XADD",
        "python -m benchmarks.load.pacer PORT RATE SECONDS; redis-benchmark -c 50 -P depth XADD ...",
        list(lines.values()),
        (
            f"Half load is half of the {most * DEPTH:,.0f} XADD/s that Redis bears where the disk is not slow.",
            "A pipeline's time runs from the moment at which it was due.",
        ),
    )


def _append_synced(rig: Rig, contender: Contender, disk: SlowSync, delay_ms: int, depth: int) -> float:
    """-> XADDs a second of a server that makes each durable before its reply."""
    disk.delay(0)
    server = rig.server(contender, "always")
    server.environment = disk.environment
    with server:
        disk.delay(delay_ms)
        turns = int(rig.sizes.window_s / 3 * 1000 / (delay_ms + _OVERHEAD_MS))
        words = ("XADD", "events", "*", "f1", "v1", "f2", "v2")
        return measure(server, turns * CLIENTS * depth, *words, depth=depth).a_second


def _observe(server: Server, rate: float, window_s: float, *, does_rewrite: bool) -> tuple[float, float, float]:
    """-> XADDs a second, p99.9 of their pipelines in ms, and the longest PING in ms."""
    with Probe(server.port) as probe, contextlib.ExitStack() as around:
        if does_rewrite:
            around.enter_context(rewritten_after(server, window_s * _REWRITE_AFTER))
        found = pace(server.port, rate, window_s)
    return found.rate * DEPTH, found.p999_ms, probe.latency.longest_ms
