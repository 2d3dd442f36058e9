"""How long does a snapshot of a server with millions of entries take, and how long does a PING wait meanwhile?

RIVERBED SNAPSHOT beside BGSAVE: both write all data to files while the server goes on.  A snapshot's entries
can be read where they are, by key; an RDB file is shorter, and has to be loaded to be of use.
"""

from __future__ import annotations

import contextlib
import time

from benchmarks.load.background import bgsave
from benchmarks.load.probe import Latency, Probe
from benchmarks.load.traffic import SteadyWriter
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig, samples_of
from benchmarks.upkeep.rewrite import FLOODED, Flood
from benchmarks.waits.stalls import WRITES_A_SECOND
from riverbed.store.layout import SNAPSHOTS_DIRECTORY
from riverbed.store.snapshot.reader import list_snapshots
from tests.support.servers import Server

_IDLE = "idle"
_BUSY = f"under {WRITES_A_SECOND:,} XADD/s"
_FLOODED = "under 50 clients, P=16, flat out"
_LOADS = (_IDLE, _BUSY, _FLOODED)
_SETTLE_S = 0.5
_WRITTEN = "others"  # by the steady writer


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.entries
    rates = {what: Measurement(f"{what}: rate", "k entries/s") for what in _LOADS}
    stalls = {what: Measurement(f"{what}: longest PING", "ms", below(20, "ms")) for what in _LOADS}
    usual = {what: Measurement(f"{what}: p99.9 of PING", "ms") for what in _LOADS}
    size = Measurement("size", "bytes/entry")
    for contender in rig.turns(f"snapshots of {entries:,} entries"):
        with rig.opened(contender, rig.copy(rig.dataset(contender, entries))) as server:
            for what in _LOADS:
                rig.say(f"snapshot, {what}: {contender.value}")
                a_second, byte_count, latency = _freeze(server, contender, what)
                samples_of(rates[what], contender).append(a_second / 1000)
                samples_of(stalls[what], contender).append(latency.longest_ms)
                samples_of(usual[what], contender).append(latency.p999_ms)
                if what == _IDLE:
                    samples_of(size, contender).append(byte_count / entries)
    lines = [line for what in rates for line in (rates[what], stalls[what], usual[what])]
    return Answer(
        f"Freezing a server with {entries:,} entries",
        "RIVERBED SNAPSHOT; BGSAVE",
        [*lines, size],
        (
            "From the command to the end, start of the process included.",
            "Entries are those of the data set, and those that the loads have added until the command.",
            "Flat out, a PING waits its turn behind the pipelines of the 50 clients, snapshot or not.",
            "The process that takes the snapshot runs when a processor has nothing else to do.",
        ),
    )


def _freeze(server: Server, contender: Contender, load: str) -> tuple[float, int, Latency]:
    """-> (entries a second, bytes of the files, how PING fared)"""
    time.sleep(_SETTLE_S)
    with contextlib.ExitStack() as around:
        if load == _BUSY:
            around.enter_context(SteadyWriter(server.port, _WRITTEN, WRITES_A_SECOND))
        elif load == _FLOODED:
            around.enter_context(Flood(server))
            time.sleep(_SETTLE_S)
        probe = around.enter_context(Probe(server.port))
        with server.client() as client:
            entries = sum(int(client.ask("XLEN", key)[1:]) for key in ("events", _WRITTEN, FLOODED))
        seconds = (_snapshot if contender is Contender.RIVERBED else bgsave)(server)
    newest = list_snapshots(server.directory / SNAPSHOTS_DIRECTORY)[-1:]
    size = newest[0].size_bytes if newest else (server.directory / "dump.rdb").stat().st_size
    return entries / seconds, size, probe.latency


def _snapshot(server: Server) -> float:
    """-> seconds"""
    with server.client(timeout_s=LOAD_TIMEOUT_S) as client:
        begun = time.perf_counter()
        reply = client.tree("RIVERBED", "SNAPSHOT")
        assert reply.children is not None, reply
        return time.perf_counter() - begun
