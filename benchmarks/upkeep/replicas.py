"""How much CPU does a replica need for what its primary appends, and how far is it behind when the load ends?

One primary and one replica of the same make, and 50 clients that append as fast as they can for some seconds.  What a
replica needs is compared with what its primary needed for the same entries: user and system time of both processes.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks.load.traffic import cpu_seconds, endless_load, info
from benchmarks.report import Answer, Budget, Measurement, below
from benchmarks.rig import LOAD_TIMEOUT_S, Contender, Rig, samples_of
from tests.support.servers import Server

_LOAD_S: Final = 4 / 3  # of the seconds over which stalls are looked for: 20 s of 15 s
_LOOK_S: Final = 0.02
_APPEND: Final = ("f1", "v1", "f2", "v2")
_LOADS: Final = {
    "P=16": (16, ("XADD", "stream", "*", *_APPEND)),
    "P=64": (64, ("XADD", "stream", "*", *_APPEND)),
    "P=64, MAXLEN ~": (64, ("XADD", "stream", "MAXLEN", "~", "100000", "*", *_APPEND)),
    "P=64, 1,000 streams": (64, ("XADD", "stream:__rand_int__", "*", *_APPEND)),
}


def answer(rig: Rig) -> Answer:
    lines = []
    less = Budget("< 0.8", lambda ours, ratio: ours < 0.8)
    for load, (depth, words) in _LOADS.items():
        share = Measurement(f"{load}: CPU of the replica / of its primary", "", less)
        level = Measurement(f"{load}: level after the load", "s", below(2, "s"))
        rate = Measurement(f"{load}: of the primary meanwhile", "entries/s")
        for contender in rig.turns(f"a replica, {load}"):
            ratio, seconds, a_second = _measure(rig, contender, depth, words)
            samples_of(share, contender).append(ratio)
            samples_of(level, contender).append(seconds)
            samples_of(rate, contender).append(a_second)
        lines += [share, level, rate]
    return Answer(
        "A replica beside its primary: XADD with two small fields, 50 clients",
        "redis-benchmark -c 50 -P depth XADD ...; REPLICAOF",
        lines,
        (f"Load for {rig.sizes.window_s * _LOAD_S:g} s.",),
    )


def _measure(rig: Rig, contender: Contender, depth: int, words: tuple[str, ...]) -> tuple[float, float, float]:
    """-> CPU of the replica by that of its primary, seconds until it was level, entries a second of the primary"""
    with rig.server(contender, "everysec") as primary, rig.server(contender, "everysec") as replica:
        with replica.client() as client:
            client.ask("REPLICAOF", "127.0.0.1", primary.port)
        _wait_level(primary, replica)
        before = cpu_seconds(primary), cpu_seconds(replica)
        begun = time.monotonic()
        with endless_load(primary.port, *words, depth=depth, random_below=1000):
            time.sleep(rig.sizes.window_s * _LOAD_S)
        ended = time.monotonic()
        _wait_level(primary, replica)
        seconds = time.monotonic() - ended
        primary_s, replica_s = cpu_seconds(primary) - before[0], cpu_seconds(replica) - before[1]
        stats = info(primary.port, "commandstats")["cmdstat_xadd"]
        entries = int(stats.partition("calls=")[2].partition(",")[0])
        return replica_s / primary_s, seconds, entries / (ended - begun)


def _wait_level(primary: Server, replica: Server) -> None:
    """Wait until the replica has all that the primary has.  Raises AssertionError when it takes too long."""
    end = time.monotonic() + LOAD_TIMEOUT_S
    while time.monotonic() < end:
        fields = info(replica.port, "replication")
        offset = info(primary.port, "replication")["master_repl_offset"]
        if fields.get("master_link_status") == "up" and fields["slave_repl_offset"] == offset:
            return
        time.sleep(_LOOK_S)
    raise AssertionError(f"the replica is not level\n{replica.log_tail()}")
