"""What does each attack of clients that know the password cost, in memory and in the time of another client?

One attack after the other (attacks.py), each on a server of its own with `maxmemory-clients` of 256 MB, which is
Riverbed's default; otherwise both servers have their defaults, and listen with TLS as well.  A good client adds a small
entry every millisecond (probe.py).  The attackers and the good client share two processors with the server.

The bound on memory is the one of docs/security.md: `maxmemory-clients` for what clients can have the server hold, half
as much again for freed memory that the allocator keeps, and something for each connection.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from benchmarks.appends.tls import server_with_tls
from benchmarks.load.files import allow_files
from benchmarks.load.probe import Latency, Probe
from benchmarks.load.watch import Watch
from benchmarks.report import Measurement, below
from benchmarks.rig import Contender, Rig, samples_of
from benchmarks.threats.attacks import KINDS, LARGE, LARGE_ENTRIES, LARGE_VALUE_BYTES, Attack
from tests.support.certificates import Certificates
from tests.support.servers import Server, free_port

LIMIT_MB: Final = 256
_GOOD: Final = "XADD good MAXLEN ~ 1000 * field value"
_CONNECTION_KB: Final = 15
_HANDSHAKE_KB: Final = 46
_ALLOCATOR: Final = 1.5
_BATCH: Final = 100


@dataclass(frozen=True)
class Crowd:
    """An attack, and the number of its connections."""

    kind: str
    text: str
    count: int
    holds: bool = True  # more than its connections
    connection_kb: int = _CONNECTION_KB

    def bound_mb(self, limit_mb: float, count: int) -> float:
        """By how much `count` of them may make a server grow."""
        return (_ALLOCATOR * limit_mb if self.holds else 0) + count * self.connection_kb / 1000


CROWDS: Final = (
    Crowd("idle", "idle connections", 9_000, holds=False),
    Crowd("blocked", "readers blocked on one stream", 5_000, holds=False),
    Crowd("hoarders", "transactions that only grow", 500),
    Crowd("subscribers", "subscribers that never read", 500),
    Crowd("monitors", "monitors that never read", 500),
    Crowd("halves", "requests of 500 MB that trickle", 500),
    Crowd("replies", "clients, each asks ten times for 100 MB and never reads", 200),
    Crowd("handshakes", "TLS handshakes that trickle", 1_000, holds=False, connection_kb=_HANDSHAKE_KB),
)


def measurements(rig: Rig) -> list[Measurement]:
    """Four lines for each attack."""
    assert {crowd.kind for crowd in CROWDS} == set(KINDS), "an attack is not measured"
    certificates = Certificates.make(rig.new_directory())
    lines = []
    for crowd in CROWDS:
        count = int(crowd.count * rig.sizes.attackers)
        what = f"{count:,} {crowd.text}"
        memory = Measurement(f"{what}: memory", "MB", below(crowd.bound_mb(LIMIT_MB, count), "MB"))
        median = Measurement(f"{what}: XADD, median", "ms")
        usual = Measurement(f"{what}: XADD, p99", "ms")
        longest = Measurement(f"{what}: XADD, longest", "ms", below(500, "ms"))
        for contender in rig.turns(what):
            grown_mb, latency = attack(rig, contender, certificates, crowd.kind, count, LIMIT_MB)
            found = (grown_mb, latency.p50_ms, latency.p99_ms, latency.longest_ms)
            for line, value in zip((memory, median, usual, longest), found, strict=True):
                samples_of(line, contender).append(value)
            if latency.closed:
                rig.say(f"{what}: {contender.value} closed the connection of the good client {latency.closed} times")
        lines += [memory, median, usual, longest]
    return lines


def attack(
    rig: Rig, contender: Contender, certificates: Certificates, kind: str, count: int, limit_mb: int
) -> tuple[float, Latency]:
    """-> MB of private memory that the server grew by at most, and the XADDs of the good client."""
    allow_files(count + 500)
    plain_port = free_port()
    server = server_with_tls(rig, contender, certificates, plain_port)
    server.options["maxmemory-clients"] = f"{limit_mb}mb"
    with server:
        if kind == "replies":
            _fill(server)
        with (
            Watch(server) as watch,
            Probe(plain_port, request=_GOOD) as probe,
            Attack(plain_port, server.port, kind, count),
        ):
            time.sleep(rig.sizes.window_s)
    return watch.grown_bytes / 1e6, probe.latency


def _fill(server: Server) -> None:
    with server.client(timeout_s=120) as client:
        for _ in range(LARGE_ENTRIES // _BATCH):
            client.pipeline([("XADD", LARGE, "*", "f", b"x" * LARGE_VALUE_BYTES)] * _BATCH)
