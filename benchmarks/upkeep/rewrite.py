"""What does a rewrite of the log cost while clients write as fast as they can, and how fast is the rewritten log read?

A rewrite of an idle server gives entries a second, and so does the start from the rewritten log alone, for which
Riverbed's tables are deleted.  The third rewrite is under the load of 50 clients: it shows how long a PING takes, how
much more memory the server needs, how many entries are appended meanwhile, and whether it has every write that
redis-benchmark counted.  Redis rewrites into an RDB file, as it does by default, and once more into commands.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.load.background import rewrite_log
from benchmarks.load.probe import Probe
from benchmarks.load.traffic import info, redis_benchmark
from benchmarks.load.watch import Watch
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig, samples_of
from tests.support.servers import Server

# After so many redis-benchmark begins again, which is a pause of some milliseconds; the question waits for its end.
_FLOOD_REQUESTS: Final = 4_000_000
FLOODED: Final = "flood"
_FLOOD: Final = ("XADD", FLOODED, "*", "f1", "v1", "f2", "v2")
_DEPTH: Final = 16
_MB: Final = 1 << 20


class Flood:
    """50 clients that append as fast as they can while the `with` block runs.

    Afterwards every append that was answered must be there.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            sent, before = 0, self.length()
            while not self._stop.is_set():
                redis_benchmark(self._server.port, _FLOOD_REQUESTS, *_FLOOD, depth=_DEPTH)
                sent += _FLOOD_REQUESTS
            found = self.length() - before
            # redis-benchmark's clients have some under way when the last one counts
            if not sent <= found <= sent * 1.02:
                raise AssertionError(f"{sent} appends were answered, {found} are there")
        except BaseException as error:  # whatever it is, the main thread must see it
            self._error = error

    def length(self) -> int:
        """How many entries there are by now."""
        with self._server.client() as client:
            return int(client.ask("XLEN", FLOODED)[1:])


def answer(rig: Rig) -> Answer:
    rate = Measurement("rewriting, idle", "entries/s")
    commands = Measurement("the same, Redis writing commands", "entries/s", riverbed=rate.riverbed)
    size = Measurement("size of the base", "MB")
    loading = Measurement("starting from it alone", "entries/s")
    busy = Measurement("PING without a rewrite: longest", "ms")
    longest = Measurement("PING with one: longest", "ms", below(20, "ms"))
    usual = Measurement("PING with one: p99.9", "ms")
    took = Measurement("rewriting under load", "s")
    appended = Measurement("XADD meanwhile, P=16", "XADD/s")
    grown = Measurement("private memory of the server: growth", "MB", below(32, "MB"))
    entries, pending = rig.sizes.entries, min(rig.sizes.pending, rig.sizes.entries)
    for contender in rig.turns(f"rewriting {entries:,} entries and {pending:,} pending"):
        dataset = rig.with_pending(contender)
        directory = rig.copy(dataset)
        with rig.opened(contender, directory) as server:
            samples_of(rate, contender).append(entries / rewrite_log(server))
            samples_of(size, contender).append(int(info(server.port, "persistence")["aof_base_size"]) / _MB)
            server.kill()
        samples_of(loading, contender).append(entries / _load(rig, contender, directory))
        if contender is Contender.REDIS:
            with rig.opened(contender, directory) as server, server.client() as client:
                client.ask("CONFIG", "SET", "aof-use-rdb-preamble", "no")
                commands.redis.append(entries / rewrite_log(server))
        shutil.rmtree(directory)
        with rig.opened(contender, rig.copy(dataset)) as server:
            with Flood(server), Probe(server.port) as probe:
                time.sleep(rig.sizes.window_s / 2)
            samples_of(busy, contender).append(probe.latency.longest_ms)
            watch = Watch(server)
            with Flood(server) as flood:
                time.sleep(1)
                with Probe(server.port) as probe, watch:
                    seconds, a_second = _rewrite_beside(server, flood)
            samples_of(longest, contender).append(probe.latency.longest_ms)
            samples_of(usual, contender).append(probe.latency.p999_ms)
            samples_of(took, contender).append(seconds)
            samples_of(appended, contender).append(a_second)
            samples_of(grown, contender).append(watch.grown_bytes / _MB)
    return Answer(
        f"Rewriting the log: {entries:,} entries, {pending:,} of them pending",
        "BGREWRITEAOF",
        [rate, commands, size, loading, busy, longest, usual, took, appended, grown],
        (
            "Growth of Redis is data that the load adds: of a page that the fork makes it copy, it has one either way.",
            "The process that rewrites takes about 20 MB of its own here.",
        ),
    )


def _rewrite_beside(server: Server, flood: Flood) -> tuple[float, float]:
    """Have the log rewritten; -> seconds, and how many entries a second were appended meanwhile."""
    before, begun = flood.length(), time.perf_counter()
    seconds = rewrite_log(server)
    return seconds, (flood.length() - before) / (time.perf_counter() - begun)


def _load(rig: Rig, contender: Contender, directory: Path) -> float:
    """Start a server from its log alone, and kill it; -> seconds until it answers."""
    if contender is Contender.RIVERBED:
        shutil.rmtree(directory / "state")
    server = rig.server(contender, "everysec", directory)
    begun = time.monotonic()
    server.spawn()
    try:
        server.wait_ready(LOAD_TIMEOUT_S)
        return time.monotonic() - begun
    finally:
        server.kill()
