"""How long does a PING wait while a server with millions of entries checkpoints, and while it purges them?

A process of its own PINGs every millisecond (probe.py).  What an idle server shows is the machine's own noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks.load.probe import Latency, Probe
from benchmarks.load.traffic import SteadyWriter, endless_load, info
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from tests.support.raw import Word
from tests.support.servers import Server

WRITES_A_SECOND = 20_000
_SETTLE_S = 0.5
_STEADY = f"{WRITES_A_SECOND:,} XADD/s"
_TRIM = "XTRIM to half"
_TRIM_ALL = "XTRIM to nothing"
_DEL = "DEL"
_DEL_STEADY = f"DEL under {_STEADY}"
_BUDGETS = {what: below(20, "ms") for what in (_STEADY, _TRIM, _TRIM_ALL, _DEL, _DEL_STEADY)}
_FLOOD = ("XADD", "flood", "*", "f1", "v1", "f2", "v2")


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.entries
    lines: dict[str, tuple[Measurement, Measurement]] = {}
    for contender in rig.turns(f"stalls with {entries:,} entries"):
        for what, latency in _busy_server(rig, contender):
            longest, usual = lines.setdefault(
                what, (Measurement(f"{what}: longest", "ms", _BUDGETS.get(what)), Measurement(f"{what}: p99.9", "ms"))
            )
            samples_of(longest, contender).append(latency.longest_ms)
            samples_of(usual, contender).append(latency.p999_ms)
    return Answer(
        f"PING while a server with {entries:,} entries is busy",
        "python -m benchmarks.load.probe PORT",
        [measurement for pair in lines.values() for measurement in pair],
        (f"Windows of {rig.sizes.window_s:g} s, and for XTRIM and DEL until all is purged.",),
    )


def _busy_server(rig: Rig, contender: Contender) -> Iterator[tuple[str, Latency]]:
    """Keep servers of one kind busy in one way after the other; -> what with, and how PING fared."""
    dataset = rig.dataset(contender, rig.sizes.entries)
    window_s = rig.sizes.window_s

    def observe(server: Server, what: str, during: Callable[[], None]) -> tuple[str, Latency]:
        rig.say(f"PING, {what}: {contender.value}")
        time.sleep(_SETTLE_S)
        with Probe(server.port) as probe:
            during()
        return what, probe.latency

    with rig.opened(contender, rig.copy(dataset)) as server:
        yield observe(server, "idle", lambda: time.sleep(window_s / 3))
        with SteadyWriter(server.port, "others", WRITES_A_SECOND):
            yield observe(server, _STEADY, lambda: time.sleep(window_s))
        with endless_load(server.port, *_FLOOD, depth=16):
            yield observe(server, "XADD flat out, P=16", lambda: time.sleep(window_s))
        yield observe(
            server, _TRIM, lambda: _purge(server, window_s, "XTRIM", "events", "MAXLEN", dataset.entries // 2)
        )
        yield observe(server, _TRIM_ALL, lambda: _purge(server, window_s, "XTRIM", "events", "MAXLEN", 0))
    with rig.opened(contender, rig.copy(dataset)) as server:
        yield observe(server, _DEL, lambda: _purge(server, window_s, "DEL", "events"))
    with rig.opened(contender, rig.copy(dataset)) as server, SteadyWriter(server.port, "others", WRITES_A_SECOND):
        yield observe(server, _DEL_STEADY, lambda: _purge(server, window_s, "DEL", "events"))


def _purge(server: Server, window_s: float, *words: Word) -> None:
    """Run a command that makes millions of entries go, and wait until they are gone."""
    with server.client() as client:
        reply = client.ask(*words)
    if not reply.startswith(b":") or reply == b":0\r\n":
        raise AssertionError(f"{words[0]!r} says {reply!r}")
    deadline = time.monotonic() + 10 * window_s
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if info(server.port, "memory")["lazyfree_pending_objects"] == "0":
            return
    raise AssertionError(f"{server.name} is still purging after {10 * window_s:.0f} s")
