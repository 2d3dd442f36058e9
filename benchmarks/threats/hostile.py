"""Does a server live among strangers and careless clients, in how much memory, and how long does another client wait?

One attack after the other: attacked.py.  Then all at once, with 400 MB (abuse.py): 100 strangers stream junk, 8 clients
stream pipelines, 150 ask for all of a large stream, and none of them reads; connections are reset as they are made; 300
million elements are announced; patterns of up to a megabyte are looked for; and snapshots are begun and their process
killed.  A process of its own sends a PING every millisecond (probe.py); what it sees of an idle server is the machine's
own noise.  Redis is not asked then: its own bounds for most of this came in later versions than the one at hand.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load.probe import Probe
from benchmarks.load.watch import Watch
from benchmarks.report import Answer, Measurement, below
from benchmarks.rig import Contender, Rig
from benchmarks.threats import attacked
from benchmarks.threats.abuse import KINDS, STREAM
from tests.support.raw import RawClient
from tests.support.servers import Server

LIMIT_BYTES = 400 << 20
_PASSWORD = "secret"
_VALUE = b"x" * 100_000
_SNAPSHOT_S = 1.0
_MB = 1 << 20


def answer(rig: Rig) -> Answer:
    entries = rig.sizes.hostile_entries
    private = Measurement("all at once: private memory", "MB", below(200, "MB"))
    usual = Measurement("all at once: PING, p99", "ms", below(50, "ms"))
    longest = Measurement("all at once: PING, longest", "ms", below(500, "ms"))
    idle = Measurement("idle: PING, p99", "ms")
    idle_longest = Measurement("idle: PING, longest", "ms")
    kind = ""
    attacks = attacked.measurements(rig)
    for number in range(1, rig.sizes.rounds + 1):
        rig.say(f"hostile clients all at once, round {number} of {rig.sizes.rounds}")
        server = rig.server(Contender.RIVERBED, "everysec")
        server.options["requirepass"] = _PASSWORD
        with server:
            _fill(server, entries)
            with Probe(server.port, _PASSWORD) as quiet:
                time.sleep(rig.sizes.window_s)
            with (
                limited(server.pid, LIMIT_BYTES) as kind,
                Watch(server) as watch,
                Probe(server.port, _PASSWORD) as probe,
                abused(server.port),
                _interrupted_snapshots(server),
            ):
                time.sleep(2 * rig.sizes.window_s)
            with RawClient(server.port) as client:
                client.ask("AUTH", _PASSWORD)
                assert client.ask("XLEN", STREAM) == b":%d\r\n" % entries, "the server did not live"
        private.riverbed.append(watch.peak_bytes / _MB)
        usual.riverbed.append(probe.latency.p99_ms)
        longest.riverbed.append(probe.latency.longest_ms)
        idle.riverbed.append(quiet.latency.p99_ms)
        idle_longest.riverbed.append(quiet.latency.longest_ms)
    return Answer(
        f"Attacks with maxmemory-clients {attacked.LIMIT_MB}mb, and all at once with {LIMIT_BYTES // _MB} MB",
        "python -m benchmarks.threats.attacks PORT TLS_PORT KIND COUNT; "
        "python -m benchmarks.threats.abuse PORT PASSWORD KIND",
        [*attacks, private, usual, longest, idle, idle_longest],
        (
            "Memory: private memory above that of the idle server, at most; all at once, with that of the idle server.",
            f"Windows of {rig.sizes.window_s:g} s, all at once {2 * rig.sizes.window_s:g} s.",
            f"All at once: {entries:,} entries of 100 kB; the limit is {kind}.",
        ),
    )


def _fill(server: Server, entries: int) -> None:
    with RawClient(server.port, timeout_s=120) as client:
        client.ask("AUTH", _PASSWORD)
        for number in range(1, entries + 1):
            client.ask("XADD", STREAM, f"{number}-0", "field", _VALUE)


@contextmanager
def limited(pid: int, most_bytes: int) -> Iterator[str]:
    """Give a process no more memory than that while the block runs; -> by what means."""
    group = _own_group()
    if group is not None and os.access(group, os.W_OK):
        inner = group / f"riverbed-benchmark-{pid}"
        inner.mkdir()
        try:
            (inner / "memory.limit_in_bytes").write_text(str(most_bytes))
            (inner / "cgroup.procs").write_text(str(pid))
            yield "a memory cgroup, file pages included"
        finally:
            with contextlib.suppress(OSError):  # it has ended
                (group / "cgroup.procs").write_text(str(pid))
            for _ in range(100):
                with contextlib.suppress(OSError):
                    inner.rmdir()
                    break
                time.sleep(0.1)
    else:
        resource.prlimit(pid, resource.RLIMIT_DATA, (most_bytes, most_bytes))
        yield "RLIMIT_DATA"


def _own_group() -> Path | None:
    """The directory of this process's memory cgroup (version 1)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    return None


@contextmanager
def abused(port: int) -> Iterator[None]:
    """Run every kind of abuse while the block runs."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.threats.abuse", str(port), _PASSWORD, kind], stdin=subprocess.PIPE
        )
        for kind in KINDS
    ]
    try:
        yield
    finally:
        for process in processes:
            process.communicate()


@contextmanager
def _interrupted_snapshots(server: Server) -> Iterator[None]:
    """Begin snapshots, and end their processes in the middle, by SIGINT, SIGTERM and SIGKILL in turn."""
    over = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)

    def interrupt() -> None:
        number = 0
        while not over.wait(_SNAPSHOT_S):
            number += 1
            with contextlib.suppress(OSError), RawClient(server.port, timeout_s=120) as client:
                client.ask("AUTH", _PASSWORD)
                client.send("RIVERBED", "SNAPSHOT")
                over.wait(0.1 + 0.07 * (number % 10))
                for child in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
                    os.kill(int(child), signals[number % len(signals)])

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
